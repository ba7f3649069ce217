"""Keeps the series that are drawn; each is bounded."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile

from clairvoyant_cli.state.snapshot import FinishedRequest, Snapshot
from tui.hardware.reading import Gpu, Hardware

SAMPLES = 600  # one sample a second: ten minutes
POINTS = 600  # ended requests kept for the timeline
RECENTLY_S = 30.0  # a panel keeps the rows that it has needed in this time


@dataclass(frozen=True, slots=True)
class Sample:
    """The daemon at one second."""

    at: float  # its uptime: the wall clock may be set
    waiting: int
    completed: int
    busy: int = 0
    slots: int = 0

    @classmethod
    def of(cls, state: Snapshot) -> "Sample":
        return cls(
            state.uptime_s,
            state.waits,
            state.counters.completed,
            *state.slots,
        )


class History:
    """Series by time, filled from states and readings."""

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque(maxlen=SAMPLES)
        self.finished: dict[str, FinishedRequest] = {}
        self.gpus: dict[int, deque[Gpu]] = {}
        self.cpu: deque[float] = deque(maxlen=SAMPLES)
        self._pid = 0

    def take(self, snapshot: Snapshot) -> None:
        """Add a state. A restarted daemon begins a new history."""
        if snapshot.pid != self._pid:
            self._pid = snapshot.pid
            self.samples.clear()
            self.finished.clear()
        new = [each for each in snapshot.recent if each.id not in self.finished]
        self.finished |= {each.id: each for each in sorted(new, key=lambda each: each.finished_at)}
        while len(self.finished) > POINTS:
            del self.finished[next(iter(self.finished))]
        if not self.samples or int(snapshot.uptime_s) != int(self.samples[-1].at):
            self.samples.append(Sample.of(snapshot))

    def put_before(self, states: Iterable[Snapshot]) -> None:
        """Put older states of the same daemon, the oldest first, before all others."""
        first = self.samples[0].at if self.samples else 0.0
        older = [each for each in states if each.pid == self._pid and each.uptime_s < first]
        self.samples = deque([*map(Sample.of, older), *self.samples], maxlen=SAMPLES)
        ended = {row.id: row for each in older for row in each.recent if row.id not in self.finished}
        self.finished = dict([*ended.items(), *self.finished.items()][-POINTS:])

    def take_hardware(self, hardware: Hardware) -> None:
        if hardware.host.cpu is not None:
            self.cpu.append(hardware.host.cpu)
        for gpu in hardware.gpus:
            self.gpus.setdefault(gpu.index, deque(maxlen=SAMPLES)).append(gpu)

    def last(self, seconds: float) -> list[Sample]:
        since = self.samples[-1].at - seconds if self.samples else 0.0
        return [*takewhile(lambda each: each.at >= since, reversed(self.samples))][::-1]

    def until(self, snapshot: Snapshot) -> "History":
        """Return the history as it was when a state was taken, as far as it is known."""
        then = History()
        seen = [each for each in self.samples if each.at < snapshot.uptime_s and snapshot.pid == self._pid]
        then.take(snapshot)
        known = (self.finished | then.finished).values()
        ended = sorted(known, key=lambda each: each.finished_at)
        then.finished = {each.id: each for each in ended if each.finished_at <= snapshot.taken_at}
        then.samples = deque([*seen, *then.samples], maxlen=SAMPLES)
        return then

    def per_minute(self) -> float | None:
        """Return the requests completed per minute over the last minute; None in the first ten seconds."""
        if not self.samples:
            return None
        first, *_, last = (*self.last(60.0), self.samples[-1])
        span_s = last.at - first.at
        return (last.completed - first.completed) / span_s * 60.0 if span_s >= 10.0 else None
