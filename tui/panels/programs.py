"""Draws who has the GPU: slot time by program, and what each gained or paid against order of arrival."""

from collections.abc import Callable
from operator import attrgetter

from clairvoyant_cli.state.snapshot import ProgramState, UseState
from tui.formatting import brief, duration, gained, middle_cut, share
from tui.styled_text import Line, Tone, cell, gathered
from tui.table_layout import Column, Grid, number
from tui.view_state import ViewState

_FILLS: tuple[tuple[str, Tone], ...] = (("█", "accent"), ("▓", "medium"), ("▒", "short"), ("░", "long"))
_OTHERS: tuple[str, Tone] = ("■", "soft")
_IDLE = "idle"
_MOST_ROWS, _NAME = 8, 16
_LEAST_GRAPH, _AXIS = 5, 5


def facts(view: ViewState) -> Line:
    return Line(" slot time, last hour ", "soft")


def rows(view: ViewState) -> int:
    """Return the lines of the table and its heading."""
    listed = len(view.state.programs.listed)
    return min(2 + listed, _MOST_ROWS) if listed else 0


def body(view: ViewState, width: int, height: int) -> list[Line]:
    """The programs, and if there is room the last 24 hours."""
    if not view.state.programs.listed:
        return [Line("No program has had a slot yet.", "soft")]
    lines = PROGRAMS.lines(view, width)
    room = height - len(lines) - 1
    return [*lines, Line(), *last_day(view, width, room)] if room >= _LEAST_GRAPH else lines


def _listed(view: ViewState) -> list[ProgramState]:
    """The programs, and what none of them had."""
    programs = view.state.programs
    hour_s = programs.hour_s - sum(each.hour.slot_s for each in programs.listed)
    day_s = programs.day_s - sum(each.day.slot_s for each in programs.listed)
    return [*programs.listed, ProgramState(_IDLE, hour=UseState(hour_s), day=UseState(day_s))]


def _fill(name: str, view: ViewState) -> tuple[str, Tone]:
    """What stands for a program in the graph and in its bar."""
    names = (each.name for each in view.state.programs.listed)
    return dict(zip(names, _FILLS, strict=False)).get(name, _OTHERS)


def _name(row: ProgramState, view: ViewState, width: int) -> Line:
    return Line(middle_cut(row.name, width), "faint" if row.name == _IDLE else "ink")


def _bar(row: ProgramState, view: ViewState, width: int) -> Line:
    if row.name == _IDLE or not view.state.programs.hour_s:
        return Line()
    sign, tone = _fill(row.name, view)
    return Line(sign * round(width * row.hour.slot_s / view.state.programs.hour_s), tone)


def _share_of(hours: str) -> Callable[[ProgramState, ViewState, int], Line]:
    """Return what draws the share of the slots in the "hour" or the "day"."""
    used, total = attrgetter(f"{hours}.slot_s"), attrgetter(f"{hours}_s")

    def draw(row: ProgramState, view: ViewState, width: int) -> Line:
        there_s = total(view.state.programs)
        return Line(share(used(row) / there_s if there_s else 0.0), "ink")

    return draw


def _count(requests: float | None) -> str:
    return brief(requests) if requests else ""


def _each(row: ProgramState, view: ViewState, width: int) -> Line:
    """How much less or more its answers waited than in order of arrival, on average."""
    saved_s = row.hour.saved_each_s
    if saved_s is None:
        return Line()
    return Line(f"{'−' if saved_s > 0 else '+'}{duration(abs(saved_s))}", gained(-saved_s, 0.0))


PROGRAMS: Grid[ProgramState] = Grid(
    columns=(
        Column(
            "program",
            6,
            9,
            _name,
            holds=lambda view: (middle_cut(each.name, _NAME) for each in view.state.programs.listed),
        ),
        Column("hour", 4, 9, _share_of("hour"), title=" ", right=True),
        Column("bar", 4, 5, _bar, title=" ", flex=True, most=40),
        number("running", 3, 8, "running", _count, title="run"),
        number("waiting", 4, 8, "waiting", _count, title="wait"),
        Column("each", 6, 8, _each, title="waits", right=True),
        Column("day", 5, 3, _share_of("day"), title="24 h", right=True),
    ),
    rows=_listed,
)


def last_day(view: ViewState, width: int, height: int) -> list[Line]:
    """The share of the slots that each program had in the last 24 hours, one upon the other."""
    programs, high, cells = view.state.programs, height - 1, max(1, width - _AXIS)
    halves = max((len(each.halves_s) for each in programs.listed), default=0)
    if not halves or not programs.slots:
        return []
    full_s = 86_400.0 / halves * programs.slots
    columns = []
    for half in range(halves):
        filled: list[tuple[str, Tone]] = []
        used_s = 0.0
        for each in programs.listed:
            used_s += each.halves_s[half]
            filled += [_fill(each.name, view)] * (round(used_s / full_s * high) - len(filled))
        columns.append((filled + [(" ", "track")] * high)[:high])
    labels = {high - 1: "100%", 0: "0%"}
    lines = []
    for level in reversed(range(high)):
        line = Line(cell(labels.get(level, ""), _AXIS - 1, right=True) + " ", "faint")
        lines.append(line.join(gathered(columns[x * halves // cells][level] for x in range(cells))))
    axis = Line(" " * _AXIS)
    for text, at in (("24 h ago", 0.0), ("12 h", 0.5), ("now", 1.0)):
        axis.pad(_AXIS + round(at * (cells - len(text)))).add(text, "faint")
    return [*lines, axis]
