"""Semantic scheduling: urgency first, then remaining time, with preemption and KV eviction (its section 4).

The paper's simulation is given by its Appendix B and little else. Batch size, memory, lengths and the number
of requests are assumed here: compare shapes and ratios, not seconds.

python -m tests.perf.perf_semantic [--seeds 5] [--requests 0]
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from clairvoyant_lab.confidence import Estimate
from clairvoyant_lab.report import Cell, Report, figures, paragraphs, print_report
from clairvoyant_lab.simulator.comparison import (
    UNBOUNDED,
    Draw,
    Figure,
    Forecaster,
    Options,
    Samples,
    Variant,
    absolute,
)
from clairvoyant_lab.simulator.engine import Run
from clairvoyant_lab.simulator.workload import Floats, Ints, Predictions, Workload

from clairvoyant_cli.commands.console import PlainConsole
from clairvoyant_cli.scheduler.policy import POLICIES, URGENCY_STEP_S, Policy
from clairvoyant_cli.scheduler.queue import Scheduler
from clairvoyant_cli.scheduler.queued_job import QueuedJob
from tests.perf.batch_simulation import WORKER, BatchSimulation, Machine, PreemptedCaches, Rates

LEVELS = 5
MAX_TOKENS = 500
BATCH = 32
CACHE_TOKENS = 20_000.0

MACHINE = Machine(BATCH, Rates(1.466e-7, 1.052e-4, 1e-4, 5.913e-9, 1.196e-2))
"""An A100 with Qwen1.5-4B (Appendix B). It prints the quadratic prefill coefficient as 1.466e-2, with which a
prompt of 100 tokens takes 147 s; 1e-7 is the order of magnitude of its neighbour on the same card."""


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

    Its Figure 4 (other cards) and Tables 1 and 2 (a predictor that takes time) are not repeated.
    """
)


def spikes(gap_s: float, most: int, times: int = 60, requests: int = 0) -> Draw:
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
        service_s = MACHINE.alone_s(prompt_tokens, tokens)
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


def from_tokens(tokens: Floats, workload: Workload) -> Predictions:
    """Return the prediction that follows from a guess of the tokens, at the workload's own mean speed."""
    total = float(workload.tokens.sum())
    seconds_per_token = float((workload.service_s).sum()) / total if total else 0.0
    cost_s = tokens * seconds_per_token
    p_long = tokens / max(float(tokens.max()), 1e-9)
    return Predictions(p_long, cost_s, cost_s, tokens)


def erring(urgency_error: float = 0.0, length_error: float = 0.0) -> Forecaster:
    """Return predictions in which these shares of the urgencies and lengths are wrong."""

    def predict(rng: np.random.Generator, load: Workload) -> Predictions:
        urgency = mistaken(rng, load.urgency, urgency_error)
        off = rng.uniform(-1.0, 1.0, len(load)) * 2.0 * length_error * MAX_TOKENS
        wrong = rng.random(len(load)) < length_error
        tokens = np.clip(np.where(wrong, load.tokens + off, load.tokens), 1.0, MAX_TOKENS)
        return replace(from_tokens(tokens, load), urgency=urgency)

    return predict


def per_token_s(run: Run) -> Floats:
    """Return the normalised waiting times: sojourn time over answer length."""
    result: Floats = run.sojourn_s / np.maximum(run.workload.tokens, 1.0)
    return result


LEVEL_0 = "urgency 0"
BY_LEVEL: dict[str, Figure] = {
    **{
        f"urgency {level}": lambda run, level=level: float(  # type: ignore[misc]
            per_token_s(run)[run.workload.urgency == level].mean()
        )
        for level in range(LEVELS)
    },
    "all": lambda run: float(per_token_s(run).mean()),
}


def waits(
    draw: Draw, variants: Sequence[Variant], options: Options, paper: Sequence[float] = ()
) -> list[Cell]:
    """Return the normalised waiting time of each level and of all; `paper` has the first ones of all rows."""
    samples: Samples = {each.name: {level: [] for level in BY_LEVEL} for each in variants}
    for seed in range(options.seeds):
        load = draw(np.random.default_rng((seed, 0)))
        for each in variants:
            predictions = each.forecaster(np.random.default_rng((seed, 1)), load)
            scheduler = Scheduler(each.policy, workers={WORKER: MACHINE.slots}, capacity=UNBOUNDED)
            cache = PreemptedCaches(MACHINE.rates, CACHE_TOKENS) if each.policy.preemptive else None
            run = BatchSimulation(scheduler, load, predictions, MACHINE, cache=cache).run()
            for level, figure in BY_LEVEL.items():
                samples[each.name][level].append(figure(run))
    stated = {(v.name, level): value for v in variants for level, value in zip(BY_LEVEL, paper, strict=False)}
    return absolute(samples, "s/token", stated)


def spike_tables(options: Options) -> tuple[list[Cell], list[Cell]]:
    """Return urgency 0 under the four policies by gap and spike, and the ratios to semantic scheduling."""
    variants = [Variant(name, policy, None, erring()) for name, policy in POLICIES_COMPARED.items()]
    paper = {"hpjf": 1.7, "sjf": 6.1, "fcfs": 8.7}
    cells: list[Cell] = []
    ratios: list[Cell] = []
    for gap_s in (0.1, 1.0):
        for most in (5, 25, 50, 100):
            row, known = f"gap {gap_s:g} s, up to {most}", (gap_s, most) == (0.1, 100)
            measured = waits(spikes(gap_s, most, requests=options.requests), variants, options)
            found = {cell.row: cell for cell in measured if cell.column == LEVEL_0}
            for name, cell in found.items():
                stated = 0.08 if known and name == "semantic" else None
                cells.append(replace(cell, row=row, column=name, paper=stated))
            for name, stated in paper.items():
                ratio = Estimate(found[name].ours.mean / found["semantic"].ours.mean)
                ratios.append(Cell(row, name, ratio, "x", stated if known else None))
    return cells, ratios


ERRORS = (0.1, 0.3, 0.5, 0.7, 0.9)
URGENCY_PAPER: dict[float, Sequence[float]] = {0.1: (0.02, 0.03), 0.9: (0.07, 0.22)}
LENGTH_PAPER: dict[float, Sequence[float]] = {
    0.1: (0.01, 0.03, 0.08, 0.18, 0.30),
    0.9: (0.01, 0.04, 0.11, 0.21, 0.33),
}


def tables(options: Options) -> Report:
    """Run the spikes, and errors about urgency and length."""
    spiking, ratios = spike_tables(options)
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
        "Semantic scheduling",
        f"A100 with Qwen1.5-4B (Appendix B), continuous batching of {BATCH}, answers of 5 to {MAX_TOKENS}"
        f" tokens, five levels of urgency; sojourn time over tokens; mean of {options.seeds} seeds, 95 %"
        " confidence",
        (
            figures("Figure 2(c, d): spikes, requests of urgency 0", spiking),
            figures("How many times longer urgency 0 waits than under semantic scheduling", ratios),
            figures("Figure 2(a): errors about urgency", levels),
            figures("Figure 2(b): errors about length", lengths),
        ),
        NOTES,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--requests", type=int, default=0, help="0: as many as each experiment has by default"
    )
    given = parser.parse_args()
    print_report(tables(Options(given.seeds, given.requests)), PlainConsole())
