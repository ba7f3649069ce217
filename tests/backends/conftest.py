"""What the proxy tests share."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import uvloop


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run the proxy's tests on the loop that `serve` runs on; the end-to-end tests run on asyncio's own."""
    return {"uvloop": uvloop.new_event_loop}
