"""A watchdog for the event loop: names each step that held everybody up.

It knows asyncio's own loop only: uvloop's handles cannot be wrapped.
"""

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

MOST_ADDITIONS = 3_000_000
"""A step may take as long as these in a loop: 0.15 to 0.3 processor seconds, about twice what it should, as
other processes slow a processor down, by turns. Wall time says nothing on a busy machine."""


@contextmanager
def watched_steps() -> Iterator[dict[str, float]]:
    """Fail at the end of the block if a step took longer, and name it. Yields the longest of each name."""
    found: dict[str, float] = {}
    addition_s = _addition_s()
    run = asyncio.events.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        began_s = time.thread_time()
        callback = handle._callback  # type: ignore[attr-defined]  # cleared if it cancels itself
        run(handle)
        took_s = time.thread_time() - began_s
        if took_s > MOST_ADDITIONS * addition_s / 2.0:
            name = _name(callback)
            found[name] = max(took_s, found.get(name, 0.0))

    gc.collect()
    gc.disable()  # a collection is the work of no step
    try:
        with patch.object(asyncio.events.Handle, "_run", timed):
            yield found
    finally:
        gc.enable()
    longest_s = MOST_ADDITIONS * max(addition_s, _addition_s())
    told = [f"{took_s:.2f} s: {name}" for name, took_s in found.items() if took_s > longest_s]
    assert not told, f"steps of the event loop that took longer than {longest_s:.2f} s: {told}"


def _addition_s() -> float:
    """Return the seconds of an addition in a loop on this machine, now."""
    total, began_s = 0, time.thread_time()
    for number in range(500_000):
        total += number * number
    return (time.thread_time() - began_s) / 500_000


def _name(callback: object) -> str:
    """Return where a task stands after its step, or the name of another callback."""
    task = getattr(callback, "__self__", None)
    if not isinstance(task, asyncio.Task):
        return str(getattr(callback, "__qualname__", callback))
    at, inner = [], task.get_coro()
    while (frame := getattr(inner, "cr_frame", None)) is not None:
        at.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
        inner = inner.cr_await  # type: ignore[union-attr]
    return " > ".join(at) or task.get_coro().__qualname__  # type: ignore[union-attr]
