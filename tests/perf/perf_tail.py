"""The policies at the middle and the end of the distribution, by workload and load, in the simulator.

    python -m tests.perf.perf_tail --data FOLDER [--seeds 4] [--requests 1000] [--out FILE.svg]

FOLDER has traces of arrivals and lengths, prompts with the lengths of their answers, and steps of agents. One
slot, resuming costs 50 ms, tau is ten mean service times of a short request. Prints tables; draws a figure.
"""

import gzip
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from itertools import product
from math import log
from pathlib import Path

import numpy as np
from clairvoyant_lab.baselines import ALL_POLICIES
from clairvoyant_lab.confidence import change_of, mean_of
from clairvoyant_lab.simulator.comparison import UNBOUNDED, figures_for
from clairvoyant_lab.simulator.engine import Preemption, SlotSimulation
from clairvoyant_lab.simulator.traces import mean_by_class, read_history
from clairvoyant_lab.simulator.workload import (
    LONG,
    MEDIUM,
    SHORT,
    Floats,
    LogNormal,
    Predictions,
    TwoNormals,
    Workload,
    noisy_class,
    oracle,
    poisson,
    with_error,
)
from clairvoyant_lab.svg import Curve, Plot, Point, svg

import predictor
from clairvoyant_cli.scheduler import policy as policies
from clairvoyant_cli.scheduler.job import Z90
from clairvoyant_cli.scheduler.policy import TAU_PER_SHORT_SERVICE
from clairvoyant_cli.scheduler.queue import Scheduler
from predictor.record import PromptView
from tests.perf.harness import options

Made = tuple[Workload, Predictions]

FIRST_SEED = 100  # policies were tuned on lower ones
LOADS = ("0.3", "0.5", "0.74", "0.9", "0.95", "bursts")
SHOWN = "0.74"
BURST, BURST_LOAD = 20, 0.74  # requests at one instant
RESUMING = Preemption(0.05)
TOKENS_PER_S, PREFILL_PER_S = 40.0, 1000.0
CHARS_PER_TOKEN = 4.4
STEP_GAP_S = 1.0  # a tool's time between two steps of an agent
NEAREST = 15  # prompts among which one is drawn for an answer length of a trace

BOOST, SHARE = ALL_POLICIES["boost"], policies.SHARE
POLICIES = {
    "fcfs": (ALL_POLICIES["fcfs"], 1.0),
    "sjf": (ALL_POLICIES["sjf"], 1.0),
    "bounded": (ALL_POLICIES["bounded"], 1.0),
    "tie": (ALL_POLICIES["tie"], 1.0),
    "boost, uncut": (replace(BOOST, preemptive=False), 1.0),
    "srpt": (ALL_POLICIES["srpt"], 1.0),
    "tie-srpt": (ALL_POLICIES["tie-srpt"], 1.0),
    "boost": (BOOST, 1.0),
    "boost, g/2": (BOOST, 0.5),
    "boost, 2g": (BOOST, 2.0),
}
"""Each with the factor of boost's rate."""

DRAWN = [name for name, (_, factor) in POLICIES.items() if factor == 1.0 and name != "fcfs"]
FIGURES = ("short P50", "short P95", "long P50", "long P95", "all P99", "mean")
SUMMED = ("short P50", "short P95", "long P95", "all P99", "mean")


# -- workloads ----------------------------------------------------------------------------------------------


def paper(accuracy: float) -> Callable[[int, int, Path], Made]:
    def made(seed: int, requests: int, _: Path) -> Made:
        service = TwoNormals()
        workload = poisson(np.random.default_rng((seed, 0)), requests, 1.0, service)
        means = service.short_mean_s, service.long_mean_s
        return workload, noisy_class(np.random.default_rng((seed, 1)), workload, accuracy, *means)

    return made


def lognormal(error: float) -> Callable[[int, int, Path], Made]:
    def made(seed: int, requests: int, _: Path) -> Made:
        answers, rng = LogNormal(), np.random.default_rng((seed, 1))
        workload = poisson(np.random.default_rng((seed, 0)), requests, 1.0, answers)
        return workload, with_error(rng, workload, error, answers) if error else oracle(workload)

    return made


@cache
def prompts(data: Path) -> tuple[list[str], Floats]:
    """Return prompts that no shipped model was trained on, and the tokens of a model's answers, ascending."""
    with gzip.open(data / "prompts/alpaca_eval.jsonl.gz", "rt") as lines:
        rows = [json.loads(line) for line in lines]
    pairs = [(row["chars"]["Meta-Llama-3.1-8B-Instruct-Turbo"], row["prompt"]) for row in rows]
    chars, texts = zip(*sorted(pairs), strict=True)
    return list(texts), np.array(chars) / CHARS_PER_TOKEN


def azure(seed: int, requests: int, data: Path) -> Made:
    """Return a part of the trace; the shipped predictor reads a prompt that fits the length."""
    trace = read_history(data / "traces/AzureLLMInferenceTrace_conv.csv.gz").workload
    rng = np.random.default_rng((seed, 0))
    texts, lengths = prompts(data)
    begin = int(rng.integers(len(trace) - requests))
    part = slice(begin, begin + requests)
    tokens, read_s = trace.tokens[part], trace.prompt_tokens[part] / PREFILL_PER_S
    near = np.searchsorted(lengths, tokens) + rng.integers(-(NEAREST // 2), NEAREST // 2 + 1, requests)
    loaded = predictor.load()
    said = [loaded.predict(PromptView(texts[n])) for n in np.clip(near, 0, len(texts) - 1)]
    mean, q90 = (np.array([getattr(e, of) for e in said]) for of in ("expected_tokens", "q90_tokens"))
    workload = Workload(
        trace.arrival_s[part] - trace.arrival_s[begin], trace.service_s[part], trace.kind[part]
    )
    return by_quantile(workload, tokens), predicted(np.array([e.p_long for e in said]), mean, q90, read_s)


def agents_and_chats(seed: int, requests: int, data: Path) -> Made:
    """Return steps of agents and as many chats, in one queue.

    An agent's step is predicted by the earlier ones of its session, a chat with an error of 0.9.
    """
    rng, half, steps = np.random.default_rng((seed, 0)), requests // 2, list[tuple[float, float, float]]()
    sessions, spread = recorded_sessions(data)
    mean_s = np.mean(np.concatenate(sessions)) / TOKENS_PER_S
    chat, said = lognormal(0.9)(seed, half, data)
    between_s, now = mean_s * np.mean([len(e) for e in sessions]) / 0.37, 0.0
    while len(steps) < 2 * half:
        now += rng.exponential(between_s)
        at, tokens = now, sessions[rng.integers(len(sessions))]
        logs, usual = np.log(tokens), float(np.mean(np.log(np.concatenate(sessions))))
        for n, length in enumerate(tokens.tolist()):
            steps.append((at, length, (usual + float(logs[:n].sum())) / (n + 1)))
            at += length / TOKENS_PER_S + STEP_GAP_S
    steps = sorted(steps)[:half]
    at_s, tokens, middle = np.array(steps).T
    chat_at_s = np.sort(rng.uniform(at_s[0], at_s[-1], half))
    mean, q90 = np.exp(middle + spread**2 / 2), np.exp(middle + Z90 * spread)
    order = np.argsort(np.concatenate([at_s, chat_at_s]), kind="stable")

    def both(agent: Floats, chats: Floats) -> Floats:
        return np.concatenate([agent, chats])[order]

    lengths = both(tokens, chat.service_s * TOKENS_PER_S)
    expected = both(mean, said.tokens)
    workload = Workload(both(at_s, chat_at_s), lengths / TOKENS_PER_S, np.zeros(2 * half, dtype=np.int64))
    return by_quantile(workload, lengths), predicted(
        expected / expected.max(), expected, both(q90, said.tokens_q90), np.zeros(2 * half)
    )


@cache
def recorded_sessions(data: Path) -> tuple[list[Floats], float]:
    """Return the answers' tokens of each session, and the spread of their logs about earlier ones."""
    found = dict[str, list[float]]()
    with gzip.open(data / "agents/miniswe_gemini3pro.jsonl.gz", "rt") as lines:
        for row in map(json.loads, lines):
            if row.get("answer_tokens"):
                found.setdefault(row["session"], []).append(min(row["answer_tokens"], 8000.0))
    sessions = [np.array(tokens) for tokens in found.values()]
    off = [log(e[n]) - float(np.mean(np.log(e[:n]))) for e in sessions for n in range(1, len(e))]
    return sessions, float(np.std(off))


def by_quantile(workload: Workload, tokens: Floats) -> Workload:
    """Class the shorter half as short and the longest tenth as long: few have 800 tokens."""
    middle, high = np.quantile(workload.service_s, (0.5, 0.9))
    kind = np.where(workload.service_s <= middle, SHORT, np.where(workload.service_s < high, MEDIUM, LONG))
    return replace(workload, kind=kind.astype(np.int64), tokens=tokens)


def predicted(p_long: Floats, mean: Floats, q90: Floats, read_s: Floats) -> Predictions:
    return Predictions(p_long, read_s + mean / TOKENS_PER_S, read_s + q90 / TOKENS_PER_S, mean, q90)


WORKLOADS = {
    "paper, 85 %": paper(0.85),
    "paper, 100 %": paper(1.0 - 1e-9),
    "log-normal, error 0.9": lognormal(0.9),
    "log-normal, error 0": lognormal(0.0),
    "Azure, shipped predictor": azure,
    "agents and chats": agents_and_chats,
}


# -- runs ---------------------------------------------------------------------------------------------------


def at_load(workload: Workload, load: str, seed: int) -> Workload:
    """Return the workload with its arrivals at another speed, or in bursts."""
    if load != "bursts":
        return replace(workload, arrival_s=workload.arrival_s * (workload.offered_load / float(load)))
    n, between_s = len(workload), BURST * float(workload.service_s.mean()) / BURST_LOAD
    starts_s = np.cumsum(np.random.default_rng((seed, 2)).exponential(between_s, -(-n // BURST)))
    return replace(workload, arrival_s=np.repeat(starts_s, BURST)[:n])


Found = dict[str, dict[str, list[float]]]
"""Policy -> figure -> one number a seed."""


def run(name: str, seeds: int, requests: int, data: Path) -> tuple[str, float, dict[str, Found]]:
    """Return the mean tau of a workload and its figures by load."""
    found: dict[str, Found] = {load: {p: {f: [] for f in FIGURES} for p in POLICIES} for load in LOADS}
    taus_s = list[float]()
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        made, predictions = WORKLOADS[name](seed, requests, data)
        taus_s.append(TAU_PER_SHORT_SERVICE * mean_by_class(made)[0])
        for load, (label, (policy, factor)) in product(LOADS, POLICIES.items()):
            policies.SHARE = SHARE * factor
            workload = at_load(made, load, seed)
            scheduler = Scheduler(policy, servers={"slot": 1}, tau_s=taus_s[-1], capacity=UNBOUNDED)
            ended = SlotSimulation(scheduler, workload, predictions, preemption=RESUMING).run()
            figures = figures_for(workload.kind)
            for figure in FIGURES:
                found[load][label][figure].append(figures[figure](ended))
    return name, float(np.mean(taus_s)), found


def sums(found: Found, policy: str) -> list[float]:
    """Return the sum of the logs of the five ratios to arrival order, one a seed."""
    pairs = [(found[policy][figure], found["fcfs"][figure]) for figure in SUMMED]
    return [sum(log(ours[n] / base[n]) for ours, base in pairs) for n in range(len(pairs[0][0]))]


def table(name: str, found: Found) -> Iterator[str]:
    base = found["fcfs"]
    yield f"| {name} | fcfs | " + " | ".join(f"{np.mean(base[each]):.3g} s" for each in FIGURES) + " | |"
    for policy in list(POLICIES)[1:]:
        changes = [100.0 * change_of(found[policy][each], base[each]).mean for each in FIGURES]
        total = mean_of(sums(found, policy))
        cells = " | ".join(f"{each:+.0f}" for each in changes)
        yield f"| | {policy} | {cells} | {total.mean:+.2f} ± {total.half_width:.2f} |"


def main() -> None:
    given = options(__doc__, data=Path(), seeds=4, requests=1000, out=Path("tail.svg"))
    sizes = ([each] * len(WORKLOADS) for each in (given.seeds, given.requests, given.data))
    with ProcessPoolExecutor(2) as pool:
        runs = list(pool.map(run, WORKLOADS, *sizes))
    print(f"| load {SHOWN} | | {' | '.join(FIGURES)} | sum of logs |", "|---|---|" + "---:|" * 7, sep="\n")
    for name, tau_s, found in runs:
        print(*table(f"{name}; tau {tau_s:.0f} s", found[SHOWN]), sep="\n")
    print(f"\n| sum of logs | | {' | '.join(LOADS)} | mean |", "|---|---|" + "---:|" * 7, sep="\n")
    for name, _, found in runs:
        for policy in list(POLICIES)[1:]:
            by_load = [float(np.mean(sums(found[load], policy))) for load in LOADS]
            cells = " | ".join(f"{each:+.2f}" for each in (*by_load, float(np.mean(by_load))))
            print(f"| {name} | {policy} | {cells} |")
    given.out.write_text(svg([plot(name, found) for name, _, found in runs]), encoding="utf-8")


def plot(name: str, found: dict[str, Found]) -> Plot:
    def point(load: str, policy: str) -> Point:
        at = [
            100.0 * change_of(found[load][policy][each], found[load]["fcfs"][each]).mean
            for each in ("short P50", "all P99")
        ]
        return Point(*at)

    curves = tuple(Curve(each, tuple(point(load, each) for load in LOADS[:-1])) for each in DRAWN)
    title = f"{name}: loads 0.3, 0.5, 0.74, 0.9, 0.95 (change against arrival order)"
    return Plot(title, "short P50 (%)", "P99 of all (%)", curves)


if __name__ == "__main__":
    main()
