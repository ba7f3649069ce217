"""The operator's question: which policy and tau, what it buys, what it costs, and from which load on.

Whoever knows how requests are served here can ask: a mix given by hand, a recorded history, a profile.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from clairvoyant_cli.scheduler.policy import DEFAULT_POLICY, POLICIES
from clairvoyant_cli.simulator.estimate import Estimate, change_of
from clairvoyant_cli.simulator.report import Curve, Plot, Point, Report, Table
from clairvoyant_cli.simulator.study import REQUESTS, SEEDS
from clairvoyant_cli.simulator.trial import (
    BY_CLASS,
    Figure,
    Foresight,
    Options,
    Variant,
    absolute,
    compare,
    relative,
)
from clairvoyant_cli.simulator.workload import Service, Workload, poisson

WORTH_IT = 0.03
"""Less than this off short P50 is not worth a scheduler (Clairvoyant, section 5.4)."""

LOADS = (0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9)


@dataclass(frozen=True, slots=True)
class Question:
    """What an operator asks: which policy, given how requests are served and how well lengths are foretold.

    `load` is the utilisation, `slots` how many run at once, `long_limit` how much slower long requests may
    get at P95, as a fraction.
    """

    service: Service
    foresight: Foresight
    short_mean_s: float
    mean_s: float
    load: float = 0.74
    slots: int = 1
    long_limit: float = 0.20


@dataclass(frozen=True, slots=True)
class Candidate:
    """A policy with its tau, and what it buys and costs against arrival order."""

    variant: Variant
    short_p50: Estimate
    short_p95: Estimate
    long_p95: Estimate

    @property
    def gain(self) -> float:
        """What it buys short requests: the mean of its gains at P50 and P95, as a fraction."""
        return -(self.short_p50.mean + self.short_p95.mean) / 2.0


def candidates(question: Question) -> list[Variant]:
    """Return the policies worth a look, tau in multiples of the mean short service time."""
    told = question.foresight
    found = [Variant("fcfs", POLICIES["fcfs"], None, told)]
    multiples = {"sjf": (3.0, 10.0, 20.0), "sjf-rationed": (3.0, 10.0), DEFAULT_POLICY: (5.0, 10.0, 15.0)}
    for name, sweep in multiples.items():
        for multiple in sweep:
            tau_s = multiple * question.short_mean_s
            found.append(Variant(f"{name}, tau {tau_s:.3g} s", POLICIES[name], tau_s, told))
    return [*found, Variant("aging", POLICIES["aging"], None, told)]


def advise(question: Question, options: Options) -> Report:
    """Answer which policy and tau, what it buys short requests and costs long ones, from which load on."""
    seeds, requests = options.seeds or SEEDS, options.requests or REQUESTS

    def draw(load: float) -> Callable[[np.random.Generator], Workload]:
        rate_per_s = load * question.slots / question.mean_s
        return lambda rng: poisson(rng, requests, rate_per_s, question.service)

    slots = {"slot": question.slots}
    samples = compare(candidates(question), draw(question.load), BY_CLASS, seeds, options, slots=slots)
    base = samples["fcfs"]
    judged = [
        Candidate(
            variant,
            change_of(samples[variant.name]["short P50"], base["short P50"]),
            change_of(samples[variant.name]["short P95"], base["short P95"]),
            change_of(samples[variant.name]["long P95"], base["long P95"]),
        )
        for variant in candidates(question)
    ]
    allowed = [c for c in judged if c.long_p95.mean <= question.long_limit]
    best = max(allowed, key=lambda c: c.gain)
    curve = _gain_by_load(best.variant, draw, slots, seeds, options)
    return Report(
        "advice",
        f"utilisation {question.load:g}, {question.slots} slots, mean service {question.mean_s:.3g} s, short"
        f" {question.short_mean_s:.3g} s; {requests} requests, mean of {seeds} seeds, 95 % confidence",
        (
            Table("Sojourn", tuple(absolute(samples, "s", {}))),
            Table("Change against fcfs", tuple(relative(samples, "fcfs", {}))),
        ),
        tuple(_verdict(best, curve, question)),
        (Plot(f"{best.variant.name} against fcfs", "utilisation (1)", "short P50 (%)", (curve,)),),
    )


def _gain_by_load(
    variant: Variant,
    draw: Callable[[float], Callable[[np.random.Generator], Workload]],
    slots: Mapping[str, int],
    seeds: int,
    options: Options,
) -> Curve:
    points = []
    figure: dict[str, Figure] = {"short P50": BY_CLASS["short P50"]}
    fcfs = Variant("fcfs", POLICIES["fcfs"])
    for load in LOADS:
        found = compare([fcfs, variant], draw(load), figure, seeds, options, slots=slots)
        change = change_of(found[variant.name]["short P50"], found["fcfs"]["short P50"])
        points.append(Point(load, 100.0 * change.mean, 100.0 * change.half_width))
    return Curve(variant.name, tuple(points))


def _verdict(best: Candidate, curve: Curve, question: Question) -> list[str]:
    if best.variant.name == "fcfs" or best.gain < WORTH_IT:
        return [
            "Leave it at fcfs: at this load nothing buys short requests 3 % within the limit for long ones."
        ]
    worth = [point.x for point in curve.points if point.y <= -100.0 * WORTH_IT]
    lines = [
        f"Use {best.variant.name}.",
        f"Short requests: P50 {best.short_p50.mean:+.0%}, P95 {best.short_p95.mean:+.0%}.",
        f"Long requests: P95 {best.long_p95.mean:+.0%} (allowed: {question.long_limit:+.0%}).",
    ]
    if worth:
        lines.append(f"Below a utilisation of about {min(worth):g} it buys them less than 3 %: leave it off.")
    return lines
