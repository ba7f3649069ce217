"""Answers are sent to dashboards as they stream, and only where prompts may be shown."""

import json

import pytest

from clairvoyant_cli.proxy.observing import request_views
from clairvoyant_cli.state.encoding import encode, without_prompts
from tests.fakes.raw_http import post, raw_client
from tests.fakes.replay_backend import Engine, Replay
from tests.fakes.serving import asked, replaying, until
from tests.proxy.test_cut_answers import LONG, ROUTES, SHORT, body, preempting, virtually


@pytest.mark.parametrize("path", ROUTES)
@virtually
async def test_the_answer_so_far_is_shown_while_it_streams_and_while_it_waits_to_go_on(path: str) -> None:
    async with (
        preempting(show_prompts=True) as (daemon, _),
        raw_client(daemon.base_url) as client,
        raw_client(daemon.base_url) as other,
    ):
        client.send(body(path, LONG, stream=True))
        state = await until(daemon, lambda s: bool(s.running) and len(s.running[0].answer or "") > 40)
        begun = state.running[0].answer or ""
        assert without_prompts(state).running[0].answer is None
        other.send(body("/api/chat", SHORT, stream=False, tokens=5))
        state = await until(daemon, lambda s: bool(s.queue) and s.queue[0].cuts == 1)
        waits = state.queue[0].answer or ""
        assert waits.startswith(begun)
        state = await until(daemon, lambda s: bool(s.running) and len(s.running[0].answer or "") > len(waits))
        assert (state.running[0].answer or "").startswith(waits)
        await client.response()


@virtually
async def test_no_answer_is_sent_unless_prompts_are_shown() -> None:
    async with (
        preempting() as (daemon, _),
        raw_client(daemon.base_url) as client,
        raw_client(daemon.base_url) as other,
    ):
        client.send(body("/api/chat", LONG, stream=True))
        state = await until(daemon, lambda s: bool(s.running) and s.running[0].tokens > 40)
        assert state.running[0].answer is None
        exchange = next(iter(daemon.dispatcher.live.values()))
        assert exchange.answer is None
        other.send(body("/api/chat", SHORT, stream=False, tokens=5))
        state = await until(daemon, lambda s: bool(s.queue) and s.queue[0].cuts == 1)
        assert state.queue[0].answer is None
        assert b'"answer":"' not in encode(state)
        await client.response()


async def test_only_the_first_rows_of_a_long_queue_have_their_whole_prompt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_views, "WHOLE_PROMPTS", 3)
    backend = Replay(Engine())
    backend.engine.freeze()
    prompts = [post("/api/chat", json.dumps(asking(number)).encode()) for number in range(5)]
    async with replaying(backend, slots=1, show_prompts=True) as daemon:
        daemon.dispatcher.scheduler.pause()
        async with asked(daemon, *prompts):
            state = daemon.snapshot()
    assert [len(row.prompt or "") for row in state.queue] == [1000] * 3 + [request_views.FIRST_CHARS] * 2


def asking(number: int) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": f"{number:<1000}".replace(" ", "x")}]}
