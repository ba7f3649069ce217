"""What cutting running answers buys, and what it costs: the frontier, over loads, prices and tails.

No paper has this experiment: the workload is Clairvoyant's (section 5.5), the cuts are made from outside the
server, and a cut answer is resumed for a price.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

import numpy as np

from clairvoyant_cli.confidence import mean_of
from clairvoyant_cli.research.simulator.engine import Preemption
from clairvoyant_cli.research.simulator.report import Cell, Curve, Plot, Point, Report, Table
from clairvoyant_cli.research.simulator.trial import (
    BY_CLASS,
    Figure,
    Options,
    Samples,
    Variant,
    classes,
    compare,
    named,
    relative,
)
from clairvoyant_cli.research.simulator.workload import (
    LONG,
    Floats,
    Ints,
    Service,
    TwoNormals,
    Workload,
    poisson,
)
from clairvoyant_cli.scheduler.policy import POLICIES
from clairvoyant_cli.scheduler.queued_job import Entry
from clairvoyant_cli.scheduler.starvation import Guard

SERVICE = TwoNormals()
LOAD = 0.74
TAU_S = 35.0
PRICE_S = 0.01
SEEDS = 10
REQUESTS = 2000
LOADS = (0.1, 0.3, 0.5, 0.74, 0.9, 0.95)
PRICES_S = (0.01, 0.05, 0.15, 0.5)
TOKENS_PER_S = 50.0
ROOMS_TOKENS = (2000.0, 1000.0, 500.0, 0.0)
REREAD_SHARE = 0.2
"""Of the time an answer took so far, to read it again: one that reads five times as fast as it writes."""

TAIL_SIGMA = 0.6

CHEAP = Preemption(PRICE_S, room_s=inf)

NOTES = (
    (
        "Without a guard, short requests get what these orders can give. It costs the long ones at P95 the"
        " work of the short ones that arrive meanwhile; a guard gives some of that back, and short ones wait."
    ),
    (
        "Short P95 at 85 % is that of the short requests taken for long: 15 % of them, so the worst 5 % of"
        " all are a third of those, and nothing tells them from the long ones before they end."
    ),
)


def heavy_tailed(rng: np.random.Generator, n: int) -> tuple[Floats, Ints]:
    """Draw `n` service times of the same two means, log-normal within each class (sigma 0.6)."""
    kind = (rng.random(n) < SERVICE.long_share).astype(np.int64)
    mean_s = np.where(kind == LONG, SERVICE.long_mean_s, SERVICE.short_mean_s)
    return mean_s * rng.lognormal(-TAIL_SIGMA * TAIL_SIGMA / 2.0, TAIL_SIGMA, n), kind


def keeping(tokens: float) -> Preemption:
    """Return what a cut costs on a server that keeps so many tokens, the oldest going first."""
    return Preemption(PRICE_S, REREAD_SHARE, tokens / TOKENS_PER_S)


def remaining(entry: Entry) -> float:
    """Order by predicted seconds still due (SRPT)."""
    return entry.remaining_s


def by_class(entry: Entry) -> float:
    """Order by class, the first to arrive first within it."""
    return entry.job.arrival_s + (1e9 if entry.job.p_long > 0.5 else 0.0)


def variants() -> list[Variant]:
    """Return the policies with and without foresight, the first of them the baseline."""
    srpt = POLICIES["srpt"]
    orders = {
        "bounded": POLICIES["bounded"],
        "srpt": srpt,
        "srpt, 1 of 2 past tau": replace(srpt, guard=Guard(every=1)),
        "srpt, 1 of 5 past tau": replace(srpt, guard=Guard(every=4)),
        "srpt, no guard": replace(srpt, guard=None),
        "remaining time, no guard": replace(srpt, key=remaining, guard=None),
        "classes, no guard": replace(srpt, key=by_class, guard=None, margin=0.0),
    }
    found = [named("fcfs")]
    for said, forecaster in (("", None), (" @85%", classes(0.85, SERVICE))):
        for name, policy in orders.items():
            known = classes(1.0, SERVICE) if name.startswith("classes") else named("fcfs").forecaster
            found.append(Variant(name + said, policy, TAU_S, forecaster or known))
    return found


def few() -> list[Variant]:
    """Return the default, and `srpt` with lengths known and with classes that are right 85 % of the time."""
    said = classes(0.85, SERVICE)
    return [
        named("fcfs"),
        named("bounded", TAU_S, said, "bounded @85%"),
        named("srpt", TAU_S, said, "srpt @85%"),
        named("srpt", TAU_S),
    ]


FIGURES: dict[str, Figure] = {
    **{name: BY_CLASS[name] for name in ("short P50", "short P95", "long P50", "long P95", "longest wait")},
    "cuts": lambda run: run.preemptions / len(run.workload),
    "lost": lambda run: run.lost_s / float(run.workload.service_s.sum()),
}
"""What is measured: seconds by class, cuts a request, and the share of the work they cost."""


def measured(
    wanted: Sequence[Variant],
    options: Options,
    *,
    load: float = LOAD,
    preemption: Preemption = CHEAP,
    service: Service = SERVICE,
) -> dict[str, dict[str, list[float]]]:
    """Run the variants on the same workloads."""

    def draw(rng: np.random.Generator) -> Workload:
        return poisson(rng, options.requests or REQUESTS, load / SERVICE.mean_s, service)

    return compare(
        wanted,
        draw,
        FIGURES,
        options.seeds or SEEDS,
        options,
        preemption=preemption,
    )


def changes(samples: Samples, prefix: str = "") -> list[Cell]:
    """Return the changes against fcfs, and the share of the work that cuts cost, all in percent."""
    times = {
        name: {f: v for f, v in found.items() if f not in ("cuts", "lost")} for name, found in samples.items()
    }
    cells = relative(times, "fcfs", {})
    lost = [
        Cell(name, "lost", mean_of(found["lost"]), "%") for name, found in samples.items() if name != "fcfs"
    ]
    return [replace(cell, row=prefix + cell.row) for cell in (*cells, *lost)]


def cut_counts(samples: Samples, prefix: str) -> list[Cell]:
    """Return the cuts a request, of those that cut."""
    return [
        Cell(prefix, name, mean_of(found["cuts"]), "1")
        for name, found in samples.items()
        if name.startswith("srpt")
    ]


def frontier(options: Options) -> Report:
    """Compare orders and guards, then sweep the utilisation and the price of a cut."""
    at_load = measured(variants(), options)
    tails = measured(few(), options, service=heavy_tailed)
    by_load: Mapping[float, Samples] = {load: measured(few(), options, load=load) for load in LOADS}
    by_price: Mapping[float, Samples] = {
        price_s: measured(few(), options, preemption=Preemption(price_s)) for price_s in PRICES_S
    }
    by_room: Mapping[float, Samples] = {
        tokens: measured([few()[0], *few()[2:]], options, preemption=keeping(tokens))
        for tokens in ROOMS_TOKENS
    }
    curves = [
        Curve(
            name,
            tuple(
                Point(load, 100.0 * cell.ours.mean, 100.0 * cell.ours.half_width)
                for load, samples in by_load.items()
                for cell in changes(samples)
                if (cell.row, cell.column) == (name, "short P50")
            ),
        )
        for name in ("bounded @85%", "srpt @85%", "srpt")
    ]
    return Report(
        "preemption",
        f"one slot, Poisson arrivals, service N(3.5, 0.8) s short and N(8.9, 2.0) s long, half and half; tau"
        f" {TAU_S:g} s; utilisation {LOAD:g} and {PRICE_S * 1000:g} ms a cut where not said; lengths known,"
        f" or classes right 85 % of the time (@85%); mean of {options.seeds or SEEDS} seeds x"
        f" {options.requests or REQUESTS} requests, 95 % confidence",
        (
            Table("Change against fcfs, and work lost to cuts", tuple(changes(at_load))),
            Table("The same with log-normal classes, sigma 0.6", tuple(changes(tails))),
            Table(
                "By utilisation",
                tuple(c for load, samples in by_load.items() for c in changes(samples, f"{load:g} ")),
            ),
            Table(
                "Cuts a request",
                tuple(c for load, samples in by_load.items() for c in cut_counts(samples, f"{load:g}")),
            ),
            Table(
                "By the price of a cut",
                tuple(
                    c
                    for price_s, samples in by_price.items()
                    for c in changes(samples, f"{1000 * price_s:g} ms ")
                    if "srpt" in c.row
                ),
            ),
            Table(
                "By the tokens that the server keeps of answers that left their slot",
                tuple(c for tokens, samples in by_room.items() for c in changes(samples, f"{tokens:g} ")),
            ),
        ),
        NOTES,
        (Plot("Short requests, P50 against fcfs", "utilisation (1)", "change (%)", tuple(curves)),),
    )
