"""The race on a terminal: both lanes side by side, drawn anew from their state at every look."""

from collections.abc import Sequence

from rich.console import Console, ConsoleRenderable, Group
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from clairvoyant_cli.research.bench.race import Lane, Place, Row
from clairvoyant_cli.research.bench.sojourn_times import Sojourn, by_class, change
from predictor.record import LengthClass

STYLES: dict[str, str] = {
    LengthClass.SHORT: "cyan",
    LengthClass.MEDIUM: "yellow",
    LengthClass.LONG: "magenta",
}
GLYPHS = {Place.DONE: "✓", Place.FAILED: "✗", Place.RUNNING: "▶", Place.WAITING: "·"}
NOTE_WIDTH = 10
FRAME_LINES = 8
"""Lines of a frame that are no rows: headline, borders, counts, and one spare for the cursor."""


def frame(lanes: Sequence[Lane], elapsed_s: float, headline: str, height: int) -> ConsoleRenderable:
    """Draw all lanes side by side in at most `height` lines."""
    top = Table.grid(expand=True)
    top.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    top.add_column(justify="right")
    top.add_row(Text(headline, "bold"), Text(f"{elapsed_s:5.1f} s", "bold"))
    grid = Table.grid(expand=True)
    for _ in lanes:
        grid.add_column(ratio=1)
    grid.add_row(*(_lane(lane, elapsed_s, height - FRAME_LINES) for lane in lanes))
    return Group(top, grid)


def _lane(lane: Lane, elapsed_s: float, room: int) -> Panel:
    table = Table.grid(expand=True, padding=(0, 1))
    table.add_column(width=1)
    table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column(width=NOTE_WIDTH, justify="right", no_wrap=True)
    rows = lane.rows()
    shown, above, below = window(rows, min(room, len(lane.calls)))
    if above:
        table.add_row("", Text(f"{above} more above", "dim"), "")
    for row in shown:
        table.add_row(*_cells(row, elapsed_s))
    if below:
        table.add_row("", Text(f"{below} more below", "dim"), "")
    for _ in range(min(room, len(lane.calls)) - len(shown) - bool(above) - bool(below)):
        table.add_row("", "", "")
    return Panel(Group(_counts(lane), table), title=Text(lane.title, "bold"), title_align="left")


def window(rows: Sequence[Row], room: int) -> tuple[Sequence[Row], int, int]:
    """Return the rows that fit, with the running one in view, and how many are left out above and below."""
    if len(rows) <= room:
        return rows, 0, 0
    room = max(1, room - 2)  # two lines say what is left out
    running = next((i for i, row in enumerate(rows) if row.place is Place.RUNNING), len(rows) - 1)
    first = min(max(0, running - room // 2), len(rows) - room)
    return rows[first : first + room], first, len(rows) - room - first


def _cells(row: Row, elapsed_s: float) -> tuple[ConsoleRenderable, ConsoleRenderable, ConsoleRenderable]:
    style = STYLES[row.call.question.length_class]
    title = row.call.question.title
    note: ConsoleRenderable
    match row.place:
        case Place.DONE:
            note = Text(f"{row.call.sojourn_s or 0.0:.1f} s", style)
            said = Text.assemble((title, f"dim {style}"), f"  {row.call.words}" if row.call.words else "")
            return Text(GLYPHS[row.place], "green"), said, note
        case Place.FAILED:
            note = Text("failed", "red")
            return Text(GLYPHS[row.place], "red"), Text(title, "red"), note
        case Place.RUNNING:
            total = row.call.question.tokens
            note = ProgressBar(total, row.call.tokens, width=NOTE_WIDTH, complete_style=style)
            return Text(GLYPHS[row.place], f"bold {style}"), Text(title, f"bold {style}"), note
        case Place.WAITING:
            guess = f"~{row.predicted.expected_tokens:,.0f} tok" if row.predicted else ""
            return Text(GLYPHS[row.place], "dim"), Text(title, style), Text(guess, "dim")


def _counts(lane: Lane) -> Table:
    table = Table.grid(expand=True, padding=(0, 1))
    table.add_column(ratio=1)
    table.add_column(justify="right")
    table.add_column(justify="right", width=len("mean 999.9 s"))
    answered = by_class(lane.calls)
    for length_class, style in STYLES.items():
        asked = sum(call.question.length_class == length_class for call in lane.calls)
        if asked:
            done = answered.get(length_class)
            mean = f"mean {done.mean_s:.1f} s" if done else ""
            count = f"{done.n if done else 0}/{asked}"
            table.add_row(Text(f"{length_class} answers", style), count, Text(mean, f"bold {style}"))
    return table


class Narrator:
    """Tells the race in lines, where there is no terminal to draw on."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told: set[int] = set()

    def __call__(self, lanes: Sequence[Lane], elapsed_s: float) -> None:
        """Tell of the calls that have ended since the last look."""
        for lane in lanes:
            ended = (call for call in lane.calls if call.ended_s is not None and id(call) not in self._told)
            for call in sorted(ended, key=lambda c: c.ended_s or 0.0):
                self._told.add(id(call))
                after = f"failed: {call.error}" if call.error else f"after {call.sojourn_s or 0.0:.1f} s"
                line = f"{elapsed_s:6.1f} s  {lane.policy:<8}{call.question.title:<26}{after}  {call.words}"
                self._console.print(line.rstrip(), highlight=False, markup=False)


def result_table(before: Lane, after: Lane, title: str) -> Table:
    """Draw the sojourn times of two lanes side by side, with the change from the first to the second."""
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("Sojourn time")
    for name in (before.title, after.title, "Change"):
        table.add_column(name, justify="right")
    first, second = by_class(before.calls), by_class(after.calls)
    for name in (name for name in first if name in second):
        label = f"{name} answers" if name in STYLES else "all"
        _add_class(table, label, first[name], second[name], STYLES.get(name, ""))
    return table


def _add_class(table: Table, label: str, before: Sojourn, after: Sojourn, style: str) -> None:
    figures = (
        ("mean", before.mean_s, after.mean_s),
        ("P50", before.p50_s, after.p50_s),
        ("P95", before.p95_s, after.p95_s),
    )
    for figure, before_s, after_s in figures:
        relative = change(before_s, after_s)
        table.add_row(
            Text(f"{label}, {figure}", style),
            f"{before_s:.2f} s",
            f"{after_s:.2f} s",
            Text(f"{relative:+.0%}", "green" if relative <= 0 else "red") if relative is not None else "",
        )
    table.add_section()
