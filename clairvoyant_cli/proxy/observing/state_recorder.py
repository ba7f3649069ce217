"""Keeps the hour behind for whoever comes to look: a small state every few seconds."""

import asyncio
import logging
from dataclasses import dataclass, field

from clairvoyant_cli.proxy.observing.queue_rows import Window
from clairvoyant_cli.proxy.observing.snapshots import SnapshotBuilder
from clairvoyant_cli.proxy.observing.stepwise_drawing import in_turns
from clairvoyant_cli.state.state_history import EVERY_S, Past

log = logging.getLogger("clairvoyant")

ROWS = 30
"""Waiting requests that are kept of a state, the next to start; all that wait are counted."""

KEPT = Window(rows=ROWS, explains=False)


@dataclass(slots=True)
class Hindsight:
    """What was. `kept` once there is any of it; `failures` counts the states that could not be drawn."""

    snapshots: SnapshotBuilder
    past: Past = field(default_factory=Past)
    kept: asyncio.Event = field(default_factory=asyncio.Event)
    failures: int = 0

    async def run(self) -> None:
        """Keep a state at each beat, until cancelled. One that cannot be drawn is left out; the first such
        is logged.
        """
        while True:
            try:
                self.past.take(await in_turns(self.snapshots.drawing(KEPT)))
                self.kept.set()
            except Exception as error:
                self.failures += 1
                if self.failures == 1:
                    log.warning("internal error; please report it: no state for the past: %r", error)
            await asyncio.sleep(EVERY_S)
