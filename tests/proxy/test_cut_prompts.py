"""A request whose prompt is being read is cut for a short one and sent again: its client sees nothing."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from clairvoyant_cli.backends.speeds import ASSUMED_KEPT, PromptPreemptions
from clairvoyant_cli.proxy.composition import Daemon
from clairvoyant_cli.proxy.requests.prompt_preemption import share_found
from clairvoyant_cli.scheduler.policy import MAX_PREEMPTIONS
from clairvoyant_cli.state.snapshot import Snapshot
from tests.fakes.raw_http import Message, RawClient, post, raw_client
from tests.fakes.scripted_upstream import Conversation, ScriptedUpstream, answer
from tests.fakes.serving import serving, until

PROMPT = "0.9 " + "All of it. " * 4000
SHORT = "0.0 Hi"
ANSWER = b'{"answer": "to the long one"}'
TOOL = {"type": "function", "function": {"name": "f"}}

ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat with tools": ("/v1/chat/completions", {"stream": True, "tools": [TOOL]}),
    "chat in one piece": ("/v1/chat/completions", {"seed": 1}),
    "completion": ("/v1/completions", {"prompt": PROMPT}),
    "messages with thinking": ("/v1/messages", {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
    "responses": ("/v1/responses", {"store": False, "input": PROMPT}),
    "ollama": ("/api/chat", {"stream": True}),
}


def long(path: str = "/v1/chat/completions", *headers: str, **more: Any) -> bytes:
    asked = {"model": "m", "messages": [{"role": "user", "content": PROMPT}]} | more
    return post(path, json.dumps(asked).encode(), *headers)


def short() -> bytes:
    return post(
        "/v1/chat/completions",
        json.dumps({"model": "m", "messages": [{"role": "user", "content": SHORT}]}).encode(),
    )


@dataclass(slots=True)
class Reading:
    """A server that reads long prompts until `read` is set, and answers short ones once `free` is set.

    It sends `first` as soon as a long prompt comes. `asked` are the long requests, `left` those given up.
    """

    first: bytes = b""
    asked: list[Message] = field(default_factory=list)
    left: int = 0
    shorts: int = 0
    read: asyncio.Event = field(default_factory=asyncio.Event)
    free: asyncio.Event = field(default_factory=asyncio.Event)
    upstream: ScriptedUpstream = field(init=False)
    _server: asyncio.Server | None = None

    def __post_init__(self) -> None:
        self.upstream = ScriptedUpstream(self.play)
        self.free.set()

    async def start(self) -> None:
        port = self.upstream.port
        self._server = await asyncio.start_server(self.upstream.play, "127.0.0.1", port, limit=2**24)
        self.upstream.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await self.upstream.stop()

    async def play(self, conversation: Conversation) -> None:
        while True:
            request = await conversation.request()
            if SHORT.encode() in request.body:
                self.shorts += 1
                await self.free.wait()
                conversation.send(answer(b"{}"))
            elif not await self._answer(conversation, request):
                return

    async def _answer(self, conversation: Conversation, request: Message) -> bool:
        self.asked.append(request)
        conversation.send(self.first)
        left, read = asyncio.create_task(conversation.left()), asyncio.create_task(self.read.wait())
        await asyncio.wait((left, read), return_when=asyncio.FIRST_COMPLETED)
        left.cancel()
        read.cancel()
        if not self.read.is_set():
            self.left += 1
            return False
        whole = answer(ANSWER, "Content-Type: application/json")
        conversation.send(whole if not self.first else ANSWER)
        return True


@asynccontextmanager
async def reading(first: bytes = b"", **settings: Any) -> AsyncIterator[tuple[Daemon, Reading, RawClient]]:
    """Run the proxy before a server that reads, with a client for a long prompt."""
    server = Reading(first)
    await server.start()
    try:
        async with (
            serving(server.upstream.base_url, **settings) as daemon,
            raw_client(daemon.base_url) as client,
        ):
            daemon.pool.first.speeds.prefill_tokens_per_s = 500.0
            yield daemon, server, client
    finally:
        await server.stop()


def reads(state: Snapshot) -> bool:
    return bool(state.running) and state.running[0].state == "prefill"


def is_cut(state: Snapshot) -> bool:
    return any(each.cuts for each in state.queue)


async def ask_short(daemon: Daemon) -> None:
    async with raw_client(daemon.base_url) as other:
        assert (await other.ask(short())).status == 200


@pytest.mark.parametrize("route", ROUTES)
async def test_it_is_sent_again_byte_for_byte(route: str) -> None:
    path, more = ROUTES[route]
    async with reading() as (daemon, server, client):
        client.send(long(path, **more))
        await until(daemon, reads)
        await ask_short(daemon)
        server.read.set()
        response = await client.response()
        state = await until(daemon, lambda s: s.counters.completed == 2)
    assert (response.status, response.body) == (200, ANSWER)
    assert [each.body for each in server.asked] == [server.asked[0].body] * 2
    assert server.asked[0].headers == server.asked[1].headers
    assert (state.counters.cuts, state.counters.resumes, state.counters.repeats) == (1, 1, 0)
    assert [each.cuts for each in state.recent] == [0, 1]


@pytest.mark.parametrize(
    ("request_", "settings"),
    [
        (long("/v1/chat/completions", "X-Conversation-Id: 7"), {}),
        (long("/v1/responses", input=PROMPT), {}),
        (long(), {"preempt": "off"}),
        (long(), {"policy": "fcfs"}),
        (long(messages=[{"role": "user", "content": PROMPT[:1500]}]), {}),
        (post("/v1/embeddings", json.dumps({"model": "m", "input": PROMPT}).encode()), {}),
    ],
    ids=["kept running", "stored", "switched off", "arrival order", "soon read", "embedding"],
)
async def test_it_is_not_cut(request_: bytes, settings: dict[str, Any]) -> None:
    async with reading(**settings) as (daemon, server, client):
        client.send(request_)
        await until(daemon, reads)
        await not_cut(daemon, server, client)


async def not_cut(daemon: Daemon, server: Reading, client: RawClient) -> None:
    async with raw_client(daemon.base_url) as other:
        other.send(short())
        await until(daemon, lambda s: len(s.queue) == 1)
        daemon.preemption.decide()
        assert not any(
            each.is_being_preempted for each in daemon.dispatcher.attempts_on(daemon.pool.first.id)
        )
        server.read.set()
        assert (await client.response()).body.endswith(ANSWER)
        assert (await other.response()).status == 200
    assert (daemon.snapshot().counters.cuts, len(server.asked)) == (0, 1)


@pytest.mark.parametrize("begun", [b"data: {}\n\n", b": ping\n\n"])
async def test_what_the_client_has_a_byte_of_is_not_cut(begun: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n"
    first = head % (len(begun) + len(ANSWER)) + begun
    async with reading(first) as (daemon, server, client):
        client.send(long(stream=True))
        await client.receive(begun)
        async with raw_client(daemon.base_url) as other:
            other.send(short())
            await until(daemon, lambda s: len(s.queue) == 1)
            daemon.preemption.decide()
            server.read.set()
            await client.receive(ANSWER)
            assert (await other.response()).status == 200
        assert (daemon.snapshot().counters.cuts, len(server.asked)) == (0, 1)


async def test_a_head_alone_is_not_a_byte_of_the_answer() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(ANSWER)
    async with reading(head) as (daemon, server, client):
        client.send(long(stream=True))
        await until(daemon, reads)
        await ask_short(daemon)
        server.read.set()
        assert (await client.response()).body == ANSWER
        assert daemon.snapshot().counters.cuts == 1


@pytest.mark.parametrize("more", [{}, {"stream": True, "tools": [TOOL]}], ids=["unstreamed", "tools"])
@pytest.mark.parametrize("known", [True, False])
async def test_an_unseen_answer_may_have_begun_once_its_prompt_should_be_read(
    known: bool, more: dict[str, Any]
) -> None:
    async with reading() as (daemon, server, client):
        speeds = daemon.pool.first.speeds
        client.send(long(**more))
        await until(daemon, reads)
        speeds.prefill_tokens_per_s = 1e6 if known else None
        await not_cut(daemon, server, client)


async def test_it_is_cut_a_few_times_only() -> None:
    async with reading() as (daemon, server, client):
        daemon.pool.first.prompts.kept = 0.0
        client.send(long(stream=True))
        for number in range(MAX_PREEMPTIONS):
            await until(daemon, reads)
            await ask_short(daemon)
            await until(daemon, lambda s, n=number: s.counters.cuts == n + 1 and reads(s))  # type: ignore[misc]
        async with raw_client(daemon.base_url) as other:
            other.send(short())
            await until(daemon, lambda s: len(s.queue) == 1)
            daemon.preemption.decide()
            server.read.set()
            assert (await client.response()).body == ANSWER
            assert (await other.response()).status == 200
        assert (daemon.snapshot().counters.cuts, len(server.asked)) == (MAX_PREEMPTIONS, MAX_PREEMPTIONS + 1)


@asynccontextmanager
async def put_off() -> AsyncIterator[tuple[Daemon, Reading, RawClient, RawClient]]:
    async with reading() as (daemon, server, client), raw_client(daemon.base_url) as other:
        server.free.clear()
        client.send(long(stream=True))
        await until(daemon, reads)
        other.send(short())
        await until(daemon, lambda s: is_cut(s) and server.shorts == 1)
        yield daemon, server, client, other


async def test_the_limit_of_waiting_is_not_for_what_was_cut() -> None:
    late_s = 0.0
    async with reading(max_wait=10.0, clock=lambda: time.monotonic() + late_s) as (daemon, server, client):
        client.send(long(stream=True))
        await until(daemon, reads)
        late_s = 12.0
        await ask_short(daemon)
        await until(daemon, reads)
        server.read.set()
        assert (await client.response()).body == ANSWER
        assert (daemon.snapshot().counters.cuts, daemon.snapshot().counters.timeout) == (1, 0)


async def test_a_server_that_dies_while_it_is_cut_is_waited_for() -> None:
    async with put_off() as (daemon, server, client, other):
        await server.stop()
        await until(daemon, lambda s: s.backends[0].state == "down")
        server.read.set()
        server.free.set()
        await server.start()
        daemon.pool.first.probe_due.set()
        assert (await client.response()).body == ANSWER
        assert (await other.response()).status == 200
        state = daemon.snapshot().counters
        assert (state.cuts, state.completed, state.upstream_error) == (1, 2, 0)


@pytest.mark.parametrize(
    ("prompt_tokens", "prefilled", "took_s", "share"),
    [
        (6000, 4000, 26.0, 1.0),  # reported
        (6000, 5976, 40.0, 0.0),
        (6000, 6000, 27.0, 1.0),  # told by the time
        (6000, 6000, 40.0, 0.0),
        (None, None, None, None),
    ],
)
def test_what_was_found_again(
    prompt_tokens: int | None, prefilled: int | None, took_s: float | None, share: float | None
) -> None:
    found = share_found(40.0 / 3.0, 40.0, took_s, prompt_tokens, prefilled)
    assert found == (None if share is None else pytest.approx(share, abs=0.03))


def test_a_short_part_of_a_prompt_is_told_by_tokens_only() -> None:
    assert share_found(4.0, 40.0, 40.0, None, None) is None
    assert share_found(4.0, 40.0, 36.0, 6000, 5400) == pytest.approx(1.0)


def test_how_soon_it_stops_is_learned_unless_the_prompt_ended_first() -> None:
    learned = PromptPreemptions()
    assert learned.stops_s(lambda tokens: tokens / 100.0, 60.0) == 10.24
    assert learned.stops_s(lambda tokens: tokens / 100.0, 2.0) == 2.0
    learned.preempted(0.0, rest_s=30.0)
    learned.stopped(4.0)
    learned.preempted(10.0, rest_s=1.0)
    learned.stopped(1.0)
    assert learned.stop_s == 4.0
    learned.preempted(20.0, rest_s=30.0)
    learned.stopped(2.0)
    assert learned.stop_s == 3.0


def test_the_request_that_follows_at_once_tells_how_soon_a_server_stops() -> None:
    learned = PromptPreemptions()
    assert learned.followed(0.0) is None
    learned.preempted(1.0, rest_s=30.0)
    assert [learned.followed(2.0), learned.followed(2.0)] == [1.0, None]
    learned.preempted(1.0, rest_s=30.0)
    assert learned.followed(60.0) is None, "its slot was free for a while"


def test_a_share_is_at_most_all_and_at_least_nothing() -> None:
    learned = PromptPreemptions()
    learned.found(1.5)
    assert ASSUMED_KEPT < learned.kept < 1.0
    for _ in range(20):
        learned.found(-1.0)
    assert 0.0 <= learned.kept < 0.01
