"""Chaos: clients that leave at random moments, a backend that is killed twice, and what is left of it all.

    python -m tests.perf.perf_chaos [--requests N] [--seed S]

Each request must end exactly once, completed, cancelled or failed; no slot may leak; the queue must end
empty; memory must stay flat. The daemon is `clairvoyant serve` as shipped, the backend the replay one, both
processes of their own. Exits with 1 if anything of this does not hold.
"""

import asyncio
import json
import random
import sys
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import psutil

from clairvoyant_cli.state.client import ControlClient
from clairvoyant_cli.state.snapshot import Snapshot
from tests.fakes.daemon_process import DaemonProcess, child
from tests.fakes.llamacpp_server import free_port
from tests.fakes.raw_http import post, raw_client, read_message
from tests.perf.harness import options, serving

SLOTS = 4
LEAVERS = 0.30
AT_ONCE = 150
DOWN_S = 1.0
WORDS = "river stone garden letter harbour copper violet candle winter orchard marble signal".split()
FAULTS = ("Traceback", "internal error", "never retrieved", "never awaited", "Exception in")


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


async def ask(url: str, rng: random.Random) -> str:
    """Ask; three in ten leave: at once, after a while, or in the middle of the answer. Return what came."""
    raw = request_of(rng)
    leaves = rng.choice(("at once", "later", "in the answer")) if rng.random() < LEAVERS else ""
    patience_s = rng.expovariate(1 / 0.15)
    try:
        async with raw_client(url) as client:
            client.send(raw)
            if not leaves:
                got = await read_message(client.reader, method=b"POST")
                return f"status {got.status}" if got.whole else "answer cut short"
            await client.writer.drain()
            if leaves == "later":
                await asyncio.sleep(patience_s)
            elif leaves == "in the answer":
                with suppress(ConnectionError, asyncio.IncompleteReadError):
                    await client.reader.readuntil(b"\r\n\r\n")
                    await client.reader.read(100)
            return "left"
    except (ConnectionError, asyncio.IncompleteReadError):
        return "connection broke"


@dataclass
class Chaos:
    """A daemon and its backend, what the clients saw, and the daemon's memory while they did."""

    daemon: DaemonProcess
    port: int
    backend: ExitStack
    requests: int
    seen: Counter[str] = field(default_factory=Counter)
    memory: list[tuple[int, float, int]] = field(default_factory=list)

    def start_backend(self) -> None:
        flags = f"--port {self.port} --slots {SLOTS} --decode 4000 --prefill 1e6".split()
        self.backend.enter_context(child("-m", "tests.fakes.replay_process", *flags))

    def look(self) -> None:
        process = psutil.Process(self.daemon.pid)
        self.memory.append((self.seen.total(), process.memory_info().rss / 2**20, process.num_fds()))

    async def crowd(self, seed: int) -> None:
        numbers = iter(range(self.requests))

        async def client() -> None:
            for number in numbers:
                rng = random.Random(f"{seed}:{number}")
                became = await ask(self.daemon.base_url, rng)
                self.seen[became] += 1
                if self.seen.total() % max(1, self.requests // 10) == 0:
                    self.look()
                if became == "status 503":
                    await asyncio.sleep(rng.uniform(0.2, 0.6))  # as a client that was told to come back

        await asyncio.gather(*(client() for _ in range(AT_ONCE)))

    async def killer(self) -> None:
        for share in (0.35, 0.7):
            while self.seen.total() < share * self.requests:  # noqa: ASYNC110 - a tally, not an event
                await asyncio.sleep(0.02)
            self.backend.close()
            await asyncio.sleep(DOWN_S)
            await asyncio.to_thread(self.start_backend)

    async def settled(self) -> Snapshot:
        """Return the state once nothing waits and nothing runs, or what it is after half a minute."""
        async with ControlClient(self.daemon.base_url) as control:
            deadline_s = time.monotonic() + 30
            while True:
                state = await control.snapshot()
                if (not state.queue and not state.running) or time.monotonic() > deadline_s:
                    return state
                await asyncio.sleep(0.1)

    async def slots_work(self) -> bool:
        """Whether more requests than there are slots are answered after it all."""
        body = {"model": "replay", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
        answers = []
        for _ in range(SLOTS * 3):
            async with raw_client(self.daemon.base_url) as client:
                answers.append(await client.ask(post("/v1/chat/completions", json.dumps(body).encode())))
        return all(answer.status == 200 for answer in answers)

    async def run(self, seed: int) -> bool:
        self.look()
        begun_s = time.monotonic()
        await asyncio.gather(self.crowd(seed), self.killer())
        took_s = time.monotonic() - begun_s
        state, works = await self.settled(), await self.slots_work()
        self.look()
        return self.report(state, works, took_s)

    def report(self, state: Snapshot, works: bool, took_s: float) -> bool:
        counts = state.counters
        parts = {
            "completed": counts.completed,
            "cancelled": counts.client_cancelled,
            "failed": counts.upstream_error,
            "refused": counts.rejected + counts.timeout,
        }
        faults = [line for line in self.daemon.lines if any(mark in line for mark in FAULTS)]
        # What the daemon remembers is bounded, but it has to fill first: the second half must add nothing.
        half = next(mb for ended, mb, _ in self.memory if ended >= self.requests / 2)
        checks = {
            "each request ended exactly once": sum(parts.values()) == counts.submitted,
            "no slot leaked": not state.running and state.backends[0].busy == 0 and works,
            "the queue is empty": not state.queue,
            "memory is flat (under 3 MB more in the second half)": self.memory[-1][1] - half < 3,
            "no fault in the log": not faults,
        }
        print(f"{self.requests} requests by {AT_ONCE} clients in {took_s:.0f} s, backend killed twice")
        print("the clients saw: " + ", ".join(f"{n} {what}" for what, n in sorted(self.seen.items())))
        counted = " + ".join(f"{count} {what}" for what, count in parts.items())
        print(f"the daemon counted: {counts.submitted} submitted = {counted}")
        seen = "; ".join(f"{ended}: {mb:.1f} MB, {fds}" for ended, mb, fds in self.memory)
        print(f"requests ended, RSS, open files: {seen}")
        for what, holds in checks.items():
            print(f"  {'ok  ' if holds else 'FAIL'} {what}")
        for line in faults[:60]:
            print("  log: " + line)
        return all(checks.values())


def main() -> None:
    given = options(__doc__, requests=10_000, seed=1)
    port = free_port()
    with (
        ExitStack() as backend,
        serving(f"http://127.0.0.1:{port}", "--slots", str(SLOTS)) as daemon,
    ):
        chaos = Chaos(daemon, port, backend, given.requests)
        chaos.start_backend()
        sys.exit(0 if asyncio.run(chaos.run(given.seed)) else 1)


if __name__ == "__main__":
    main()
