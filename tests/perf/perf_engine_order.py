"""What the order by due time gains in an engine, simulated: how strongly should a predicted length count?

    python -m tests.perf.perf_engine_order FILE...

FILEs are prompts, JSONL: {"prompt": text, "output_tokens": answer length}. Half of the requests have answers
below 200 tokens. Prints, for each factor s (`MEANS_A_FACTOR_E`) and for shortest predicted first, the
geometric mean over files and seeds of the change against the order of arrival.
"""

import heapq
import json
import sys
from collections.abc import Callable, Sequence
from math import exp, log
from pathlib import Path
from random import Random
from statistics import fmean
from typing import NamedTuple

from clairvoyant_cli.scheduler import engine_priority
from predictor.loading import load_model
from predictor.record import PromptView
from tests.perf.harness import options, quantiles

SHORT_TOKENS = 200
LOADS = ((0.8, 1, 60), (1.2, 8, 100))
"""Utilisation, sequences at once, and requests."""
SEEDS = 30
FACTORS = (4.0, 8.0, 16.0)
COLUMNS = ("short P50", "short P95", "long P50", "long P95", "mean")


class Request(NamedTuple):
    """A request: arrival, predicted and true length, in units of a token's time."""

    arrival: float
    predicted: float
    tokens: float


Order = Callable[[Request], float]


def requests(
    rows: Sequence[tuple[float, float]], rho: float, slots: int, count: int, seed: int
) -> list[Request]:
    """Draw requests of which half have short answers, with Poisson arrivals."""
    rng = Random(seed)
    by_length = [[row for row in rows if (row[1] < SHORT_TOKENS) is short] for short in (True, False)]
    drawn = [rng.choice(by_length[rng.random() < 0.5]) for _ in range(count)]
    mean, at, found = fmean(tokens for _, tokens in drawn), 0.0, []
    for predicted, tokens in drawn:
        at += rng.expovariate(rho * slots / mean)
        found.append(Request(at, predicted, tokens))
    return found


def sojourns(asked: Sequence[Request], slots: int, order: Order) -> list[float]:
    """Return the sojourn times of requests that `slots` sequences start in an order, without preemption."""
    free, waiting, ended, come = [0.0] * slots, list[tuple[float, int]](), [0.0] * len(asked), 0
    while come < len(asked) or waiting:
        now = free[0] if waiting else max(free[0], asked[come].arrival)
        while come < len(asked) and asked[come].arrival <= now:
            heapq.heappush(waiting, (order(asked[come]), come))
            come += 1
        _, first = heapq.heappop(waiting)
        heapq.heapreplace(free, now + asked[first].tokens)
        ended[first] = now + asked[first].tokens
    return [end - request.arrival for request, end in zip(asked, ended, strict=True)]


def figures(asked: Sequence[Request], took: Sequence[float]) -> list[float]:
    parts = [
        [each for request, each in zip(asked, took, strict=True) if (request.tokens < SHORT_TOKENS) is short]
        for short in (True, False)
    ]
    return [*quantiles(parts[0], 0.5, 0.95), *quantiles(parts[1], 0.5, 0.95), fmean(took)]


def orders(asked: Sequence[Request]) -> dict[str, Order]:
    mean, middle = fmean(each.predicted for each in asked), exp(fmean(log(each.predicted) for each in asked))

    def due(factor: float) -> Order:
        def at(request: Request) -> float:
            engine_priority.MEANS_A_FACTOR_E = factor
            return engine_priority.due_s(request.arrival, request.predicted, mean, None, middle)

        return at

    return {f"s = {each:.0f} m": due(each) for each in FACTORS} | {
        "shortest predicted": lambda request: request.predicted
    }


def main() -> int:
    given, model = options(__doc__, "files+"), load_model()
    changes: dict[tuple[tuple[float, int, int], str], list[list[float]]] = {}
    for name in given.files:
        lines = map(json.loads, Path(name).read_text().splitlines())
        rows = [
            (model.predict(PromptView(line["prompt"])).expected_tokens, line["output_tokens"])
            for line in lines
        ]
        for load in LOADS:
            for seed in range(SEEDS):
                asked = requests(rows, *load, seed)
                usual = figures(asked, sojourns(asked, load[1], lambda request: request.arrival))
                for order, key in orders(asked).items():
                    got = figures(asked, sojourns(asked, load[1], key))
                    ratios = [log(ours / theirs) for ours, theirs in zip(got, usual, strict=True)]
                    changes.setdefault((load, order), []).append(ratios)
    for (load, order), found in changes.items():
        means = [exp(fmean(column)) - 1.0 for column in zip(*found, strict=True)]
        told = ", ".join(f"{name} {mean:+.0%}" for name, mean in zip(COLUMNS, means, strict=True))
        print(f"rho {load[0]}, {load[1]} at once, {order}: {told}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
