"""`clairvoyant takeover`: the proxy listens where the server listened; the server moves to another port."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import psutil

from clairvoyant_cli.addresses import MOVABLE, is_loopback
from clairvoyant_cli.commands.serve import command as serve
from clairvoyant_cli.commands.service import (
    check_serve_flags,
    end_daemons,
    own_program,
    put,
    run_actions,
    show_actions,
    take_away,
    unit_of,
)
from clairvoyant_cli.config import ServeConfig, command_of
from clairvoyant_cli.doctor.backend import direct_clients
from clairvoyant_cli.errors import ClairvoyantError, InputError
from clairvoyant_cli.state.client import ControlClient, admin_token, local_url, own_daemons, state_dir
from clairvoyant_cli.state.snapshot import Snapshot
from clairvoyant_cli.system import remove, service_manager_runs
from clairvoyant_cli.takeover import journal
from clairvoyant_cli.takeover.journal import Takeover
from clairvoyant_cli.takeover.moves import (
    moving,
    preparing,
    restoring,
    returning,
    start_apart,
    stop_process,
)
from clairvoyant_cli.takeover.servers import (
    RunningServer,
    find_running,
    free_port_after,
    proxy_fault,
    server_fault,
)

READY_S = 60.0
LOOK_EVERY_S = 0.05
REPLACED = ("listen", "backend", "start", "log_file")
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
@click.option("--now", is_flag=True, help="Break off running answers instead of waiting for their end.")
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
    takeover ollama -- --policy srpt
    """
    record, server = journal.read(), None
    if undo and record is None:
        click.echo("No takeover is in place.")
        return
    if undo:
        assert record is not None  # noqa: S101 - for the type checker
        click.echo(
            f"The proxy leaves {record.address}, and {record.kind} returns to it from port {record.port}."
        )
        show_actions([*restoring(record), *returning(record)])
    elif record is not None:
        why = f"a takeover of {record.kind} at {record.address} is in place, or was interrupted"
        raise ClairvoyantError(f"{why}; undo it: clairvoyant takeover --undo")
    elif kind is None:
        raise InputError(f"name the server to move: {', '.join(MOVABLE)}; or give --undo")
    else:
        server = asyncio.run(find_running(kind, backend))
        record = _plan(server, serve_flags)
        _show(server, record)
    if dry_run:
        return
    if not yes:
        click.confirm("Do this?", abort=True, err=True)
    config = check_serve_flags(record.flags, keeps_log=True)
    if server is None:
        _put_back(record, config, now=now)
    else:
        _take_over_or_put_back(server, record, config, now=now)


def _plan(server: RunningServer, serve_flags: Sequence[str]) -> Takeover:
    kind, port = server.kind, free_port_after(server.port)
    is_child = kind != "lmstudio" and not server.unit
    if server.unit and kind != "ollama":
        raise ClairvoyantError(
            f"{server.unit} runs {server.title}; give it --port {port} there, restart it, then run: "
            f"clairvoyant service install -- --listen {server.address} --backend http://127.0.0.1:{port}"
        )
    if is_child and server.process is None:
        raise ClairvoyantError(f"another account runs {server.title}; run this as that account, or as root")
    service, before, flags = service_manager_runs(), None, list(serve_flags)
    if service and (file := unit_of(())).path.exists():
        before = file.path.read_text(encoding=file.encoding)
    if own_daemons():
        if before is None:
            raise ClairvoyantError("clairvoyant serve runs already; end it first, or run it as a service")
        flags = [*_flags_of_daemon(), *flags]
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
    flags += [f"--allow-origin={each}" for each in server.origins]
    flags.append(f"--backend={kind}=http://127.0.0.1:{port}")
    if is_child:
        flags.append(f"--start={server.command(port)}")
    command = server.command() if is_child else ""
    app = server.app if is_child else ()
    return Takeover(kind, server.address, port, tuple(flags), service, before, server.unit, command, app)


def _flags_of_daemon() -> list[str]:
    """Return the flags of the daemon that runs, without those that a takeover sets."""
    words = psutil.Process(asyncio.run(_state_of(local_url(None))).pid).cmdline()
    params = serve.make_context("serve", words[words.index("serve") + 1 :]).params
    params["config"] = params.pop("config_file")
    given = {f"--{name.replace('_', '-')}": value for name, value in params.items() if name not in REPLACED}
    return [
        name if value is True else f"{name}={value}" for name, value in given.items() if value is not None
    ]


def _show(server: RunningServer, record: Takeover) -> None:
    click.echo(
        f"{server.title} moves from {record.address} to port {record.port}; the proxy takes its place."
    )
    if clients := direct_clients(server.port, but=frozenset()):
        click.echo(f"Connected now: {', '.join(sorted(clients))}. Their settings stay as they are.")
    show_actions(preparing(record))
    click.echo(
        f"$ clairvoyant {'service install --' if record.service else 'serve'} {' '.join(record.flags)}"
    )
    if record.command and server.process is not None:
        click.echo(f"The process {server.process.pid} ends: the proxy runs {server.title}.")
    show_actions(moving(record))
    click.echo("Loaded models are loaded again. To undo this: clairvoyant takeover --undo")
    if record.app:
        click.echo(APP_ADVICE)


def _take_over_or_put_back(
    server: RunningServer, record: Takeover, config: ServeConfig, *, now: bool
) -> None:
    try:
        _take_over(server, record, config, now=now)
    except BaseException as error:
        click.echo("Putting everything back.", err=True)
        _put_back(record, config, now=now)
        if isinstance(error, ClairvoyantError):
            raise ClairvoyantError(f"{error}; everything is as it was") from None
        raise


def _take_over(server: RunningServer, record: Takeover, config: ServeConfig, *, now: bool) -> None:
    def step(name: str) -> None:
        journal.write(replace(record, step=name))

    step("settings")
    run_actions(preparing(record))
    step("proxy")
    if record.service:
        if not now:
            _await_idle_proxy(config)
        unit = unit_of(record.flags)
        put(unit, unit.text)
    else:
        start_apart((*own_program(), "serve", *record.flags, "--log-file", _log_file()))
    _await(partial(_start_fault, record, config))
    if not now and server.is_answering():
        click.echo(f"Waiting until {server.title} is idle. Ctrl-C puts everything back.")
        while server.is_answering():
            pass  # for half a second
    step("server")
    begun_s = time.monotonic()
    if record.command:
        stop_process(server)
    run_actions(moving(record))
    keys = bool(config.clients or config.api_key_file)
    _await(partial(proxy_fault, record.kind, record.url, server.models, keys=keys))
    took_s = time.monotonic() - begun_s
    if record.app:
        start_apart(record.app)
    step("done")
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


def _put_back(record: Takeover, config: ServeConfig, *, now: bool) -> None:
    """Undo what was done, as far as it was."""
    run_actions(restoring(record))
    if not now:
        _await_idle_proxy(config)
    begun_s = time.monotonic()
    if not record.service:
        end_daemons(_log_file())
    elif record.service_before is not None:
        put(unit_of(()), record.service_before)
    else:
        take_away(unit_of(()))
    fault = partial(server_fault, record.kind, record.url)
    if asyncio.run(fault()):
        run_actions(returning(record))
        if record.command:
            variables, words = command_of(record.command)
            start_apart(record.app or words, None if record.app else variables)
        _await(fault)
    remove(journal.journal_path())
    click.echo(
        f"Done: after {time.monotonic() - begun_s:.1f} s, {record.kind} answers at {record.url} itself."
    )


def _await_idle_proxy(config: ServeConfig) -> None:
    """Wait until the proxy, if one runs, has no requests."""
    said = False
    while True:
        try:
            state = asyncio.run(_state(config))
        except ClairvoyantError:
            return
        if not state.running and not state.queue:
            return
        if not said:
            click.echo("Waiting until the proxy has answered its requests; --now breaks them off.")
        said = True
        time.sleep(LOOK_EVERY_S)


async def _state(config: ServeConfig) -> Snapshot:
    host, port = config.addresses()[0]
    token = admin_token(Path(config.admin_token_file)) if config.admin_token_file else None
    return await _state_of(Takeover("", f"{host}:{port}", 0, (), False).url, token)


async def _state_of(url: str, token: str | None = None) -> Snapshot:
    async with ControlClient(url, token) as client:
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
