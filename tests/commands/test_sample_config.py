"""The sample configuration is valid and sets nothing; unknown variables are errors."""

from pathlib import Path

import pytest

from clairvoyant_cli.config import ServeConfig, load_serve_config
from clairvoyant_cli.errors import ClairvoyantError

ROOT = Path(__file__).resolve().parents[2]


def test_the_sample_configuration_is_valid_and_sets_nothing() -> None:
    assert load_serve_config({}, file=ROOT / "docs" / "config.sample.toml", env={}) == ServeConfig()


def test_an_unknown_environment_variable_is_an_error() -> None:
    with pytest.raises(ClairvoyantError, match="unknown environment variable"):
        load_serve_config({}, env={"CLAIRVOYANT_SERVE_MODELS": "x"})
