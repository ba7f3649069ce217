"""The demo of `top`: a daemon that programs keep asking."""

from collections.abc import AsyncIterator

from clairvoyant_cli.demo.simulated_daemon import PROGRAMS, asked_daemon
from clairvoyant_cli.state.actions import Action, Verb
from clairvoyant_cli.state.snapshot import Snapshot
from clairvoyant_cli.state.source import DaemonSource


async def states(source: DaemonSource) -> AsyncIterator[Snapshot]:
    async for state in source.stream():
        assert isinstance(state, Snapshot)
        yield state


async def test_the_demo_serves_what_all_programs_ask() -> None:
    async with asked_daemon() as daemon:
        source = DaemonSource(daemon.base_url)
        async for state in states(source):
            if state.queue:
                break
        left = {row.id for row in state.alive}
        [*_, last] = sorted(state.queue, key=lambda row: row.rank)
        assert not await source.act(Action(Verb.CANCEL, last.id))
        async for state in states(source):
            ended = {row.id: row.outcome for row in state.recent if row.id in left}
            if len(ended) > 1 and last.id in ended:
                break
        assert ended.pop(last.id) == "operator_cancelled"
        assert {*ended.values()} == {"completed"}
        async for state in states(source):
            if {each.name for each in state.clients} == {each.name for each in PROGRAMS}:
                break
