"""How often waits and running times fall into the ranges shown, over simulated and recorded loads.

python -m tests.perf.perf_forecast [--seed 101] [--requests 1000] [--trace FILE]...
"""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import chain, product
from pathlib import Path

import numpy as np
from clairvoyant_lab.simulator.traces import read_history
from clairvoyant_lab.simulator.workload import Predictions

from tests.fakes.watched_waits import Q90, TOKENS_PER_S, Judged, WatchedWaits, of_workload, watched
from tests.perf.harness import options

POLICIES = ("boost", "sjf", "fcfs")
LOADS = ("right", "wrong", "bursts", "classes")
UTILISATIONS = (0.6, 0.8, 0.95)
SLOTS = ("1 slot", "4 slots")
Case = tuple[str, str, float, str]


def of_trace(policy: str, path: str, rho: float, slots: int, seed: int, requests: int) -> WatchedWaits:
    """Return a run of recorded arrivals and lengths, at another speed, with guesses of the lengths."""
    workload = read_history(Path(path), limit=requests).workload
    guessed = np.maximum(
        workload.tokens * np.exp(np.random.default_rng(seed).normal(0.0, 0.7, len(workload))), 1.0
    )
    q90, read_s = guessed * np.exp(Q90 * 0.7), workload.service_s - workload.tokens / TOKENS_PER_S
    predictions = Predictions(
        np.clip(guessed / 2000.0, 0.0, 1.0),
        read_s + guessed / TOKENS_PER_S,
        read_s + q90 / TOKENS_PER_S,
        guessed,
        q90,
    )
    workload = replace(workload, arrival_s=workload.arrival_s * (workload.offered_load / slots / rho))
    return of_workload(policy, workload, predictions, slots, seed, 2.0)


def judge(case: Case, seed: int, requests: int) -> tuple[Judged, Judged]:
    """Return how the forecasts of one run came true."""
    policy, load, rho, slots = *case[:3], int(case[3][0])
    run = (watched if load in LOADS else of_trace)(policy, load, rho, slots, seed, requests)
    return run.judged()


def lines(found: dict[Case, Judged]) -> Iterator[str]:
    """Yield a table: the mean over the runs of each group."""
    yield "| runs | covered | of requests | least, most | below, above | high/low | within 30 % | before |"
    yield "|---|---|---|---|---|---|---|---|"
    for name in ("all", *dict.fromkeys(chain.from_iterable(zip(*found, strict=True)))):
        of = [each for case, each in found.items() if (name == "all" or name in case) and each.rows >= 100]
        mean = {
            key: float(np.mean([getattr(each, key) for each in of])) for key in Judged.__dataclass_fields__
        }
        least, most = min(each.covered for each in of), max(each.covered for each in of)
        yield (
            f"| {Path(str(name)).name} | {mean['covered']:.0%} | {mean['covered_starts']:.0%} "
            f"| {least:.0%}, {most:.0%} "
            f"| {mean['below']:.0%}, {mean['above']:.0%} | {mean['ratio']:.1f} | {mean['near']:.0%} "
            f"| {mean['near_plain']:.0%} |"
        )


def main() -> None:
    given = options(__doc__, seed=101, requests=1000, trace=list[str]())
    cases = list(product(POLICIES, (*LOADS, *given.trace), UTILISATIONS, SLOTS))
    with ProcessPoolExecutor(2) as pool:
        judged = list(pool.map(judge, cases, *([each] * len(cases) for each in (given.seed, given.requests))))
    for title, n in (("Waits", 0), ("Running times", 1)):
        table = {case: each[n] for case, each in zip(cases, judged, strict=True)}
        print(f"\n{title}\n", *lines(table), sep="\n")
    ahead = np.mean([each[0].ahead for each in judged if each[0].rows >= 100])
    print(f"\nForecast of requests before over the real number: {ahead:.2f}")


if __name__ == "__main__":
    main()
