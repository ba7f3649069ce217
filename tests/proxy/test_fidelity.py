"""Direct and proxied answers are the same, byte for byte: real llama.cpp, the replay backend, odd servers."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import cast

import pytest
from clairvoyant_lab.asgi_server import serve_app

from tests.fakes.llamacpp_server import LlamaServer
from tests.fakes.raw_http import Header, Message, get, post, raw_client, read_head, read_message
from tests.fakes.replay_backend import Engine, Replay, tabled
from tests.fakes.scripted_upstream import Conversation, always, answer, scripted
from tests.fakes.serving import between, serving
from tests.fakes.wiretap import wiretap

HOP_BY_HOP = {b"connection", b"keep-alive", b"transfer-encoding", b"date"}
"""Created for each connection (RFC 9110, section 7.6.1); Date tells when, not what."""


def end_to_end(message: Message) -> list[Header]:
    return [
        (key, value)
        for key, value in message.headers
        if key.lower() not in HOP_BY_HOP and not key.startswith(b"X-Clairvoyant-")
    ]


def same(direct: Message, proxied: Message) -> None:
    assert proxied.line == direct.line
    assert end_to_end(proxied) == end_to_end(direct)
    assert proxied.body == direct.body
    assert (proxied.trailers, proxied.whole) == (direct.trailers, direct.whole)
    if direct.framing != "close":
        assert proxied.framing == direct.framing


async def compare(direct: str, proxied: str, requests: list[bytes]) -> None:
    """Ask both in turn, on one connection each where the server allows it."""
    for raw in requests:
        async with raw_client(direct) as one, raw_client(proxied) as other:
            same(await one.ask(raw), await other.ask(raw))


LLAMACPP = [
    get("/health"),
    get("/health", method="HEAD"),
    get("/health?a=1&b=%20x&&c"),
    get("/props"),
    get("/slots"),
    post("/slots/0?action=save", b'{"filename": "own.bin"}'),
    get("/lora-adapters"),
    get("/nothing/here"),
    get("/nothing/here", method="DELETE"),
    get("/v1/chat/completions"),
    get("/v1/chat/completions", "Origin: http://page.example", method="OPTIONS"),
    get("/health", "Origin: http://page.example", "X-Twice: 1", "X-Twice: 2"),
    get("/health", "Accept-Encoding: gzip, br"),
    post("/tokenize", b'{"content": "the river and the stone"}'),
    post("/detokenize", b'{"tokens": [300, 301, 302]}'),
    post("/apply-template", b'{"messages": [{"role": "user", "content": "river"}]}'),
    post("/tokenize", b"not json"),
    post("/nothing", b"x" * 300_000),
    # Scheduled routes: what is wrong with a body is the backend's to say.
    post("/v1/chat/completions", b"not json"),
    post("/v1/chat/completions", b""),
    post("/v1/chat/completions", b"[]"),
    post("/v1/chat/completions", b'{"messages": 5}'),
    post("/v1/messages", b'{"model": "tiny"}'),
    post("/completion", b'{"n_predict": 1}'),
    post("/v1/embeddings", b'{"input": "river"}'),
    post("/infill", b'{"input_prefix": "river"}'),
    post("/api/chat", b'{"model": "tiny", "messages": [{"role": "user", "content": "x"}]}'),
]


@pytest.mark.real
async def test_routes_of_llamacpp(llama: LlamaServer) -> None:
    async with serving(llama.base_url, allow_origin="http://page.example") as daemon:
        await compare(llama.base_url, daemon.base_url, LLAMACPP)


@pytest.mark.real
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("route", "field"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "river"}], "max_tokens": 20}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "river"}], "max_tokens": 20}),
        ("/v1/responses", {"input": "river", "max_output_tokens": 20}),
        ("/v1/completions", {"prompt": "river", "max_tokens": 20}),
        ("/completion", {"prompt": "river", "n_predict": 20}),
    ],
)
async def test_answers_of_llamacpp(
    llama: LlamaServer, route: str, field: dict[str, object], stream: bool
) -> None:
    """No two answers of a real server are equal, so one answer is compared with itself, before and behind."""
    raw = post(route, json.dumps({"model": "tiny", "stream": stream, "mark": "tapped"} | field).encode())
    async with (
        wiretap(llama.base_url) as tap,
        serving(tap.base_url) as daemon,
        raw_client(daemon.base_url) as client,
    ):
        proxied = await client.ask(raw)
        tapped = tap.carrying(b"tapped")
    assert tapped.sent.endswith(raw.split(b"\r\n\r\n", 1)[1])
    same(await parsed(bytes(tapped.received)), proxied)


async def parsed(raw: bytes) -> Message:
    reader = asyncio.StreamReader(limit=2**24)
    reader.feed_data(raw)
    reader.feed_eof()
    return await read_message(reader, method=b"POST")


# -- the replay backend: equal requests give equal bytes --------------------------------------------

ASK = [{"role": "user", "content": "river"}]
REPLAYED: list[tuple[str, dict[str, object]]] = [
    ("/api/chat", {"messages": ASK}),
    ("/api/chat", {"messages": ASK, "stream": False}),
    ("/api/chat", {"messages": []}),
    ("/api/generate", {"prompt": "river"}),
    ("/api/generate", {"prompt": "river", "options": {"num_predict": 3}}),
    ("/api/generate", {}),
    ("/api/generate", {"keep_alive": 0}),
    ("/api/embed", {"input": ["one", "two"]}),
    ("/api/embeddings", {"prompt": "one"}),
    ("/v1/chat/completions", {"messages": ASK}),
    ("/v1/chat/completions", {"messages": ASK, "stream": True, "stream_options": {"include_usage": True}}),
    ("/v1/completions", {"prompt": "river", "stream": True}),
    ("/v1/responses", {"input": "river", "stream": True}),
    ("/v1/messages", {"messages": ASK, "max_tokens": 9, "stream": True}),
    ("/v1/messages", {"messages": ASK, "max_tokens": 9}),
    ("/v1/embeddings", {"input": "one"}),
    ("/api/show", {}),
]


@pytest.fixture
async def replay() -> AsyncIterator[tuple[str, str]]:
    backend = Replay(
        Engine(answer_tokens=tabled({"river": 15})), now=lambda: datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    )
    async with serve_app(backend.app) as url, serving(url) as daemon:
        yield url, daemon.base_url


async def test_routes_of_the_replay_backend(replay: tuple[str, str]) -> None:
    requests = [post(path, json.dumps({"model": "replay"} | body).encode()) for path, body in REPLAYED]
    requests += [
        get("/"),
        get("/", method="HEAD"),
        get("/api/version"),
        get("/api/tags"),
        get("/api/chat"),
        get("/api/chat", method="OPTIONS"),
        get("/api/version", method="DELETE"),
        get("/api/version", method="PATCH"),
        get("/unknown?x=1"),
        post("/api/chat", b'{"model": "absent", "messages": [{"role": "user", "content": "x"}]}'),
        post("/api/chat", b"{"),
        post("/v1/chat/completions", b"\xff\xfe"),
    ]
    await compare(*replay, requests)


async def test_pipelined_requests_are_answered_in_turn(replay: tuple[str, str]) -> None:
    chat = json.dumps({"model": "replay", "messages": ASK}).encode()
    raws = [get("/api/version"), post("/api/chat", chat), get("/"), post("/api/chat", chat), get("/unknown")]
    direct, proxied = replay
    async with raw_client(direct) as one, raw_client(proxied) as other:
        one.send(*raws)
        other.send(*raws)
        for raw in raws:
            method = raw.split(b" ", 1)[0]
            same(await one.response(method), await other.response(method))


# -- what the upstream is given, and what odd answers become -----------------------------------------


async def seen_upstream(*raws: bytes, reply: bytes | None = None) -> tuple[list[Message], list[Message]]:
    """Send requests through the proxy on one connection; return what the upstream saw, and the answers."""
    seen: list[Message] = []

    async with (
        scripted(always(reply or answer(), seen)) as upstream,
        serving(upstream.base_url) as daemon,
        raw_client(daemon.base_url) as client,
    ):
        answers = [await client.ask(raw) for raw in raws]
        for message in seen:
            assert message.values("host") == [upstream.base_url.removeprefix("http://").encode()]
    return seen, answers


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/upload"])
async def test_a_request_arrives_as_it_was_sent(path: str) -> None:
    raw = post(
        f"{path}?q=%2F&q=a+b&empty=&flag",
        b'{ "messages" : [ ] ,\n "odd\\u0020spaces": 1e0 }',
        "X-Twice: one",
        "x-CASE: Kept",
        "X-Twice: two",
        "X-Empty:",
        "X-Latin: caf\xe9",
        "Authorization: Bearer secret",
        "Cookie: a=1; b=2",
        "Accept-Encoding: gzip, br;q=0.5",
        "Keep-Alive: timeout=5",
        "Proxy-Connection: keep-alive",
        "Connection: keep-alive, X-Mine",
        "X-Mine: for this connection only",
    )
    [seen], _ = await seen_upstream(raw)
    assert seen.line == f"POST {path}?q=%2F&q=a+b&empty=&flag HTTP/1.1".encode()
    assert seen.body == raw.split(b"\r\n\r\n", 1)[1]
    assert [h for h in seen.headers if h[0].lower() != b"host"] == [
        (b"Content-Type", b"application/json"),
        (b"Content-Length", b"46"),
        (b"X-Twice", b"one"),
        (b"x-CASE", b"Kept"),
        (b"X-Twice", b"two"),
        (b"X-Empty", b""),
        (b"X-Latin", b"caf\xe9"),
        (b"Authorization", b"Bearer secret"),
        (b"Cookie", b"a=1; b=2"),
        # A head without a coding may be sent before the answer of a server.
        (b"Accept-Encoding", b"gzip, br;q=0.5" if path == "/upload" else b"identity"),
    ]


@pytest.mark.parametrize("wish", ["identity", "", "x;q=0, \xfe\xff", "brick", "\xfe*=br\xff"])
async def test_a_wish_that_names_no_coding_arrives_as_it_was_sent(wish: str) -> None:
    [seen], _ = await seen_upstream(
        post("/v1/chat/completions", b'{"messages":[]}', f"Accept-Encoding: {wish}")
    )
    assert seen.values("accept-encoding") == [wish.encode("latin-1")]


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "PROPFIND"])
async def test_any_method_passes(method: str) -> None:
    [seen], [got] = await seen_upstream(get("/some/path", method=method))
    assert seen.line == f"{method} /some/path HTTP/1.1".encode()
    assert got.status == 200


async def test_targets_in_absolute_form_and_the_asterisk() -> None:
    seen, _ = await seen_upstream(
        get("http://tests/a/b?c=d"), get("*", method="OPTIONS"), get("http://tests")
    )
    assert [each.target for each in seen] == [b"/a/b?c=d", b"*", b"/"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/upload"])
async def test_a_chunked_body_with_trailers_arrives(path: str) -> None:
    raw = (
        f"POST {path} HTTP/1.1\r\nHost: tests\r\nTransfer-Encoding: chunked\r\nTE: trailers\r\n"
        'Trailer: X-Sum\r\n\r\n4;ext=1\r\n{"a"\r\n3\r\n:1}\r\n0\r\nX-Sum: 7\r\nX-Other: 8\r\n\r\n'
    ).encode()
    [seen], _ = await seen_upstream(raw)
    assert (seen.framing, seen.body) == ("chunked", b'{"a":1}')
    assert seen.trailers == [(b"X-Sum", b"7"), (b"X-Other", b"8")]
    assert seen.value("te") == b"trailers"
    assert seen.values("content-length") == []


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/plain"])
async def test_an_odd_answer_comes_back_as_it_is(path: str) -> None:
    packed = gzip.compress(b'{"text": "river"}' * 50, mtime=0)
    reply = (
        b"HTTP/1.1 207 Quite Fine, Thank You\r\nSet-Cookie: a=1\r\nset-cookie: b=2\r\nX-Empty:\r\n"
        b"Content-Encoding: gzip\r\nX-Latin: caf\xe9\r\nContent-Length: %d\r\n\r\n%b" % (len(packed), packed)
    )
    _, [got] = await seen_upstream(post(path, b"{}"), reply=reply)
    assert got.line == b"HTTP/1.1 207 Quite Fine, Thank You"
    assert end_to_end(got) == [
        (b"Set-Cookie", b"a=1"),
        (b"set-cookie", b"b=2"),
        (b"X-Empty", b""),
        (b"Content-Encoding", b"gzip"),
        (b"X-Latin", b"caf\xe9"),
        (b"Content-Length", b"%d" % len(packed)),
    ]
    assert got.body == packed


async def test_trailers_come_back() -> None:
    reply = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n"
        b"5\r\nriver\r\n0\r\nX-Sum: 5\r\n\r\n"
    )
    _, [got] = await seen_upstream(get("/"), reply=reply)
    assert (got.body, got.trailers, got.framing) == (b"river", [(b"X-Sum", b"5")], "chunked")


@pytest.mark.parametrize(
    ("status", "method"), [("204 No Content", "GET"), ("304 Not Modified", "GET"), ("200 OK", "HEAD")]
)
async def test_answers_without_a_body_do_not_hold_the_connection(status: str, method: str) -> None:
    extra = "" if status.startswith("204") else "Content-Length: 99\r\n"
    reply = f"HTTP/1.1 {status}\r\n{extra}ETag: x\r\n\r\n".encode()
    _, answers = await seen_upstream(get("/a", method=method), get("/b", method=method), reply=reply)
    assert [each.line for each in answers] == [f"HTTP/1.1 {status}".encode()] * 2
    assert [each.value("content-length") for each in answers] == [None if not extra else b"99"] * 2


async def test_an_answer_that_ends_with_the_connection_is_whole() -> None:
    async def script(it: Conversation) -> None:
        await it.request()
        it.send(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nriver ", b"and stone")

    async with (
        scripted(script) as upstream,
        serving(upstream.base_url) as daemon,
        raw_client(daemon.base_url) as client,
    ):
        for _ in range(2):  # the client's connection outlives the upstream's
            got = await client.ask(get("/old"))
            assert (got.body, got.framing, got.whole) == (b"river and stone", "chunked", True)


async def test_a_client_of_http_1_0(replay: tuple[str, str]) -> None:
    chat = json.dumps({"model": "replay", "messages": ASK}).encode()
    raw = post("/api/chat", chat).replace(b"HTTP/1.1", b"HTTP/1.0")
    direct, proxied = replay
    async with raw_client(direct) as one, raw_client(proxied) as other:
        plain, got = await one.ask(raw), await other.ask(raw)
    assert got.framing == "close"
    assert got.body == plain.body


async def test_an_http_1_0_client_may_keep_its_connection() -> None:
    raw = b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    _, answers = await seen_upstream(raw, raw)
    assert [each.value("connection") for each in answers] == [b"keep-alive"] * 2


# -- bodies that flow --------------------------------------------------------------------------------


async def test_a_large_upload_flows_and_is_not_held(replay: tuple[str, str]) -> None:
    """32 MiB through a reader that only starts once the client has been stopped: memory stays small."""
    size, piece = 32 * 2**20, bytes(range(256)) * 256
    may_read = asyncio.Event()
    total = bytearray()

    async def script(it: Conversation) -> None:
        await read_head(it.reader)
        await may_read.wait()
        for _ in range(0, size, len(piece)):
            part = await it.reader.readexactly(len(piece))
            if part != piece:
                total.extend(part)
        it.send(answer(b"done"))

    async with between(script, raw=True, read_ahead_bytes=len(piece)) as (_, client):
        client.writer.transport.set_write_buffer_limits(high=len(piece))
        client.send(f"POST /api/blobs/x HTTP/1.1\r\nHost: t\r\nContent-Length: {size}\r\n\r\n".encode())
        sent = 0
        while sent < size:
            client.send(piece)
            sent += len(piece)
            try:
                async with asyncio.timeout(None if may_read.is_set() else 0.5):
                    await client.writer.drain()
            except TimeoutError:
                may_read.set()
        assert (await client.response(b"POST")).body == b"done"
    assert may_read.is_set(), "the proxy took all of the upload although nobody read it"
    assert not total


async def test_a_slow_client_stops_the_upstream() -> None:
    """The upstream can not run ahead of a client that does not read, however long its answer is."""
    size, piece = 64 * 2**20, b"x" * 65536
    sent = 0
    stopped = asyncio.Event()

    async def script(it: Conversation) -> None:
        nonlocal sent
        await it.request()
        it.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        it.writer.transport.set_write_buffer_limits(high=len(piece))
        while sent < size:
            it.send(piece)
            sent += len(piece)
            try:
                async with asyncio.timeout(None if stopped.is_set() else 0.5):
                    await it.writer.drain()
            except TimeoutError:
                stopped.set()

    async with between(script) as (_, client):
        transport = cast(asyncio.ReadTransport, client.writer.transport)
        client.send(get("/long"))
        transport.pause_reading()
        async with asyncio.timeout(20):
            await stopped.wait()
        assert sent < size
        transport.resume_reading()
        got = await client.response()
    assert len(got.body) == size


async def test_expect_100_continue_is_passed_on() -> None:
    async def script(it: Conversation) -> None:
        _, headers = await read_head(it.reader)
        assert (b"Expect", b"100-continue") in headers
        it.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await it.reader.readexactly(5)
        it.send(answer(body))

    async with between(script, raw=True) as (_, client):
        client.send(b"POST /up HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
        assert await client.receive(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(b"river")
        assert (await client.response(b"POST")).body == b"river"


async def test_expect_100_continue_refused_by_the_upstream() -> None:
    async def script(it: Conversation) -> None:
        await read_head(it.reader)
        it.send(answer(b"no", status="417 Expectation Failed"))
        await it.left()

    async with between(script, raw=True) as (_, client):
        client.send(b"POST /up HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
        got = await client.response(b"POST")
        assert (got.status, got.body) == (417, b"no")
        assert got.value("connection") == b"close", "the body that never came must not be waited for"
        assert await client.rest() == b""


async def test_expect_100_continue_on_a_scheduled_route(replay: tuple[str, str]) -> None:
    body = json.dumps({"model": "replay", "messages": ASK}).encode()
    async with raw_client(replay[1]) as client:
        client.send(post("/api/chat", body, "Expect: 100-continue")[: -len(body)])
        assert await client.receive(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(body)
        assert (await client.response(b"POST")).status == 200


async def test_early_hints_come_before_the_answer() -> None:
    async def script(it: Conversation) -> None:
        await it.request()
        it.send(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", answer(b"late"))

    async with between(script) as (_, client):
        assert (await client.ask(get("/"))).line == b"HTTP/1.1 103 Early Hints"
        assert (await client.response()).body == b"late"


async def test_a_websocket_passes_both_ways() -> None:
    async def script(it: Conversation) -> None:
        request = await it.request()
        assert (request.value("upgrade"), request.value("connection")) == (b"websocket", b"Upgrade")
        assert request.value("sec-websocket-key") == b"abc"
        it.send(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nhello")
        while data := await it.reader.read(100):
            it.send(data.upper())

    offer = get("/ws", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: abc")
    async with between(script) as (_, client):
        got = await client.ask(offer)
        assert (got.status, got.value("upgrade"), got.value("connection")) == (101, b"websocket", b"Upgrade")
        assert await client.receive(b"hello") == b"hello"
        client.send(b"\x00\xffriver")
        assert await client.receive(b"RIVER") == b"\x00\xffRIVER"


@pytest.mark.parametrize("path", ["/v1/responses", "/responses?x=1", "/other"])
@pytest.mark.parametrize(("status", "sent"), [(404, 426), (405, 426), (403, 426), (200, 426), (401, 401)])
async def test_an_agent_that_offers_a_websocket_for_responses_learns_that_there_is_none(
    path: str, status: int, sent: int
) -> None:
    offer = get(path, "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: abc")
    async with between(always(answer(b"none", status=f"{status} Said"))) as (_, client):
        got = await client.ask(offer)
        assert (got.status, got.body) == (status if path == "/other" else sent, b"none")
        assert (await client.ask(get("/v1/responses"))).status == status  # no offer: as the server answers


async def test_a_websocket_ends_on_both_sides_when_its_client_leaves() -> None:
    ended = asyncio.Event()

    async def script(it: Conversation) -> None:
        await it.request()
        it.send(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
        await it.left()
        ended.set()

    async with between(script) as (_, client):
        await client.ask(get("/ws", "Connection: Upgrade", "Upgrade: websocket"))
        client.writer.write_eof()
        async with asyncio.timeout(20):
            await ended.wait()
        assert await client.rest() == b""


async def test_an_upgrade_that_is_ignored_is_a_plain_request() -> None:
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")
    seen, answers = await seen_upstream(get("/a", *offer), post("/v1/chat/completions", b"{}", *offer))
    assert [each.status for each in answers] == [200, 200]
    assert [each.values("upgrade") + each.values("http2-settings") for each in seen] == [[], []]
    assert seen[1].body == b"{}"
