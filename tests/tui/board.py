"""What the tests of the dashboard share: a source they script, a clock that stands, a screen as text."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from textual import _wait
from textual._context import visible_screen_stack
from textual.pilot import Pilot

from clairvoyant_cli.demo.simulated_machine import simulated_machine
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.state.actions import Action
from clairvoyant_cli.state.last_day import LastDay
from clairvoyant_cli.state.snapshot import QueuedRequest, Snapshot
from clairvoyant_cli.state.source import DaemonSource, Disconnected
from clairvoyant_cli.state.state_history import StateHistory
from tests.tui.scene import WARM_S, Stage, scene
from tui.app import Top
from tui.hardware.reading import Hardware
from tui.history import History
from tui.screens.board import BoardScreen
from tui.screens.dialogs import Prompt
from tui.view_state import ViewState
from tui.widgets.table import Table

WHERE = "http://127.0.0.1:7117"
SIZES = ((80, 24), (120, 40), (200, 60))


@dataclass
class Script(DaemonSource):
    """A source that yields what it is given, and writes down what it is asked."""

    news: Iterable[Snapshot | Disconnected] = ()
    where: str = WHERE
    local: bool = True
    asked: list[Action] = field(default_factory=list)
    kept: StateHistory = field(default_factory=StateHistory)
    refusal: str = ""
    day: LastDay = field(default_factory=lambda: LastDay(0.0))

    async def stream(self) -> AsyncIterator[Snapshot | Disconnected]:
        for news in self.news:
            yield news

    async def last_day(self) -> LastDay:
        if self.refusal:
            raise ClairvoyantError(self.refusal)
        return self.day

    async def past(self, before: float) -> bytes:
        return self.kept.page_before(before)

    async def act(self, action: Action) -> str:
        self.asked.append(action)
        return self.refusal


def stage(scenario: str = "busy", play_s: float = 105.0) -> Stage:
    return Stage(scene(scenario), WARM_S + play_s)


@cache
def busy() -> Snapshot:
    return stage().snapshot()


def played(scenario: str, gpus: int, seconds: int = 105) -> tuple[Snapshot, History, Hardware]:
    """Return a daemon's state, and what a screen remembers that has watched it."""
    snapshot, history, hardware = _played(scenario, gpus, seconds)
    own = copy(history)
    own.samples, own.finished, own.cpu = copy(own.samples), copy(own.finished), copy(own.cpu)
    own.gpus = {index: copy(readings) for index, readings in own.gpus.items()}
    return snapshot, own, hardware


@cache
def _played(scenario: str, gpus: int, seconds: int) -> tuple[Snapshot, History, Hardware]:
    machine = simulated_machine(gpus)
    watched = stage(scenario, 0.0)
    history = History()
    for _ in range(seconds):
        watched.advance(1.0)
        history.take(watched.snapshot())
        history.take_hardware(machine())
    return watched.snapshot(), history, machine()


def view(scenario: str = "busy", *, gpus: int = 1, **fields: Any) -> ViewState:
    """Return something to draw; `fields` are those of its state."""
    snapshot, history, hardware = played(scenario, gpus)
    return ViewState(WHERE, replace(snapshot, **fields), hardware, history)


def still(source: Script) -> Top:
    return Top(source, clock=lambda: 0.0)


def remember(app: Top, history: History, hardware: Hardware | None) -> None:
    app._view = replace(app._view, history=history, hardware=hardware)


def screen_text(app: Top) -> str:
    """Return what is on the screen, a line for a line, without what is blank at the end of each."""
    height = app.size.height
    visible_screen_stack.set(app._background_screens)
    strips = app.screen._compositor.render_strips()
    lines = ["".join(segment.text for segment in strip).rstrip() for strip in strips[:height]]
    return "\n".join(lines) + "\n"


async def rested(app: Top, pilot: Pilot[None]) -> None:
    """Return once all that was asked of the screen is done, however busy the machine: no message waits, and
    no widget is to be drawn or placed again.
    """
    busy = True
    while busy and app.is_running:
        await pilot._wait_for_screen()
        await _wait.wait_for_idle(0)
        screen = app.screen
        busy = screen.size != app.size or any(
            (screen._layout_required, screen._scroll_required, screen._dirty_widgets, screen._callbacks)
        )
        screen._on_timer_update()


async def settled(app: Top, pilot: Pilot[None]) -> str:
    """Return what is on the screen once it has come to rest, and fits."""
    text, fits = "", False
    while not fits:
        await rested(app, pilot)
        text = screen_text(app)
        # After a change of size, what is drawn may still have the former one.
        fits = all(len(line) <= app.size.width for line in text.split("\n"))
    return text


@dataclass
class Bench:
    """An app on a scripted source, and hands to press its keys."""

    app: Top
    pilot: Pilot[None]
    source: Script
    snapshot: Snapshot

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.app.workers.wait_for_complete([w for w in self.app.workers if w.group == "actions"])
        await rested(self.app, self.pilot)

    async def type(self, text: str) -> None:
        """Type into the line that is open, all at once."""
        assert isinstance(self.app.screen, Prompt)
        self.app.screen.field.insert_text_at_cursor(text)
        await self.press("enter")

    async def take(self, **fields: Any) -> Snapshot:
        state = replace(self.snapshot, **fields)
        self.app._view = replace(self.app._view, message="")
        self.app.take(state)
        await rested(self.app, self.pilot)
        return state

    def quiet(self) -> None:
        self.app._view = replace(self.app._view, message="")
        self.app.draw()

    @property
    def board(self) -> BoardScreen:
        return self.app.board

    @property
    def table(self) -> Table:
        return self.app.query_one("#queue", Table)

    @property
    def queue(self) -> tuple[QueuedRequest, ...]:
        return self.snapshot.queue

    @property
    def text(self) -> str:
        return screen_text(self.app)


@asynccontextmanager
async def bench(
    snapshot: Snapshot | None = None,
    history: History | None = None,
    hardware: Hardware | None = None,
    *,
    size: tuple[int, int] = (120, 40),
    **settings: Any,
) -> AsyncIterator[Bench]:
    """Open a screen on a state, of a busy daemon if none is given, that remembers what another has seen."""
    source = Script()
    snapshot = snapshot or busy()
    app = Top(source, **{"clock": lambda: 0.0} | settings)
    async with app.run_test(size=size, notifications=True) as pilot:
        remember(app, history or History(), hardware)
        app.take(snapshot)
        await rested(app, pilot)
        yield Bench(app, pilot, source, snapshot)
