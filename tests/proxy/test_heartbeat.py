"""A client that waits gets empty events of its protocol, then the answer that it would have got anyway."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import anthropic
import httpx
import ollama
import openai
import pytest
from clairvoyant_lab.virtual_time import run_virtually

from clairvoyant_cli.protocols.heartbeat import ChunksJoined, blank_after
from clairvoyant_cli.protocols.routes import Shape, Work
from clairvoyant_cli.proxy.composition import Daemon
from clairvoyant_cli.proxy.requests import heartbeat
from tests.fakes.raw_http import Message, RawClient, post, raw_client
from tests.fakes.replay_backend import Engine, Replay, tabled
from tests.fakes.scripted_upstream import Conversation, answer
from tests.fakes.serving import between, replaying, until

LENGTHS = tabled({"endless": 100_000, "short": 3})
ASK: Any = [{"role": "user", "content": "short"}]
STREAMED: dict[str, dict[str, object]] = {
    "/api/chat": {"messages": ASK},
    "/api/generate": {"prompt": "short"},
    "/v1/chat/completions": {"messages": ASK},
    "/v1/completions": {"prompt": "short"},
    "/v1/responses": {"input": "short", "store": False},
    "/v1/messages": {"messages": ASK, "max_tokens": 5},
}
PATIENCE = 60.0


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "EVERY_S", 0.02)
    monkeypatch.setattr(heartbeat, "SUSPENDED_EVERY_S", 0.02)


def asks(path: str, *headers: str, stream: bool) -> bytes:
    return post(path, json.dumps({"model": "replay", "stream": stream} | STREAMED[path]).encode(), *headers)


@asynccontextmanager
async def occupied(**settings: Any) -> AsyncIterator[tuple[Daemon, Engine, RawClient]]:
    backend = Replay(Engine(answer_tokens=LENGTHS))
    async with (
        replaying(backend, **({"keep_alive": "0.01"} | settings)) as daemon,
        raw_client(daemon.base_url) as holder,
    ):
        backend.engine.freeze()
        holder.send(post("/api/chat", b'{"model":"replay","messages":[{"role":"user","content":"endless"}]}'))
        await backend.engine.wait_until(lambda c: c.started == 1)
        yield daemon, backend.engine, holder


def events(body: bytes) -> list[dict[str, Any]]:
    lines = [line.removeprefix(b"data: ") for line in body.splitlines() if not line.startswith(b"event:")]
    return [json.loads(line) for line in lines if line and line != b"[DONE]"]


def text_of(path: str, body: bytes) -> str:
    said = []
    for event in events(body):
        if path == "/api/chat":
            said.append(event["message"]["content"])
        elif path == "/api/generate":
            said.append(event["response"])
        elif path == "/v1/responses":
            said.append(event.get("delta", ""))
        elif path == "/v1/messages":
            said.append(event["delta"].get("text", "") if event["type"] == "content_block_delta" else "")
        elif event["choices"]:
            choice = event["choices"][0]
            said.append(choice.get("text") or choice.get("delta", {}).get("content") or "")
    return "".join(said)


def without_ids(body: bytes) -> str:
    """Return a stream without what differs from answer to answer."""
    kept = [
        {name: value for name, value in event.items() if name not in ("id", "created", "created_at")}
        for event in events(body)
    ]
    return json.dumps(
        [{k: v for k, v in e.items() if k not in ("response", "message", "item")} for e in kept]
    )


@pytest.mark.parametrize("path", STREAMED)
async def test_a_stream_begins_with_empty_events_and_goes_on_as_the_server_sends_it(path: str) -> None:
    async with occupied() as (daemon, engine, holder), raw_client(daemon.base_url) as client:
        client.send(asks(path, stream=True))
        early = await client.receive(b"\r\n\r\n")
        assert early.startswith(b"HTTP/1.1 200")
        assert b"X-Clairvoyant-Request-Id" in early
        holder.leave()
        engine.thaw()
        got = await chunked_rest(client)
        direct = await from_the_server(daemon, asks(path, stream=True))
        assert text_of(path, got) == text_of(path, direct.body) != ""
        kinds = [each.get("type") for each in events(got)]
        if path == "/v1/responses":
            assert kinds[:2] == ["response.created", "response.in_progress"]
            assert kinds.count("response.created") == 1
            assert kinds[-1] == "response.completed"
        elif path == "/v1/messages":
            assert kinds[0] == "ping"
            assert [each for each in kinds if each != "ping"] == [e.get("type") for e in events(direct.body)]
        else:
            if path == "/v1/chat/completions":
                assert events(got)[0]["choices"][0]["delta"] == {"content": ""}, (
                    "SDKs add up the roles of deltas"
                )
            assert without_ids(got).endswith(without_ids(direct.body)[1:])
            assert len({each.get("id") for each in events(got)}) == 1, "one stream has one id"
        assert [each.status for each in daemon.snapshot().recent if each.outcome == "completed"] == [200]
        assert engine.counts.arrived == 3, "nothing is sent twice"


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_one_stream_has_one_id_however_it_is_cut(size: int) -> None:
    call = {"index": 0, "id": "call_1", "function": {"arguments": '{"id": "x-1"}'}}
    chunks = [{"choices": [{"delta": {"tool_calls": [call]}}], "id": "x-1"}, {"id": "x-1", "usage": {}}]
    stream = b": hello\n\n" + b"".join(b"data: %b\r\n\r\n" % json.dumps(each).encode() for each in chunks)
    joint = ChunksJoined("ours")
    parts = [joint.feed(stream[at : at + size]) for at in range(0, len(stream), size)]
    got = b"".join(parts) + joint.end()
    assert got == stream.replace(b'"id": "x-1"', b'"id": "ours"')


async def from_the_server(daemon: Daemon, request: bytes) -> Message:
    """Return the answer without the proxy, which sends empty events on a busy machine."""
    async with raw_client(daemon.pool.first.id) as client:
        return await client.ask(request)


async def chunked_rest(client: RawClient) -> bytes:
    body = bytearray()
    async with asyncio.timeout(PATIENCE):
        while size := int(await client.reader.readuntil(b"\r\n"), 16):
            body += (await client.reader.readexactly(size + 2))[:-2]
        assert await client.reader.readexactly(2) == b"\r\n"
    return bytes(body)


@pytest.mark.parametrize("path", STREAMED)
@pytest.mark.parametrize("stream", [True, False])
def test_what_fails_later_ends_as_an_error_of_the_protocol(path: str, stream: bool) -> None:
    async def scene() -> None:
        clock = asyncio.get_running_loop().time
        async with (
            occupied(max_wait=0.15, clock=clock) as (daemon, engine, _),
            raw_client(daemon.base_url) as client,
        ):
            got = await client.ask(asks(path, stream=stream))
            assert (got.status, got.whole) == (200, stream), "what is not streamed breaks off"
            last = events(got.body)[-1]
            if path == "/v1/responses" and stream:
                assert last["type"] == "response.failed"
                told = last["response"]["error"]
                assert told["code"] == "server_is_overloaded"
            else:
                assert last.get("type", "error") == "error"
                told = last["error"]
            message = told if isinstance(told, str) else told["message"]
            assert "no slot became free" in message or "server busy" in message
            assert [each.status for each in daemon.snapshot().recent] == [503]
            assert engine.counts.arrived == 1

    run_virtually(scene())


async def test_the_official_clients_raise_what_fails_behind_an_early_head() -> None:
    """Those that repeat a request whose server failed do so, and raise in the end."""
    async with occupied(max_wait=0.2) as (daemon, _, _):
        base = daemon.base_url
        of_openai = openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="none", max_retries=1)
        of_anthropic = anthropic.AsyncAnthropic(base_url=base, api_key="none", max_retries=1)
        of_ollama = ollama.AsyncClient(host=base)
        asks_of: list[tuple[int, type[Exception], Any]] = [
            (2, openai.APIConnectionError, of_openai.chat.completions.create(model="m", messages=ASK)),
            (2, openai.APIConnectionError, of_openai.completions.create(model="m", prompt="short")),
            (2, openai.APIConnectionError, of_openai.responses.create(model="m", input="a", store=False)),
            (2, openai.APIConnectionError, of_openai.embeddings.create(model="m", input="short")),
            (
                2,
                anthropic.APIConnectionError,
                of_anthropic.messages.create(model="m", messages=ASK, max_tokens=9),
            ),
            (1, httpx.RemoteProtocolError, of_ollama.chat("m", messages=ASK)),
            (1, httpx.RemoteProtocolError, of_ollama.generate("m", prompt="short")),
            (1, httpx.RemoteProtocolError, of_ollama.embed("m", input="short")),
        ]
        for tried, raised, asked in asks_of:
            before = daemon.snapshot().counters.submitted
            with pytest.raises(raised):
                await asked
            assert daemon.snapshot().counters.submitted - before == tried, raised
        for client in (of_openai, of_anthropic):
            await client.close()
        await of_ollama.close()  # type: ignore[no-untyped-call]


async def test_an_error_that_is_final_is_told_to_who_repeats_and_the_server_is_asked_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, begun, begin = list[int](), asyncio.Event(), heartbeat.Heartbeat._begin

    def seen(self: heartbeat.Heartbeat) -> None:
        begin(self)
        begun.set()

    monkeypatch.setattr(heartbeat.Heartbeat, "_begin", seen)
    told = {"type": "error", "error": {"type": "t", "message": "too long", "code": "context_length_exceeded"}}

    async def refusing(it: Conversation) -> None:
        while True:
            asked.append(len((await it.request()).body))
            await begun.wait()
            begun.clear()
            status = "500 Broken" if len(asked) == 1 else "400 Bad Request"
            it.send(answer(json.dumps(told).encode(), status=status))

    async with between(refusing, keep_alive="0.01") as (daemon, _):
        base = daemon.base_url
        of_openai = openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="none")
        of_anthropic = anthropic.AsyncAnthropic(base_url=base, api_key="none")
        with pytest.raises(openai.BadRequestError) as raised:  # not of the 500, which may pass
            await of_openai.chat.completions.create(model="m", messages=ASK)
        assert (raised.value.code, len(asked)) == ("context_length_exceeded", 2)
        with pytest.raises(anthropic.BadRequestError, match="too long"):
            await of_anthropic.messages.create(model="m", messages=ASK, max_tokens=9)
        assert len(asked) == 3
        await of_openai.close()
        await of_anthropic.close()
        chat = json.dumps({"model": "m", "messages": ASK}).encode()
        for _ in range(2):  # a person who sends the same again wants to have it tried
            async with raw_client(base) as person:
                await person.ask(post("/v1/chat/completions", chat))
        assert len(asked) == 5


@pytest.mark.parametrize(
    ("fields", "target", "refused"),
    [
        (("x-stainless-retry-count: 1", "Authorization: Bearer a"), "/v1/chat/completions", True),
        (("x-stainless-retry-count: 1", "Authorization: Bearer b"), "/v1/chat/completions", False),
        (("x-stainless-retry-count: 1", "Authorization: Bearer a"), "/v1/chat/completions?x=1", False),
        (("x-stainless-retry-count: 0", "Authorization: Bearer a"), "/v1/chat/completions", False),
    ],
)
async def test_a_final_error_is_for_the_same_request_and_told_once(
    fields: tuple[str, ...], target: str, refused: bool
) -> None:
    tries = 0

    async def unauthorized(it: Conversation) -> None:
        nonlocal tries
        await it.request()
        tries += 1
        await opened.wait()
        it.send(answer(b"{}", status="401 Unauthorized"))

    opened, body = asyncio.Event(), json.dumps({"model": "m", "messages": ASK}).encode()
    async with between(unauthorized, keep_alive="0.01") as (daemon, client):
        client.send(
            post("/v1/chat/completions", body, "x-stainless-retry-count: 0", "Authorization: Bearer a")
        )
        await client.receive(b"\r\n\r\n")
        opened.set()
        await until(daemon, lambda state: bool(state.recent))
        daemon.serving.silent_s = None  # the other errors have their status, however slow the machine is
        for told in (refused, False):
            before = tries
            async with raw_client(daemon.base_url) as other:
                await other.ask(post(target, body, *fields))
            assert (tries == before) is told


@pytest.mark.parametrize("asked", [{}, {"store": True}])
async def test_an_answer_that_a_server_stores_has_its_id(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, begin = asyncio.Event(), heartbeat.Heartbeat._begin

    def seen(self: heartbeat.Heartbeat) -> None:
        begin(self)
        if self._exchange.asked.route.shape is Shape.CHAT:
            begun.set()

    monkeypatch.setattr(heartbeat.Heartbeat, "_begin", seen)
    async with occupied() as (daemon, engine, holder), raw_client(daemon.base_url) as client:
        body = {"model": "replay", "messages": ASK, "stream": True, **asked}
        client.send(post("/v1/chat/completions", json.dumps(body).encode()))
        await begun.wait()
        holder.leave()
        engine.thaw()
        answered = await client.response()
        its_own = answered.value("x-clairvoyant-request-id")
        assert its_own is not None
        assert (its_own in answered.body) is not bool(asked)


@pytest.mark.parametrize("stream", [True, False])
async def test_informational_answers_behind_an_early_head_are_dropped(stream: bool) -> None:
    begun = asyncio.Event()
    kind, body = ("text/event-stream", b"data: [DONE]\n\n") if stream else ("application/json", b"{}")

    async def hints(conversation: Any) -> None:
        await conversation.request()
        await begun.wait()
        conversation.send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
        conversation.send(answer(body, f"Content-Type: {kind}"))

    async with between(hints, keep_alive="0.01") as (_, client):
        client.send(asks("/v1/chat/completions", stream=stream))
        await client.receive(b"\r\n\r\n")
        begun.set()
        assert (await chunked_rest(client)).endswith(body)


async def test_a_client_that_announces_a_shorter_time_out_is_kept_sooner() -> None:
    async with occupied(keep_alive="auto") as (daemon, _, _), raw_client(daemon.base_url) as client:
        client.send(asks("/v1/chat/completions", "x-stainless-read-timeout: 1", stream=True))
        assert (await client.receive(b"\n\n")).endswith(b"}\n\n")


async def test_the_official_clients_read_the_answer_that_follows() -> None:
    """Each accumulates the stream of its protocol, and has all of it in the end."""
    async with occupied() as (daemon, engine, holder):
        base = daemon.base_url
        of_openai = openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0)
        of_anthropic = anthropic.AsyncAnthropic(base_url=base, api_key="none", max_retries=0)
        of_ollama = ollama.AsyncClient(host=base)

        async def chat() -> str:
            async with of_openai.chat.completions.stream(model="replay", messages=ASK) as stream:
                final = await stream.get_final_completion()
            assert final.choices[0].finish_reason == "stop"
            return final.choices[0].message.content or ""

        async def plain() -> str:
            whole = await of_openai.chat.completions.create(model="replay", messages=ASK)
            return whole.choices[0].message.content or ""

        async def responses() -> str:
            async with of_openai.responses.stream(model="replay", input="short", store=False) as stream:
                return (await stream.get_final_response()).output_text

        async def messages() -> str:
            async with of_anthropic.messages.stream(model="replay", messages=ASK, max_tokens=9) as stream:
                final = await stream.get_final_message()
            assert final.usage.input_tokens
            return str(getattr(final.content[0], "text", ""))

        async def native() -> str:
            parts = [part async for part in await of_ollama.chat(model="replay", messages=ASK, stream=True)]
            assert parts[-1].done
            return "".join(part.message.content or "" for part in parts)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each()) for each in (chat, plain, responses, messages, native)]
            await until(daemon, lambda s: len(s.queue) == len(tasks) and s.queue[-1].age_s > 0.1)
            holder.leave()
            engine.thaw()
        said = [task.result() for task in tasks]
        assert said[0], "an answer"
        assert said == [said[0]] * len(said)
        assert engine.counts.arrived == 1 + len(tasks)
        for client in (of_openai, of_anthropic):
            await client.close()
        await of_ollama.close()  # type: ignore[no-untyped-call]


async def test_a_client_gets_its_own_words_when_the_operator_stops_its_request() -> None:
    async with occupied() as (daemon, _, _), raw_client(daemon.base_url) as client:
        client.send(asks("/v1/chat/completions", stream=True))
        await client.receive(b"\r\n\r\n")
        state = await until(daemon, lambda s: len(s.queue) == 1)
        daemon.dispatcher.cancel(state.queue[0].id)
        assert "canceled by the operator" in str(events(await chunked_rest(client))[-1])


async def test_an_answer_that_is_cut_twice_gets_nothing_once_it_has_stopped() -> None:
    sent = list[bytes]()
    connection = SimpleNamespace(send_body=sent.append)
    request, parsed = SimpleNamespace(connection=connection, complete=True), SimpleNamespace(view=None)
    asked = SimpleNamespace(parsed=parsed, route=SimpleNamespace(work=Work.GENERATE))
    beats = heartbeat.Heartbeat(
        cast(Any, SimpleNamespace(asked=asked)), cast(Any, request), cast(Any, None), None
    )
    beats.suspend(b"first")
    beats.suspend(b"second")  # it was cut again before any more of it came
    beats.stop()
    timers = asyncio.get_running_loop()
    later = timers.create_future()
    timers.call_later(3 * heartbeat.SUSPENDED_EVERY_S, later.set_result, None)
    await later
    assert sent == []


CHUNK = b'data: {"id":"c","model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"a"}}]}\n\n'
LINE = b'{"model":"m","created_at":"now","message":{"role":"assistant","content":"a"},"done":false}\n'


@pytest.mark.parametrize(
    ("shape", "passed", "empty"),
    [
        (
            Shape.CHAT,
            CHUNK,
            {"id": "c", "model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": None}]},
        ),
        (Shape.CHAT, CHUNK[:-1], None),
        (Shape.CHAT, CHUNK + b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n', None),
        (Shape.CHAT, CHUNK + b"data: [DONE]\n\n", None),
        (Shape.COMPLETION, b'data: {"choices":[7]}\n\n', None),
        (Shape.MESSAGES, b'event: x\ndata: {"type":"content_block_delta"}\n\n', {"type": "ping"}),
        (Shape.MESSAGES, b'event: x\ndata: {"type":"message_stop"}\n\n', None),
        (Shape.OLLAMA_CHAT, LINE, json.loads(LINE) | {"message": {"role": "assistant", "content": ""}}),
        (Shape.OLLAMA_CHAT, LINE + LINE[:20], None),
        (Shape.OLLAMA_CHAT, LINE + b'{"done":true}\n', None),
        (Shape.RESPONSES, b'data: {"type":"response.output_text.delta"}\n\n', None),
    ],
)
def test_an_event_that_fills_a_silence_is_like_the_last_without_text(
    shape: Shape, passed: bytes, empty: dict[str, Any] | None
) -> None:
    blank = blank_after(shape, passed)
    assert (events(blank)[0] if blank else None) == empty


async def test_a_silence_in_the_middle_of_an_answer_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "EVERY_S", 0.02)
    filled = asyncio.Event()

    async def pauses(conversation: Any) -> None:
        await conversation.request()
        conversation.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n" + CHUNK
        )
        await filled.wait()
        conversation.send(CHUNK + b"data: [DONE]\n\n")

    async with between(pauses, keep_alive="9") as (_, client):
        client.send(asks("/v1/chat/completions", stream=True))
        await client.receive(b'"delta":{},"finish_reason":null}]}\n\n')
        filled.set()
        assert (await client.receive(b"0\r\n\r\n")).count(CHUNK) == 1
