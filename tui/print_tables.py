"""Prints the state once, as plain text that fits the width."""

from collections.abc import Iterator
from shutil import get_terminal_size
from textwrap import wrap

from clairvoyant_cli.state.snapshot import Snapshot
from tui.formatting import count, duration, share
from tui.panels import stats
from tui.panels.clients import CLIENTS
from tui.panels.header import today, window
from tui.panels.requests import QUEUE, RUNNING
from tui.panels.sessions import SESSIONS
from tui.styled_text import clip
from tui.table_layout import Fitted, Grid, Order, RowT
from tui.view_state import Link, LinkState, ViewState

_MAX_ROWS = 50

PIPE_WIDTH = 160
"""Width of tables printed into a pipe, in cells."""

PLAIN_WIDTH = 80
"""Width of sentences."""


def output_width() -> int:
    """Return the width of tables on standard output, in cells."""
    return get_terminal_size((PIPE_WIDTH, 0)).columns


def state(snapshot: Snapshot, width: int) -> Iterator[str]:
    """Yield the lines of all there is, at most `width` cells wide."""
    yield from summary(snapshot)
    yield from requests(snapshot, width)
    if snapshot.stats:
        yield from ("", "waits, by real length", *(line.plain for line in stats.waits(snapshot)))


def summary(snapshot: Snapshot) -> Iterator[str]:
    """Yield the state in a sentence, how the daemon is set, what it has done, and its servers."""
    busy, slots = snapshot.slots
    tau, counts = snapshot.tau, snapshot.counters
    limit = f"{duration(tau.tau_s)} ({tau.source})" if tau.tau_s else "off"
    unused = "" if tau.guards else "; this policy does not use it"
    ended = {
        "done": counts.completed,
        "left": counts.client_cancelled,
        "cancelled": counts.operator_cancelled,
        "failed": counts.upstream_error + counts.timeout,
        "refused": counts.rejected,
    }
    rest = "".join(f", {count(number)} {name}" for name, number in ended.items() if number)
    lines = [
        snapshot.verdict.text,
        f"{snapshot.mode} on {snapshot.listen}, order {snapshot.policy}, up {duration(snapshot.uptime_s)}",
        f"{busy} of {slots} slots busy, load {share(snapshot.utilisation)} in {window(snapshot)}",
        f"{snapshot.waits:,} waiting, {len(snapshot.running)} running{rest}",
        ", ".join(line.plain for line in today(snapshot.gain)) if snapshot.gain.answers_today else "",
        f"tau {limit}, fired {count(tau.firings_total)} time{'' if tau.firings_total == 1 else 's'}{unused}",
    ]
    for each in snapshot.backends:
        said = "".join(f", {words}" for words in (each.standing, each.detail, each.self_test) if words)
        alone = f", {each.waiting} waiting for it alone" if each.waiting else ""
        at_work = f"{each.busy} of {each.slots} slots busy" if each.is_there else f"{each.busy} at work"
        lines.append(f"backend {each.name} {each.url} {each.state}{said}, {at_work}{alone}")
    for line in lines:
        yield from wrap(line, PLAIN_WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def requests(snapshot: Snapshot, width: int) -> Iterator[str]:
    if snapshot.running:
        yield from _table("running", RUNNING, snapshot, width)
    if snapshot.queue:
        rest = snapshot.waits - _MAX_ROWS
        title = "queue" if rest <= 0 else f"queue, the first {_MAX_ROWS} of {snapshot.waits:,}"
        yield from _table(title, QUEUE, snapshot, width)
    if snapshot.sessions.listed:
        yield from _table("sessions of agents", SESSIONS, snapshot, width)
        for each in snapshot.sessions.listed:
            if each.broken:
                again = count(round(each.reread_tokens))
                yield clip(f" {each.id}: {again} read again: {each.broken}", width)
    if any(client.ruled for client in snapshot.clients):
        yield from _table("clients", CLIENTS, snapshot, width)


def _table(title: str, grid: Grid[RowT], snapshot: Snapshot, width: int) -> Iterator[str]:
    view = ViewState(Link(LinkState.LIVE, snapshot.listen), snapshot)
    fitted = Fitted.of(grid, width, view)
    yield ""
    yield title
    yield fitted.heading(Order()).plain.rstrip()
    for row in grid.rows(view)[:_MAX_ROWS]:
        yield fitted.draw(row, view).fit(width).plain.rstrip()
