"""When a slot of llama.cpp is really free: an abandoned answer may occupy it for seconds."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from clairvoyant_cli.protocols.probes import BusySlots
from clairvoyant_cli.proxy.servers.server import Server

# Pause between questions to /slots. Each restarts the 1 s timer by which llama.cpp notices that an unstreamed
# client has left, so it must exceed a second.
SLOTS_EVERY_S = 1.25
FIRST_LOOK_AFTER_S = 0.005  # pause before the second look, doubled each time: a stream ends at its next token
MAX_STOP_S = 3.0  # that an abandoned answer may occupy its slot: llama.cpp ends the batch of a prompt first
# A stream ends at its next token. It may take four times as long as recent ones, each of which counts a
# fifth less than the next.
LEAST_STOP_S = 1.0
STOP_MARGIN = 4.0
STOP_KEPT = 0.8
SHARED = "another program seems to use it: more of its slots are busy than this proxy uses"
SILENT = "its /slots timed out"
STARTED_FOR_S = 0.2  # a request sent this long ago is counted by /slots, if it has one


async def slots_settled(
    server: Server,
    others_started_at: Callable[[], list[float]],
    clock: Callable[[], float],
    *,
    streamed: bool = False,
) -> str:
    """Wait until an abandoned answer has left its slot of llama.cpp, or for as long as that may take; return
    what prevented seeing it, "" if nothing did.

    It has left when no more of the slots that were busy at first are at the same task than other requests
    are there. `others_started_at` returns when those were sent; the latest may not be counted yet.
    `streamed` says that the answer was a stream.
    """
    if not server.adapter.REPORTS_SLOTS:
        return ""
    traits, begun_s, said = server.traits, clock(), SILENT
    pause_s = FIRST_LOOK_AFTER_S if streamed else SLOTS_EVERY_S
    most_s = MAX_STOP_S if streamed else max(MAX_STOP_S, server.adapter.RUNS_ON_S)
    bound_s = max(LEAST_STOP_S, STOP_MARGIN * traits.stream_stop_s) if streamed else most_s
    held: BusySlots | None = None
    with suppress(TimeoutError):
        async with asyncio.timeout(most_s):
            while True:
                asked_s = clock()
                busy = await server.adapter.busy_slots(server.ask)
                if busy is None:
                    return ""
                held = busy if held is None else held & busy
                started = others_started_at()
                before = sum(begun_s - at >= STARTED_FOR_S for at in started)
                said = SHARED if len(busy) > len(started) else ""
                counted = all(asked_s - at >= STARTED_FOR_S for at in started)
                took_s = asked_s - begun_s
                if len(held) <= before or (counted and not said):
                    if streamed:
                        traits.stream_stop_s = max(took_s, STOP_KEPT * traits.stream_stop_s)
                    break
                if took_s >= bound_s:
                    break
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, SLOTS_EVERY_S)
    return said
