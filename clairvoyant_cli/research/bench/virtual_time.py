"""An event loop whose clock jumps to the next timer as soon as no socket has anything to say.

Server, proxy and clients of one process live through hours in seconds, over real sockets, and a busy machine
disturbs nothing: what they compute takes no time on this clock.
"""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

SETTLE_S = 200e-6
"""Real time in which the kernel may still carry a byte from one of our sockets to another."""

Result = TypeVar("Result")


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop that waits for nothing but sockets. No threads: what they do would take no time either."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        poll = self._selector.select  # type: ignore[attr-defined]

        def select(timeout_s: float | None) -> Any:
            if not timeout_s:
                return poll(timeout_s)
            ready = poll(0)
            if not ready:
                time.sleep(SETTLE_S)  # a selector would round this up to a millisecond
                ready = poll(0)
            if not ready:
                self._now_s += timeout_s
            return ready

        self._selector.select = select  # type: ignore[attr-defined]

    def time(self) -> float:
        """Return the virtual seconds since the loop was made."""
        return self._now_s


def run_virtually(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine in virtual time, and return what it returns. Whatever measures time in it must be given
    the loop's clock.
    """
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
