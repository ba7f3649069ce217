"""Servers that die, come back, are drained, removed and added, under a crowd: nothing lost, nothing twice."""

from clairvoyant_lab.virtual_time import run_virtually

from tests.fakes.chaos import pool_chaos


def test_each_request_is_answered_once_or_fails_with_its_server() -> None:
    async def scene() -> None:
        async with pool_chaos() as it:
            await it.run(200)
            faults, told = it.faults(), it.told
        assert not faults, f"{faults}\n{told}"
        assert sum(n for what, n in it.done.items() if "killed" in what) > 2, told

    run_virtually(scene())
