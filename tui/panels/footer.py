"""Draws the footer: the last message or the main keys, and a lost connection."""

from dataclasses import replace

from tui.formatting import duration
from tui.keys import KEYS, Key
from tui.styled_text import Line, ends, flow
from tui.view_state import LinkState, ViewState

_GAP = 2
_FIRST = ("quit", "help", "command", "choose")


def footer(view: ViewState, width: int, height: int) -> list[Line]:
    trouble = _trouble(view)
    if view.message:
        return [ends(Line(" ").add(view.message, view.message_tone), trouble, width)]
    pieces = [_piece(key) for key in _hints(view)]
    line = Line(" ").join(flow(pieces, width - trouble.width - 2, gap=_GAP))
    return [ends(line, trouble, width)]


def key_at(view: ViewState, x: int) -> Key | None:
    left = 1
    for key in () if view.message else _hints(view):
        width = _piece(key).width
        if left <= x < left + width:
            return key
        left += width + _GAP
    return None


def _hints(view: ViewState) -> list[Key]:
    """Return the keys that would do something now, each with the word for it."""
    hints, mode = [], view.state.mode
    for key in KEYS:
        hint = key.hint
        if (key.action, mode) in (("pause", "paused"), ("drain", "draining")):
            hint = "resume"
        elif (key.action, mode) == ("pause", "draining") or (hint == "choose" and "row" in view.offers):
            continue
        elif key.action == "hold" and "held" in view.offers:
            hint = "release"
        if hint and key.on in ("", *view.offers) and not (view.forbids and key.changes):
            hints.append(replace(key, hint=hint))
    return sorted(hints, key=lambda key: _FIRST.index(key.hint) if key.hint in _FIRST else len(_FIRST))


def _piece(key: Key) -> Line:
    return Line(key.label, "accent").add(f" {key.hint}", "soft")


def _trouble(view: ViewState) -> Line:
    link = view.link
    if link.state is not LinkState.LOST:
        return Line()
    line = Line("retrying", "alert")
    if view.snapshot is not None and link.lost_for_s >= 1.0:
        line = Line(f"lost for {duration(link.lost_for_s)}, retrying", "alert")
    return line.add(" ")
