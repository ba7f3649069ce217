"""Prints the state once, as plain text that fits the width."""

from collections.abc import Iterator
from shutil import get_terminal_size
from textwrap import wrap
from typing import Any

from clairvoyant_cli.state.snapshot import Snapshot
from tui.formatting import count, duration, share
from tui.panels import stats
from tui.panels.clients import CLIENTS
from tui.panels.header import tau_range, today, window
from tui.panels.requests import QUEUE, RUNNING
from tui.panels.sessions import SESSIONS
from tui.styled_text import clip
from tui.table_layout import Grid
from tui.view_state import ViewState

_MAX_ROWS = 50
PIPE_WIDTH = 160  # width of tables printed into a pipe, in cells
PLAIN_WIDTH = 80  # width of sentences


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
    tau, fired = snapshot.tau, snapshot.tau.firings_total
    limit = f"{tau_range(tau)} ({tau.source})" if tau.tau_s else "off"
    unused = "" if tau.guards else "; this policy does not use it"
    rest = (f", {count(number)} {name}" for name, number in stats.ended(snapshot.counters).items() if number)
    lines = [
        snapshot.verdict.text,
        f"{snapshot.mode} on {snapshot.listen}, order {snapshot.policy}, up {duration(snapshot.uptime_s)}",
        f"{busy} of {slots} slots busy, load {share(snapshot.utilisation)} in {window(snapshot)}",
        f"{snapshot.waits:,} waiting, {len(snapshot.running)} running{''.join(rest)}",
        ", ".join(line.plain for line in today(snapshot)) if snapshot.gain.answers_today else "",
        f"tau {limit}, fired {count(fired)} time{'s' * (fired != 1)}{unused}",
    ]
    for each in snapshot.backends:
        said = "".join(f", {words}" for words in (each.standing, each.detail, each.self_test) if words)
        alone = f", {each.waiting} waiting for it alone" if each.waiting else ""
        at_work = f"{each.busy} of {each.slots} slots busy" if each.is_there else f"{each.busy} at work"
        lines.append(f"backend {each.name} {each.url} {each.state}{said}, {at_work}{alone}")
    for line in lines:
        yield from wrap(line, PLAIN_WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def requests(snapshot: Snapshot, width: int) -> Iterator[str]:
    more = f", the first {_MAX_ROWS} of {snapshot.waits:,}" if snapshot.waits > _MAX_ROWS else ""
    ruled = any(client.ruled for client in snapshot.clients)
    tables: list[tuple[str, Grid[Any], object]] = [
        ("running", RUNNING, snapshot.running),
        (f"queue{more}", QUEUE, snapshot.queue),
        ("sessions of agents", SESSIONS, snapshot.sessions.listed),
        ("clients", CLIENTS, ruled),
    ]
    view = ViewState(snapshot.listen, snapshot)
    for title, grid, wanted in tables:
        if wanted:
            lines = grid.lines(view, width, _MAX_ROWS)
            yield from ("", title, *(line.fit(width).plain.rstrip() for line in lines))
        for each in snapshot.sessions.listed if grid is SESSIONS else ():
            if each.broken:
                again = count(round(each.reread_tokens))
                yield clip(f" {each.id}: {again} read again: {each.broken}", width)
