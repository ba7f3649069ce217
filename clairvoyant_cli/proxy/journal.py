"""The daemon's clocks, its counters, and its log of events, which front ends show too."""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

log = logging.getLogger("clairvoyant")

KEPT = 200
COALESCE_S = 60.0  # frequent events of one kind are logged as often as this, with their number


class Event(NamedTuple):
    """A line of the log; `at` is in epoch seconds."""

    at: float
    level: str
    text: str


@dataclass(slots=True)
class Journal:
    """Dates, counts and records events. `clock` is the event loop's; `wall` gives epoch seconds."""

    clock: Callable[[], float]
    wall: Callable[[], float] = time.time
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=KEPT))
    counts: Counter[str] = field(default_factory=Counter)  # by the names in `state.snapshot.Counters`
    refused: Counter[str] = field(default_factory=Counter)  # the proxy's own error answers, by kind

    def at(self, clock_s: float) -> float:
        """Convert a time of the event loop's clock to epoch seconds.

        The offset between the two clocks is taken at the call: the wall clock may be set, and the loop's
        clock stands still while the machine sleeps.
        """
        return self.wall() - (self.clock() - clock_s)

    def event(self, level: int, text: str) -> None:
        """Log a line and keep it for the dashboards. It must not contain prompt text."""
        log.log(level, text, stacklevel=2)  # the log counts lines by where they come from
        self.events.append(Event(self.wall(), logging.getLevelName(level).lower(), text))
