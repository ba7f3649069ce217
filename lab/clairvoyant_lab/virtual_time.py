"""An event loop whose clock jumps to the next timer when no socket is ready.

Server, proxy and clients in one process run hours in seconds, over real sockets. A busy machine changes
nothing: computation takes no time on this clock.
"""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from clairvoyant_cli.system import LOOPBACK_S

Result = TypeVar("Result")


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop that waits for sockets only. Do not use threads: they would take no time either."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        poll = self._selector.select  # type: ignore[attr-defined]

        def select(timeout_s: float | None) -> Any:
            if not timeout_s:
                return poll(timeout_s)
            ready = poll(0)
            if not ready and LOOPBACK_S:
                time.sleep(LOOPBACK_S)  # a selector would round this up to a millisecond
                ready = poll(0)
            if not ready:
                self._now_s += timeout_s
            return ready

        self._selector.select = select  # type: ignore[attr-defined]

    def time(self) -> float:
        return self._now_s


def run_virtually(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine in virtual time; code that measures time must use the loop's clock."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
