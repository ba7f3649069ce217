"""The daemon's tasks: started from anywhere, waited for in one place."""

import asyncio
import logging
from collections.abc import Awaitable


class Tasks:
    """A TaskGroup whose members outlive the requests that started them, and are cancelled at the end."""

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Tasks":
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        while self._tasks:
            # What ends may start something more, such as a slot's release: there is no time for that now.
            self.cancel()
            await asyncio.wait(self._tasks)
        await self._group.__aexit__(None, None, None)

    def spawn(self, work: Awaitable[None]) -> "asyncio.Task[None]":
        """Start a background task; its exceptions are logged."""
        task = self._group.create_task(_guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if asyncio.iscoroutine(work):
            # A task that is cancelled before its first step never awaits what it was given.
            task.add_done_callback(lambda _: work.close())
        return task

    def cancel(self) -> None:
        for task in list(self._tasks):
            task.cancel()


async def _guarded(work: Awaitable[None]) -> None:
    try:
        await work
    except Exception:
        # One request's fault must not take the daemon, and every other request, with it.
        logging.getLogger("clairvoyant").exception("internal error; please report it")
