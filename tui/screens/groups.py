"""The page of the groups: who has what, by client, model and backend, and what can be done to all of one."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen

from clairvoyant_cli.state.snapshot import GroupState
from tui.actions import Actions
from tui.panels.groups import KINDS, grid
from tui.styled_text import Line
from tui.view_state import ViewState
from tui.widgets.table import Table

_KEYS = (
    ("⏎", "show"),
    ("h", "hold"),
    ("r", "release"),
    ("+", "priority"),
    ("d", "drain"),
    ("L U", "load"),
    ("→", "by"),
)


class GroupTable(Table[GroupState]):
    """Groups of one kind at a time; its rule names the kinds."""

    def __init__(self) -> None:
        super().__init__("groups", grid(KINDS[0]))
        self.kind = KINDS[0]

    def turn(self, step: int) -> None:
        """Show the next kind."""
        self.kind = KINDS[(KINDS.index(self.kind) + step) % len(KINDS)]
        self.grid = grid(self.kind)
        self.action_edge(0)
        if self.view is not None:
            self.show(self.view)

    def rule(self, view: ViewState, width: int) -> Line:
        """Name the kinds, and the last hour."""
        line = Line("─", "track")
        for kind in KINDS:
            line.add("▸" if kind == self.kind else " ", "accent")
            line.add(f"by {kind} ", "strong" if kind == self.kind else "faint")
        return line.add("─" * max(0, width - line.width), "track")


class Groups(ModalScreen[tuple[str, str] | None]):
    """Closes with the kind and name of the group whose requests are to be shown."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,g", "leave", "Close"),
        Binding("enter", "choose", "Show its requests"),
        Binding("right,tab", "turn(1)", "The next kind"),
        Binding("left,shift+tab", "turn(-1)", "The kind before"),
        Binding("h", "hold", "Hold all"),
        Binding("r", "release", "Release all"),
        Binding("plus,equals_sign,minus", "priority", "Priority of all"),
        Binding("d", "drain", "Take nothing new, or take it again"),
        Binding("L", "model('load')", "Load the model"),
        Binding("U", "model('unload')", "Unload the model"),
    ]

    def __init__(self, steering: Actions) -> None:
        super().__init__()
        self._steering = steering

    def compose(self) -> ComposeResult:
        """Lay out the page."""
        with Vertical(classes="page groups") as page:
            page.border_title = "groups"
            page.border_subtitle = "  ".join(f"{key} {what}" for key, what in _KEYS) + "  Esc"
            yield GroupTable()

    def on_mount(self) -> None:
        """Stand in the table."""
        self.table.focus()

    @property
    def table(self) -> GroupTable:
        """The table."""
        return self.query_one(GroupTable)

    def show(self, view: ViewState) -> None:
        """Draw the groups as they are now."""
        self.table.show(view)

    def on_table_opened(self, event: Table.Opened) -> None:
        """Show the requests of what was double-clicked."""
        self.action_choose()

    def action_choose(self) -> None:
        """Close, and show the requests of the group."""
        group = self.table.current
        if group is not None:
            self.dismiss((group.kind, group.name))

    def action_turn(self, step: int) -> None:
        """Show the groups of another kind."""
        self.table.turn(step)

    def action_hold(self) -> None:
        """Hold all that waits of the group."""
        self._steering.hold_group(self.table.current, held=True)

    def action_release(self) -> None:
        """Release all that is held of the group."""
        self._steering.hold_group(self.table.current, held=False)

    def action_priority(self) -> None:
        """Ask for the priority of all that waits of the group."""
        self._steering.prioritise_group(self.table.current)

    def action_drain(self) -> None:
        """Take nothing new of the group, or take it again."""
        self._steering.drain_group(self.table.current)

    def action_model(self, deed: str) -> None:
        """Have the model loaded, or unloaded."""
        self._steering.keep_model(self.table.current, deed)

    def action_leave(self) -> None:
        """Close."""
        self.dismiss(None)
