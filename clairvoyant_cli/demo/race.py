"""Races the same burst through several proxies, each before a backend of its own, and draws the race."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from statistics import fmean
from typing import Protocol

from rich.console import Console, ConsoleRenderable, Group
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from clairvoyant_cli.backends.chat_probe import client_for
from clairvoyant_cli.demo.questions import TITLED, Call, Question, ask, load_questions
from clairvoyant_cli.state.snapshot import Snapshot
from predictor.record import LengthClass
from profiles.percentiles import percentile

GAP_S = 0.02  # between two questions of a burst: they arrive in the order they were sent
FRAME_S = 0.1  # between two frames
MOST_QUESTIONS = 32  # in a burst that repeats no question
STYLES: dict[str, str] = {
    LengthClass.SHORT: "cyan",
    LengthClass.MEDIUM: "yellow",
    LengthClass.LONG: "magenta",
}
NOTE_WIDTH = 10
FRAME_LINES = 9  # that are not rows: headline, borders, counts, and one for the cursor


def draw(count: int, seed: int) -> list[Question]:
    """Return questions in random order: half are short, the others medium and long (of two, one is long)."""
    rng = Random(seed)  # noqa: S311 - a demo, not a secret
    medium, longer = count // 4, count // 2
    counts = {
        LengthClass.SHORT: count - longer,
        LengthClass.MEDIUM: medium,
        LengthClass.LONG: longer - medium,
    }
    burst = [each for kind, pool in load_questions(TITLED).items() for each in rng.sample(pool, counts[kind])]
    rng.shuffle(burst)
    return burst


class Proxy(Protocol):
    @property
    def base_url(self) -> str: ...

    def snapshot(self) -> Snapshot: ...


class Place(StrEnum):
    """The state of a call; the value is its glyph."""

    DONE = "✓"
    FAILED = "✗"
    RUNNING = "▶"
    WAITING = "·"


@dataclass(frozen=True, slots=True)
class Row:
    """One call of a lane, and the tokens that were predicted for it, if known yet."""

    call: Call
    place: Place
    predicted: float | None


@dataclass(slots=True, eq=False)
class Lane:
    """One proxy in the race, and the calls sent to it."""

    policy: str
    title: str
    proxy: Proxy
    calls: list[Call]
    _predicted: dict[str | None, float] = field(default_factory=dict)

    def rows(self) -> list[Row]:
        """Return the calls sent so far in the order of service: ended, running, waiting."""
        snapshot = self.proxy.snapshot()
        waiting = sorted(snapshot.queue, key=lambda request: request.rank)
        running = [request.prompt for request in snapshot.running]
        in_order = [*running, *(request.prompt for request in waiting)]
        self._predicted |= {each.prompt: each.predicted.expected_tokens for each in snapshot.running}
        self._predicted |= {each.prompt: each.predicted.expected_tokens for each in waiting}

        def position(call: Call) -> tuple[int, float]:
            if call.ended_s is not None:
                return 0, call.ended_s
            prompt = call.question.prompt
            return 1, in_order.index(prompt) if prompt in in_order else len(in_order)

        rows = []
        for call in sorted((call for call in self.calls if call.sent_s is not None), key=position):
            place = Place.RUNNING if call.question.prompt in running else Place.WAITING
            if call.ended_s is not None:
                place = Place.FAILED if call.error else Place.DONE
            rows.append(Row(call, place, self._predicted.get(call.question.prompt)))
        return rows


Watch = Callable[[Sequence[Lane], float], None]
"""Called with the lanes and the seconds since the start, ten times a second and once at the end."""


async def _send(lane: Lane) -> None:
    async with client_for(lane.proxy.base_url) as client, asyncio.TaskGroup() as group:
        for call in lane.calls:
            group.create_task(ask(client, call))
            await asyncio.sleep(GAP_S)


async def race(lanes: Sequence[Lane], watch: Watch) -> None:
    """Send every lane its calls at the same time, and wait for all answers."""
    begun_s = time.monotonic()
    async with asyncio.TaskGroup() as group:
        bursts = [group.create_task(_send(lane)) for lane in lanes]
        while not all(burst.done() for burst in bursts):
            watch(lanes, time.monotonic() - begun_s)
            await asyncio.wait(bursts, timeout=FRAME_S)
    watch(lanes, time.monotonic() - begun_s)


def frame(lanes: Sequence[Lane], elapsed_s: float, headline: str, height: int) -> ConsoleRenderable:
    """Draw all lanes side by side in at most `height` lines."""
    top = Table.grid(expand=True)
    top.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    top.add_column(justify="right")
    top.add_row(Text(headline, "bold"), Text(f"{elapsed_s:5.1f} s", "bold"))
    grid = Table.grid(expand=True)
    for _ in lanes:
        grid.add_column(ratio=1)
    grid.add_row(*(_draw_lane(lane, height - FRAME_LINES) for lane in lanes))
    return Group(top, grid)


def _draw_lane(lane: Lane, room: int) -> Panel:
    table = Table.grid(expand=True, padding=(0, 1))
    table.add_column(width=1)
    table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column(width=NOTE_WIDTH, justify="right", no_wrap=True)
    room = min(room, len(lane.calls))
    shown, above, below = window(lane.rows(), room)
    if above:
        table.add_row("", Text(f"{above} more above", "dim"), "")
    for row in shown:
        table.add_row(*_draw_row(row))
    if below:
        table.add_row("", Text(f"{below} more below", "dim"), "")
    for _ in range(room - table.row_count):
        table.add_row("", "", "")
    return Panel(Group(_counts(lane), table), title=Text(lane.title, "bold"), title_align="left")


def window(rows: Sequence[Row], room: int) -> tuple[Sequence[Row], int, int]:
    """Return the rows that fit, with the running one in view, and the numbers left out above and below."""
    if len(rows) <= room:
        return rows, 0, 0
    room = max(1, room - 2)  # two lines tell how many are left out
    running = next((i for i, row in enumerate(rows) if row.place is Place.RUNNING), len(rows) - 1)
    first = min(max(0, running - room // 2), len(rows) - room)
    return rows[first : first + room], first, len(rows) - room - first


def _draw_row(row: Row) -> tuple[ConsoleRenderable, ConsoleRenderable, ConsoleRenderable]:
    call, style = row.call, STYLES[row.call.question.length_class]
    title = call.question.title
    if row.place is Place.DONE:
        took = Text(f"{call.sojourn_s or 0.0:.1f} s", style)
        return Text(row.place, "green"), Text(title, f"dim {style}"), took
    if row.place is Place.FAILED:
        return Text(row.place, "red"), Text(title, "red"), Text("failed", "red")
    if row.place is Place.RUNNING:
        bar = ProgressBar(call.question.tokens, call.tokens, width=NOTE_WIDTH, complete_style=style)
        return Text(row.place, f"bold {style}"), Text(title, f"bold {style}"), bar
    guess = "" if row.predicted is None else f"~{row.predicted:,.0f} tok"
    return Text(row.place, "dim"), Text(title, style), Text(guess, "dim")


def _counts(lane: Lane) -> Table:
    table = Table.grid(expand=True, padding=(0, 1))
    table.add_column(ratio=1)
    table.add_column(justify="right")
    table.add_column(justify="right", width=len("mean 999.9 s"))
    answered = by_class(lane.calls)
    for kind, style in STYLES.items():
        if asked := sum(call.question.length_class == kind for call in lane.calls):
            done = answered.get(kind)
            mean = f"mean {done.mean_s:.1f} s" if done else ""
            count = f"{done.n if done else 0}/{asked}"
            table.add_row(Text(f"{kind} answers", style), count, Text(mean, f"bold {style}"))
    return table


class Narrator:
    """Prints a line for each answer, where there is no terminal to draw on."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told: set[int] = set()

    def __call__(self, lanes: Sequence[Lane], elapsed_s: float) -> None:
        for lane in lanes:
            ended = (call for call in lane.calls if call.ended_s is not None and id(call) not in self._told)
            for call in sorted(ended, key=lambda c: c.ended_s or 0.0):
                self._told.add(id(call))
                after = f"failed: {call.error}" if call.error else f"after {call.sojourn_s or 0.0:.1f} s"
                line = f"{elapsed_s:6.1f} s  {lane.policy:<8}{call.question.title:<26}{after}"
                self._console.print(line, highlight=False, markup=False)


def result_table(before: Lane, after: Lane, title: str) -> Table:
    """Return the sojourn times of two lanes by length class, and the change from the first to the second."""
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("Sojourn time")
    for name in (before.title, after.title, "Change"):
        table.add_column(name, justify="right")
    first, second = by_class(before.calls), by_class(after.calls)
    for name in (name for name in first if name in second):
        label = f"{name} answers" if name in STYLES else "all"
        for figure, attribute in (("mean", "mean_s"), ("P50", "p50_s"), ("P95", "p95_s")):
            before_s, after_s = getattr(first[name], attribute), getattr(second[name], attribute)
            change = change_of(before_s, after_s)
            shown = Text(
                "" if change is None else f"{change:+.0%}", "green" if (change or 0.0) <= 0 else "red"
            )
            kind = Text(f"{label}, {figure}", STYLES.get(name, ""))
            table.add_row(kind, f"{before_s:.2f} s", f"{after_s:.2f} s", shown)
        table.add_section()
    return table


@dataclass(frozen=True, slots=True)
class Sojourn:
    """Mean, median and 95th percentile of `n` sojourn times, in seconds."""

    n: int
    mean_s: float
    p50_s: float
    p95_s: float


def by_class(calls: Iterable[Call]) -> dict[str, Sojourn]:
    """Summarise the answered calls of each length class that occurs, shortest first, then "all"."""
    times: dict[str, list[float]] = {length_class: [] for length_class in LengthClass}
    for call in calls:
        if call.sojourn_s is not None:
            times[call.question.length_class].append(call.sojourn_s)
    times["all"] = [time_s for of_class in times.values() for time_s in of_class]
    return {
        name: Sojourn(len(of), fmean(of), percentile(sorted(of), 0.5), percentile(sorted(of), 0.95))
        for name, of in times.items()
        if of
    }


def change_of(before_s: float, after_s: float) -> float | None:
    """Return the relative change, -0.5 for half the time; None if there was none before."""
    return after_s / before_s - 1 if before_s > 0 else None
