"""What a request's number is worth in an engine that orders by it, simulated: python -m tests.perf.perf_due.

A utilisation of 0.8, one sequence at a time and eight; answers of two kinds, or log-normal; predictions off
by a log-normal factor of 0.6. The logarithm of the cost (scheduler/due.py) beside a straight line, cost alone
and arrival order, which the changes in per cent are against.
"""

from collections.abc import Callable
from functools import partial
from math import inf, log
from random import Random

from clairvoyant_cli.scheduler.engine_priority import due_s
from profiles.percentiles import percentile
from tests.fakes.priority_engine import Arrival, ends_of

UTILISATION = 0.8
JOBS = 6000
SEEDS = range(12)
NOISE = 0.6


def two_kinds(random: Random) -> float:
    """Return the seconds of a short or a long answer, as like as not: 3 or 9 or near."""
    return (
        random.lognormvariate(log(3.0), 0.4)
        if random.random() < 0.5
        else random.lognormvariate(log(9.0), 0.3)
    )


def log_normal(random: Random) -> float:
    """Return the seconds of an answer: 4 at the median, a tenth beyond 14, 60 at most."""
    return min(60.0, random.lognormvariate(log(4.0), 1.0))


def arrivals_of(seed: int, service_s: Callable[[Random], float], sequences: int) -> list[Arrival]:
    """Return what comes, at random."""
    random = Random(seed)
    services = [service_s(random) for _ in range(JOBS)]
    rate, at_s = UTILISATION * sequences * JOBS / sum(services), 0.0
    arrivals = []
    for service in services:
        at_s += random.expovariate(rate)
        arrivals.append(Arrival(at_s, service, service * random.lognormvariate(0.0, NOISE)))
    return arrivals


def measured(arrivals: list[Arrival], number: Callable[[Arrival], float], sequences: int) -> list[float]:
    """Return P50 and P95 of the shortest third, P95 of the longest, and the longest of all; seconds."""
    took = [end - each.at_s for each, end in zip(arrivals, ends_of(arrivals, number, sequences), strict=True)]
    by_size = [took for _, took in sorted(zip((each.service_s for each in arrivals), took, strict=True))]
    short, long = sorted(by_size[: JOBS // 3]), sorted(by_size[-JOBS // 3 :])
    return [percentile(short, 0.5), percentile(short, 0.95), percentile(long, 0.95), max(took)]


def linear(weight: float, arrival: Arrival) -> float:
    """Order by arrival plus weighted cost."""
    return arrival.at_s + weight * arrival.cost_s


def logarithmic(mean_s: float, window_s: float | None, arrival: Arrival) -> float:
    """Order as the proxy has it."""
    return due_s(arrival.at_s, arrival.cost_s, mean_s, window_s)


def main() -> None:
    """Print a table for each mix and each number of sequences."""
    for mix in (two_kinds, log_normal):
        for sequences in (1, 8):
            workloads = [arrivals_of(seed, mix, sequences) for seed in SEEDS]
            mean_s = sum(each.service_s for each in workloads[0]) / JOBS
            orders: dict[str, Callable[[Arrival], float]] = {
                "arrival": lambda each: each.at_s,
                "due": partial(logarithmic, mean_s, None),
                "due, no window": partial(logarithmic, mean_s, inf),
                "arrival + 2 cost": partial(linear, 2.0),
                "arrival + 5 cost": partial(linear, 5.0),
                "cost alone": lambda each: each.cost_s,
            }
            plain: list[float] = []
            print(f"{mix.__name__}, {sequences} at a time, mean answer {mean_s:.1f} s")
            for name, number in orders.items():
                runs = [measured(workload, number, sequences) for workload in workloads]
                means = [sum(each) / len(runs) for each in zip(*runs, strict=True)]
                plain = plain or means
                told = [
                    f"{value:6.1f} s {value / old - 1:+5.0%}" for value, old in zip(means, plain, strict=True)
                ]
                print(
                    f"  {name:17} short P50 {told[0]}, P95 {told[1]}; long P95 {told[2]}; longest {told[3]}"
                )


if __name__ == "__main__":
    main()
