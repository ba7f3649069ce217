"""Runs policies side by side on the same workloads, seed by seed, and tabulates the figures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from clairvoyant_cli.scheduler.policy import Policy
from clairvoyant_cli.scheduler.queue import Scheduler
from clairvoyant_lab.confidence import change_of, mean_of, percentile
from clairvoyant_lab.report import Cell
from clairvoyant_lab.simulator.engine import Preemption, Run, SlotSimulation
from clairvoyant_lab.simulator.policies import SIMULATED_POLICIES
from clairvoyant_lab.simulator.workload import (
    LONG,
    MEDIUM,
    SHORT,
    Ints,
    Predictions,
    TwoNormals,
    Workload,
    noisy_class,
    oracle,
)

Draw = Callable[[np.random.Generator], Workload]
"""Draws the workload of a seed."""

Forecaster = Callable[[np.random.Generator, Workload], Predictions]
"""Predicts a workload, with a generator of its own."""

Figure = Callable[[Run], float]
"""Computes one number of a run."""

Samples = dict[str, dict[str, list[float]]]
"""variant -> figure -> one number a seed."""

Stated = Mapping[tuple[str, str], float]
"""A paper's figures by (variant, figure)."""

UNBOUNDED = 1 << 60
"""A queue capacity that refuses nothing: refused requests would be missing from the averages."""


@dataclass(frozen=True, slots=True)
class Options:
    """The size of an experiment, 0 for its own default, and a callback for progress in requests."""

    seeds: int = 0
    requests: int = 0
    tick: Callable[[int], None] = lambda done: None

    @property
    def size(self) -> str:
        return f"mean of {self.seeds} seeds x {self.requests} requests, 95 % confidence"


@dataclass(frozen=True, slots=True)
class Variant:
    """One row of a table: a policy, its starvation timeout and its predictions."""

    name: str
    policy: Policy
    tau_s: float | None = None
    forecaster: Forecaster = lambda _, workload: oracle(workload)


def variant(
    policy: str, tau_s: float | None = None, forecaster: Forecaster | None = None, name: str = ""
) -> Variant:
    """Return a variant of a policy known by name; without `forecaster`, lengths are known."""
    made = Variant(name or policy, SIMULATED_POLICIES[policy], tau_s)
    return made if forecaster is None else Variant(made.name, made.policy, tau_s, forecaster)


def classes(accuracy: float, service: TwoNormals) -> Forecaster:
    """Return predictions that tell short from long with this accuracy and know nothing else."""
    right = min(accuracy, 1.0 - 1e-9)
    return lambda rng, workload: noisy_class(rng, workload, right, service.short_mean_s, service.long_mean_s)


def compare(
    variants: Sequence[Variant],
    draw: Draw,
    figures: Mapping[str, Figure],
    options: Options,
    *,
    slots: Mapping[str, int] | None = None,
    preemption: Preemption | None = None,
) -> Samples:
    """Run every variant on the same workloads, one a seed, and collect the figures.

    Each variant gets a fresh generator of the seed for its predictions, so that equal forecasters make equal
    mistakes. `slots` maps servers to slots (default: one slot).
    """
    samples: Samples = {v.name: {f: [] for f in figures} for v in variants}
    servers = slots or {"slot": 1}
    for seed in range(options.seeds):
        workload = draw(np.random.default_rng((seed, 0)))
        for each in variants:
            predictions = each.forecaster(np.random.default_rng((seed, 1)), workload)
            scheduler = Scheduler(each.policy, servers=servers, tau_s=each.tau_s, capacity=UNBOUNDED)
            run = SlotSimulation(scheduler, workload, predictions, preemption=preemption).run()
            for name, figure in figures.items():
                samples[each.name][name].append(figure(run))
            options.tick(len(workload))
    return samples


def sojourn_percentile(kind: int, share: float) -> Figure:
    """Return the percentile of a class's sojourn times, in seconds."""
    return lambda run: percentile(run.sojourn_s[run.workload.kind == kind], share)


BY_CLASS: dict[str, Figure] = {
    "short P50": sojourn_percentile(SHORT, 50.0),
    "short P95": sojourn_percentile(SHORT, 95.0),
    "long P50": sojourn_percentile(LONG, 50.0),
    "long P95": sojourn_percentile(LONG, 95.0),
    "longest wait": lambda run: float(run.wait_s.max()),
}
"""The figures of Clairvoyant's tables, in seconds."""


def figures_for(kinds: Ints) -> dict[str, Figure]:
    """Return the figures for the classes that a workload contains."""
    names = {SHORT: "short", MEDIUM: "medium", LONG: "long"}
    chosen: dict[str, Figure] = {
        f"{name} P{share:.0f}": sojourn_percentile(kind, share)
        for kind, name in names.items()
        if (kinds == kind).any()
        for share in (50.0, 95.0)
    }
    chosen["all P99"] = lambda run: percentile(run.sojourn_s, 99.0)
    chosen["mean"] = lambda run: float(run.sojourn_s.mean())
    return chosen | {"longest wait": BY_CLASS["longest wait"]}


def absolute(samples: Samples, unit: str = "s", paper: Stated | None = None, prefix: str = "") -> list[Cell]:
    """Return a cell for each variant and figure, its row named with `prefix`."""
    known = paper or {}
    return [
        Cell(prefix + name, figure, mean_of(values), unit, known.get((name, figure)))
        for name, figures in samples.items()
        for figure, values in figures.items()
    ]


def relative(samples: Samples, paper: Stated | None = None, prefix: str = "") -> list[Cell]:
    """Return each variant's change against `fcfs` as a fraction, its row named with `prefix`."""
    known, base = paper or {}, samples["fcfs"]
    return [
        Cell(prefix + name, figure, change_of(values, base[figure]), "%", known.get((name, figure)))
        for name, figures in samples.items()
        if name != "fcfs"
        for figure, values in figures.items()
    ]
