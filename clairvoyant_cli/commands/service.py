"""`clairvoyant service`: runs the proxy as a user service that starts again after a reboot."""

import os
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import psutil

from clairvoyant_cli.addresses import local_url
from clairvoyant_cli.commands.plain_output import say
from clairvoyant_cli.config import (
    ServeConfig,
    command_of,
    load_serve_config,
    settings_from_env,
    with_absolute_paths,
)
from clairvoyant_cli.errors import ClairvoyantError, InputError
from clairvoyant_cli.files import read_file
from clairvoyant_cli.proxy.servers.own_server import program_of
from clairvoyant_cli.service.units import (
    SERVE,
    STOP_S,
    Action,
    Unit,
    launchd_agent,
    scheduled_task,
    systemd_unit,
)
from clairvoyant_cli.state.client import RunningDaemon, running_daemons, state_dir
from clairvoyant_cli.system import (
    account,
    ask_to_end,
    background,
    command_line,
    create_for_owner,
    remove,
    service_manager,
)

LOG_LINES = 100
COMES_UP_S = 30.0  # a slow disk reads onnxruntime for seconds
LOOK_EVERY_S = 0.1


@click.group()
def command() -> None:
    """Run the proxy as a user service: systemd on Linux, launchd on macOS, Task Scheduler on Windows.

    Needs no root or administrator rights. `install` shows the file before it writes it, and is safe
    to repeat.
    """


@command.command()
@click.option("--dry-run", is_flag=True, help="Print the file and the commands without running them.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.argument("serve_flags", nargs=-1, type=click.UNPROCESSED)
def install(dry_run: bool, yes: bool, serve_flags: tuple[str, ...]) -> None:
    """Write the service file and start the service.

    Put flags of `clairvoyant serve` after a double dash: service install -- --backend ollama
    """
    _refuse_in_takeover()
    flags = standalone_flags(serve_flags, os.environ)
    config = check_serve_flags(flags, keeps_log=unit_of(()).log_file is not None)
    if config.start:
        program_of(config.start)
    for name in ("clients", "api_key_file", "admin_token_file", "backend_key_file"):
        if path := getattr(config, name):
            read_file(Path(path), f"the file of --{name.replace('_', '-')}")
    unit = unit_of(flags, os.environ.get("PATH", "") if config.start else "")
    current, url = written_text(unit), local_url(*config.addresses()[0])
    daemon = daemon_at(url) if current is None and not dry_run else None
    if daemon is not None:  # the service could not take the address
        raise ClairvoyantError(f"clairvoyant serve runs already at {url}; end it: kill {daemon.pid}")
    if current == unit.text:
        click.echo(f"{unit.path} is up to date.")
    else:
        click.echo(f"# {unit.path}{' (replaced)' if current is not None else ''}\n{unit.text}")
        show_actions(unit.install)
    if dry_run:
        return
    if current != unit.text and not yes:
        click.confirm("Write this file and run these commands?", abort=True, err=True)
    put(unit, unit.text)
    if not comes_up(url):
        raise ClairvoyantError(f"the service does not answer at {url}; see: clairvoyant service logs")
    click.echo(f"Installed. It answers at {url}")
    if unit.advice:
        click.echo(unit.advice)


@command.command()
@click.option("--dry-run", is_flag=True, help="Print what would be removed without removing it.")
def uninstall(dry_run: bool) -> None:
    """Stop the service and remove its file."""
    _refuse_in_takeover()
    unit = unit_of(())
    if not unit.path.exists():
        click.echo("Not installed.")
        return
    show_actions((*unit.uninstall, Action(("rm", str(unit.path))), *unit.after_removal))
    if dry_run:
        return
    take_away(unit)
    click.echo("Removed.")


@command.command()
def start() -> None:
    """Start the installed service."""
    run_actions(_installed().start)


@command.command()
def stop() -> None:
    """Stop the service after its running requests."""
    run_actions(_installed().stop)


@command.command()
def restart() -> None:
    """Restart the service, for example after an upgrade. No request is lost.

    A temporary `serve --replace` takes the place of the service, which then ends after its last answer, is
    started again, and takes the place of the temporary one.
    """
    _refuse_in_takeover()
    unit = _installed()
    daemon = next((each for each in running_daemons() if _is_service(unit, each.pid)), None)
    if daemon is None:
        raise ClairvoyantError(
            "the service does not run as it is installed; run: clairvoyant service install"
        )
    service = psutil.Process(daemon.pid)
    path = state_dir() / "restart.log"
    remove(path)
    with os.fdopen(create_for_owner(path), "wb") as log:
        bridge = subprocess.Popen(
            [*service.cmdline(), "--replace"],  # again: `service end` must not take it for the service
            env=service.environ(),
            cwd=service.cwd(),
            stdin=subprocess.DEVNULL,
            stderr=log,
            **background(),
        )
    if not _is_replaced(daemon, lambda pid: pid == bridge.pid or bridge.poll() is not None):
        bridge.kill()
    if bridge.poll() is not None:
        why = path.read_text(errors="replace").strip().rpartition("\n")[2]
        raise ClairvoyantError(f"the service goes on as it is; a new daemon does not start: {why}")
    say(f"Process {daemon.pid} ends after its last answers; process {bridge.pid} serves meanwhile.")
    service.wait()
    run_actions(unit.start)
    if not _is_replaced(daemon, lambda pid: pid not in (0, bridge.pid, daemon.pid)):
        why = f"process {bridge.pid} serves meanwhile; see: clairvoyant service logs"
        raise ClairvoyantError(f"the service does not start again; {why}")
    say("Restarted.")


def _is_service(unit: Unit, pid: int) -> bool:
    """Whether a process is the daemon of the installed service."""
    with suppress(psutil.Error, ValueError):
        words = psutil.Process(pid).cmdline()
        flags = words[words.index(SERVE[0]) + len(SERVE) :]
        kept = flags[: -2 if unit.log_file is not None else None]
        return unit_of(kept).text == written_text(unit)
    return False


def _is_replaced(daemon: RunningDaemon, is_new: Callable[[int], bool]) -> bool:
    """Wait until another process listens at the address of a daemon; False if none does in time."""
    for _ in range(round(COMES_UP_S / LOOK_EVERY_S)):
        there = daemon_at(daemon.url)
        if is_new(0 if there is None else there.pid):
            return True
        time.sleep(LOOK_EVERY_S)
    return False


@command.command()
def status() -> None:
    """Show the service manager's status of the service."""
    run_actions(_installed().status)


@command.command()
def logs() -> None:
    """Print the last 100 lines of the service log."""
    unit = _installed()
    run_actions(unit.logs)
    if unit.log_file is None:
        return
    try:
        with unit.log_file.open(encoding="utf-8", errors="replace") as lines:
            for line in deque(lines, LOG_LINES):
                say(line.rstrip("\n"))
    except OSError as error:
        why = error.strerror or error
        raise ClairvoyantError(f"cannot read the log {unit.log_file}: {why}; has it started?") from None


@command.command(hidden=True)
@click.option("--log-file", required=True, help="The service's log file, which identifies its daemon.")
def end(log_file: str) -> None:
    """Drain and stop the service's daemon; Task Scheduler itself can only kill it."""
    end_daemons(daemons_with_log(log_file))


def daemons_with_log(log_file: str) -> list[psutil.Process]:
    """Return the processes of the daemons that log to a file.

    There may be two: in a virtual environment on Windows, a launcher starts Python and waits.
    """
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if "serve" in (words := process.info["cmdline"] or ()) and words[-2:] == ["--log-file", log_file]
    ]


def end_daemons(daemons: Sequence[psutil.Process]) -> None:
    """Drain and end daemons; they are killed after `STOP_S`."""
    for process in daemons:
        ask_to_end(process.pid)
    _, alive = psutil.wait_procs(daemons, timeout=STOP_S)
    for process in alive:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=5)


def written_text(unit: Unit) -> str | None:
    """Return what the file of a service holds; None if there is none."""
    return unit.path.read_text(encoding=unit.encoding) if unit.path.exists() else None


def put(unit: Unit, text: str) -> None:
    """Write the service file and start the service, or start it again."""
    unit.path.parent.mkdir(parents=True, exist_ok=True)
    unit.path.write_text(text, encoding=unit.encoding)
    if unit.log_file is not None:
        unit.log_file.parent.mkdir(parents=True, exist_ok=True)  # launchd writes there before serve does
    run_actions(unit.install)


def daemon_at(url: str) -> RunningDaemon | None:
    return next((daemon for daemon in running_daemons() if daemon.url == url), None)


def comes_up(url: str) -> bool:
    """Wait until a daemon of this account listens at a URL; False if none does in time."""
    for _ in range(round(COMES_UP_S / LOOK_EVERY_S)):
        if daemon_at(url):
            return True
        time.sleep(LOOK_EVERY_S)
    return False


def take_away(unit: Unit) -> None:
    """Stop the service, after its running requests, and remove its file."""
    run_actions(unit.uninstall)
    unit.path.unlink(missing_ok=True)
    run_actions(unit.after_removal)


def _refuse_in_takeover() -> None:
    from clairvoyant_cli.takeover.journal import read

    if (record := read()) is not None:
        why = f"the service listens at {record.address} in the place of {record.kind}"
        raise ClairvoyantError(f"{why}; first run: clairvoyant takeover --undo")


def unit_of(flags: Sequence[str], search_path: str = "") -> Unit:
    """Return the service of this platform with flags for `serve`, and a PATH if its own is too short;
    ClairvoyantError if there is none. Task Scheduler gives a task the PATH of its account.
    """
    program, home = own_program(), Path.home()
    match service_manager():
        case "systemd":
            config_home = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
            return systemd_unit(program, flags, config_home, search_path)
        case "launchd":
            return launchd_agent(program, flags, home, account(), search_path)
        case "schtasks":
            name = f"clairvoyant-{os.environ.get('USERNAME') or account()}"
            return scheduled_task((_windowless(), program), flags, home, state_dir(), account(), name)
        case _:
            raise ClairvoyantError(
                "service supports systemd, launchd and Windows only; start `clairvoyant serve` another way"
            )


def own_program() -> tuple[str, ...]:
    """Return the words that run this program."""
    # Full path: a service has a different PATH and no active virtual environment.
    for name in ("clairvoyant", "clairvoyant.exe"):
        script = Path(sys.executable).with_name(name)
        if script.exists():
            return (str(script),)
    return (sys.executable, "-m", "clairvoyant_cli")


def _windowless() -> tuple[str, ...]:
    # pythonw: Windows opens a console window for a script.
    # -P: do not import modules from the working directory.
    python = Path(sys.executable).with_name("pythonw.exe")
    return (str(python if python.exists() else sys.executable), "-P", "-m", "clairvoyant_cli")


def _installed() -> Unit:
    unit = unit_of(())
    if not unit.path.exists():
        raise ClairvoyantError("the service is not installed; install it with: clairvoyant service install")
    return unit


def check_serve_flags(flags: Sequence[str], *, keeps_log: bool) -> ServeConfig:
    """Return the settings that flags give to a service; ClairvoyantError if they are invalid."""
    given = _parsed(flags)
    file = given.pop("config_file", None)
    if "log_file" in given and keeps_log:
        raise InputError("the service has its own log file; remove --log-file")
    return load_serve_config(given, file=file, env={})  # it has none of the variables of this shell


def standalone_flags(flags: Sequence[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return flags that mean the same in another folder and without variables of an environment.

    ClairvoyantError if flags or variables are invalid, or there is no flag for a variable.
    """
    database = {"db": environment["CLAIRVOYANT_DB"]} if environment.get("CLAIRVOYANT_DB") else {}
    given = database | settings_from_env(environment) | _parsed(flags)
    file = given.pop("config_file", None)
    words = [] if file is None else ["--config", str(file.absolute())]
    if "start" in given:
        variables, command = command_of(ServeConfig(start=given["start"]).start or "")
        variables["PWD"] = str(Path(variables.get("PWD", "")).absolute())
        given["start"] = command_line([*map("=".join, variables.items()), *command])
    for name, value in with_absolute_paths(ServeConfig, given, Path()).items():
        flag = f"--{name.replace('_', '-')}"
        if value is False:
            raise InputError(f"{flag} has no opposite; set {name} = false in the configuration file")
        number = f"{value:.15g}" if isinstance(value, float) else str(value)
        words += [flag] if value is True else [flag, number]
    return tuple(words)


def _parsed(flags: Sequence[str]) -> dict[str, Any]:
    """Return the settings that flags for `serve` name; ClairvoyantError if they are invalid."""
    from clairvoyant_cli.commands.serve import given_by  # slow to load

    try:
        return given_by(flags)
    except click.UsageError as error:
        raise InputError(f"invalid flags for clairvoyant serve: {error.message}") from None
    except click.exceptions.Exit:
        raise InputError("with these flags clairvoyant serve would exit at once") from None


def show_actions(actions: Sequence[Action]) -> None:
    for action in actions:
        click.echo(f"$ {action}")


def run_actions(actions: Sequence[Action]) -> None:
    """Run commands; ClairvoyantError if one is missing, or fails and must not."""
    for action in actions:
        if shutil.which(action.words[0]) is None:
            raise ClairvoyantError(f"{action.words[0]} not found; an administrator may have to run: {action}")
        done = subprocess.run(action.words, check=False)
        if done.returncode != 0 and not action.may_fail:
            raise ClairvoyantError(f"`{action}` failed; see its output above")
