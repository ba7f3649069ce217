"""Names that settings had are still understood, and shown nowhere."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from clairvoyant_cli.commands import evaluate, predict, serve
from clairvoyant_cli.config import ServeConfig, load_serve_config
from clairvoyant_cli.errors import ClairvoyantError

ROOT = Path(__file__).resolve().parents[2]


def test_the_sample_configuration_can_be_read_and_sets_nothing() -> None:
    assert load_serve_config({}, file=ROOT / "docs" / "config.sample.toml", env={}) == ServeConfig()


def test_the_predictor_is_still_found_under_its_former_name(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[serve]\nmodel = "from-file"\n')
    assert load_serve_config({}, file=file, env={}).predictor == "from-file"
    env = {"CLAIRVOYANT_SERVE_MODEL": "from-env"}
    assert load_serve_config({}, file=file, env=env).predictor == "from-env"
    with pytest.raises(ClairvoyantError, match="unknown environment variable"):
        load_serve_config({}, file=file, env={"CLAIRVOYANT_SERVE_MODELS": "x"})


@pytest.mark.parametrize("flag", ["--model", "--predictor"])
def test_a_predictor_that_is_not_there_is_named_by_either_flag(flag: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(predict.command, ["Why?", flag, str(tmp_path / "none")])
    assert isinstance(done.exception, ClairvoyantError)
    assert "none" in str(done.exception)
    for command in (predict.command, evaluate.command, serve.command):
        assert "--model" not in CliRunner().invoke(command, ["--help"]).output
