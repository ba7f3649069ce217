"""The keys that ask the daemon for something: which requests they act on, and what they ask first."""

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Protocol, TypeVar

from textual.screen import Screen

from clairvoyant_cli.state.actions import Action, Verb
from clairvoyant_cli.state.snapshot import (
    BackendState,
    PolicyOutlook,
    QueuedRequest,
    RunningRequest,
    Snapshot,
)
from tui.formatting import class_letter, duration
from tui.panels.requests import LEVELS
from tui.screens.dialogs import AnswerT, Ask, Choose, Confirm, Dialog, WhatIf
from tui.styled_text import cell
from tui.view_state import LinkState, ViewState
from tui.widgets.table import Table

NO_REQUEST = "this key is for requests"
_DAY_S = 86_400.0
_SAME_S = 0.1
FitT = TypeVar("FitT")


class Host(Protocol):
    """What a screen needs of the application."""

    @property
    def likes(self) -> Mapping[str, str]:
        """The stored preferences."""

    def view(self) -> ViewState:
        """Return what is to be drawn now."""

    def draw(self) -> None:
        """Redraw all panels."""

    def ask(self, *actions: Action) -> None:
        """Send actions to the daemon, one after the other; a refusal is shown."""

    def outlook(self, show: Callable[[tuple[PolicyOutlook, ...]], None]) -> None:
        """Ask when the queue would start under each policy, and show the answer."""

    def remember(self, **liked: str) -> None:
        """Store preferences."""


class OperatorScreen(Screen[None]):
    """A screen with the operator's keys. They do nothing without a daemon, or under `--readonly`."""

    def __init__(self, host: Host) -> None:
        super().__init__(id="_default")
        self.host = host

    @property
    def table(self) -> Table[Any]:
        """The table whose chosen requests the keys act on."""
        raise NotImplementedError

    # -- requests ---------------------------------------------------------------------------------------

    def action_cancel(self) -> None:
        """Cancel the chosen requests after asking."""
        rows = self._alive("cannot cancel: it has ended")
        if rows and self._allowed():
            question = f"Cancel {rows[0].id}?" if len(rows) == 1 else f"Cancel {len(rows)} requests?"
            clients = ", ".join(sorted({row.client or "unnamed" for row in rows}))
            actions = [Action(Verb.CANCEL, row.id) for row in rows]
            self._ask(Confirm(question, f"Its client ({clients}) gets an error."), lambda yes: actions)

    def action_cancel_now(self) -> None:
        """Cancel the chosen requests."""
        self._each([Action(Verb.CANCEL, row.id) for row in self._alive("cannot cancel: it has ended")])

    def action_promote(self) -> None:
        """Move the chosen queued requests to the front."""
        self._each([Action(Verb.PROMOTE, row.id) for row in self._queued()])

    def action_hold(self) -> None:
        """Hold the chosen queued requests; release those that are held."""
        verbs = {True: Verb.RELEASE, False: Verb.HOLD}
        self._each([Action(verbs[row.held], row.id) for row in self._queued()])

    def action_priority(self, step: int) -> None:
        """Change the priority of the chosen queued requests; lower runs sooner."""
        self._each([Action(Verb.PRIORITY, row.id, row.priority + step) for row in self._queued()])

    def action_urgency(self) -> None:
        """Offer the urgency levels for the chosen requests."""
        rows = self._alive("cannot set a level: it has ended")
        snapshot = self._steerable() if rows else None
        if snapshot is None:
            return
        whose = rows[0].id if len(rows) == 1 else f"{len(rows)} requests"
        heeded = "" if snapshot.urgency.heeded else f" (policy {snapshot.policy} ignores it)"
        options = [(str(level), f"{level}  {name}") for level, (name, _) in enumerate(LEVELS)]
        current = "" if rows[0].urgency is None else str(rows[0].urgency)
        dialog = Choose(f"Urgency of {whose}{heeded}", options, current)
        self._ask(dialog, lambda level: [Action(Verb.URGENCY, row.id, int(level)) for row in rows])

    # -- the daemon -------------------------------------------------------------------------------------

    def action_pause(self) -> None:
        """Pause dispatching, or resume."""
        snapshot = self._steerable()
        if snapshot is not None:
            self.host.ask(Action(Verb.RESUME if snapshot.mode == "paused" else Verb.PAUSE))

    def action_drain(self) -> None:
        """Drain after asking, or resume."""
        snapshot = self._steerable()
        if snapshot is None:
            return
        if snapshot.mode == "draining":
            self.host.ask(Action(Verb.RESUME))
        else:
            detail = "It finishes queued requests and rejects new ones."
            self._ask(Confirm("Drain the daemon?", detail), lambda yes: [Action(Verb.DRAIN)])

    def action_policy(self) -> None:
        """Offer the daemon's policies."""
        snapshot = self._steerable()
        if snapshot is not None:
            dialog = WhatIf(
                "Policy, and when the median Short and Long would start",
                _policies(snapshot, ()),
                snapshot.policy,
            )
            self._ask(dialog, lambda name: [Action(Verb.POLICY, value=name)])
            self.host.outlook(
                lambda coming: dialog.foresee(_policies(snapshot, coming), _orders(snapshot, coming))
            )

    def action_tau(self) -> None:
        """Ask for the starvation timeout."""
        snapshot = self._steerable()
        if snapshot is not None:
            shown = f"{snapshot.tau.tau_s:g}" if snapshot.tau.tau_s else "off"
            dialog = Ask("Starvation timeout in seconds, or off", shown, _tau_fault)
            self._ask(dialog, lambda text: [Action(Verb.TAU, value=_tau_of(text))])

    def action_servers(self) -> None:
        """Offer to drain each server, or to bring it up."""
        snapshot = self._steerable()
        if snapshot is not None:
            verbs = {each.name: "up" if each.standing else "drain" for each in snapshot.backends}
            options = [(each.name, _server(each)) for each in snapshot.backends]
            dialog = Choose("Servers", options)
            self._ask(dialog, lambda name: [Action(Verb.BACKEND, name, verbs[name])])

    # -- whether, and how -------------------------------------------------------------------------------

    def _ask(self, dialog: Dialog[AnswerT], actions: Callable[[AnswerT], list[Action]]) -> None:
        """Open a dialog, and send the actions for its answer, if there is one."""

        def answer(given: AnswerT | None) -> None:
            if given:
                self.host.ask(*actions(given))

        self.app.push_screen(dialog, answer)

    def _allowed(self) -> bool:
        view = self.host.view()
        for forbidden, why in (
            (view.readonly, "read-only"),
            (view.past_s is not None, "this is the past"),
            (view.link.state is not LinkState.LIVE, "no daemon"),
        ):
            if forbidden:
                self.app.notify(f"{why}: nothing was changed", severity="warning", timeout=2)
                return False
        return True

    def _steerable(self) -> Snapshot | None:
        return self.host.view().snapshot if self._allowed() else None

    def _each(self, actions: list[Action]) -> None:
        if actions and self._allowed():
            self.host.ask(*actions)

    def _alive(self, otherwise: str) -> list[QueuedRequest | RunningRequest]:
        rows = [row for row in self.table.chosen if isinstance(row, QueuedRequest | RunningRequest)]
        return self._fit(rows, otherwise)

    def _queued(self) -> list[QueuedRequest]:
        rows = [row for row in self.table.chosen if isinstance(row, QueuedRequest)]
        return self._fit(rows, "only queued requests can be moved")

    def _fit(self, rows: list[FitT], otherwise: str) -> list[FitT]:
        """Return the rows; if there are none, say why nothing happens."""
        if not rows:
            why = NO_REQUEST if self.table.panel == "sessions" else otherwise
            self.app.notify(why, severity="warning", timeout=3)
        return rows


def _policies(snapshot: Snapshot, outlook: Sequence[PolicyOutlook]) -> list[tuple[str, str]]:
    """Return the policies, what each does, and when the median queued request would start under it."""
    summaries = dict(zip(snapshot.policies, snapshot.summaries, strict=False))
    coming = {each.policy: each for each in outlook}
    now = coming.get(snapshot.policy)
    return [
        (name, _policy(name, summaries.get(name, ""), coming.get(name), now)) for name in snapshot.policies
    ]


def _policy(name: str, summary: str, coming: PolicyOutlook | None, now: PolicyOutlook | None) -> str:
    text = name
    if coming is not None:
        now = now or coming
        pairs = (("S", coming.short_s, now.short_s), ("L", coming.long_s, now.long_s))
        starts = [_median_start(*pair) for pair in pairs]
        text = f"{name:<12} {''.join(starts)}{' before any cut' * (coming.cuts and any(starts))}"
    return f"{text.rstrip()}\n  {summary}".rstrip()


def _median_start(letter: str, at_s: float | None, now_s: float | None) -> str:
    """When the median request of a class would start, and how much sooner or later than now."""
    if at_s is None:
        return ""
    more_s = 0.0 if now_s is None else at_s - now_s
    change = f"({'+' if more_s > 0 else '−'}{duration(abs(more_s))})" if abs(more_s) >= _SAME_S else ""
    return f"{letter} in {duration(at_s):<6} {change:<10}"


def _orders(snapshot: Snapshot, outlook: Sequence[PolicyOutlook]) -> dict[str, str]:
    """Return the first requests of the queue under each policy, in two columns."""
    rows = {row.id: row for row in snapshot.queue}
    return {
        each.policy: _order(each.policy, [rows[ident] for ident in each.first if ident in rows])
        for each in outlook
    }


def _order(policy: str, rows: Sequence[QueuedRequest]) -> str:
    cells = [
        f"{place:>3} {class_letter(row.predicted.length_class)} {row.id[-8:]:<8} {cell(row.client, 16)}"
        for place, row in enumerate(rows, 1)
    ]
    half = (len(cells) + 1) // 2
    lines = (f"{left}{right}" for left, right in zip_longest(cells[:half], cells[half:], fillvalue=""))
    return "\n".join([f"First under {policy}:", *lines]) if cells else ""


def _server(server: BackendState) -> str:
    how = ", ".join(each for each in (server.state, server.standing) if each)
    does = "bring it up" if server.standing else "drain it: it gets no new requests"
    return f"{server.name}  {how}, {server.busy} of {server.slots} slots busy\n  {does}"


def _tau_of(text: str) -> float:
    """Read tau in seconds, 0 for none; ValueError if it is no number."""
    text = text.strip().removesuffix("s")
    return 0.0 if text == "off" else float(text)


def _tau_fault(text: str) -> str:
    try:
        tau_s = _tau_of(text)
    except ValueError:
        return "a number of seconds, or off"
    return "" if 0.0 <= tau_s <= _DAY_S else "up to a day, or off"
