"""Sums the state up in one sentence of at most 80 characters: what an operator must know first."""

from clairvoyant_cli.protocols.printable import plural
from clairvoyant_cli.state.snapshot import Snapshot, StatusLine

LONG_BACKLOG_S = 600.0
"""A queue that takes this long to clear is overload."""

BACKLOG_S = 60.0
BUSY_SHARE = 0.95
"""So is a queue of a minute while the slots are busy all the time: it does not clear by itself."""

FULL_SHARE = 0.9

FAILURES = 5
"""From this number of failures in a row, the sentence says so, for `OFTEN_S` after the last one."""

OFTEN, OFTEN_S = 3, 60.0
"""From this number of promotions by tau within this time, it says so, for as long after the last one."""


def verdict(state: Snapshot, *, stopping: bool = False) -> StatusLine:
    """Return the first that holds: stopped or paused, no server, an urgent request late, overload, service
    level missed, a server or the predictor impaired, each request fails, tau promotes many, the queue does
    not get shorter, too many urgency claims, sessions that take turns, all well.
    """
    return (
        _stopped(state, stopping)
        or _without_server(state)
        or _in_need(state)
        or _overloaded(state)
        or _promise_broken(state)
        or _impaired(state)
        or _failing(state)
        or _guarded(state)
        or _standing(state)
        or _shouted(state)
        or _in_turns(state)
        or _well(state)
    )


def _stopped(state: Snapshot, stopping: bool) -> StatusLine | None:
    rest = f"{state.waits:,} waiting" if state.waits else "none waiting"
    if state.mode == "paused" and not stopping:
        return _without_server(state) or StatusLine("note", f"Paused by an operator, {rest}")
    if stopping or state.mode == "draining":
        mode = "Stopping" if stopping else "Draining"
        return StatusLine("note", f"{mode}: new requests are rejected, {rest}")
    return None


def _without_server(state: Snapshot) -> StatusLine | None:
    servers = state.backends
    if not servers or any(server.is_there for server in servers):
        return None
    loading = next((server for server in servers if server.state == "loading"), None)
    if loading is not None:
        return StatusLine("warn", f"{loading.name} is loading its model{_kept(state, 'it is ready')}")
    if len(servers) > 1:
        return StatusLine("alert", f"No server answers{_kept(state, 'one returns')}")
    return StatusLine("alert", f"{servers[0].name} does not answer{_kept(state, 'it returns')}")


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


def _overloaded(state: Snapshot) -> StatusLine | None:
    clear_s = state.waiting.clear_s
    stays = clear_s >= BACKLOG_S and (state.utilisation or 0.0) >= BUSY_SHARE
    full = state.waits >= FULL_SHARE * state.queue_capacity
    if not state.waits or not (full or stays or clear_s >= LONG_BACKLOG_S):
        return None
    text = f"Overloaded: {state.waits:,} waiting{_clears(state)}"
    return StatusLine("alert", f"{text}, the queue is full" if state.waits >= state.queue_capacity else text)


def _in_need(state: Snapshot) -> StatusLine | None:
    urgency = state.urgency
    target_s = urgency.target_s
    longest_s = next((each.longest_s for each in urgency.levels if each.level == 0), 0.0)
    if not urgency.heeded or target_s is None or longest_s <= target_s:
        return None
    return StatusLine("alert", f"A request of level 0 has waited {span(longest_s)} (target {span(target_s)})")


def _promise_broken(state: Snapshot) -> StatusLine | None:
    promised = state.service_level
    if promised is None or not promised.alert:
        return None
    missed = f"{promised.recent_missed:.0%} of recent requests were late"
    return StatusLine("alert", f"Service level {promised.objective} missed: {missed}")


def _impaired(state: Snapshot) -> StatusLine | None:
    away = [server for server in state.backends if not server.is_there]
    if away:
        others = f" (and {len(away) - 1} more)" if len(away) > 1 else ""
        how = "loading its model" if away[0].state == "loading" else "down"
        number = state.waiting.stranded
        them, returns = ("them", "one returns") if len(away) > 1 else ("it", "it returns")
        needed = f"{number:,} waiting need{'s' * (number == 1)} {them}{_refused(state, ',', returns)}"
        rest = needed if number else "other servers take what they can"
        return StatusLine("warn", f"{away[0].name} is {how}{others}: {rest}")
    if state.displaced_policy:
        text = "Upper bounds on lengths do not hold: first come, first served until they do"
        return StatusLine("warn", text)
    return None


def _failing(state: Snapshot) -> StatusLine | None:
    newest = [row for row in state.recent if row.backend][-FAILURES:]
    failed = [row for row in newest if row.outcome == "upstream_error"]
    if len(failed) < FAILURES or state.taken_at - failed[-1].finished_at > OFTEN_S:
        return None
    return StatusLine(
        "warn", f"The last {FAILURES} requests failed on {failed[-1].backend}: see recent and log"
    )


def _guarded(state: Snapshot) -> StatusLine | None:
    recent, tau = state.tau.recent, state.tau
    rows = zip(recent, recent[OFTEN - 1 :], strict=False)
    if not any(last - first <= OFTEN_S and state.taken_at - last <= OFTEN_S for first, last in rows):
        return None
    started = plural(tau.firings_last_minute, "request")
    return StatusLine("warn", f"Starvation guard active: it promoted {started} in the last minute")


def _standing(state: Snapshot) -> StatusLine | None:
    stands_s = state.waiting.backlog_s
    if stands_s is None:
        return None
    text = f"Backlog for {span(stands_s)}: {state.waits:,} waiting and not getting fewer{_clears(state)}"
    return StatusLine("warn", text)


def _shouted(state: Snapshot) -> StatusLine | None:
    shouter = state.urgency.shouter
    if shouter is None:
        return None
    claims = "1 claim" if shouter.unbelieved == 1 else f"{shouter.unbelieved:,} claims"
    text = f"{shouter.client} claims more urgency than its share ({shouter.share:.0%}): {claims} rejected"
    return StatusLine("warn", text)


def _in_turns(state: Snapshot) -> StatusLine | None:
    summary = state.sessions.summary
    return StatusLine("good", summary) if summary else None


def _well(state: Snapshot) -> StatusLine:
    if not state.waits:
        return StatusLine("good", "All well: none waiting")
    held = f", {state.waiting.held:,} of them held" if state.waiting.held else ""
    return StatusLine("good", f"All well: {state.waits:,} waiting{held}{_clears(state)}")


def _clears(state: Snapshot) -> str:
    return "" if state.waiting.stranded else f", {span(state.waiting.clear_s)} to clear"


def span(seconds: float) -> str:
    """Format a time: 40 s, 12 min, 3 h."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5970 else f"{seconds / 3600:.0f} h"
