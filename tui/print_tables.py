"""The state printed once, as plain tables: for scripts, and for a terminal that is none."""

from collections.abc import AsyncGenerator, Iterator
from typing import cast

from rich.box import SIMPLE_HEAD
from rich.table import Table

from tui.formatting import class_letter, count, duration, path_name, rate, ratio
from tui.panels.clients import own_tau
from tui.snapshot import PredictionState, Snapshot
from tui.source import Disconnected, Source

_MAX_ROWS = 50


async def first_snapshot(source: Source) -> Snapshot | Disconnected:
    """Return the first thing the source says."""
    stream = cast(AsyncGenerator[Snapshot | Disconnected], source.stream())
    try:
        async for news in stream:
            return news
    finally:
        await stream.aclose()
    return Disconnected("it said nothing")


def tables(snapshot: Snapshot) -> Iterator[Table]:
    """Yield all the tables there are."""
    yield _daemon(snapshot)
    yield from requests(snapshot)
    if snapshot.stats:
        yield _stats(snapshot)


def requests(snapshot: Snapshot) -> Iterator[Table]:
    """Yield one table for each kind of request there is, and the clients if any has rules."""
    if snapshot.running:
        yield _running(snapshot)
    if snapshot.queue:
        yield _queue(snapshot)
    if any(client.ruled for client in snapshot.clients):
        yield _clients(snapshot)


def _table(title: str, *columns: str, left: int = 1) -> Table:
    """Make a table; the first `left` columns hold words, the others numbers."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < left else "right", no_wrap=True)
    return table


def _daemon(snapshot: Snapshot) -> Table:
    slots = sum(backend.slots for backend in snapshot.backends)
    busy = sum(backend.busy for backend in snapshot.backends)
    table = _table(
        "daemon", "mode", "listen", "policy", "tau", "slots", "queue", "load", "up", "done", left=3
    )
    table.add_row(
        snapshot.mode,
        snapshot.listen,
        snapshot.policy,
        duration(snapshot.tau.tau_s) if snapshot.tau.tau_s else "off",
        f"{busy}/{slots}",
        count(len(snapshot.queue)),
        ratio(snapshot.utilisation),
        duration(snapshot.uptime_s),
        count(snapshot.counters.completed),
    )
    return table


def _told(prediction: PredictionState) -> tuple[str, str, str]:
    return class_letter(prediction.length_class), ratio(prediction.p_long), count(prediction.expected_tokens)


def _running(snapshot: Snapshot) -> Table:
    headings = (
        "id",
        "model",
        "client",
        "state",
        *(("on",) if len(snapshot.backends) > 1 else ()),
        "class",
        "P(L)",
        "expected",
        "tokens",
        "tok/s",
        "for",
        "ETA",
    )
    table = _table("running", *headings, left=len(headings) - 6)
    for row in snapshot.running:
        table.add_row(
            row.id,
            row.model,
            row.client,
            row.state,
            *((row.backend,) if len(snapshot.backends) > 1 else ()),
            *_told(row.predicted),
            count(row.tokens),
            rate(row.tokens_per_s),
            duration(row.elapsed_s),
            duration(row.eta_s),
        )
    return table


def _queue(snapshot: Snapshot) -> Table:
    rest = len(snapshot.queue) - _MAX_ROWS
    title = "queue" if rest <= 0 else f"queue, the first {_MAX_ROWS} of {len(snapshot.queue)}"
    headings = ("#", "id", "model", "client", "endpoint", "class", "P(L)", "expected", "age", "ETA", "note")
    table = _table(title, *headings, left=6)
    for row in snapshot.queue[:_MAX_ROWS]:
        note = "held" if row.held else "promoted" if row.promoted else ""
        if row.backends:
            note = f"{note} for {', '.join(row.backends)}".lstrip()
        table.add_row(
            str(row.rank),
            row.id,
            row.model,
            row.client,
            path_name(row.endpoint),
            *_told(row.predicted),
            duration(row.age_s),
            duration(row.eta_s),
            note,
        )
    return table


def _clients(snapshot: Snapshot) -> Table:
    table = _table("clients", "client", "waiting", "running", "weight", "tokens today", "tau", "priority")
    for each in snapshot.clients:
        table.add_row(
            each.name,
            _of(each.waiting, each.max_waiting),
            _of(each.running, each.max_running),
            f"{each.weight:g}",
            _of(each.tokens_today, each.tokens_per_day),
            "" if each.tau_s is None else own_tau(each),
            "{} to {}".format(*each.priority),
        )
    return table


def _of(has: int, may: int | None) -> str:
    return f"{has:,}" if may is None else f"{has:,} of {may:,}"


def _stats(snapshot: Snapshot) -> Table:
    shadow = {each.length_class: each.wait.p50 for each in snapshot.stats_fcfs}
    table = _table("wait", "class", "n", "p50", "p95", "p99", "p50 by arrival")
    for each in snapshot.stats:
        wait = each.wait
        table.add_row(
            each.length_class,
            count(wait.n),
            duration(wait.p50),
            duration(wait.p95),
            duration(wait.p99),
            duration(shadow.get(each.length_class)),
        )
    return table
