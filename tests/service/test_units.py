"""The files a service is written down in."""

import plistlib
import shlex
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from clairvoyant_cli.service.units import LABEL, launchd_agent, systemd_unit

PROGRAM = ("/opt/clairvoyant/bin/clairvoyant",)


def test_the_systemd_unit_starts_serve_with_the_flags() -> None:
    unit = systemd_unit(PROGRAM, ("--backend", "ollama"), Path("/home/a/.config"))
    assert unit.path == Path("/home/a/.config/systemd/user/clairvoyant.service")
    assert "ExecStart=/opt/clairvoyant/bin/clairvoyant serve --backend ollama\n" in unit.text
    assert [str(action) for action in unit.install] == [
        "systemctl --user daemon-reload",
        "systemctl --user enable clairvoyant.service",
        "systemctl --user restart clairvoyant.service",
    ]


def test_the_launchd_agent_is_a_plist_that_starts_serve_with_its_own_log() -> None:
    unit = launchd_agent(PROGRAM, ("--backend", "ollama"), Path("/Users/a"), 501)
    agent = plistlib.loads(unit.text.encode())
    assert unit.path == Path(f"/Users/a/Library/LaunchAgents/{LABEL}.plist")
    assert agent["ProgramArguments"] == [
        *(PROGRAM[0], "service", "run", "--log-file", "/Users/a/Library/Logs/clairvoyant/clairvoyant.log"),
        *("--", "--backend", "ollama"),
    ]
    assert agent["KeepAlive"] == {"SuccessfulExit": False}
    assert str(unit.install[0]) == f"launchctl bootout gui/501/{LABEL}"
    assert unit.install[0].may_fail


@given(st.text(st.characters(codec="ascii", categories=("L", "N", "P", "S", "Zs")), max_size=20))
def test_systemd_reads_a_flag_as_it_was_given(flag: str) -> None:
    text = systemd_unit(PROGRAM, (flag,), Path("/c")).text
    (line,) = [line for line in text.splitlines() if line.startswith("ExecStart=")]
    written = line.removeprefix("ExecStart=").replace("%%", "%").replace("$$", "$")
    assert shlex.split(written) == [*PROGRAM, "serve", flag]
