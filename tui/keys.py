"""Every key of the dashboard, in one table: the bindings, the help screen, the footer and the command
palette all read it, so none can lack a key that another has.
"""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Key:
    """`keys` are Textual's names, the first one is shown. `action` is empty for a key that a table or Textual
    itself binds; those of the app begin with `app.`, the others are the board's. `hint` is the word in the
    footer. `changes`: it asks the daemon to do something.
    """

    keys: str
    action: str
    help: str
    hint: str = ""
    shown: str = ""
    changes: bool = False

    @property
    def label(self) -> str:
        """How the key is written on screen."""
        return self.shown or self.keys.split(",")[0]


@dataclass(frozen=True, slots=True)
class Group:
    """Keys under one heading of the help."""

    name: str
    keys: tuple[Key, ...]


GROUPS = (
    Group(
        "The chosen request",
        (
            Key("enter", "detail", "Why it is where it is: prediction, key, history", "why", "⏎"),
            Key("x", "cancel", "Cancel it (asks first)", "cancel", changes=True),
            Key("ctrl+k", "cancel_now", "Cancel it without asking", shown="^K", changes=True),
            Key("t", "promote", "Send it to the top of the queue", "to top", changes=True),
            Key("h", "hold", "Hold it, or release it", "hold", changes=True),
            Key("plus,equals_sign", "priority(-1)", "Raise its priority", shown="+", changes=True),
            Key("minus", "priority(1)", "Lower its priority", shown="-", changes=True),
            Key("U", "urgency", "Say how urgent it is: level 0 to 4", changes=True),
            Key("space", "mark", "Mark it; the keys above act on all marked", shown="space"),
            Key("y", "copy", "Copy its id"),
        ),
    ),
    Group(
        "The daemon",
        (
            Key("P", "pause", "Pause dispatching, or resume", "pause", changes=True),
            Key("d", "drain", "Drain: finish what is queued, take nothing new; or resume", changes=True),
            Key("b", "servers", "The servers: drain one, or bring it up", changes=True),
            Key("m", "policy", "Change the ordering policy", "policy", changes=True),
            Key(
                "u",
                "tau",
                "Change tau, the longest wait before a request goes next",
                "tau",
                "u",
                changes=True,
            ),
        ),
    ),
    Group(
        "The view",
        (
            Key("slash", "filter", "Filter: all words must match, !word must not", "filter", "/"),
            Key("escape", "clear", "Clear the filter and the marks, leave the large view", shown="Esc"),
            Key("s", "sort(1)", "Sort by the next column", "sort"),
            Key("o", "sort_by", "Sort by the column of a letter, again for the other way round"),
            Key("C", "columns", "Show a column, or show it no more"),
            Key("S", "reverse", "Reverse the order"),
            Key("less_than_sign", "sort(-1)", "Sort by the column before", shown="<"),
            Key("greater_than_sign", "sort(1)", "Sort by the column after", shown=">"),
            Key("f", "app.ghost", "What each would have in order of arrival, beside what it has"),
            Key("F", "follow", "Let the cursor stay with its request, until it is moved"),
            Key("p", "app.freeze", "Freeze the display; the daemon works on", "freeze"),
            Key(
                "left_square_bracket",
                "app.scrub(-5)",
                "Back by 5 s, up to an hour, seen by top or not",
                shown="[",
            ),
            Key("right_square_bracket", "app.scrub(5)", "Forth again by 5 s; } by a minute", shown="]"),
            Key("left_curly_bracket", "app.scrub(-60)", "Back by a minute", shown="{"),
            Key("right_curly_bracket", "app.scrub(60)", "Forth by a minute", shown="}"),
            Key("c", "app.clients", "The clients: what each has, and what it may"),
            Key("z", "maximise", "Give the focused panel the whole screen, or take it back", "zoom"),
            Key("r", "app.interval", "Draw less often; after the slowest, as often as the daemon speaks"),
            Key("v", "app.prompts", "Show prompts, where the daemon allows it"),
            Key("T", "app.theme", "Change the theme"),
            Key("E", "export", "Export to CSV or JSON"),
        ),
    ),
    Group(
        "Around",
        (
            Key("1,2,3,4,5,6,7,8,9", "", "Go to a panel", shown="1-9"),
            Key("left", "deck(-1)", "The panel before, in the deck of a small terminal", shown="←"),
            Key("right", "deck(1)", "The panel after", shown="→"),
            Key("l", "go('log')", "Go to the log"),
            Key("tab", "", "The next panel; Shift-Tab the one before", shown="Tab"),
            Key("down,j", "", "Down, up: also k, the arrows, the wheel", shown="j k"),
            Key("pagedown", "", "A page down; PgUp a page up", shown="PgDn"),
            Key("home", "", "The first row; G or End the last", shown="Home"),
            Key("question_mark,f1", "app.help", "This help", "help", "?"),
            Key("ctrl+p", "", "The command palette", shown="^P"),
            Key("q,ctrl+q,ctrl+c", "app.quit", "Leave; the daemon works on", "quit"),
        ),
    ),
)

KEYS = tuple(key for group in GROUPS for key in group.keys)


def rebound(text: str) -> Iterator[tuple[Key, str]]:
    """Yield the keys that are to have another, given as `promote=Y drain=D`: the action's name, and the key
    as Textual calls it. What names no action is left out.
    """
    named = {key.action.partition("(")[0].removeprefix("app."): key for key in KEYS if key.action}
    for word in text.split():
        action, _, other = word.partition("=")
        if action in named and other:
            yield named[action], other
