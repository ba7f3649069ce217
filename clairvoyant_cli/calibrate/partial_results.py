"""What a calibration has measured so far: kept where it does not end, and taken up by the next.

Rule 1: only whole measurements are taken up, and only of the same server and model, asked the same questions.
"""

import time
from dataclasses import dataclass, field, replace
from typing import Protocol

from profiles.records import Band, Sample, Served

MAX_AGE_S = 86_400.0
"""What is older says little of the server as it is now."""


@dataclass(frozen=True, slots=True)
class Service:
    """One service time in seconds. It is more than the sample's where the answer had to be cut off for
    want of time: then it holds `assumed_s`, what the rest would take up to its cap, too.
    """

    sample: Sample
    seconds: float
    short: bool
    assumed_s: float = 0.0


@dataclass(slots=True)
class Measured:
    """What is known so far of a server, asked in the order of `seed`.

    `begun_at` is in epoch seconds, `took_s` what earlier runs spent; `bands` are by the length of prompt that
    was wanted; `queued` are the samples of a queue that was kept full with `in_flight` requests.
    """

    served: Served
    seed: int
    begun_at: float = field(default_factory=time.time)
    took_s: float = 0.0
    load_s: float | None = None
    services: list[Service] = field(default_factory=list)
    decode_rates: list[float] = field(default_factory=list)
    bands: dict[int, Band] = field(default_factory=dict)
    in_flight: int = 0
    queued: list[Sample] = field(default_factory=list)

    @property
    def samples(self) -> list[Sample]:
        """All answers that were timed."""
        return [service.sample for service in self.services] + self.queued

    @property
    def counted(self) -> list[Sample]:
        """The samples of the full queue that count."""
        return [sample for sample in self.queued if sample.counted]

    def holds_for(self, served: Served, seed: int, now_s: float) -> bool:
        """Whether a run on this server, with questions in this order, can go on from here."""
        return (
            replace(self.served, url="") == replace(served, url="")
            and self.seed == seed
            and 0.0 <= now_s - self.begun_at <= MAX_AGE_S
        )

    def service_of(self, question: str, *, whole: bool) -> Service | None:
        """Return how long a question took, None if it was not asked; a `whole` answer was not cut off."""
        found = (each for each in self.services if each.sample.question == question)
        return next((each for each in found if not (whole and each.assumed_s)), None)

    def described(self) -> str:
        """Say in words what there is, "" if nothing."""
        parts = [(len(self.services), "answers alone"), (len(self.bands), "lengths of prompt")]
        parts.append((len(self.counted), "answers in the queue"))
        return ", ".join(f"{count} {what}" for count, what in parts if count)


class Shelf(Protocol):
    """Where what was measured lies between two runs."""

    def take_up(self, served: Served, seed: int) -> Measured:
        """Return what an earlier run that did not end has measured of a server; nothing if there was none."""
        ...

    def keep(self, measured: Measured) -> None:
        """Keep what was measured so far, in place of what was kept before."""
        ...


class NoShelf:
    """Keeps nothing."""

    def take_up(self, served: Served, seed: int) -> Measured:
        """Begin anew."""
        return Measured(served, seed)

    def keep(self, measured: Measured) -> None:
        """Let it go."""
