"""Keeps the hour behind for whoever comes to look: a small state every few seconds."""

import asyncio
from dataclasses import dataclass, field

from clairvoyant_cli.proxy.drawings import in_turns
from clairvoyant_cli.proxy.snapshots import SnapshotBuilder
from clairvoyant_cli.proxy.waiting_rows import Window
from tui.past import EVERY_S, Past

ROWS = 30
"""Waiting requests that are kept of a state, the next to start; all that wait are counted."""

KEPT = Window(rows=ROWS, explains=False)


@dataclass(slots=True)
class Hindsight:
    """What was. `kept` once there is any of it."""

    snapshots: SnapshotBuilder
    past: Past = field(default_factory=Past)
    kept: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Keep a state at each beat, until cancelled."""
        while True:
            self.past.take(await in_turns(self.snapshots.drawing(KEPT)))
            self.kept.set()
            await asyncio.sleep(EVERY_S)
