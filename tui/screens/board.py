"""The main screen: all panels, their layout, and the keys that change the view."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from clairvoyant_cli.state.actions import COMMANDS
from clairvoyant_cli.state.snapshot import QueuedRequest, RunningRequest
from tui.actions import NO_REQUEST, NO_ROW, NO_ROWS, OperatorScreen
from tui.formatting import CLASS_LETTER, count
from tui.history import RECENTLY_S
from tui.keys import KEYS, MOVES
from tui.layout import DECK, PANELS, SizeHint, has_deck, plan
from tui.palette import THEMES
from tui.panels import hardware, header, models, plots, sessions, stats, tau
from tui.panels.detail import detail
from tui.panels.requests import LEVELS, QUEUE, RECENT, RUNNING
from tui.panels.sessions import SESSIONS
from tui.screens.dialogs import Choose, Prompt
from tui.screens.pages import PageScreen
from tui.styled_text import Line
from tui.view_state import ViewState
from tui.widgets.canvas import Canvas, Panel, key_of
from tui.widgets.table import Table

_NAMED = {
    key.name: key.action
    for key in reversed(KEYS)
    if key.action and key.name not in COMMANDS and key not in MOVES
}
"""The actions of keys that can be typed, besides the verbs of `clairvoyant act`."""

_THEMES = tuple(theme.name for theme in THEMES)
_QUEUE_STEP, _MOST_ROWS = 4, 100


class Footer(Canvas):
    """The hints; a click does what the key does."""

    async def on_click(self, event: events.Click) -> None:
        if self.view is not None and (action := header.action_at(self.view, event.x)):
            await self.app.run_action(action, self.screen)


class BoardScreen(OperatorScreen):
    BINDINGS: ClassVar[list[BindingType]] = [
        *(key.binding for key in KEYS if key.action),
        *(Binding(key_of(name), f"go('{name}')", f"Go to {name}", show=False) for name in PANELS[:-1]),
    ]

    _wish = SizeHint()

    def compose(self) -> ComposeResult:
        yield from (
            Canvas("header", header.header),
            Table("running", RUNNING, _running_facts),
            Table("queue", QUEUE, _queue_facts),
            Panel("tau", tau.body, tau.facts),
            Panel("gpu", hardware.body, hardware.facts, of_daemon=False),
            Panel("models", models.body, models.facts),
            Panel("stats", stats.body, stats.facts),
            Table("sessions", SESSIONS, sessions.facts),
            Table("recent", RECENT),
            Panel("plots", plots.plots, of=plots.of),
            Panel("log", tau.log),
            Panel("graph", plots.graph, lambda view: Line(" last 10 min ", "soft"), of=plots.of),
            Footer("footer", header.footer),
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
            if canvas.display and not isinstance(canvas, Footer):
                canvas.show(view)
        self._hint(view)

    def _hint(self, view: ViewState | None = None) -> None:
        """Draw the footer: it offers what the keys can do with what is chosen now."""
        offers, table = set(), self.table
        if table is not None:
            rows, queued = table.chosen, [row for row in table.chosen if isinstance(row, QueuedRequest)]
            offers = {"rows", *["row"] * (bool(rows) and table.panel != "sessions")}
            offers |= (
                {"alive"} if any(isinstance(row, QueuedRequest | RunningRequest) for row in rows) else set()
            )
            offers |= {"queued", *["held"] * all(row.held for row in queued)} if queued else set()
        self.query_one(Footer).show(replace(view or self.host.view(), offers=frozenset(offers)))

    def on_descendant_focus(self) -> None:
        self._hint()

    def on_resize(self) -> None:
        self._arrange(self._wish)

    def _arrange(self, wish: SizeHint) -> None:
        """Place the panels after a change of size or of what is shown."""
        self._wish = wish
        boxes = plan(*self.size, wish)
        deck = wish.in_deck if has_deck(*self.size) and not wish.maximised else ()
        for canvas in self.query(Canvas):
            canvas.display = canvas.id in boxes
            if box := boxes.get(canvas.id or ""):
                canvas.styles.offset = box.offset
                canvas.styles.width, canvas.styles.height = box.size
            if isinstance(canvas, Panel):
                canvas.deck = deck if canvas.panel in deck else ()
        if self.focused is not None and not self.focused.display:
            self._focus("queue")
        self.call_after_refresh(self.host.draw)

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
        if name == "sessions" and not wish.sessions:
            self.notify("no session of an agent yet", timeout=3)
            return
        wish = replace(wish, maximised=wish.maximised and name)
        if name in DECK and has_deck(*self.size):
            wish = replace(wish, deck=name)
            self.host.remember(deck=name)
        if wish != self._wish:
            self._arrange(wish)
        self._focus(name)

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
            page = PageScreen(ident, lambda view, width, height: detail(view, ident, width), narrow=True)
            self.app.push_screen(page)

    # -- tables -----------------------------------------------------------------------------------------

    def action_sort(self) -> None:
        if (table := self._rows()) is None:
            return

        def sort(name: str | None) -> None:
            if name is not None:
                table.sort_by(name)
                self._keep(table)

        names = [(each.name, each.label) for each in table.grid.columns if each.sort]
        self.app.push_screen(Choose("Sort by", names, [table.sort.lstrip("-")], letters=True), sort)

    def action_columns(self) -> None:
        """Ask for columns to show or hide, until Escape."""
        if (table := self._rows()) is None:
            return

        def turn(name: str | None) -> None:
            if name is not None:
                table.hidden ^= {name}
                table.redraw()
                self._keep(table)
                self.action_columns()

        names = [(each.name, each.label) for each in table.grid.columns]
        shown = [name for name, _ in names if name not in table.hidden]
        self.app.push_screen(Choose(f"Columns of {table.panel}", names, shown, letters=True), turn)

    def _keep(self, table: Table) -> None:
        hidden = " ".join(sorted(table.hidden))
        self.host.remember(**{f"{table.panel}.sort": table.sort, f"{table.panel}.hidden": hidden})

    def _recall(self) -> None:
        liked = self.host.likes
        for table in self.query(Table):
            table.sort = liked.get(f"{table.panel}.sort", "")
            table.hidden = set(liked.get(f"{table.panel}.hidden", "").split())
        if liked.get("deck") in DECK:
            self._wish = replace(self._wish, deck=liked["deck"])

    def action_mark(self) -> None:
        if (table := self._rows()) is not None:
            table.mark()
            self._hint()

    def action_copy(self) -> None:
        table = self._rows()
        if table is not None and table.current is not None:
            self.app.copy_to_clipboard(table.current.id)
            self.notify(f"copied {table.current.id}", timeout=2)
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

    # -- what is typed ----------------------------------------------------------------------------------

    def run_command(self, text: str) -> str:
        """Do what is typed: a verb of `clairvoyant act`, or the name of a key's action."""
        match text.split():
            case ["go", name] if name in PANELS:
                self.action_go(name)
            case ["theme", name] if name in _THEMES:
                self.app.theme = name
            case ["go" | "theme" as name, *_]:
                return f"give {name} {'|'.join(self.words_after(name))}"
            case ["q"]:
                self.app.exit()
            case [name] if name in _NAMED:
                self.call_next(self.run_action, _NAMED[name])
            case _:
                return super().run_command(text)
        return ""

    def words_after(self, *before: str) -> Sequence[str]:
        if before in (("go",), ("theme",)):
            return PANELS if before == ("go",) else _THEMES
        own = () if before else ("go", "theme", *_NAMED)
        return [*super().words_after(*before), *own]


def _with_rows(wish: SizeHint, view: ViewState) -> SizeHint:
    """Return a wish with the rows that panels need; the queue keeps those of its last minute."""
    state = view.snapshot
    if state is None:
        return wish
    longest = max([state.waits, *(each.waiting for each in view.history.last(RECENTLY_S))])
    return replace(
        wish,
        slots=sum(backend.slots for backend in state.backends),
        queue=min(_QUEUE_STEP * -(-max(1, longest) // _QUEUE_STEP), _MOST_ROWS),
        gpu=hardware.rows(view),
        models=len(models.body(view, _MOST_ROWS, _MOST_ROWS)),
        sessions=len(state.sessions.listed),
    )


def _running_facts(view: ViewState) -> Line:
    rate = sum(job.tokens_per_s or 0.0 for job in view.state.running)
    return Line(f" {rate:.0f}", "strong").add(" tok/s ", "soft") if rate else Line()


def _queue_facts(view: ViewState) -> Line:
    """The trend of the queue, and the requests of each class, and of each urgency level if it is heeded."""
    state = view.state
    if not state.queue:
        return Line()
    line = Line(" ").join(plots.trend(view)).add(" ")
    for name, letter in CLASS_LETTER.items():
        waiting = getattr(state.waiting, name)
        line.add(f"{count(waiting)}{letter} " if waiting else "", name)
    levels = [each for each in state.urgency.levels if each.waiting and state.urgency.heeded]
    line.add("level " if levels else "", "faint")
    for each in levels:
        line.add(f"{each.level}", LEVELS[each.level][1]).add(f":{count(each.waiting)} ", "soft")
    return line
