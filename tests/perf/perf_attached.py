"""What watching costs the watched: the daemon's latency with no dashboard and with three attached.

    python -m tests.perf.perf_attached [--requests 400] [--rounds 5]

Rounds take turns, none and three, in one run. The dashboards are real ones in pseudo-terminals, on the same
machine, so what they take from its processors counts against them too.
"""

import argparse
import asyncio
import contextlib
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.fakes.daemon_process import daemon_process
from tests.perf.perf_proxy import BODY, Client, connect, quantiles_ms, request, upstream
from tests.perf.perf_tui import top

DASHBOARDS = 3


@contextmanager
def watching(url: str, number: int) -> Iterator[None]:
    """Attach dashboards, and read what they draw, until the block ends."""
    with ExitStack() as stack:
        for _ in range(number):
            terminal = stack.enter_context(top(["--url", url], 120, 40))
            threading.Thread(target=_drain, args=(terminal.fd,), daemon=True).start()
        yield


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


async def measure(url: str, requests: int, rounds: int) -> dict[int, list[float]]:
    raw = request(BODY | {"max_tokens": 3})
    client = await connect(url)
    await asked(client, raw, 50)
    times: dict[int, list[float]] = {0: [], DASHBOARDS: []}
    for _ in range(rounds):
        for number, taken in times.items():
            with watching(url, number):
                taken += await asked(client, raw, requests)
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
    print(f"time to first byte, {len(times[0])} requests each, rounds of {arguments.requests} taking turns:")
    for number, taken in times.items():
        p50, p99 = quantiles_ms(taken)
        print(f"  {number} dashboards  p50 {p50:.3f} ms  p99 {p99:.3f} ms")


if __name__ == "__main__":
    main()
