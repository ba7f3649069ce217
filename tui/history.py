"""What the screen remembers of the snapshots it has seen; every series is bounded."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from clairvoyant_cli.state.snapshot import FinishedRequest, Snapshot
from tui.hardware.reading import Hardware
from tui.styled_text import Line

SAMPLES = 600
"""One sample a second: ten minutes."""

POINTS = 600
"""Finished requests kept for the plots."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The daemon at one second. `at` is its uptime: the wall clock may be set."""

    at: float
    waiting: int
    running: int
    completed: int
    tokens_per_s: float


class History:
    """Series by time, filled from snapshots and readings."""

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque(maxlen=SAMPLES)
        self.finished: deque[FinishedRequest] = deque(maxlen=POINTS)
        self.gpu: dict[int, deque[float]] = {}
        self.cpu: deque[float] = deque(maxlen=SAMPLES)
        self.tau_fired_at: float | None = None
        self.ended = 0
        self.pictures: dict[str, tuple[object, list[Line]]] = {}
        self._known: deque[str] = deque(maxlen=POINTS * 2)
        self._known_set: set[str] = set()
        self._recent: tuple[FinishedRequest, ...] = ()
        self._firings: int | None = None
        self._pid = 0

    def take(self, snapshot: Snapshot) -> None:
        """Note a snapshot. A daemon that has been restarted starts a new history."""
        if snapshot.pid != self._pid:
            self._forget(snapshot.pid)
        self._note_firings(snapshot)
        self._note_finished(snapshot)
        if not self.samples or int(snapshot.uptime_s) != int(self.samples[-1].at):
            self.samples.append(
                Sample(
                    at=snapshot.uptime_s,
                    waiting=snapshot.waits,
                    running=len(snapshot.running),
                    completed=snapshot.counters.completed,
                    tokens_per_s=sum(job.tokens_per_s or 0.0 for job in snapshot.running),
                )
            )

    def take_hardware(self, hardware: Hardware) -> None:
        """Note a reading of the machine."""
        if hardware.host.cpu is not None:
            self.cpu.append(hardware.host.cpu)
        for gpu in hardware.gpus:
            if gpu.utilisation is not None:
                self.gpu.setdefault(gpu.index, deque(maxlen=SAMPLES)).append(gpu.utilisation)

    def until(self, snapshot: Snapshot) -> "History":
        """Return what there was to remember when a snapshot was taken, as far as it is known."""
        then = History()
        then.take(snapshot)
        known = {each.id: each for each in (*self.finished, *snapshot.recent)}
        ended = (each for each in known.values() if each.finished_at <= snapshot.taken_at)
        then.finished = deque(sorted(ended, key=lambda each: each.finished_at), maxlen=POINTS)
        if snapshot.pid == self._pid:
            seen = [each for each in self.samples if each.at < snapshot.uptime_s]
            then.samples = deque([*seen, *then.samples], maxlen=SAMPLES)
        return then

    def per_minute(self) -> float | None:
        """Requests completed per minute over the last minute; None before there are ten seconds of it."""
        if not self.samples:
            return None
        last = self.samples[-1]
        first = next(sample for sample in self.samples if sample.at >= last.at - 60.0)
        span_s = last.at - first.at
        return (last.completed - first.completed) / span_s * 60.0 if span_s >= 10.0 else None

    def picture(self, name: str, of: object, draw: Callable[[], list[Line]]) -> list[Line]:
        """Return a picture, drawn anew only when what it is `of` is not what it was of before."""
        kept = self.pictures.get(name)
        if kept is None or kept[0] != of:
            kept = self.pictures[name] = of, draw()
        return kept[1]

    def _forget(self, pid: int) -> None:
        self.samples.clear()
        self.pictures.clear()
        self.finished.clear()
        self._known.clear()
        self._known_set.clear()
        self._recent = ()
        self._firings = None
        self.tau_fired_at = None
        self._pid = pid

    def _note_firings(self, snapshot: Snapshot) -> None:
        total = snapshot.tau.firings_total
        if self._firings is not None and total > self._firings:
            self.tau_fired_at = snapshot.taken_at
        self._firings = total

    def _note_finished(self, snapshot: Snapshot) -> None:
        if snapshot.recent is self._recent:
            return
        self._recent = snapshot.recent
        for request in sorted(snapshot.recent, key=lambda request: request.finished_at):
            if request.id in self._known_set:
                continue
            if len(self._known) == self._known.maxlen:
                self._known_set.discard(self._known[0])
            self._known.append(request.id)
            self._known_set.add(request.id)
            self.finished.append(request)
            self.ended += 1
