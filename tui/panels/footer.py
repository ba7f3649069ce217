"""Draws the footer: the last message or the main keys, and a lost connection."""

from operator import itemgetter

from tui.formatting import duration
from tui.keys import KEYS
from tui.styled_text import Line, ends, flow
from tui.view_state import LinkState, ViewState

_GAP = 2
_FIRST = ("quit", "help", "command", "choose")


def footer(view: ViewState, width: int, height: int) -> list[Line]:
    trouble = Line()
    if view.link.state is LinkState.LOST:
        long = view.snapshot is not None and view.link.lost_for_s >= 1.0
        trouble.add(f"lost for {duration(view.link.lost_for_s)}, " * long, "alert").add("retrying ", "alert")
    line = Line(" ").add(view.message, view.message_tone)
    if not view.message:
        line.join(flow((piece for _, piece in _hints(view)), width - trouble.width - 2, gap=_GAP))
    return [ends(line, trouble, width)]


def action_at(view: ViewState, x: int) -> str:
    """Return the action of the hint in a column, "" if there is none."""
    left = 1
    for action, piece in () if view.message else _hints(view):
        if left <= x < left + piece.width:
            return action
        left += piece.width + _GAP
    return ""


def _hints(view: ViewState) -> list[tuple[str, Line]]:
    """Return the actions of the keys that would do something now, each with its key and the word for it."""
    hints, mode = [], view.state.mode
    for key in KEYS:
        word = key.hint
        if (key.action, mode) in (("pause", "paused"), ("drain", "draining")):
            word = "resume"
        elif (key.action, mode) == ("pause", "draining") or (word == "choose" and "row" in view.offers):
            continue
        elif key.action == "hold" and "held" in view.offers:
            word = "release"
        if word and key.on in ("", *view.offers) and not (view.forbids and key.changes):
            place = _FIRST.index(word) if word in _FIRST else len(_FIRST)
            hints.append((place, (key.action, Line(key.label, "accent").add(f" {word}", "soft"))))
    return [hint for _, hint in sorted(hints, key=itemgetter(0))]
