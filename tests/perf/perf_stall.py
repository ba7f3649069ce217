"""How long one client's body, or one answer of a backend, keeps all others waiting.

    python -m tests.perf.perf_stall [--only WORDS] [--rounds N] [--megabytes N]

While hostile bodies are sent through `clairvoyant serve`, hostile answers come back, and its own questions
are answered with nonsense, another process asks for its health every 5 ms; what is printed is the longest
that one of those answers took. The upstream, the asking process and this one, which sends, are three
processes: none waits for another's interpreter lock. The least of the rounds is what the daemon does by
itself, the most shows what else the machine had to do. WORDS select some: "body", "answer digits".
"""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from urllib.parse import parse_qs, quote, urlsplit

from tests.fakes.daemon_process import child
from tests.perf.harness import Upstream, options, serving

MB = 1_000_000
ASK_EVERY_S = 0.005
SMALL = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":false}'
USER = b'{"model":"m","messages":[{"role":"user","content":'
OLLAMA, GENERATE, CHAT, COMPLETION = "/api/chat", "/api/generate", "/v1/chat/completions", "/v1/completions"
JSON, NDJSON, SSE = "application/json", "application/x-ndjson", "text/event-stream"

Made = tuple[str, Callable[[float], bytes]]
"""The route or content type, and the size of the body in megabytes."""


def fill(before: bytes, unit: bytes, after: bytes, megabytes: float) -> bytes:
    return before + unit * int(megabytes * MB / len(unit)) + after


def of(where: str, before: bytes, unit: bytes, after: bytes, size_mb: float | None = None) -> Made:
    return where, lambda mb: fill(before, unit, after, mb if size_mb is None else size_mb)


def nested(where: str, before: bytes, opening: bytes, closing: bytes, after: bytes) -> Made:
    return where, lambda mb: before + opening * 300 + fill(b'"', b"A", b'"', mb) + closing * 300 + after


def message(text: bytes) -> bytes:
    return b'{"role":"user","content":"' + text + b'"},'


BODIES: dict[str, Made] = {
    "a short body": (OLLAMA, lambda mb: SMALL),
    "text": of(OLLAMA, USER + b'"', b"write an essay ", b'"}]}'),
    "escapes": of(OLLAMA, USER + b'"', b"\\u00e9", b'"}]}'),
    "line feeds": of(OLLAMA, USER + b'"', b"\\n", b'"}]}'),
    "dotted capital i": of(GENERATE, b'{"prompt":"', "İ".encode(), b'"}'),
    "backslashes": of(GENERATE, b'{"prompt":"', b"\\\\", b'"}'),
    "half surrogates": of(GENERATE, b'{"prompt":"', b"\\ud83d", b'"}'),
    "no UTF-8": of(GENERATE, b'{"prompt":"', b"\x80", b'"}'),
    "opening brackets": of(OLLAMA, b"", b"[", b""),
    "quotes": of(OLLAMA, b"", b'"', b""),
    "blanks": of(OLLAMA, b"", b" ", SMALL),
    "empty objects": of(OLLAMA, b'{"messages":[', b"{},", b"{}]}"),
    "empty objects, 250 KB": of(OLLAMA, b'{"messages":[', b"{},", b"{}]}", 0.25),
    "empty lists, 250 KB": of(COMPLETION, b'{"prompt":[', b"[],", b"[]]}", 0.25),
    "strings, 250 KB": of(COMPLETION, b'{"prompt":[', b'"",', b'""]}', 0.25),
    "messages": of(OLLAMA, b'{"messages":[', message(b"a"), b"{}]}"),
    "messages of 2 KB, 2.9 MB": of(OLLAMA, b'{"messages":[', message(b"\\n" * 1000), b"{}]}", 2.9),
    "messages of 4 KB": of(OLLAMA, b'{"messages":[', message(b"\\n" * 2000), b"{}]}"),
    "parts": of(CHAT, USER + b"[", b'{"text":"a"},', b"{}]}]}"),
    "parts, 250 KB": of(CHAT, USER + b"[", b'"",', b"{}]}]}", 0.25),
    "token ids": of(COMPLETION, b'{"prompt":[', b"71234,", b"1]}"),
    "long numbers, 250 KB": of(COMPLETION, b'{"prompt":[', b"9" * 4000 + b",", b"1]}", 0.25),
    "strings": of("/v1/embeddings", b'{"input":[', b'"a",', b'"a"]}'),
    "lists within lists": nested(COMPLETION, b'{"prompt":', b'["",', b"]", b"}"),
    "parts within parts": nested("/v1/messages", USER, b'[{"content":["",', b"]}]", b"}]}"),
    "keys": (OLLAMA, lambda mb: b"{" + b",".join(b'"k%d":1' % n for n in range(int(mb * 80_000))) + b"}"),
    "the same key": of(OLLAMA, b"{", b'"messages":[],', b'"messages":[]}'),
    "a model's name": of(OLLAMA, b'{"model":"', b"\\u202e", b'","messages":[]}'),
    "num_ctx": of(OLLAMA, b'{"options":{"num_ctx":"', b"9", b'"},"messages":[{}]}'),
    "a picture": of(OLLAMA, b'{"messages":[{"images":["', b"QUJD", b'"]}]}'),
    "pictures": of(OLLAMA, b'{"messages":[{"images":[', b'"",', b'""]}]}'),
    "payloads of 1 KB": of(OLLAMA, b'{"messages":[{"images":[', b'"' + b"QUJD" * 300 + b'",', b'""]}]}'),
    "payloads that are none": of(CHAT, USER + b"[", b'{"x":"' + b"A" * 1500 + b'"},', b"{}]}]}"),
    "pictures in parts": of(CHAT, USER + b"[", b'{"type":"image_url","image_url":"x"},', b"{}]}]}"),
    "tools": of(CHAT, b'{"messages":[{}],"tools":[', b"{},", b"{}]}"),
}
ANSWERS: dict[str, Made] = {
    "empty objects, 2 MB": of(JSON, b'{"x":[', b"{},", b"{}]}", 2),
    "the same usage, 2 MB": of(JSON, b"{", b'"usage":{},', b'"a":1}', 2),
    "line feeds, 2 MB": of(JSON, b'{"response":"', b"\\n", b'"}', 2),
    "digits, 2 MB": of(JSON, b"{", b'"eval_count":' + b"9" * 300 + b",", b'"a":1}', 2),
    "embeddings": of(JSON, b'{"data":[', b"0.123456,", b"1]}"),
    "opening brackets": of(JSON, b"", b"[", b""),
    "empty lines": of(NDJSON, b"", b"\n", b""),
    "empty events": of(NDJSON, b"", b"{}\n", b""),
    "empty SSE events": of(SSE, b"", b"data: {}\n\n", b"data: [DONE]\n\n"),
    "one long event": of(SSE, b"data: {", b'"usage":{},', b'"a":1}\n\n'),
}
PROBES: dict[str, Made] = {
    "ordinary answers": ("/api/ps", lambda mb: b'{"models":[]}'),
    "300,000 models": of("/api/ps", b'{"models":[', b"{},", b"{}]}", 0.9),
    "19,000 models": of("/api/ps", b'{"models":[', b'{"name":"m","size":5},', b"{}]}", 0.42),
    "a list of 60 MB": of("/api/ps", b'{"models":[', b"{},", b"{}]}", 60),
    "a name of 1 MB": of("/api/ps", b'{"models":[{"name":"', b"\\u202e", b'"}]}', 0.99),
    "a version of 1 MB": of("/api/version", b'{"version":"', b"1", b'"}', 0.99),
    "opening brackets": of("/api/version", b"", b"[", b"", 0.99),
}
"""What the daemon's own questions are answered with."""


class Hostile(Upstream):
    """Swallows any body, and answers what the query names: an answer, or what to tell from now on."""

    megabytes = 60.0
    told: tuple[str, bytes] = ("", b"")
    asked = 0

    def on_body(self, body: bytes) -> None:
        pass

    def requested(self, url: str) -> None:
        target = urlsplit(url)
        query = parse_qs(target.query)
        if "tell" in query:
            path, make = PROBES[query["tell"][0]]
            Hostile.told, Hostile.asked = (path, make(0)), 0
            self.answer(b"{}")
        elif target.path == "/asked":
            self.answer(b"%d" % Hostile.asked)
        elif target.path in ("/api/version", "/api/ps", "/api/tags"):
            Hostile.asked += target.path == "/api/ps"
            ordinary = b'{"version":"0.1"}' if target.path == "/api/version" else b"{}"
            self.answer(Hostile.told[1] if Hostile.told[0] == target.path else ordinary)
        elif target.path.startswith("/_clairvoyant"):
            self.answer(b"", status="404 Not Found")
        elif "answer" in query:
            kind, make = ANSWERS[query["answer"][0]]
            self.answer(make(Hostile.megabytes), kind)
        else:
            self.answer(b'{"done":true,"eval_count":5}')


# -- the one who waits, a process of its own ---------------------------------------------------------


def connection(url: str) -> socket.socket:
    address = urlsplit(url)
    return socket.create_connection((address.hostname or "", address.port or 80))


def exchange(to: socket.socket, raw: bytes) -> bytes:
    """Send a request whose answer has a Content-Length; return the answer's body."""
    to.sendall(raw)
    received = b""
    while b"\r\n\r\n" not in received:
        received += to.recv(65_536) or fail()
    head, _, first = received.partition(b"\r\n\r\n")
    fields = (line.partition(b":") for line in head.lower().split(b"\r\n"))
    length, body = next(int(value) for name, _, value in fields if name == b"content-length"), [first]
    while length > sum(map(len, body)):
        body.append(to.recv(1 << 20) or fail())
    return b"".join(body)


def fail() -> bytes:
    raise ConnectionError("the connection ended before the answer did")


def be_waiting(url: str) -> None:
    """Ask for the daemon's health until a line comes in; then tell the longest wait in seconds, and go on."""
    to, lines = connection(url), socket.socket(fileno=sys.stdin.fileno())
    to.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    lines.setblocking(False)
    worst_s = 0.0
    while True:
        start_s = time.perf_counter()
        exchange(to, b"GET /_clairvoyant/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        worst_s = max(worst_s, time.perf_counter() - start_s)
        with suppress(BlockingIOError):
            if not lines.recv(100):
                return
            lines.sendall(b"%f\n" % worst_s)
            worst_s = 0.0
        time.sleep(ASK_EVERY_S)


class Waiting:
    """The process that asks for the daemon's health."""

    def __init__(self, url: str) -> None:
        self._ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "tests.perf.perf_stall", "waiting", url]
            self.process = subprocess.Popen(command, stdin=theirs.fileno())

    def longest_s(self) -> float:
        self._ours.sendall(b"?")
        return float(self._ours.makefile().readline())

    def during(self, what: Callable[[], object]) -> tuple[float, float]:
        """Return the longest wait while something is done, and how long that took."""
        self.longest_s()
        start_s = time.perf_counter()
        what()
        took_s = time.perf_counter() - start_s
        time.sleep(4 * ASK_EVERY_S)
        return self.longest_s(), took_s


# -- this process ------------------------------------------------------------------------------------


def post(url: str, target: str, body: bytes) -> None:
    with connection(url) as to:
        head = f"POST {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
        exchange(to, head.encode() + body)


def asked(url: str, name: str, body: bytes) -> None:
    post(url, f"{OLLAMA}?answer={quote(name)}", SMALL)


def probed(upstream: str, name: str, body: bytes) -> None:
    """Have the upstream tell this, and return when the daemon has asked for it."""
    post(upstream, f"/tell?tell={quote(name)}", b"")
    with connection(upstream) as to:
        while json.loads(exchange(to, b"GET /asked HTTP/1.1\r\nHost: x\r\n\r\n")) < 2:
            time.sleep(0.05)


def measure(upstream: str, url: str, only: str, rounds: int, megabytes: float) -> None:
    waiting = Waiting(url)
    jobs: dict[str, tuple[Callable[[float], bytes], Callable[[bytes], object]]] = {
        "nothing": (lambda mb: b"", lambda body: time.sleep(1))
    }
    for name, (target, make) in BODIES.items():
        jobs[f"body {name}"] = make, partial(post, url, target)
    for name, (_, make) in ANSWERS.items():
        jobs[f"answer {name}"] = make, partial(asked, url, name)
    for name, (_, make) in PROBES.items():
        jobs[f"probe {name}"] = make, partial(probed, upstream, name)
    for name, (make, do) in jobs.items():
        if only in name or name == "nothing":
            body = make(megabytes)
            waits = [waiting.during(partial(do, body)) for _ in range(rounds)]
            longest_ms = [wait_s * 1000 for wait_s, _ in waits]
            print(
                f"{name:32} {len(body) / MB:6.1f} MB  {min(took_s for _, took_s in waits):6.2f} s  "
                f"longest wait {min(longest_ms):6.1f} to {max(longest_ms):6.1f} ms",
                flush=True,
            )
    waiting.process.kill()
    waiting.process.wait()


def main() -> None:
    given = options(__doc__, only="", rounds=3, megabytes=60.0)
    words = ("-m", "tests.perf.perf_stall", "hostile", given.megabytes)
    with child(*words) as upstream, serving(upstream) as daemon:
        measure(upstream, daemon.base_url, given.only, given.rounds, given.megabytes)


if __name__ == "__main__":
    if "hostile" in sys.argv[1:2]:
        Hostile.megabytes = float(sys.argv[2])
        Hostile.run()
    elif "waiting" in sys.argv[1:2]:
        be_waiting(sys.argv[2])
    else:
        main()
