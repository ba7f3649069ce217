"""README, guide and help document every command, setting and policy; links and set-up commands work."""

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import click
import pytest

from clairvoyant_cli.config import ServeConfig
from clairvoyant_cli.main import COMMANDS, cli
from clairvoyant_cli.scheduler.policy import POLICIES
from clairvoyant_cli.settings import settings_of

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
GUIDE = "".join(
    page.read_text() for page in (ROOT / "docs" / "guide.md", *(ROOT / "docs" / "guide").glob("*.md"))
)
REFERENCE = (ROOT / "docs" / "reference.md").read_text()


def command(name: str) -> click.Command:
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_documented(name: str) -> None:
    assert f"clairvoyant {name}" in README + GUIDE


def test_readme_is_short_and_its_links_exist() -> None:
    assert len(README.split()) < 600
    for target in re.findall(r"\]\(([^)#]+)", README):
        assert target.startswith("http") or (ROOT / target).exists(), target


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_flag_has_help(name: str) -> None:
    found = command(name)
    assert found.help
    for parameter in found.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{name} {parameter.name}"


def test_every_setting_of_serve_is_a_flag_and_is_documented() -> None:
    flags = {parameter.name for parameter in command("serve").params}
    settings = {each.name for each in fields(ServeConfig)}
    assert settings == (flags - {"config_file"}) | {"backends", "prefix_rules"}
    for name in settings - {"backends", "prefix_rules"}:
        assert f"`{name}`" in REFERENCE, name
    assert "`[[backends]]`" in REFERENCE
    assert "`[stable_prefix]`" in REFERENCE


def test_help_of_serve_lists_what_a_small_team_needs() -> None:
    parameters = command("serve").params
    context = click.Context(command("serve"), help_option_names=["--help"])
    shown = [
        each for each in command("serve").get_params(context) if each.get_help_record(context) is not None
    ]
    assert len(shown) <= 28
    hidden = {each.name for each in parameters if isinstance(each, click.Option) and each.hidden}
    assert hidden == {name for name, each in settings_of(ServeConfig).items() if each.expert}


def test_help_and_reference_describe_the_same_policies() -> None:
    help_text = " ".join((command("serve").get_help(click.Context(command("serve")))).split())
    for name, policy in POLICIES.items():
        assert (f"| `{name}` | {policy.summary} |" in REFERENCE) == (name in POLICIES), name
        assert (f" {name}: {policy.summary}" in help_text) == (name in POLICIES), name


def test_ci_runs_the_two_setup_commands_of_the_readme() -> None:
    section = README.split("## Two commands")[1].split("\n## ")[0]
    blocks = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    assert len(blocks) == 2
    assert "clairvoyant demo" in blocks[0]
    ci = (ROOT / ".ci/run").read_text()
    for part in ("'.[dev]'", " lab", ".ci/check"):
        assert part in blocks[1]
        assert part in ci


def test_the_changelog_names_every_command() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    for name in COMMANDS:
        assert f"`clairvoyant {name}`" in changelog


def test_the_architecture_drawing_is_current() -> None:
    command = [sys.executable, str(ROOT / "docs" / "draw_architecture.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_files_named_in_the_architecture_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(
        r"`((?:clairvoyant_cli|http|proxy|protocols|scheduler|predictor|tui|profiles|tests)/[a-z_/]+\.py)`",
        text,
    )
    assert len(named) > 15
    for name in named:
        assert (ROOT / name).exists() or (ROOT / "clairvoyant_cli" / name).exists(), name
