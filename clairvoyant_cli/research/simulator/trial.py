"""Policies side by side on the same workloads, seed by seed: what every scenario is made of."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from clairvoyant_cli.confidence import change_of, mean_of, percentile
from clairvoyant_cli.research.simulator.engine import Preemption, Run, SlotSimulation, Tick
from clairvoyant_cli.research.simulator.predictions import Predictions, noisy_class, oracle
from clairvoyant_cli.research.simulator.report import Cell
from clairvoyant_cli.research.simulator.workload import LONG, SHORT, TwoNormals, Workload
from clairvoyant_cli.scheduler.policy import POLICIES, Policy
from clairvoyant_cli.scheduler.queue import Scheduler

Forecaster = Callable[[np.random.Generator, Workload], Predictions]
"""Makes a prediction of a workload, with a generator of its own."""

Figure = Callable[[Run], float]
"""One number of a run."""

UNBOUNDED = 1 << 60
"""A queue that never refuses: losses would hide in the averages."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may turn: seeds and requests (None: the scenario's own), and who hears of progress."""

    seeds: int | None = None
    requests: int | None = None
    tick: Tick | None = None

    def report(self, done: int) -> None:
        """Tell of progress, if anybody listens."""
        if self.tick is not None:
            self.tick(done)


@dataclass(frozen=True, slots=True)
class Variant:
    """One line of a table: a policy with its tau, fed by a foresight."""

    name: str
    policy: Policy
    tau_s: float | None = None
    forecaster: Forecaster = lambda _, workload: oracle(workload)


Samples = Mapping[str, Mapping[str, Sequence[float]]]
"""variant -> figure -> one number a seed."""


def classes(accuracy: float, service: TwoNormals) -> Forecaster:
    """Return a foresight that tells short from long with this accuracy and nothing else."""
    right = min(accuracy, 1.0 - 1e-9)
    return partial(_noisy, accuracy=right, short_s=service.short_mean_s, long_s=service.long_mean_s)


def _noisy(
    rng: np.random.Generator, workload: Workload, *, accuracy: float, short_s: float, long_s: float
) -> Predictions:
    return noisy_class(rng, workload, accuracy, short_s, long_s)


def named(
    policy: str, tau_s: float | None = None, forecaster: Forecaster | None = None, label: str = ""
) -> Variant:
    """Return a variant of a policy by its name."""
    if forecaster is None:
        return Variant(label or policy, POLICIES[policy], tau_s)
    return Variant(label or policy, POLICIES[policy], tau_s, forecaster)


def compare(
    variants: Sequence[Variant],
    draw: Callable[[np.random.Generator], Workload],
    figures: Mapping[str, Figure],
    seeds: int,
    options: Options,
    *,
    slots: Mapping[str, int] | None = None,
    preemption: Preemption | None = None,
    load_s: Mapping[int, float] | None = None,
) -> dict[str, dict[str, list[float]]]:
    """Run every variant on the same workloads, one a seed, and collect the figures.

    Each seed draws one workload; each variant then gets a fresh generator of that seed for its foresight, so
    that variants of equal foresight see equal mistakes. `slots` maps workers to slots (None: one of one),
    `load_s` the models (affinities) to the seconds it takes to load them.
    """
    workers = slots or {"slot": 1}
    told_s = {str(affinity): price_s for affinity, price_s in (load_s or {}).items()}
    samples: dict[str, dict[str, list[float]]] = {v.name: {f: [] for f in figures} for v in variants}
    for seed in range(seeds):
        workload = draw(np.random.default_rng((seed, 0)))
        for variant in variants:
            predictions = variant.forecaster(np.random.default_rng((seed, 1)), workload)
            scheduler = Scheduler(
                variant.policy, workers=workers, tau_s=variant.tau_s, capacity=UNBOUNDED, load_s=told_s
            )
            simulation = SlotSimulation(
                scheduler, workload, predictions, preemption=preemption, load_s=load_s
            )
            run = simulation.run()
            for name, figure in figures.items():
                samples[variant.name][name].append(figure(run))
            options.report(len(workload))
    return samples


def sojourn_percentile(kind: int, share: float) -> Figure:
    """Return the figure: a percentile of the sojourn of one class, in seconds."""
    return lambda run: percentile(run.sojourn_s[run.workload.kind == kind], share)


def longest_wait(run: Run) -> float:
    """Return the longest wait of a run, in seconds."""
    return float(run.wait_s.max())


BY_CLASS: dict[str, Figure] = {
    "short P50": sojourn_percentile(SHORT, 50.0),
    "short P95": sojourn_percentile(SHORT, 95.0),
    "long P50": sojourn_percentile(LONG, 50.0),
    "long P95": sojourn_percentile(LONG, 95.0),
    "longest wait": longest_wait,
}
"""The figures of Clairvoyant's tables, in seconds."""


def absolute(samples: Samples, unit: str, paper: Mapping[tuple[str, str], float]) -> list[Cell]:
    """Return a cell for each variant and figure; `paper` is looked up by (variant, figure)."""
    return [
        Cell(variant, figure, mean_of(values), unit, paper.get((variant, figure)))
        for variant, figures in samples.items()
        for figure, values in figures.items()
    ]


def relative(samples: Samples, baseline: str, paper: Mapping[tuple[str, str], float]) -> list[Cell]:
    """Return each variant's change against the baseline, as a fraction of it."""
    return [
        Cell(variant, figure, change_of(values, samples[baseline][figure]), "%", paper.get((variant, figure)))
        for variant, figures in samples.items()
        if variant != baseline
        for figure, values in figures.items()
    ]
