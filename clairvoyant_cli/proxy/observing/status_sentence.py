"""Sums the state up in one sentence of at most 80 characters: what an operator must know first."""

from collections.abc import Iterator
from itertools import chain
from time import localtime, strftime

from clairvoyant_cli.protocols.printable import plural
from clairvoyant_cli.state.snapshot import Snapshot, StatusLine

LONG_BACKLOG_S = 600.0
"""A queue that takes this long to clear is overload."""

BUSY_S = 60.0
"""A queue that clears sooner does not have to be watched."""

FULL_SHARE = 0.9

FAILURES = 5
"""From this number of failures in a row, the sentence says so, for `OFTEN_S` after the last one."""

OFTEN, OFTEN_S = 3, 60.0
"""From this number of promotions by tau within this time, it says so, for as long after the last one."""


FALLS_MIN, FALLS_SHARE = 3.0, 0.1
"""A backlog counts as getting shorter if it falls by `FALLS_SHARE` within `FALLS_MIN` minutes."""


def verdict(state: Snapshot, *, stopping: bool = False) -> StatusLine:
    """Return the first that holds: stopped or paused, no server, one silent (why others wait), an urgent
    request late, overload, service level missed, a server away, the predictor impaired, each request fails,
    as many arrive as are served, some past tau or just promoted, sessions in turns, busy, all well.
    """
    return next(
        chain(
            _stopped(state, stopping),
            _without_server(state),
            _silent(state),
            _overdue(state),
            _impaired(state),
            _shared(state),
            _failing(state),
            _fairness(state),
            _well(state),
        )
    )


def _stopped(state: Snapshot, stopping: bool) -> Iterator[StatusLine]:
    rest = f"{state.waits:,} waiting" if state.waits else "none waiting"
    if stopping or state.mode == "draining":
        mode = "Stopping" if stopping else "Draining"
        yield StatusLine("note", f"{mode}: new requests are rejected, {rest}")
    elif state.mode == "paused":
        yield from _without_server(state)
        yield StatusLine("note", f"Paused by an operator, {rest}")


def _without_server(state: Snapshot) -> Iterator[StatusLine]:
    servers = state.backends
    if not servers or any(server.is_there for server in servers):
        return
    loading = next((server for server in servers if server.state == "loading"), None)
    if loading is not None:
        yield StatusLine("warn", f"{loading.name} is loading its model{_kept(state, 'it is ready')}")
    if len(servers) > 1:
        yield StatusLine("alert", f"No server answers{_kept(state, 'one returns')}")
    yield StatusLine("alert", f"{servers[0].name} does not answer{_kept(state, 'it returns')}")


def _kept(state: Snapshot, unless: str) -> str:
    """Say until when requests are kept while no server is there."""
    if state.waits:
        return f", {state.waits:,} waiting{_refused(state, ';', unless)}"
    kept_s = [server.kept_for_s for server in state.backends if server.kept_for_s is not None]
    if not kept_s:
        return ""
    return f": new requests wait up to {span(max(kept_s))}" if any(kept_s) else ": new requests are refused"


def _refused(state: Snapshot, sign: str, unless: str) -> str:
    within_s = state.waiting.refused_in_s
    return "" if within_s is None else f"{sign} refused in {span(within_s)} unless {unless}"


def _silent(state: Snapshot) -> Iterator[StatusLine]:
    for row in sorted(
        (row for row in state.running if row.state == "silent"), key=lambda row: -row.elapsed_s
    ):
        late = f"no answer after {span(row.elapsed_s)}, far longer than expected"
        yield StatusLine("warn", f"{row.backend} may hang: {late}", "hangs")
    for server in state.backends:
        if server.standing == "silent":
            yield StatusLine("warn", f"{server.name} may hang: its last request got no answer", "hangs")


def _overdue(state: Snapshot) -> Iterator[StatusLine]:
    """Requests are late, or will be."""
    urgency, level = state.urgency, state.service_level
    longest_s = next((each.longest_s for each in urgency.levels if each.level == 0), 0.0)
    if urgency.heeded and urgency.target_s is not None and longest_s > urgency.target_s:
        target = span(urgency.target_s)
        text = f"A request of level 0 has waited {span(longest_s)} (target {target})"
        yield StatusLine("alert", text, "late")
    full = state.waits >= FULL_SHARE * state.queue_capacity
    least_s = state.waiting.clear_s if state.waiting.clear_low_s is None else state.waiting.clear_low_s
    if state.waits and (full or least_s >= LONG_BACKLOG_S):
        text = f"Overloaded: {state.waits:,} waiting{_clears(state)}"
        text += ", the queue is full" * (state.waits >= state.queue_capacity)
        yield StatusLine("alert", text, "" if (state.waiting.per_minute or 0.0) < 0.0 else "overload")
    if level is not None and level.alert:
        missed = f"{level.recent_missed:.0%} of recent requests were late"
        yield StatusLine("alert", f"Service level {level.objective} missed: {missed}")


def _impaired(state: Snapshot) -> Iterator[StatusLine]:
    away = [server for server in state.backends if not server.is_there]
    if away:
        others = f" (and {len(away) - 1} more)" if len(away) > 1 else ""
        how = "loading its model" if away[0].state == "loading" else "down"
        number = state.waiting.stranded
        them, one, within_s = "them" if len(away) > 1 else "it", number == 1, state.waiting.refused_in_s
        fail = "" if within_s is None else f" and fail{'s' * one} in {span(within_s)}"
        needed = f"{number:,} request{'s' * (not one)} need{'s' * one} {them}{fail}"
        rest = needed if number else "other servers take what they can"
        yield StatusLine("warn", f"{away[0].name} is {how}{others}: {rest}")


def _shared(state: Snapshot) -> Iterator[StatusLine]:
    if shared := [server.name for server in state.backends if server.standing == "shared"]:
        yield StatusLine("note", f"The daemon before this one still uses slots of {shared[0]}")


def _failing(state: Snapshot) -> Iterator[StatusLine]:
    newest = [row for row in state.recent if row.backend][-FAILURES:]
    failed = [row for row in newest if row.outcome == "upstream_error"]
    if len(failed) == FAILURES and state.taken_at - failed[-1].finished_at <= OFTEN_S:
        text = f"The last {FAILURES} requests failed on {failed[-1].backend}: see recent and log"
        yield StatusLine("warn", text, "failing")


def _fairness(state: Snapshot) -> Iterator[StatusLine]:
    """Requests arrive as fast as they are served; some are late now, or were; sessions take turns."""
    recent, waiting = state.tau.recent, state.waiting
    stands_s, late = waiting.backlog_s, waiting.late
    if stands_s is not None and (late or waiting.clear_s >= BUSY_S):
        backlog, less = f"Backlog for {span(stands_s)}: {state.waits:,} waiting", -(waiting.per_minute or 0.0)
        if less < max(1.0, FALLS_SHARE * state.waits / FALLS_MIN):
            yield StatusLine("warn", f"{backlog} and not getting fewer{_clears(state)}")
        elif not late:
            empty = strftime("%H:%M", localtime(state.taken_at + 60.0 * state.waits / less))
            yield StatusLine("good", f"{backlog}, fewer by {less:.0f} a minute, none about {empty}")
    if late:
        late_ones = f"{late:,} of {state.waits:,} waiting {'is' if late == 1 else 'are'} past tau"
        yield StatusLine("warn", f"Late: {late_ones}{_clears(state)}")
    rows = zip(recent, recent[OFTEN - 1 :], strict=False)
    if any(last - first <= OFTEN_S and state.taken_at - last <= OFTEN_S for first, last in rows):
        started = plural(state.tau.firings_last_minute, "request")
        yield StatusLine("warn", f"Starvation guard active: it promoted {started} in the last minute")
    if state.sessions.summary:
        yield StatusLine("good", state.sessions.summary)


def _well(state: Snapshot) -> Iterator[StatusLine]:
    held = f", {state.waiting.held:,} of them held" if state.waiting.held else ""
    waiting = f"{state.waits:,} waiting{held}{_clears(state)}" if state.waits else "none waiting"
    well = "Busy" if state.waits and state.waiting.clear_s >= BUSY_S else "All well"
    yield StatusLine("good", f"{well}: {waiting}")


def _clears(state: Snapshot) -> str:
    waiting = state.waiting
    if waiting.stranded:
        return ""
    low, high = (
        span(waiting.clear_s if each is None else each)
        for each in (waiting.clear_low_s, waiting.clear_high_s)
    )
    (first, unit), (last, last_unit) = low.split(), high.split()
    between = high if low == high else f"{first if unit == last_unit else low}–{last} {last_unit}"
    return f", {between} to clear"


def span(seconds: float) -> str:
    """Format a time: 40 s, 12 min, 3 h."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5970 else f"{seconds / 3600:.0f} h"
