"""`clairvoyant takeover`: the proxy listens where the server listened; the server moves to another port."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import click
import psutil

from clairvoyant_cli.addresses import MOVABLE, is_loopback, local_url
from clairvoyant_cli.commands.serve import given_by
from clairvoyant_cli.commands.service import (
    check_serve_flags,
    daemons_with_log,
    end_daemons,
    own_program,
    put,
    run_actions,
    show_actions,
    standalone_flags,
    take_away,
    unit_of,
    written_text,
)
from clairvoyant_cli.config import ServeConfig, command_of
from clairvoyant_cli.doctor.backend import direct_clients
from clairvoyant_cli.errors import ClairvoyantError, InputError
from clairvoyant_cli.service.units import Action
from clairvoyant_cli.state.client import ControlClient, admin_token, running_daemons, state_dir
from clairvoyant_cli.state.snapshot import Snapshot
from clairvoyant_cli.system import for_shell, remove, service_manager_runs
from clairvoyant_cli.takeover import journal
from clairvoyant_cli.takeover.journal import Takeover
from clairvoyant_cli.takeover.moves import end, moving, preparing, restoring, returning, start_apart
from clairvoyant_cli.takeover.servers import RunningServer, fault, find_running, free_port_after

READY_S = 60.0
LOOK_EVERY_S = 0.05
REPLACED = ("backend", "start", "log_file")
"""Flags of a running daemon that a takeover sets itself, or its service."""

APP_ADVICE = """\
Ollama's desktop app stays a client. Do not let it open at login, or it may take the port first: on macOS in
System Settings > General > Login Items, on Windows in Task Manager > Startup apps."""


@click.command()
@click.argument("kind", type=click.Choice(MOVABLE), required=False)
@click.option("--undo", is_flag=True, help="Put everything back, also after an interrupted takeover.")
@click.option("--backend", metavar="URL", help="Address of the server. Unset: its usual port.")
@click.option("--dry-run", is_flag=True, help="Print what would be done without doing it.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option(
    "--now",
    is_flag=True,
    help="Do not wait for running answers: end them, and with --undo reject queued ones.",
)
@click.argument("serve_flags", nargs=-1, type=click.UNPROCESSED)
def command(
    kind: str | None,
    undo: bool,
    backend: str | None,
    dry_run: bool,
    yes: bool,
    now: bool,
    serve_flags: tuple[str, ...],
) -> None:
    """Listen where the server listens, and move the server to another port.

    No client has to be changed: apps with a fixed port go through the queue, too. Shows what it
    will do and asks before it does it. Put flags of `clairvoyant serve` after a double dash:
    takeover ollama -- --policy sjf
    """
    with nullcontext() if dry_run else journal.held():
        _carry_out(kind, backend, serve_flags, undo=undo, dry_run=dry_run, yes=yes, now=now)


def _carry_out(
    kind: str | None,
    backend: str | None,
    serve_flags: tuple[str, ...],
    *,
    undo: bool,
    dry_run: bool,
    yes: bool,
    now: bool,
) -> None:
    record = journal.read()
    if undo:
        if record is None:
            click.echo("No takeover is in place.")
            return
        click.echo(f"{record.kind} returns from port {record.port} to {record.address}, where the proxy was.")
        show_actions([*restoring(record), *returning(record)])
        act = partial(_put_back, record, now=now)
    elif record is not None:
        why = f"a takeover of {record.kind} at {record.address} is in place, or was interrupted"
        raise ClairvoyantError(f"{why}; undo it: clairvoyant takeover --undo")
    elif kind is None:
        raise InputError(f"name the server to move: {', '.join(MOVABLE)}; or give --undo")
    else:
        server = asyncio.run(find_running(kind, backend))
        record = _plan(server, serve_flags)
        _show(server, record)
        act = partial(_take_over, server, record, now=now)
    if not dry_run and (yes or click.confirm("Do this?", abort=True, err=True)):
        act()


def _plan(server: RunningServer, serve_flags: Sequence[str]) -> Takeover:
    """Return the plan; ClairvoyantError if the server cannot be moved, or the flags are wrong."""
    kind = server.kind
    is_child = kind != "lmstudio" and not server.unit
    if server.unit not in ("", "ollama.service"):
        raise ClairvoyantError(
            f"{server.unit} runs {server.title}; set another port there, restart it, then run: clairvoyant "
            f"service install -- --listen {server.address} --backend http://127.0.0.1:PORT"
        )
    if is_child and server.process is None:
        raise ClairvoyantError(f"another account runs {server.title}; run this as that account, or as root")
    if any(word.split("=")[0] in ("--backend", "--start") for word in serve_flags):
        raise InputError("--backend and --start follow from the takeover; leave them out")
    service = service_manager_runs()
    before = written_text(unit_of(())) if service else None
    flags = [*_flags_of_daemon(kind, is_service=before is not None), *standalone_flags(serve_flags, {})]
    given = check_serve_flags(flags, keeps_log=True)
    if all(port != server.port for _, port in given.addresses()):
        named = any(word.startswith("--listen") for word in flags)
        flags.append(f"--listen={'' if named else given.listen + ','}{server.address}")
        given = check_serve_flags(flags, keeps_log=True)
    if any(not is_loopback(host) for host, _ in given.addresses()) and given.admin_token_file is None:
        raise ClairvoyantError(
            f"other machines use {server.title}, and need keys at the proxy: takeover {kind} -- --clients "
            f"FILE --admin-token-file FILE; to serve this machine alone: takeover {kind} -- --listen "
            f"127.0.0.1:7117 --listen 127.0.0.1:{server.port}"
        )
    port = free_port_after(server.port, [port for _, port in given.addresses()])
    flags += [f"--allow-origin={each}" for each in server.origins]
    flags.append(f"--backend={kind}=http://127.0.0.1:{port}")
    if is_child:
        flags.append(f"--start={server.command(port)}")
    command = server.command() if is_child else ""
    app = server.app if is_child else ()
    return Takeover(kind, server.address, port, tuple(flags), service, before, server.unit, command, app)


def _flags_of_daemon(kind: str, *, is_service: bool) -> list[str]:
    """Return the flags of the running service, without those that a takeover sets; [] if none runs.

    ClairvoyantError if a daemon runs that is not known to be the service, with the command to repeat.
    """
    daemons = running_daemons()
    if not daemons:
        return []
    flags: list[str] = []
    with suppress(psutil.Error, ValueError):
        words = psutil.Process(daemons[0].pid).cmdline()
        given = given_by(words[words.index("serve") + 1 :])
        if "config_file" in given:
            given["config"] = given.pop("config_file")
        for name, value in given.items():
            if name in REPLACED:
                continue
            flag = f"--{name.replace('_', '-')}"
            flags.append(flag if value is True else f"{flag}={value}")
        if is_service and len(daemons) == 1:
            return flags
    pids = " ".join(str(daemon.pid) for daemon in daemons)
    again = for_shell("clairvoyant", "takeover", kind, *(["--", *flags] if flags else []))
    raise ClairvoyantError(f"clairvoyant serve runs already; end it (kill {pids}), then run: {again}")


def _show(server: RunningServer, record: Takeover) -> None:
    click.echo(
        f"{server.title} moves from {record.address} to port {record.port}; the proxy takes its place."
    )
    if clients := direct_clients(server.port):
        click.echo(f"Connected now: {', '.join(clients)}. Their settings stay as they are.")
    show_actions(preparing(record))
    proxy = ("service", "install", "--") if record.service else ("serve",)
    show_actions([Action(("clairvoyant", *proxy, *record.flags))])
    if record.command and server.process is not None:
        click.echo(f"The process {server.process.pid} ends: the proxy runs {server.title}.")
    show_actions(moving(record))
    click.echo("Loaded models are loaded again. To undo this: clairvoyant takeover --undo")
    if record.app:
        click.echo(APP_ADVICE)


def _take_over(server: RunningServer, record: Takeover, *, now: bool) -> None:
    """Do the steps; if one fails, undo those before."""
    try:
        _move(server, record, now=now)
    except BaseException as error:
        click.echo("Putting everything back.", err=True)
        if (begun := journal.read()) is not None:
            _put_back(begun, now=now)
        if isinstance(error, ClairvoyantError):
            raise ClairvoyantError(f"{error}; everything is as it was") from None
        raise


def _move(server: RunningServer, record: Takeover, *, now: bool) -> None:
    config = check_serve_flags(record.flags, keeps_log=True)
    journal.write(record, "settings")
    run_actions(preparing(record))
    journal.write(record, "proxy")
    if record.service:
        _await_idle_proxy(config, now=now)
        put(unit_of(()), unit_of(record.flags).text)
    else:
        start_apart((*own_program(), "serve", *record.flags, "--log-file", _log_file()), {})
    _await(partial(_start_fault, record, config))
    journal.write(record, "server")
    processes = server.processes() if record.command else []
    if not now and server.is_answering():
        click.echo(f"Waiting until {server.title} is idle; --now does not wait. Ctrl-C puts everything back.")
        while server.is_answering():
            pass  # it looks for a second
    begun_s = time.monotonic()
    end(processes)
    run_actions(moving(record))
    models = None if config.clients or config.api_key_file else server.models
    _await(partial(fault, record.kind, record.url, models, proxied=True))
    took_s = time.monotonic() - begun_s
    if record.app:
        start_apart(record.app, {})
    journal.write(record, "done")
    click.echo(
        f"Done: after {took_s:.1f} s, {record.url} answers through the proxy. Watch it: clairvoyant top"
    )


async def _start_fault(record: Takeover, config: ServeConfig) -> str:
    """Return what is wrong with the started proxy, and its own server; "" if nothing is."""
    where = "clairvoyant service logs" if record.service else _log_file()
    try:
        state = await _state(config)
    except ClairvoyantError:
        return f"the proxy did not start; see {where}"
    server = state.backends[0]
    is_right = server.url.endswith(f":{record.port}") and (not record.command or server.state == "up")
    return "" if is_right else f"the proxy did not start {record.kind}; see {where}"


def _put_back(record: Takeover, *, now: bool) -> None:
    run_actions(restoring(record))
    if record.step != "settings":
        daemons = daemons_with_log(_log_file())
        _await_idle_proxy(check_serve_flags(record.flags, keeps_log=True), now=now)
        if not record.service:
            end_daemons(daemons)
        elif record.service_before is None:
            take_away(unit_of(()))
        else:  # also if its file is as before: it may not have been restarted
            put(unit_of(()), record.service_before)
    there = partial(fault, record.kind, record.url, proxied=False)
    if asyncio.run(there()):
        run_actions(returning(record))
        if record.command:
            variables, words = command_of(record.command)
            start_apart(record.app or words, {} if record.app else variables)
        _await(there)
    remove(journal.journal_path())
    click.echo(f"Done: {record.kind} answers at {record.url} itself.")


def _await_idle_proxy(config: ServeConfig, *, now: bool) -> None:
    """Wait until the proxy, if one runs, has no requests; return at once if `now`."""
    said = False
    with suppress(ClairvoyantError):
        while not now and ((state := asyncio.run(_state(config))).running or state.queue):
            if not said:
                click.echo("Waiting until the proxy has answered its requests; --now rejects queued ones.")
            said = True
            time.sleep(LOOK_EVERY_S)


async def _state(config: ServeConfig) -> Snapshot:
    token = admin_token(Path(config.admin_token_file)) if config.admin_token_file else None
    async with ControlClient(local_url(*config.addresses()[0]), token) as client:
        return await client.snapshot()


def _await(fault: Callable[[], Coroutine[Any, Any, str]]) -> None:
    """Wait until there is no fault; ClairvoyantError with it after a minute."""
    ends_s = time.monotonic() + READY_S
    while what := asyncio.run(fault()):
        if time.monotonic() > ends_s:
            raise ClairvoyantError(what)
        time.sleep(LOOK_EVERY_S)


def _log_file() -> str:
    """Return the log of a proxy that no service manager runs, by which it is found."""
    return str(state_dir() / "Logs" / "takeover.log")
