"""Semantic scheduling: urgency first, then remaining time, with preemption and KV eviction (its section 4).

Its simulation is given by its Appendix B and little else: batch size, memory, lengths and the number of
requests are assumed here, so shapes and ratios compare, not seconds.
"""

from dataclasses import dataclass, replace

import numpy as np

from clairvoyant_cli.confidence import Estimate, mean_of
from clairvoyant_cli.research.simulator.batch import WORKER, BatchSimulation, Machine
from clairvoyant_cli.research.simulator.kvcache import Evicting, Rates
from clairvoyant_cli.research.simulator.predictions import from_tokens
from clairvoyant_cli.research.simulator.report import Cell, Curve, Plot, Point, Report, Table
from clairvoyant_cli.research.simulator.trial import UNBOUNDED, Options
from clairvoyant_cli.research.simulator.workload import Floats, Ints, Workload
from clairvoyant_cli.scheduler.policy import POLICIES, URGENCY_STEP_S, Policy
from clairvoyant_cli.scheduler.queue import Scheduler
from clairvoyant_cli.scheduler.queued_job import Entry

SEEDS = 5
LEVELS = 5
MAX_TOKENS = 500
BATCH = 32
CACHE_TOKENS = 20_000.0

RATES = {
    "A100, Qwen1.5-4B": Rates(1.466e-7, 1.052e-4, 1e-4, 5.913e-9, 1.196e-2),
    "A100, Qwen1.5-7B": Rates(5.135e-7, 1.481e-4, 1e-4, 1.349e-8, 1.330e-2),
    "A5000, Qwen1.5-7B": Rates(1.859e-9, 2.175e-4, 3e-4, 2.117e-6, 2.727e-2),
}
"""Appendix B. It prints the first's quadratic prefill coefficient as 1.466e-2, with which a prompt of 100
tokens takes 147 s; 1e-7 is the order of magnitude of its neighbour on the same card."""

MACHINE = Machine(BATCH, RATES["A100, Qwen1.5-4B"])


def by_level(entry: Entry) -> float:
    """Order by urgency level, first come first served within (HPJF)."""
    return (entry.job.urgency or 0) * URGENCY_STEP_S + entry.job.arrival_s


POLICIES_COMPARED = {
    "semantic": POLICIES["urgency"],
    "hpjf": Policy("hpjf", by_level),
    "sjf": replace(POLICIES["oracle"], name="sjf"),
    "fcfs": POLICIES["fcfs"],
}

NOTES = (
    (
        "The paper's text: with a gap of 0.1 s and up to 100 requests at a time, urgency 0 waits 0.08 s a"
        " token, 1.7, 6.1 and 8.7 times less than under HPJF, SJF and FCFS; at 1.0 s up to 9.1 times less."
        " The order agrees and semantic scheduling's own figure nearly; our HPJF and FCFS fare worse than"
        " its, for without preemption an urgent request must wait until one of 32 running answers ends."
    ),
    (
        "Errors about urgency hurt the urgent, errors about length hardly do, as in the paper: its urgency 0"
        " goes from 0.02 to 0.07 s a token, its level 1 from 0.03 to 0.22, its overall mean from 0.13 to"
        " 0.12."
    ),
    (
        "Tables 1 and 2 are not reproduced as printed: there the predictor's latency multiplies with the"
        " urgency level (1 : 4 : 7 : 10 : 13), as if every decision waited for it; here the predictor is a"
        " stage before the queue, which delays all levels alike. Immediate beats full batching while the"
        " predictor keeps up and loses once it does not, in both."
    ),
    (
        "The last table weighs a preempted request's ways back. Loading a token takes 0.1 ms and decoding"
        " one 12 ms: keeping everything is always the cheapest with these coefficients. Eq. 6 as printed"
        " keeps nothing (see the head of kvcache.py for why)."
    ),
)


@dataclass(frozen=True, slots=True)
class Spikes:
    """Every `gap_s` seconds, 1 to `most` requests at once, `times` over."""

    gap_s: float
    most: int
    times: int = 60


@dataclass(frozen=True, slots=True)
class Mistakes:
    """How often the predictors of urgency and of length err (and by what share of the range, on average)."""

    urgency: float = 0.0
    length: float = 0.0


def workload(
    rng: np.random.Generator, spikes: Spikes, requests: int | None = None, machine: Machine = MACHINE
) -> Workload:
    """Return short emergency requests of five levels of urgency; `requests` says about how many instead."""
    if requests is not None:
        spikes = replace(spikes, times=max(2, 2 * requests // spikes.most))
    sizes = rng.integers(1, spikes.most + 1, spikes.times)
    arrival_s = np.repeat(np.arange(spikes.times) * spikes.gap_s, sizes)
    n = len(arrival_s)
    tokens = rng.integers(5, MAX_TOKENS + 1, n).astype(np.float64)
    prompt_tokens = rng.integers(10, 120, n).astype(np.float64)
    urgency = rng.integers(0, LEVELS, n)
    service_s = machine.alone_s(prompt_tokens, tokens)
    return Workload(arrival_s, service_s, urgency, tokens, prompt_tokens, urgency=urgency)


def mistaken(rng: np.random.Generator, truth: Ints, error: float) -> Ints:
    """Return levels of which a share `error` is wrong, by about that share of the range."""
    reach = max(1, round(error * (LEVELS - 1)))
    moved = truth + rng.choice([-1, 1], len(truth)) * rng.integers(1, reach + 1, len(truth))
    moved = np.where((moved < 0) | (moved >= LEVELS), 2 * truth - moved, moved)
    wrong = rng.random(len(truth)) < error
    result: Ints = np.where(wrong, np.clip(moved, 0, LEVELS - 1), truth)
    return result


def normalised_wait(
    policy: Policy,
    load: Workload,
    rng: np.random.Generator,
    mistakes: Mistakes,
    machine: Machine = MACHINE,
) -> Floats:
    """Return each request's sojourn over its tokens, in seconds a token."""
    believed = replace(load, urgency=mistaken(rng, load.urgency, mistakes.urgency))
    off = rng.uniform(-1.0, 1.0, len(load)) * 2.0 * mistakes.length * MAX_TOKENS
    wrong = rng.random(len(load)) < mistakes.length
    tokens = np.clip(np.where(wrong, load.tokens + off, load.tokens), 1.0, MAX_TOKENS)
    scheduler = Scheduler(policy, workers={WORKER: BATCH}, capacity=UNBOUNDED)
    cache = Evicting(machine.rates, CACHE_TOKENS) if policy.preemptive else None
    run = BatchSimulation(scheduler, believed, from_tokens(tokens, load), machine, cache=cache).run()
    return run.per_token_s


def by_urgency(
    row: str,
    options: Options,
    spikes: Spikes,
    policy: Policy,
    mistakes: Mistakes,
    paper: tuple[float, ...] = (),
    machine: Machine = MACHINE,
) -> list[Cell]:
    """Return the normalised waiting time of each level and of all."""
    means: list[list[float]] = [[] for _ in range(LEVELS + 1)]
    for seed in range(options.seeds or SEEDS):
        load = workload(np.random.default_rng((seed, 0)), spikes, options.requests, machine)
        waits = normalised_wait(policy, load, np.random.default_rng((seed, 1)), mistakes, machine)
        for level in range(LEVELS):
            means[level].append(float(waits[load.urgency == level].mean()))
        means[LEVELS].append(float(waits.mean()))
        options.report(len(load))
    names = [*(f"urgency {level}" for level in range(LEVELS)), "all"]
    stated = [*paper, *[None] * (len(names) - len(paper))]
    return [
        Cell(row, name, mean_of(values), "s/token", known)
        for name, values, known in zip(names, means, stated, strict=True)
    ]


def spikes_table(options: Options) -> tuple[list[Cell], list[Cell], list[Curve]]:
    """Return urgency 0 under the four policies by gap and spike, the ratios, and curves at a gap of 0.1 s."""
    paper = {"hpjf": 1.7, "sjf": 6.1, "fcfs": 8.7}
    cells: list[Cell] = []
    ratios: list[Cell] = []
    curves: dict[str, list[Point]] = {name: [] for name in POLICIES_COMPARED}
    for gap_s in (0.1, 1.0):
        for most in (5, 25, 50, 100):
            row = f"gap {gap_s:g} s, up to {most}"
            found: dict[str, Estimate] = {}
            for name, policy in POLICIES_COMPARED.items():
                level_0 = by_urgency(row, options, Spikes(gap_s, most), policy, Mistakes())[0]
                found[name] = level_0.ours
                known = 0.08 if (gap_s, most, name) == (0.1, 100, "semantic") else None
                cells.append(replace(level_0, column=name, paper=known))
                if gap_s == 0.1:
                    curves[name].append(Point(most, found[name].mean, found[name].half_width))
            for name, stated in paper.items():
                ratio = Estimate(found[name].mean / found["semantic"].mean)
                ratios.append(Cell(row, name, ratio, "x", stated if (gap_s, most) == (0.1, 100) else None))
    return cells, ratios, [Curve(name, tuple(points)) for name, points in curves.items()]


OTHER_CARDS = {
    ("A100, Qwen1.5-7B", 0.1): (0.18, 6.5),
    ("A100, Qwen1.5-7B", 1.0): (0.16, 6.6),
    ("A5000, Qwen1.5-7B", 0.1): (0.37, 6.8),
    ("A5000, Qwen1.5-7B", 1.0): (0.32, 7.0),
}
"""Figure 4, by card and gap (s): the longest normalised wait of urgency 0, and the best speed-up. Its text
calls the last card's model Qwen1.5-4B; its Appendix B gives coefficients for the 7B alone."""


def other_cards_table(options: Options) -> list[Cell]:
    """Return urgency 0 under spikes of up to 100 on other cards, and how many times longer FCFS takes."""
    cells: list[Cell] = []
    spiking = {name: POLICIES_COMPARED[name] for name in ("semantic", "fcfs")}
    for (card, gap_s), (stated_s, speed_up) in OTHER_CARDS.items():
        row, machine = f"{card}, gap {gap_s:g} s", Machine(BATCH, RATES[card])
        found: dict[str, Estimate] = {}
        for name, policy in spiking.items():
            level_0 = by_urgency(row, options, Spikes(gap_s, 100), policy, Mistakes(), machine=machine)[0]
            found[name] = level_0.ours
            known = stated_s if name == "semantic" else None
            cells.append(replace(level_0, column=name, paper=known))
        ratio = Estimate(found["fcfs"].mean / found["semantic"].mean)
        cells.append(Cell(row, "fcfs over semantic", ratio, "x", speed_up))
    return cells


def predicted_at(arrival_s: Floats, latency_s: float, batch: int, immediate: bool) -> Floats:
    """Return when each request's prediction is there: one by one, or in full batches (and a last one)."""
    ready = np.empty_like(arrival_s)
    free_s, size = 0.0, 1 if immediate else batch
    for first in range(0, len(arrival_s), size):
        last = min(first + size, len(arrival_s))
        free_s = max(free_s, float(arrival_s[last - 1])) + latency_s
        ready[first:last] = free_s
    return ready


FULL_BATCHES = {
    (0.001, 64): (0.07, 0.13, 0.21, 0.29, 0.37, 0.21),
    (0.01, 64): (0.09, 0.35, 0.63, 0.89, 1.15, 0.61),
    (0.1, 64): (0.18, 0.68, 1.25, 1.75, 2.29, 1.23),
    (1.0, 64): (0.35, 1.37, 2.51, 3.51, 4.57, 2.46),
    (0.01, 4): (0.07, 0.33, 0.60, 0.87, 1.13, 0.58),
    (0.01, 16): (0.07, 0.34, 0.61, 0.88, 1.14, 0.59),
    (0.01, 32): (0.08, 0.35, 0.62, 0.90, 1.17, 0.60),
}
IMMEDIATE = {
    (0.001, 64): (0.01, 0.01, 0.02, 0.04, 0.15, 0.04),
    (0.01, 64): (0.08, 0.34, 0.62, 0.91, 1.15, 0.61),
    (0.1, 64): (0.16, 0.68, 1.24, 1.83, 2.33, 1.25),
    (1.0, 64): (0.37, 1.42, 2.55, 3.72, 4.70, 2.56),
}
"""Tables 1 and 2: normalised waiting time by level and overall, by the predictor's latency (s) and batch."""


def predictor_tables(options: Options) -> list[Cell]:
    """Return waiting times with a predictor that takes time, in full batches and immediately."""
    cells: list[Cell] = []
    for immediate, published in ((False, FULL_BATCHES), (True, IMMEDIATE)):
        for (latency_s, batch), paper in published.items():
            mode = "immediate" if immediate else f"full batches of {batch}"
            samples: list[list[float]] = [[] for _ in range(LEVELS + 1)]
            for seed in range(options.seeds or SEEDS):
                load = workload(np.random.default_rng((seed, 0)), Spikes(0.2, 5, 200), options.requests)
                late = replace(load, arrival_s=predicted_at(load.arrival_s, latency_s, batch, immediate))
                waits = normalised_wait(
                    POLICIES["urgency"], late, np.random.default_rng((seed, 1)), Mistakes()
                )
                waits = waits + (late.arrival_s - load.arrival_s) / load.tokens
                for level in range(LEVELS):
                    samples[level].append(float(waits[load.urgency == level].mean()))
                samples[LEVELS].append(float(waits.mean()))
                options.report(len(load))
            names = [*(f"urgency {level}" for level in range(LEVELS)), "all"]
            cells += [
                Cell(f"{mode}, {latency_s:g} s", name, mean_of(values), "s/token", known)
                for name, values, known in zip(names, samples, paper, strict=True)
            ]
    return cells


def resume_table() -> list[Cell]:
    """Return what resuming costs after 100 prompt and 200 answer tokens, by how much is kept."""
    prompt, done = 100.0, 200.0
    cells = []
    for name, rates in RATES.items():
        ways = {
            "the rule": rates.tokens_to_keep(prompt, done),
            "keep all": done,
            "keep none": 0.0,
            "Eq. 6 as printed": min(rates.tokens_to_keep_as_printed(prompt), done),
        }
        cells += [
            Cell(name, way, Estimate(rates.resume_with_s(prompt, done, kept))) for way, kept in ways.items()
        ]
    return cells


def tables(options: Options) -> Report:
    """Run the spikes, the two error sweeps and the predictor's latency, and weigh the ways to resume."""
    waits, ratios, curves = spikes_table(options)
    semantic = POLICIES["urgency"]
    steady = Spikes(0.25, 5, 300)
    urgency_paper: dict[float, tuple[float, ...]] = {0.1: (0.02, 0.03), 0.9: (0.07, 0.22)}
    length_paper: dict[float, tuple[float, ...]] = {
        0.1: (0.01, 0.03, 0.08, 0.18, 0.30),
        0.9: (0.01, 0.04, 0.11, 0.21, 0.33),
    }
    levels: list[Cell] = []
    lengths: list[Cell] = []
    for error in (0.1, 0.3, 0.5, 0.7, 0.9):
        row = f"error {error:g}"
        stated = urgency_paper.get(error, ())
        levels += by_urgency(row, options, steady, semantic, Mistakes(urgency=error), stated)
        stated = length_paper.get(error, ())
        lengths += by_urgency(row, options, steady, semantic, Mistakes(length=error), stated)
    return Report(
        "semantic",
        f"A100 with Qwen1.5-4B (Appendix B), continuous batching of {BATCH}, answers of 5 to {MAX_TOKENS}"
        f" tokens, five levels of urgency; sojourn over tokens; mean of {options.seeds or SEEDS} seeds, 95 %"
        " confidence",
        (
            Table("Figure 2(c, d): spikes, requests of urgency 0", tuple(waits)),
            Table("How many times longer urgency 0 waits than under semantic scheduling", tuple(ratios)),
            Table("Figure 4: spikes of up to 100 on other cards", tuple(other_cards_table(options))),
            Table("Figure 2(a): errors about urgency", tuple(levels)),
            Table("Figure 2(b): errors about length", tuple(lengths)),
            Table("Tables 1 and 2: a predictor that takes time", tuple(predictor_tables(options))),
            Table("Resuming after a prompt of 100 and 200 tokens done (Eq. 3 to 6)", tuple(resume_table())),
        ),
        NOTES,
        (
            Plot(
                "Spikes every 0.1 s: requests of urgency 0",
                "largest spike (requests)",
                "normalised waiting time (s/token)",
                tuple(curves),
            ),
        ),
    )
