"""`clairvoyant status`: the state of a running daemon, once."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from clairvoyant_cli.commands.figures import span
from clairvoyant_cli.commands.options import json_option, token_file_option, url_option
from clairvoyant_cli.control import ControlClient, admin_token, encode, local_url
from tui.snapshot import Snapshot

if TYPE_CHECKING:
    from rich.table import Table


@click.command()
@url_option
@token_file_option
@json_option("Print the whole state as JSON.")
def command(url: str | None, token_file: Path | None, as_json: bool) -> None:
    """Print the state of a running daemon once."""
    snapshot = asyncio.run(_fetch(local_url(url), admin_token(token_file)))
    if as_json:
        click.echo(encode(snapshot))
    else:
        _print(snapshot)


async def _fetch(url: str, token: str | None) -> Snapshot:
    async with ControlClient(url, token) as client:
        return await client.snapshot()


def _print(snapshot: Snapshot) -> None:
    from rich.table import Table
    from rich.text import Text

    from clairvoyant_cli.commands.printing import PlainConsole

    console = PlainConsole()
    tau = snapshot.tau
    tau_text = (
        "off" if tau.tau_s is None else f"{tau.tau_s:g} s ({tau.source}), fired {tau.firings_total} times"
    )
    up = span(snapshot.uptime_s)
    rest = f" on {snapshot.listen}, up {up}, policy {snapshot.policy}"
    console.print(Text.assemble((snapshot.mode, "bold"), rest))
    for backend in snapshot.backends:
        detail = f", {backend.detail}" if backend.detail else ""
        busy = f"{backend.busy} of {backend.slots} slots busy"
        console.print(f"backend {backend.kind} {backend.url} {backend.state}{detail}, {busy}")
    console.print(f"tau {tau_text}")
    counts = snapshot.counters
    console.print(
        f"{len(snapshot.queue)} waiting, {len(snapshot.running)} running, {counts.completed} completed, "
        f"{counts.client_cancelled} cancelled, {counts.upstream_error} failed, "
        f"{counts.rejected + counts.timeout} refused"
    )
    if any(client.ruled for client in snapshot.clients):
        console.print(_clients(snapshot))
    if not snapshot.running and not snapshot.queue:
        return
    table = Table("", "id", "endpoint", "model", "class", "expected", "age", box=None, pad_edge=False)
    for running in snapshot.running:
        expected = f"{running.tokens}/{running.predicted.expected_tokens:.0f}"
        table.add_row(
            "run",
            running.id,
            running.endpoint,
            running.model,
            running.predicted.length_class,
            expected,
            span(running.elapsed_s),
        )
    for waiting in snapshot.queue[:20]:
        rank = "held" if waiting.held else str(waiting.rank)
        expected = f"{waiting.predicted.expected_tokens:.0f}"
        table.add_row(
            rank,
            waiting.id,
            waiting.endpoint,
            waiting.model,
            waiting.predicted.length_class,
            expected,
            span(waiting.age_s),
        )
    console.print(table)
    if len(snapshot.queue) > 20:
        console.print(f"and {len(snapshot.queue) - 20} more waiting")


def _clients(snapshot: Snapshot) -> "Table":
    from rich.table import Table

    table = Table(
        "client", "waiting", "running", "weight", "tokens today", "tau", "priority", box=None, pad_edge=False
    )
    for client in snapshot.clients:
        tau = "" if client.tau_s is None else "off" if client.tau_s == 0 else span(client.tau_s)
        table.add_row(
            client.name,
            _of(client.waiting, client.max_waiting),
            _of(client.running, client.max_running),
            f"{client.weight:g}",
            _of(client.tokens_today, client.tokens_per_day),
            tau,
            "{} to {}".format(*client.priority),
        )
    return table


def _of(has: int, may: int | None) -> str:
    return f"{has:,}" if may is None else f"{has:,} of {may:,}"
