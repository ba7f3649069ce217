"""Local time is UTC, so that the clock on the screen is the same everywhere; keys are followed at once."""

import asyncio
import time
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("NO_COLOR", raising=False)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture(autouse=True)
def _no_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Textual sleeps until the processor rests, up to a second a key; what it waits for is that nothing is
    ready to run.
    """

    async def idle(*_seconds: float) -> None:
        ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        while ready:  # noqa: ASYNC110 - no event tells of this
            await asyncio.sleep(0)

    monkeypatch.setattr("textual.app.wait_for_idle", idle)
    monkeypatch.setattr("textual.pilot.wait_for_idle", idle)
