"""Names what limits the throughput now, and what would help. It says nothing rather than something doubtful:
each reason must have held for ten seconds.
"""

from tui.formatting import share
from tui.view_state import ViewState

WINDOW_S = 10.0
_BUSY, _IDLE, _ROOM = 0.95, 0.6, 0.2
"""A GPU that is the limit, one that could do more, and the memory that must be free for another slot."""

_OWN_SLOTS = ("ollama", "lmstudio", "jan", "other")
"""Kinds of servers that get as many requests at once as `--slots` says; the others report their own slots."""


def bottleneck(view: ViewState) -> str:
    """Return the limit in a few words; nothing if it is not certain."""
    state, window = view.state, view.history.last(WINDOW_S)
    serves = view.live and view.past_s is None and state.mode == "serving"
    if not serves or any(each.state != "up" or each.stamped for each in state.backends):
        return ""
    if not window or window[-1].at - window[0].at < WINDOW_S - 2.0 or not all(s.waiting for s in window):
        return ""
    if not all(each.busy >= each.slots > 0 for each in window):
        return ""  # slots are free: the column `why` says what else the requests wait for
    holder, slots = window[-1].holder, window[-1].slots
    others = any(row.client != holder for row in state.queue)
    if holder and slots > 1 and others and all(each.holder == holder for each in window):
        return f"{holder} holds all {slots} slots"
    gpus = view.history.gpus if view.local and view.hardware_age_s < WINDOW_S else {}
    pasts = [[*past][-round(WINDOW_S) :] for past in gpus.values()]
    if not pasts or any(each.utilisation is None for past in pasts for each in past):
        return ""
    used = max(sum(each.utilisation or 0.0 for each in past) / len(past) for past in pasts)
    if used >= _BUSY and len(pasts) == 1:
        hot = all(each.throttled == "heat" for each in pasts[0])
        return f"GPU {share(used)}{', slowed by heat' if hot else ''}: it is the limit"
    if used > _IDLE or len(state.backends) > 1:
        return ""
    server = state.backends[0]
    for model in server.models:
        if model.size_bytes and model.vram_bytes is not None and model.vram_bytes < _BUSY * model.size_bytes:
            return f"GPU {share(used)}: part of {model.name} is on the CPU"
    has_room = all(
        (past[-1].memory_used_bytes or 0) < (1.0 - _ROOM) * (past[-1].memory_total_bytes or 0)
        for past in pasts
    )
    more = f": try --slots {slots + max(1, slots // 2)}" if has_room and server.kind in _OWN_SLOTS else ""
    return f"slots full, GPU {share(used)}{more}"
