"""What the state says of sessions that take turns, from a daemon before a server with a small cache."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from clairvoyant_lab.replay import app
from clairvoyant_lab.replay.dialects import Answer
from clairvoyant_lab.replay.kv_cache import KvCache
from clairvoyant_lab.virtual_time import run_virtually

from clairvoyant_cli.proxy.composition import Daemon
from clairvoyant_cli.proxy.observing.snapshots import RESTED_S
from clairvoyant_cli.scheduler.sessions import MAX_HOLD_S
from clairvoyant_cli.state.snapshot import Snapshot
from tests.fakes.raw_http import RawClient, post, raw_client
from tests.fakes.replay_backend import Engine, Speed
from tests.fakes.serving import replaying, until

READ_TOKENS_PER_S = 100.0
TOOL = {"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}


def messages(name: str, turns: int) -> list[dict[str, str]]:
    said = [
        {"role": "system", "content": f"{name} works here. " * 150},
        {"role": "user", "content": "Begin."},
    ]
    for turn in range(1, turns):
        said.append({"role": "assistant", "content": f"call {turn}"})
        said.append({"role": "tool", "tool_call_id": "1", "content": f"{name} found {turn}. " * 30})
    return said


def turn(name: str, number: int, tokens: int = 4, *headers: str) -> bytes:
    asked = {"messages": messages(name, number), "tools": [TOOL], "max_tokens": tokens}
    body = json.dumps({"model": "replay", **asked}).encode()
    return post("/v1/chat/completions", body, f"X-Clairvoyant-Client: {name}", *headers)


@asynccontextmanager
async def small_cache() -> AsyncIterator[tuple[Daemon, RawClient, RawClient]]:
    """Run a daemon before a server with one slot and nothing beside it; two clients have connected."""
    speed = Speed(READ_TOKENS_PER_S, 50.0)
    engine = Engine(speed=speed, answer_tokens=lambda prompt, rng: 10**6, cache=KvCache())
    clock = asyncio.get_running_loop().time
    async with (
        replaying(engine, slots=1, clock=clock, policy="boost") as daemon,
        raw_client(daemon.base_url) as one,
        raw_client(daemon.base_url) as other,
    ):
        yield daemon, one, other


def states(state: Snapshot) -> dict[str, str]:
    return {each.id: each.state for each in state.sessions.listed}


def test_a_subagent_is_shown_under_its_parent_with_the_agents_name() -> None:
    opencode = "User-Agent: opencode/1.18.33 runtime/bun"

    async def scene() -> Snapshot:
        async with small_cache() as (daemon, one, other):
            ids = ("parent", "other", "child")
            for client, claimed in zip((one, other, one), ids, strict=True):
                of = ("X-Parent-Session-Id: parent",) if claimed == "child" else ()
                headers = (f"X-Session-Id: {claimed}", opencode, *of)
                assert (await client.ask(turn(claimed, 1, 4, *headers))).status == 200
                await asyncio.sleep(20.0)
            return daemon.snapshot()

    listed = run_virtually(scene()).sessions.listed
    assert [(each.id, each.parent, each.program) for each in listed] == [
        ("s2", "", "opencode"),
        ("s1", "", "opencode"),
        ("s3", "s1", "opencode"),
    ]
    other, parent, child = listed
    assert parent.age_s > other.age_s + 20.0 > child.age_s + 40.0 > 60.0


def test_each_session_is_shown_with_its_state_and_for_how_long() -> None:
    async def scene() -> tuple[Snapshot, ...]:
        async with small_cache() as (daemon, one, other):
            before = daemon.snapshot()
            for client, name, number in ((one, "anna", 1), (other, "ben", 1), (one, "anna", 2)):
                assert (await client.ask(turn(name, number))).status == 200
            one.send(turn("anna", 3, tokens=500))
            await until(daemon, lambda state: states(state)["s1"] == "running")
            other.send(turn("ben", 2))
            await until(daemon, lambda state: states(state)["s2"] == "parked")
            await asyncio.sleep(2.0)
            in_turns = daemon.snapshot()
            assert (await one.response()).status == 200
            assert (await other.response()).status == 200
            await asyncio.sleep(1.0)
            held = daemon.snapshot()
            await asyncio.sleep(40.0)
            rested = daemon.snapshot()
            await asyncio.sleep(RESTED_S)
            return before, in_turns, held, rested, daemon.snapshot()

    before, in_turns, held, rested, gone = run_virtually(scene())
    assert before.sessions.listed == ()
    assert in_turns.verdict.text == in_turns.sessions.summary
    assert in_turns.sessions.summary == "2 sessions, the cache holds 1: the others take turns"
    assert [(each.state, round(each.since_s)) for each in in_turns.sessions.listed] == [
        ("running", 2),
        ("parked", 2),
    ]
    assert states(held) == {"s1": "resting", "s2": "held"}
    s2, s1 = held.sessions.listed
    assert s2.since_s == pytest.approx(1.0)
    assert s2.hold_left_s is not None
    assert 0.0 < s2.hold_left_s < MAX_HOLD_S
    assert s1.hold_left_s is None
    assert (s1.turns, s2.turns) == (3, 2)
    assert s1.cached_tokens > s1.read_tokens / 2 > 10 * s2.cached_tokens
    assert held.sessions.read_tokens == s1.read_tokens + s2.read_tokens
    assert before.sessions.saved_s is None, "no speed is measured yet"
    assert held.backends[0].prefill_tokens_per_s == pytest.approx(READ_TOKENS_PER_S, rel=0.1)
    assert s1.saved_s == pytest.approx(s1.cached_tokens / READ_TOKENS_PER_S, rel=0.1)
    assert held.sessions.saved_s == pytest.approx((s1.saved_s or 0.0) + (s2.saved_s or 0.0))
    assert states(rested) == {"s1": "resting", "s2": "resting"}
    assert gone.sessions.listed == ()


def test_a_server_that_reports_no_cached_tokens_is_not_believed_if_it_was_too_quick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lying(*told: Any) -> Answer:
        return replace(Answer(*told), cached_tokens=0)

    monkeypatch.setattr(app, "Answer", lying)

    async def scene() -> Snapshot:
        async with small_cache() as (daemon, one, _):
            for number in (1, 2, 3):
                assert (await one.ask(turn("anna", number))).status == 200
            return daemon.snapshot()

    state = run_virtually(scene())
    (session,) = state.sessions.listed
    assert session.cached_tokens > session.read_tokens
    assert state.backends[0].prefill_tokens_per_s == pytest.approx(READ_TOKENS_PER_S, rel=0.1)


def test_cached_tokens_count_as_expected_until_a_server_has_told_a_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer, tells = Answer, [False]

    def silent(*told: Any) -> Answer:
        return answer(*told) if tells[0] else replace(answer(*told), cached_tokens=None)

    monkeypatch.setattr(app, "Answer", silent)

    async def scene() -> list[Snapshot]:
        async with small_cache() as (daemon, one, _):
            monkeypatch.setattr("clairvoyant_cli.proxy.servers.service_times.TELLING_S", float("inf"))
            assert (await one.ask(turn("anna", 1))).status == 200
            before = daemon.snapshot()
            tells[0] = True
            assert (await one.ask(turn("anna", 2))).status == 200
            return [before, daemon.snapshot()]

    before, after = run_virtually(scene())
    assert [before.sessions.expected, before.sessions.listed[0].expected] == [True, True]
    assert [after.sessions.expected, after.sessions.listed[0].expected] == [False, False]
