"""What levels of urgency are worth on a real server: waits by level, and how a spike of emergencies fares.

    python tests/perf/perf_urgency.py URL [--cases FILE] [--requests 200] [--rounds 4] [--rho 0.9]

The same requests at the same times under each arm, in rounds in which the arms take turns: order of arrival,
shortest first, levels as the predictor reads them, levels as they are (an oracle's). FILE is what
`clairvoyant evaluate --urgency` takes; without it, cases that were written for training, with which the
predictor looks better than it is. Cuts where the server continues.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import httpx
from clairvoyant_lab.training.dataset import LEVELS, Case, read_cases
from clairvoyant_lab.training.urgency_cases.writing import write_cases

from clairvoyant_cli.commands.setup import kept_in, load_predictor, second_opinion, urgency_predictor
from clairvoyant_cli.config import ServeConfig
from clairvoyant_cli.proxy.daemon import running_daemon
from clairvoyant_cli.proxy.queue.exchange import Exchange, RequestEnd
from profiles.percentiles import percentile

ARMS: dict[str, dict[str, str]] = {
    "fcfs": {"policy": "fcfs"},
    "sjf": {"policy": "sjf"},
    "levels, predicted": {"urgency": "shipped"},
    "levels, known": {"policy": "urgency"},
}
SPIKE = 4
SEED = 5
TOKENS = (4, 40)


@dataclass(frozen=True)
class Ask:
    """A request of the trace: when, of which true level, and for how many tokens at most."""

    at_s: float
    case: Case
    tokens: int
    of_spike: bool = False


@dataclass
class Found:
    """What became of an arm's requests: (of the spike, level, wait, sojourn) in seconds."""

    rows: list[tuple[bool, int, float, float]] = field(default_factory=list)
    cuts: int = 0


def trace(cases: list[Case], requests: int, gap_s: float, seed: int) -> list[Ask]:
    """Return arrivals at random, of levels drawn by chance, and a spike of level 0 in the middle."""
    rng = Random(seed)
    by_level = [[case for case in cases if case.level == level] for level in range(LEVELS)]
    asks, at_s = [], 0.0
    for _ in range(requests - SPIKE):
        at_s += rng.expovariate(1.0 / gap_s)
        level = rng.choices(range(LEVELS), (5, 15, 30, 30, 20))[0]
        asks.append(Ask(at_s, rng.choice(by_level[level]), rng.randint(*TOKENS)))
    middle_s = asks[len(asks) // 2].at_s
    asks += [Ask(middle_s, rng.choice(by_level[0]), rng.randint(*TOKENS), True) for _ in range(SPIKE)]
    return sorted(asks, key=lambda ask: ask.at_s)


async def service_s(url: str, cases: list[Case]) -> float:
    """Return the mean seconds that a request of the mix takes alone."""
    rng = Random(SEED)
    # A connection each: llama.cpp closes an idle one at a moment of its own.
    async with httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_keepalive_connections=0)) as client:
        begun_s = time.monotonic()
        for _ in range(10):
            await client.post(
                f"{url}/v1/chat/completions", json=body(rng.choice(cases), rng.randint(*TOKENS))
            )
        return (time.monotonic() - begun_s) / 10


def body(case: Case, tokens: int) -> dict[str, object]:
    """Return the request of a case."""
    return {
        "model": "any",
        "messages": [{"role": "user", "content": case.text}],
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
    }


async def run_arm(
    url: str, database: Path, clients: Path, arm: dict[str, str], asks: list[Ask], found: Found
) -> None:
    """Serve the trace under an arm, and add what became of it."""
    config = ServeConfig(
        backend=url,
        listen="127.0.0.1:0",
        db=str(database),
        clients=str(clients),
        freeze=True,
        policy=arm.get("policy"),
        urgency=arm.get("urgency"),
    )
    with kept_in(config) as opening:
        daemon_of = running_daemon(
            config,
            load_predictor(None),
            persistence=opening.result(),
            encode=second_opinion(config),
            urgency=urgency_predictor(config),
        )
        async with daemon_of as daemon, httpx.AsyncClient(timeout=900) as client:

            def ended(exchange: Exchange, end: RequestEnd) -> None:
                ask = asks[int(exchange.client.rpartition("/")[2])]
                waited_s, sojourn_s = exchange.waited_s(end.at_s), exchange.sojourn_s(end.at_s)
                found.rows.append((ask.of_spike, ask.case.level, waited_s, sojourn_s))

            daemon.dispatcher.ended.append(ended)
            begun_s = time.monotonic()

            async def send(number: int, ask: Ask) -> None:
                await asyncio.sleep(max(0.0, begun_s + ask.at_s - time.monotonic()))
                headers = {"X-User": str(number), "X-Api-Key": "key-of-the-bench"}
                if arm.get("policy") == "urgency":
                    headers["X-True-Level"] = str(ask.case.level)
                answer = await client.post(
                    f"{daemon.base_url}/v1/chat/completions", json=body(ask.case, ask.tokens), headers=headers
                )
                answer.raise_for_status()

            await asyncio.gather(*(send(number, ask) for number, ask in enumerate(asks)))
            found.cuts += daemon.stats.cuts


def mean_and_p90(values: list[float]) -> str:
    """Return both, in seconds."""
    if not values:
        return "-"
    return f"{sum(values) / len(values):.1f} ({percentile(sorted(values), 0.9):.1f})"


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--cases", type=Path, action="append")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--rho", type=float, default=0.9)
    options = parser.parse_args()
    cases = [case for path in options.cases or () for case in read_cases(path)] or write_cases()
    with tempfile.TemporaryDirectory() as folder:
        database, clients = Path(folder) / "c.db", Path(folder) / "clients.toml"
        rules = (f'[[urgency]]\nlevel = {n}\nheader = "X-True-Level: {n}"\n' for n in range(LEVELS))
        front_end = '[clients.bench]\nkey = "key-of-the-bench"\nusers = "X-User"\n'
        clients.write_text(front_end + "".join(rules))
        clients.chmod(0o600)
        command = [sys.executable, "-m", "clairvoyant_cli", "calibrate"]
        calibrated = [*command, "--backend", options.url, "--db", str(database)]
        proof = subprocess.run(calibrated, check=True, capture_output=True, text=True)
        print(proof.stdout.strip()[-300:], file=sys.stderr)
        alone_s = asyncio.run(service_s(options.url, cases))
        each = options.requests // options.rounds
        print(f"{options.rounds} rounds of {each} requests, {alone_s:.2f} s each alone, rho {options.rho:g},")
        print(f"in each a spike of {SPIKE}", flush=True)
        found = {name: Found() for name in ARMS}
        for turn in range(options.rounds):
            asks = trace(cases, each, alone_s / options.rho, SEED + turn)
            names = list(ARMS)[turn % len(ARMS) :] + list(ARMS)[: turn % len(ARMS)]
            for name in names:
                asyncio.run(run_arm(options.url, database, clients, ARMS[name], asks, found[name]))
        print(f"{'wait: mean (P90), s':22}" + "".join(f"{f'level {n}':>14}" for n in range(LEVELS)), end="")
        print(f"{'all':>14}{'spike of 0':>14}{'cuts':>6}")
        for name, arm in found.items():
            print(line(name, arm))


def line(name: str, found: Found) -> str:
    """Return what an arm's requests waited: by level, all of them, and those of the spikes."""
    waits = [[w for spike, at, w, _ in found.rows if at == n and not spike] for n in range(LEVELS)]
    waits += [[w for *_, w, _ in found.rows], [w for spike, _, w, _ in found.rows if spike]]
    return f"{name:22}" + "".join(f"{mean_and_p90(each):>14}" for each in waits) + f"{found.cuts:>6}"


if __name__ == "__main__":
    main()
