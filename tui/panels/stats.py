"""Draws waits by class, compared with order of arrival, and the quality of predictions."""

from clairvoyant_cli.state.snapshot import Percentiles, Snapshot
from tui.formatting import bar, brief, change, class_letter, class_tone, count, duration, ratio, share
from tui.styled_text import Line, cell, columns
from tui.view_state import ViewState

_GRID = 43
_FULL = 0.95
_ORDER_MATTERS = (0.55, 0.80)
"""Utilisation at which scheduling pays most (Clairvoyant, section 6)."""


def facts(view: ViewState) -> Line:
    return Line(f" by real length, {count(view.state.counters.completed)} done ", "soft")


def body(view: ViewState, width: int, height: int) -> list[Line]:
    """The blocks, side by side if the panel is wide and low."""
    snapshot = view.state
    wait, load, predictor = waits(snapshot), _load(snapshot), _predictor(snapshot)
    ended = [_counters(snapshot), *_promised(snapshot)]
    sojourns = _block("total", [(each.length_class, each.sojourn) for each in snapshot.stats])
    if width >= 2 * _GRID - 10 and height < 12:
        return columns([*wait, *predictor], [*sojourns, load, *ended], _GRID)
    rest = [load, *ended, *predictor]
    if height >= len(wait) + len(sojourns) + len(rest) + 1:
        return [*wait, Line(), *sojourns, *rest]
    return [*wait, *rest]


def waits(snapshot: Snapshot) -> list[Line]:
    """Waits of the compared answers and the medians in order of arrival; of all if none is compared."""
    pairs = [*zip(snapshot.stats_paired, snapshot.stats_fcfs, strict=False)]
    if not any(ours.wait.n for ours, _ in pairs):
        return _block("wait", [(each.length_class, each.wait) for each in snapshot.stats])
    lines = _block("wait", [(ours.length_class, ours.wait) for ours, _ in pairs])
    lines[0].add(cell("by arrival", 12, right=True), "faint")
    for line, (ours, other) in zip(lines[1:], pairs, strict=True):
        p50_s, fcfs_s = ours.wait.p50, other.wait.p50
        line.add(cell(duration(fcfs_s), 7, right=True), "soft")
        if fcfs_s and p50_s is not None:
            line.add(cell(change(p50_s, fcfs_s), 6, right=True), "good" if p50_s < fcfs_s else "warn")
    return lines


def _block(name: str, rows: list[tuple[str, Percentiles]]) -> list[Line]:
    heading = Line(cell(name, 5), "faint").add("n" if len(name) < 5 else " ", "faint")
    for title in ("p50", "p95", "p99"):
        heading.add(cell(title, 7, right=True), "faint")
    lines = [heading]
    for length_class, percentiles in rows:
        line = Line(f"{class_letter(length_class)} ", class_tone(length_class))
        line.add(cell(brief(percentiles.n), 4, right=True), "faint")
        for index, value in enumerate((percentiles.p50, percentiles.p95, percentiles.p99)):
            line.add(cell(duration(value), 7, right=True), "strong" if index == 0 else "ink")
        lines.append(line)
    return lines


def _load(snapshot: Snapshot) -> Line:
    """The utilisation, and what it means for scheduling."""
    rho = snapshot.utilisation
    if rho is None:
        return Line("load not known yet", "faint")
    line = Line("load  ", "faint").join(bar(rho, 8, "accent" if rho < _FULL else "alert"))
    line.add(f" {ratio(rho)} ", "strong")
    if rho < _ORDER_MATTERS[0]:
        return line.add("light" if snapshot.waits <= snapshot.slots[1] else "", "soft")
    return line.add("order matters" if rho <= _ORDER_MATTERS[1] else "heavy", "soft")


def _predictor(snapshot: Snapshot) -> list[Line]:
    """How many (Short, Long) pairs were ranked correctly, and how many answers were not too long."""
    predictor = snapshot.predictor
    pairs = Line("pairs ", "faint").add(share(predictor.ranking_accuracy), "strong")
    answers = f"{count(predictor.judged)} answer{'' if predictor.judged == 1 else 's'}"
    pairs.add(f" ranked right, of {answers}", "soft")
    below = Line("q90   ", "faint").add(share(predictor.q90_coverage), "strong")
    return [pairs, below.add(" below predicted 90% quantile", "soft")]


def _promised(snapshot: Snapshot) -> list[Line]:
    """The service level, if there is one."""
    level = snapshot.service_level
    if level is None:
        return []
    line = Line("slo   ", "faint").add(level.objective, "strong").add("  late ", "faint")
    line.add(share(level.recent_missed), "alert" if level.alert else "good")
    return [line.add("  refused ", "faint").add(count(level.refused)) if level.refused else line]


def _counters(snapshot: Snapshot) -> Line:
    counters = snapshot.counters
    line = Line("ended ", "faint").add(count(counters.completed), "strong").add(" done", "soft")
    for value, name in (
        (counters.client_cancelled, "left"),
        (counters.operator_cancelled, "cancelled"),
        (counters.upstream_error + counters.timeout, "failed"),
        (counters.rejected, "refused"),
    ):
        if value:
            line.add(f"  {count(value)}", "warn" if name == "failed" else "ink").add(f" {name}", "soft")
    return line
