"""From a key to an action: which requests it speaks of, whether it may, and what is asked first."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from textual.app import App
from textual.screen import ModalScreen

from clairvoyant_cli.state.selection import Order
from clairvoyant_cli.state.snapshot import (
    BackendState,
    FinishedRequest,
    PolicyOutlook,
    QueuedRequest,
    Snapshot,
)
from clairvoyant_cli.state.source import Action, Verb
from tui.formatting import duration
from tui.panels.detail import AnyRequest
from tui.panels.requests import LEVELS
from tui.screens.dialogs import Ask, Choose, Confirm
from tui.view_state import LinkState, ViewState

_DAY_S = 86_400.0
FitT = TypeVar("FitT")


class Stage(Protocol):
    """What is in sight, and the daemon behind it."""

    def view(self) -> ViewState:
        """Return what is to be drawn now."""
        ...

    def draw(self) -> None:
        """Let every panel in sight draw it."""
        ...

    def look(self, first: int, order: Order) -> None:
        """Have the queue's rows sent from the first on, when it stands in an order."""
        ...

    def outlook(self, show: Callable[[tuple[PolicyOutlook, ...]], None]) -> None:
        """Ask when what waits would start under each policy, and show the answer when it comes."""
        ...

    def waiting(self, order: Order, take: Callable[[tuple[QueuedRequest, ...]], None]) -> None:
        """Ask for all that waits and stands in an order, and hand it on when it comes."""
        ...

    def remember(self, **liked: str) -> None:
        """Keep how the screen is liked, for the next time."""
        ...

    def liked(self) -> Mapping[str, str]:
        """Return what was kept."""
        ...

    def ask(self, *actions: Action) -> None:
        """Ask the daemon for something, one action after the other; a refusal is shown."""
        ...


class Actions:
    """What an operator may do. Nothing is asked of a daemon that is gone, or under `--readonly`."""

    def __init__(self, app: App[Any], stage: Stage) -> None:
        self._app = app
        self._stage = stage

    # -- requests ---------------------------------------------------------------------------------------

    def cancel(self, rows: Sequence[AnyRequest]) -> None:
        """Cancel those that have not ended, if the operator says yes."""
        rows = self._fit(_alive(rows), "nothing here can be cancelled: it has ended")
        if rows and self._allowed():
            question = f"Cancel {rows[0].id}?" if len(rows) == 1 else f"Cancel {len(rows)} requests?"
            clients = ", ".join(sorted({row.client or "unnamed" for row in rows}))
            actions = [Action(Verb.CANCEL, row.id) for row in rows]
            self._confirm(question, f"Its client ({clients}) gets an error.", actions)

    def cancel_now(self, rows: Sequence[AnyRequest]) -> None:
        """Cancel those that have not ended."""
        rows = self._fit(_alive(rows), "nothing here can be cancelled: it has ended")
        self._each([Action(Verb.CANCEL, row.id) for row in rows])

    def promote(self, rows: Sequence[AnyRequest]) -> None:
        """Send those that wait to the top."""
        self._each([Action(Verb.PROMOTE, row.id) for row in self._waiting(rows)])

    def hold(self, rows: Sequence[AnyRequest]) -> None:
        """Hold those that wait; release those that are held."""
        verbs = {True: Verb.RELEASE, False: Verb.HOLD}
        self._each([Action(verbs[row.held], row.id) for row in self._waiting(rows)])

    def prioritise(self, rows: Sequence[AnyRequest], step: int) -> None:
        """Change the priority of those that wait; a lower number goes sooner."""
        changed = [Action(Verb.PRIORITY, row.id, row.priority + step) for row in self._waiting(rows)]
        self._each(changed)

    def urgency(self, rows: Sequence[AnyRequest]) -> None:
        """Offer the levels of urgency for those that have not ended."""
        rows = self._fit(_alive(rows), "nothing here has a level any more: it has ended")
        snapshot = self._steerable() if rows else None
        if snapshot is None:
            return
        whose = rows[0].id if len(rows) == 1 else f"{len(rows)} requests"
        heeded = "" if snapshot.urgency.heeded else f" (policy {snapshot.policy} does not go by it)"
        options = [(str(level), f"{level}  {name}") for level, (name, _) in enumerate(LEVELS)]

        def change(level: str | None) -> None:
            if level is not None:
                self._stage.ask(*(Action(Verb.URGENCY, row.id, int(level)) for row in rows))

        current = rows[0].urgency
        dialog = Choose(f"How urgent is {whose}?{heeded}", options, "" if current is None else str(current))
        self._app.push_screen(dialog, change)

    # -- the daemon -------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Pause, or resume."""
        snapshot = self._steerable()
        if snapshot is not None:
            self._stage.ask(Action(Verb.RESUME if snapshot.mode == "paused" else Verb.PAUSE))

    def drain(self) -> None:
        """Drain, if the operator says yes; or resume."""
        snapshot = self._steerable()
        if snapshot is None:
            return
        if snapshot.mode == "draining":
            self._stage.ask(Action(Verb.RESUME))
        else:
            detail = "It finishes what waits and refuses what comes."
            self._confirm("Drain the daemon?", detail, [Action(Verb.DRAIN)])

    def policy(self) -> None:
        """Offer the policies the daemon has."""
        snapshot = self._steerable()
        if snapshot is not None:
            dialog = Choose("Order of what waits", _policies(snapshot, ()), snapshot.policy)
            self._change(Verb.POLICY, dialog, str)
            self._stage.outlook(lambda outlook: dialog.retell(_policies(snapshot, outlook)))

    def tau(self) -> None:
        """Ask for the longest wait."""
        snapshot = self._steerable()
        if snapshot is not None:
            shown = f"{snapshot.tau.tau_s:g}" if snapshot.tau.tau_s else "off"
            question = "Longest wait before a request goes next, in seconds, or off"
            self._change(Verb.TAU, Ask(question, shown, _tau_fault), _tau_of)

    def servers(self) -> None:
        """Offer what can be done to each server: drain one that works, bring up one that does not."""
        snapshot = self._steerable()
        if snapshot is None:
            return
        options = [(f"{_deed(each)} {each.name}", _server(each)) for each in snapshot.backends]

        def change(choice: str | None) -> None:
            if choice is not None:
                deed, _, name = choice.partition(" ")
                self._stage.ask(Action(Verb.BACKEND, name, deed))

        self._app.push_screen(Choose("Servers", options), change)

    def _change(
        self, verb: Verb, dialog: ModalScreen[str | None], value_of: Callable[[str], str | float]
    ) -> None:
        def change(answer: str | None) -> None:
            if answer is not None:
                self._stage.ask(Action(verb, value=value_of(answer)))

        self._app.push_screen(dialog, change)

    # -- whether, and how -------------------------------------------------------------------------------

    def _allowed(self) -> bool:
        view = self._stage.view()
        if view.readonly:
            self._app.notify("read-only: nothing was changed", severity="warning", timeout=2)
        elif view.past_s is not None:
            self._app.notify("this is the past: nothing was changed", severity="warning", timeout=2)
        elif view.link.state is not LinkState.LIVE:
            self._app.notify("no daemon: nothing was changed", severity="warning", timeout=2)
        else:
            return True
        return False

    def _steerable(self) -> Snapshot | None:
        return self._stage.view().snapshot if self._allowed() else None

    def _each(self, actions: list[Action]) -> None:
        if actions and self._allowed():
            self._stage.ask(*actions)

    def _waiting(self, rows: Sequence[AnyRequest]) -> list[QueuedRequest]:
        waiting = [row for row in rows if isinstance(row, QueuedRequest)]
        return self._fit(waiting, "only what waits can be moved")

    def _fit(self, rows: list[FitT], otherwise: str) -> list[FitT]:
        """Return the rows; where there are none, say why nothing happens."""
        if not rows:
            self._app.notify(otherwise, severity="warning", timeout=3)
        return rows

    def _confirm(self, question: str, detail: str, actions: list[Action]) -> None:
        def answer(yes: bool | None) -> None:
            if yes:
                self._stage.ask(*actions)

        self._app.push_screen(Confirm(question, detail), answer)


def _policies(snapshot: Snapshot, outlook: Sequence[PolicyOutlook]) -> list[tuple[str, str]]:
    """Return the policies with what each does, and when the medians would start of what waits now."""
    summaries = dict(zip(snapshot.policies, snapshot.summaries, strict=False))
    coming = {each.policy: each for each in outlook}
    return [(name, _policy(name, summaries.get(name, ""), coming.get(name))) for name in snapshot.policies]


def _policy(name: str, summary: str, coming: PolicyOutlook | None) -> str:
    text = name
    if coming is not None:
        medians = (("S", coming.short_s), ("L", coming.long_s))
        starts = [f"{letter} in {duration(at_s):<6} " for letter, at_s in medians if at_s is not None]
        text = f"{name:<12} {''.join(starts)}{' before any cut' * (coming.cuts and bool(starts))}"
    return f"{text.rstrip()}\n  {summary}".rstrip()


def _deed(server: BackendState) -> str:
    return "up" if server.standing else "drain"


def _server(server: BackendState) -> str:
    how = ", ".join(each for each in (server.state, server.standing) if each)
    does = "bring it up" if server.standing else "drain it: nothing new goes there"
    return f"{server.name}  {how}, {server.busy} of {server.slots} slots busy\n  {does}"


def _alive(rows: Sequence[AnyRequest]) -> list[AnyRequest]:
    return [row for row in rows if not isinstance(row, FinishedRequest)]


def _tau_of(text: str) -> float:
    """Read tau in seconds; 0 is no guard. ValueError if it is none."""
    text = text.strip().removesuffix("s")
    return 0.0 if text == "off" else float(text)


def _tau_fault(text: str) -> str:
    try:
        tau_s = _tau_of(text)
    except ValueError:
        return "a number of seconds, or off"
    return "" if 0.0 <= tau_s <= _DAY_S else "up to a day, or off"
