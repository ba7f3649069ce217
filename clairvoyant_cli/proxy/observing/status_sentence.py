"""Sums the state up in one sentence: what an operator must know first."""

from clairvoyant_cli.state.snapshot import Snapshot, StatusLine

LONG_BACKLOG_S = 600.0
"""A queue that takes this long to clear is overload."""

BACKLOG_S = 60.0
BUSY_SHARE = 0.95
"""So is a queue of a minute while the slots are busy all the time: it does not clear by itself."""

FULL_SHARE = 0.9


def verdict(state: Snapshot, *, stopping: bool = False) -> StatusLine:
    """Return the first that holds: stopped or paused, no server, an urgent request late, overload, service
    level missed, a server or the predictor impaired, too many urgency claims, sessions that take turns, all
    well.
    """
    return (
        _stopped(state, stopping)
        or _without_server(state)
        or _in_need(state)
        or _overloaded(state)
        or _promise_broken(state)
        or _impaired(state)
        or _shouted(state)
        or _in_turns(state)
        or _well(state)
    )


def _stopped(state: Snapshot, stopping: bool) -> StatusLine | None:
    rest = f"{state.waits:,} waiting" if state.waits else "none waiting"
    if state.mode == "paused" and not stopping:
        return StatusLine("note", f"Paused by an operator, {rest}")
    if stopping or state.mode == "draining":
        mode = "Stopping" if stopping else "Draining"
        return StatusLine("note", f"{mode}: new requests are rejected, {rest}")
    return None


def _without_server(state: Snapshot) -> StatusLine | None:
    servers = state.backends
    if not servers or any(server.state not in ("down", "loading") for server in servers):
        return None
    loading = next((server for server in servers if server.state == "loading"), None)
    rest = f", {state.waits:,} waiting" if state.waits else ""
    if loading is not None:
        return StatusLine("warn", f"{loading.name} is loading its model{rest}")
    if len(servers) > 1:
        return StatusLine("alert", f"None of the {len(servers)} servers answers{rest}")
    return StatusLine("alert", f"{servers[0].name} does not answer{rest}")


def _overloaded(state: Snapshot) -> StatusLine | None:
    clear_s = state.waiting.clear_s
    stays = clear_s >= BACKLOG_S and (state.utilisation or 0.0) >= BUSY_SHARE
    full = state.waits >= FULL_SHARE * state.queue_capacity
    if not state.waits or not (full or stays or clear_s >= LONG_BACKLOG_S):
        return None
    text = f"Overloaded: {state.waits:,} waiting, {span(clear_s)} to clear"
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
    away = [server for server in state.backends if server.state in ("down", "loading")]
    if away:
        others = f" (and {len(away) - 1} more)" if len(away) > 1 else ""
        how = "loading its model" if away[0].state == "loading" else "down"
        return StatusLine("warn", f"{away[0].name} is {how}{others}: other servers take its requests")
    if state.displaced_policy:
        return StatusLine(
            "warn", "Upper bounds on lengths do not hold: first come, first served until they do"
        )
    distrusted = state.predictor.distrusted
    if distrusted:
        others = f" (and {len(distrusted) - 1} more)" if len(distrusted) > 1 else ""
        text = f"Predictor not trusted for {distrusted[0]}{others}"
        return StatusLine("warn", f"{text}: first come, first served until it ranks better")
    return None


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
    clears = f"{span(state.waiting.clear_s)} to clear"
    return StatusLine("good", f"All well: {state.waits:,} waiting{held}, {clears}")


def span(seconds: float) -> str:
    """Format a time: 40 s, 12 min, 3 h."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5970 else f"{seconds / 3600:.0f} h"
