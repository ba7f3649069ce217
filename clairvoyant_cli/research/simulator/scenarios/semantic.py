"""Semantic scheduling: urgency first, then remaining time, with preemption and KV eviction (its section 4).

The paper's simulation is given by its Appendix B and little else. Batch size, memory, lengths and the number
of requests are assumed here: compare shapes and ratios, not seconds.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from clairvoyant_cli.confidence import Estimate
from clairvoyant_cli.research.report import Cell, Curve, Plot, Point, Report, figures, paragraphs
from clairvoyant_cli.research.simulator.batch import Machine, PreemptedCaches, Rates
from clairvoyant_cli.research.simulator.comparison import (
    Draw,
    Figure,
    Forecaster,
    Options,
    Variant,
    absolute,
    compare,
)
from clairvoyant_cli.research.simulator.engine import Run
from clairvoyant_cli.research.simulator.predictions import Predictions, from_tokens
from clairvoyant_cli.research.simulator.workload import Floats, Ints, Workload
from clairvoyant_cli.scheduler.policy import POLICIES, URGENCY_STEP_S, Policy
from clairvoyant_cli.scheduler.queued_job import QueuedJob

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


def by_level(entry: QueuedJob) -> float:
    """Order by urgency level, first come first served within (HPJF)."""
    return (entry.job.urgency or 0) * URGENCY_STEP_S + entry.job.arrival_s


POLICIES_COMPARED = {
    "semantic": POLICIES["urgency"],
    "hpjf": Policy("hpjf", by_level),
    "sjf": replace(POLICIES["oracle"], name="sjf"),
    "fcfs": POLICIES["fcfs"],
}

NOTES = paragraphs(
    """
    The paper's text: with a gap of 0.1 s and up to 100 requests at a time, urgency 0 waits 0.08 s a token,
    1.7, 6.1 and 8.7 times less than under HPJF, SJF and FCFS; at 1.0 s up to 9.1 times less. The order
    agrees, and semantic scheduling's own figure nearly. Our HPJF and FCFS are slower than the paper's:
    without preemption an urgent request waits until one of 32 running answers ends.

    Errors about urgency hurt urgent requests, errors about length hardly do, as in the paper: its urgency 0
    goes from 0.02 to 0.07 s a token, its level 1 from 0.03 to 0.22, its overall mean from 0.13 to 0.12.

    Tables 1 and 2 are not reproduced as printed: there the predictor's latency multiplies with the urgency
    level (1 : 4 : 7 : 10 : 13), as if every decision waited for it. Here the predictor is a stage before the
    queue and delays all levels alike. In both, immediate prediction beats full batches while the predictor
    keeps up, and loses once it does not.

    The last table compares the ways to resume a preempted request. Loading a token takes 0.1 ms, decoding one
    12 ms: keeping everything is always cheapest with these coefficients. Eq. 6 as printed keeps nothing (see
    the docstring of batch.py).
    """
)


def spikes(gap_s: float, most: int, times: int = 60, requests: int = 0, machine: Machine = MACHINE) -> Draw:
    """Return short emergency requests of five urgency levels: every `gap_s` seconds, 1 to `most` at once.

    This repeats `times` times, or until about `requests` have arrived.
    """
    rounds = max(2, 2 * requests // most) if requests else times

    def draw(rng: np.random.Generator) -> Workload:
        sizes = rng.integers(1, most + 1, rounds)
        arrival_s = np.repeat(np.arange(rounds) * gap_s, sizes)
        n = len(arrival_s)
        tokens = rng.integers(5, MAX_TOKENS + 1, n).astype(np.float64)
        prompt_tokens = rng.integers(10, 120, n).astype(np.float64)
        urgency = rng.integers(0, LEVELS, n)
        service_s = machine.alone_s(prompt_tokens, tokens)
        return Workload(arrival_s, service_s, urgency, tokens, prompt_tokens, urgency=urgency)

    return draw


def mistaken(rng: np.random.Generator, truth: Ints, error: float) -> Ints:
    """Return levels of which a share `error` is wrong, by about that share of the range."""
    reach = max(1, round(error * (LEVELS - 1)))
    moved = truth + rng.choice([-1, 1], len(truth)) * rng.integers(1, reach + 1, len(truth))
    moved = np.where((moved < 0) | (moved >= LEVELS), 2 * truth - moved, moved)
    wrong = rng.random(len(truth)) < error
    result: Ints = np.where(wrong, np.clip(moved, 0, LEVELS - 1), truth)
    return result


def erring(urgency_error: float = 0.0, length_error: float = 0.0) -> Forecaster:
    """Return predictions in which these shares of the urgencies and lengths are wrong."""

    def predict(rng: np.random.Generator, load: Workload) -> Predictions:
        urgency = mistaken(rng, load.urgency, urgency_error)
        off = rng.uniform(-1.0, 1.0, len(load)) * 2.0 * length_error * MAX_TOKENS
        wrong = rng.random(len(load)) < length_error
        tokens = np.clip(np.where(wrong, load.tokens + off, load.tokens), 1.0, MAX_TOKENS)
        return replace(from_tokens(tokens, load), urgency=urgency)

    return predict


def normalised_wait(run: Run) -> Floats:
    """Return each request's sojourn time over its tokens, including its time in the predictor."""
    delay_s = run.workload.delay_s
    return run.per_token_s + delay_s / run.workload.tokens if len(delay_s) else run.per_token_s


LEVEL_0 = "urgency 0"
BY_LEVEL: dict[str, Figure] = {
    **{
        f"urgency {level}": lambda run, level=level: float(  # type: ignore[misc]
            normalised_wait(run)[run.workload.urgency == level].mean()
        )
        for level in range(LEVELS)
    },
    "all": lambda run: float(normalised_wait(run).mean()),
}


def waits(
    draw: Draw,
    variants: Sequence[Variant],
    options: Options,
    paper: Sequence[float] = (),
    machine: Machine = MACHINE,
) -> list[Cell]:
    """Return the normalised waiting time of each level and of all; `paper` has the first ones of all rows."""
    samples = compare(
        variants,
        draw,
        BY_LEVEL,
        options,
        machine=machine,
        cache=lambda: PreemptedCaches(machine.rates, CACHE_TOKENS),
    )
    stated = {(v.name, level): value for v in variants for level, value in zip(BY_LEVEL, paper, strict=False)}
    return absolute(samples, "s/token", stated)


def level_0(
    draw: Draw, policies: Sequence[str], options: Options, machine: Machine = MACHINE
) -> dict[str, Cell]:
    """Return the waiting time of urgency 0 under each policy."""
    variants = [Variant(name, POLICIES_COMPARED[name], None, erring()) for name in policies]
    cells = waits(draw, variants, options, machine=machine)
    return {cell.row: cell for cell in cells if cell.column == LEVEL_0}


def ratio(found: dict[str, Cell], policy: str) -> Estimate:
    """Return how many times longer urgency 0 waits than under semantic scheduling."""
    return Estimate(found[policy].ours.mean / found["semantic"].ours.mean)


def spike_tables(options: Options) -> tuple[list[Cell], list[Cell], tuple[Curve, ...]]:
    """Return urgency 0 under the four policies by gap and spike, the ratios, and curves at a gap of 0.1 s."""
    paper = {"hpjf": 1.7, "sjf": 6.1, "fcfs": 8.7}
    cells: list[Cell] = []
    ratios: list[Cell] = []
    points: dict[str, list[Point]] = {name: [] for name in POLICIES_COMPARED}
    for gap_s in (0.1, 1.0):
        for most in (5, 25, 50, 100):
            row, known = f"gap {gap_s:g} s, up to {most}", (gap_s, most) == (0.1, 100)
            found = level_0(spikes(gap_s, most, requests=options.requests), tuple(POLICIES_COMPARED), options)
            for name, cell in found.items():
                stated = 0.08 if known and name == "semantic" else None
                cells.append(replace(cell, row=row, column=name, paper=stated))
                if gap_s == 0.1:
                    points[name].append(Point.of(most, cell.ours))
            ratios += [Cell(row, p, ratio(found, p), "x", paper[p] if known else None) for p in paper]
    return cells, ratios, tuple(Curve(name, tuple(of_name)) for name, of_name in points.items())


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
    for (card, gap_s), (stated_s, speed_up) in OTHER_CARDS.items():
        row, machine = f"{card}, gap {gap_s:g} s", Machine(BATCH, RATES[card])
        draw = spikes(gap_s, 100, requests=options.requests, machine=machine)
        found = level_0(draw, ("semantic", "fcfs"), options, machine)
        for name, stated in (("semantic", stated_s), ("fcfs", None)):
            cells.append(replace(found[name], row=row, column=name, paper=stated))
        cells.append(Cell(row, "fcfs over semantic", ratio(found, "fcfs"), "x", speed_up))
    return cells


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


def predicted_at(arrival_s: Floats, latency_s: float, batch: int) -> Floats:
    """Return when each request's prediction is ready; only the last batch may be incomplete."""
    ready = np.empty_like(arrival_s)
    free_s = 0.0
    for first in range(0, len(arrival_s), batch):
        last = min(first + batch, len(arrival_s))
        free_s = max(free_s, float(arrival_s[last - 1])) + latency_s
        ready[first:last] = free_s
    return ready


def delayed(draw: Draw, latency_s: float, batch: int) -> Draw:
    """Return the workload with a predictor before the queue, which predicts `batch` requests at a time."""

    def late(rng: np.random.Generator) -> Workload:
        load = draw(rng)
        ready_s = predicted_at(load.arrival_s, latency_s, batch)
        return replace(load, arrival_s=ready_s, delay_s=ready_s - load.arrival_s)

    return late


def predictor_table(options: Options) -> list[Cell]:
    """Return waiting times with a predictor that takes time, in full batches and immediately."""
    cells: list[Cell] = []
    steady = spikes(0.2, 5, 200, options.requests)
    for immediate, published in ((False, FULL_BATCHES), (True, IMMEDIATE)):
        for (latency_s, batch), paper in published.items():
            mode = "immediate" if immediate else f"full batches of {batch}"
            variant = Variant(f"{mode}, {latency_s:g} s", POLICIES["urgency"], None, erring())
            draw = delayed(steady, latency_s, 1 if immediate else batch)
            cells += waits(draw, [variant], options, paper)
    return cells


def resume_table() -> list[Cell]:
    """Return the cost of resuming after 100 prompt and 200 answer tokens, by the tokens kept."""
    prompt, done = 100.0, 200.0
    return [
        Cell(name, way, Estimate(rates.resume_with_s(prompt, done, kept)))
        for name, rates in RATES.items()
        for way, kept in (
            ("the rule", rates.tokens_to_keep(prompt, done)),
            ("keep all", done),
            ("keep none", 0.0),
            ("Eq. 6 as printed", min(rates.tokens_to_keep_as_printed(prompt), done)),
        )
    ]


ERRORS = (0.1, 0.3, 0.5, 0.7, 0.9)
URGENCY_PAPER: dict[float, Sequence[float]] = {0.1: (0.02, 0.03), 0.9: (0.07, 0.22)}
LENGTH_PAPER: dict[float, Sequence[float]] = {
    0.1: (0.01, 0.03, 0.08, 0.18, 0.30),
    0.9: (0.01, 0.04, 0.11, 0.21, 0.33),
}


def tables(options: Options) -> Report:
    """Run the spikes, the errors, other cards and a slow predictor, and compare the ways to resume."""
    spiking, ratios, curves = spike_tables(options)
    steady = spikes(0.25, 5, 300, options.requests)
    semantic = POLICIES["urgency"]
    levels, lengths = [], []
    for error in ERRORS:
        row = f"error {error:g}"
        about_urgency = Variant(row, semantic, None, erring(urgency_error=error))
        about_length = Variant(row, semantic, None, erring(length_error=error))
        levels += waits(steady, [about_urgency], options, URGENCY_PAPER.get(error, ()))
        lengths += waits(steady, [about_length], options, LENGTH_PAPER.get(error, ()))
    return Report(
        "",
        f"A100 with Qwen1.5-4B (Appendix B), continuous batching of {BATCH}, answers of 5 to {MAX_TOKENS}"
        f" tokens, five levels of urgency; sojourn time over tokens; mean of {options.seeds} seeds, 95 %"
        " confidence",
        (
            figures("Figure 2(c, d): spikes, requests of urgency 0", spiking),
            figures("How many times longer urgency 0 waits than under semantic scheduling", ratios),
            figures("Figure 4: spikes of up to 100 on other cards", other_cards_table(options)),
            figures("Figure 2(a): errors about urgency", levels),
            figures("Figure 2(b): errors about length", lengths),
            figures("Tables 1 and 2: a predictor that takes time", predictor_table(options)),
            figures("Resuming after a prompt of 100 and 200 tokens done (Eq. 3 to 6)", resume_table()),
        ),
        NOTES,
        (
            Plot(
                "Spikes every 0.1 s: requests of urgency 0",
                "largest spike (requests)",
                "normalised waiting time (s/token)",
                curves,
            ),
        ),
    )
