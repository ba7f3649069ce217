"""`clairvoyant top --lines`: a sentence when something changes, for screen readers and logs."""

import re
from collections.abc import Iterator

from clairvoyant_cli.errors import printable
from clairvoyant_cli.state.snapshot import Snapshot
from clairvoyant_cli.state.source import Disconnected

REST_S = 30.0  # a sentence that differs from an earlier one by its figures alone is not said again before
_FAILED = {"upstream_error": "failed", "timeout": "timed out", "rejected": "was refused"}
_MOST = 3  # failures that are named at once
_STEP = 4  # a queue is said to have changed if it has doubled or halved, and by this number at least


class Sentences:
    """Says what is new in each state."""

    def __init__(self) -> None:
        self._before: Snapshot | None = None
        self._lost = False
        self._said_at: dict[str, float] = {}  # by kind: the verdict without its figures
        self._kind = ""
        self._waits = 0

    def take(self, news: Snapshot | Disconnected) -> list[str]:
        """Return the sentences for a state, or for a daemon that is lost."""
        if isinstance(news, Disconnected):
            was_lost, self._lost = self._lost, True
            return [] if was_lost else [f"No daemon: {printable(news.reason)}."]
        said = ["The daemon is back."] if self._lost else []
        self._lost = False
        said += self._verdict(news)
        if (before := self._before) is not None and before.pid == news.pid:
            said += [*_changes(before, news), *_failures(before, news)]
        self._before = news
        return [printable(each) for each in said]

    def _verdict(self, state: Snapshot) -> Iterator[str]:
        verdict, waits, now = state.verdict, state.waits, state.taken_at
        kind = re.sub(r"\d[\d,.]*", "", verdict.text.partition(":")[0])
        if kind != self._kind and now >= self._said_at.get(kind, 0.0) + REST_S:
            self._kind, self._waits, self._said_at[kind] = kind, waits, now
            yield f"{verdict.text}."
        elif max(waits, self._waits) >= 2 * min(waits, self._waits) + _STEP:
            yield f"{waits:,} waiting, {self._waits:,} before."
            self._waits = waits


def _changes(before: Snapshot, state: Snapshot) -> Iterator[str]:
    """What an operator or a server did."""
    if state.policy != before.policy:
        yield f"The order is {state.policy} now."
    had = {server.name: server for server in before.backends}
    for server in state.backends:
        was = had.pop(server.name, None)
        if was is None:
            yield f"Server {server.name} was added; it is {server.state}."
        elif (was.state, was.standing) != (server.state, server.standing):
            how = f", {server.standing}" if server.standing else ""
            yield f"Server {server.name} is {server.state}{how}."
    yield from (f"Server {name} was removed." for name in had)


def _failures(before: Snapshot, state: Snapshot) -> Iterator[str]:
    known = {row.id for row in before.recent}
    rows = [row for row in state.recent if row.outcome in _FAILED and row.id not in known]
    for row in rows[:_MOST]:
        cause = row.remark or f"status {row.status}"
        yield f"A request of {row.client or 'an unnamed client'} {_FAILED[row.outcome]}: {cause}."
    if len(rows) > _MOST:
        yield f"{len(rows) - _MOST} more failed."
