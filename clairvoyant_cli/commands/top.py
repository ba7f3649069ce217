"""`clairvoyant top`: the dashboard, attached to a running daemon, to a recording, or to a simulation."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from clairvoyant_cli.errors import ClairvoyantError, ExitCode

if TYPE_CHECKING:
    from tui.source import Source

_SCENARIOS = ("busy", "overloaded", "empty")


@dataclass(frozen=True, slots=True)
class _Attachment:
    """What the dashboard looks at. `gpus` is how many GPUs the simulation has; None: the real ones."""

    source: "Source"
    badge: str = ""
    readonly: bool = False
    gpus: int | None = None


@click.command()
@click.option("--url", help="The daemon to watch. Unset: the one last started here.")
@click.option(
    "--token-file", type=click.Path(path_type=Path), help="The daemon's admin token, if it has one."
)
@click.option("--readonly", is_flag=True, help="Watch only: every action is refused.")
@click.option("--once", is_flag=True, help="Print the state once, as tables, and leave.")
@click.option("--json", "as_json", is_flag=True, help="Print the state once, as JSON, and leave.")
@click.option(
    "--record", type=click.Path(path_type=Path, dir_okay=False), help="Also write what is seen to a file."
)
@click.option(
    "--replay",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Play a recorded file; no daemon is needed.",
)
@click.option("--demo", is_flag=True, help="Watch a simulated daemon; no daemon is needed.")
@click.option(
    "--scenario", type=click.Choice(_SCENARIOS), default="busy", show_default=True, help="What --demo plays."
)
@click.option(
    "--demo-gpus", type=click.IntRange(0, 8), default=1, show_default=True, help="GPUs that --demo has."
)
def command(
    url: str | None,
    token_file: Path | None,
    readonly: bool,
    once: bool,
    as_json: bool,
    record: Path | None,
    replay: Path | None,
    demo: bool,
    scenario: str,
    demo_gpus: int,
) -> None:
    """Watch the queue, the slots and the GPU live, and steer them. Leaving does not disturb the daemon."""
    if demo and replay is not None:
        raise ClairvoyantError("--demo and --replay exclude each other: choose one", ExitCode.USAGE)
    if demo:
        attachment = _demo(scenario, demo_gpus)
    elif replay is not None:
        attachment = _replay(replay)
    else:
        attachment = _live(url, token_file)
    if record is not None:
        attachment = _recorded(attachment, record)
    if once or as_json:
        _print_once(attachment.source, as_json)
    else:
        _show(attachment, readonly)


def _demo(scenario: str, gpus: int) -> _Attachment:
    import time

    from tui.demo.daemon import SCENARIOS, DemoDaemon

    return _Attachment(DemoDaemon(SCENARIOS[scenario], start_at=time.time()), badge="demo", gpus=gpus)


def _replay(path: Path) -> _Attachment:
    from tui.recording import RecordingError, Replay

    try:
        return _Attachment(Replay(path), badge="replay", readonly=True)
    except RecordingError as error:
        raise ClairvoyantError(str(error)) from error


def _live(url: str | None, token_file: Path | None) -> _Attachment:
    from clairvoyant_cli.commands.attachment import DaemonSource
    from clairvoyant_cli.control import admin_token, local_url

    return _Attachment(DaemonSource(local_url(url), admin_token(token_file)))


def _recorded(attachment: _Attachment, path: Path) -> _Attachment:
    from dataclasses import replace

    from tui.recording import Recorder

    try:
        return replace(attachment, source=Recorder(attachment.source, path))
    except OSError as error:
        raise ClairvoyantError(f"cannot write {path}: {error.strerror}") from error


def _print_once(source: "Source", as_json: bool) -> None:
    import asyncio

    from clairvoyant_cli.commands.printing import TABLES_WIDTH, PlainConsole
    from tui.print_tables import first_snapshot, tables
    from tui.recording import encode
    from tui.source import Disconnected

    news = asyncio.run(first_snapshot(source))
    if isinstance(news, Disconnected):
        raise ClairvoyantError(news.reason, ExitCode.UNREACHABLE)
    if as_json:
        click.echo(encode(news))
        return
    console = PlainConsole(width=None if sys.stdout.isatty() else TABLES_WIDTH)
    for table in tables(news):
        console.print(table)
        console.print()


def _show(attachment: _Attachment, readonly: bool) -> None:
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        raise ClairvoyantError("top needs a terminal; for a script use --once or --json", ExitCode.USAGE)
    from tui.app import Top
    from tui.demo.hardware import demo_machine
    from tui.hardware.collect import Machine

    machine = demo_machine(attachment.gpus) if attachment.gpus is not None else Machine()
    Top(
        attachment.source,
        machine=machine,
        readonly=readonly or attachment.readonly,
        badge=attachment.badge,
    ).run()
