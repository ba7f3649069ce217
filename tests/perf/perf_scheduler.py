"""What push, pop, cancel and promote cost with 100,000 jobs queued: python tests/perf/perf_scheduler.py."""

import random
import statistics
import sys
from collections.abc import Callable, Sequence
from time import perf_counter

from clairvoyant_cli.scheduler.job import Job
from clairvoyant_cli.scheduler.policy import POLICIES, Policy
from clairvoyant_cli.scheduler.queue import Scheduler

QUEUED = 100_000
SAMPLES = 5_000


def job(number: int, rng: random.Random) -> Job:
    """Return a job whose arrival is its number and whose costs are random."""
    cost_s = rng.lognormvariate(1.0, 1.0)
    return Job(
        f"j{number}", float(number), rng.random(), cost_s, 2 * cost_s, 50 * cost_s, client=f"c{number % 50}"
    )


def loaded(policy: Policy, rng: random.Random) -> Scheduler:
    """Return a scheduler with QUEUED jobs waiting."""
    scheduler = Scheduler(policy, workers={"a": 1}, tau_s=1e9, capacity=2 * QUEUED)
    for number in range(QUEUED):
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


def main() -> None:
    """Print a line for each policy."""
    for name in sys.argv[1:] or POLICIES:
        figures = measure(POLICIES[name])
        sys.stdout.write(
            f"{name:14s}" + "".join(f"{what} {us:6.1f} us   " for what, us in figures.items()) + "\n"
        )


if __name__ == "__main__":
    main()
