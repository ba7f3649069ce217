"""The foot of the screen: the keys one needs most, or what is wrong."""

from tui.formatting import duration
from tui.keys import KEYS
from tui.line import Line, ends, flow
from tui.view_state import LinkState, ViewState


def footer(view: ViewState, width: int, height: int) -> list[Line]:
    """Hints, and the trouble with the connection where there is one."""
    hints = [key for key in KEYS if key.hint and not (view.readonly and key.changes)]
    hints.sort(key=lambda key: (key.hint != "quit", key.hint != "help"))
    trouble = _trouble(view)
    pieces = [Line(key.label, "accent").add(f" {key.hint}", "soft") for key in hints]
    line = Line(" ").join(flow(pieces, width - trouble.width - 2, gap=2))
    return [ends(line, trouble, width)]


def _trouble(view: ViewState) -> Line:
    link = view.link
    if link.state is not LinkState.LOST:
        return Line()
    line = Line("trying again", "alert")
    if view.snapshot is not None and link.lost_for_s >= 1.0:
        line = Line(f"gone {duration(link.lost_for_s)}, trying again", "alert")
    return line.add(" ")
