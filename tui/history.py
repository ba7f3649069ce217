"""Keeps the series that the plots draw; each is bounded."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from clairvoyant_cli.state.snapshot import FinishedRequest, Snapshot
from tui.hardware.reading import Hardware
from tui.styled_text import Line

SAMPLES = 600
"""One sample a second: ten minutes."""

POINTS = 600
"""Ended requests kept for the plots."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The daemon at one second. `at` is its uptime: the wall clock may be set."""

    at: float
    waiting: int
    completed: int


class History:
    """Series by time, filled from states and readings."""

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque(maxlen=SAMPLES)
        self.finished: deque[FinishedRequest] = deque(maxlen=POINTS)
        self.gpu: dict[int, deque[float]] = {}
        self.cpu: deque[float] = deque(maxlen=SAMPLES)
        self.tau_fired_at: float | None = None
        self.ended = 0
        self.pictures: dict[str, tuple[object, list[Line]]] = {}
        self._known: dict[str, None] = {}
        self._recent: tuple[FinishedRequest, ...] = ()
        self._firings: int | None = None
        self._pid = 0

    def take(self, snapshot: Snapshot) -> None:
        """Add a state. A restarted daemon begins a new history."""
        if snapshot.pid != self._pid:
            gpu, cpu = self.gpu, self.cpu
            self.__init__()  # type: ignore[misc]  # all but the machine begins anew
            self._pid, self.gpu, self.cpu = snapshot.pid, gpu, cpu
        total = snapshot.tau.firings_total
        if self._firings is not None and total > self._firings:
            self.tau_fired_at = snapshot.taken_at
        self._firings = total
        self._take_finished(snapshot.recent)
        if not self.samples or int(snapshot.uptime_s) != int(self.samples[-1].at):
            self.samples.append(Sample(snapshot.uptime_s, snapshot.waits, snapshot.counters.completed))

    def take_hardware(self, hardware: Hardware) -> None:
        """Add a reading of the machine."""
        if hardware.host.cpu is not None:
            self.cpu.append(hardware.host.cpu)
        for gpu in hardware.gpus:
            if gpu.utilisation is not None:
                self.gpu.setdefault(gpu.index, deque(maxlen=SAMPLES)).append(gpu.utilisation)

    def until(self, snapshot: Snapshot) -> "History":
        """Return the history as it was when a state was taken, as far as it is known."""
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
        """Return the requests completed per minute over the last minute; None in the first ten seconds."""
        if not self.samples:
            return None
        last = self.samples[-1]
        first = next(sample for sample in self.samples if sample.at >= last.at - 60.0)
        span_s = last.at - first.at
        return (last.completed - first.completed) / span_s * 60.0 if span_s >= 10.0 else None

    def picture(self, name: str, of: object, draw: Callable[[], list[Line]]) -> list[Line]:
        """Return a picture; it is drawn again only if what it is `of` has changed."""
        kept = self.pictures.get(name)
        if kept is None or kept[0] != of:
            kept = self.pictures[name] = of, draw()
        return kept[1]

    def _take_finished(self, recent: tuple[FinishedRequest, ...]) -> None:
        if recent is self._recent:
            return
        self._recent = recent
        for request in sorted(recent, key=lambda request: request.finished_at):
            if request.id not in self._known:
                self._known[request.id] = None
                if len(self._known) > 2 * POINTS:
                    del self._known[next(iter(self._known))]
                self.finished.append(request)
                self.ended += 1
