"""Draws waits by class, compared with order of arrival, and how many requests ended."""

from collections.abc import Iterable

from clairvoyant_cli.state.snapshot import Counters, Percentiles, Snapshot
from tui.formatting import brief, change, class_letter, class_tone, count, duration, gained, share
from tui.styled_text import Line, Tone, cell, columns
from tui.view_state import ViewState

_GRID = 43


def facts(view: ViewState) -> Line:
    return Line(f" by real length, {count(view.state.counters.completed)} done ", "soft")


def rows(view: ViewState) -> int:
    return 5 + bool(view.state.service_level)


def body(view: ViewState, width: int, height: int) -> list[Line]:
    """The blocks, side by side if the panel is wide and low."""
    state = view.state
    wait, line = waits(state), Line("ended ", "faint")
    for name, number in ended(state.counters).items():
        tone: Tone = "strong" if name == "done" else "warn" if name == "failed" else "ink"
        if number or name == "done":
            line.add("  " * (name != "done")).add(count(number), tone).add(f" {name}", "soft")
    rest = [line]
    if (level := state.service_level) is not None:
        line = Line("slo   ", "faint").add(level.objective, "strong").add("  late ", "faint")
        rest.append(line.add(share(level.recent_missed), "alert" if level.alert else "good"))
        line.add("  refused ", "faint").add(count(level.refused)) if level.refused else None
    sojourns = _block("total", ((each.length_class, each.sojourn) for each in state.stats))
    if width >= 2 * _GRID - 10 and height < 12:
        return columns(wait, [*sojourns, *rest], _GRID)
    if height > len(wait) + len(sojourns) + len(rest):
        wait += [Line(), *sojourns]
    return [*wait, *rest]


def waits(state: Snapshot) -> list[Line]:
    """Waits of the compared answers and the medians in order of arrival; of all if none is compared."""
    pairs = [*zip(state.stats_paired, state.stats_fcfs, strict=False)]
    if not any(ours.wait.n for ours, _ in pairs):
        return _block("wait", ((each.length_class, each.wait) for each in state.stats))
    lines = _block("wait", ((ours.length_class, ours.wait) for ours, _ in pairs))
    lines[0].add(cell("by arrival", 12, right=True), "faint")
    for line, (ours, other) in zip(lines[1:], pairs, strict=True):
        p50_s, fcfs_s = ours.wait.p50, other.wait.p50
        line.add(cell(duration(fcfs_s), 7, right=True), "soft")
        if fcfs_s and p50_s is not None:
            line.add(cell(change(p50_s, fcfs_s, ours.wait.n), 6, right=True), gained(p50_s, fcfs_s))
    return lines


def _block(name: str, rows: Iterable[tuple[str, Percentiles]]) -> list[Line]:
    titles = "".join(cell(title, 7, right=True) for title in ("p50", "p95", "p99"))
    lines = [Line(f"{name:<5}{'n' if len(name) < 5 else ' '}{titles}", "faint")]
    for length_class, of in rows:
        line = Line(f"{class_letter(length_class)} ", class_tone(length_class))
        line.add(cell(brief(of.n), 4, right=True), "faint").add(
            cell(duration(of.p50), 7, right=True), "strong"
        )
        lines.append(line.add("".join(cell(duration(each), 7, right=True) for each in (of.p95, of.p99))))
    return lines


def ended(counts: Counters) -> dict[str, int]:
    """Return how many requests have ended, by how."""
    return {
        "done": counts.completed,
        "left": counts.client_cancelled,
        "cancelled": counts.operator_cancelled,
        "failed": counts.upstream_error + counts.timeout,
        "refused": counts.rejected,
    }
