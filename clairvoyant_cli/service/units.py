"""Builds service files for systemd, launchd and Task Scheduler, and the commands that control them."""

import plistlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import list2cmdline
from xml.sax.saxutils import escape

from clairvoyant_cli.system import for_shell

NAME = "clairvoyant"
LABEL = "io.github.clairvoyant"

SERVE = ("serve", "--replace")  # a daemon that `service restart` has started serves meanwhile
STOP_S = 600  # seconds that a stopping service may take to finish running requests


@dataclass(frozen=True, slots=True)
class Action:
    """A command. If it `may_fail`, failure means there was nothing to do."""

    words: tuple[str, ...]
    may_fail: bool = False

    def __str__(self) -> str:
        return for_shell(*self.words)


@dataclass(frozen=True, slots=True)
class Unit:
    """A service of one platform: its file, and the commands of each action.

    `log_file` is None if the platform keeps the log; then `logs` prints it.
    """

    path: Path
    text: str
    install: tuple[Action, ...]
    uninstall: tuple[Action, ...]
    after_removal: tuple[Action, ...]
    start: tuple[Action, ...]
    stop: tuple[Action, ...]
    status: tuple[Action, ...]
    logs: tuple[Action, ...] = ()
    log_file: Path | None = None
    encoding: str = "utf-8"
    advice: str = ""


def systemd_unit(
    program: Sequence[str], flags: Sequence[str], config_home: Path, search_path: str = ""
) -> Unit:
    """Return the systemd user unit, with a PATH of its own if one is given; journald keeps its log."""
    unit = f"{NAME}.service"
    environment = f'Environment="PATH={_systemd_escaped(search_path)}"\n' if search_path else ""
    text = f"""[Unit]
Description=Clairvoyant, a proxy that sends the shortest predicted LLM answer first
After=network.target

[Service]
{environment}ExecStart={" ".join(map(_systemd_word, (*program, *SERVE, *flags)))}
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


def launchd_agent(
    program: Sequence[str], flags: Sequence[str], home: Path, uid: str, search_path: str = ""
) -> Unit:
    """Return the launchd agent; `serve` writes the log, because launchd does not rotate logs."""
    path = home / "Library" / "LaunchAgents" / f"{LABEL}.plist"
    logs = home / "Library" / "Logs" / NAME
    log_file = logs / f"{NAME}.log"
    domain, target = f"gui/{uid}", f"gui/{uid}/{LABEL}"
    text = plistlib.dumps(
        {
            "Label": LABEL,
            "ProgramArguments": [*program, *SERVE, *flags, "--log-file", str(log_file)],
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ExitTimeOut": STOP_S,
            "ProcessType": "Interactive",
            "EnvironmentVariables": {"PATH": search_path} if search_path else {},
            # For output before the log is open, and crashes.
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
        log_file=log_file,
    )


def scheduled_task(
    programs: tuple[Sequence[str], Sequence[str]],
    flags: Sequence[str],
    home: Path,
    state: Path,
    account: str,
    name: str,
) -> Unit:
    """Return the Task Scheduler task for one account (a SID), which needs no administrator.

    `programs` are the one without a window, to serve, and the console one, to stop it. The scheduler does not
    restart a failed action ([MS-TSCH] 2.5.4.2), so a second trigger starts it each minute, and is ignored
    while it runs.
    """
    silent, console = programs
    path, log_file = state / f"{NAME}-task.xml", state / "Logs" / f"{NAME}.log"
    words = (*silent[1:], *SERVE, *flags, "--log-file", str(log_file))
    text = f"""<?xml version="1.0" encoding="UTF-16"?>
<Task version="1.2" xmlns="http://schemas.microsoft.com/windows/2004/02/mit/task">
  <RegistrationInfo>
    <Description>Clairvoyant, a proxy that sends the shortest predicted LLM answer first</Description>
  </RegistrationInfo>
  <Triggers>
    <LogonTrigger>
      <UserId>{escape(account)}</UserId>
    </LogonTrigger>
    <TimeTrigger>
      <StartBoundary>2020-01-01T00:00:00</StartBoundary>
      <Repetition>
        <Interval>PT1M</Interval>
      </Repetition>
    </TimeTrigger>
  </Triggers>
  <Principals>
    <Principal id="Author">
      <UserId>{escape(account)}</UserId>
      <LogonType>InteractiveToken</LogonType>
      <RunLevel>LeastPrivilege</RunLevel>
    </Principal>
  </Principals>
  <Settings>
    <MultipleInstancesPolicy>IgnoreNew</MultipleInstancesPolicy>
    <DisallowStartIfOnBatteries>false</DisallowStartIfOnBatteries>
    <StopIfGoingOnBatteries>false</StopIfGoingOnBatteries>
    <IdleSettings>
      <StopOnIdleEnd>false</StopOnIdleEnd>
    </IdleSettings>
    <ExecutionTimeLimit>PT0S</ExecutionTimeLimit>
    <Priority>5</Priority>
  </Settings>
  <Actions Context="Author">
    <Exec>
      <Command>{escape(silent[0])}</Command>
      <Arguments>{escape(list2cmdline(words))}</Arguments>
      <WorkingDirectory>{escape(str(home))}</WorkingDirectory>
    </Exec>
  </Actions>
</Task>
"""

    def schtasks(verb: str, *words: str) -> Action:
        return Action(("schtasks", f"/{verb}", "/TN", name, *words))

    run = schtasks("Run")
    end = Action((*console, "service", "end", "--log-file", str(log_file)))
    return Unit(
        path=path,
        text=text,
        # Replace the definition first: else the minute trigger could restart the old one.
        install=(schtasks("Create", "/XML", str(path), "/F"), end, run),
        uninstall=(Action(("schtasks", "/Delete", "/TN", name, "/F"), may_fail=True), end),
        after_removal=(),
        start=(schtasks("Change", "/ENABLE"), run),
        stop=(schtasks("Change", "/DISABLE"), end),
        status=(Action(("schtasks", "/Query", "/TN", name, "/V", "/FO", "LIST"), may_fail=True),),
        log_file=log_file,
        encoding="utf-16",
        advice="It runs while you are logged on. After a stop, start it with: clairvoyant service start",
    )


def _systemd_word(word: str) -> str:
    # systemd expands % and $ in command lines, and splits at unquoted spaces.
    escaped = _systemd_escaped(word).replace("$", "$$")
    return f'"{escaped}"' if not word or any(c in word for c in " \t\n\"'\\;") else escaped


def _systemd_escaped(word: str) -> str:
    return word.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"').replace("%", "%%")
