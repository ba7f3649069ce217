"""The head of the screen: what daemon this is, how it is, and what the ordering is worth."""

from tui.formatting import bar, class_letter, class_tone, count, duration, ratio, share
from tui.line import Line, Tone, ends, flow
from tui.snapshot import ClassStats, Snapshot
from tui.view_state import LinkState, ViewState

REGIME = (0.55, 0.80)
"""Utilisation where ordering pays most (Clairvoyant, section 6)."""

_MODE_TONE: dict[str, Tone] = {"serving": "good", "paused": "badge", "draining": "badge"}


def header(view: ViewState, width: int, height: int) -> list[Line]:
    """Identity on the first line, the worth of it on the second."""
    lines = [ends(_identity(view, width - 10), _right(view), width)]
    if height > 1:
        lines.append(_worth(view, width))
    return lines


def _identity(view: ViewState, width: int) -> Line:
    pieces = [Line(" clairvoyant", "strong").add("  ").join(_state(view))]
    snapshot = view.snapshot
    if snapshot is not None:
        pieces += [
            Line(snapshot.policy, "strong").add(" ").join(_tau(view, snapshot)),
            _slots(snapshot),
            Line("queue ", "faint").add(count(len(snapshot.queue)), _queue_tone(snapshot)),
            _load(snapshot),
        ]
    return flow(pieces, width, gap=4 if width > 100 else 2)


def _tau(view: ViewState, snapshot: Snapshot) -> Line:
    """Return tau; it lights up, at its place, when it fires."""
    limit = duration(snapshot.tau.tau_s) if snapshot.tau.tau_s else "off"
    if view.tau_lit:
        return Line(f" τ {limit} ", "siren")
    return Line(" τ ", "faint").add(limit).add(" ")


def _state(view: ViewState) -> Line:
    line = Line()
    if view.link.state is LinkState.LOST:
        line.add(" no daemon ", "siren")
    elif view.snapshot is None:
        line.add("○ connecting", "soft")
    else:
        mode = view.snapshot.mode
        tone = _MODE_TONE.get(mode, "alert")
        line.add(f"● {mode}" if mode == "serving" else f" {mode} ", tone)
    if view.frozen:
        line.add(" ").add(" frozen ", "badge")
    if view.badge:
        line.add(" ").add(view.badge, "soft")
    if view.readonly:
        line.add(" ").add("read-only", "soft")
    return line


def _slots(snapshot: Snapshot) -> Line:
    slots = sum(backend.slots for backend in snapshot.backends)
    busy = sum(backend.busy for backend in snapshot.backends)
    line = Line("slots ", "faint")
    if 0 < slots <= 8:
        line.add("■" * busy, "accent").add("□" * max(0, slots - busy), "faint").add(" ")
    return line.add(f"{busy}/{slots}")


def _queue_tone(snapshot: Snapshot) -> Tone:
    fill = len(snapshot.queue) / snapshot.queue_capacity if snapshot.queue_capacity else 0.0
    return "alert" if fill >= 0.9 else "strong"


def _load(snapshot: Snapshot) -> Line:
    rho = snapshot.utilisation
    return Line("ρ ", "faint").add(ratio(rho)).add(f" {regime(rho)}", "soft")


def regime(rho: float | None) -> str:
    """What a utilisation means for the ordering."""
    if rho is None:
        return ""
    if rho < REGIME[0]:
        return "light"
    if rho <= REGIME[1]:
        return "order pays"
    return "heavy" if rho < 1.0 else "overloaded"


def _right(view: ViewState) -> Line:
    if view.snapshot is None:
        return Line(f"{view.link.where} ", "soft")
    up_s = view.snapshot.uptime_s + view.drift_s
    return Line("up ", "faint").add(duration(up_s), "soft").add(" ")


def _worth(view: ViewState, width: int) -> Line:
    snapshot = view.snapshot
    if snapshot is None:
        return Line()
    pieces = [Line(" wait p50", "faint")]
    for stats in snapshot.stats:
        letter = class_letter(stats.length_class)
        pieces.append(Line(f"{letter} ", class_tone(stats.length_class)).add(duration(stats.wait.p50)))
    pieces.append(_saving(snapshot))
    per_minute = view.history.per_minute()
    if per_minute is not None:
        pieces.append(Line("done ", "faint").add(count(per_minute)).add("/min", "faint"))
    line = flow([piece for piece in pieces if piece.width], width)
    where = Line(f"{view.link.where} ", "faint")
    return ends(line, where, width) if line.width + where.width + 2 <= width else line


def _saving(snapshot: Snapshot) -> Line:
    """Return the median short wait against first-come-first-served, where the daemon keeps the shadow."""
    now, then = _short(snapshot.stats), _short(snapshot.stats_fcfs)
    if now is None or not then:
        return Line()
    line = Line("S in arrival order ", "faint").add(duration(then))
    change = now / then - 1.0
    tone: Tone = "good" if change < 0 else "warn"
    return line.add(" ").add(f"{'−' if change < 0 else '+'}{share(abs(change))}", tone)


def _short(stats: tuple[ClassStats, ...]) -> float | None:
    return next((each.wait.p50 for each in stats if each.length_class == "short"), None)


def load_gauge(rho: float, width: int) -> Line:
    """A gauge from 0 to 1.2 with marks where the ordering pays most."""
    line = bar(rho / 1.2, width, "accent" if rho < 1.0 else "alert")
    cells = [(character, tone) for text, tone in line.spans for character in text]
    for edge in REGIME:
        at = min(width - 1, round(edge / 1.2 * width))
        cells[at] = ("┼", "soft")
    gauge = Line()
    for character, tone in cells:
        gauge.add(character, tone)
    return gauge
