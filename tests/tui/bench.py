"""An app on a scripted source, and hands to press its keys."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from textual.pilot import Pilot

from clairvoyant_cli.state.snapshot import QueuedRequest, Snapshot
from tests.tui.board import Script, busy, screen_text, settled
from tui.app import Top
from tui.screens.board import BoardScreen
from tui.widgets.table import Table


class Bench:
    """An app on a scripted source, with the queue it shows."""

    def __init__(self, app: Top, pilot: Pilot[None], source: Script, snapshot: Snapshot) -> None:
        self.app = app
        self.pilot = pilot
        self.source = source
        self.snapshot = snapshot

    async def press(self, *keys: str) -> None:
        """Press keys, and let what they start come to its end."""
        await self.pilot.press(*keys)
        await self.app.workers.wait_for_complete([w for w in self.app.workers if w.group == "actions"])
        await settled(self.app, self.pilot)

    @property
    def board(self) -> BoardScreen:
        return self.app.board

    @property
    def table(self) -> Table[QueuedRequest]:
        """The queue."""
        return self.app.query_one("#queue", Table)

    @property
    def queue(self) -> tuple[QueuedRequest, ...]:
        return self.snapshot.queue

    @property
    def text(self) -> str:
        return screen_text(self.app)


@asynccontextmanager
async def bench(*, size: tuple[int, int] = (120, 40), readonly: bool = False) -> AsyncIterator[Bench]:
    source = Script()
    snapshot = busy()
    app = Top(source, readonly=readonly, clock=lambda: 0.0)
    async with app.run_test(size=size, notifications=True) as pilot:
        app.take(snapshot)
        await settled(app, pilot)
        yield Bench(app, pilot, source, snapshot)
