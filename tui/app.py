"""The dashboard: draws the newest state, and sends the operator's actions to the daemon.

States that come faster than the screen is drawn are skipped. Source, sensors and actions run beside it.
"""

import asyncio
import json
import os
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from textual import events
from textual.app import App
from textual.binding import Binding, BindingType
from textual.notifications import SeverityLevel
from textual.screen import Screen

from clairvoyant_cli.errors import ClairvoyantError, printable
from clairvoyant_cli.state.actions import Action
from clairvoyant_cli.state.snapshot import Snapshot
from clairvoyant_cli.state.source import EVERY_S as FRAME_S
from clairvoyant_cli.state.source import DaemonSource, Disconnected
from clairvoyant_cli.state.state_history import EVERY_S, SPAN_S, StateHistory
from tui.alerts import Alerts
from tui.hardware.reading import Hardware
from tui.palette import SIXTEEN, THEMES, Palette
from tui.panels import clients, last_day, log
from tui.plain_glyphs import plain_driver
from tui.screens.board import BoardScreen
from tui.screens.dialogs import Prompt
from tui.screens.pages import PageScreen, help_lines
from tui.slow_terminal import lasting_driver
from tui.styled_text import Tone
from tui.undo import SETTLED_S, UndoableAction, cannot_undo, said_of, standing, undoable
from tui.view_state import SILENT_S, ViewState
from tui.widgets.canvas import Canvas

_GRAPHED_S = 600.0  # how much of the daemon's history is fetched at the start, for the graph
_HARDWARE_EVERY_S = 1.0
_TICK_S = 0.3
_STILL_S = 0.55  # over half a second: two states a second need no frames between them
_MESSAGE_S = 4.0
_MAX_DONE = 50
_SEVERITY: dict[str, Tone] = {"information": "accent", "warning": "warn", "error": "alert"}


class Top(App[None]):
    """`clairvoyant top`."""

    TITLE = "clairvoyant top"
    CSS_PATH = "app.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "quit", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False, priority=True),
    ]

    def __init__(
        self,
        source: DaemonSource,
        *,
        machine: Callable[[], Hardware] | None = None,
        readonly: bool = False,
        badge: str = "",
        glyphs: Mapping[int, int | str] | None = None,
        memory: Path | None = None,
        preferences: Mapping[str, str] | None = None,
        alerts: Alerts | None = None,
        every_s: float = FRAME_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`machine` reads this computer's sensors, in a thread, once a second. `memory` is the file of the
        last preferences, which `preferences` override. `badge` is shown in the header, as "demo". `glyphs`
        replaces characters that the font lacks. `alerts` sets the terminal's title and rings. `every_s` is
        the least time between two states.
        """
        self._colour = not os.environ.get("NO_COLOR")
        super().__init__(ansi_color=None if self._colour else True)
        self.driver_class = lasting_driver(self.driver_class)
        if glyphs is not None:
            self.driver_class = plain_driver(self.driver_class, glyphs)
        self._source, self._machine, self._alerts, self._memory = source, machine, alerts, memory
        self._clock, self._every_s = clock, every_s
        self._silent_s, self._still_s = max(SILENT_S, 2.0 * every_s), max(_STILL_S, every_s)
        self._received_at = self._lost_at = self._read_at = self._drawn_at = 0.0
        self._past = StateHistory()
        self._sought: float | None = None  # the time to go back to
        self._left = threading.Event()
        self._acting = asyncio.Lock()
        self._done: deque[tuple[Sequence[UndoableAction], float]] = deque(maxlen=_MAX_DONE)
        self._expected: dict[tuple[str, str | None], tuple[Any, float]] = {}
        self._message_until = 0.0
        self.preferences: Mapping[str, str] = (_stored(memory) if memory else {}) | dict(preferences or {})
        self._frozen: ViewState | None = None
        self._view = ViewState(source.where, local=source.local, readonly=readonly, badge=badge)
        for theme in (*THEMES, SIXTEEN):
            self.register_theme(theme)
        liked = self.preferences.get("theme", "")
        self.theme = liked if liked in [theme.name for theme in THEMES] else THEMES[0].name
        few = self.console.color_system not in ("256", "truecolor")
        if few:
            self.theme = SIXTEEN.name
        self._view = replace(self._view, few_colours=few or not self._colour)
        self.palette = Palette(self.theme, colour=self._colour)
        words = [word.partition("=") for word in self.preferences.get("keys", "").split()]
        self.set_keymap({action: key for action, _, key in words if key})

    def get_default_screen(self) -> Screen[Any]:
        self.board = BoardScreen(self)
        return self.board

    def on_mount(self) -> None:
        self.app_resume_signal.subscribe(self, lambda app: self.action_repaint())
        self.theme_changed_signal.subscribe(self, lambda theme: self._recolour())
        self.run_worker(self._follow(), group="source")
        if self._machine is not None:
            watch = partial(self._watch_machine, self._machine, asyncio.get_running_loop())
            self.call_after_refresh(threading.Thread(target=watch, name="sensors", daemon=True).start)
        self.set_interval(_TICK_S, self._tick)

    def on_key(self, event: events.Key) -> None:
        if isinstance(self.screen, Prompt) and event.is_printable:  # its line may not have the focus yet
            self.screen.field.insert_text_at_cursor(event.character or "")

    def on_unmount(self) -> None:
        self._left.set()

    def _recolour(self) -> None:
        self.remember(theme=self.theme)
        self.palette = Palette(self.theme, colour=self._colour)
        for screen in self.screen_stack:
            for canvas in screen.query(Canvas):
                canvas.redraw(entirely=True)

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = False,
    ) -> None:
        """Show a message in the footer for a while. It may come from a daemon, so it is no markup."""
        text = f"{title}: {printable(message)}" if title else printable(message)
        self._view = replace(self._view, message=text, message_tone=_SEVERITY[severity])
        self._message_until = self._clock() + (timeout or _MESSAGE_S)
        self.call_later(self.draw)

    async def _follow(self) -> None:
        """Draw the newest state, then sleep for the rest of the interval; states between are not decoded."""
        clock = asyncio.get_running_loop().time
        due = clock()
        async for news in self._source.stream():
            self.take(news)
            due = max(due + self._every_s, clock())
            await asyncio.sleep(due - clock())

    def _watch_machine(self, read: Callable[[], Hardware], loop: asyncio.AbstractEventLoop) -> None:
        """Read the sensors in a daemon thread: a driver that hangs does not keep the screen from quitting."""
        while not self._left.is_set():
            hardware = read()
            with suppress(RuntimeError):  # the loop ended meanwhile
                loop.call_soon_threadsafe(self.take_hardware, hardware)
            self._left.wait(_HARDWARE_EVERY_S)

    def take_hardware(self, hardware: Hardware) -> None:
        self._view, self._read_at = replace(self._view, hardware=hardware), self._clock()
        self._view.history.take_hardware(hardware)

    def take(self, news: Snapshot | Disconnected) -> None:
        now = self._clock()
        if isinstance(news, Disconnected):
            self._done.clear()  # another daemon may come back
            self._lost_at = self._lost_at if self._view.lost else now
            self._view = replace(self._view, lost=news.reason)
        else:
            is_first, self._received_at = self._view.snapshot is None, now
            self._view = replace(self._view, snapshot=news, lost="")
            self._view.history.take(news)
            self._past.record(news)
            if is_first:
                self.run_worker(self._fetch(news.taken_at - _GRAPHED_S), group="graph")
        if self._alerts is not None and self._driver is not None:
            self._driver.write(self._alerts.take(news, now))
            if self._alerts.told and self._alerts.run is not None:
                self.run_worker(self._tell(self._alerts.run(self._alerts.told)), group="alerts")
        self.draw()

    async def _tell(self, run: Awaitable[str]) -> None:
        if fault := await run:
            self.notify(fault, severity="error")

    def _tick(self) -> None:
        """Let ages grow while no state comes."""
        if self._clock() - self._drawn_at >= self._still_s:
            self.draw()

    def view(self) -> ViewState:
        now, view = self._clock(), self._view
        if now > self._message_until:
            view = replace(view, message="")
        if (frozen := self._frozen) is not None:
            said: dict[str, Any] = {"message": view.message, "message_tone": view.message_tone}
            return replace(frozen, prompts=view.prompts, **said)
        age_s = (self._lost_at if view.lost else now) - self._received_at if view.snapshot else 0.0
        return replace(
            view,
            lost_for_s=now - self._lost_at if view.lost else 0.0,
            hardware_age_s=now - self._read_at if view.hardware else 0.0,
            drift_s=min(max(0.0, age_s), self._silent_s),
            silent_s=age_s if age_s >= self._silent_s and not view.lost else 0.0,
            lag_s=getattr(self._driver, "lag_s", 0.0),
        )

    def draw(self) -> None:
        """Draw what is known now, unless the terminal is still busy with what was drawn before."""
        if not self.is_running or getattr(self._driver, "is_behind", bool)():
            return
        self._drawn_at = self._clock()
        view = self.view()
        for screen in self.screen_stack:
            if screen.is_mounted and isinstance(screen, BoardScreen | PageScreen):
                screen.show(view)

    def remember(self, **liked: str) -> None:
        """Store preferences; an error of the disk is ignored."""
        if self._memory is not None:
            with suppress(OSError):
                self._memory.parent.mkdir(parents=True, exist_ok=True)
                self._memory.write_text(json.dumps(_stored(self._memory) | liked), encoding="utf-8")

    def ask(self, *actions: Action) -> None:
        state = self._view.snapshot
        if state is not None:
            self._perform([undoable(action, state) for action in actions])

    def _perform(self, actions: Sequence[UndoableAction], undone: str = "") -> None:
        """Send actions; those that the daemon confirms can be undone, unless they undo some."""
        for each in actions:
            self._expected[each.field, each.action.id] = each.becomes, self._clock() + SETTLED_S

        async def perform() -> None:
            done: list[UndoableAction] = []
            refusal = ""
            async with self._acting:
                for each in actions:
                    refused = await self._source.act(each.action)
                    if refused:
                        self._expected.pop((each.field, each.action.id), None)
                    else:
                        done.append(each)
                    refusal = refusal or refused
            if done and not undone:
                self._done.append((done, self._clock()))
            if refusal:
                partly = f"{len(done)} of {len(actions)} done: " if done else ""
                self.notify(f"{partly}{refusal}", severity="error")
            else:
                can = any(each.undo for each in done) and not undone
                self.notify(f"undone: {undone}" if undone else f"{said_of(done)}{'  (u: undo)' * can}")

        self.run_worker(perform(), group="actions")

    def expect(self, field: str, ident: str | None) -> Any:
        """Return a field that actions change: as the last one left it, which the state may not show yet."""
        becomes, until = self._expected.get((field, ident), (None, 0.0))
        return becomes if self._clock() < until else standing(field, ident, self._view.state)

    def undo(self) -> None:
        """Undo the last key that asked the daemon for something, if nobody has changed it since."""
        if not self._done:
            self.notify("nothing to undo", severity="warning", timeout=2)
            return
        state, (done, at_s) = self._view.state, self._done.pop()
        why = cannot_undo(done, state, settled=self._clock() >= at_s + SETTLED_S)
        if why:
            self.notify(f"{said_of(done)}: {why}", severity="warning")
            return
        back = [action for each in reversed(done) for action in each.undo]
        self._perform([undoable(action, state) for action in back], said_of(done))

    def action_freeze(self) -> None:
        view = self.view()
        frozen = replace(view, frozen=True, history=deepcopy(view.history))
        self._frozen = frozen if self._frozen is None else None
        self.draw()

    def action_scrub(self, seconds: float) -> None:
        if (state := (self._frozen or self._view).snapshot) is not None:
            self._sought = (self._sought or state.taken_at) + seconds
            scrub = self._scrub(self._sought, forward=seconds > 0)
            self.run_worker(scrub, group="past", exclusive=True)

    def seek(self, time_of_day: str) -> str:
        """Show the state at a time of the last hour, such as 14:05 or 14:05:30; say why not."""
        parsed, newest = _parsed(time_of_day), self._view.state.taken_at
        today = time.localtime(newest)
        if parsed is None:
            return f"give a time, such as {time.strftime('%H:%M', today)}"
        at = time.mktime((*today[:3], *parsed[3:6], 0, 0, -1))
        at -= 86_400.0 * (at > newest)
        if at < newest - SPAN_S:
            return "the states of the last hour are kept; N shows the last 24 hours"
        self._sought = at
        self.run_worker(self._scrub(at, forward=False), group="past", exclusive=True)
        return ""

    async def _scrub(self, at: float, *, forward: bool) -> None:
        """Show the state at a time, or the newest if there is none after it."""
        await self._fetch(at)
        state = self._past.after(at - EVERY_S) if forward else self._past.before(at + EVERY_S)
        was_frozen, self._frozen, self._sought = self._frozen is not None, None, None
        if state is not None and (was_frozen or not forward):
            past = replace(self.view(), snapshot=state, history=self._view.history.until(state))
            ago_s = self._view.state.taken_at - state.taken_at
            self._frozen = replace(past, frozen=True, drift_s=0.0, past_s=ago_s)
        self.draw()

    async def _fetch(self, back_to: float) -> None:
        """Fetch pages of the daemon's history back to a time."""
        try:
            while (at := self._past.begins_at) and back_to < at:
                if not (older := self._past.put_before(await self._source.past(at))):
                    break
                self._view.history.put_before(older)
        except ClairvoyantError as error:
            if self._sought is not None:
                self.notify(f"the daemon's history cannot be read: {error}", severity="warning")

    def action_prompts(self) -> None:
        shown = not self._view.prompts
        if shown and all(each.prompt is None for each in self._view.state.alive):
            self.notify("The daemon does not send prompts.", severity="warning")
            return
        self._view = replace(self._view, prompts=shown)
        self.notify(
            f"prompts {'shown; the page of a request (Enter) shows its answer, too' if shown else 'hidden'}"
        )

    def action_repaint(self) -> None:
        """Draw the whole screen: something else has written on the terminal."""
        self.screen.refresh(layout=True)

    def action_command(self) -> None:
        while self.screen is not self.board:
            self.pop_screen()
        self.board.action_command()

    async def action_on_board(self, action: str) -> None:
        """Do on the board what a key does there, with the request of the page that is open."""
        await self.run_action(action, self.board)

    def action_help(self) -> None:
        self.push_screen(PageScreen("keys and signs", help_lines, "question_mark,f1"))

    def action_clients(self) -> None:
        self.push_screen(PageScreen("programs and clients", clients.page, "c"))

    def action_went_wrong(self) -> None:
        self.push_screen(PageScreen("what went wrong", log.went_wrong, "w"))

    def action_last_night(self) -> None:
        async def show() -> None:
            try:
                page = partial(last_day.page, await self._source.last_day())
                self.push_screen(PageScreen("the last 24 hours", page, "N"))
            except ClairvoyantError as error:
                self.notify(str(error), severity="warning")

        self.run_worker(show(), group="last night", exclusive=True)

    def action_save_screen(self) -> None:
        """Write the screen into a file in the working directory, named by the time."""
        path = Path(time.strftime("clairvoyant-%Y%m%d-%H%M%S.svg"))
        try:
            path.write_text(self.export_screenshot(), encoding="utf-8")
        except OSError as error:
            self.notify(f"cannot write {path.name} here: {error.strerror}", severity="error")
        else:
            self.notify(f"saved {path.name} in the working directory")


def _stored(path: Path) -> dict[str, str]:
    """Return the stored preferences; none if the file is missing or damaged."""
    with suppress(OSError, ValueError, RecursionError):
        kept = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(kept, dict):
            return {name: value for name, value in kept.items() if isinstance(value, str)}
    return {}


def _parsed(time_of_day: str) -> time.struct_time | None:
    for form in ("%H:%M", "%H:%M:%S"):
        with suppress(ValueError):
            return time.strptime(time_of_day, form)
    return None
