"""Policies side by side on a workload of the user's own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from clairvoyant_cli.research.simulator.engine import Preemption
from clairvoyant_cli.research.simulator.report import Report, Table
from clairvoyant_cli.research.simulator.trial import (
    BY_CLASS,
    Figure,
    Forecaster,
    Options,
    Variant,
    absolute,
    compare,
    relative,
    sojourn_percentile,
)
from clairvoyant_cli.research.simulator.workload import LONG, MEDIUM, SHORT, Ints, Workload
from clairvoyant_cli.scheduler.policy import POLICIES

SEEDS = 10
REQUESTS = 2000


@dataclass(frozen=True, slots=True)
class Study:
    """What to compare: the policies with their tau (seconds, None for none), on which backends."""

    policies: Sequence[str]
    tau_s: float | None
    forecaster: Forecaster
    slots: Mapping[str, int] = field(default_factory=lambda: {"slot": 1})
    preemption: Preemption | None = None
    load_s: Mapping[int, float] | None = None


def figures_for(kinds: Ints) -> dict[str, Figure]:
    """Return the figures that make sense for the classes a workload has."""
    names = {SHORT: "short", MEDIUM: "medium", LONG: "long"}
    chosen: dict[str, Figure] = {
        f"{name} P{share:.0f}": sojourn_percentile(kind, share)
        for kind, name in names.items()
        if (kinds == kind).any()
        for share in (50.0, 95.0)
    }
    chosen["mean"] = lambda run: float(run.sojourn_s.mean())
    chosen["longest wait"] = BY_CLASS["longest wait"]
    return chosen


def compare_policies(
    name: str,
    draw: Callable[[np.random.Generator], Workload],
    study: Study,
    options: Options,
) -> Report:
    """Run the policies and first-come-first-served on the same workloads."""
    seeds = options.seeds or SEEDS
    names = list(dict.fromkeys(["fcfs", *study.policies]))
    variants = [Variant(policy, POLICIES[policy], study.tau_s, study.forecaster) for policy in names]
    sample = draw(np.random.default_rng((0, 0)))
    figures = figures_for(sample.kind)
    if study.load_s:
        figures["model loads"] = lambda run: float(run.loads)
    samples = compare(
        variants,
        draw,
        figures,
        seeds,
        options,
        slots=study.slots,
        preemption=study.preemption,
        load_s=study.load_s,
    )
    places = sum(study.slots.values())
    load = sample.offered_load / places
    tau = "none" if study.tau_s is None else f"{study.tau_s:.3g} s"
    return Report(
        name,
        f"{len(sample)} requests, {places} slots, offered load {load:.2f} per slot, tau {tau}; sojourn times,"
        f" mean of {seeds} seeds, 95 % confidence",
        (
            Table("Sojourn", tuple(absolute(samples, "s", {}))),
            Table("Change against fcfs", tuple(relative(samples, "fcfs", {}))),
        ),
    )


def mean_by_class(workload: Workload) -> tuple[float, float]:
    """Return the mean service times of short requests and of all others, in seconds.

    Where a class is missing, the median request stands in for it.
    """
    short = workload.kind == SHORT
    middle = float(np.median(workload.service_s))
    short_s = float(workload.service_s[short].mean()) if short.any() else middle
    long_s = float(workload.service_s[~short].mean()) if not short.all() else middle
    return short_s, max(long_s, short_s)


def replayed(workload: Workload, speed_up: float) -> Callable[[np.random.Generator], Workload]:
    """Return what replays a recorded workload so many times as fast; every seed sees the same arrivals."""
    faster = replace(workload, arrival_s=workload.arrival_s / speed_up)
    return lambda _: faster


def with_models(
    draw: Callable[[np.random.Generator], Workload], models: int
) -> Callable[[np.random.Generator], Workload]:
    """Return what draws the same requests, each for one of several models at random."""

    def drawn(rng: np.random.Generator) -> Workload:
        workload = draw(rng)
        return replace(workload, affinity=rng.integers(0, models, len(workload)))

    return drawn
