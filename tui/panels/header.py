"""The head of the screen: what daemon this is, how it is, and what the ordering is worth."""

from tui.figures import bar, class_letter, class_tone, count, duration, ratio, share
from tui.line import Line, Tone, ends, flow
from tui.scene import LinkState, Scene
from tui.snapshot import ClassStats, Snapshot

REGIME = (0.55, 0.80)
"""Utilisation where ordering pays most (Clairvoyant, section 6)."""

_MODE_TONE: dict[str, Tone] = {"serving": "good", "paused": "badge", "draining": "badge"}


def header(scene: Scene, width: int, height: int) -> list[Line]:
    """Identity on the first line, the worth of it on the second."""
    lines = [ends(_identity(scene, width - 10), _right(scene), width)]
    if height > 1:
        lines.append(_worth(scene, width))
    return lines


def _identity(scene: Scene, width: int) -> Line:
    pieces = [Line(" clairvoyant", "strong").add("  ").join(_state(scene))]
    snapshot = scene.snapshot
    if snapshot is not None:
        pieces += [
            Line(snapshot.policy, "strong").add(" ").join(_tau(scene, snapshot)),
            _slots(snapshot),
            Line("queue ", "faint").add(count(len(snapshot.queue)), _queue_tone(snapshot)),
            _load(snapshot),
        ]
    return flow(pieces, width, gap=4 if width > 100 else 2)


def _tau(scene: Scene, snapshot: Snapshot) -> Line:
    """Return tau; it lights up, at its place, when it fires."""
    limit = duration(snapshot.tau.tau_s) if snapshot.tau.tau_s else "off"
    if scene.tau_lit:
        return Line(f" τ {limit} ", "siren")
    return Line(" τ ", "faint").add(limit).add(" ")


def _state(scene: Scene) -> Line:
    line = Line()
    if scene.link.state is LinkState.LOST:
        line.add(" no daemon ", "siren")
    elif scene.snapshot is None:
        line.add("○ connecting", "soft")
    else:
        mode = scene.snapshot.mode
        tone = _MODE_TONE.get(mode, "alert")
        line.add(f"● {mode}" if mode == "serving" else f" {mode} ", tone)
    if scene.frozen:
        line.add(" ").add(" frozen ", "badge")
    if scene.badge:
        line.add(" ").add(scene.badge, "soft")
    if scene.readonly:
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


def _right(scene: Scene) -> Line:
    if scene.snapshot is None:
        return Line(f"{scene.link.where} ", "soft")
    up_s = scene.snapshot.uptime_s + scene.drift_s
    return Line("up ", "faint").add(duration(up_s), "soft").add(" ")


def _worth(scene: Scene, width: int) -> Line:
    snapshot = scene.snapshot
    if snapshot is None:
        return Line()
    pieces = [Line(" wait p50", "faint")]
    for stats in snapshot.stats:
        letter = class_letter(stats.length_class)
        pieces.append(Line(f"{letter} ", class_tone(stats.length_class)).add(duration(stats.wait.p50)))
    pieces.append(_saving(snapshot))
    per_minute = scene.history.per_minute()
    if per_minute is not None:
        pieces.append(Line("done ", "faint").add(count(per_minute)).add("/min", "faint"))
    line = flow([piece for piece in pieces if piece.width], width)
    where = Line(f"{scene.link.where} ", "faint")
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
