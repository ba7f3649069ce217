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
_LONGEST_GAP_S = 5.0


@dataclass(frozen=True, slots=True)
class Sample:
    """The daemon at one second."""

    at: float  # its uptime: the wall clock may be set
    waiting: int
    completed: int
    tokens_per_s: float = 0.0
    busy: int = 0
    slots: int = 0
    energy_j: float = 0.0  # used by the GPUs while slots were busy, since this screen was opened

    @classmethod
    def of(cls, state: Snapshot, energy_j: float) -> "Sample":
        return cls(
            state.uptime_s,
            state.waits,
            state.counters.completed,
            sum(each.tokens_per_s or 0.0 for each in state.running),
            *state.slots,
            energy_j,
        )


class History:
    """Series by time, filled from states and readings."""

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque(maxlen=SAMPLES)
        self.finished: dict[str, FinishedRequest] = {}
        self.gpus: dict[int, deque[Gpu]] = {}
        self.cpu: deque[float] = deque(maxlen=SAMPLES)
        self.energy_j = 0.0
        self._pid = 0
        self._read_at = 0.0

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
            self.samples.append(Sample.of(snapshot, self.energy_j))

    def put_before(self, states: Iterable[Snapshot]) -> None:
        """Put older states of the same daemon, the oldest first, before all others."""
        first = self.samples[0].at if self.samples else 0.0
        older = [each for each in states if each.pid == self._pid and each.uptime_s < first]
        self.samples = deque([*(Sample.of(each, 0.0) for each in older), *self.samples], maxlen=SAMPLES)
        ended = {row.id: row for each in older for row in each.recent if row.id not in self.finished}
        self.finished = dict([*ended.items(), *self.finished.items()][-POINTS:])

    def take_hardware(self, hardware: Hardware) -> None:
        if hardware.host.cpu is not None:
            self.cpu.append(hardware.host.cpu)
        passed_s = hardware.at_s - self._read_at if self._read_at else 0.0
        self._read_at = hardware.at_s
        worked_s = min(max(0.0, passed_s), _LONGEST_GAP_S) if self.samples and self.samples[-1].busy else 0.0
        for gpu in hardware.gpus:
            self.gpus.setdefault(gpu.index, deque(maxlen=SAMPLES)).append(gpu)
            self.energy_j += (gpu.power_w or 0.0) * worked_s

    def last(self, seconds: float) -> list[Sample]:
        since = self.samples[-1].at - seconds if self.samples else 0.0
        return [*takewhile(lambda each: each.at >= since, reversed(self.samples))][::-1]

    def energy_each_wh(self) -> tuple[float, int] | None:
        """Return the energy of the GPUs per answer, and of how many; None if it is not known."""
        first = next((each for each in self.samples if each.energy_j), None)
        if first is None or not (answers := self.samples[-1].completed - first.completed):
            return None
        return (self.samples[-1].energy_j - first.energy_j) / answers / 3600.0, answers

    def until(self, snapshot: Snapshot) -> "History":
        """Return the history as it was when a state was taken, as far as it is known."""
        then = History()
        seen = [each for each in self.samples if each.at < snapshot.uptime_s and snapshot.pid == self._pid]
        then.energy_j = seen[-1].energy_j if seen else 0.0
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
