"""The operator's question: which policy and tau, what it buys, what it costs, and from which load on.

Whoever knows how requests are served here can ask: a mix given by hand, a recorded history, a profile.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite

import numpy as np

from clairvoyant_cli.confidence import Estimate, change_of
from clairvoyant_cli.research.simulator.report import Curve, Plot, Point, Report, Table
from clairvoyant_cli.research.simulator.study import REQUESTS, SEEDS
from clairvoyant_cli.research.simulator.trial import (
    BY_CLASS,
    Figure,
    Forecaster,
    Options,
    Variant,
    absolute,
    compare,
    relative,
)
from clairvoyant_cli.research.simulator.workload import LONG, SHORT, Ints, Workload
from clairvoyant_cli.scheduler.policy import DEFAULT_POLICY, POLICIES

WORTH_IT = 0.03
"""Less than this off short P50 is not worth a scheduler (Clairvoyant, section 5.4)."""

LOADS = (0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9)

Arrivals = Callable[[np.random.Generator, int, float], Workload]
"""Draws so many requests that arrive at so many a second."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is simulated: runs and requests a run, runs at each of the other `loads`, and each policy's
    taus as multiples of the mean short service time (None: the policy has no tau).
    """

    seeds: int
    requests: int
    seeds_a_load: int
    loads: Sequence[float]
    taus: Mapping[str, Sequence[float | None]]


THOROUGH = Effort(
    SEEDS,
    REQUESTS,
    SEEDS,
    LOADS,
    {
        "sjf": (3.0, 10.0, 20.0),
        "sjf-rationed": (3.0, 10.0),
        DEFAULT_POLICY: (5.0, 10.0, 15.0),
        "aging": (None,),
    },
)
BRIEF = Effort(5, 400, 3, (0.2, 0.35, 0.5, 0.7), {"sjf": (10.0,), DEFAULT_POLICY: (5.0, 10.0, 15.0)})
"""For an answer within a second, wider intervals and all: more seeds and requests narrow them."""


@dataclass(frozen=True, slots=True)
class Question:
    """What an operator asks: which policy, given how requests are served and how well lengths are predicted.

    `load` is the utilisation, `slots` how many run at once, `long_limit` how much slower long requests may
    get at P95, as a fraction; `present` is how they are ordered now, where that is known.
    """

    arrivals: Arrivals
    forecaster: Forecaster
    short_mean_s: float
    mean_s: float
    load: float = 0.74
    slots: int = 1
    long_limit: float = 0.20
    present: Variant | None = None
    effort: Effort = field(default_factory=lambda: THOROUGH)


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

    @property
    def changes(self) -> str:
        """What it changes, in words."""
        return (
            f"short P50 {_change(self.short_p50)}, P95 {_change(self.short_p95)}, "
            f"long P95 {_change(self.long_p95)}"
        )


@dataclass(frozen=True, slots=True)
class Advice:
    """The answer. `worth_from` is the utilisation from which `best` is worth it, None if it never is; it may
    be the lowest that was tried.
    """

    best: Candidate
    present: Candidate | None
    worth_from: float | None

    @property
    def worth_it(self) -> bool:
        """Whether at this load anything is worth more than arrival order."""
        return self.best.variant.policy.name != "fcfs" and self.best.gain >= WORTH_IT


def two_classes(kind: Ints) -> Ints:
    """Return classes of which all that are not short are long: what a short request waits behind."""
    return np.where(kind == SHORT, SHORT, LONG)


def candidates(question: Question) -> list[Variant]:
    """Return the policies worth a look, tau in multiples of the mean short service time."""
    told = question.forecaster
    found = [Variant("fcfs", POLICIES["fcfs"], None, told)]
    for name, multiples in question.effort.taus.items():
        for multiple in multiples:
            tau_s = None if multiple is None else multiple * question.short_mean_s
            found.append(Variant(described(name, tau_s), POLICIES[name], tau_s, told))
    return found if question.present is None else [*found, question.present]


def described(policy: str, tau_s: float | None) -> str:
    """Return a policy and its tau as they are named in a table."""
    return policy if tau_s is None else f"{policy}, tau {tau_s:.3g} s"


def advise(question: Question, options: Options) -> tuple[Advice, Report]:
    """Answer which policy and tau, what it buys short requests and costs long ones, from which load on."""
    effort, slots = question.effort, {"slot": question.slots}
    seeds, requests = options.seeds or effort.seeds, options.requests or effort.requests

    def draw(load: float) -> Callable[[np.random.Generator], Workload]:
        rate_per_s = load * question.slots / question.mean_s
        return lambda rng: question.arrivals(rng, requests, rate_per_s)

    variants = candidates(question)
    samples = compare(variants, draw(question.load), BY_CLASS, seeds, options, slots=slots)
    base = samples["fcfs"]
    judged = [
        Candidate(
            variant,
            change_of(samples[variant.name]["short P50"], base["short P50"]),
            change_of(samples[variant.name]["short P95"], base["short P95"]),
            change_of(samples[variant.name]["long P95"], base["long P95"]),
        )
        for variant in variants
    ]
    best = _best(judged, question)
    here = Point(question.load, 100.0 * best.short_p50.mean, 100.0 * best.short_p50.half_width)
    curve = _gain_by_load(
        best.variant, draw, slots, options.seeds or effort.seeds_a_load, question, options, here
    )
    present = judged[-1] if question.present is not None else None
    advice = Advice(best, present, worth_from(curve.points))
    return advice, Report(
        "advice",
        f"utilisation {question.load:.3g}, {question.slots} slots, mean service {question.mean_s:.3g} s,"
        f" short {question.short_mean_s:.3g} s; {requests} requests, mean of {seeds} seeds, 95 % confidence",
        (
            Table("Sojourn", tuple(absolute(samples, "s", {}))),
            Table("Change against fcfs", tuple(relative(samples, "fcfs", {}))),
        ),
        tuple(_verdict(advice, question)),
        (Plot(f"{best.variant.name} against fcfs", "utilisation (1)", "short P50 (%)", (curve,)),),
    )


def _best(judged: Sequence[Candidate], question: Question) -> Candidate:
    """Return what buys most within the limit; where nothing is worth it, the middle of the default policy,
    so that there is something to say of higher loads.
    """
    allowed = [c for c in judged if c.long_p95.mean <= question.long_limit]
    best = max(allowed, key=lambda c: c.gain, default=judged[0])
    if best.gain >= WORTH_IT:
        return best
    defaults = [c for c in judged if c.variant.policy.name == DEFAULT_POLICY]
    return defaults[len(defaults) // 2]


def _gain_by_load(
    variant: Variant,
    draw: Callable[[float], Callable[[np.random.Generator], Workload]],
    slots: Mapping[str, int],
    seeds: int,
    question: Question,
    options: Options,
    here: Point,
) -> Curve:
    """Return what short requests gain at each load; at the question's own, `here`, it is known."""
    points = [here]
    figure: dict[str, Figure] = {"short P50": BY_CLASS["short P50"]}
    fcfs = Variant("fcfs", POLICIES["fcfs"])
    for load in question.effort.loads:
        if load == here.x:
            continue
        found = compare([fcfs, variant], draw(load), figure, seeds, options, slots=slots)
        change = change_of(found[variant.name]["short P50"], found["fcfs"]["short P50"])
        points.append(Point(load, 100.0 * change.mean, 100.0 * change.half_width))
    return Curve(variant.name, tuple(sorted(points, key=lambda point: point.x)))


def worth_from(points: Sequence[Point]) -> float | None:
    """Return the utilisation from which on a policy is worth it, None if it never is.

    Between two points the gain is taken to grow evenly; a lucky point below one that is not worth it
    does not count.
    """
    worth = -100.0 * WORTH_IT
    if not points or points[-1].y > worth:
        return None
    for before, after in reversed(list(pairwise(points))):
        if before.y > worth:
            return before.x + (after.x - before.x) * (before.y - worth) / (before.y - after.y)
    return points[0].x


def _verdict(advice: Advice, question: Question) -> list[str]:
    best, worth, present = advice.best, advice.worth_from, advice.present
    if not advice.worth_it:
        lines = [
            "Leave it at fcfs: at this load nothing buys short requests 3 % within the limit for long ones."
        ]
        if worth is not None:
            lines.append(f"From a utilisation of about {worth:.2g} on, {best.variant.name} would.")
        return lines
    lines = [
        f"Keep {best.variant.name}." if best is present else f"Use {best.variant.name}.",
        f"Short requests: P50 {_change(best.short_p50)}, P95 {_change(best.short_p95)}.",
        f"Long requests: P95 {_change(best.long_p95)} (allowed: {question.long_limit:+.0%}).",
    ]
    if worth is not None and worth <= min(question.effort.loads):
        lines.append(f"Already at a utilisation of {worth:.2g} it buys them more than 3 %.")
    elif worth is not None:
        lines.append(f"Below a utilisation of about {worth:.2g} it buys them less than 3 %: leave it off.")
    if present is not None and best is not present:
        lines.append(f"As it is, with {present.variant.name}: {present.changes}.")
    return lines


def _change(estimate: Estimate) -> str:
    interval = f" ± {100.0 * estimate.half_width:.0f}" if isfinite(estimate.half_width) else ""
    return f"{estimate.mean:+.0%}{interval}"
