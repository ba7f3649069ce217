"""PARS: per-token latency in a burst of 2,000 requests, by the quality of the ranking (its section IV).

A predictor is replaced by a guess with its published Kendall's tau (Table II).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from clairvoyant_cli.confidence import mean_of, percentile
from clairvoyant_cli.research.report import Cell, Report, figures, paragraphs
from clairvoyant_cli.research.simulator.batch import Machine, Rates
from clairvoyant_cli.research.simulator.comparison import Figure, Options, Variant, absolute, compare
from clairvoyant_cli.research.simulator.predictions import Predictions, ranked_tokens
from clairvoyant_cli.research.simulator.workload import Workload
from clairvoyant_cli.scheduler.policy import POLICIES
from clairvoyant_cli.scheduler.starvation import Guard

STARVED_S = 120.0

A100_8B = Machine(slots=256, rates=Rates(0.0, 1.0e-4, 0.0, 0.0, 0.012), sequence_s=6.0e-5)
"""An 8B model on an A100: 16 GB of weights at 1.5 TB/s are 11 ms an iteration, prefill 10,000 tokens/s."""

SJF = replace(POLICIES["oracle"], name="sjf", guard=Guard())
"""Shortest predicted first; a request that has waited two minutes goes first (PARS, section III-B)."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """Answer lengths of a model on a data set, with the paper's ranking accuracies and speed-up over FCFS.

    Lengths are log-normal with this median (tokens) and spread (of the logarithm), cut at `cap_tokens`.
    """

    median_tokens: float
    spread: float
    cap_tokens: float
    kendall_tau: Mapping[str, float]
    speed_up: tuple[float | None, float | None]


CORPORA = {
    "alpaca llama": Corpus(110.0, 1.3, 2048.0, {"listwise": 0.67, "pointwise": 0.64, "pars": 0.75}, (7.7, 8)),
    "lmsys llama": Corpus(
        180.0, 1.2, 2048.0, {"listwise": 0.54, "pointwise": 0.37, "pars": 0.65}, (None, None)
    ),
    "alpaca r1": Corpus(700.0, 0.7, 8192.0, {"listwise": 0.50, "pointwise": 0.30, "pars": 0.61}, (2, 2)),
    "lmsys r1": Corpus(1000.0, 0.8, 8192.0, {"listwise": 0.35, "pointwise": 0.09, "pars": 0.50}, (2, 2)),
}

LATENCIES: dict[str, Figure] = {
    "average": lambda run: float(run.per_token_s.mean()),
    "p90": lambda run: percentile(run.per_token_s, 90.0),
}

NOTES = paragraphs(
    """
    The paper's latencies are in images. Its text states that PARS is up to 7.7 times faster than FCFS on
    Llama and more than 2 times on the reasoning model on average, up to 8 and more than 2 times at p90, and
    second only to the oracle.

    Answer lengths are log-normal substitutes. The speed-up over FCFS follows from their spread; the order of
    the methods follows from the published accuracies alone, and agrees, as does the speed-up on the reasoning
    model. On Llama not even our oracle reaches 7.7 on average: the paper's answers must be shorter and more
    spread.

    The two-minute guard hardly matters: the burst is nearly over before it fires.
    """
)


def workload(rng: np.random.Generator, corpus: Corpus, requests: int) -> Workload:
    """Return a burst of requests at time 0."""
    drawn = rng.lognormal(np.log(corpus.median_tokens), corpus.spread, requests)
    tokens = np.ceil(np.clip(drawn, 1.0, corpus.cap_tokens))
    prompt_tokens = np.ceil(rng.lognormal(np.log(40.0), 0.8, requests))
    kind = np.zeros(requests, dtype=np.int64)
    return Workload(np.zeros(requests), A100_8B.alone_s(prompt_tokens, tokens), kind, tokens, prompt_tokens)


def ranking(name: str, corpus: Corpus, method: str, *, guarded: bool = False) -> Variant:
    """Return shortest-first with the method's ranking accuracy."""
    accuracy = corpus.kendall_tau.get(method, 1.0)

    def ranked(rng: np.random.Generator, load: Workload) -> Predictions:
        return ranked_tokens(rng, load, accuracy)

    label = f"{name}: {method}" + (" no guard" if method == "pars" and not guarded else "")
    return Variant(label, SJF, STARVED_S if guarded else None, ranked)


def burst(options: Options) -> Report:
    """Compare FCFS, pointwise, listwise, pairwise and oracle rankings in a burst."""
    latency: list[Cell] = []
    speed_up: list[Cell] = []
    for name, corpus in CORPORA.items():
        fcfs = Variant(f"{name}: fcfs", POLICIES["fcfs"])
        rankings = [ranking(name, corpus, each, guarded=True) for each in ("pointwise", "listwise", "pars")]
        rankings += [ranking(name, corpus, "pars"), ranking(name, corpus, "oracle")]
        samples = compare(
            [fcfs, *rankings],
            lambda rng, corpus=corpus: workload(rng, corpus, options.requests),  # type: ignore[misc]
            LATENCIES,
            options,
            machine=A100_8B,
        )
        latency += absolute(samples, "s/token")
        for each in rankings:
            stated = corpus.speed_up if each.name == f"{name}: pars" else (None, None)
            for (figure, ours), paper in zip(samples[each.name].items(), stated, strict=True):
                base = samples[fcfs.name][figure]
                ratio = mean_of([b / o for b, o in zip(base, ours, strict=True)])
                speed_up.append(Cell(each.name, figure, ratio, "x", paper))
    return Report(
        "",
        f"vLLM-like continuous batching of 256 sequences, {options.requests} requests at once, mean of"
        f" {options.seeds} seeds, 95 % confidence; latency is sojourn time over answer length",
        (figures("Times faster than FCFS", speed_up), figures("Per-token latency", latency)),
        NOTES,
    )
