"""The daemon's tasks, loops and callbacks: a fault in one of them stops none of the others."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, ParamSpec

log = logging.getLogger("clairvoyant")

P = ParamSpec("P")

AFTER_FAULT_S = 0.1
"""Pause of a loop after a fault, as one that fails at once would spin."""


class Tasks:
    """Tasks that outlive the requests that started them, and are cancelled at the end of the block."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Tasks":
        return self

    async def __aexit__(self, *exc: object) -> None:
        while self._tasks:
            # What ends may start something more, such as a slot's release: there is no time for that now.
            self.cancel()
            await asyncio.wait(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Start a background task; its exceptions are logged."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("internal error; please report it", exc_info=error)

    def cancel(self) -> None:
        for task in list(self._tasks):
            task.cancel()


class Faults:
    """Logs the exceptions of callbacks and loops that go on after one: the first of each kind."""

    def __init__(self) -> None:
        self._logged: set[tuple[str, type[Exception]]] = set()

    def note(self, what: str, error: Exception) -> None:
        """Log an exception of `what` with its traceback, unless one of its type was logged before."""
        if (what, type(error)) not in self._logged:
            self._logged.add((what, type(error)))
            log.error("internal error in %s; please report it", what, exc_info=error)


class Callbacks(Generic[P]):
    """Functions that are called one after the other, each whatever happens in the others."""

    def __init__(self, *functions: Callable[P, object]) -> None:
        self.functions = list(functions)
        self._faults = Faults()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for function in self.functions:
            try:
                function(*args, **kwargs)
            except Exception as error:
                self._faults.note(getattr(function, "__qualname__", repr(function)), error)


async def repeat(what: str, step: Callable[[], Awaitable[object]], every_s: float = 0.0) -> None:
    """Pause for `every_s` and run a step, until cancelled. A step that fails is logged, and the loop goes on.

    `what` names the loop in the log.
    """
    faults = Faults()
    while True:
        await asyncio.sleep(every_s)
        try:
            await step()
        except Exception as error:
            faults.note(what, error)
            await asyncio.sleep(AFTER_FAULT_S)
