"""Draws the header: the state in a sentence, policy and load, what scheduling gains; and the footer, with the
last message or the keys that do something now.
"""

from operator import itemgetter

from clairvoyant_cli.state.snapshot import Snapshot, TauState
from tui.formatting import (
    ENOUGH,
    change,
    class_letter,
    class_tone,
    clock,
    count,
    duration,
    duration_range,
    gained,
    share,
)
from tui.keys import KEYS
from tui.styled_text import Line, Tone, cells, ends, flow
from tui.view_state import ViewState

_LEVEL: dict[str, tuple[str, Tone]] = {
    "good": ("● ", "good"),
    "note": ("‖ ", "badge"),
    "warn": ("▲ ", "warn"),
    "alert": ("▲ ", "siren"),
}
_NARROW = 60
_BEHIND = -0.05  # a loss of less than this, in seconds, goes unnoticed
_SAME_S = 0.005
_ROUGHLY = 0.1  # share of estimated answers above which the figure is approximate
_FULL = 0.9
_SLOW_S = 2.0  # a terminal that takes longer to show a frame is named
WINDOW_S = 10.0
_BUSY, _IDLE = 0.95, 0.6  # use of a GPU that is the limit, and of one that could do more
_ROOM = 0.2  # share of its memory that must be free for another slot
_FIRST = ("quit", "help", "command", "choose")


def header(view: ViewState, width: int, height: int) -> list[Line]:
    verdict = _verdict(view)
    lines = [ends(verdict, _right(view, width, width - verdict.width), width)]
    if height > 1:
        lines.append(_state(view, width - 1) if view.snapshot else Line())
    return [*lines, worth(view, width)] if height > 2 else lines


def _verdict(view: ViewState) -> Line:
    if view.lost:
        return Line(" ").add(" no daemon ", "siren").add(f"  {view.lost}", "soft")
    if view.silent_s:
        line = Line(" ").add(f" no news for {view.silent_s:.0f} s ", "siren")
        return line.add("  the daemon does not answer", "soft")
    if view.snapshot is None:
        return Line(" ○ connecting", "soft")
    verdict = view.snapshot.verdict
    sign, tone = _LEVEL.get(verdict.level, ("● ", "strong"))
    text = verdict.text or view.snapshot.mode
    if tone in ("badge", "siren"):
        return Line(" ").add(f" {sign}{text} ", tone)
    return Line(" ").add(sign, tone).add(text, "strong")


def _right(view: ViewState, width: int, room: int) -> Line:
    """Return the badges and, if there is room, what limits the throughput and how long the daemon is up."""
    line = Line()
    if width < _NARROW:
        return line
    if view.frozen:
        past = "" if view.past_s is None else f"{clock(view.now)}, {duration(view.past_s)} ago"
        line.add(f" {past or 'frozen'} ", "badge").add(" ")
    for word in (view.badge, "read-only" * view.readonly):
        line.add(f"{word}  " if word else "", "soft")
    if view.lag_s >= _SLOW_S:
        line.add(f"terminal is {view.lag_s:.0f} s behind  ", "warn")
    limit = bottleneck(view)
    if limit and line.width + cells(limit) + 3 < room:
        line.add(f"{limit}   ", "soft")
    if view.snapshot is None:
        return line.add(f"{view.where} ", "soft")
    up_s = view.snapshot.uptime_s + view.drift_s
    up = Line("clairvoyant ", "soft").add(" up ", "faint").add(duration(up_s), "soft").add(" ")
    return line.join(up) if line.width + up.width < room else line


def bottleneck(view: ViewState) -> str:
    """Name what limits the throughput, and what would help; nothing if it has not held for ten seconds."""
    state, window = view.state, view.history.last(WINDOW_S)
    serves = view.live and view.past_s is None and state.mode == "serving"
    if not serves or any(each.state != "up" or each.stamped for each in state.backends):
        return ""
    if not window or window[-1].at - window[0].at < WINDOW_S - 2.0 or not all(s.waiting for s in window):
        return ""
    if not all(each.busy >= each.slots > 0 for each in window):
        return ""  # slots are free: the column `why` says what else the requests wait for
    gpus = view.history.gpus if view.local and view.hardware_age_s < WINDOW_S else {}
    pasts = [[*past][-round(WINDOW_S) :] for past in gpus.values()]
    if not pasts or any(each.utilisation is None for past in pasts for each in past):
        return ""
    used = max(sum(each.utilisation or 0.0 for each in past) / len(past) for past in pasts)
    if used >= _BUSY and len(pasts) == 1:
        return f"GPU {share(used)}: it is the limit"
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
    wish = server.slots + max(1, server.slots // 2)
    more = f": try --slots {wish}" if has_room and not server.tells_slots else ""
    return f"slots full, GPU {share(used)}{more}"


def tau_range(tau: TauState) -> str:
    """Tau, or its range if models have different ones."""
    longest_s = tau.tau_s or 0.0
    shortest_s = min(tau.by_model.values(), default=longest_s)
    same = duration(shortest_s) == duration(longest_s)
    return duration(longest_s) if same else duration_range(shortest_s, longest_s)


def _state(view: ViewState, width: int) -> Line:
    state, per_minute = view.state, view.history.per_minute()
    tau, full = state.tau, state.queue_capacity and state.waits >= _FULL * state.queue_capacity
    limit = tau_range(tau) if tau.tau_s and tau.guards else "off"
    busy, slots = state.slots
    fired = Line(" fired ", "faint").add(count(tau.firings_total)) if limit != "off" else Line()
    squares = Line("slots ", "faint")
    if 0 < slots <= 8 and width >= _NARROW:
        squares.add("■" * busy, "accent").add("□" * (slots - busy), "faint").add(" ")
    pieces = [
        Line(" ").add("order ", "faint").add(state.policy, "strong"),
        Line("τ ", "faint").add(limit, "ink" if limit != "off" else "soft").join(fired),
        squares.add(f"{busy}/{slots}"),
        Line("waiting ", "faint").add(count(state.waits), "alert" if full else "strong"),
        Line(f"load {window(state)} ", "faint").add(share(state.utilisation)),
    ]
    if view.tau_lit:  # it has just promoted a request
        pieces[1] = Line(f"τ {limit}", "siren").join(fired)
    if per_minute is not None:
        pieces.append(Line("done ", "faint").add(count(per_minute)).add("/min", "faint"))
    if width < _NARROW:
        pieces = [*pieces[2:4], pieces[1], pieces[0], *pieces[4:]]
    line, where = flow(pieces, width, gap=4 if width > 100 else 2), Line(view.where, "faint")
    return ends(line, where, width) if line.width + where.width + 4 <= width else line


def window(snapshot: Snapshot) -> str:
    over_s = snapshot.utilisation_s
    return f"{over_s / 60:.0f} min" if over_s >= 60 else f"{over_s:.0f} s"


def worth(view: ViewState, width: int) -> Line:
    """How much less requests waited than in order of arrival: all today; this hour the usual Short and the
    slowest Long answers.
    """
    gain = view.state.gain
    pieces = today(view.state) if gain.answers_today else []
    for ours, other in zip(view.state.stats_paired, view.state.stats_fcfs, strict=False):
        is_short, number = ours.length_class == "short", ours.wait.n
        # The slowest of the Long answers pay for what the others gain.
        wait_s, fcfs_s = (each.wait.p50 if is_short else each.wait.p95 for each in (ours, other))
        if ours.length_class == "medium" or wait_s is None or fcfs_s is None:
            continue
        tone = gained(wait_s, fcfs_s)
        piece = Line(f"{class_letter(ours.length_class)} ", class_tone(ours.length_class))
        piece.add("p95 " * (not is_short), "faint").add(duration(wait_s), tone).add(
            " this hour" * is_short, "faint"
        )
        piece.add(", by arrival ", "faint").add(duration(fcfs_s), "strong")
        piece.add(f" {change(wait_s, fcfs_s, number)}".rstrip(), tone).add(f" ({count(number)})", "faint")
        pieces.append(piece)
    if gain.answers_yesterday and gain.answers_today < ENOUGH:
        saved, less = duration(abs(gain.saved_yesterday_s)), "less" if gain.saved_yesterday_s >= 0 else "more"
        pieces.append(
            Line(f"{saved} {less} yesterday ", "soft").add(f"({count(gain.answers_yesterday)})", "faint")
        )
    if not pieces:
        none = "No answer yet to compare with order of arrival."
        return Line(f" {none}" if view.snapshot else "", "faint")
    return Line(" ").join(flow(pieces, width - 1, gap=3))


def today(state: Snapshot) -> list[Line]:
    """How much less all waited today, and the prompt tokens not read again if servers tell them."""
    gain = state.gain
    saved_s, answers = gain.saved_today_s, gain.answers_today
    plural = "answer" if answers == 1 else "answers"
    if abs(saved_s) / answers < _SAME_S:
        return [Line(f"no change in waiting time today ({count(answers)} {plural})", "soft")]
    tone: Tone = "warn" if saved_s / answers < _BEHIND else "good"
    about = "about " if gain.estimated_today > _ROUGHLY * answers else ""
    line = Line(about, "faint").add(duration(abs(saved_s)), tone)
    line.add(" less" if saved_s >= 0 else " more", "strong").add(" waiting today ", "faint")
    estimated = f", {count(gain.estimated_today)} estimated" if gain.estimated_today else ""
    line.add(f"({count(answers)} {plural}, {duration(abs(saved_s) / answers)} each{estimated})", "faint")
    if not state.sessions.cached_tokens or abs(gain.spared_tokens_today) < 1.0:
        return [line]
    word = "fewer" if gain.spared_tokens_today > 0 else "more"
    return [line, Line(f"about {count(abs(gain.spared_tokens_today))} {word} tokens read", "faint")]


def footer(view: ViewState, width: int, height: int) -> list[Line]:
    trouble = Line()
    if view.lost:
        long = view.snapshot is not None and view.lost_for_s >= 1.0
        trouble.add(f"lost for {duration(view.lost_for_s)}, " * long, "alert").add("retrying ", "alert")
    line = Line(" ").add(view.message, view.message_tone)
    if not view.message:
        line.join(flow(_hints(view), width - trouble.width - 2, gap=2))
    return [ends(line, trouble, width)]


def _hints(view: ViewState) -> list[Line]:
    """Return the keys that would do something now, each with the word for it."""
    hints, mode = [], view.state.mode
    for key in KEYS:
        word = key.hint
        if (key.action, mode) in (("pause", "paused"), ("drain", "draining")):
            word = "resume"
        elif (key.action, mode) == ("pause", "draining") or (word == "choose" and "row" in view.offers):
            continue
        elif key.action == "hold" and "held" in view.offers:
            word = "release"
        if word and key.on in ("", *view.offers) and not (view.forbids and key.changes):
            place = _FIRST.index(word) if word in _FIRST else len(_FIRST)
            hints.append((place, Line(key.label, "accent").add(f" {word}", "soft")))
    return [hint for _, hint in sorted(hints, key=itemgetter(0))]
