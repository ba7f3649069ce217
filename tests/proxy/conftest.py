"""The loop of the proxy's tests."""

import asyncio
import sys
from collections.abc import Callable, Mapping


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run the proxy's tests on the loop that `serve` runs on; the end-to-end tests run on asyncio's own."""
    if sys.platform == "win32":
        return {"proactor": asyncio.ProactorEventLoop}
    import uvloop

    return {"uvloop": uvloop.new_event_loop}
