"""What the proxy costs: added time to first byte, streaming rate, many clients at once.

    python tests/perf/perf_proxy.py [--requests N] [--nginx] [--against CHECKOUT]

Everything is measured in one run, direct and proxied requests taking turns, because a machine that is
busy with something else slows both. The upstream is a process of its own that answers at once, so that
what is left is the proxy's; the daemon is `clairvoyant serve` as shipped, prediction included.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httptools
import psutil
import uvloop

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.fakes.child import child  # noqa: E402
from tests.fakes.daemon_process import daemon_process  # noqa: E402

PROMPT = "Explain how a steam engine turns heat into motion, and why it lost to the diesel engine. " * 11
BODY = {"model": "tiny", "messages": [{"role": "user", "content": PROMPT}], "stream": True, "max_tokens": 400}


class Client(asyncio.Protocol):
    """A keep-alive client that does as little as can be done."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.done: asyncio.Future[None] | None = None
        self.first_s = 0.0
        self.status = 0
        self.size = 0
        self.transport: asyncio.Transport | None = None

    @property
    def closed(self) -> bool:
        return self.transport is None or self.transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_exception(ConnectionError("closed before the answer was whole"))

    def on_headers_complete(self) -> None:
        self.status = self.parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if not self.first_s:
            self.first_s = time.perf_counter()
        self.size += len(body)

    def on_message_complete(self) -> None:
        if self.done is not None:
            self.done.set_result(None)

    async def ask(self, raw: bytes) -> float:
        """Send a request; return the time to the first byte of the body, in seconds."""
        assert self.transport is not None
        self.first_s = 0.0
        self.size = 0
        self.done = asyncio.get_running_loop().create_future()
        start = time.perf_counter()
        self.transport.write(raw)
        await self.done
        if self.status != 200:
            raise RuntimeError(f"answered {self.status}")
        return self.first_s - start


async def connect(url: str) -> Client:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    _, client = await asyncio.get_running_loop().create_connection(Client, parts.hostname, parts.port)
    return client


def request(body: dict[str, object], path: str = "/v1/chat/completions") -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def upstream(rate: float, *words: str) -> AbstractContextManager[str]:
    """The fixed upstream of tests/perf/fast_upstream.py, streaming `rate` tokens a second."""
    return child("tests/perf/fast_upstream.py", rate, *words)


def quantiles_ms(values: list[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(values, n=100)
    return statistics.median(values) * 1000, cuts[98] * 1000


async def first_byte(paths: dict[str, str], requests: int, pause_s: float = 0.0) -> None:
    raw = request(BODY | {"max_tokens": 3})
    clients = {name: await connect(url) for name, url in paths.items()}
    times: dict[str, list[float]] = {name: [] for name in paths}
    for turn in range(requests + 50):
        for name, url in paths.items():
            await asyncio.sleep(pause_s)
            if clients[name].closed:  # on a busy machine a turn may outlast a server's patience with idlers
                clients[name] = await connect(url)
            seconds = await clients[name].ask(raw)
            if turn >= 50:
                times[name].append(seconds)
    direct = quantiles_ms(times["direct"])
    print(f"time to first byte, {requests} requests each, taking turns, 1 KB prompt:")
    for name, values in times.items():
        p50, p99 = quantiles_ms(values)
        print(f"  {name:12} p50 {p50:6.3f} ms  p99 {p99:6.3f} ms", end="")
        print("" if name == "direct" else f"   added p50 {p50 - direct[0]:+.3f}  p99 {p99 - direct[1]:+.3f}")


async def stream_rate(paths: dict[str, str], tokens: int, rounds: int) -> None:
    raw = request(BODY | {"max_tokens": tokens})
    rates: dict[str, list[float]] = {name: [] for name in paths}
    for _ in range(rounds):
        for name, url in paths.items():
            client = await connect(url)  # while the others stream, an idle connection may be closed
            start = time.perf_counter()
            await client.ask(raw)
            rates[name].append(tokens / (time.perf_counter() - start))
            if client.size < 50 * tokens:
                raise RuntimeError(f"{name} cut the stream short after {client.size} bytes")
    print(f"stream of {tokens} tokens, {rounds} rounds, taking turns:")
    direct = statistics.median(rates["direct"])
    for name, values in rates.items():
        rate = statistics.median(values)
        print(f"  {name:12} {rate:7.0f} tokens/s  ({rate / direct:.1%} of direct)")


async def crowd(url: str, pid: int, clients: int) -> None:
    daemon = psutil.Process(pid)
    before = daemon.memory_info().rss / 2**20
    raw = request(BODY | {"max_tokens": 20})
    peak = before

    async def one() -> int:
        client = await connect(url)
        await client.ask(raw)
        assert client.transport is not None
        client.transport.close()
        return client.status

    async def watch() -> None:
        nonlocal peak
        while True:
            peak = max(peak, daemon.memory_info().rss / 2**20)
            await asyncio.sleep(0.05)

    watching = asyncio.create_task(watch())
    start = time.perf_counter()
    statuses = await asyncio.gather(*(one() for _ in range(clients)))
    seconds = time.perf_counter() - start
    watching.cancel()
    print(f"{clients} clients at once, queued before one slot and streaming:")
    print(f"  {statuses.count(200)} answered 200, in {seconds:.1f} s")
    print(f"  RSS {before:.0f} MB before, {peak:.0f} MB peak")


async def cpu_per_token(paths: dict[str, str], pids: dict[str, list[int]], tokens: int) -> None:
    raw = request(BODY | {"max_tokens": tokens})
    print(f"CPU of the proxy for each streamed token ({tokens} tokens at 2,000/s):")
    for name, url in paths.items():
        if name not in pids:
            continue
        processes = [psutil.Process(pid) for pid in pids[name]]
        client = await connect(url)
        await client.ask(raw)
        before = sum(sum(p.cpu_times()[:2]) for p in processes)
        await client.ask(raw)
        spent = sum(sum(p.cpu_times()[:2]) for p in processes) - before
        print(f"  {name:12} {spent / tokens * 1e6:6.1f} us")


@contextmanager
def nginx(target: str, home: Path) -> Iterator[tuple[str, list[int]]]:
    """A plain reverse proxy, one worker, buffering off."""
    from tests.fakes.llamacpp_server import free_port

    port = free_port()
    (home / "nginx.conf").write_text(
        f"""daemon off; master_process off; pid {home}/nginx.pid; error_log {home}/error.log;
        events {{ worker_connections 4096; }}
        http {{ access_log off; upstream backend {{ server {urlsplit(target).netloc}; keepalive 16; }}
          server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://backend; proxy_http_version 1.1;
            proxy_set_header Connection ""; proxy_buffering off; proxy_read_timeout 1h; }} }} }}"""
    )
    process = subprocess.Popen(["nginx", "-c", str(home / "nginx.conf"), "-p", str(home)])
    try:
        for _ in range(100):
            try:
                subprocess.run(
                    ["curl", "-s", "-o", "/dev/null", f"http://127.0.0.1:{port}/health"], check=True
                )
                break
            except subprocess.CalledProcessError:
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}", [process.pid]
    finally:
        process.terminate()
        process.wait()


@contextmanager
def litellm(target: str, home: Path, command: str) -> Iterator[tuple[str, list[int]]]:
    """LiteLLM's proxy with one model that points at the upstream."""
    from tests.fakes.llamacpp_server import free_port

    port = free_port()
    (home / "litellm.yaml").write_text(
        f"model_list:\n  - model_name: tiny\n    litellm_params:\n      model: openai/tiny\n"
        f"      api_base: {target}/v1\n      api_key: none\n"
    )
    process = subprocess.Popen(
        [command, "--config", str(home / "litellm.yaml"), "--port", str(port), "--host", "127.0.0.1"],
        stdout=subprocess.DEVNULL,
        stderr=(home / "litellm.log").open("w"),
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(home),
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            # The upstream says one word over and over, which LiteLLM would take for a model gone astray.
            "REPEATED_STREAMING_CHUNK_LIMIT": "1000000",
            # It listens on loopback, for the minutes of the measurement: a key would be one more cost.
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
        },
    )
    try:
        for _ in range(600):
            got = subprocess.run(
                ["curl", "-s", "-f", "-o", "/dev/null", f"http://127.0.0.1:{port}/health/liveliness"],
                check=False,
            )
            if got.returncode == 0:
                break
            if process.poll() is not None:
                raise RuntimeError((home / "litellm.log").read_text()[-2000:])
            time.sleep(0.2)
        else:
            raise RuntimeError((home / "litellm.log").read_text()[-2000:])
        yield f"http://127.0.0.1:{port}", [process.pid]
    finally:
        process.kill()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--nginx", action="store_true", help="compare with nginx (must be installed)")
    parser.add_argument(
        "--closing", action="store_true", help="the upstream ends connections unannounced, as llama.cpp does"
    )
    parser.add_argument(
        "--litellm", metavar="COMMAND", help="compare with LiteLLM's proxy (path of `litellm`)"
    )
    parser.add_argument(
        "--against", metavar="DIR", type=Path, help="compare with another checkout, which has a .venv"
    )
    args = parser.parse_args()
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        target = stack.enter_context(upstream(2000, *(["closing"] if args.closing else [])))
        # The cost of a request's way is asked for, not that of its log line on a slow terminal.
        daemon = stack.enter_context(daemon_process(target, "--log-level", "warning", home=home))
        paths = {"direct": target, "clairvoyant": daemon.base_url}
        pids = {"clairvoyant": [daemon.pid]}
        if args.against:
            flags = ("--log-level", "warning")
            other_home = home / "other"
            other_home.mkdir()
            other = stack.enter_context(
                daemon_process(target, *flags, home=other_home, checkout=args.against)
            )
            paths["against"], pids["against"] = other.base_url, [other.pid]
        if args.nginx:
            paths["nginx"], pids["nginx"] = stack.enter_context(nginx(target, home))
        if args.litellm:
            paths["litellm"], pids["litellm"] = stack.enter_context(litellm(target, home, args.litellm))
        # The pause lets the end of a connection arrive before somebody asks on it.
        uvloop.run(first_byte(paths, args.requests, 0.002 if args.closing else 0.0))
        uvloop.run(stream_rate(paths, 4000, 3))
        for _ in range(3):
            uvloop.run(cpu_per_token(paths, pids, 4000))
        uvloop.run(crowd(daemon.base_url, daemon.pid, args.clients))


if __name__ == "__main__":
    main()
