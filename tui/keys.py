"""Every key of the dashboard: the table behind bindings, help, footer and command palette."""

from collections.abc import Iterator
from dataclasses import dataclass

from clairvoyant_cli.state.actions import COMMANDS, Verb


@dataclass(frozen=True, slots=True)
class Key:
    """`keys` are in Textual's notation. `action` is empty for a key that a table or Textual binds; the app's
    begin with `app.`, the others are the board's. `hint` is the word in the footer, `shown` the key as it is
    written. `changes`: it asks the daemon for something.
    """

    keys: str
    action: str
    help: str
    hint: str = ""
    shown: str = ""
    changes: bool = False

    @property
    def label(self) -> str:
        """The key as it is written on screen."""
        return self.shown or self.keys.split(",")[0]


def _key(verb: Verb, action: str = "", help: str = "", and_so: str = "") -> Key:  # noqa: A002
    command = COMMANDS[verb]
    return Key(command.key, action or verb, (help or command.help) + and_so, command.hint, changes=True)


GROUPS = {
    "Selected request": (
        Key("enter", "detail", "Show the request: prediction, place in the queue, history.", "why", "⏎"),
        _key(Verb.CANCEL, and_so=" Asks first."),
        Key("ctrl+k", "cancel_now", "Cancel without asking.", shown="^K", changes=True),
        _key(Verb.PROMOTE),
        _key(Verb.HOLD, and_so=" Release it if it is held."),
        Key("plus,equals_sign", "priority(-1)", "Raise the priority.", shown="+", changes=True),
        Key("minus", "priority(1)", "Lower the priority.", shown="-", changes=True),
        _key(Verb.URGENCY),
        Key("space", "mark", "Mark a request; the keys above act on all marked ones.", shown="space"),
        Key("y", "copy", "Copy the id."),
    ),
    "Daemon": (
        _key(Verb.PAUSE, and_so=" Resume if paused."),
        _key(Verb.DRAIN, and_so=" Resume if draining."),
        _key(Verb.BACKEND, "servers", "Drain a server, or bring it up."),
        _key(Verb.POLICY),
        _key(Verb.TAU, help="Set tau, the starvation timeout."),
    ),
    "View": (
        Key("slash", "filter", "Filter: all words must match, !word must not.", "filter", "/"),
        Key("escape", "clear", "Clear the filter and the marks, or leave the large view.", shown="Esc"),
        Key("s", "sort(1)", "Sort by the next column.", "sort"),
        Key("o", "sort_by", "Choose the column to sort by; again to reverse."),
        Key("C", "columns", "Show or hide columns."),
        Key("S", "reverse", "Reverse the order."),
        Key("less_than_sign", "sort(-1)", "Sort by the previous column.", shown="<"),
        Key("greater_than_sign", "sort(1)", "Sort by the next column.", shown=">"),
        Key("f", "app.ghost", "Compare each place with first-come-first-served."),
        Key("F", "follow", "Keep the cursor on its request until it is moved."),
        Key("p", "app.freeze", "Freeze the display; the daemon keeps running.", "freeze"),
        Key("left_square_bracket", "app.scrub(-5)", "Go back 5 s, up to an hour.", shown="["),
        Key("right_square_bracket", "app.scrub(5)", "Go forward 5 s.", shown="]"),
        Key("left_curly_bracket", "app.scrub(-60)", "Go back a minute.", shown="{"),
        Key("right_curly_bracket", "app.scrub(60)", "Go forward a minute.", shown="}"),
        Key("c", "app.clients", "Show the clients: their requests and limits."),
        Key("z", "maximise", "Maximise the focused panel, or restore it.", "zoom"),
        Key("r", "app.interval", "Change the refresh interval."),
        Key("v", "app.prompts", "Show prompts and answers, if the daemon sends them."),
        Key("T", "app.theme", "Change the theme."),
        Key("E", "export", "Export to CSV or JSON."),
    ),
    "Navigation": (
        Key("1,2,3,4,5,6,7,8,9", "", "Go to a panel.", shown="1-9"),
        Key("a", "go('sessions')", "Go to the sessions of agents."),
        Key("left", "deck(-1)", "Previous panel of a small terminal.", shown="←"),
        Key("right", "deck(1)", "Next panel.", shown="→"),
        Key("l", "go('log')", "Go to the log."),
        Key("tab", "", "Next panel; Shift-Tab for the previous one.", shown="Tab"),
        Key("down,j", "", "Move down and up; also the arrows and the wheel.", shown="j k"),
        Key("pagedown", "", "Page down; PgUp for a page up.", shown="PgDn"),
        Key("home", "", "First row; G or End for the last.", shown="Home"),
        Key("question_mark,f1", "app.help", "Show this help.", "help", "?"),
        Key("ctrl+p", "", "Open the command palette.", shown="^P"),
        Key("q,ctrl+q,ctrl+c", "app.quit", "Quit; the daemon keeps running.", "quit"),
    ),
}
"""The keys under each heading of the help."""

KEYS = tuple(key for keys in GROUPS.values() for key in keys)


def rebound(text: str) -> Iterator[tuple[Key, str]]:
    """Yield the keys that are rebound by a text like `promote=Y drain=D`: the action's name, and the key in
    Textual's notation. Unknown actions are ignored.
    """
    named = {key.action.partition("(")[0].removeprefix("app."): key for key in KEYS if key.action}
    for word in text.split():
        action, _, other = word.partition("=")
        if action in named and other:
            yield named[action], other
