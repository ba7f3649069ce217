"""RR-SJF: preemption every few tokens, shortest first within a round (its Figures 2 to 8).

The paper's figures are images; what its text says of them stands beside ours.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from clairvoyant_cli.confidence import Estimate, mean_of, percentile
from clairvoyant_cli.research.simulator.batch import WORKER, BatchRun, BatchSimulation, Machine
from clairvoyant_cli.research.simulator.kvcache import Discarded, Rates
from clairvoyant_cli.research.simulator.predictions import gaussian_tokens
from clairvoyant_cli.research.simulator.report import Cell, Curve, Plot, Point, Report, Table
from clairvoyant_cli.research.simulator.trial import UNBOUNDED, Options
from clairvoyant_cli.research.simulator.workload import Workload
from clairvoyant_cli.scheduler.policy import POLICIES, Policy, in_turns_of
from clairvoyant_cli.scheduler.queue import Scheduler

CAP_TOKENS = 1024.0
SEEDS = 5
REQUESTS = 1000
QUANTUM_TOKENS = 5.0

L4_LLAMA_1B = Machine(slots=256, rates=Rates(0.0, 2.0e-5, 0.0, 0.0, 0.012), sequence_s=4.0e-5)
"""Llama 3.2 1B on an L4, from the card's data sheet: 2.5 GB of weights at 300 GB/s are 8 ms an iteration plus
overhead, prefill runs at 50,000 tokens/s, and vLLM batches 256 sequences. The paper gives no such figures."""

SETTING = (
    "vLLM-like continuous batching, 256 sequences, preemption by recompute; answers of 4 to 1,024 tokens of"
    " which half are cut off at 1,024; {requests} requests, mean of {seeds} seeds, 95 % confidence"
)

NOTES = (
    (
        "The paper's text: median TTFT of RR-SJF 9 times below FCFS and like SJF's; greatest TTFT 5 times"
        " below SJF's and FCFS's and 1.5 times below RR's; 25th percentile of E2EL 9 times below RR's;"
        " median E2EL alike, the greatest E2EL the largest of all; at 25 requests/s and above median TTFT"
        " nearly 10 times below FCFS."
    ),
    (
        "Its vLLM's speed, batch limit and lengths are not given and are assumed here (see L4_LLAMA_1B), so"
        " ratios are compared and not seconds."
    ),
    (
        "The order of the policies agrees throughout, the ratios to within a factor of two, but for RR's"
        " E2EL: our RR evicts whoever has held its place longest and so delays everybody; the paper does not"
        " say whom its RR evicts."
    ),
    (
        "E2EL grows with the quantum, which the paper found and could not explain. Algorithm 1 evicts at"
        " most one sequence an iteration, the longest whose quantum is spent: a small quantum lets it always"
        " take the longest and does not add evictions, a large one leaves it only those that have run for"
        " long already."
    ),
    "Noise hardly moves RR-SJF's TTFT and moves SJF's, as in the paper; RR-SJF's E2EL does suffer from it.",
)


def workload(rng: np.random.Generator, requests: int, rate_per_s: float) -> Workload:
    """Return chat-like requests: half answer in up to 1,024 tokens, in three humps, half hit the cap.

    An infinite rate is a burst: all arrive at time 0.
    """
    humps = rng.choice([60.0, 300.0, 700.0], requests, p=[0.4, 0.35, 0.25])
    short = np.clip(rng.lognormal(np.log(humps), 0.5), 4.0, CAP_TOKENS - 1.0)
    tokens = np.where(rng.random(requests) < 0.5, CAP_TOKENS, np.ceil(short))
    prompt_tokens = np.clip(np.ceil(rng.lognormal(np.log(60.0), 1.0, requests)), 4.0, 2000.0)
    service_s = L4_LLAMA_1B.alone_s(prompt_tokens, tokens)
    arrival_s = np.cumsum(rng.exponential(1.0 / rate_per_s, requests))
    kind = (tokens >= CAP_TOKENS).astype(np.int64)
    return Workload(arrival_s, service_s, kind, tokens, prompt_tokens)


def policies(quantum_tokens: float = QUANTUM_TOKENS) -> dict[str, Policy]:
    """Return the paper's four policies."""
    by_tokens = replace(POLICIES["oracle"], name="sjf")
    return {
        "fcfs": POLICIES["fcfs"],
        "sjf": by_tokens,
        "rr": in_turns_of(POLICIES["rr"], quantum_tokens),
        "rr-sjf": in_turns_of(POLICIES["rr-sjf"], quantum_tokens),
    }


def runs(
    policy: Policy,
    options: Options,
    *,
    rate_per_s: float = float("inf"),
    sigma_tokens: float = 0.0,
    seeds: int,
) -> list[BatchRun]:
    """Run one policy on each seed's workload."""
    found = []
    for seed in range(seeds):
        load = workload(np.random.default_rng((seed, 0)), options.requests or REQUESTS, rate_per_s)
        predictions = gaussian_tokens(np.random.default_rng((seed, 1)), load, sigma_tokens, CAP_TOKENS)
        scheduler = Scheduler(policy, workers={WORKER: L4_LLAMA_1B.slots}, capacity=UNBOUNDED)
        cache = Discarded(L4_LLAMA_1B.rates) if policy.quantum_tokens else None
        found.append(BatchSimulation(scheduler, load, predictions, L4_LLAMA_1B, cache=cache).run())
        options.report(len(load))
    return found


def over(found: Sequence[BatchRun], measure: str, share: float) -> Estimate:
    """Return a percentile of `ttft_s` or `sojourn_s`, as an estimate over runs; 100 is the greatest."""
    return mean_of([percentile(getattr(run, measure), share) for run in found])


def describe(row: str, found: Sequence[BatchRun]) -> list[Cell]:
    """Return the quartiles and the greatest of TTFT and E2EL."""
    return [
        Cell(row, f"{label} {name}", over(found, measure, share))
        for label, measure in (("TTFT", "ttft_s"), ("E2EL", "sojourn_s"))
        for name, share in (("P25", 25.0), ("P50", 50.0), ("P75", 75.0), ("max", 100.0))
    ]


def ratios(found: dict[str, list[BatchRun]]) -> list[Cell]:
    """Return the ratios the paper states, with its figures."""
    stated = (
        ("fcfs", "ttft_s", 50.0, "median TTFT", 9.0),
        ("sjf", "ttft_s", 50.0, "median TTFT", 1.0),
        ("fcfs", "ttft_s", 100.0, "greatest TTFT", 5.0),
        ("sjf", "ttft_s", 100.0, "greatest TTFT", 5.0),
        ("rr", "ttft_s", 100.0, "greatest TTFT", 1.5),
        ("rr", "sojourn_s", 25.0, "P25 of E2EL", 9.0),
        ("rr", "sojourn_s", 50.0, "median E2EL", 1.0),
        ("sjf", "sojourn_s", 50.0, "median E2EL", 1.0),
    )
    ours = found["rr-sjf"]
    return [
        Cell(
            f"{name} / rr-sjf",
            what,
            mean_of(
                [
                    percentile(getattr(theirs, measure), share) / percentile(getattr(mine, measure), share)
                    for theirs, mine in zip(found[name], ours, strict=True)
                ]
            ),
            "x",
            paper,
        )
        for name, measure, share, what, paper in stated
    ]


def figures(options: Options) -> Report:
    """Compare the four policies, then sweep the noise, the request rate and the quantum."""
    seeds = options.seeds or SEEDS
    burst = {name: runs(policy, options, seeds=seeds) for name, policy in policies().items()}
    comparison = [cell for name, found in burst.items() for cell in describe(name, found)]

    noise: list[Cell] = []
    for name in ("sjf", "rr-sjf"):
        for sigma in (0.0, 25.0, 100.0, 400.0, 1024.0):
            found = runs(policies()[name], options, sigma_tokens=sigma, seeds=seeds)
            noise += describe(f"{name} sigma {sigma:g}", found)

    rates: list[Cell] = []
    for name in ("fcfs", "sjf", "rr-sjf"):
        for rate in (5.0, 10.0, 15.0, 25.0, 50.0):
            found = runs(policies()[name], options, rate_per_s=rate, seeds=seeds)
            rates += describe(f"{name} {rate:g}/s", found)

    quanta = (5.0, 10.0, 25.0, 50.0, 100.0, 200.0)
    swept = {q: runs(policies(q)["rr-sjf"], options, seeds=seeds) for q in quanta}
    quantum = [cell for q, found in swept.items() for cell in describe(f"quantum {q:g}", found)]
    curves = tuple(
        Curve(
            label,
            tuple(
                Point(q, estimate.mean, estimate.half_width)
                for q, found in swept.items()
                for estimate in [mean_of([float(getattr(run, measure).mean()) for run in found])]
            ),
        )
        for label, measure in (("mean TTFT", "ttft_s"), ("mean E2EL", "sojourn_s"))
    )
    return Report(
        "rr-sjf",
        SETTING.format(requests=options.requests or REQUESTS, seeds=seeds),
        (
            Table("Ratios the paper states (its figures in brackets)", tuple(ratios(burst))),
            Table("Figures 3 and 4: a burst, quantum 5, true lengths", tuple(comparison)),
            Table("Figures 5 and 6: Gaussian noise on the lengths (tokens)", tuple(noise)),
            Table("Figures 7 and 8: request rate", tuple(rates)),
            Table("Figure 2: tokens before preemption", tuple(quantum)),
        ),
        NOTES,
        (Plot("RR-SJF: tokens before preemption", "quantum (tokens)", "time (s)", curves),),
    )
