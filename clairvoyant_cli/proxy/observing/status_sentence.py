"""How things are, in one sentence: of all that could be said, what an operator must know first."""

from clairvoyant_cli.state.snapshot import Snapshot, Verdict

LONG_BACKLOG_S = 600.0
"""A queue that takes this long to clear is overload, whatever fills it."""

BACKLOG_S = 60.0
BUSY_SHARE = 0.95
"""So is one of a minute where the slots have had no pause for minutes: it does not clear by itself."""

FULL_SHARE = 0.9


def verdict(state: Snapshot, *, stopping: bool = False) -> Verdict:
    """Return the first that holds: stopped by somebody, no server, somebody in need kept waiting, overloaded,
    a promise not kept, out of order, somebody who calls too much urgent, busy, well.

    `stopping` says that the daemon is to end.
    """
    return (
        _stopped(state, stopping)
        or _without_server(state)
        or _in_need(state)
        or _overloaded(state)
        or _promise_broken(state)
        or _impaired(state)
        or _shouted(state)
        or _well(state)
    )


def _stopped(state: Snapshot, stopping: bool) -> Verdict | None:
    rest = f"{state.waits:,} still waiting" if state.waits else "nothing waits"
    if stopping:
        return Verdict("note", f"Going down: takes nothing new, {rest}")
    if state.mode == "draining":
        return Verdict("note", f"Draining: takes nothing new, {rest}")
    if state.mode == "paused":
        return Verdict("note", f"Paused by the operator: nothing is started, {state.waits:,} waiting")
    return None


def _without_server(state: Snapshot) -> Verdict | None:
    servers = state.backends
    if not servers or any(server.state not in ("down", "loading") for server in servers):
        return None
    loading = next((server for server in servers if server.state == "loading"), None)
    rest = f", {state.waits:,} waiting for it" if state.waits else ""
    if loading is not None:
        return Verdict("warn", f"{loading.name} is loading its model{rest}")
    if len(servers) > 1:
        return Verdict("alert", f"None of the {len(servers)} servers answers{rest.replace(' it', ' one')}")
    return Verdict("alert", f"{servers[0].name} does not answer{rest}")


def _overloaded(state: Snapshot) -> Verdict | None:
    clear_s = state.waiting.clear_s
    stays = clear_s >= BACKLOG_S and (state.utilisation or 0.0) >= BUSY_SHARE
    full = state.waits >= FULL_SHARE * state.queue_capacity
    if not state.waits or not (full or stays or clear_s >= LONG_BACKLOG_S):
        return None
    text = f"Overloaded: {state.waits:,} waiting, {span(clear_s)} to clear"
    return Verdict("alert", f"{text}, the queue is full" if state.waits >= state.queue_capacity else text)


def _in_need(state: Snapshot) -> Verdict | None:
    urgency = state.urgency
    target_s = urgency.target_s
    longest_s = next((each.longest_s for each in urgency.levels if each.level == 0), 0.0)
    if not urgency.heeded or target_s is None or longest_s <= target_s:
        return None
    return Verdict("alert", f"A request of level 0 has waited {span(longest_s)}, and may {span(target_s)}")


def _promise_broken(state: Snapshot) -> Verdict | None:
    promised = state.service_level
    if promised is None or not promised.alert:
        return None
    missed = f"{promised.recent_missed:.0%} of the recent requests were too late"
    return Verdict("alert", f"The service level {promised.objective} is not met: {missed}")


def _impaired(state: Snapshot) -> Verdict | None:
    away = [server for server in state.backends if server.state in ("down", "loading")]
    if away:
        others = f" (and {len(away) - 1} more)" if len(away) > 1 else ""
        how = "loading its model" if away[0].state == "loading" else "down"
        return Verdict("warn", f"{away[0].name} is {how}{others}: the other servers do its work")
    if state.displaced_policy:
        return Verdict("warn", "Upper bounds on lengths do not hold: in order of arrival until they do")
    distrusted = state.predictor.distrusted
    if distrusted:
        others = f" (and {len(distrusted) - 1} more)" if len(distrusted) > 1 else ""
        text = f"Predictor not trusted for {distrusted[0]}{others}: in order of arrival until it ranks better"
        return Verdict("warn", text)
    return None


def _shouted(state: Snapshot) -> Verdict | None:
    shouter = state.urgency.shouter
    if shouter is None:
        return None
    claims = f"{shouter.unbelieved:,} of its claims" if shouter.unbelieved > 1 else "a claim of it"
    text = f"{shouter.client} calls more urgent than its share ({shouter.share:.0%}): {claims} not believed"
    return Verdict("warn", text)


def _well(state: Snapshot) -> Verdict:
    if not state.waits:
        return Verdict("good", "All well: nothing waits")
    held = f", {state.waiting.held:,} of them held" if state.waiting.held else ""
    clears = f"{span(state.waiting.clear_s)} to clear"
    return Verdict("good", f"All well: {state.waits:,} waiting{held}, {clears}")


def span(seconds: float) -> str:
    """Return a time as it is said: 40 s, 12 min, 3 h."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5970 else f"{seconds / 3600:.0f} h"
