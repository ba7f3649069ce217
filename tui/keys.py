"""Every key of the dashboard: the table behind the bindings of all screens, help, footer and commands."""

from dataclasses import dataclass

from textual.binding import Binding

from clairvoyant_cli.state.actions import COMMANDS, Verb


@dataclass(frozen=True, slots=True)
class Key:
    """`keys` are in Textual's notation. `action` is empty for a key that Textual binds; the app's begin with
    `app.`, the others are the screen's. `hint` is the word in the footer, `shown` the key as it is written.
    `changes`: it asks the daemon for something. `on` is what has to be chosen for it: "rows" a table, "row" a
    row of it, "alive" a request that waits or runs, "queued" one that waits.
    """

    keys: str
    action: str
    help: str
    hint: str = ""
    shown: str = ""
    changes: bool = False
    on: str = ""

    @property
    def label(self) -> str:
        return self.shown or self.keys.split(",")[0]

    @property
    def name(self) -> str:
        return self.action.partition("(")[0].removeprefix("app.")

    @property
    def binding(self) -> Binding:
        return Binding(self.keys, self.action, self.help, show=False, id=self.name)


def _key(verb: Verb, action: str = "", help: str = "", and_so: str = "", on: str = "") -> Key:  # noqa: A002
    of = COMMANDS[verb]
    return Key(of.key, action or verb, (help or of.help) + and_so, of.hint, changes=True, on=on)


MOVES = (  # the keys that move the cursor, or scroll a page
    Key("down,j", "move(1)", "Down and up; also the arrows and the wheel.", "choose", "j k", on="rows"),
    Key("up,k", "move(-1)", "", on="rows"),
    Key("ctrl+d", "move(0.5, 'page')", "Half a page down and up.", shown="^D ^U", on="rows"),
    Key("ctrl+u", "move(-0.5, 'page')", "", on="rows"),
    Key("pagedown,ctrl+f", "move(1, 'page')", "A page down and up; also PgDn, PgUp.", "", "^F ^B", on="rows"),
    Key("pageup,ctrl+b", "move(-1, 'page')", "", on="rows"),
    Key("home,g", "move(-1, 'all')", "First and last row; also gg, Home and End.", shown="g G", on="rows"),
    Key("end,G", "move(1, 'all')", "", on="rows"),
)
EVERYWHERE = (  # the keys that every page has too
    Key("colon", "app.command", "Type a command, such as `tau 60`; Tab completes it.", "command", ":"),
    Key("question_mark,f1", "app.help", "Show this help.", "help", "?"),
    Key("ctrl+l", "app.repaint", "Draw the whole screen again.", shown="^L"),
    Key("ctrl+z", "app.suspend_process", "Suspend; `fg` comes back.", shown="^Z"),
)
GROUPS = {  # the keys under each heading of the help; one without a help text is named in that of another
    "Chosen request, of the focused table only": (
        Key("enter", "detail", "Show it: prediction, place in the queue, history.", "why", "⏎", on="row"),
        _key(Verb.CANCEL, and_so=" Asks first.", on="alive"),
        Key("ctrl+k", "cancel_now", "Cancel without asking.", shown="^K", changes=True, on="alive"),
        _key(Verb.PROMOTE, on="queued"),
        _key(Verb.HOLD, and_so=" Release it if it is held.", on="queued"),
        Key("plus,equals_sign", "priority(-1)", "Raise the priority.", shown="+", changes=True, on="queued"),
        Key("minus", "priority(1)", "Lower the priority.", shown="-", changes=True, on="queued"),
        _key(Verb.URGENCY, on="alive"),
        Key("space", "mark", "Mark it; the keys above act on all marked ones.", shown="space", on="rows"),
        Key("y", "copy", "Copy the id.", on="row"),
    ),
    "Daemon": (
        Key("u", "undo", "Undo the last action; a cancelled request stays cancelled.", changes=True),
        _key(Verb.PAUSE, and_so=" Resume if paused."),
        _key(Verb.DRAIN, and_so=" Asks first. Resume if draining."),
        _key(Verb.BACKEND, "servers", "Drain a server, or bring it up."),
        _key(Verb.POLICY),
        _key(Verb.TAU, help="Set tau, the starvation timeout."),
    ),
    "View": (
        Key("slash", "filter", "Filter: all words must match, !word must not.", "filter", "/", on="rows"),
        Key("escape", "clear", "Leave the past or the large view; clear marks, filter, cursor.", shown="Esc"),
        Key("s", "sort", "Choose the column to sort by; again to reverse.", "sort", on="rows"),
        Key("p", "app.freeze", "Freeze the display; the daemon keeps running.", "freeze"),
        Key("left_square_bracket", "app.scrub(-5)", "Go back and forward 5 s, up to an hour.", shown="[ ]"),
        Key("right_square_bracket", "app.scrub(5)", ""),
        Key(
            "left_curly_bracket",
            "app.scrub(-60)",
            "By a minute; `:at 14:05` goes to a time.",
            shown="{ }",
        ),
        Key("right_curly_bracket", "app.scrub(60)", ""),
        Key("c", "app.clients", "Show the clients: their requests and limits."),
        Key("w", "app.went_wrong", "Show what went wrong: failures, refusals, outages, starts by tau."),
        Key("N", "app.last_night", "Show the last 24 hours: outages, load, waiting, gain."),
        Key("S", "app.save_screen", "Save the screen as SVG in the working directory."),
        Key("z", "maximise", "Maximise the focused panel, or restore it.", "zoom"),
        Key("v", "app.prompts", "Show prompts and answers, if the daemon sends them."),
    ),
    "Navigation": (
        *MOVES,
        Key(",".join("123456789"), "", "Go to a panel; there again, hide it.", shown="1-9"),
        Key("a", "go('sessions')", "Go to the sessions of agents."),
        Key("left,h", "deck(-1)", "Previous and next panel of the deck; also the arrows.", shown="h l"),
        Key("right,l", "deck(1)", ""),
        Key("tab", "", "Next panel; Shift-Tab for the previous one.", shown="Tab"),
        *EVERYWHERE,
        Key("q,ctrl+q,ctrl+c", "app.quit", "Close a page; quit. The daemon keeps running.", "quit"),
    ),
}
KEYS = tuple(key for keys in GROUPS.values() for key in keys)
ON_REQUEST = tuple(key for key in KEYS if key.on in ("alive", "queued") or key.name == "copy")
