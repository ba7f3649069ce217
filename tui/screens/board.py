"""The main screen: all panels, their layout, and the operator's keys and commands."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any, ClassVar, Protocol

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen

from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.state.actions import AUTO, COMMANDS, TARGETS, Action, Verb, arguments_of
from clairvoyant_cli.state.snapshot import (
    QueuedRequest,
    RunningRequest,
    Snapshot,
)
from tui.board_panels import BY_NAME, PANELS, RECORDS
from tui.keys import KEYS, MOVES
from tui.layout import DECK, LEAST_WIDTH, SizeHint, has_deck, plan
from tui.palette import THEMES
from tui.panels import header
from tui.panels.detail import detail
from tui.panels.requests import LEVELS
from tui.screens.dialogs import AnswerT, Choose, Confirm, Dialog, Prompt
from tui.screens.pages import PageScreen
from tui.styled_text import Line
from tui.table_layout import Grid
from tui.view_state import ViewState
from tui.widgets.canvas import Canvas, Panel
from tui.widgets.table import Table

_NAMED = {  # the actions of keys that can be typed, besides the verbs of `clairvoyant act`
    key.name: key.action
    for key in reversed(KEYS)
    if key.action and key.name not in COMMANDS and key not in MOVES
}
_NARROW = f"narrow: top needs {LEAST_WIDTH} columns"
NO_REQUEST = "this key is for requests"
NO_ROWS = "this panel has no rows: 1 goes to the running requests, 2 to the queue"
NO_ROW = "no request is chosen: j or k chooses one"
_THEMES = tuple(theme.name for theme in THEMES)


class Host(Protocol):
    """What the screen needs of `tui.app.Top`."""

    preferences: Mapping[str, str]

    def view(self) -> ViewState: ...
    def draw(self) -> None: ...
    def ask(self, *actions: Action) -> None: ...
    def expect(self, field: str, ident: str | None) -> Any: ...
    def undo(self) -> None: ...
    def seek(self, time_of_day: str) -> str: ...
    def remember(self, **liked: str) -> None: ...


class BoardScreen(Screen[None]):
    """A key acts on the chosen rows of the table that has the focus, as the screen shows them, and on nothing
    else; on none without a daemon, or under `--readonly`.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        *(key.binding for key in KEYS if key.action),
        *(
            Binding(each.key, f"turn('{each.name}')", f"Go to {each.name}", show=False)
            for each in RECORDS
            if each.key.isdigit()
        ),
    ]

    def __init__(self, host: Host) -> None:
        super().__init__(id="_default")
        self.host = host
        self._wish = SizeHint()
        self._narrow = False

    @property
    def table(self) -> Table | None:
        """The table that has the focus, if it is shown."""
        focused = self.focused
        return focused if isinstance(focused, Table) and focused.display else None

    def compose(self) -> ComposeResult:
        yield from (
            Canvas("narrow", lambda view, width, height: [Line(_NARROW, "warn")]),
            Canvas("header", header.header),
            *(Table(each, each.body) if isinstance(each.body, Grid) else Panel(each) for each in RECORDS),
            Canvas("footer", header.footer),
        )

    def on_mount(self) -> None:
        self._recall()
        self._arrange(self._wish)
        self._focus("queue")

    def show(self, view: ViewState) -> None:
        """Draw every visible panel; give each the rows that it needs."""
        wish = _with_rows(self._wish, view)
        if wish != self._wish:
            self._arrange(wish)
        for canvas in self.query(Canvas):
            if canvas.display and canvas.id != "footer":
                canvas.show(view)
        self._hint(view)

    def _hint(self, view: ViewState | None = None) -> None:
        """Draw the footer: it offers what the keys can do with what is chosen now."""
        offers, table = set(), self.table
        if table is not None:
            rows, queued = table.chosen, [row for row in table.chosen if isinstance(row, QueuedRequest)]
            offers = {"rows", *["row"] * (bool(rows) and table.panel != "sessions")}
            offers |= {"alive" for row in rows if isinstance(row, QueuedRequest | RunningRequest)}
            offers |= {"queued", *["held"] * all(row.held for row in queued)} if queued else set()
        self.query_one("#footer", Canvas).show(replace(view or self.host.view(), offers=frozenset(offers)))

    def on_descendant_focus(self) -> None:
        self._hint()

    def on_resize(self) -> None:
        self._arrange(self._wish)

    def _arrange(self, wish: SizeHint) -> None:
        """Place the panels after a change of size or of what is shown."""
        self._wish = wish
        boxes = plan(*self.size, wish)
        deck = wish.in_deck if self._has_deck and not wish.maximised else ()
        for canvas in self.query(Canvas):
            canvas.display = canvas.id in boxes
            if box := boxes.get(canvas.id or ""):
                canvas.styles.offset = box.offset
                canvas.styles.width, canvas.styles.height = box.size
            if isinstance(canvas, Panel):
                canvas.deck = deck if canvas.panel in deck else ()
        was_narrow, self._narrow = self._narrow, "narrow" in boxes
        hidden = self.focused is not None and not self.focused.display
        if not self._narrow and (was_narrow or hidden):
            self._focus("queue" if "queue" in boxes else "running")
        self.call_after_refresh(self.host.draw)

    @property
    def _has_deck(self) -> bool:
        return has_deck(*self.size)

    def _focus(self, name: str) -> None:
        """Focus a panel at once: `Widget.focus` does so later, and a key typed meanwhile acts on another."""
        self.set_focus(self.query_one(f"#{name}"))

    # -- looking around ---------------------------------------------------------------------------------

    def _rows(self) -> Table | None:
        if self.table is None:
            self.notify(NO_ROWS, severity="warning", timeout=3)
        return self.table

    def action_move(self, step: float, unit: str = "row") -> None:
        if (table := self._rows()) is not None:
            table.move(step, unit)
            self._hint()

    def action_go(self, name: str) -> None:
        wish = self._wish
        if not wish.has(name):
            self.notify(BY_NAME[name].none, timeout=3)
            return
        wish = replace(wish, maximised=wish.maximised and name, hidden=wish.hidden - {name})
        if name in DECK and self._has_deck:
            wish = replace(wish, deck=name)
            self.host.remember(deck=name)
        if wish != self._wish:
            self._arrange(wish)
        self._focus(name)

    def action_turn(self, name: str) -> None:
        """Go to a panel; if it has the focus, hide it. The queue stays."""
        wish, focused = self._wish, self.focused
        goes = not isinstance(focused, Panel) or focused.panel != name or name == "queue"
        if goes or wish.maximised:
            self.action_go(name)
        else:
            self._arrange(replace(wish, hidden=wish.hidden | {name}))
        self.host.remember(hidden=" ".join(sorted(self._wish.hidden)))

    def action_deck(self, step: int) -> None:
        deck, name = self._wish.in_deck, self._wish.deck
        at = deck.index(name) if name in deck else 0
        self.action_go(deck[(at + step) % len(deck)])

    def action_maximise(self) -> None:
        wish, focused = self._wish, self.focused
        name = focused.panel if isinstance(focused, Panel) else "queue"
        self._arrange(replace(wish, maximised="" if wish.maximised else name))

    def action_detail(self) -> None:
        """Open the page of the request under the cursor, also of one that has left; else of the first one."""
        if (table := self._rows()) is None:
            return
        if not table.left and table.current is None:
            table.move(1)
        if table.panel == "sessions":
            self.notify(NO_REQUEST, severity="warning", timeout=3)
        elif ident := table.left or (table.current.id if table.current is not None else ""):
            self.app.push_screen(PageScreen.of_request(ident, lambda view, w, h: detail(view, ident, w)))

    # -- tables -----------------------------------------------------------------------------------------

    def action_sort(self) -> None:
        if (table := self._rows()) is None:
            return

        def sort(name: str | None) -> None:
            if name is not None:
                table.sort_by(name)
                self.host.remember(**{f"{table.panel}.sort": table.sort})

        names = [(each.name, each.title.strip() or each.name) for each in table.grid.columns if each.sort]
        self.app.push_screen(Choose("Sort by", names, table.sort.lstrip("-"), narrow=True), sort)

    def _recall(self) -> None:
        liked = self.host.preferences
        for table in self.query(Table):
            table.sort = liked.get(f"{table.panel}.sort", "")
        if liked.get("deck") in DECK:
            self._wish = replace(self._wish, deck=liked["deck"])
        self._wish = replace(self._wish, hidden=frozenset(liked.get("hidden", "").split()) - {"queue"})

    def action_mark(self) -> None:
        if (table := self._rows()) is not None:
            table.mark()
            self._hint()

    def action_copy(self) -> None:
        table = None if self._about else self._rows()
        if ident := self._about or (table.current.id if table is not None and table.current else ""):
            self.app.copy_to_clipboard(ident)
            self.notify(f"copied {ident}", timeout=2)
        elif table is not None:
            self.notify(NO_ROW, severity="warning", timeout=3)

    def action_filter(self) -> None:
        """Open the filter's line: Enter keeps the filter, Escape drops it."""
        if (table := self._rows()) is None:
            return

        def select(text: str | None) -> None:
            table.reorder(table.sort, text or "")
            self.host.draw()

        hint = "filter: words that must match, !words that must not"
        self.app.push_screen(Prompt("/", table.filter, typed=select, hint=hint), select)

    def action_clear(self) -> None:
        """Come back from the past; else clear marks and filter, leave the large view, or clear the cursor."""
        table, wish = self.table, self._wish
        if self.host.view().past_s is not None:
            self.call_next(self.run_action, "app.freeze")
        elif table is not None and (table.marks or table.filter.strip()):
            table.marks.clear()
            table.reorder(table.sort, "")
        elif wish.maximised:
            self._arrange(replace(wish, maximised=""))
        elif table is not None:
            table.unchoose()
        self.host.draw()

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
            dialog = Choose(f"Urgency of {whose}{heeded}", options, str(level))
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
            dialog = Choose("Policy", _policies(state), state.policy)
            self._ask(dialog, lambda name: [Action(Verb.POLICY, value=name)])

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
        """Do what is typed, a verb of `clairvoyant act` or the name of a key's action; say what is wrong."""
        match text.split():
            case ["go", name] if name in PANELS:
                self.action_go(name)
            case ["theme", name] if name in _THEMES:
                self.app.theme = name
            case ["at", time_of_day]:
                return self.host.seek(time_of_day)
            case ["go" | "theme" as name, *_]:
                return f"give {name} {'|'.join(self.words_after(name))}"
            case ["q"]:
                self.app.exit()
            case [name] if name in _NAMED:
                self.call_next(self.run_action, _NAMED[name])
            case [name, *words] if name in COMMANDS:
                return self._run_verb(Verb(name), words)
            case [name, *_]:
                return f"no command {name}: Tab lists them"
        return ""

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
            return [*dict.fromkeys((*COMMANDS, "at", "go", "theme", *_NAMED))]
        snapshot = self.host.view().state
        own = {"go": ("panel",), "theme": ("theme",)}
        fields = COMMANDS[Verb(before[0])].fields if before[0] in COMMANDS else own.get(before[0], ())
        if len(before) > len(fields):
            return []
        verb, field = before[0], fields[len(before) - 1]
        rows = snapshot.alive if verb in (Verb.CANCEL, Verb.URGENCY) else snapshot.queue
        models = {model.name for each in snapshot.backends for model in each.models}
        words: dict[str, Sequence[str]] = {
            "id": [row.id for row in rows],
            "panel": PANELS,
            "theme": _THEMES,
            "policy": snapshot.policies,
            "tau_s": [AUTO, "off"],
            "level": [str(level) for level, _ in enumerate(LEVELS)],
            "do": ["drain", "up", "remove"] if verb == Verb.BACKEND else ["load", "unload"],
            "name": {
                Verb.BACKEND: [each.name for each in snapshot.backends],
                Verb.INTERACTIVE: [each.name for each in snapshot.clients],
            }.get(Verb(verb) if verb in COMMANDS else Verb.MODEL, sorted(models)),
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

    @property
    def _about(self) -> str:
        """The id of the request whose page is open, "" if none is."""
        top = self.app.screen
        return top.about if isinstance(top, PageScreen) else ""

    def _alive(self, otherwise: str) -> list[QueuedRequest | RunningRequest]:
        return self._fit((QueuedRequest, RunningRequest), otherwise)

    def _queued(self) -> list[QueuedRequest]:
        return self._fit((QueuedRequest,), "only queued requests can be moved")

    def _fit(self, kinds: tuple[type, ...], otherwise: str) -> list[Any]:
        """Return the chosen rows of these kinds; if there are none, say why nothing happens. On the page of a
        request, that one is chosen.
        """
        table, about = self.table, self._about
        chosen = table.chosen if table is not None else []
        if about:
            chosen = [row for row in self.host.view().state.alive if row.id == about]
        rows = [row for row in chosen if isinstance(row, kinds)]
        if about and not rows:
            why = otherwise if chosen else f"{about} has ended: nothing was done"
        elif rows or table is None:
            why = "" if rows else NO_ROWS
        elif table.panel == "sessions":
            why = NO_REQUEST
        elif table.chosen:
            why = otherwise
        else:
            state, ident = self.host.view().state, table.left
            fates = {row.id: "is not in this list" for row in state.queue}
            fates |= {row.id: "has started" for row in state.running}
            why = f"{ident} {fates.get(ident, 'has ended')}: nothing was done" if ident else NO_ROW
            if table.marks:
                table.unchoose()
        if why:
            self.app.notify(why, severity="warning", timeout=3)
        return rows


def _policies(snapshot: Snapshot) -> list[tuple[str, str]]:
    """Return the policies and what each does; those that are for comparisons only `:policy` has."""
    listed = zip_longest(snapshot.policies, snapshot.summaries, fillvalue="")
    seldom = {*snapshot.seldom} - {snapshot.policy}
    return [(name, f"{name}\n  {summary}".rstrip()) for name, summary in listed if name not in seldom]


def _with_rows(wish: SizeHint, view: ViewState) -> SizeHint:
    """Return a wish with the rows that panels need."""
    rows = {each.name: each.rows(view) if each.rows else each.usual for each in RECORDS}
    return replace(wish, rows=rows) if view.snapshot else wish
