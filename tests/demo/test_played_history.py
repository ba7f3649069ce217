"""The demo of `top` begins with minutes of history, and serves on what is left of them."""

from collections.abc import AsyncIterator

from clairvoyant_cli.demo.played_history import SPAN_S
from clairvoyant_cli.demo.simulated_daemon import PROGRAMS, asked_daemon
from clairvoyant_cli.state.actions import Action, Verb
from clairvoyant_cli.state.snapshot import MAX_RECENT, Snapshot
from clairvoyant_cli.state.source import DaemonSource


async def states(source: DaemonSource) -> AsyncIterator[Snapshot]:
    async for state in source.stream():
        assert isinstance(state, Snapshot)
        yield state


async def test_the_demo_begins_with_a_history_and_serves_on() -> None:
    async with asked_daemon() as daemon:
        source = DaemonSource(daemon.base_url)
        state = await source.snapshot()
        assert state.uptime_s >= SPAN_S
        assert len(state.recent) == MAX_RECENT
        assert sum(each.wait.n for each in state.stats_paired) > MAX_RECENT
        assert state.gain.answers_today
        assert {each.name for each in state.programs.listed} == {each.name for each in state.clients}
        assert await source.past(state.taken_at - SPAN_S / 2)
        left = {row.id for row in state.alive}
        assert left
        assert {row.finished_at > state.taken_at - SPAN_S for row in state.recent} == {True}
        [*_, last] = sorted(state.alive, key=lambda row: row.eta_s or 0.0)
        assert not await source.act(Action(Verb.CANCEL, last.id))
        async for state in states(source):
            ended = {row.id: row.outcome for row in state.recent if row.id in left}
            if len(ended) > 1 and last.id in ended:
                break
        assert ended.pop(last.id) == "operator_cancelled"
        assert {*ended.values()} == {"completed"}
        async for state in states(source):
            if not all(row.id.startswith("demo-") for row in state.recent):
                break
        assert {each.name for each in state.clients} == {each.name for each in PROGRAMS}
