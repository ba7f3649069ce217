"""An event loop whose clock jumps to the next timer when no socket is ready.

Server, proxy and clients in one process run hours in seconds, over real sockets. A busy machine changes
nothing: computation takes no time on this clock.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from clairvoyant_cli.system import LOOPBACK_S

Result = TypeVar("Result")


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop that waits for sockets only. Its clock stands still while a thread of its executor works."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._in_threads = 0
        poll = self._selector.select  # type: ignore[attr-defined]

        def select(timeout_s: float | None) -> Any:
            if not timeout_s:
                return poll(timeout_s)
            if self._in_threads:
                return poll(None)  # until the thread is done, or a socket is ready
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

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        future = super().run_in_executor(executor, func, *args)
        self._in_threads += 1
        future.add_done_callback(self._thread_is_done)
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - asyncio's
        """Wait for the threads, as long as they take: the clock would run out before them."""
        self._in_threads += 1
        try:
            await super().shutdown_default_executor()
        finally:
            self._in_threads -= 1

    def _thread_is_done(self, _: asyncio.Future[Any]) -> None:
        self._in_threads -= 1


def run_virtually(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine in virtual time; code that measures time must use the loop's clock."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
