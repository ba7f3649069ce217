"""What watching costs the watched: the daemon's latency with no dashboard and with three attached.

    python -m tests.perf.perf_attached [--requests 400] [--rounds 5]

Rounds take turns in one run: none, three bare readers of the event stream (what watching asks of the daemon),
three dashboards. The dashboards are real ones in pseudo-terminals, on the same machine, so what they take
from its processors counts against them too.
"""

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path

from tests.fakes.daemon_process import daemon_process
from tests.perf.perf_proxy import BODY, Client, connect, quantiles_ms, request, upstream
from tests.perf.perf_tui import top

DASHBOARDS = 3
WARM_UP = 50
"""Requests while those who watch start up; not counted."""


@contextmanager
def watching(url: str, number: int) -> Iterator[None]:
    """Attach dashboards, and read what they draw, until the block ends."""
    with ExitStack() as stack:
        for _ in range(number):
            terminal = stack.enter_context(top(["--url", url], 120, 40))
            threading.Thread(target=_drain, args=(terminal.fd,), daemon=True).start()
        yield


@contextmanager
def reading(url: str, number: int) -> Iterator[None]:
    """Read the daemon's event stream, so many times over in one process, until the block ends."""
    program = (
        "import sys, threading, httpx\n"
        "def read():\n"
        "    with httpx.stream('GET', sys.argv[1], timeout=None) as answer:\n"
        "        for _ in answer.iter_raw(): pass\n"
        "for _ in range(int(sys.argv[2])): threading.Thread(target=read).start()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, f"{url}/_clairvoyant/events", str(number)]
    ) as reader:
        try:
            yield
        finally:
            reader.kill()


def _drain(fd: int) -> None:
    with contextlib.suppress(OSError):
        while os.read(fd, 1 << 16):
            pass


async def asked(client: Client, raw: bytes, requests: int) -> list[float]:
    """Send requests one after the other at some 50 a second; return the times to their first bytes."""
    times = []
    for _ in range(requests):
        times.append(await client.ask(raw))
        await asyncio.sleep(0.015)
    return times


async def measure(url: str, requests: int, rounds: int) -> dict[str, list[float]]:
    raw = request(BODY | {"max_tokens": 3})
    client = await connect(url)
    watchers: dict[str, Callable[[], AbstractContextManager[None]]] = {
        "nobody": nullcontext,
        f"{DASHBOARDS} readers": lambda: reading(url, DASHBOARDS),
        f"{DASHBOARDS} dashboards": lambda: watching(url, DASHBOARDS),
    }
    times: dict[str, list[float]] = {name: [] for name in watchers}
    for _ in range(rounds):
        for name, attach in watchers.items():
            with attach():
                await asked(client, raw, WARM_UP)
                times[name] += await asked(client, raw, requests)
    return times


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as home,
        upstream(1e9) as backend,
        daemon_process(backend, "--slots", "1", home=Path(home)) as daemon,
    ):
        times = asyncio.run(measure(daemon.base_url, arguments.requests, arguments.rounds))
    print(
        f"time to first byte, {arguments.rounds} rounds of {arguments.requests} requests each, taking turns:"
    )
    for name, taken in times.items():
        p50, p99 = quantiles_ms(taken)
        print(f"  {name:14} p50 {p50:.3f} ms  p99 {p99:.3f} ms")


if __name__ == "__main__":
    main()
