"""Local time is UTC, so that the clock on the screen is the same everywhere; keys are followed at once."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from textual._compositor import Compositor
from textual.css.model import RuleSet
from textual.css.parse import parse

PARSED: dict[object, list[RuleSet]] = {}


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLORTERM", "truecolor")
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

    monkeypatch.setattr("textual._wait.wait_for_idle", idle)
    monkeypatch.setattr("textual.app.wait_for_idle", idle)
    monkeypatch.setattr("textual.pilot.wait_for_idle", idle)


@pytest.fixture(autouse=True)
def _no_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal Textual throws away each frame that it has drawn. A test draws the screen that it
    looks at.
    """
    draw = Compositor.render_update

    def render_update(compositor: Compositor, full: bool = False, **how: Any) -> Any:
        if full:  # a picture is saved
            return draw(compositor, full, **how)
        compositor._dirty_regions.clear()
        return None

    monkeypatch.setattr(Compositor, "render_update", render_update)


@pytest.fixture(autouse=True)
def _parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the style sheets of all widgets once, and not for each app that a test starts."""

    def rules(scope: str, css: str, where: Any, **how: Any) -> list[RuleSet]:
        tokens = how["variable_tokens"].items()
        variables = tuple((name, *(token.value for token in values)) for name, values in tokens)
        key = (scope, css, where, variables, how["is_default_rules"], how["tie_breaker"])
        if key not in PARSED:
            PARSED[key] = list(parse(scope, css, where, **how))
        return PARSED[key]

    monkeypatch.setattr("textual.css.stylesheet.parse", rules)
