"""Names of settings and policies that earlier versions had are understood, and one line says what is now."""

import logging
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from clairvoyant_cli import __version__
from clairvoyant_cli.commands.doctor import command as doctor
from clairvoyant_cli.commands.options import serve_options
from clairvoyant_cli.config import FORMER, ServeConfig, load_serve_config
from clairvoyant_cli.doctor.installation import check_names
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


def test_doctor_names_each_former_setting_with_its_change(file: Path) -> None:
    said = CliRunner(env={"COLUMNS": "300"}).invoke(doctor, ["--config", str(file)]).stdout
    assert f'change no_preempt = true to preempt = "off" in {file}' in said
    assert f"remove quantum from {file}" in said


@pytest.mark.parametrize(
    ("text", "by_hand"),
    [
        ("[serve]\npolicy = 'bounded'  # fair\n", ['change policy = "bounded" to policy = "boost" in']),
        ('[serve]\npredictor = "new"\nmodel = "old"\n', ["remove model from"]),
        ("serve = { no_preempt = true }\n", ['change no_preempt = true to preempt = "off" in']),
        ("[serve]\nquantum = [\n1,\n2\n]\n", ["remove quantum from"]),
        (
            '[serve]\nslot_save_path = """\nx"""\nmodel = "a"\n',
            ["remove slot_save_path from", 'change model = "a" to predictor = "a" in'],
        ),
        ('[serve]\npolicy = """rr"""\n', ['change policy = "rr" to policy = "boost" in']),
        ("[top]\nhidden = 'tok'\n", ["remove hidden from"]),
        ('[serve]\nrepeats = 3\nstart = """\nrepeats = 3\n"""\n', ["remove repeats from"]),
    ],
)
def test_a_former_setting_is_named_with_its_change(file: Path, text: str, by_hand: list[str]) -> None:
    file.write_text(text)
    assert [each.fix for each in check_names(file)] == [f"{each} {file}" for each in by_hand]


def test_a_current_name_counts_over_its_former_one(file: Path) -> None:
    file.write_text('[serve]\npredictor = "new"\nmodel = "old"\n')
    assert load_serve_config({}, file=file, env={}).predictor == "new"


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


@pytest.mark.parametrize("name", ["MODEL", "PREDICTOR", "SLOTS", "NO_PREEMPT"])
def test_an_empty_variable_counts_as_unset(file: Path, name: str) -> None:
    found = load_serve_config({}, file=file, env={f"CLAIRVOYANT_SERVE_{name}": ""})
    assert found == load_serve_config({}, file=file, env={})


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


def test_all_retired_policies_are_known() -> None:
    served = {
        "bounded",
        "sjf-rationed",
        "aging",
        "hrrn",
        "fair",
        "srpt",
        "fair-srpt",
        "quartz",
        "rr",
        "rr-sjf",
    }
    assert set(RETIRED) == served


@pytest.mark.parametrize("urgency", [None, "shipped"])
@pytest.mark.parametrize("name", RETIRED)
def test_a_retired_policy_gives_the_one_that_replaced_it(name: str, urgency: str | None) -> None:
    assert policy_of(ServeConfig(policy=name, urgency=urgency)) is POLICIES[DEFAULT_POLICY]


def test_no_former_name_is_kept_for_longer_than_it_says() -> None:
    now = tuple(map(int, __version__.split(".")[:2]))
    assert all(now < tuple(map(int, each.until.split("."))) for each in FORMER.values())
    assert now < (0, 3) or not RETIRED
    assert FORMER.keys().isdisjoint(settings_of(ServeConfig))
    assert {each.now for each in FORMER.values()} <= {"", *settings_of(ServeConfig)}
