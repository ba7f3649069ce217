"""How far a bench is, and how long it will take: a bar on a terminal, lines elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from clairvoyant_cli.research.bench.session import Progress as Reached

OnProgress = Callable[[Reached], None]

LINE_EVERY_S = 20.0
"""Where there is no terminal, a long step says how far it is so often."""

ALONE = "asking a few questions alone, to know how long they take"


class Clock:
    """Tells the time left from the time the steps so far have taken."""

    def __init__(self, total: int, now: Callable[[], float] = time.perf_counter) -> None:
        self._total = total
        self._now = now
        self._begun_s = now()
        self._first: float | None = None

    def left(self, done: float) -> str:
        """Return the time left in words; nothing before a step is done."""
        if self._first is None:
            self._first = done
        measured = done - self._first
        if measured <= 0:
            return ""
        left_s = (self._now() - self._begun_s) / measured * (self._total - done)
        return f"{left_s:.0f} s left" if left_s < 90 else f"{left_s / 60:.0f} min left"


@contextmanager
def beginning(console: Console) -> Iterator[None]:
    """Say that questions are asked before any arm is, until the block ends."""
    if not _draws(console):
        console.print(ALONE, highlight=False, markup=False)
        yield
        return
    with console.status(ALONE):
        yield


@contextmanager
def telling(
    console: Console, total: int, now: Callable[[], float] = time.perf_counter
) -> Iterator[OnProgress]:
    """Tell of each step as it begins, and of its answers, until the block ends."""
    clock = Clock(total, now)
    if not _draws(console):
        said_s = now()

        def tell(reached: Reached) -> None:
            nonlocal said_s
            left = clock.left(_done(reached))
            if reached.answered and now() - said_s < LINE_EVERY_S:
                return
            said_s = now()
            words = (f"[{reached.done + 1}/{total}] {_words(reached)}", left)
            console.print(", ".join(filter(None, words)), highlight=False, markup=False)

        yield tell
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total)

        def draw(reached: Reached) -> None:
            done = _done(reached)
            words = f"{_words(reached)} {clock.left(done)}".rstrip()
            bar.update(task, completed=done, description=words)

        yield draw


def _draws(console: Console) -> bool:
    return console.is_terminal and not console.is_dumb_terminal


def _done(reached: Reached) -> float:
    return reached.done + reached.answered / reached.of


def _words(reached: Reached) -> str:
    step = reached.step
    answered = f", {reached.answered} of {reached.of} answered" if reached.answered else ""
    return f"run {step.run + 1}, {step.load.name}, {step.arm.name}{answered}"
