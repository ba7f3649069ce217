"""What the proxy costs: added time to first byte, streaming rate, CPU per token, many clients at once.

    python -m tests.perf.perf_proxy [--requests N] [--nginx] [--litellm COMMAND] [--against CHECKOUT]

Direct and proxied requests take turns in one run, because a busy machine slows both. The upstream is a
process of its own that answers at once, so that what is left is the proxy's; the daemon is
`clairvoyant serve` as shipped, prediction included. With `--closing` the upstream ends each short answer's
connection a millisecond later without having said so, as llama.cpp does. CHECKOUT is another checkout with a
`.venv`.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import httptools
import psutil
import uvloop

from tests.fakes.daemon_process import child
from tests.fakes.llamacpp_server import free_port
from tests.perf.harness import CHAT, Upstream, answering, chat_body, options, quantiles, serving

PROMPT = "Explain how a steam engine turns heat into motion, and why it lost to the diesel engine. " * 11
RATE = 2000.0
WARM_UP = 50


class FastUpstream(Upstream):
    """Answers with SSE: `max_tokens` events at a given rate, up to 20 of them at once."""

    closing = False
    EVENT = b'data: {"id":"c","object":"chat.completion.chunk","choices":[%b]}\n\n' % (
        b'{"index":0,"delta":{"content":"word "}}'
    )
    CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
    HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"

    def requested(self, url: str) -> None:
        loop = asyncio.get_running_loop()
        if self.parser.get_method() == b"GET":
            known = {"/props": b'{"total_slots": 1, "build_info": "fast"}', "/slots": b"[]", "/health": b"{}"}
            self.answer(known.get(url, b"{}"), status="200 OK" if url in known else "404 Not Found")
            return
        self.sent, self.tokens, self.start_s = 1, int(json.loads(self.body)["max_tokens"]), loop.time()
        self.transport.write(self.HEAD + self.CHUNK)
        if self.tokens > 20:
            loop.call_later(0.001, self.more)
            return
        self.transport.write(self.CHUNK * (self.tokens - 1) + self.END)
        if self.closing:
            loop.call_later(0.001, self.transport.close)

    def more(self) -> None:
        loop = asyncio.get_running_loop()
        due = min(self.tokens, int((loop.time() - self.start_s) * RATE) + 1)
        self.transport.write(self.CHUNK * (due - self.sent))
        self.sent = due
        if due == self.tokens:
            self.transport.write(self.END)
        elif not self.transport.is_closing():
            loop.call_later(0.0005, self.more)


class Client(asyncio.Protocol):
    """A keep-alive client that does as little as can be done."""

    transport: asyncio.Transport
    first_s = 0.0
    size = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.parser = httptools.HttpResponseParser(self)
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError("closed before the answer was whole"))
            self.done.exception()  # an idle connection may be closed

    def on_body(self, body: bytes) -> None:
        self.first_s = self.first_s or time.perf_counter()
        self.size += len(body)

    def on_message_complete(self) -> None:
        self.done.set_result(None)

    async def ask(self, raw: bytes) -> float:
        """Send a request; return the seconds to the first byte of the body."""
        self.first_s, self.size = 0.0, 0
        self.done = asyncio.get_running_loop().create_future()
        start_s = time.perf_counter()
        self.transport.write(raw)
        await self.done
        if (status := self.parser.get_status_code()) != 200:
            raise RuntimeError(f"answered {status}")
        return self.first_s - start_s


async def connect(url: str) -> Client:
    at = urlsplit(url)
    assert at.hostname is not None
    assert at.port is not None
    return (await asyncio.get_running_loop().create_connection(Client, at.hostname, at.port))[1]


def request(tokens: int) -> bytes:
    data = json.dumps(chat_body(PROMPT, tokens, "tiny")).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


async def first_byte(paths: dict[str, str], requests: int, pause_s: float) -> None:
    raw = request(3)
    clients = {name: await connect(url) for name, url in paths.items()}
    times: dict[str, list[float]] = {name: [] for name in paths}
    for _ in range(requests + WARM_UP):
        for name, url in paths.items():
            await asyncio.sleep(pause_s)
            if clients[name].transport.is_closing():  # a turn may outlast a server's patience with idlers
                clients[name] = await connect(url)
            times[name].append(await clients[name].ask(raw) * 1000)
    print(f"time to first byte, {requests} requests each, taking turns, 1 KB prompt:")
    direct = quantiles(times["direct"][WARM_UP:], 0.5, 0.99)
    for name, values in times.items():
        p50, p99 = quantiles(values[WARM_UP:], 0.5, 0.99)
        added = "" if name == "direct" else f"   added p50 {p50 - direct[0]:+.3f}  p99 {p99 - direct[1]:+.3f}"
        print(f"  {name:12} p50 {p50:6.3f} ms  p99 {p99:6.3f} ms{added}")


async def stream_rate(paths: dict[str, str], tokens: int, rounds: int) -> None:
    raw = request(tokens)
    rates: dict[str, list[float]] = {name: [] for name in paths}
    for _ in range(rounds):
        for name, url in paths.items():
            client = await connect(url)
            start_s = time.perf_counter()
            await client.ask(raw)
            rates[name].append(tokens / (time.perf_counter() - start_s))
            if client.size < 50 * tokens:
                raise RuntimeError(f"{name} cut the stream short after {client.size} bytes")
    print(f"stream of {tokens} tokens, {rounds} rounds, taking turns:")
    for name, values in rates.items():
        share = median(values) / median(rates["direct"])
        print(f"  {name:12} {median(values):7.0f} tokens/s  ({share:.1%} of direct)")


async def cpu_per_token(paths: dict[str, str], pids: dict[str, int], tokens: int) -> None:
    raw = request(tokens)
    print(f"CPU of the proxy for each streamed token ({tokens} tokens at {RATE:,.0f}/s):")
    for name, pid in pids.items():
        process, client = psutil.Process(pid), await connect(paths[name])
        await client.ask(raw)
        before_s = sum(process.cpu_times()[:2])
        await client.ask(raw)
        print(f"  {name:12} {(sum(process.cpu_times()[:2]) - before_s) / tokens * 1e6:6.1f} us")


async def crowd(url: str, pid: int, clients: int) -> None:
    raw, memory = request(20), psutil.Process(pid).memory_info
    seen = [memory().rss]

    async def one() -> None:
        client = await connect(url)
        await client.ask(raw)
        client.transport.close()

    async def watch() -> None:
        while True:
            seen.append(memory().rss)
            await asyncio.sleep(0.05)

    watching = asyncio.create_task(watch())
    start_s = time.perf_counter()
    ended = await asyncio.gather(*(one() for _ in range(clients)), return_exceptions=True)
    took_s = time.perf_counter() - start_s
    watching.cancel()
    print(f"{clients} clients at once, queued before one slot and streaming:")
    print(f"  {ended.count(None)} answered 200, in {took_s:.1f} s")
    print(f"  RSS {seen[0] / 2**20:.0f} MB before, {max(seen) / 2**20:.0f} MB peak")


@contextmanager
def nginx(target: str, home: Path) -> Iterator[tuple[str, int]]:
    url = f"http://127.0.0.1:{free_port()}"
    (home / "nginx.conf").write_text(
        f"""daemon off; master_process off; pid {home}/nginx.pid; error_log {home}/error.log;
        events {{ worker_connections 4096; }}
        http {{ access_log off; upstream backend {{ server {urlsplit(target).netloc}; keepalive 16; }}
          server {{ listen {urlsplit(url).netloc}; location / {{ proxy_pass http://backend;
            proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
            proxy_read_timeout 1h; }} }} }}"""
    )
    with answering(["nginx", "-c", f"{home}/nginx.conf", "-p", str(home)], f"{url}/health") as pid:
        yield url, pid


@contextmanager
def litellm(target: str, home: Path, command: str) -> Iterator[tuple[str, int]]:
    port = free_port()
    (home / "litellm.yaml").write_text(
        f"model_list:\n  - model_name: tiny\n    litellm_params:\n      model: openai/tiny\n"
        f"      api_base: {target}/v1\n      api_key: none\n"
    )
    words = [command, "--config", f"{home}/litellm.yaml", "--port", str(port), "--host", "127.0.0.1"]
    variables = {
        "HOME": str(home),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        # The upstream says one word over and over, which LiteLLM would take for a model gone astray.
        "REPEATED_STREAMING_CHUNK_LIMIT": "1000000",
        # It listens on loopback, for the minutes of the measurement: a key would be one more cost.
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    }
    url = f"http://127.0.0.1:{port}"
    with answering(words, f"{url}/health/liveliness", **variables) as pid:
        yield url, pid


def main() -> None:
    given = options(
        __doc__,
        requests=1000,
        clients=1000,
        tokens=4000,
        nginx=False,
        closing=False,
        litellm=str,
        against=Path,
    )
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        words = ["-m", "tests.perf.perf_proxy", "upstream", *(["closing"] if given.closing else [])]
        target = stack.enter_context(child(*words))
        paths, pids = {"direct": target}, {}
        # The cost of a request's way is asked for, not that of its log line on a slow terminal.
        for name, checkout in {"clairvoyant": None, "against": given.against}.items():
            if name == "clairvoyant" or checkout:
                quiet = serving(target, "--log-level", "warning", checkout=checkout)
                daemon = stack.enter_context(quiet)
                paths[name], pids[name] = daemon.base_url, daemon.pid
        if given.nginx:
            paths["nginx"], pids["nginx"] = stack.enter_context(nginx(target, home))
        if given.litellm:
            paths["litellm"], pids["litellm"] = stack.enter_context(litellm(target, home, given.litellm))
        # The pause lets the end of a connection arrive before somebody asks on it.
        uvloop.run(first_byte(paths, given.requests, 0.002 if given.closing else 0.0))
        uvloop.run(stream_rate(paths, given.tokens, 3))
        uvloop.run(cpu_per_token(paths, pids, given.tokens))
        uvloop.run(crowd(paths["clairvoyant"], pids["clairvoyant"], given.clients))


if __name__ == "__main__":
    if "upstream" in sys.argv[1:2]:
        FastUpstream.closing = "closing" in sys.argv
        FastUpstream.run()
    main()
