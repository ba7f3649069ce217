"""`clairvoyant top`: the dashboard, attached to a running daemon or to a simulated one."""

import asyncio
import gc
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from clairvoyant_cli.commands.alert_command import run_for_alert
from clairvoyant_cli.commands.options import Range, token_file_option, url_option
from clairvoyant_cli.commands.plain_output import say
from clairvoyant_cli.commands.sentences import Sentences
from clairvoyant_cli.config import load_top_config
from clairvoyant_cli.errors import InputError
from clairvoyant_cli.state.client import admin_token, daemon_url, state_dir
from clairvoyant_cli.state.source import EVERY_S, DaemonSource
from clairvoyant_cli.system import draws_few_glyphs, heed_signals
from tui.alerts import Alerts

if TYPE_CHECKING:
    from tui.hardware.reading import Hardware

_FEW_COLLECTIONS = 20_000

Attachment: TypeAlias = "tuple[DaemonSource, Callable[[], Hardware]]"
"""What the dashboard shows, and a reader of the machine whose load it shows."""


@click.command()
@url_option
@token_file_option
@click.option("--readonly", is_flag=True, help="Watch only; actions are refused.")
@click.option(
    "--plain/--no-plain",
    default=draws_few_glyphs,
    help="Use only characters that every font has.  "
    "[default: on the old console of Windows and on that of Linux]",
)
@click.option(
    "--web",
    is_flag=False,
    flag_value="127.0.0.1:7118",
    metavar="[HOST:PORT]",
    help="Serve a page that shows the dashboard in a browser, by default at 127.0.0.1:7118.",
)
@click.option(
    "--bell/--no-bell",
    default=None,
    help="Ring and notify when a server goes down, tau fires in a row or an alert begins, at most once a "
    "minute.  [default: --bell, except with --demo]",
)
@click.option(
    "--every",
    "every_s",
    type=Range(0.25, 60.0),
    default=EVERY_S,
    show_default=True,
    metavar="SECONDS",
    help="Least time between two frames. On a slow link, take 2 or more.",
)
@click.option("--lines", is_flag=True, help="Print a sentence when something changes, for screen readers.")
@click.option("--demo", is_flag=True, help="Watch a built-in daemon with a simulated server.")
def command(
    url: str | None,
    token_file: Path | None,
    readonly: bool,
    plain: bool,
    web: str | None,
    bell: bool | None,
    every_s: float,
    lines: bool,
    demo: bool,
) -> None:
    """Watch and control the queue, the slots and the GPU. The daemon keeps running when you quit."""
    if web is not None:
        if demo or lines:
            raise InputError("--web shows a running daemon; it excludes the other modes")
        from clairvoyant_cli.commands.web import serve_pages

        serve_pages(web, daemon_url(url), admin_token(token_file), readonly=readonly)
        return
    opened = _demo(every_s) if demo else nullcontext(_live(url, token_file, every_s))
    config = load_top_config()
    run = partial(run_for_alert, () if demo else config.command())
    alerts = Alerts(bell=not demo if bell is None else bell, run=run)
    if lines:
        asyncio.run(_say_lines(opened, alerts, run))
        return
    streams = (sys.stdin, sys.stdout, sys.stderr)
    if "TEXTUAL_DRIVER" not in os.environ and not all(each.isatty() for each in streams):
        raise InputError("top needs a terminal; for a script use: clairvoyant status")
    if os.environ.get("TERM") == "dumb":
        raise InputError("TERM is dumb: this terminal cannot draw; use --lines, or clairvoyant status")
    settings = {
        "readonly": readonly,
        "badge": "demo" * demo,
        "preferences": config.preferences(),
        "every_s": every_s,
    }
    asyncio.run(_watch(opened, settings, alerts, plain=plain))


@asynccontextmanager
async def _demo(every_s: float) -> AsyncIterator[Attachment]:
    from clairvoyant_cli.demo.simulated_daemon import asked_daemon
    from clairvoyant_cli.demo.simulated_machine import simulated_machine

    say("Starting a daemon with a simulated server...", err=True)
    async with asked_daemon() as daemon:
        yield DaemonSource(daemon.base_url, every_s=every_s), simulated_machine(1)


def _live(url: str | None, token_file: Path | None, every_s: float) -> Attachment:
    @cache
    def machine() -> "Callable[[], Hardware]":
        from tui.hardware.collect import Machine  # loads drivers with the first reading

        return Machine()

    return DaemonSource(daemon_url(url), admin_token(token_file), every_s), lambda: machine()()


async def _say_lines(
    opened: AbstractAsyncContextManager[Attachment], alerts: Alerts, run: Callable[[str], Awaitable[str]]
) -> None:
    """Print sentences until Ctrl-C; alerts run their command, too."""
    sentences = Sentences()

    async def tell(alert: str) -> None:
        if fault := await run(alert):
            say(fault)

    async with opened as (source, _), asyncio.TaskGroup() as group:
        async for news in source.stream():
            for sentence in sentences.take(news):
                say(sentence)
            alerts.take(news, time.monotonic())
            if alerts.told:
                group.create_task(tell(alerts.told))


async def _watch(
    opened: AbstractAsyncContextManager[Attachment], settings: dict[str, Any], alerts: Alerts, *, plain: bool
) -> None:
    async with opened as (source, machine):
        from tui.alerts import title_kept
        from tui.app import Top
        from tui.plain_glyphs import PLAIN
        from tui.slow_terminal import TERMINATED

        # A frame makes thousands of tuples and no cycles: collecting garbage costs a tenth of it.
        gc.freeze()
        gc.set_threshold(_FEW_COLLECTIONS)
        app = Top(
            source,
            machine=machine,
            glyphs=PLAIN if plain else None,
            memory=state_dir() / "top.json",
            alerts=None if draws_few_glyphs() else alerts,
            **settings,
        )

        leave = partial(app.exit, return_code=TERMINATED)  # its driver puts the terminal back as it was
        heed_signals(lambda _: leave(), leave)
        with nullcontext() if draws_few_glyphs() else title_kept(sys.stderr):  # to which Textual draws
            await app.run_async()
        if app.return_code:
            sys.exit(app.return_code)
