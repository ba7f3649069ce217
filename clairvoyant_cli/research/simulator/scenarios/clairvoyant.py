"""Clairvoyant (arXiv:2606.07248): starvation timeout (Table 9), utilisation (Figure 3), burst (Table 8).

The stored text of the paper has no table cells; the paper's figures here are those its prose states.
"""

import numpy as np

from clairvoyant_cli.confidence import change_of
from clairvoyant_cli.research.simulator.report import Curve, Plot, Point, Report, Table
from clairvoyant_cli.research.simulator.trial import (
    BY_CLASS,
    Options,
    Variant,
    absolute,
    classes,
    compare,
    named,
    relative,
)
from clairvoyant_cli.research.simulator.workload import TwoNormals, Workload, burst, poisson
from clairvoyant_cli.scheduler.policy import DEFAULT_POLICY

SERVICE = TwoNormals()
RATE_PER_S = 0.12
TAU_S = 10.5
DEFAULT_TAU_S = 36.0
SEEDS = 20
REQUESTS = 2000

SETTING = (
    "one slot, Poisson arrivals, service N(3.5, 0.8) s short and N(8.9, 2.0) s long, half and half; "
    "sojourn times; mean of {seeds} seeds x {requests} requests, 95 % confidence"
)

TABLE9_NOTES = (
    "The paper's FCFS figures are derived from its text: 5.97 s is 38 % below, 79.3 s 53 % above.",
    (
        "Short P50 agrees, with and without tau. Long P95 does not. The guard as section 3.4 words it,"
        " checked before every dispatch, promotes in arrival order once the backlog exceeds tau: it costs"
        " long requests nothing at P95 and buys short ones nothing there; the paper's +17 % needs a guard"
        " that fires less often. Without tau we find about +24 % where the paper says +53 %, outside our"
        " interval."
    ),
    (
        f"{DEFAULT_POLICY} runs with tau = {DEFAULT_TAU_S:g} s, ten short service times. @85% and @76% are"
        " class accuracies; nothing is known within a class, so that pure shortest-first (no tau) bounds"
        " what any order can buy."
    ),
)

FIGURE3_NOTES = (
    (
        "The paper states -17 % at 0.74, about -10 % at 0.85 and less than 3 % below 0.5; the rest of its"
        " figure is an image. Our sjf has the same shape, a few points deeper, with its peak near 0.8."
    ),
    (
        "It falls off because the guard fires more as the load grows; without tau, or under the default, it"
        " does not."
    ),
)

TABLE8_NOTES = (
    (
        "The paper: short P50 -70 % (Gemma3:4b) and -76 % (Llama3.1:8b), P95 and P99 -68 to -73 %, long +21"
        " to +27 %. Its absolute FCFS P50 of 159 to 230 s does not follow from the service times it gives"
        " (100 requests of 6.2 s on average make it 310 s), so changes are compared."
    ),
    (
        "The paper also says that tau changes the burst by less than 1 %. The guard as section 3.4 words it"
        " turns the burst into arrival order as soon as tau has passed. The default's does not: it asks how"
        " much longer the longest-waiting job has waited, and in a burst all have waited alike."
    ),
)


def steady(rng: np.random.Generator, requests: int, load: float) -> Workload:
    """Return the paper's steady state (section 5.5) at some utilisation."""
    return poisson(rng, requests, load / SERVICE.mean_s, SERVICE)


def table9(options: Options) -> Report:
    """Sweep the starvation timeout at a utilisation of 0.74, and set the other policies beside it."""
    seeds, requests = options.seeds or SEEDS, options.requests or REQUESTS
    perfect = classes(1.0, SERVICE)
    multiples = (0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0)
    sweep = [named("sjf", m * 3.5, perfect, f"sjf tau {m:g} x 3.5 s") for m in multiples]
    variants = [
        named("fcfs"),
        *sweep,
        named("sjf", None, perfect, "sjf no tau"),
        named("oracle", None, label="sjf on true times"),
    ]
    for accuracy in (1.0, 0.85, 0.76):
        said = classes(accuracy, SERVICE)
        percent = f"@{accuracy:.0%}"
        variants += [
            named("sjf", TAU_S, said, f"sjf {percent}"),
            named("sjf", None, said, f"sjf no tau {percent}"),
            named("sjf-rationed", TAU_S, said, f"sjf-rationed {percent}"),
            named("aging", None, said, f"aging {percent}"),
            named("hrrn", None, said, f"hrrn {percent}"),
            named(DEFAULT_POLICY, DEFAULT_TAU_S, said, f"{DEFAULT_POLICY} {percent}"),
        ]
    samples = compare(
        variants, lambda rng: steady(rng, requests, RATE_PER_S * SERVICE.mean_s), BY_CLASS, seeds, options
    )
    paper_s = {
        ("fcfs", "short P50"): 9.63,
        ("fcfs", "long P95"): 51.8,
        ("sjf no tau", "short P50"): 5.97,
        ("sjf no tau", "long P95"): 79.3,
    }
    paper = {
        ("sjf tau 3 x 3.5 s", "short P50"): -0.17,
        ("sjf tau 3 x 3.5 s", "long P95"): 0.17,
        ("sjf no tau", "short P50"): -0.38,
        ("sjf no tau", "long P95"): 0.53,
    }
    named_sweep = [variant.name for variant in sweep]
    tau_points = [
        Curve(
            figure,
            tuple(
                Point(m * 3.5, 100 * change.mean, 100 * change.half_width)
                for m, name in zip(multiples, named_sweep, strict=True)
                for change in [change_of(samples[name][figure], samples["fcfs"][figure])]
            ),
        )
        for figure in ("short P50", "short P95", "long P95")
    ]
    return Report(
        "clairvoyant-table9",
        SETTING.format(seeds=seeds, requests=requests),
        (
            Table("Sojourn", tuple(absolute(samples, "s", paper_s))),
            Table("Change against fcfs", tuple(relative(samples, "fcfs", paper))),
        ),
        TABLE9_NOTES,
        (
            Plot(
                "Starvation timeout at utilisation 0.74, sjf with perfect classes",
                "tau (s)",
                "change against fcfs (%)",
                tuple(tau_points),
            ),
        ),
    )


def figure3(options: Options) -> Report:
    """Sweep the utilisation from 0.3 to 0.9 at the paper's tau."""
    seeds, requests = options.seeds or SEEDS, options.requests or REQUESTS
    loads = (0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.74, 0.8, 0.85, 0.9)
    paper = {(0.74, "sjf"): -0.17, (0.85, "sjf"): -0.10}
    said = classes(1.0, SERVICE)
    variants = [
        named("fcfs"),
        named("sjf", TAU_S, said, "sjf"),
        named("sjf", None, said, "sjf no tau"),
        named(DEFAULT_POLICY, DEFAULT_TAU_S, said, DEFAULT_POLICY),
        named(DEFAULT_POLICY, DEFAULT_TAU_S, classes(0.85, SERVICE), f"{DEFAULT_POLICY} @85%"),
    ]
    cells, lines = [], {variant.name: list[Point]() for variant in variants[1:]}
    for load in loads:
        samples = compare(variants, lambda rng, at=load: steady(rng, requests, at), BY_CLASS, seeds, options)  # type: ignore[misc]
        short = {name: {f"rho {load:g}": figures["short P50"]} for name, figures in samples.items()}
        known = {(name, f"rho {load:g}"): change for (at, name), change in paper.items() if at == load}
        for cell in relative(short, "fcfs", known):
            cells.append(cell)
            lines[cell.row].append(Point(load, 100 * cell.ours.mean, 100 * cell.ours.half_width))
    return Report(
        "clairvoyant-figure3",
        SETTING.format(seeds=seeds, requests=requests) + f"; tau = {TAU_S:g} s",
        (Table("Change of short P50 against fcfs", tuple(cells)),),
        FIGURE3_NOTES,
        (
            Plot(
                "Short requests, P50 against fcfs",
                "utilisation (1)",
                "change (%)",
                tuple(Curve(name, tuple(points)) for name, points in lines.items()),
            ),
        ),
    )


def table8(options: Options) -> Report:
    """Send 50 short and 50 long requests within 50 ms."""
    seeds = options.seeds or SEEDS
    half = (options.requests or 100) // 2
    perfect, good, fair = (classes(accuracy, SERVICE) for accuracy in (1.0, 0.85, 0.76))
    variants: list[Variant] = [
        named("fcfs"),
        named("sjf", None, perfect, "sjf no tau"),
        named("sjf", TAU_S, perfect, "sjf tau 10.5 s"),
        named("sjf-rationed", TAU_S, perfect, "sjf-rationed tau 10.5 s"),
        named(DEFAULT_POLICY, DEFAULT_TAU_S, perfect, DEFAULT_POLICY),
        named(DEFAULT_POLICY, DEFAULT_TAU_S, good, f"{DEFAULT_POLICY} @85%"),
        named(DEFAULT_POLICY, DEFAULT_TAU_S, fair, f"{DEFAULT_POLICY} @76%"),
    ]
    samples = compare(variants, lambda rng: burst(rng, (half, half), SERVICE, 0.05), BY_CLASS, seeds, options)
    paper = {
        ("sjf no tau", "short P50"): -0.70,
        ("sjf no tau", "short P95"): -0.70,
        ("sjf no tau", "long P50"): 0.24,
    }
    return Report(
        "clairvoyant-table8",
        f"one slot, {half} short and {half} long requests within 50 ms, service as in section 5.5; "
        f"mean of {seeds} seeds, 95 % confidence",
        (
            Table("Sojourn", tuple(absolute(samples, "s", {}))),
            Table("Change against fcfs", tuple(relative(samples, "fcfs", paper))),
        ),
        TABLE8_NOTES,
    )
