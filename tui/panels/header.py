"""Draws the header: the state in a sentence, policy and load, and what scheduling gains."""

from clairvoyant_cli.state.snapshot import GainState, Snapshot
from tui.bottleneck import bottleneck
from tui.formatting import change, class_letter, class_tone, clock, count, duration, share, spark
from tui.styled_text import Line, Tone, ends, flow
from tui.view_state import LinkState, ViewState

_LEVEL: dict[str, tuple[str, Tone]] = {
    "good": ("● ", "good"),
    "note": ("‖ ", "badge"),
    "warn": ("▲ ", "warn"),
    "alert": ("▲ ", "siren"),
}
_NARROW = 60
_BEHIND = -0.05
"""A loss of less than this, in seconds, goes unnoticed."""

_SAME_S = 0.005
_FULL = 0.9


def header(view: ViewState, width: int, height: int) -> list[Line]:
    verdict = _verdict(view)
    lines = [ends(verdict, _right(view, width, width - verdict.width), width)]
    if height > 1:
        lines.append(ends(_state(view, width - 1), Line(), width))
    if height > 2:
        lines.append(worth(view, width))
    return lines


def _verdict(view: ViewState) -> Line:
    line = Line(" ")
    if view.link.state is LinkState.LOST:
        line.add(" no daemon ", "siren").add(f"  {view.link.reason}", "soft")
    elif view.silent_s:
        line.add(f" no news for {view.silent_s:.0f} s ", "siren").add("  the daemon does not answer", "soft")
    elif view.snapshot is None:
        line.add("○ connecting", "soft")
    else:
        verdict = view.snapshot.verdict
        sign, tone = _LEVEL.get(verdict.level, ("● ", "strong"))
        text = verdict.text or view.snapshot.mode
        line.add(f" {sign}{text} " if tone in ("badge", "siren") else sign, tone)
        line.add("" if tone in ("badge", "siren") else text, "strong")
    return line


def _right(view: ViewState, width: int, room: int) -> Line:
    """Return the badges and, if there is room, how long the daemon is up."""
    line = Line()
    if width < _NARROW:
        return line
    if view.past_s is not None:
        line.add(f" {clock(view.now)}, {duration(view.past_s)} ago ", "badge").add(" ")
    elif view.frozen:
        line.add(" frozen ", "badge").add(" ")
    for word in (view.badge, "read-only" if view.readonly else ""):
        line.add(f"{word}  " if word else "", "soft")
    limit = bottleneck(view)
    if line.width + limit.width + 3 < room:
        line.join(limit).add("   " if limit.width else "")
    if view.snapshot is None:
        return line.add(f"{view.link.where} ", "soft")
    up_s = view.snapshot.uptime_s + view.drift_s
    up = Line("clairvoyant ", "soft").add(" up ", "faint").add(duration(up_s), "soft").add(" ")
    return line.join(up) if line.width + up.width < room else line


def _state(view: ViewState, width: int) -> Line:
    snapshot = view.snapshot
    if snapshot is None:
        return Line()
    full = snapshot.queue_capacity and snapshot.waits >= _FULL * snapshot.queue_capacity
    pieces = [
        Line(" ").join(_policy(snapshot)),
        _tau(view, snapshot),
        _slots(snapshot),
        Line("waiting ", "faint").add(count(snapshot.waits), "alert" if full else "strong"),
        Line(f"load {window(snapshot)} ", "faint").add(share(snapshot.utilisation)),
    ]
    per_minute = view.history.per_minute()
    if per_minute is not None:
        pieces.append(Line("done ", "faint").add(count(per_minute)).add("/min", "faint"))
    line = flow(pieces, width, gap=4 if width > 100 else 2)
    where = Line(f"{view.link.where}", "faint")
    return ends(line, where, width) if line.width + where.width + 4 <= width else line


def window(snapshot: Snapshot) -> str:
    over_s = snapshot.utilisation_s
    return f"{over_s / 60:.0f} min" if over_s >= 60 else f"{over_s:.0f} s"


def _policy(snapshot: Snapshot) -> Line:
    line = Line("order ", "faint").add(snapshot.policy, "strong")
    return line.add(f" for {snapshot.displaced_policy}", "warn") if snapshot.displaced_policy else line


def _tau(view: ViewState, snapshot: Snapshot) -> Line:
    """Return tau; it is lit after it has promoted a request."""
    tau = snapshot.tau
    limit = duration(tau.tau_s) if tau.tau_s and tau.guards else "off"
    if view.tau_lit:
        return Line(f" τ {limit} ", "siren")
    return Line("τ ", "faint").add(limit, "ink" if limit != "off" else "soft")


def _slots(snapshot: Snapshot) -> Line:
    busy, slots = snapshot.slots
    line = Line("slots ", "faint")
    if 0 < slots <= 8:
        line.add("■" * busy, "accent").add("□" * max(0, slots - busy), "faint").add(" ")
    return line.add(f"{busy}/{slots}")


def worth(view: ViewState, width: int) -> Line:
    """How much less requests waited than in order of arrival: all today, Short and Long ones this hour."""
    gain = view.state.gain
    pieces = today(gain) if gain.answers_today else []
    if gain.behind:  # before all else that follows: the figure may change its sign
        label, rest = Line("provisional", "warn"), f", {count(gain.behind)} to compare"
        room = width - 4 - sum(piece.width for piece in pieces[:1]) - label.width
        pieces.insert(1, label.add(rest if len(rest) <= room else "", "faint"))
    tone: Tone = "good"
    for ours, other in zip(view.state.stats_paired, view.state.stats_fcfs, strict=False):
        p50_s, fcfs_s = ours.wait.p50, other.wait.p50
        if ours.length_class == "medium" or p50_s is None or fcfs_s is None:
            continue
        colour: Tone = "warn" if fcfs_s - p50_s < _BEHIND else "good"
        is_short = ours.length_class == "short"
        tone = colour if is_short else tone
        piece = Line(f"{class_letter(ours.length_class)} ", class_tone(ours.length_class))
        piece.add(duration(p50_s), colour).add(" this hour" if is_short else "", "faint")
        piece.add(", by arrival ", "faint").add(duration(fcfs_s), "strong")
        piece.add(f" {change(p50_s, fcfs_s)}" if fcfs_s else "", colour)
        pieces.append(piece.add(f" ({count(ours.wait.n)})", "faint"))
    if not pieces:
        none = "No answer yet to compare with order of arrival."
        return Line(f" {none}" if view.snapshot else "", "faint")
    line = Line(" ").join(flow(pieces, width - 1, gap=3))
    room = (width - line.width - 26) // 2
    return ends(line, _waits_by_minute(gain, min(30, room), tone), width) if room >= 5 else line


def today(gain: GainState) -> list[Line]:
    """How much less all waited today, and how many prompt tokens were not read again."""
    saved_s, answers = gain.saved_today_s, gain.answers_today
    plural = "answer" if answers == 1 else "answers"
    if abs(saved_s) / answers < _SAME_S:
        return [Line(f"as much waiting as by arrival today ({count(answers)} {plural})", "soft")]
    tone: Tone = "warn" if saved_s / answers < _BEHIND else "good"
    line = Line(duration(abs(saved_s)), tone if gain.behind < answers else "soft")  # most is to come
    line.add(" less" if saved_s >= 0 else " more", "strong").add(" waiting today ", "faint")
    estimated = f", {count(gain.estimated_today)} estimated" if gain.estimated_today else ""
    line.add(f"({count(answers)} {plural}, {duration(abs(saved_s) / answers)} each{estimated})", "faint")
    if abs(gain.spared_tokens_today) < 1.0:
        return [line]
    word = "fewer" if gain.spared_tokens_today > 0 else "more"
    return [line, Line(f"about {count(abs(gain.spared_tokens_today))} {word} tokens read", "faint")]


def _waits_by_minute(gain: GainState, width: int, tone: Tone) -> Line:
    """Draw the waits of the last minutes, with scheduling and without, on one scale."""
    minutes = gain.minutes[-width:]
    top = max([max(each) for each in minutes if each], default=0.0)
    line = Line()
    if not top:
        return line
    for name, of, colour in (("ours ", 0, tone), ("  by arrival ", 1, "soft")):
        line.add(name, "faint")
        bars = (" " if each is None else spark([each[of]], 1, top or 1.0) for each in minutes)
        line.add("".join(bars), colour)
    return line.add(" ")
