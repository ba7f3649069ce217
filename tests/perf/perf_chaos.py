"""Chaos: clients that leave at random moments, a backend that is killed twice, and what is left of it all.

    python tests/perf/perf_chaos.py [--requests N] [--seed S]

Each request must end exactly once, completed, cancelled or failed; no slot may leak; the queue must end
empty; memory must stay flat. The daemon is `clairvoyant serve` as shipped, the backend the replay one, both
processes of their own. Exits with 1 if anything of this does not hold.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from clairvoyant_cli.state.client import ControlClient  # noqa: E402
from clairvoyant_cli.state.snapshot import Snapshot  # noqa: E402
from tests.fakes.child import child  # noqa: E402
from tests.fakes.daemon_process import DaemonProcess, daemon_process  # noqa: E402
from tests.fakes.llamacpp_server import free_port  # noqa: E402
from tests.fakes.raw_http import RawClient, post, raw_client, read_message  # noqa: E402

SLOTS = 4
LEAVERS = 0.30
AT_ONCE = 150
DOWN_S = 1.0
WORDS = "river stone garden letter harbour copper violet candle winter orchard marble signal".split()
FAULTS = ("Traceback", "internal error", "never retrieved", "never awaited", "Exception in")


@dataclass
class Backend:
    """The replay backend as a process that can be killed and started again on its port."""

    port: int
    _alive: ExitStack = field(default_factory=ExitStack)

    def start(self) -> None:
        flags = f"--port {self.port} --slots {SLOTS} --decode 4000 --prefill 1e6".split()
        self._alive.enter_context(child("-m", "tests.fakes.replay_process", *flags))

    def kill(self) -> None:
        self._alive.close()


@dataclass
class Tally:
    """What the clients saw, and the daemon's memory while they did."""

    seen: Counter[str] = field(default_factory=Counter)
    memory: list[tuple[int, float, int]] = field(default_factory=list)

    @property
    def ended(self) -> int:
        return self.seen.total()


def request_of(rng: random.Random) -> bytes:
    prompt = " ".join(rng.choices(WORDS, k=rng.randint(3, 200)))
    cap, stream = rng.randint(1, 60), rng.random() < 0.7
    messages = [{"role": "user", "content": prompt}]
    routes: list[tuple[str, dict[str, Any]]] = [
        ("/api/chat", {"messages": messages, "options": {"num_predict": cap}}),
        ("/api/generate", {"prompt": prompt, "options": {"num_predict": cap}}),
        ("/v1/chat/completions", {"messages": messages, "max_tokens": cap}),
        ("/v1/messages", {"messages": messages, "max_tokens": cap}),
    ]
    route, body = rng.choice(routes)
    return post(route, json.dumps({"model": "replay", "stream": stream} | body).encode())


async def one(url: str, rng: random.Random, tally: Tally) -> str:
    """Ask once and return what became of it."""
    became = await ask(url, rng)
    tally.seen[became] += 1
    return became


async def ask(url: str, rng: random.Random) -> str:
    """Ask; three in ten leave: at once, after a while, or in the middle of the answer."""
    raw = request_of(rng)
    leaves = rng.choice(("at once", "later", "in the answer")) if rng.random() < LEAVERS else ""
    patience_s = rng.expovariate(1 / 0.15)
    try:
        async with raw_client(url) as client:
            client.send(raw)
            if leaves:
                await leave(client, leaves, patience_s)
                return "left"
            got = await read_message(client.reader, method=b"POST")
    except (ConnectionError, asyncio.IncompleteReadError):
        return "connection broke"
    return f"status {got.status}" if got.whole else "answer cut short"


async def leave(client: RawClient, how: str, patience_s: float) -> None:
    if how == "at once":
        await client.writer.drain()
    elif how == "later":
        await asyncio.sleep(patience_s)
    else:
        try:
            await client.reader.readuntil(b"\r\n\r\n")
            await client.reader.read(100)
        except (ConnectionError, asyncio.IncompleteReadError):
            return


async def crowd(url: str, requests: int, seed: int, tally: Tally, daemon: psutil.Process) -> None:
    numbers = iter(range(requests))

    async def worker() -> None:
        for number in numbers:
            rng = random.Random(f"{seed}:{number}")
            if await one(url, rng, tally) == "status 503":
                await asyncio.sleep(rng.uniform(0.2, 0.6))  # as a client that was told to come back
            if tally.ended % (requests // 10) == 0:
                mb = daemon.memory_info().rss / 2**20
                tally.memory.append((tally.ended, mb, daemon.num_fds()))

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))


async def killer(backend: Backend, tally: Tally, requests: int) -> None:
    for share in (0.35, 0.7):
        while tally.ended < share * requests:  # noqa: ASYNC110 - a tally, not an event
            await asyncio.sleep(0.02)
        backend.kill()
        await asyncio.sleep(DOWN_S)
        await asyncio.to_thread(backend.start)


async def settled(url: str) -> Snapshot:
    """Return the state once nothing waits and nothing runs, or what it is after half a minute."""
    async with ControlClient(url) as control:
        deadline = time.monotonic() + 30
        while True:
            state = await control.snapshot()
            if (not state.queue and not state.running) or time.monotonic() > deadline:
                return state
            await asyncio.sleep(0.1)


async def slots_work(url: str, count: int) -> bool:
    """Whether as many requests as there are slots run at the same time after it all."""
    body = {"model": "replay", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    answers = []
    for _ in range(count * 3):
        async with raw_client(url) as client:
            answers.append(await client.ask(post("/v1/chat/completions", json.dumps(body).encode())))
    return all(answer.status == 200 for answer in answers)


def report(tally: Tally, state: Snapshot, daemon: DaemonProcess, works: bool, seconds: float) -> bool:
    counts = state.counters
    parts = {
        "completed": counts.completed,
        "cancelled": counts.client_cancelled,
        "failed": counts.upstream_error,
        "refused": counts.rejected + counts.timeout,
    }
    faults = [line for line in daemon.lines if any(mark in line for mark in FAULTS)]
    # What the daemon remembers is bounded, but it has to fill first: the second half must add nothing.
    half = next(mb for ended, mb, _ in tally.memory if ended >= tally.ended / 2)
    last = tally.memory[-1][1]
    checks = {
        "each request ended exactly once": sum(parts.values()) == counts.submitted,
        "no slot leaked": not state.running and state.backends[0].busy == 0 and works,
        "the queue is empty": not state.queue,
        "memory is flat (under 3 MB more in the second half)": last - half < 3,
        "no fault in the log": not faults,
    }
    print(f"{tally.ended} requests by {AT_ONCE} clients in {seconds:.0f} s, backend killed twice")
    print("the clients saw: " + ", ".join(f"{n} {what}" for what, n in sorted(tally.seen.items())))
    print(
        f"the daemon counted: {counts.submitted} submitted = "
        + " + ".join(f"{v} {k}" for k, v in parts.items())
    )
    print(
        "requests ended, RSS, open files: "
        + "; ".join(f"{n}: {mb:.1f} MB, {fds}" for n, mb, fds in tally.memory)
    )
    for what, holds in checks.items():
        print(f"  {'ok  ' if holds else 'FAIL'} {what}")
    stamped = [line for line in daemon.lines if not line.startswith("20") or any(m in line for m in FAULTS)]
    for line in stamped[1:60]:
        print("  log: " + line)
    return all(checks.values())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    backend = Backend(free_port())
    backend.start()
    url = f"http://127.0.0.1:{backend.port}"
    try:
        with (
            tempfile.TemporaryDirectory() as home,
            daemon_process(url, "--slots", str(SLOTS), home=Path(home)) as daemon,
        ):
            sys.exit(0 if asyncio.run(chaos(backend, daemon, args.requests, args.seed)) else 1)
    finally:
        backend.kill()


async def chaos(backend: Backend, daemon: DaemonProcess, requests: int, seed: int) -> bool:
    assert urlsplit(daemon.base_url).port
    tally, process = Tally(), psutil.Process(daemon.pid)
    tally.memory.append((0, process.memory_info().rss / 2**20, process.num_fds()))
    start = time.monotonic()
    await asyncio.gather(
        crowd(daemon.base_url, requests, seed, tally, process), killer(backend, tally, requests)
    )
    seconds = time.monotonic() - start
    state = await settled(daemon.base_url)
    works = await slots_work(daemon.base_url, SLOTS)
    tally.memory.append((tally.ended, process.memory_info().rss / 2**20, process.num_fds()))
    return report(tally, state, daemon, works, seconds)


if __name__ == "__main__":
    main()
