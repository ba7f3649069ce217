"""How long one client's body, or one answer of a backend, keeps all others waiting.

    python tests/perf/perf_stall.py [--only WORDS] [--rounds N] [--megabytes N]

The daemon is `clairvoyant serve` as shipped. While hostile bodies are sent through it, hostile answers come
back, and its own questions are answered with nonsense, another process asks for its health every 5 ms; what
is printed is the longest that one of those answers took. The upstream, the asking process and this one, which
sends, are three processes: none of them waits for another's interpreter lock. The least of the rounds is what
the daemon does by itself, the most shows what else the machine had to do.
"""

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httptools
import uvloop

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.fakes.child import child  # noqa: E402
from tests.fakes.daemon_process import daemon_process  # noqa: E402

MB = 1_000_000
ASK_EVERY_S = 0.005
SMALL = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":false}'


def fill(before: bytes, unit: bytes, after: bytes, megabytes: float) -> bytes:
    return before + unit * int(megabytes * MB / len(unit)) + after


def nested(before: bytes, opening: bytes, inner: bytes, closing: bytes, after: bytes) -> bytes:
    return before + opening * 300 + inner + closing * 300 + after


USER = b'{"model":"m","messages":[{"role":"user","content":'

BODIES: dict[str, tuple[str, Callable[[float], bytes]]] = {
    "a short body": ("/api/chat", lambda mb: SMALL),
    "text": ("/api/chat", lambda mb: fill(USER + b'"', b"write an essay ", b'"}]}', mb)),
    "escapes": ("/api/chat", lambda mb: fill(USER + b'"', b"\\u00e9", b'"}]}', mb)),
    "line feeds": ("/api/chat", lambda mb: fill(USER + b'"', b"\\n", b'"}]}', mb)),
    "dotted capital i": ("/api/generate", lambda mb: fill(b'{"prompt":"', "İ".encode(), b'"}', mb)),
    "backslashes": ("/api/generate", lambda mb: fill(b'{"prompt":"', b"\\\\", b'"}', mb)),
    "half surrogates": ("/api/generate", lambda mb: fill(b'{"prompt":"', b"\\ud83d", b'"}', mb)),
    "no UTF-8": ("/api/generate", lambda mb: fill(b'{"prompt":"', b"\x80", b'"}', mb)),
    "opening brackets": ("/api/chat", lambda mb: fill(b"", b"[", b"", mb)),
    "quotes": ("/api/chat", lambda mb: fill(b"", b'"', b"", mb)),
    "blanks": ("/api/chat", lambda mb: fill(b"", b" ", SMALL, mb)),
    "empty objects": ("/api/chat", lambda mb: fill(b'{"messages":[', b"{},", b"{}]}", mb)),
    "empty objects, 250 KB": ("/api/chat", lambda mb: fill(b'{"messages":[', b"{},", b"{}]}", 0.25)),
    "empty lists, 250 KB": ("/v1/completions", lambda mb: fill(b'{"prompt":[', b"[],", b"[]]}", 0.25)),
    "strings, 250 KB": ("/v1/completions", lambda mb: fill(b'{"prompt":[', b'"",', b'""]}', 0.25)),
    "messages": (
        "/api/chat",
        lambda mb: fill(b'{"messages":[', b'{"role":"user","content":"a"},', b"{}]}", mb),
    ),
    "messages of 2 KB, 2.9 MB": (
        "/api/chat",
        lambda mb: fill(
            b'{"messages":[', b'{"role":"user","content":"' + b"\\n" * 1000 + b'"},', b"{}]}", 2.9
        ),
    ),
    "messages of 4 KB": (
        "/api/chat",
        lambda mb: fill(
            b'{"messages":[', b'{"role":"user","content":"' + b"\\n" * 2000 + b'"},', b"{}]}", mb
        ),
    ),
    "parts": ("/v1/chat/completions", lambda mb: fill(USER + b"[", b'{"text":"a"},', b"{}]}]}", mb)),
    "parts, 250 KB": ("/v1/chat/completions", lambda mb: fill(USER + b"[", b'"",', b"{}]}]}", 0.25)),
    "token ids": ("/v1/completions", lambda mb: fill(b'{"prompt":[', b"71234,", b"1]}", mb)),
    "long numbers, 250 KB": (
        "/v1/completions",
        lambda mb: fill(b'{"prompt":[', b"9" * 4000 + b",", b"1]}", 0.25),
    ),
    "strings": ("/v1/embeddings", lambda mb: fill(b'{"input":[', b'"a",', b'"a"]}', mb)),
    "lists within lists": (
        "/v1/completions",
        lambda mb: nested(b'{"prompt":', b'["",', fill(b'"', b"A", b'"', mb), b"]", b"}"),
    ),
    "parts within parts": (
        "/v1/messages",
        lambda mb: nested(USER, b'[{"content":["",', fill(b'"', b"A", b'"', mb), b"]}]", b"}]}"),
    ),
    "keys": (
        "/api/chat",
        lambda mb: b"{" + b",".join(b'"k%d":1' % n for n in range(int(mb * 80_000))) + b"}",
    ),
    "the same key": ("/api/chat", lambda mb: fill(b"{", b'"messages":[],', b'"messages":[]}', mb)),
    "a model's name": ("/api/chat", lambda mb: fill(b'{"model":"', b"\\u202e", b'","messages":[]}', mb)),
    "num_ctx": ("/api/chat", lambda mb: fill(b'{"options":{"num_ctx":"', b"9", b'"},"messages":[{}]}', mb)),
    "a picture": ("/api/chat", lambda mb: fill(b'{"messages":[{"images":["', b"QUJD", b'"]}]}', mb)),
    "pictures": ("/api/chat", lambda mb: fill(b'{"messages":[{"images":[', b'"",', b'""]}]}', mb)),
    "tools": ("/v1/chat/completions", lambda mb: fill(b'{"messages":[{}],"tools":[', b"{},", b"{}]}", mb)),
}
"""What is sent: a route, and a body of so many megabytes."""

JSON, NDJSON, SSE = "application/json", "application/x-ndjson", "text/event-stream"

ANSWERS: dict[str, tuple[str, Callable[[float], bytes]]] = {
    "empty objects, 2 MB": (JSON, lambda mb: fill(b'{"x":[', b"{},", b"{}]}", 2)),
    "the same usage, 2 MB": (JSON, lambda mb: fill(b"{", b'"usage":{},', b'"a":1}', 2)),
    "line feeds, 2 MB": (JSON, lambda mb: fill(b'{"response":"', b"\\n", b'"}', 2)),
    "digits, 2 MB": (JSON, lambda mb: fill(b"{", b'"eval_count":' + b"9" * 300 + b",", b'"a":1}', 2)),
    "embeddings": (JSON, lambda mb: fill(b'{"data":[', b"0.123456,", b"1]}", mb)),
    "opening brackets": (JSON, lambda mb: fill(b"", b"[", b"", mb)),
    "empty lines": (NDJSON, lambda mb: fill(b"", b"\n", b"", mb)),
    "empty events": (NDJSON, lambda mb: fill(b"", b"{}\n", b"", mb)),
    "empty SSE events": (SSE, lambda mb: fill(b"", b"data: {}\n\n", b"data: [DONE]\n\n", mb)),
    "one long event": (SSE, lambda mb: fill(b"data: {", b'"usage":{},', b'"a":1}\n\n', mb)),
}
"""What comes back: a type, and a body of so many megabytes."""

VERSION = b'{"version":"0.1"}'

PROBES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "ordinary answers": ("/api/ps", lambda: b'{"models":[]}'),
    "300,000 models": ("/api/ps", lambda: fill(b'{"models":[', b"{},", b"{}]}", 0.9)),
    "19,000 models": ("/api/ps", lambda: b'{"models":[' + b'{"name":"m","size":5},' * 19_000 + b"{}]}"),
    "a list of 60 MB": ("/api/ps", lambda: fill(b'{"models":[', b"{},", b"{}]}", 60)),
    "a name of 1 MB": ("/api/ps", lambda: fill(b'{"models":[{"name":"', b"\\u202e", b'"}]}', 0.99)),
    "a version of 1 MB": ("/api/version", lambda: fill(b'{"version":"', b"1", b'"}', 0.99)),
    "opening brackets": ("/api/version", lambda: fill(b"", b"[", b"", 0.99)),
}
"""What the daemon's own questions are answered with."""


# -- the upstream, a process of its own --------------------------------------------------------------


class Hostile(asyncio.Protocol):
    """Swallows any body, and answers what the query names: an answer, or what to tell from now on."""

    megabytes = 60.0
    told: tuple[str, bytes] = ("", b"")
    asked = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.parser = httptools.HttpRequestParser(self)
        self.url = b""

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.url = b""

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_message_complete(self) -> None:
        target = urlsplit(self.url.decode())
        query = parse_qs(target.query)
        if "tell" in query:
            path, telling = PROBES[query["tell"][0]]
            Hostile.told = path, telling()
            Hostile.asked = 0
            self.answer(JSON, b"{}")
        elif target.path == "/asked":
            self.answer(JSON, b"%d" % Hostile.asked)
        elif target.path in ("/api/version", "/api/ps", "/api/tags"):
            Hostile.asked += target.path == "/api/ps"
            ordinary = VERSION if target.path == "/api/version" else b"{}"
            self.answer(JSON, Hostile.told[1] if Hostile.told[0] == target.path else ordinary)
        elif target.path.startswith("/_clairvoyant"):
            self.answer(JSON, b"", b"404 Not Found")
        elif "answer" in query:
            kind, body = ANSWERS[query["answer"][0]]
            self.answer(kind, body(Hostile.megabytes))
        else:
            self.answer(JSON, b'{"done":true,"eval_count":5}')

    def answer(self, kind: str, body: bytes, status: bytes = b"200 OK") -> None:
        head = b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n"
        self.transport.write(head % (status, kind.encode(), len(body)) + body)


async def be_hostile(megabytes: float) -> None:
    Hostile.megabytes = megabytes
    server = await asyncio.get_running_loop().create_server(Hostile, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


# -- the one who waits, a process of its own ---------------------------------------------------------


def exchange(connection: socket.socket, raw: bytes) -> bytes:
    """Send a request whose answer has a Content-Length; return the answer's body."""
    connection.sendall(raw)
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(65_536) or fail()
    head, _, first = received.partition(b"\r\n\r\n")
    length = next(
        int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")
    )
    body = [first]
    while length > sum(map(len, body)):
        body.append(connection.recv(1 << 20) or fail())
    return b"".join(body)


def fail() -> bytes:
    raise ConnectionError("the connection ended before the answer did")


def be_waiting(url: str) -> None:
    """Ask for the daemon's health until a line comes in; then tell the longest wait in seconds, and go on."""
    address = urlsplit(url)
    connection = socket.create_connection((address.hostname or "", address.port or 80))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    lines = socket.socket(fileno=sys.stdin.fileno())
    raw = b"GET /_clairvoyant/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    lines.setblocking(False)
    worst_s = 0.0
    while True:
        start = time.perf_counter()
        exchange(connection, raw)
        worst_s = max(worst_s, time.perf_counter() - start)
        with suppress(BlockingIOError):
            if not lines.recv(100):
                return
            lines.sendall(b"%f\n" % worst_s)
            worst_s = 0.0
        time.sleep(ASK_EVERY_S)


# -- this process ------------------------------------------------------------------------------------


class Waiting:
    """The process that asks for the daemon's health."""

    def __init__(self, url: str) -> None:
        self._ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, __file__, "--waiting", url], stdin=theirs.fileno()
            )

    def longest_s(self) -> float:
        """Return the longest wait since this was last asked."""
        self._ours.sendall(b"?")
        return float(self._ours.makefile().readline())

    def during(self, what: Callable[[], None]) -> tuple[float, float]:
        """Return the longest wait while something is done, and how long that took."""
        self.longest_s()
        start = time.perf_counter()
        what()
        took_s = time.perf_counter() - start
        time.sleep(4 * ASK_EVERY_S)
        return self.longest_s(), took_s


def post(url: str, target: str, body: bytes) -> None:
    """Send a body and read what comes back."""
    address = urlsplit(url)
    with socket.create_connection((address.hostname or "", address.port or 80)) as connection:
        head = f"POST {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
        exchange(connection, head.encode() + body)


def query(name: str, value: str) -> str:
    return f"{name}={value.replace(' ', '%20').replace(',', '%2C')}"


def probed(upstream: str, name: str) -> None:
    """Have the upstream tell this, and return when the daemon has asked for it."""
    post(upstream, "/tell?" + query("tell", name), b"")
    address = urlsplit(upstream)
    with socket.create_connection((address.hostname or "", address.port or 80)) as connection:
        while json.loads(exchange(connection, b"GET /asked HTTP/1.1\r\nHost: x\r\n\r\n")) < 2:
            time.sleep(0.05)


def report(kind: str, name: str, waits: list[tuple[float, float]], size: int = 0) -> None:
    longest_ms = [wait_s * 1000 for wait_s, _ in waits]
    print(
        f"{kind:7} {name:26} {size / MB:6.1f} MB  {min(took_s for _, took_s in waits):6.2f} s  "
        f"longest wait {min(longest_ms):6.1f} to {max(longest_ms):6.1f} ms",
        flush=True,
    )


def measure(upstream: str, url: str, args: argparse.Namespace) -> None:
    waiting = Waiting(url)
    rounds = range(args.rounds)
    waits = [waiting.during(lambda: time.sleep(1)) for _ in rounds]
    report("", "nothing", waits)
    for name, (target, make) in BODIES.items():
        if args.only in f"body {name}":
            body = make(args.megabytes)
            send = partial(post, url, target, body)
            report("body", name, [waiting.during(send) for _ in rounds], len(body))
    for name, (_, make) in ANSWERS.items():
        if args.only in f"answer {name}":
            ask = partial(post, url, "/api/chat?" + query("answer", name), SMALL)
            report("answer", name, [waiting.during(ask) for _ in rounds], len(make(args.megabytes)))
    for name, (_, told) in PROBES.items():
        if args.only in f"probe {name}":
            tell = partial(probed, upstream, name)
            report("probe", name, [waiting.during(tell) for _ in rounds], len(told()))
    waiting.process.kill()
    waiting.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=float, default=60.0, help="of what has no size of its own")
    parser.add_argument("--only", default="", help="what holds these words: 'body', 'answer token', ...")
    parser.add_argument("--hostile", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--waiting", metavar="URL", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.hostile:
        uvloop.run(be_hostile(args.megabytes))
    elif args.waiting:
        be_waiting(args.waiting)
    else:
        with (
            tempfile.TemporaryDirectory() as home,
            child(__file__, "--hostile", "--megabytes", args.megabytes) as upstream,
            daemon_process(upstream, home=Path(home)) as daemon,
        ):
            measure(upstream, daemon.base_url, args)


if __name__ == "__main__":
    main()
