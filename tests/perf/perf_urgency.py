"""What levels of urgency are worth on a real server: waits by level, and how a spike of emergencies fares.

    python -m tests.perf.perf_urgency URL [--cases FILE] [--requests 200] [--rounds 4] [--rho 0.9]

The same requests at the same times under each arm, in rounds in which the arms take turns: order of arrival,
shortest first, levels as the predictor reads them, levels as they are (an oracle's). FILE is what
`clairvoyant evaluate --urgency` takes; without it, cases that were written for training, with which the
predictor looks better than it is. Cuts where the server continues.
"""

import asyncio
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import fmean

from clairvoyant_lab.training.dataset import LEVELS, Case, read_cases
from clairvoyant_lab.training.urgency_cases.writing import write_cases

from clairvoyant_cli.commands.setup import load_predictor, opened_ledger, second_opinion, urgency_predictor
from clairvoyant_cli.config import ServeConfig
from clairvoyant_cli.proxy.daemon import running_daemon
from clairvoyant_cli.proxy.queue.ended import Ended
from tests.perf.harness import (
    ask,
    at_times,
    chat_body,
    clairvoyant,
    many_connections,
    options,
    quantiles,
    turned,
)

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
    """What became of an arm's requests: (of the spike, level, wait in seconds)."""

    rows: list[tuple[bool, int, float]] = field(default_factory=list)
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
    rng = Random(SEED)
    async with many_connections(url) as client:
        begun_s = time.monotonic()
        for _ in range(10):
            await ask(client, chat_body(rng.choice(cases).text, rng.randint(*TOKENS)))
        return (time.monotonic() - begun_s) / 10


async def serve(config: ServeConfig, asks: list[Ask], found: Found) -> None:
    with opened_ledger(config) as opening:
        daemon_of = running_daemon(
            config,
            load_predictor(None),
            persistence=opening.result(),
            encode=second_opinion(config),
            urgency=urgency_predictor(config),
        )
        async with daemon_of as daemon, many_connections(daemon.base_url) as client:

            def ended(of: Ended) -> None:
                ask = asks[int(of.client.rpartition("/")[2])]
                found.rows.append((ask.of_spike, ask.case.level, of.waited_s))

            async def send(number: int) -> None:
                level = str(asks[number].case.level) if config.policy == "urgency" else ""
                headers = {"X-User": str(number), "X-Api-Key": "key-of-the-bench", "X-True-Level": level}
                await ask(client, chat_body(asks[number].case.text, asks[number].tokens), **headers)

            daemon.observer.ended = ended  # type: ignore[method-assign]
            await at_times([each.at_s for each in asks], send)
            found.cuts += daemon.journal.counts["cuts"]


def cell(waits_s: Sequence[float]) -> str:
    return f"{fmean(waits_s):.1f} ({quantiles(waits_s, 0.9)[0]:.1f})" if waits_s else "-"


def line(name: str, found: Found) -> str:
    """Return what an arm's requests waited: by level, all of them, and those of the spikes."""
    waits = [[w for spike, at, w in found.rows if at == n and not spike] for n in range(LEVELS)]
    waits += [[w for *_, w in found.rows], [w for spike, _, w in found.rows if spike]]
    return f"{name:22}" + "".join(f"{cell(each):>14}" for each in waits) + f"{found.cuts:>6}"


def main() -> None:
    given = options(__doc__, "url", cases=list[str](), requests=200, rounds=4, rho=0.9)
    cases = [case for path in given.cases for case in read_cases(Path(path))] or write_cases()
    with tempfile.TemporaryDirectory() as folder:
        database, clients = Path(folder) / "c.db", Path(folder) / "clients.toml"
        rules = (f'[[urgency]]\nlevel = {n}\nheader = "X-True-Level: {n}"\n' for n in range(LEVELS))
        front_end = '[clients.bench]\nkey = "key-of-the-bench"\nusers = "X-User"\n'
        clients.write_text(front_end + "".join(rules))
        clients.chmod(0o600)
        print(clairvoyant("calibrate", "--backend", given.url, "--db", database).strip()[-300:])
        alone_s, each = asyncio.run(service_s(given.url, cases)), given.requests // given.rounds
        print(f"{given.rounds} rounds of {each} requests, {alone_s:.2f} s each alone, rho {given.rho:g},")
        print(f"in each a spike of {SPIKE}", flush=True)
        found = {name: Found() for name in ARMS}
        common = {"backend": given.url, "listen": "127.0.0.1:0", "db": str(database), "clients": str(clients)}
        for turn in range(given.rounds):
            asks = trace(cases, each, alone_s / given.rho, SEED + turn)
            for name in turned(list(ARMS), turn):
                config = ServeConfig(**common, freeze=True, **ARMS[name])  # type: ignore[arg-type]
                asyncio.run(serve(config, asks, found[name]))
    print(f"{'wait: mean (P90), s':22}" + "".join(f"{f'level {n}':>14}" for n in range(LEVELS)), end="")
    print(f"{'all':>14}{'spike of 0':>14}{'cuts':>6}")
    print(*(line(name, arm) for name, arm in found.items()), sep="\n")


if __name__ == "__main__":
    main()
