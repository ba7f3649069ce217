"""A fault in one step of a loop of the daemon does not end the loop."""

import asyncio

import pytest

from clairvoyant_cli.backends.adapter import Adapter
from clairvoyant_cli.proxy import tasks
from clairvoyant_cli.proxy.tasks import repeat
from tests.fakes.serving import replaying


async def test_a_loop_goes_on_after_a_fault_and_logs_each_kind_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tasks, "AFTER_FAULT_S", 0.0)
    faults, done = [KeyError("a"), KeyError("b"), ValueError("c")], asyncio.Event()

    async def step() -> None:
        if faults:
            raise faults.pop(0)
        done.set()

    looping = asyncio.create_task(repeat("counting", step))
    await done.wait()
    looping.cancel()
    assert [each.message for each in caplog.records if "in counting" in each.message] == [
        "internal error in counting; please report it"
    ] * 2


async def test_a_server_is_watched_after_an_answer_that_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks, "AFTER_FAULT_S", 0.0)
    async with replaying(None, faults_expected=True) as daemon:
        server, looks, looked = daemon.pool.first, list[int](), asyncio.Event()

        async def refresh(self: Adapter, *of: object) -> None:
            looks.append(1)
            if len(looks) == 1:
                raise KeyError("one odd answer")
            looked.set()

        monkeypatch.setattr(type(server.adapter), "refresh", refresh)
        server.probe_due.set()
        await asyncio.wait_for(looked.wait(), 5.0)
