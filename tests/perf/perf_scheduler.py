"""What push, pop, cancel and promote cost with 100,000 jobs queued, a push into a queue that is full, and a
decision with 64 workers and 10,000 jobs that wait:

python tests/perf/perf_scheduler.py [POLICY...]
"""

import random
import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import perf_counter, thread_time

from clairvoyant_cli.scheduler.chain import Chain
from clairvoyant_cli.scheduler.job import Job, QueueFullError
from clairvoyant_cli.scheduler.policy import POLICIES, Policy
from clairvoyant_cli.scheduler.queue import Scheduler

QUEUED = 100_000
USUALLY_QUEUED = 1_024
SAMPLES = 5_000
WORKERS = 64
PLACED = 10_000


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
    """Return the median microseconds of choosing a request to cut, with a queue of this length."""
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


@dataclass(frozen=True, slots=True)
class Pace:
    """A worker's speed, in tokens a second."""

    prefill: float
    decode: float

    def seconds(self, prompt_tokens: float, tokens: float) -> float:
        """Return how long so many tokens take."""
        return prompt_tokens / self.prefill + tokens / self.decode


def placing(policy: Policy) -> dict[str, float]:
    """Return the median and the 99th percentile in microseconds of a decision for 64 workers, as a slot falls
    free while 10,000 wait: workers all alike; four speeds; and these with eight models, two of which each has
    loaded, and conversations.
    """
    figures = {}
    for kind in ("alike", "unequal", "models and caches"):
        rng = random.Random(1)
        models = [f"m{n}" for n in range(8)] if kind == "models and caches" else [""]
        load_s = dict.fromkeys(models, 8.0) if len(models) > 1 else {}
        workers = [f"w{n}" for n in range(WORKERS)]
        scheduler = Scheduler(
            policy, workers=dict.fromkeys(workers, 1), tau_s=1e9, capacity=1 << 30, load_s=load_s
        )
        for n, worker in enumerate(workers):
            pace = 2.0 ** (n % 4) if kind != "alike" else 8.0
            scheduler.set_speed(worker, Pace(100.0 * pace, 6.25 * pace))
            scheduler.residency.set(worker, frozenset((models[n % len(models)], models[-n % len(models)])))
        for number in range(PLACED + SAMPLES):
            turns = range(1, 5)
            chain = Chain(tuple(number % 500 * 8 + n for n in turns), tuple(800 * n for n in turns))
            fresh = replace(
                job(number, rng), arrival_s=0.0, prompt_tokens=800.0, affinity=models[number % len(models)]
            )
            scheduler.submit(replace(fresh, prefix=chain) if len(models) > 1 else fresh, 0.0)
        now, times = 0.0, []
        while scheduler.next(now) is not None:
            pass
        while len(scheduler) > PLACED:
            ends = [(e.started_s + e.expected_s, job_id) for job_id, e in scheduler.running.items()]
            now, first = min(ends)
            scheduler.finish(first, now)
            before = thread_time()  # others on this machine are not counted
            scheduler.next(now)
            times.append((thread_time() - before) * 1e6)
        figures[kind] = statistics.median(times)
        figures[f"{kind}, P99"] = statistics.quantiles(times, n=100)[98]
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
        sys.stdout.write(shown(f"  {WORKERS} workers", placing(POLICIES[name])))


if __name__ == "__main__":
    main()
