"""The state recorder goes on after a state that fails."""

import asyncio
import logging
from typing import cast

import pytest

from clairvoyant_cli.proxy import tasks
from clairvoyant_cli.proxy.observing import snapshots
from clairvoyant_cli.proxy.observing.snapshots import SnapshotBuilder, StateRecorder
from clairvoyant_cli.state.snapshot import Snapshot
from tests.tui.board import stage


class Failing:
    """Builds a state at the third attempt."""

    def __init__(self) -> None:
        self.left = 2

    def expire(self) -> None: ...

    def snapshot(self, rows: int, *, explains: bool) -> Snapshot:
        if self.left:
            self.left -= 1
            raise KeyError("gone meanwhile")
        return stage().snapshot()


async def test_a_state_that_cannot_be_drawn_is_left_out_and_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(snapshots, "EVERY_S", 0.0)
    monkeypatch.setattr(tasks, "AFTER_FAULT_S", 0.0)
    keeper = StateRecorder(cast(SnapshotBuilder, Failing()))
    running = asyncio.create_task(keeper.run())
    kept = asyncio.create_task(keeper.kept.wait())
    with caplog.at_level(logging.WARNING, "clairvoyant"):
        await asyncio.wait((running, kept), return_when=asyncio.FIRST_COMPLETED)
    assert kept.done()
    assert not running.done()
    assert "recording states" in caplog.text
    assert len(caplog.messages) == 1
    running.cancel()
