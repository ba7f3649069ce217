"""Records the daemon's state every few seconds, so that `top` can look back on the last hour."""

import asyncio
import logging
from dataclasses import dataclass, field

from clairvoyant_cli.proxy.observing.snapshots import SnapshotBuilder
from clairvoyant_cli.state.state_history import EVERY_S, StateHistory

log = logging.getLogger("clairvoyant")

ROWS = 30
"""Queued requests of a recorded state: the next to start."""


@dataclass(slots=True)
class StateRecorder:
    """Fills a history. `kept` is set once it holds a state; `failures` counts the states that failed."""

    snapshots: SnapshotBuilder
    history: StateHistory = field(default_factory=StateHistory)
    kept: asyncio.Event = field(default_factory=asyncio.Event)
    failures: int = 0

    async def run(self) -> None:
        """Record until cancelled. A state that fails is skipped; the first failure is logged."""
        while True:
            try:
                self.history.record(self.snapshots.snapshot(ROWS, explains=False))
                self.kept.set()
            except Exception as error:
                self.failures += 1
                if self.failures == 1:
                    log.warning("internal error; please report it: no state for the history: %r", error)
            await asyncio.sleep(EVERY_S)
