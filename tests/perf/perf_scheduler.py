"""What push, pop, cancel and promote cost with 100,000 jobs queued, and a push into a queue that is full:

python tests/perf/perf_scheduler.py [POLICY...]
"""

import random
import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from time import perf_counter

from clairvoyant_cli.scheduler.job import Job, QueueFullError
from clairvoyant_cli.scheduler.policy import POLICIES, Policy
from clairvoyant_cli.scheduler.queue import Scheduler

QUEUED = 100_000
USUALLY_QUEUED = 1_024
SAMPLES = 5_000


def job(number: int, rng: random.Random) -> Job:
    """Return a job whose arrival is its number and whose costs are random."""
    cost_s = rng.lognormvariate(1.0, 1.0)
    return Job(
        f"j{number}", float(number), rng.random(), cost_s, 2 * cost_s, 50 * cost_s, client=f"c{number % 50}"
    )


def loaded(policy: Policy, rng: random.Random, queued: int = QUEUED, capacity: int = 2 * QUEUED) -> Scheduler:
    """Return a scheduler with so many jobs waiting."""
    scheduler = Scheduler(policy, workers={"a": 1}, tau_s=1e9, capacity=capacity)
    for number in range(queued):
        scheduler.submit(job(number, rng), float(number))
    return scheduler


def median_us(act: Callable[[str], object], ids: Sequence[str]) -> float:
    """Return the median microseconds of one act."""
    times = []
    for job_id in ids:
        before = perf_counter()
        act(job_id)
        times.append(perf_counter() - before)
    return statistics.median(times) * 1e6


def measure(policy: Policy) -> dict[str, float]:
    """Return the median microseconds of each operation under one policy."""
    rng = random.Random(1)
    scheduler = loaded(policy, rng)
    fresh = {f"j{n}": job(n, rng) for n in range(QUEUED, QUEUED + SAMPLES)}
    now = float(QUEUED)
    push = median_us(lambda job_id: scheduler.submit(fresh[job_id], now), list(fresh))
    ids = [f"j{n}" for n in rng.sample(range(QUEUED), 2 * SAMPLES)]
    cancel = median_us(lambda job_id: scheduler.cancel(job_id, now), ids[:SAMPLES])
    promote = median_us(lambda job_id: scheduler.promote(job_id, now), ids[SAMPLES:])

    def pop(_: str) -> None:
        dispatch = scheduler.next(now)
        assert dispatch is not None
        scheduler.finish(dispatch.job.id, now)

    for _ in range(SAMPLES):
        pop("")  # the promoted ones
    return {"push": push, "pop+finish": median_us(pop, ids), "cancel": cancel, "promote": promote}


def full(policy: Policy, queued: int) -> dict[str, float]:
    """Return the median and the 99th percentile in microseconds of a push into a full queue: by clients that
    have nothing in it, and by those that fill it.
    """
    rng = random.Random(1)
    figures = {}
    for who, client_of in (("new", "n{}".format), ("old", lambda n: f"c{n % 50}")):
        scheduler = loaded(policy, rng, queued, queued)
        times = []
        for number in range(queued, queued + SAMPLES):
            fresh = replace(job(number, rng), client=client_of(number))
            before = perf_counter()
            with suppress(QueueFullError):
                scheduler.submit(fresh, float(number))
            times.append((perf_counter() - before) * 1e6)
        figures[f"{who} client"] = statistics.median(times)
        figures[f"{who} P99"] = statistics.quantiles(times, n=100)[98]
    return figures


def cutting(policy: Policy) -> dict[str, float]:
    """Return the median microseconds of asking what to cut for whom while so many wait."""
    figures = {}
    for queued in (1_000, QUEUED):
        rng = random.Random(1)
        scheduler = loaded(policy, rng, queued)
        dispatch = scheduler.next(0.0)
        assert dispatch is not None
        scheduler.progress(dispatch.job.id, 2.0, 0.01)
        asked = median_us(lambda _: scheduler.preemptions(0.0), [""] * SAMPLES)  # noqa: B023
        figures[f"preemptions, {queued:,} waiting"] = asked
    return figures


def shown(name: str, figures: dict[str, float]) -> str:
    """Return figures as a line."""
    return f"{name:20s}" + "".join(f"{what} {us:6.1f} us   " for what, us in figures.items()) + "\n"


def main() -> None:
    """Print a line for each policy."""
    for name in sys.argv[1:] or POLICIES:
        sys.stdout.write(shown(name, measure(POLICIES[name])))
        if POLICIES[name].interrupts:
            sys.stdout.write(shown(f"  {name}", cutting(POLICIES[name])))
        for queued in (USUALLY_QUEUED, QUEUED):
            sys.stdout.write(shown(f"  full at {queued:,}", full(POLICIES[name], queued)))


if __name__ == "__main__":
    main()
