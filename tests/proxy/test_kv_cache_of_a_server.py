"""What a server seems to keep of cut answers, and that cuts are made accordingly."""

from collections.abc import Callable

import pytest
from clairvoyant_lab.virtual_time import run_virtually

from clairvoyant_cli.state.snapshot import Snapshot
from tests.fakes.raw_http import raw_client
from tests.fakes.replay_backend import Engine, Speed
from tests.fakes.serving import until
from tests.proxy.test_cut_answers import LONG, SHORT, Server, body, preempting, thousand


def running_with(tokens: int) -> Callable[[Snapshot], bool]:
    return lambda state: bool(state.running) and state.running[0].tokens > tokens


@pytest.mark.parametrize(("resume_s", "cuts"), [(0.001, 2), (None, 1)], ids=["kept", "read again"])
def test_a_server_that_recomputes_cut_answers_is_spared_cuts(resume_s: float | None, cuts: int) -> None:
    async def scene() -> tuple[int, int, bool]:
        engine = Engine(speed=Speed(50.0, 400.0), seed=1, answer_tokens=thousand, resume_s=resume_s)
        async with preempting(server=Server(engine)) as (daemon, _):
            daemon.pool.first.speeds.prefill_tokens_per_s = 50.0
            async with raw_client(daemon.base_url) as long, raw_client(daemon.base_url) as short:
                long.send(body("/api/chat", LONG, stream=True, tokens=900))
                for tokens in (10, 300):
                    await until(daemon, running_with(tokens))
                    answer = await short.ask(body("/api/chat", SHORT, stream=False, tokens=5))
                    assert answer.status == 200
                assert (await long.response()).whole
            state = daemon.snapshot()
            told = any("had to recompute" in each.text for each in daemon.journal.events)
            [server] = daemon.dispatcher.scheduler.fleet.servers.values()
            return state.counters.cuts, len(server.cache.waiting), told

    assert run_virtually(scene()) == (cuts, 0, resume_s is None)
