"""Notices a queue that does not get shorter."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from clairvoyant_cli.scheduler.queue import Scheduler

SAMPLE_S = 10.0
STANDS_S = 180.0
"""A queue that is not shorter than so long ago, and was never empty since, is a backlog."""


@dataclass(slots=True)
class Backlog:
    """How long the queue has stood, from samples of its length. Held and background requests and parked
    sessions do not count, nor time during which nothing could start. It stands until it has halved.
    """

    scheduler: Scheduler
    clock: Callable[[], float]
    _since_s: float = 0.0
    _stands: bool = False
    _samples: deque[tuple[float, int]] = field(default_factory=deque)

    @property
    def stands_for_s(self) -> float | None:
        """Seconds since the queue was last empty; None if it was short ago, or if it gets shorter."""
        return self.clock() - self._since_s if self._stands else None

    def look(self) -> None:
        """Look at the queue, at each change of it and each state."""
        scheduler, samples, now = self.scheduler, self._samples, self.clock()
        if scheduler.interactive and samples and now - samples[-1][0] < SAMPLE_S:
            return
        able = scheduler.interactive and not scheduler.paused and any(scheduler.slots.values())
        rows = scheduler.waiting() if able else ()
        length = sum(each.interactive and not (each.held or each.parked) for each in rows)
        if not length:
            samples.clear()
            self._stands = False
            return
        if not samples:
            self._since_s = now
        samples.append((now, length))
        while len(samples) > 1 and samples[1][0] <= now - STANDS_S:
            samples.popleft()
        then_s, before = samples[0]
        if now - then_s >= STANDS_S:
            self._stands = length >= before or (self._stands and 2 * length > before)
