"""What the order by due time gains in an engine, simulated: how strongly should a predicted length count?

    python -m tests.perf.perf_engine_order FILE...

FILEs are prompts, JSONL: {"prompt": text, "output_tokens": answer length}. Half of the requests have answers
below 200 tokens. Prints, for each factor s (`MEANS_A_FACTOR_E`) and for shortest predicted first, the
geometric mean over files and seeds of the change against the order of arrival.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
from clairvoyant_lab.simulator.engine import SlotSimulation
from clairvoyant_lab.simulator.policies import joined
from clairvoyant_lab.simulator.workload import Floats, Predictions, Workload

from clairvoyant_cli.scheduler import engine_priority
from clairvoyant_cli.scheduler.job import Job
from clairvoyant_cli.scheduler.policy import POLICIES
from clairvoyant_cli.scheduler.queue import Scheduler
from predictor.loading import load_model
from predictor.record import PromptView
from tests.perf.harness import options, quantiles

SHORT_TOKENS = 200
LOADS = ((0.8, 1, 60), (1.2, 8, 100))
"""Utilisation, sequences at once, and requests."""
SEEDS = 30
FACTORS = (4.0, 8.0, 16.0)
Rows = Sequence[tuple[float, float]]  # predicted and true tokens
COLUMNS = ("short P50", "short P95", "long P50", "long P95", "mean")


Order = Callable[[Job], float]


def requests(rows: Rows, rho: float, slots: int, count: int, seed: int) -> tuple[Workload, Predictions]:
    """Draw requests of which half have short answers, with Poisson arrivals. A token takes a second."""
    rng = Random(seed)
    by_length = [[row for row in rows if (row[1] < SHORT_TOKENS) is short] for short in (True, False)]
    drawn = np.array([rng.choice(by_length[rng.random() < 0.5]) for _ in range(count)])
    predicted, tokens = drawn[:, 0], drawn[:, 1]
    arrivals = np.cumsum([rng.expovariate(rho * slots / tokens.mean()) for _ in range(count)])
    long = (tokens >= SHORT_TOKENS).astype(int)
    return Workload(arrivals, tokens, long), Predictions(predicted, predicted, predicted, predicted)


def figures(asked: Workload, predictions: Predictions, slots: int, order: Order) -> Floats:
    """Return the figures of `COLUMNS` where `slots` sequences start requests in an order."""
    policy = replace(POLICIES["fcfs"], key=order)
    took = SlotSimulation(Scheduler(policy, servers={"engine": slots}), asked, predictions).run().sojourn_s
    parts = [quantiles(took[asked.kind == kind].tolist(), 0.5, 0.95) for kind in (0, 1)]
    return np.array([*parts[0], *parts[1], took.mean()])


def orders(predicted: Floats) -> dict[str, Order]:
    mean, middle = predicted.mean(), np.exp(np.log(predicted).mean())

    def due(factor: float) -> Order:
        def at(job: Job) -> float:
            engine_priority.MEANS_A_FACTOR_E = factor
            return engine_priority.due_s(job.arrival_s, job.cost_s, mean, None, middle)

        return at

    return {f"s = {each:.0f} m": due(each) for each in FACTORS} | {
        "shortest predicted": lambda job: job.cost_s
    }


def main() -> int:
    given, model = options(__doc__, "files+"), load_model()
    changes: dict[tuple[tuple[float, int, int], str], list[Floats]] = {}
    for name in given.files:
        lines = map(json.loads, Path(name).read_text().splitlines())
        rows = [
            (model.predict(PromptView(line["prompt"])).expected_tokens, float(line["output_tokens"]))
            for line in lines
        ]
        for load in LOADS:
            for seed in range(SEEDS):
                asked, predictions = requests(rows, *load, seed)
                usual = figures(asked, predictions, load[1], joined)
                for order, key in orders(predictions.cost_s).items():
                    ratios = np.log(figures(asked, predictions, load[1], key) / usual)
                    changes.setdefault((load, order), []).append(ratios)
    for (load, order), found in changes.items():
        means = np.exp(np.mean(found, axis=0)) - 1.0
        told = ", ".join(f"{name} {mean:+.0%}" for name, mean in zip(COLUMNS, means, strict=True))
        print(f"rho {load[0]}, {load[1]} at once, {order}: {told}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
