"""The keys and commands that ask the daemon for something: what they act on, and what they ask first.

They act on the chosen rows of the table that has the focus, as the screen shows them, and on nothing else.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Protocol

from textual.screen import Screen

from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.state.actions import AUTO, COMMANDS, TARGETS, Action, Verb, arguments_of
from clairvoyant_cli.state.snapshot import PolicyOutlook, QueuedRequest, RunningRequest, Snapshot
from tui.formatting import duration
from tui.panels.requests import LEVELS
from tui.screens.dialogs import AnswerT, Choose, Confirm, Dialog, Prompt
from tui.view_state import ViewState
from tui.widgets.table import Table

NO_REQUEST = "this key is for requests"
NO_ROWS = "this panel has no rows: 1 goes to the running requests, 2 to the queue"
NO_ROW = "no request is chosen: j or k chooses one"
_SAME_S = 0.1


class Host(Protocol):
    """What the screen needs of `tui.app.Top`."""

    likes: Mapping[str, str]

    def view(self) -> ViewState: ...
    def draw(self) -> None: ...
    def ask(self, *actions: Action) -> None: ...
    def expect(self, field: str, ident: str | None) -> Any: ...
    def undo(self) -> None: ...
    def outlook(self, show: Callable[[tuple[PolicyOutlook, ...]], None]) -> None: ...
    def remember(self, **liked: str) -> None: ...


class OperatorScreen(Screen[None]):
    """A screen with the operator's keys. They do nothing without a daemon, or under `--readonly`."""

    def __init__(self, host: Host) -> None:
        super().__init__(id="_default")
        self.host = host

    @property
    def table(self) -> Table | None:
        """The table that has the focus, if it is shown."""
        focused = self.focused
        return focused if isinstance(focused, Table) and focused.display else None

    # -- requests ---------------------------------------------------------------------------------------

    def action_cancel(self, *, asks: bool = True) -> None:
        rows = self._alive("cannot cancel: it has ended")
        self._each([Action(Verb.CANCEL, row.id) for row in rows], asks=asks)

    def action_cancel_now(self) -> None:
        self.action_cancel(asks=False)

    def action_promote(self) -> None:
        self._each([Action(Verb.PROMOTE, row.id) for row in self._queued()])

    def action_hold(self) -> None:
        held = [(row.id, self.host.expect("held", row.id)) for row in self._queued()]
        self._each([Action(Verb.RELEASE if is_held else Verb.HOLD, ident) for ident, is_held in held])

    def action_priority(self, step: int) -> None:
        was = [(row.id, self.host.expect("priority", row.id) or 0) for row in self._queued()]
        self._each([Action(Verb.PRIORITY, ident, priority + step) for ident, priority in was])

    def action_urgency(self) -> None:
        rows = self._alive("cannot set a level: it has ended")
        if rows and self._allowed():
            state, level = self.host.view().state, rows[0].urgency
            whose = rows[0].id if len(rows) == 1 else f"{len(rows)} requests"
            heeded = "" if state.urgency.heeded else f" (policy {state.policy} ignores it)"
            options = [(str(level), f"{level}  {name}") for level, (name, _) in enumerate(LEVELS)]
            dialog = Choose(f"Urgency of {whose}{heeded}", options, [str(level)])
            self._ask(dialog, lambda level: [Action(Verb.URGENCY, row.id, int(level)) for row in rows])

    # -- the daemon -------------------------------------------------------------------------------------

    def action_undo(self) -> None:
        if self._allowed():
            self.host.undo()

    def action_pause(self) -> None:
        self._each([Action(Verb.RESUME if self.host.expect("mode", None) == "paused" else Verb.PAUSE)])

    def action_drain(self) -> None:
        draining = self.host.expect("mode", None) == "draining"
        self._each([Action(Verb.RESUME if draining else Verb.DRAIN)])

    def action_policy(self) -> None:
        if self._allowed():
            state = self.host.view().state
            question = "Policy, and when the median Short and Long would start"
            dialog = Choose(question, _policies(state, ()), [state.policy])
            self._ask(dialog, lambda name: [Action(Verb.POLICY, value=name)])
            self.host.outlook(lambda coming: dialog.foresee(_policies(state, coming)))

    def action_tau(self) -> None:
        if self._allowed():
            tau_s = self.host.view().state.tau.tau_s
            self.action_command(f"tau {tau_s:g}" if tau_s else "tau off")

    def action_servers(self) -> None:
        if self._allowed():
            self.action_command("backend ")

    # -- what is typed ----------------------------------------------------------------------------------

    def action_command(self, text: str = "") -> None:
        self.app.push_screen(Prompt(":", text, self.run_command, self.complete))

    def run_command(self, text: str) -> str:
        """Do what is typed; return what is wrong with it, or nothing."""
        name, *words = text.split() or [""]
        if name in COMMANDS:
            return self._run_verb(Verb(name), words)
        return f"no command {name}: Tab lists them" if name else ""

    def _run_verb(self, verb: Verb, words: list[str]) -> str:
        """Act on what is named; if no request is, on the chosen ones."""
        fields = COMMANDS[verb].fields
        targets: list[list[str]] = [[]]
        if fields[:1] == ("id",) and len(words) < len(fields) and not any(w.startswith("id=") for w in words):
            alive = verb in (Verb.CANCEL, Verb.URGENCY)
            targets = [[row.id] for row in (self._alive("it has ended") if alive else self._queued())]
        actions = []
        for target in targets:
            try:
                given = arguments_of(verb, [*target, *words])
            except ClairvoyantError as error:
                return str(error)
            if set(given) != set(fields):
                return f"give {' '.join((verb, *map(str.upper, fields)))}; `clairvoyant act` does more"
            target_of = next((given[field] for field in fields if field in TARGETS), None)
            value = next((given[field] for field in fields if field not in TARGETS), None)
            actions.append(Action(verb, target_of, value))
        self.call_next(self._each, actions)  # once the command line is closed
        return ""

    def complete(self, text: str) -> list[str]:
        *before, last = text.split(" ")
        words = self.words_after(*before)
        return [each for each in words if each.startswith(last)] or [each for each in words if last in each]

    def words_after(self, *before: str) -> Sequence[str]:
        if not before:
            return [*COMMANDS]
        snapshot = self.host.view().state
        fields = COMMANDS[Verb(before[0])].fields if before[0] in COMMANDS else ()
        if len(before) > len(fields):
            return []
        verb, field = before[0], fields[len(before) - 1]
        rows = snapshot.alive if verb in (Verb.CANCEL, Verb.URGENCY) else snapshot.queue
        models = {model.name for each in snapshot.backends for model in each.models}
        words: dict[str, Sequence[str]] = {
            "id": [row.id for row in rows],
            "policy": snapshot.policies,
            "tau_s": [AUTO, "off"],
            "level": [str(level) for level, _ in enumerate(LEVELS)],
            "do": ["drain", "up", "remove"] if verb == Verb.BACKEND else ["load", "unload"],
            "name": [each.name for each in snapshot.backends] if verb == Verb.BACKEND else sorted(models),
        }
        return words.get(field, ())

    # -- whether, and how -------------------------------------------------------------------------------

    def _ask(self, dialog: Dialog[AnswerT], actions: Callable[[AnswerT], list[Action]]) -> None:
        def answer(given: AnswerT | None) -> None:
            if given:
                self.host.ask(*actions(given))

        self.app.push_screen(dialog, answer)

    def _allowed(self) -> bool:
        why = self.host.view().forbids
        if why:
            self.app.notify(f"{why}: nothing was changed", severity="warning", timeout=2)
        return not why

    def _each(self, actions: list[Action], *, asks: bool = True) -> None:
        """Send the actions; ask before a cancel or a drain."""
        if not actions or not self._allowed():
            return
        first = actions[0]
        what = f"{len(actions)} requests" if len(actions) > 1 else first.id or "the daemon"
        match first.verb, first.value:
            case Verb.CANCEL, _:
                ids = {action.id for action in actions}
                names = {row.client or "unnamed" for row in self.host.view().state.alive if row.id in ids}
                whose = f" ({', '.join(sorted(names))})" if names else ""
                question, detail = "Cancel", f"Its client{whose} gets an error. This cannot be undone."
            case Verb.DRAIN, _:
                question, detail = "Drain", "Queued requests are served, new ones are rejected."
            case Verb.BACKEND, "drain":
                question, detail = "Drain", "It finishes its requests and gets no new ones."
            case _:
                asks, question, detail = False, "", ""
        if asks:
            self._ask(Confirm(f"{question} {what}?", detail), lambda yes: actions)
        else:
            self.host.ask(*actions)

    def _alive(self, otherwise: str) -> list[QueuedRequest | RunningRequest]:
        return self._fit((QueuedRequest, RunningRequest), otherwise)

    def _queued(self) -> list[QueuedRequest]:
        return self._fit((QueuedRequest,), "only queued requests can be moved")

    def _fit(self, kinds: tuple[type, ...], otherwise: str) -> list[Any]:
        """Return the chosen rows of these kinds; if there are none, say why nothing happens."""
        table = self.table
        rows = [row for row in table.chosen if isinstance(row, kinds)] if table is not None else []
        if rows or table is None:
            why = "" if rows else NO_ROWS
        elif table.panel == "sessions":
            why = NO_REQUEST
        elif table.chosen:
            why = otherwise
        else:
            why = f"{table.left} {self._fate(table.left)}: nothing was done" if table.left else NO_ROW
            if table.marks:
                table.unchoose()
        if why:
            self.app.notify(why, severity="warning", timeout=3)
        return rows

    def _fate(self, ident: str) -> str:
        """Say what has become of a request that is not in its table any more."""
        state = self.host.view().state
        if any(row.id == ident for row in state.running):
            return "has started"
        return "is not in this list" if any(row.id == ident for row in state.queue) else "has ended"


def _policies(snapshot: Snapshot, outlook: Sequence[PolicyOutlook]) -> list[tuple[str, str]]:
    """Return the policies, what each does, and when the median queued request would start under it."""
    coming, rows = {each.policy: each for each in outlook}, []
    for name, summary in zip_longest(snapshot.policies, snapshot.summaries, fillvalue=""):
        text, then = name, coming.get(name)
        if then is not None:
            now = coming.get(snapshot.policy, then)
            starts = _median_start("S", then.short_s, now.short_s) + _median_start(
                "L", then.long_s, now.long_s
            )
            text = f"{name:<12} {starts}{' before any cut' if then.cuts and starts else ''}"
        rows.append((name, f"{text.rstrip()}\n  {summary}".rstrip()))
    return rows


def _median_start(letter: str, at_s: float | None, now_s: float | None) -> str:
    """When the median request of a class would start, and how much sooner or later than now."""
    if at_s is None:
        return ""
    more_s = 0.0 if now_s is None else at_s - now_s
    change = f"({'+' if more_s > 0 else '−'}{duration(abs(more_s))})" if abs(more_s) >= _SAME_S else ""
    return f"{letter} in {duration(at_s):<6} {change:<10}"
