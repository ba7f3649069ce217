"""`clairvoyant serve`: the daemon, in the foreground."""

import asyncio
import gc
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from io import StringIO
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clairvoyant_cli import __version__
from clairvoyant_cli.commands.log import kept_lines, log_of
from clairvoyant_cli.commands.options import SERVE, config_option, serve_options
from clairvoyant_cli.commands.plain_output import say
from clairvoyant_cli.commands.setup import (
    load_working_predictor,
    opened_ledger,
    second_opinion,
    urgency_predictor,
)
from clairvoyant_cli.config import ServeConfig, load_serve_config
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.protocols.printable import plural
from clairvoyant_cli.scheduler.policy import DEFAULT_POLICY, POLICIES
from clairvoyant_cli.system import heed_signals, run, trim_memory
from predictor.record import Predictor
from profiles.database import default_path

if TYPE_CHECKING:
    from clairvoyant_cli.proxy.composition import Daemon

WHILE_LEASED = "CLAIRVOYANT_WHILE_LEASED"
"""Environment variable by which `run` starts a daemon that ends with the last lease (`leases`)."""

DATABASE_S = 0.5  # how long a start waits for the database; longer ones come while it serves
LEASES_EVERY_S = 0.5
_ORDERS = "\n\n".join(f"{name}: {policy.summary}" for name, policy in POLICIES.items())
POLICY_HELP = f"Order of queued requests.  [default: {DEFAULT_POLICY}]\n\n{_ORDERS}"


def _help_all(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        for option in ctx.command.params:
            if isinstance(option, click.Option) and option.name in SERVE:
                option.hidden = False
        click.echo(ctx.get_help())
        ctx.exit()


@click.command()
@serve_options(policy=POLICY_HELP)
@config_option
@click.option(
    "--replace",
    is_flag=True,
    help="Take the place of the daemon at this address, if one runs. It serves its last requests, and ends.",
)
@click.option(
    "--help-all",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_help_all,
    help="Show all flags, also those for experts, and exit.",
)
def command(config_file: Path | None, replace: bool, **flags: Any) -> None:
    """Run the proxy in front of an LLM server.

    Give your clients the address that the proxy listens on, in place of the server's own. Each
    flag is also a key of the configuration file, under [serve], and an environment variable,
    CLAIRVOYANT_SERVE_<NAME>. [[backends]] tables in the file replace --backend, --slots and
    --backend-key-file. `clairvoyant serve --help-all` lists the flags for experts, too.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    with kept_lines() as earlier:
        config = load_serve_config(given, file=config_file)
    with log_of(config, earlier):
        run(_serve(config, takes_place=replace))


def given_by(words: Sequence[str]) -> dict[str, Any]:
    """Return the settings that flags give; the errors of click if they are invalid. `--replace` is none."""
    params = command.make_context("serve", list(words)).params
    return {name: value for name, value in params.items() if value is not None and name != "replace"}


def _heed_signals(daemon: "Daemon") -> None:
    terminal = next((stream for stream in (0, 1, 2) if os.isatty(stream)), None)

    def on_stop(within_s: float) -> None:
        if daemon.operation.stopping:
            daemon.stop_now()
        else:
            daemon.drain(within_s)

    async def reload() -> None:
        with suppress(ClairvoyantError):  # it has been logged
            await daemon.reload()

    def on_hangup() -> None:
        if terminal is not None and not os.isatty(terminal):
            on_stop(inf)  # the terminal was closed
            return
        daemon.spawn(reload())

    heed_signals(on_stop, on_hangup)


async def _serve(config: ServeConfig, *, takes_place: bool = False) -> None:
    from clairvoyant_cli.proxy.access.programs import Programs
    from clairvoyant_cli.proxy.daemon import running_daemon

    log = logging.getLogger("clairvoyant")
    predictor = load_working_predictor(config)
    if predictor.name == Predictor.name:
        policy = config.policy or ("fcfs" if config.urgency is None else None)
        config = replace(config, policy=policy, semantic="off")
    encode, urgency = second_opinion(config), urgency_predictor(config)
    predictor.frozen = config.freeze
    with opened_ledger(config) as opened:
        opening = asyncio.wrap_future(opened)
        await asyncio.wait([opening], timeout=DATABASE_S)
        if not opening.done():
            path = config.db or default_path()
            log.warning("%s takes long to open: no profiles and no history until it is open", path)

        async def remember_and_test(daemon: "Daemon") -> None:
            persistence = await asyncio.shield(opening)
            if daemon.state_saver is None:
                daemon.remember(persistence)
            if persistence is None or config.no_self_test or config.preempt == "off" or config.freeze:
                return
            # On a thread: its HTTP client takes a tenth of a second to import.
            module = await asyncio.to_thread(import_module, "clairvoyant_cli.calibrate.self_test")
            await module.SelfTest(daemon, persistence).run()

        daemon_of = running_daemon(
            config,
            predictor,
            persistence=opening.result() if opening.done() else None,
            announced=True,
            encode=encode,
            urgency=urgency,
            self_test=remember_and_test,
            programs=Programs(),
            replace=takes_place,
        )
        async with daemon_of as daemon:
            # Exempt the loaded modules and models from garbage collection, to keep pauses short.
            gc.collect()
            gc.freeze()
            trim_memory()
            _heed_signals(daemon)
            ending: asyncio.Task[None] | None = None
            if os.environ.get(WHILE_LEASED):
                ending = asyncio.create_task(_end_with_leases(daemon))
            started = _start_line(daemon, predictor.name)
            # Printed at every log level: scripts wait for this line.
            try:
                say(started, err=True)
            except OSError:  # a full disk behind it: what is left to print at the end would fail there again
                sys.stderr = StringIO()
            if config.log_file is not None:
                log.info(started)
            await daemon.run_until_stopped()
            if ending is not None:
                ending.cancel()
    log.info("stopped")


async def _end_with_leases(daemon: "Daemon") -> None:
    from clairvoyant_cli.commands import leases

    while leases.in_force():  # noqa: ASYNC110 - other processes end them
        await asyncio.sleep(LEASES_EVERY_S)
    daemon.drain()


def _start_line(daemon: "Daemon", predictor: str) -> str:
    operation, pool = daemon.operation, daemon.pool
    servers = " and ".join(f"{server.name} {server.upstream.url}" for server in pool)
    parts = [f"{daemon.base_url} -> {servers}", plural(sum(server.most for server in pool), "slot")]
    if pool.stamped:
        parts.append(f"priorities for {' and '.join(pool.stamped)}")
    parts.append(f"policy {operation.policy}")
    if operation.dispatcher.scheduler.policy.guarded:
        value = "off" if operation.tau_s is None else f"{operation.tau_s:.4g} s ({operation.tau_source})"
        parts.append(f"tau {value}")
    return f"clairvoyant {__version__}: {', '.join(parts)}, predictor {predictor}"
