"""Names of settings and policies that earlier versions had are understood, and one line says what is now."""

import logging
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from clairvoyant_cli import __version__
from clairvoyant_cli.commands.doctor import command as doctor
from clairvoyant_cli.commands.options import serve_options
from clairvoyant_cli.config import FORMER, ServeConfig, load_serve_config, with_current_names
from clairvoyant_cli.errors import InputError
from clairvoyant_cli.proxy.composition import policy_of
from clairvoyant_cli.scheduler.policy import DEFAULT_POLICY, POLICIES, RETIRED
from clairvoyant_cli.settings import settings_of

FILE = """# mine
[serve]
model = "/models/own"   # of March
no_preempt = true
quantum = 50

[[backends]]
name = "a"
url = "http://127.0.0.1:9"

[top]
keys = "promote=Y"
"""
WRITTEN = (
    FILE.replace("model =", "predictor =", 1)
    .replace("no_preempt = true", 'preempt = "off"')
    .replace("quantum = 50", "# quantum was removed and does nothing: quantum = 50")
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(FILE)
    return path


def test_a_file_of_an_earlier_version_is_understood(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "clairvoyant"):
        config = load_serve_config({}, file=file, env={})
    assert (config.predictor, config.preempt) == ("/models/own", "off")
    assert caplog.messages == [
        f"{file}: model is now predictor",
        f"{file}: no_preempt is now preempt",
        f"{file}: quantum was removed and does nothing",
    ]


def test_doctor_prints_the_file_with_current_names(file: Path) -> None:
    said = CliRunner().invoke(doctor, ["--config", str(file)]).stdout
    assert said.endswith(f"# {file}, with current names:\n{WRITTEN}")
    file.write_text(WRITTEN)
    assert with_current_names(file) is None
    assert "current names" not in CliRunner().invoke(doctor, ["--config", str(file)]).stdout


def test_a_current_name_counts_over_its_former_one(file: Path) -> None:
    file.write_text('[serve]\npredictor = "new"\nmodel = "old"\n')
    assert load_serve_config({}, file=file, env={}).predictor == "new"
    assert with_current_names(file) == '[serve]\npredictor = "new"\n# model is now predictor: model = "old"\n'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[serve]\nno_preempt = [1]\n", "no_preempt must be true or false"),
        ("serve = 5", "serve must be a table"),
    ],
)
def test_a_former_setting_of_the_wrong_kind_is_an_error(file: Path, text: str, why: str) -> None:
    file.write_text(text)
    with pytest.raises(InputError, match=why):
        load_serve_config({}, file=file, env={})
    assert with_current_names(file) is None


def test_former_variables_and_flags_are_understood(tmp_path: Path) -> None:
    variables = {"CLAIRVOYANT_SERVE_NO_PREEMPT": "1", "CLAIRVOYANT_SERVE_QUANTUM": "3"}
    none = tmp_path / "none.toml"
    none.touch()
    assert load_serve_config({}, file=none, env=variables).preempt == "off"
    given = {}

    @click.command()
    @serve_options()
    def command(**flags: object) -> None:
        given.update({name: value for name, value in flags.items() if value is not None})

    CliRunner().invoke(command, ["--no-preempt", "--model", "own", "--repeats", "3"], catch_exceptions=False)
    config = load_serve_config(given, file=none, env={})
    assert (config.preempt, config.predictor) == ("off", "own")


@pytest.mark.parametrize("name", RETIRED)
def test_a_retired_policy_gives_the_usual_one(name: str) -> None:
    assert policy_of(ServeConfig(policy=name)) is POLICIES[DEFAULT_POLICY]


def test_no_former_name_is_kept_for_longer_than_it_says() -> None:
    now = tuple(map(int, __version__.split(".")[:2]))
    assert all(now < tuple(map(int, each.until.split("."))) for each in FORMER.values())
    assert FORMER.keys().isdisjoint(settings_of(ServeConfig))
    assert {each.now for each in FORMER.values()} <= {"", *settings_of(ServeConfig)}
