"""What an open `clairvoyant top` costs clients that are answered meanwhile, while thousands wait.

    python tests/perf/perf_top_beside.py [--waiting 4600] [--rounds 10] [--seconds 3] [--checkout DIR]

The daemon is `clairvoyant serve` as shipped, before two simulated servers: one stands still, and thousands
wait for it; the other answers at once, and one client after another asks it. A round is so many seconds
without anybody looking, and so many with a screen's event stream open, so that both see the same weather.
Printed are the first byte of a streamed answer, and the longest pause of the daemon, which a process of its
own asks for its health every 5 ms. `--checkout` measures the daemon of another checkout.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from clairvoyant_lab.asgi_server import serve_app  # noqa: E402

from clairvoyant_cli.state.client import ControlClient  # noqa: E402
from clairvoyant_cli.state.source import EVERY_S  # noqa: E402
from tests.fakes.child import child  # noqa: E402
from tests.fakes.daemon_process import daemon_process  # noqa: E402
from tests.fakes.replay_backend import Engine, Replay  # noqa: E402
from tests.perf.perf_stall import Waiting  # noqa: E402

SLOTS = 4
STILL, QUICK = "still:latest", "quick:latest"
LOOKS = {"nobody": False, "top": True}


async def stand_still() -> None:
    """Serve as the one that never answers and the one that does; say where, a line each."""
    still, quick = Replay(Engine(SLOTS), (STILL,)), Replay(Engine(SLOTS), (QUICK,))
    still.engine.freeze()
    async with serve_app(still.app) as one, serve_app(quick.app) as other:
        print(one, other, flush=True)
        await asyncio.Event().wait()


def chat(address: str, model: str, number: int) -> bytes:
    words = ("tell me about rivers", "write a long story", "name a colour", "explain this code at length")
    message = {"role": "user", "content": f"{words[number % 4]} {number}"}
    limit = {"num_predict": 2} if model == QUICK else {}
    body = json.dumps({"model": model, "messages": [message], "options": limit}).encode()
    head = f"POST /api/chat HTTP/1.1\r\nHost: {address}\r\nX-Clairvoyant-Client: client-{number % 7}\r\n"
    return f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def flood(url: str, waiting: int) -> None:
    """Let so many wait; say so, and keep their connections."""
    host, port = urlsplit(url).hostname, urlsplit(url).port
    opened = []
    for number in range(waiting):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(chat(f"{host}:{port}", STILL, number))
        opened.append((reader, writer))
        if not number % 20:
            await asyncio.sleep(0.02)
    print("sent", flush=True)
    await asyncio.Event().wait()


async def all_wait(control: ControlClient, waiting: int) -> None:
    """Return once so many wait; without a stream, which would be somebody who looks."""
    while True:
        if (await control.snapshot()).waiting.total >= waiting:
            return
        await asyncio.sleep(0.5)


async def first_byte_s(url: str, number: int) -> float:
    """Ask for a short answer; return after how long its first byte came."""
    host, port = urlsplit(url).hostname, urlsplit(url).port
    reader, writer = await asyncio.open_connection(host, port)
    begun_s = time.perf_counter()
    writer.write(chat(f"{host}:{port}", QUICK, number))
    await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(1)
    took_s = time.perf_counter() - begun_s
    await reader.read()
    writer.close()
    return took_s


@asynccontextmanager
async def looking(control: ControlClient, open_: bool) -> AsyncIterator[list[bytes]]:
    """Have the states sent that a screen would, or none."""
    seen: list[bytes] = []

    async def look() -> None:
        async for event in control.events(EVERY_S):
            seen.append(event[:1])

    task = asyncio.create_task(look()) if open_ else None
    try:
        yield seen
    finally:
        if task is not None:
            task.cancel()


async def measure(url: str, arguments: argparse.Namespace) -> None:
    took: dict[str, list[float]] = defaultdict(list)
    pauses: dict[str, list[float]] = defaultdict(list)
    drawn: dict[str, int] = defaultdict(int)
    async with ControlClient(url) as control:
        await all_wait(control, arguments.waiting - SLOTS)
        waiting = Waiting(url)
        for number in range(arguments.rounds):
            for look, open_ in LOOKS.items():
                async with looking(control, open_) as seen:
                    await asyncio.sleep(0.3)
                    waiting.longest_s()
                    until_s = time.perf_counter() + arguments.seconds
                    while time.perf_counter() < until_s:
                        took[look].append(await first_byte_s(url, number))
                        await asyncio.sleep(0.01)
                    pauses[look].append(waiting.longest_s())
                    drawn[look] += len(seen)
        waiting.process.kill()
        waiting.process.wait()
    print(
        f"{arguments.waiting:,} waiting; ms: first byte p50, p99, (p99 to nobody's); longest pause of a round"
    )
    calm_s = statistics.quantiles(took["nobody"], n=100)[98]
    for look, times in took.items():
        p99_s = statistics.quantiles(times, n=100)[98]
        pause_ms = sorted(each * 1e3 for each in pauses[look])
        per_s = drawn[look] / arguments.rounds / arguments.seconds
        print(
            f"{look:10} n={len(times):5} p50 {statistics.median(times) * 1e3:6.2f}"
            f"  p99 {p99_s * 1e3:6.2f} ({p99_s / calm_s:4.2f})"
            f"  pause {statistics.median(pause_ms):6.1f}, most {pause_ms[-1]:6.1f}  {per_s:4.1f} states/s",
            flush=True,
        )


def main() -> None:
    """Start all of it, and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--waiting", type=int, default=4600)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--checkout", type=Path)
    parser.add_argument("--still", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--flood", metavar="URL", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.still:
        asyncio.run(stand_still())
    elif arguments.flood:
        asyncio.run(flood(arguments.flood, arguments.waiting))
    else:
        with tempfile.TemporaryDirectory() as home, child(__file__, "--still") as urls:
            one, other = urls.split()
            flags = (
                "--backend",
                other,
                "--slots",
                f"{SLOTS}",
                "--queue-capacity",
                f"{arguments.waiting + 100}",
            )
            with daemon_process(one, *flags, home=Path(home), checkout=arguments.checkout) as daemon:
                command = [sys.executable, __file__, "--flood", daemon.base_url]
                with subprocess.Popen([*command, "--waiting", str(arguments.waiting)]) as flooding:
                    try:
                        asyncio.run(measure(daemon.base_url, arguments))
                    finally:
                        flooding.kill()


if __name__ == "__main__":
    main()
