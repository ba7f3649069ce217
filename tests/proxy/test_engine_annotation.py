"""Before an engine that orders its own queue: nothing is held back, everything says when it is due."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from clairvoyant_cli.backends.kinds.vllm import Vllm
from clairvoyant_cli.backends.priority import LEVEL_S, Heeding, Priority
from clairvoyant_cli.config import BackendConfig
from clairvoyant_cli.proxy.composition import Daemon
from clairvoyant_cli.scheduler.policy import POLICIES
from clairvoyant_cli.state.snapshot import EngineState
from tests.fakes.raw_http import Message, get, post, raw_client, read_message
from tests.fakes.scripted_upstream import Conversation, always, answer, scripted
from tests.fakes.serving import secret, serving, until

CHAT = "/v1/chat/completions"

KNOWN = {
    b"/version": b'{"version":"0.32.0"}',
    b"/metrics": b'vllm:num_requests_running{engine="0"} 8.0\nvllm:num_requests_waiting{engine="0"} 40.0\n'
    b'vllm:num_preemptions_total{engine="0"} 3.0\nvllm:kv_cache_usage_perc{engine="0"} 0.5\n',
}
"""What the engine says of itself."""


def chat(prompt: str, **fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": prompt}], **fields}).encode()


class Engine:
    """Takes note of all that it is asked, and answers when it is let."""

    def __init__(self) -> None:
        self.asked: list[Message] = []
        self.come = asyncio.Condition()
        self.answers = asyncio.Event()

    async def script(self, conversation: Conversation) -> None:
        while True:
            message = await conversation.request()
            if message.target in KNOWN:
                conversation.send(answer(KNOWN[message.target]))
                continue
            self.asked.append(message)
            async with self.come:
                self.come.notify_all()
            await self.answers.wait()
            conversation.send(answer(b"{}"))

    async def has_come(self, times: int) -> Message:
        async with asyncio.timeout(30.0), self.come:
            await self.come.wait_for(lambda: len(self.asked) >= times)
        return self.asked[times - 1]

    async def has_been_asked(self, times: int) -> list[int]:
        await self.has_come(times)
        return [json.loads(each.body)["priority"] for each in self.asked]


@asynccontextmanager
async def before_an_engine(**settings: Any) -> AsyncIterator[tuple[Daemon, Engine]]:
    engine = Engine()
    async with scripted(engine.script) as upstream:
        server = BackendConfig(
            "engine", upstream.base_url, settings.pop("kind", "vllm"), settings.pop("slots", None)
        )
        async with serving(None, backends=(server,), **({"annotate": "on"} | settings)) as daemon:
            yield daemon, engine


async def test_nothing_waits_and_the_shorter_are_due_first() -> None:
    async with before_an_engine() as (daemon, engine), AsyncExitStack() as clients:
        numbers: list[int] = []
        for come, prompt in enumerate(("0.9 an essay", "0.0 a word", "0.5 a page"), 1):
            client = await clients.enter_async_context(raw_client(daemon.base_url))
            client.send(post(CHAT, chat(prompt)))
            numbers = await engine.has_been_asked(come)
        essay, word, page = numbers
        assert word < page < essay
        engine.answers.set()
        await until(daemon, lambda state: state.counters.completed == 3)


async def test_the_body_has_one_field_more_and_says_how_long_it_is() -> None:
    body = b'\r\n{ "messages":[{"role":"user","content":"0.1 \\u00e9 \xc3\xa9"}],"temperature":1.50}'
    async with before_an_engine() as (daemon, engine), raw_client(daemon.base_url) as client:
        engine.answers.set()
        assert (await client.ask(post(CHAT, body, "Digest: sha-256=old"))).status == 200
        client.send(
            b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n" % CHAT.encode()
        )
        for piece in (body[:3], body[3:5], body[5:]):
            client.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        client.send(b"0\r\n\r\n")
        assert (await client.response(b"POST")).status == 200
    for message, number in zip(engine.asked, await engine.has_been_asked(2), strict=True):
        stamp = b'"priority":%d,' % number
        assert message.body == body[:3] + stamp + body[3:]
        assert message.value("digest") is None
    assert [each.framing for each in engine.asked] == ["length", "chunked"]


async def test_who_sets_the_priority_itself_is_refused_unless_it_may(tmp_path: Path) -> None:
    keys = '[clients.app]\nkey = "key-of-app"\n[clients.ops]\nkey = "key-of-ops"\n'
    rules = secret(tmp_path / "clients.toml", keys + "engine_priority = true\n")
    async with (
        before_an_engine(clients=rules) as (daemon, engine),
        raw_client(daemon.base_url) as client,
    ):
        engine.answers.set()
        own = chat("0.1 now!", priority=-5)
        refused = await client.ask(post(CHAT, own, "X-Api-Key: key-of-app"))
        assert refused.status == 400
        assert "leave it out" in json.loads(refused.body)["error"]["message"]
        assert (await client.ask(post(CHAT, own, "X-Api-Key: key-of-ops"))).status == 200
        assert [each.body for each in engine.asked] == [own]


@pytest.mark.parametrize("body", [chat("x").decode().encode("utf-16"), b"", b"{}", b"[]"])
async def test_what_cannot_be_stamped_is_refused(body: bytes) -> None:
    async with before_an_engine() as (daemon, engine), raw_client(daemon.base_url) as client:
        refused = await client.ask(post(CHAT, body))
        assert refused.status == 400
        assert "JSON object" in json.loads(refused.body)["error"]["message"]
        assert not engine.asked


LONG = b'{"messages":[],"pad":"%b","priority":-5}' % (b"word " * 250_000)
FORM = b"--x\r\nContent-Disposition: form-data; name=priority\r\n\r\n-5\r\n--x--\r\n"


@pytest.mark.parametrize("limit_mib", [1, 64])
@pytest.mark.parametrize(
    ("method", "path", "body", "kind"),
    [
        (b"POST", CHAT, LONG, "application/json"),
        (b"POST", CHAT, rb'{"messages":[],"top_p":NaN,"x":"\ud83d","pri\u006frity":-5}', "application/json"),
        (b"POST", "/v1/score", chat("x", priority=-5), "application/json"),
        (b"POST", "/generate", LONG, "application/json"),
        (b"PUT", CHAT, chat("x", priority=-5), "application/json"),
        (b"POST", "/v1/audio/transcriptions", FORM, "multipart/form-data; boundary=x"),
        (b"POST", "/pooling", chat("x").decode().encode("utf-16"), "application/json"),
        (b"POST", "/generate", b"\n" * 99 + LONG, "application/octet-stream"),
        (b"POST", "/v1/audio/speech", chat("x", priority=-5), "multipart/mixed; boundary=x"),
    ],
)
async def test_no_route_takes_a_clients_priority_to_an_engine(
    method: bytes, path: str, body: bytes, kind: str, limit_mib: int
) -> None:
    async with (
        before_an_engine(body_limit_mib=limit_mib) as (daemon, engine),
        raw_client(daemon.base_url) as client,
    ):
        engine.answers.set()
        request = post(path, body).replace(b"POST", method, 1)
        refused = await client.ask(request.replace(b"application/json", kind.encode(), 1))
        assert refused.status == 400
        assert "`priority`" in json.loads(refused.body)["error"]["message"]
        assert not any(each.whole for each in engine.asked), "of a long body, a beginning may have come"


async def test_a_body_too_long_to_be_read_is_stamped_unread() -> None:
    body = chat("x" * (2 << 20))
    async with (
        before_an_engine(body_limit_mib=1) as (daemon, engine),
        raw_client(daemon.base_url) as client,
    ):
        engine.answers.set()
        assert (await client.ask(post(CHAT, body))).status == 200
        number = (await engine.has_been_asked(1))[0]
        assert engine.asked[0].body == body[:1] + b'"priority":%d,' % number + body[1:]


async def test_what_has_no_such_field_and_what_is_no_generation_goes_as_it_is() -> None:
    async with before_an_engine() as (daemon, engine), raw_client(daemon.base_url) as client:
        engine.answers.set()
        message = chat("0.1 hello", max_tokens=5)
        assert (await client.ask(post("/v1/messages", message))).status == 200
        assert (await client.ask(post("/tokenize", chat("priority")))).status == 200
        assert (await client.ask(get("/load"))).status == 200
        sound = b"RIFF\0\0" + chat("0.1 hello", priority=-5)
        raw = post("/v1/audio/transcriptions", sound).replace(b"application/json", b"audio/wav")
        assert (await client.ask(raw)).status == 200
        assert [each.body for each in engine.asked if each.body] == [message, chat("priority"), sound]
        assert b"/load" in [each.target for each in engine.asked]


async def test_past_the_cap_requests_wait_here_by_our_policy() -> None:
    async with before_an_engine(slots=1, policy="boost") as (daemon, engine), AsyncExitStack() as clients:
        for prompt in ("0.9 an essay", "0.8 another", "0.1 a word"):
            client = await clients.enter_async_context(raw_client(daemon.base_url))
            client.send(post(CHAT, chat(prompt)))
            await until(daemon, lambda state: bool(state.running))
        state = await until(daemon, lambda state: len(state.queue) == 2)
        assert state.queue[0].predicted.p_long == 0.1
        assert len(engine.asked) == 1
        engine.answers.set()
        await until(daemon, lambda state: state.counters.completed == 3)
        prompts = [json.loads(each.body)["messages"][0]["content"] for each in engine.asked]
        assert prompts == ["0.9 an essay", "0.1 a word", "0.8 another"]


async def test_a_level_outweighs_any_time_and_arrival_order_is_kept_where_it_is_the_policy() -> None:
    async with before_an_engine(policy="fcfs") as (daemon, engine), AsyncExitStack() as clients:
        asks = [("0.9 an essay", "5"), ("0.0 a word", "6"), ("0.9 an essay", "0"), ("0.0 a word", "0")]
        for come, (prompt, level) in enumerate(asks, 1):
            client = await clients.enter_async_context(raw_client(daemon.base_url))
            client.send(post(CHAT, chat(prompt), f"X-Clairvoyant-Priority: {level}"))
            numbers = await engine.has_been_asked(come)
        # Within a millisecond two have one number, and the engine keeps their order itself.
        assert numbers[2] <= numbers[3] < numbers[0] < numbers[1]
        assert isinstance(Vllm.PRIORITY, Priority)
        assert numbers[1] - numbers[0] >= LEVEL_S * Vllm.PRIORITY.per_s
        daemon.operation.dispatcher.scheduler.set_policy(POLICIES["fcfs"], 0.0)
        engine.answers.set()


async def test_the_state_and_the_metrics_say_what_is_inside_the_engine_and_by_what_it_is_ordered() -> None:
    async with before_an_engine() as (daemon, engine), raw_client(daemon.base_url) as client:
        client.send(post(CHAT, chat("0.1 a word")))
        (number,) = await engine.has_been_asked(1)
        state = await until(daemon, lambda state: state.backends[0].engine is not None)
        assert state.backends[0].stamped
        assert state.backends[0].engine == EngineState(8, 40, 3, 0.5)
        assert [each.stamp for each in state.running] == [number]
        async with raw_client(daemon.base_url) as other:
            metrics = (await other.ask(get("/_clairvoyant/metrics", host="localhost"))).body
        assert b'clairvoyant_engine_requests{backend="engine",state="waiting"} 40.0' in metrics
        assert b'clairvoyant_engine_kv_cache_usage_ratio{backend="engine"} 0.5' in metrics
        engine.answers.set()
        assert (await client.response(b"POST")).status == 200


ROUTERS = pytest.mark.parametrize(
    ("kind", "header"),
    [
        ("llm-d", "x-llm-d-slo-ttft-ms"),
        ("dynamo", "x-dynamo-request-priority"),
        ("smg", "x-smg-priority"),
    ],
)
CLASSES = {"default": 0, "bulk": 1}  # of SMG, the sooner first


STRICT = "x-dynamo-request-strict-priority"


def place(kind: str, value: str, message: Message) -> int:
    """Return a place in a router's queue, among requests that arrive together: the lowest goes first."""
    if kind == "smg":
        return CLASSES[value]
    if kind == "llm-d":
        return int(value)
    assert 0 <= int(value) < 2**31
    (level,) = message.values(STRICT)
    return -(int(level) << 31) - int(value)


@ROUTERS
async def test_a_router_gets_the_order_in_a_header_and_the_body_as_it_is(kind: str, header: str) -> None:
    async with before_an_engine(kind=kind, annotate="auto") as (daemon, engine), AsyncExitStack() as clients:
        places = []
        asks = [("0.9 an essay", 0), ("0.0 a word", 0), ("0.9 an essay", 100), ("0.0 a word", 5)]
        for come, (prompt, level) in enumerate(asks, 1):
            client = await clients.enter_async_context(raw_client(daemon.base_url))
            body = chat(prompt)
            client.send(post(CHAT, body, f"{header}: 9", f"X-Clairvoyant-Priority: {level}", f"{STRICT}: 4"))
            message = await engine.has_come(come)
            assert message.body == body
            (value,) = message.values(header)
            assert value is not None
            places.append(place(kind, value.decode(), message))
        essay, word, last, later = places
        assert word < essay <= later <= last
        assert kind == "smg" or essay < later < last
        engine.answers.set()


OFFER = "Connection: Upgrade", "Upgrade: websocket"


@ROUTERS
@pytest.mark.parametrize("more", [(), OFFER, ("Transfer-Encoding: chunked", "Trailer: x")])
async def test_no_header_orders_a_router_on_any_way_to_it(
    kind: str, header: str, more: tuple[str, ...]
) -> None:
    async with (
        before_an_engine(kind=kind, annotate="auto") as (daemon, engine),
        raw_client(daemon.base_url) as client,
    ):
        engine.answers.set()
        own = (f"{header}: 9", f"{header.title()}: 9", "X-Smg-Target-Worker: 1", *more)
        if "Transfer-Encoding: chunked" in more:
            head = "\r\n".join(["PUT /v1/x HTTP/1.1", "Host: x", *own]).encode()
            client.send(head + b"\r\n\r\n2\r\n{}\r\n0\r\n%b: 9\r\nx-other: 1\r\n\r\n" % header.encode())
        else:
            client.send(get("/v1/realtime", *own))
        message = await engine.has_come(1)
        assert not message.values(header)
        assert message.value("x-smg-target-worker") == b"1"
        if "Transfer-Encoding: chunked" in more:
            assert [name.lower() for name, _ in message.trailers] == [b"x-other"]


@ROUTERS
async def test_a_clients_own_header_is_kept_where_its_rules_allow_it(
    kind: str, header: str, tmp_path: Path
) -> None:
    keys = '[clients.app]\nkey = "key-of-app"\n[clients.ops]\nkey = "key-of-ops"\nengine_priority = true\n'
    rules = secret(tmp_path / "clients.toml", keys)
    async with (
        before_an_engine(kind=kind, clients=rules) as (daemon, engine),
        raw_client(daemon.base_url) as client,
    ):
        engine.answers.set()
        for name in ("app", "ops"):
            own = (f"{header}: 7", "x-llm-d-inference-fairness-id: me", f"X-Api-Key: key-of-{name}")
            assert (await client.ask(post(CHAT, chat("0.1 now!"), *own, "X-Session-Id: s"))).status == 200
        asked = [
            [each.values(name) for each in engine.asked] for name in (header, "x-llm-d-inference-fairness-id")
        ]
        assert asked[0][0] != [b"7"]
        assert asked[0][1] == [b"7"]
        assert asked[1] == ([[b"app"], [b"me"]] if kind == "llm-d" else [[b"me"], [b"me"]])
        sessions = [len(each.values("x-smg-routing-key")) for each in engine.asked]
        assert sessions == ([1, 0] if kind == "smg" else [0, 0])


DEPTHS = {
    "llm-d": b'llm_d_epp_flow_control_queue_size{fairness_id="a",priority="0"} 2\n'
    b'llm_d_epp_flow_control_queue_size{fairness_id="b",priority="0"} 3\n'
    b'llm_d_epp_request_running{fairness_id="a",priority="0"} 4\n',
    "smg": b'smg_scheduler_queue_depth{class="default"} 1\nsmg_scheduler_queue_depth{class="bulk"} 4\n'
    b'smg_scheduler_inflight{class="bulk"} 4\n',
    "vllm": b"vllm:num_requests_running 4\nvllm:num_requests_waiting 5\n",
}


@pytest.mark.parametrize(("kind", "told"), DEPTHS.items())
async def test_a_routers_queue_is_read_where_it_tells_its_metrics_without_the_api_key(
    kind: str, told: bytes, tmp_path: Path
) -> None:
    key, asked = secret(tmp_path / "key", "secret"), list[Message]()
    async with scripted(Engine().script) as upstream, scripted(always(answer(told), asked)) as metrics:
        server = BackendConfig(
            "router", upstream.base_url, kind, key_file=key, metrics_url=metrics.base_url + "/metrics"
        )
        async with serving(None, backends=(server,), annotate="on") as daemon:
            state = await until(daemon, lambda state: state.backends[0].engine is not None)
    assert state.backends[0].engine == EngineState(4, 5)
    assert asked[0].target == b"/metrics"
    assert asked[0].value("authorization") is None


async def test_smg_gets_longer_answers_as_bulk_from_the_start() -> None:
    async with before_an_engine(kind="smg") as (daemon, engine), AsyncExitStack() as clients:
        for come, prompt in enumerate(("0.0 a word", "0.9 an essay", "0.0 a word", "0.9 an essay"), 1):
            client = await clients.enter_async_context(raw_client(daemon.base_url))
            client.send(post(CHAT, chat(prompt)))
            await engine.has_come(come)
        assert [each.value("x-smg-priority") for each in engine.asked] == [b"default", b"bulk"] * 2
        engine.answers.set()


@pytest.mark.parametrize(
    ("kind", "header", "given"),
    [("llm-d", "x-llm-d-request-dropped-reason", []), ("smg", "X-SMG-Error-Code", ["Retry-After: 7"])],
)
async def test_a_refusal_of_the_router_is_told_apart_from_its_workers(
    kind: str, header: str, given: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "clairvoyant")
    head = [f"{header}: queue-full", *given]

    full = answer(b"later", *head, status="429 Too Many Requests")
    async with scripted(always(full)) as upstream:
        backend = BackendConfig("router", upstream.base_url, kind)
        async with serving(None, backends=(backend,)) as daemon, raw_client(daemon.base_url) as client:
            refused = await client.ask(post(CHAT, chat("0.1 a word")))
            assert (refused.status, refused.body) == (429, b"later")
            assert refused.values("retry-after") == [b"7" if given else b"1"]
            state = await until(daemon, lambda state: bool(state.recent))
            assert state.recent[0].remark.endswith("refused it: queue-full")
            metrics = (await client.ask(get("/_clairvoyant/metrics", host="localhost"))).body
    assert b'clairvoyant_engine_dropped_total{backend="router",reason="queue-full"} 1.0' in metrics
    assert "refused it: queue-full" in caplog.text


@pytest.mark.parametrize(
    ("annotate", "heeding", "room"),
    [
        ("auto", Heeding(known=True, priority=Vllm.PRIORITY, why="seen"), 1024),
        ("auto", Heeding(known=True, why="seen"), 1),
        ("auto", Heeding(known=False), 1),
        ("on", Heeding(known=False), 1024),
        ("off", Heeding(known=True, priority=Vllm.PRIORITY, why="seen"), 1),
    ],
)
async def test_an_engine_gets_all_at_once_where_it_is_seen_to_heed_or_said_to(
    annotate: str, heeding: Heeding, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def seen(*_: object) -> Heeding:
        return heeding

    monkeypatch.setattr(Vllm, "heeding", seen)
    async with before_an_engine(annotate=annotate) as (daemon, _):
        state = await until(daemon, lambda state: state.backends[0].state == "up")
        assert state.backends[0].slots == room
        assert bool(daemon.pool.stamped) is (room == 1024)


VLLM = {
    b"/v1/models": b'{"object":"list","data":[{"id":"m","owned_by":"vllm"}]}',
    b"/version": b'{"version":"0.32.0"}',
}
UNKNOWN = {b"/v1/models": b'{"object":"list","data":[{"id":"m","owned_by":"me"}]}'}
DYNAMO = {
    b"/v1/models": b'{"object":"list","data":[{"id":"m","owned_by":"nvidia"}]}',
    b"/openapi.json": b'{"info":{"title":"NVIDIA Dynamo OpenAI Frontend","version":"1.6.1"}}',
}


async def test_an_engine_that_another_replaced_gets_the_order_in_its_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Dynamo refuses a body with vLLM's field, and on port 8000 it takes the place of vLLM."""
    for pause in ("UP_EVERY_S", "DOWN_EVERY_S"):
        monkeypatch.setattr(f"clairvoyant_cli.proxy.servers.lifecycle.{pause}", 0.01)
    there, asked = VLLM, list[Message]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(asyncio.IncompleteReadError, ConnectionError):
            while there:
                message = await read_message(reader)
                if message.target == CHAT.encode():
                    asked.append(message)
                known = {**there, CHAT.encode(): b"{}"}.get(message.target)
                writer.write(answer(known) if known else answer(status="404 Not Found"))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, serving(url, annotate="on") as daemon, raw_client(daemon.base_url) as client:
        away = dict[bytes, bytes]()
        turns = [(VLLM, "vllm"), (away, "vllm"), (UNKNOWN, "other"), (away, "other"), (DYNAMO, "dynamo")]
        for engine, kind in turns:
            there, wanted = engine, ("up" if engine else "down", kind)
            daemon.pool.first.probe_due.set()
            await until(daemon, lambda now: (now.backends[0].state, now.backends[0].kind) == wanted)  # noqa: B023
            if engine:
                assert (await client.ask(post(CHAT, chat("Hello")))).status == 200
        logged = [each.text for each in daemon.snapshot().log]
    assert [b"priority" in each.body for each in asked] == [True, False, False]
    assert all(logged)  # of an engine that is down no order is logged
    assert asked[2].value("x-dynamo-request-priority") is not None
