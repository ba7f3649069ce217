"""The service as it is written down: the file, and the commands that act on it. Nothing is run here."""

import plistlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

NAME = "clairvoyant"
LABEL = "io.github.clairvoyant"

STOP_S = 600
"""How long a stopping service may take to finish the answers that run."""


@dataclass(frozen=True, slots=True)
class Action:
    """A command to run. A failure of one that `may_fail` means there was nothing to do."""

    words: tuple[str, ...]
    may_fail: bool = False

    def __str__(self) -> str:
        return shlex.join(self.words)


@dataclass(frozen=True, slots=True)
class Unit:
    """A service of one platform: its file, and what to run for each thing one may want of it.

    `log_file` is None where the platform keeps the log itself.
    """

    path: Path
    text: str
    install: tuple[Action, ...]
    uninstall: tuple[Action, ...]
    after_removal: tuple[Action, ...]
    start: tuple[Action, ...]
    stop: tuple[Action, ...]
    status: tuple[Action, ...]
    logs: tuple[Action, ...]
    log_file: Path | None = None
    advice: str = ""


def systemd_unit(program: Sequence[str], flags: Sequence[str], config_home: Path) -> Unit:
    """Return the systemd user unit; journald keeps and rotates its log."""
    unit = f"{NAME}.service"
    text = f"""[Unit]
Description=Clairvoyant, a proxy that sends the shortest predicted LLM answer first
After=network.target

[Service]
ExecStart={_systemd_words((*program, "serve", *flags))}
ExecReload=kill -HUP $MAINPID
Restart=on-failure
RestartSec=2
TimeoutStopSec={STOP_S}
NoNewPrivileges=true

[Install]
WantedBy=default.target
"""

    def systemctl(*words: str, may_fail: bool = False) -> Action:
        return Action(("systemctl", "--user", *words), may_fail)

    return Unit(
        path=config_home / "systemd" / "user" / unit,
        text=text,
        install=(systemctl("daemon-reload"), systemctl("enable", unit), systemctl("restart", unit)),
        uninstall=(systemctl("disable", "--now", unit, may_fail=True),),
        after_removal=(systemctl("daemon-reload"),),
        start=(systemctl("start", unit),),
        stop=(systemctl("stop", unit),),
        status=(systemctl("status", "--no-pager", unit, may_fail=True),),
        logs=(Action(("journalctl", "--user", "--unit", unit, "--lines", "100", "--no-pager")),),
        advice="To keep it running while you are logged out: loginctl enable-linger",
    )


def launchd_agent(program: Sequence[str], flags: Sequence[str], home: Path, uid: int) -> Unit:
    """Return the launchd agent. launchd rotates no logs: `service run` writes its own and does."""
    path = home / "Library" / "LaunchAgents" / f"{LABEL}.plist"
    logs = home / "Library" / "Logs" / NAME
    log_file = logs / f"{NAME}.log"
    domain, target = f"gui/{uid}", f"gui/{uid}/{LABEL}"
    text = plistlib.dumps(
        {
            "Label": LABEL,
            "ProgramArguments": [*program, "service", "run", "--log-file", str(log_file), "--", *flags],
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ExitTimeOut": STOP_S,
            "ProcessType": "Interactive",
            # What is written before the log is open, or by a crash.
            "StandardErrorPath": str(logs / "launchd.log"),
        },
        sort_keys=False,
    ).decode()

    def launchctl(*words: str, may_fail: bool = False) -> Action:
        return Action(("launchctl", *words), may_fail)

    bootout = launchctl("bootout", target, may_fail=True)
    bootstrap = launchctl("bootstrap", domain, str(path))
    return Unit(
        path=path,
        text=text,
        install=(bootout, launchctl("enable", target), bootstrap),
        uninstall=(bootout,),
        after_removal=(),
        start=(launchctl("bootstrap", domain, str(path), may_fail=True), launchctl("kickstart", target)),
        stop=(bootout,),
        status=(launchctl("print", target, may_fail=True),),
        logs=(Action(("tail", "-n", "100", str(log_file))),),
        log_file=log_file,
    )


def _systemd_words(words: Sequence[str]) -> str:
    return " ".join(_systemd_word(word) for word in words)


def _systemd_word(word: str) -> str:
    # systemd expands % and $ in command lines, and splits at spaces outside of quotes.
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if not word or any(c in word for c in " \t\"'\\;") else escaped
