"""An event loop whose clock jumps to the next timer: hours pass at once, and timings are exact."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """A loop without waiting; for code that only talks to timers, not to sockets.

    `lateness_s` is added to every jump, as a busy machine adds it.
    """

    def __init__(self, lateness_s: float = 0.0) -> None:
        super().__init__()
        self._virtual_s = 0.0
        poll = self._selector.select  # type: ignore[attr-defined]

        def jump(timeout_s: float | None) -> object:
            if timeout_s:
                self._virtual_s += timeout_s + lateness_s
            return poll(0)

        self._selector.select = jump  # type: ignore[attr-defined]

    def time(self) -> float:
        """Return the virtual seconds since the loop was made."""
        return self._virtual_s


def run_virtually(main: Coroutine[Any, Any, T], lateness_s: float = 0.0) -> T:
    """Run a coroutine on a clock of its own and return what it returns."""
    with asyncio.Runner(loop_factory=lambda: VirtualClockLoop(lateness_s)) as runner:
        return runner.run(main)
