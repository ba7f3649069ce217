"""Backends that break off, talk nonsense or answer too early: never a faked ending, never a lost slot."""

import asyncio
import json

import pytest

from clairvoyant_cli.proxy.composition import Daemon
from predictor.record import Prediction, Predictor
from tests.fakes.raw_http import get, post, raw_client, read_head
from tests.fakes.scripted_upstream import Conversation, Script, always, answer
from tests.fakes.serving import between, until

CHAT = post("/v1/chat/completions", b'{"model": "m", "messages": [{"role": "user", "content": "river"}]}')
PLAIN = get("/anything")


def says(*pieces: bytes, reset: bool = False) -> Script:
    async def script(it: Conversation) -> None:
        await it.request()
        it.send(*pieces)
        await it.writer.drain()
        if reset:
            it.reset()

    return script


def idle(daemon: Daemon) -> None:
    """Nothing waits, nothing runs, every request is accounted for once."""
    dispatcher = daemon.dispatcher
    assert (len(dispatcher.scheduler), dict(dispatcher.scheduler.running), dispatcher.live) == (0, {}, {})
    counts = daemon.snapshot().counters
    ended = (
        counts.completed
        + counts.client_cancelled
        + counts.operator_cancelled
        + counts.upstream_error
        + counts.rejected
        + counts.timeout
    )
    assert ended == counts.submitted


CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices": []}\n\n'


@pytest.mark.parametrize("raw", [CHAT, PLAIN], ids=["scheduled", "passed"])
@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize(
    "pieces",
    [
        (CHUNKED, b"%x\r\n%b\r\n" % (len(EVENT), EVENT)),
        (CHUNKED, b"ff\r\n", EVENT),
        (CHUNKED,),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n", EVENT),
        (CHUNKED, b"%x\r\n%b\r\n" % (len(EVENT), EVENT), b"0\r\n"),
        (CHUNKED, b"%x\r\n%b\r\n" % (len(EVENT), EVENT), b"nonsense\r\n"),
    ],
    ids=[
        "between chunks",
        "within a chunk",
        "after the head",
        "short of its length",
        "last chunk",
        "bad chunk",
    ],
)
async def test_an_answer_cut_short_stays_cut_short(
    raw: bytes, pieces: tuple[bytes, ...], reset: bool
) -> None:
    async with between(says(*pieces, reset=reset)) as (daemon, client):
        got = await client.ask(raw)
        if got.status == 502:
            assert reset or pieces == (CHUNKED,)  # a reset may overtake what was sent before it
        else:
            assert not got.whole
            assert EVENT.startswith(got.body)
            assert await client.rest() == b""
        idle(daemon)


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/9.9 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nriver!",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nriver",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nNo colon here\r\n\r\n",
        b"HTTP/1.1 200 O",
        b"HTTP/1.1 103 Early Hints\r\n\r\n",
    ],
)
@pytest.mark.parametrize("raw", [CHAT, PLAIN], ids=["scheduled", "passed"])
async def test_nonsense_is_a_bad_gateway(garbage: bytes, raw: bytes) -> None:
    async with between(says(garbage)) as (daemon, client):
        for _ in range(2):  # the connection of the client stays sound
            got = await client.ask(raw)
            while got.status == 103:  # once each time that it is asked
                got = await client.response(raw.split(b" ")[0])
            assert (got.status, got.framing) == (502, "length")
            assert " failed: " in json.loads(got.body)["error"]["message"]
        idle(daemon)


@pytest.mark.parametrize("path", ["/upload", "/v1/audio/transcriptions"])
async def test_an_answer_in_the_middle_of_an_upload_arrives(path: str) -> None:
    """The upstream refuses after the first bytes; the client, still sending, reads the refusal."""
    size = 8 * 2**20

    async def script(it: Conversation) -> None:
        await read_head(it.reader)
        it.send(answer(b"too large", status="413 Content Too Large"))
        await it.writer.drain()

    async with between(
        script, raw=True, read_ahead_bytes=65536, body_limit_mib=1, body_budget_bytes=2**20
    ) as (
        _,
        client,
    ):
        client.send(f"POST {path} HTTP/1.1\r\nHost: t\r\nContent-Length: {size}\r\n\r\n".encode())
        client.send(bytes(size))
        got = await client.response(b"POST")
        assert (got.status, got.body) == (413, b"too large")
        assert got.value("connection") == b"close"
        await client.rest()


async def test_bytes_after_an_answer_never_reach_the_next_client() -> None:
    """A connection that says more than it was asked is not used again."""
    async with between(always(lambda request: answer(request.target) + answer(b"stray"))) as (_, client):
        bodies = [(await client.ask(get(f"/{number}"))).body for number in range(10)]
    assert bodies == [b"/%d" % number for number in range(10)]


async def test_a_body_after_the_answer_to_head_is_dropped() -> None:
    """Some servers send one; on a connection used again it would be taken for the next answer."""
    async with between(always(lambda request: answer(request.target))) as (_, client):
        for number in range(5):
            head = await client.ask(get(f"/{number}", method="HEAD"))
            assert head.body == b""
            assert (await client.ask(get(f"/next/{number}"))).body == b"/next/%d" % number


async def test_one_byte_at_a_time() -> None:
    wire = CHUNKED + b"".join(b"1\r\n%c\r\n" % byte for byte in EVENT) + b"0\r\nX-End: yes\r\n\r\n"

    async def script(it: Conversation) -> None:
        await it.request()
        for byte in wire:
            it.send(bytes([byte]))
            await it.writer.drain()
            await asyncio.sleep(0)

    async with between(script) as (_, client):
        got = await client.ask(CHAT)
    assert (got.body, got.whole, got.trailers) == (EVENT, True, [(b"X-End", b"yes")])


@pytest.mark.parametrize("strange", ['{"result": "text"}', '{"result": [1], "usage": 7}', '{"timings": []}'])
async def test_answers_in_unknown_shapes_do_not_cost_the_slot(strange: str) -> None:
    for kind in ("application/json", "text/event-stream", "application/x-ndjson"):
        body = f"data: {strange}\n\n" if "event" in kind else f"{strange}\n"
        script = says(answer(body.encode(), f"Content-Type: {kind}"))
        async with between(script) as (daemon, client):
            for _ in range(2):
                assert (await client.ask(CHAT)).body == body.encode()
            state = await until(daemon, lambda s: not s.running)
            assert state.counters.completed + state.counters.upstream_error == 2
            idle(daemon)


async def test_a_predictor_that_raises_costs_neither_answer_nor_slot() -> None:
    class Broken(Predictor):
        name = "broken"

        def predict(self, view: object, opinion: object = None) -> Prediction:
            raise RuntimeError("no idea")

        def learn(self, prediction: object, tokens: int) -> None:
            raise RuntimeError("never")

    async with between(
        says(answer(b'{"usage": {"completion_tokens": 3}}')), Broken(), faults_expected=True
    ) as (daemon, client):
        for _ in range(2):
            assert (await client.ask(CHAT)).status == 200
        assert daemon.snapshot().counters.completed == 2
        idle(daemon)


async def test_a_fault_of_our_own_is_a_500_and_costs_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    async with between(says(answer()), faults_expected=True) as (daemon, client):

        def fail(*args: object, **named: object) -> None:
            raise RuntimeError("a bug")

        with monkeypatch.context() as broken:
            broken.setattr("clairvoyant_cli.proxy.requests.serving.forward", fail)
            broken.setattr("clairvoyant_cli.proxy.requests.passthrough.forward", fail)
            for raw in (CHAT, PLAIN):
                async with raw_client(daemon.base_url) as other:
                    got = await other.ask(raw)
                    assert (got.status, got.value("connection")) == (500, b"close")
                    assert await other.rest() == b""
        idle(daemon)
        assert (await client.ask(CHAT)).status == 200


async def test_the_slot_is_given_back_although_the_books_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    async with between(says(answer()), faults_expected=True) as (daemon, client):

        def fail(of: object) -> None:
            raise RuntimeError("a bug")

        with monkeypatch.context() as broken:
            broken.setattr(daemon.keepers, "functions", [fail, *daemon.keepers.functions])
            assert (await client.ask(CHAT)).status == 200
        async with raw_client(daemon.base_url) as other:
            assert (await other.ask(CHAT)).status == 200
        idle(daemon)
