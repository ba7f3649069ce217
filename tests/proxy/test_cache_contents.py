"""What a server seems to keep of cut answers, and that cuts are made accordingly."""

import asyncio
from collections.abc import Callable
from math import inf

import pytest

from clairvoyant_cli.proxy.servers.cache_contents import CacheContents
from clairvoyant_cli.research.bench.virtual_time import run_virtually
from clairvoyant_cli.research.replay import Engine, Speed
from clairvoyant_cli.state.snapshot import Snapshot
from tests.fakes.raw_http import raw_client
from tests.fakes.serving import until
from tests.proxy.test_cut_answers import LONG, SHORT, Server, body, preempting, thousand


def test_the_room_is_learnt_from_what_was_there_and_what_was_not() -> None:
    room = CacheContents()
    room.was_kept(400.0)
    assert room.tokens == inf
    room.was_lost(1000.0)
    assert room.tokens == 700.0
    room.was_kept(800.0)
    assert room.tokens == 900.0
    room.was_lost(200.0)  # for another reason, perhaps
    assert room.tokens == 100.0
    room.was_kept(500.0)
    assert room.tokens == inf


def test_an_answer_that_is_lost_is_told_and_teaches_what_it_would_have_needed() -> None:
    contexts = CacheContents()
    contexts.left("a", 60.0, waits=True)
    contexts.left("b", 50.0, waits=False)
    contexts.went_on("a", was_there=False)
    assert contexts.tokens == 55.0
    assert contexts.left("c", 40.0, waits=True) == []
    assert contexts.left("d", 30.0, waits=False) == ["c"]
    assert contexts.waiting == {"c"}
    contexts.went_on("c", was_there=True)
    assert contexts.at_least == 70.0
    assert contexts.waiting == set()


def test_a_server_that_has_gone_keeps_nothing() -> None:
    contexts = CacheContents()
    contexts.left("a", 60.0, waits=True)
    contexts.went_on("a", was_there=False)
    contexts.left("b", 60.0, waits=True)
    contexts.clear()
    assert (contexts.tokens, contexts.waiting) == (inf, set())


def running_with(tokens: int) -> Callable[[Snapshot], bool]:
    return lambda state: bool(state.running) and state.running[0].tokens > tokens


@pytest.mark.parametrize(("resume_s", "cuts"), [(0.001, 2), (None, 1)], ids=["kept", "read again"])
def test_a_server_that_reads_all_again_is_found_out_and_spared(resume_s: float | None, cuts: int) -> None:
    async def scene() -> tuple[int, int, bool]:
        engine = Engine(speed=Speed(50.0, 400.0), seed=1, answer_tokens=thousand, resume_s=resume_s)
        clock = asyncio.get_running_loop().time
        async with preempting(server=Server(engine), clock=clock) as (daemon, _):
            daemon.pool.first.speeds.prefill_tokens_per_s = 50.0
            async with raw_client(daemon.base_url) as long, raw_client(daemon.base_url) as short:
                long.send(body("/api/chat", LONG, stream=True, tokens=900))
                for tokens in (10, 300):
                    await until(daemon, running_with(tokens))
                    answer = await short.ask(body("/api/chat", SHORT, stream=False, tokens=5))
                    assert answer.status == 200
                assert (await long.response()).whole
            state = daemon.snapshot()
            told = any("had to recompute" in each.text for each in daemon.stats.journal.events)
            return state.counters.cuts, len(daemon.pool.first.contexts.waiting), told

    assert run_virtually(scene()) == (cuts, 0, resume_s is None)
