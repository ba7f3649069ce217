"""The same burst through several proxies at the same time, each before a backend of its own."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from clairvoyant_cli.backends.chat_probe import client_for
from clairvoyant_cli.research.bench.load import Asker, Call, send_burst
from clairvoyant_cli.state.snapshot import PredictionState, QueuedRequest, RunningRequest, Snapshot

GAP_S = 0.02
"""Time between two questions of a burst: enough that they arrive in the order they were sent."""

FRAME_S = 0.1
"""Time between two looks at the race."""


class Proxy(Protocol):
    """A proxy to send questions to, which tells its state; it must show prompts in it."""

    @property
    def base_url(self) -> str:
        """Where it listens."""
        ...

    def snapshot(self) -> Snapshot:
        """Return its state now."""
        ...


class Place(StrEnum):
    """Where a call is."""

    DONE = "done"
    FAILED = "failed"
    RUNNING = "running"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class Row:
    """One call of a lane, and what was predicted of it if the proxy has said so already."""

    call: Call
    place: Place
    predicted: PredictionState | None


@dataclass(slots=True, eq=False)
class Lane:
    """One proxy in the race, and the calls sent to it."""

    policy: str
    title: str
    proxy: Proxy
    calls: list[Call]
    _predicted: dict[str, PredictionState] = field(default_factory=dict)

    def rows(self) -> list[Row]:
        """Return the calls sent so far in the order of service: ended, running, then as they wait."""
        snapshot = self.proxy.snapshot()
        running = [self._of(request) for request in snapshot.running]
        waiting = [self._of(request) for request in sorted(snapshot.queue, key=lambda r: r.rank)]
        ended = sorted((call for call in self.calls if call.ended_s is not None), key=_ended_s)
        rows = [self._row(call, Place.FAILED if call.error else Place.DONE) for call in ended]
        placed = set(map(id, ended))
        for calls, place in ((running, Place.RUNNING), (waiting, Place.WAITING), (self.calls, Place.WAITING)):
            for call in calls:
                if call is not None and call.sent_s is not None and id(call) not in placed:
                    rows.append(self._row(call, place))
                    placed.add(id(call))
        return rows

    def _row(self, call: Call, place: Place) -> Row:
        return Row(call, place, self._predicted.get(call.question.prompt))

    def _of(self, request: QueuedRequest | RunningRequest) -> Call | None:
        if request.prompt is None:
            return None
        self._predicted[request.prompt] = request.predicted
        return next((call for call in self.calls if call.question.prompt == request.prompt), None)


Watch = Callable[[Sequence[Lane], float], None]
"""Looks at the lanes; called with the seconds since the start, ten times a second and once at the end."""


async def race(lanes: Sequence[Lane], asker: Asker, watch: Watch) -> float:
    """Send every lane its calls at the same time, wait for all answers, and return the seconds it took."""
    begun_s = time.monotonic()
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        bursts = []
        for lane in lanes:
            client = await stack.enter_async_context(client_for(lane.proxy.base_url))
            bursts.append(group.create_task(send_burst(client, asker, lane.calls, GAP_S)))
        while not all(burst.done() for burst in bursts):
            watch(lanes, time.monotonic() - begun_s)
            await asyncio.wait(bursts, timeout=FRAME_S)
    took_s = time.monotonic() - begun_s
    watch(lanes, took_s)
    return took_s


def _ended_s(call: Call) -> float:
    return call.ended_s or 0.0
