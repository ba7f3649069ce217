"""QUARTZ: routing and queueing for the time to first token on four workers (its Tables 4 to 8, 14B model).

A worker prefills one request at a time. The scheduler routes each request to a worker on arrival (power of
two choices) and orders by its key, as QUARTZ's Algorithm 1.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from clairvoyant_lab.confidence import jain
from clairvoyant_lab.simulator.comparison import UNBOUNDED
from clairvoyant_lab.simulator.engine import Run, SlotSimulation
from clairvoyant_lab.simulator.workload import Floats, Ints, Predictions, Workload

from clairvoyant_cli.scheduler.fairness import SERVICE_MEMORY_S
from clairvoyant_cli.scheduler.policy import (
    GENTLE_AGING_RATE,
    POLICIES,
    QUARTZ_CANDIDATES,
    QUARTZ_FAIRNESS,
    Policy,
    quartz_key,
)
from clairvoyant_cli.scheduler.quantile_coverage import ALPHA, DELTA, Coverage
from clairvoyant_cli.scheduler.queue import Scheduler
from clairvoyant_cli.scheduler.queued_job import QueuedJob

EVERY = 1 << 30  # as a number of routing candidates: all workers
WORKERS = ("w0", "w1", "w2", "w3")
CLIENTS = 16
CHAT, RAG = 0, 1
SLO_S = np.array([2.0, 4.0])
FIRST_TOKEN_S = 0.03
PREFILL_TOKENS_PER_S = 5500.0
LAG = 64
"""Requests between a prediction and the earliest use of its residual: about the number in flight."""

SPREAD = np.array([0.20, 0.55, 0.35])
"""Spread of the logarithm of prefill times for no, partial and high prefix reuse."""


@dataclass(frozen=True, slots=True)
class Shift:
    """A workload regime: the differences from the predictor's training data (QUARTZ, section 5.7)."""

    rag_share: float = 0.3
    reuse: float = 1.0
    slowdown: float = 1.0


SHIFTS = {
    "nominal": Shift(),
    "more RAG": Shift(rag_share=0.4),
    "low reuse": Shift(reuse=0.4),
    "large budget": Shift(slowdown=1.25),
}


@dataclass(frozen=True, slots=True)
class Traffic:
    """A workload, and the estimates that a router has of each request, shape (n,)."""

    workload: Workload
    expected_s: Floats
    blind_s: Floats
    reuse_class: Ints


def traffic(rng: np.random.Generator, requests: int, load: float, shift: Shift) -> Traffic:
    """Return mixed chat and RAG requests of clients of unequal habits at an offered load per worker."""
    habit = np.clip(rng.normal(shift.rag_share, 0.2, CLIENTS), 0.02, 0.98)
    share = rng.dirichlet(np.full(CLIENTS, 1.0))
    client = rng.choice(CLIENTS, requests, p=share)
    kind = (rng.random(requests) < habit[client]).astype(np.int64)
    median = np.where(kind == RAG, 4500.0, 300.0)
    prompt = np.clip(median * rng.lognormal(0.0, np.where(kind == RAG, 0.5, 0.8)), 16.0, 16000.0)
    reuse_class = rng.choice(3, requests, p=[0.5, 0.3, 0.2])
    hit = shift.reuse * np.array([0.0, 0.45, 0.8])[reuse_class]
    believed = np.array([0.0, 0.45, 0.8])[reuse_class]
    noise = rng.lognormal(0.0, SPREAD[reuse_class])
    service_s = 0.01 + shift.slowdown * prompt * (1.0 - hit) / PREFILL_TOKENS_PER_S * noise
    expected_s = 0.01 + prompt * (1.0 - believed) / PREFILL_TOKENS_PER_S
    blind_s = 0.01 + prompt * (1.0 - 0.295) / PREFILL_TOKENS_PER_S
    rate = load * len(WORKERS) / float(service_s.mean())
    arrival_s = np.cumsum(rng.exponential(1.0 / rate, requests))
    columns = Workload(arrival_s, service_s, kind, prompt_tokens=prompt, client=client)
    return Traffic(columns, expected_s, blind_s, reuse_class)


@dataclass(frozen=True, slots=True)
class Quantiles:
    """A quantile prediction, and 1 where its recent misses make it untrustworthy."""

    q_s: Floats
    distrusted: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def coverage(self, actual_s: Floats) -> float:
        """Return the share of requests that took no longer than their quantile."""
        return float((actual_s <= self.q_s).mean())


def raw_quantile(seen: Traffic) -> Quantiles:
    """Return the quantile of an offline predictor, which underestimates the spread."""
    return Quantiles(seen.expected_s * np.exp(1.21 * SPREAD[seen.reuse_class]))


def calibrated(seen: Traffic, raw: Quantiles) -> Quantiles:
    """Return the quantile corrected online by class; a residual is known LAG requests later."""
    actual_s, raw_s = seen.workload.service_s.tolist(), raw.q_s.tolist()
    regimes = [str(kind) for kind in seen.reuse_class.tolist()]
    coverage = Coverage(ALPHA, DELTA)
    q_s, distrusted = np.empty_like(raw.q_s), np.zeros(len(raw.q_s), dtype=np.int64)
    for i, regime in enumerate(regimes):
        if i >= LAG:
            coverage.learn(regimes[i - LAG], float(q_s[i - LAG]), actual_s[i - LAG])
        q_s[i] = coverage.corrected(regime, raw_s[i])
        distrusted[i] = not coverage.trusted
    return Quantiles(q_s, distrusted)


@dataclass(frozen=True, slots=True)
class Variant:
    """One row of the ablation: its predictions, routing and order."""

    name: str
    believes: str
    routes_by: str
    orders_by: str
    fairness: float = QUARTZ_FAIRNESS
    aging: float = GENTLE_AGING_RATE


FULL = Variant("quartz", "calibrated", "p2c", "key")
VARIANTS = (
    Variant("fifo-ll", "point", "least loaded", "arrival"),
    Variant("fifo-p2c", "point", "p2c", "arrival"),
    Variant("token-fair", "point", "least loaded", "usage"),
    replace(FULL, name="point-pred", believes="point"),
    replace(FULL, name="routing-only", orders_by="arrival"),
    replace(FULL, name="queueing-only", routes_by="least loaded"),
    replace(FULL, name="no calibration", believes="raw"),
    replace(FULL, name="no fairness", fairness=0.0),
    replace(FULL, name="no locality", believes="blind"),
    FULL,
    replace(FULL, name="quartz, lambda 0.2", aging=0.2),
    replace(FULL, name="quartz, bound late", routes_by="late"),
    replace(FULL, name="oracle", believes="truth"),
)

ROUTES = {"p2c": QUARTZ_CANDIDATES, "least loaded": EVERY, "late": None}
"""The number of workers to choose from on arrival; None: choose when a slot becomes free."""

PAPER = {
    "fifo-ll": (2.861, 4.547, 0.264, 0.919, 9.57),
    "token-fair": (None, None, None, 0.944, 8.08),
    "point-pred": (2.418, 3.698, 0.197, 0.931, None),
    "routing-only": (None, 3.576, 0.184, 0.938, None),
    "queueing-only": (None, 3.471, 0.178, 0.942, None),
    "no calibration": (None, 3.294, 0.165, 0.946, None),
    "no fairness": (None, 3.107, 0.150, 0.842, None),
    "no locality": (None, 3.409, 0.172, 0.934, None),
    "quartz": (2.137, 3.216, 0.158, 0.952, 7.43),
}
"""P95 and P99 TTFT (s), SLO violations, Jain's index, longest wait (s): Tables 4, 5 and 8, 14B, Mixed."""

PAPER_SUCCESS = {
    "fifo-ll": (0.741, 0.618, 0.587, 0.561),
    "point-pred": (0.808, 0.674, 0.643, 0.626),
    "no calibration": (0.835, 0.687, 0.657, 0.634),
    "quartz": (0.844, 0.759, 0.731, 0.698),
}
"""SLO success under the four regimes (Table 7)."""

PAPER_COVERAGE = {
    "nominal": (0.887, 0.944),
    "more RAG": (0.853, 0.925),
    "low reuse": (0.819, 0.909),
    "large budget": (0.838, 0.915),
}
"""Raw and calibrated coverage of the 0.95 quantile (Table 6)."""


def quantiles_of(variant: Variant, seen: Traffic) -> Quantiles:
    """Return the variant's quantile predictions."""
    makers: dict[str, Callable[[], Quantiles]] = {
        "point": lambda: Quantiles(seen.expected_s),
        "blind": lambda: calibrated(seen, Quantiles(seen.blind_s * np.exp(1.21 * SPREAD.mean()))),
        "raw": lambda: raw_quantile(seen),
        "calibrated": lambda: calibrated(seen, raw_quantile(seen)),
        "truth": lambda: Quantiles(seen.workload.service_s),
    }
    return makers[variant.believes]()


def ordering(variant: Variant) -> Policy:
    """Return the variant's order: arrival, the client's usage alone, or QUARTZ's key (Eq. 6 to 8)."""

    def usage(entry: QueuedJob) -> float:
        return variant.aging * entry.job.arrival_s + variant.fairness * entry.usage_s / SERVICE_MEMORY_S

    orders = {
        "arrival": POLICIES["fcfs"],
        "usage": Policy("token-fair", usage),
        "key": Policy("quartz", quartz_key(variant.aging, variant.fairness)),
    }
    return replace(orders[variant.orders_by], candidates=ROUTES[variant.routes_by])


def run(variant: Variant, seen: Traffic) -> Run:
    """Run one variant on one traffic."""
    quantiles = quantiles_of(variant, seen)
    truth = variant.believes == "truth"
    believed_s = (
        seen.workload.service_s if truth else seen.blind_s if variant.believes == "blind" else seen.expected_s
    )
    predictions = Predictions(np.full(len(seen.blind_s), 0.5), believed_s, quantiles.q_s, believed_s)
    scheduler = Scheduler(ordering(variant), workers=dict.fromkeys(WORKERS, 1), capacity=UNBOUNDED)
    policy, distrusted = scheduler.policy, quantiles.distrusted

    def route(number: int, now: float, scheduler: Scheduler) -> str:
        """Pin no request; order by arrival while the quantiles are distrusted, as the proxy does."""
        wanted = POLICIES["fcfs"] if len(distrusted) and distrusted[number] else policy
        if scheduler.policy is not wanted:
            scheduler.set_policy(wanted, now)
        return ""

    return SlotSimulation(scheduler, seen.workload, predictions, route=route).run()


def ttft_s(found: Run) -> Floats:
    """Return the times to the first token: a request's service is its prefill."""
    return found.wait_s + found.workload.service_s + FIRST_TOKEN_S


def violations(first_s: Floats, workload: Workload) -> float:
    """Return the share of requests whose first token misses the objective of their class."""
    return float((first_s > SLO_S[workload.kind]).mean())


def fairness_index(first_s: Floats, workload: Workload) -> float:
    """Return Jain's index over the clients' mean TTFT relative to its objective."""
    relative, clients = first_s / SLO_S[workload.kind], workload.client
    return jain(np.array([relative[clients == c].mean() for c in np.unique(clients)]))


LOAD = 0.90
