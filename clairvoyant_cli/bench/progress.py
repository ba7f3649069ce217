"""How far a bench is, and how long it will take: a bar on a terminal, lines elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from clairvoyant_cli.bench.session import Step

OnProgress = Callable[[Step, int], None]


class Clock:
    """Tells the time left from the time the steps so far have taken."""

    def __init__(self, total: int, now: Callable[[], float] = time.perf_counter) -> None:
        self._total = total
        self._now = now
        self._begun_s = now()
        self._first: int | None = None

    def left(self, done: int) -> str:
        """Return the time left in words; nothing before a step is done."""
        if self._first is None:
            self._first = done
        measured = done - self._first
        if measured <= 0:
            return ""
        left_s = (self._now() - self._begun_s) / measured * (self._total - done)
        return f"{left_s:.0f} s left" if left_s < 90 else f"{left_s / 60:.0f} min left"


@contextmanager
def telling(console: Console, total: int) -> Iterator[OnProgress]:
    """Tell of each step as it begins, until the block ends."""
    clock = Clock(total)
    if not console.is_terminal or console.is_dumb_terminal:

        def tell(step: Step, done: int) -> None:
            line = f"[{done + 1}/{total}] {_words(step)}"
            left = clock.left(done)
            console.print(f"{line}, {left}" if left else line, highlight=False, markup=False)

        yield tell
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total)

        def draw(step: Step, done: int) -> None:
            bar.update(task, completed=done, description=f"{_words(step)} {clock.left(done)}".rstrip())

        yield draw


def _words(step: Step) -> str:
    return f"run {step.run + 1}, {step.load.name}, {step.arm.name}"
