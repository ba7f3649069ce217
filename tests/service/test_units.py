"""Service files and commands."""

import plistlib
import shlex
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from subprocess import list2cmdline

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clairvoyant_cli.service.units import LABEL, Unit, launchd_agent, scheduled_task, systemd_unit

PROGRAM = ("/opt/clairvoyant/bin/clairvoyant",)


def test_systemd_unit() -> None:
    unit = systemd_unit(PROGRAM, ("--backend", "ollama"), Path("/home/a/.config"))
    assert unit.path == Path("/home/a/.config/systemd/user/clairvoyant.service")
    assert "ExecStart=/opt/clairvoyant/bin/clairvoyant serve --replace --backend ollama\n" in unit.text
    assert [str(action) for action in unit.install] == [
        "systemctl --user daemon-reload",
        "systemctl --user enable clairvoyant.service",
        "systemctl --user restart clairvoyant.service",
    ]


def test_launchd_agent() -> None:
    unit = launchd_agent(PROGRAM, ("--backend", "ollama"), Path("/Users/a"), "501")
    agent = plistlib.loads(unit.text.encode())
    assert unit.path == Path(f"/Users/a/Library/LaunchAgents/{LABEL}.plist")
    assert agent["ProgramArguments"] == [
        *(PROGRAM[0], "serve", "--replace", "--backend", "ollama"),
        *("--log-file", "/Users/a/Library/Logs/clairvoyant/clairvoyant.log"),
    ]
    assert agent["KeepAlive"] == {"SuccessfulExit": False}
    assert str(unit.install[0]) == f"launchctl bootout gui/501/{LABEL}"
    assert unit.install[0].may_fail


@given(st.text(st.characters(codec="ascii", categories=("L", "N", "P", "S", "Zs")), max_size=20))
def test_systemd_quoting_round_trip(flag: str) -> None:
    text = systemd_unit(PROGRAM, (flag,), Path("/c")).text
    (line,) = [line for line in text.splitlines() if line.startswith("ExecStart=")]
    assert "/new\\nline" in systemd_unit(PROGRAM, ("/new\nline",), Path("/c")).text
    written = line.removeprefix("ExecStart=").replace("%%", "%").replace("$$", "$")
    assert shlex.split(written) == [*PROGRAM, "serve", "--replace", flag]


SID = "S-1-5-21-1-2-3-1001"
PYTHONW = ("C:\\Program Files\\R & D\\Jürgen\\pythonw.exe", "-P", "-m", "clairvoyant_cli")
CONSOLE = ("C:\\Program Files\\R & D\\Jürgen\\clairvoyant.exe",)
STATE = Path("C:/Users/Jürgen & Söhne/AppData/Local/clairvoyant")


def task(*flags: str) -> Unit:
    return scheduled_task(
        (PYTHONW, CONSOLE), flags, Path("C:/Users/Jürgen"), STATE, SID, "clairvoyant-Jürgen"
    )


def parsed(unit: Unit) -> ElementTree.Element:
    """Read the definition as the Task Scheduler does: by its byte order mark, in its namespace."""
    data = unit.text.encode(unit.encoding)
    assert data.startswith(b"\xff\xfe"), "schtasks takes UTF-16, little-endian, with its mark"
    root = ElementTree.fromstring(data)  # noqa: S314 - our own text
    for each in root.iter():
        space, _, each.tag = each.tag.partition("}")
        assert space == "{http://schemas.microsoft.com/windows/2004/02/mit/task"
    return root


def test_task_triggers() -> None:
    root = parsed(task("--backend", "ollama"))
    for where in ("Triggers/LogonTrigger/UserId", "Principals/Principal/UserId"):
        assert root.findtext(where) == SID
    said = {each.tag: each.text for each in root.iterfind("Settings/*")}
    assert said["ExecutionTimeLimit"] == "PT0S"
    assert said["MultipleInstancesPolicy"] == "IgnoreNew"
    assert said["DisallowStartIfOnBatteries"] == said["StopIfGoingOnBatteries"] == "false"
    assert said["Priority"] == "5", "7, the default, is below normal"
    repeated = root.find("Triggers/TimeTrigger")
    assert repeated is not None
    # A sequence in the schema: Enabled, StartBoundary, EndBoundary, Repetition, ExecutionTimeLimit.
    assert [each.tag for each in repeated] == ["StartBoundary", "Repetition"]
    assert [each.tag for each in repeated.iterfind("Repetition/*")] == ["Interval"], "for ever"


def test_task_paths_are_escaped() -> None:
    root = parsed(task())
    assert root.findtext("Actions/Exec/Command") == PYTHONW[0]
    log = str(STATE / "Logs" / "clairvoyant.log")
    assert (
        root.findtext("Actions/Exec/Arguments") == f'-P -m clairvoyant_cli serve --replace --log-file "{log}"'
    )


@given(st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), max_size=20))
def test_task_quoting_round_trip(flag: str) -> None:
    arguments = parsed(task(flag)).findtext("Actions/Exec/Arguments")
    assert arguments is not None
    assert f" serve --replace {list2cmdline([flag])} --log-file " in arguments


def test_a_stopped_task_stays_stopped() -> None:
    unit = task()
    disable, end = unit.stop
    assert disable.words == ("schtasks", "/Change", "/TN", "clairvoyant-Jürgen", "/DISABLE")
    assert end.words == (*CONSOLE, "service", "end", "--log-file", str(unit.log_file))
    assert [each.words[1] for each in unit.start] == ["/Change", "/Run"]
    assert [each.words[1] for each in unit.install] == ["/Create", "service", "/Run"]


@pytest.mark.parametrize("unit", [task(), launchd_agent(PROGRAM, (), Path("/Users/a"), "501")])
def test_log_file_where_the_platform_keeps_no_log(unit: Unit) -> None:
    assert not unit.logs
    assert unit.log_file is not None
    assert "--log-file" in unit.text
