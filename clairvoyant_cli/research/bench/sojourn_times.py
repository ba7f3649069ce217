"""Sojourn times, from sending a question to the last byte of its answer, summed up by answer length."""

from collections.abc import Iterable
from dataclasses import dataclass

from clairvoyant_cli.research.bench.load import Call
from predictor.record import LengthClass
from profiles.percentiles import percentile


@dataclass(frozen=True, slots=True)
class Sojourn:
    """Mean, median and 95th percentile of `n` sojourn times, in seconds; zeros where there are none."""

    n: int
    mean_s: float
    p50_s: float
    p95_s: float


def sojourn_of(times_s: Iterable[float]) -> Sojourn:
    """Sum up sojourn times."""
    ordered = sorted(times_s)
    if not ordered:
        return Sojourn(0, 0.0, 0.0, 0.0)
    mean_s = sum(ordered) / len(ordered)
    return Sojourn(len(ordered), mean_s, percentile(ordered, 0.5), percentile(ordered, 0.95))


def by_class(calls: Iterable[Call]) -> dict[str, Sojourn]:
    """Sum up the answered calls: those of each length class that occurs, shortest first, then "all"."""
    times: dict[str, list[float]] = {length_class: [] for length_class in LengthClass}
    for call in calls:
        if call.sojourn_s is not None:
            times[call.question.length_class].append(call.sojourn_s)
    everything = [time_s for of_class in times.values() for time_s in of_class]
    return {name: sojourn_of(of) for name, of in (times | {"all": everything}).items() if of}


def change(before_s: float, after_s: float) -> float | None:
    """Return the relative change, -0.5 for half the time; None where there was none before."""
    return after_s / before_s - 1 if before_s > 0 else None
