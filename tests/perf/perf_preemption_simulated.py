"""What preempting running answers gains and costs, in the simulator, as a page.

    python -m tests.perf.perf_preemption_simulated [--seeds 10] [--requests 2000] --out FILE.md

By load, price of a cut and tail of the service times. The workload is Clairvoyant's (section 5.5); resuming a
cut answer has a price.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
from clairvoyant_lab.baselines import ALL_POLICIES
from clairvoyant_lab.confidence import mean_of
from clairvoyant_lab.report import Cell, Report, figures, paragraphs, save
from clairvoyant_lab.simulator.comparison import (
    BY_CLASS,
    Figure,
    Options,
    Samples,
    Variant,
    classes,
    compare,
    relative,
    variant,
)
from clairvoyant_lab.simulator.engine import Preemption
from clairvoyant_lab.simulator.workload import LONG, Floats, Ints, Service, TwoNormals, poisson
from clairvoyant_lab.svg import Curve, Plot, Point

from clairvoyant_cli.scheduler.policy import Guard
from tests.perf.harness import options

SERVICE = TwoNormals()
LOAD = 0.74
TAU_S = 35.0
PRICE_S = 0.01
LOADS = (0.1, 0.3, 0.5, 0.74, 0.9, 0.95)
PRICES_S = (0.01, 0.05, 0.15, 0.5)
KEPT_TOKENS = (2000.0, 1000.0, 500.0, 0.0)
TOKENS_PER_S = 50.0
REREAD_SHARE = 0.2
"""Prefill is five times as fast as decode: re-reading an answer takes a fifth of the time it took."""

TAIL_SIGMA = 0.6
CHEAP = Preemption(PRICE_S, room_s=inf)

NOTES = paragraphs(
    """
    Without a guard, short requests gain all that these orders can give; at P95 long requests pay for the
    short ones that arrive meanwhile. A guard returns a part of it, and short requests wait.

    Short P95 at 85 % is that of the short requests taken for long: they are 15 %, and the slowest 5 % of all
    are a third of those. Until they end, nothing distinguishes them from long ones.
    """
)

FIGURES: dict[str, Figure] = {
    **{name: BY_CLASS[name] for name in ("short P50", "short P95", "long P50", "long P95", "longest wait")},
    "cuts": lambda run: run.preemptions / len(run.workload),
    "lost": lambda run: run.lost_s / float(run.workload.service_s.sum()),
}
"""Seconds by class, cuts a request, and the share of the work that they cost."""


def heavy_tailed(rng: np.random.Generator, n: int) -> tuple[Floats, Ints]:
    """Draw `n` service times of the same two means, log-normal within each class (sigma 0.6)."""
    kind = (rng.random(n) < SERVICE.long_share).astype(np.int64)
    mean_s = np.where(kind == LONG, SERVICE.long_mean_s, SERVICE.short_mean_s)
    return mean_s * rng.lognormal(-TAIL_SIGMA * TAIL_SIGMA / 2.0, TAIL_SIGMA, n), kind


def orders() -> list[Variant]:
    """Return the orders and guards, each with known lengths and with 85 % of the classes right."""
    srpt = ALL_POLICIES["srpt"]
    policies = {
        "bounded": ALL_POLICIES["bounded"],
        "srpt": srpt,
        "srpt, 1 of 5 past tau": replace(srpt, guard=Guard(every=4)),
        "srpt, no guard": replace(srpt, guard=None),
    }
    fcfs, said = variant("fcfs"), classes(0.85, SERVICE)
    known = [Variant(name, policy, TAU_S, fcfs.forecaster) for name, policy in policies.items()]
    return [fcfs, *known, *(replace(each, name=f"{each.name} @85%", forecaster=said) for each in known)]


def changes(samples: Samples, prefix: str = "") -> list[Cell]:
    """Return the changes against fcfs and the share of the work lost to cuts, in percent."""
    cells = [cell for cell in relative(samples, prefix=prefix) if cell.column not in ("cuts", "lost")]
    return cells + [
        Cell(prefix + name, "lost", mean_of(found["lost"]), "%")
        for name, found in samples.items()
        if name != "fcfs"
    ]


def run(
    options: Options,
    variants: Sequence[Variant],
    load: float = LOAD,
    preemption: Preemption = CHEAP,
    service: Service = SERVICE,
) -> Samples:
    rate_per_s = load / SERVICE.mean_s
    return compare(
        variants,
        lambda rng: poisson(rng, options.requests, rate_per_s, service),
        FIGURES,
        options,
        preemption=preemption,
    )


def frontier(options: Options) -> Report:
    """Compare orders and guards, then vary the utilisation, the price of a cut and the room for caches."""
    said = classes(0.85, SERVICE)
    fcfs, bounded = variant("fcfs"), variant("bounded", TAU_S, said, "bounded @85%")
    srpt = [variant("srpt", TAU_S, said, "srpt @85%"), variant("srpt", TAU_S)]
    few = [fcfs, bounded, *srpt]
    by_load = {load: run(options, few, load) for load in LOADS}
    by_price = {price_s: run(options, few, preemption=Preemption(price_s)) for price_s in PRICES_S}
    by_room = {
        tokens: run(
            options, [fcfs, *srpt], preemption=Preemption(PRICE_S, REREAD_SHARE, tokens / TOKENS_PER_S)
        )
        for tokens in KEPT_TOKENS
    }
    load_cells = {load: changes(samples, f"{load:g} ") for load, samples in by_load.items()}
    cuts = [
        Cell(f"{load:g}", name, mean_of(samples[name]["cuts"]), "1")
        for load, samples in by_load.items()
        for name in ("srpt @85%", "srpt")
    ]
    price_cells = (
        cell
        for price_s, samples in by_price.items()
        for cell in changes(samples, f"{1000 * price_s:g} ms ")
        if "srpt" in cell.row
    )
    room_cells = (c for tokens, samples in by_room.items() for c in changes(samples, f"{tokens:g} "))
    curves = tuple(
        Curve(
            name,
            tuple(
                Point(load, 100.0 * cell.ours.mean, 100.0 * cell.ours.half_width)
                for load, cells in load_cells.items()
                for cell in cells
                if (cell.row, cell.column) == (f"{load:g} {name}", "short P50")
            ),
        )
        for name in ("bounded @85%", "srpt @85%", "srpt")
    )
    return Report(
        "Simulated: cutting long answers for short ones",
        "one slot, Poisson arrivals, service N(3.5, 0.8) s short and N(8.9, 2.0) s long, half and half; tau"
        f" {TAU_S:g} s; utilisation {LOAD:g} and {PRICE_S * 1000:g} ms a cut unless stated; lengths known,"
        f" or classes right 85 % of the time (@85%); {options.size}",
        (
            figures("Change against fcfs, and work lost to cuts", changes(run(options, orders()))),
            figures(
                "The same with log-normal classes, sigma 0.6",
                changes(run(options, few, service=heavy_tailed)),
            ),
            figures("By utilisation", (cell for cells in load_cells.values() for cell in cells)),
            figures("Cuts a request", cuts),
            figures("By the price of a cut", price_cells),
            figures("By the tokens of cut answers that the server keeps", room_cells),
        ),
        NOTES,
        (Plot("Short requests, P50 against fcfs", "utilisation (1)", "change (%)", curves),),
    )


def main() -> None:
    given = options(__doc__, seeds=10, requests=2000, out=Path("docs/bench/preemption-simulated.md"))
    save(frontier(Options(given.seeds, given.requests)), given.out)


if __name__ == "__main__":
    main()
