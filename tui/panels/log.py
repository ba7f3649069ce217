"""Draws the end of the daemon's log."""

from tui.formatting import clock
from tui.styled_text import Line, Tone
from tui.view_state import ViewState

_LEVEL: dict[str, tuple[str, Tone]] = {
    "warning": ("!", "warn"),
    "error": ("‼", "alert"),
    "tau": ("τ", "alert"),
}


def body(view: ViewState, width: int, height: int) -> list[Line]:
    lines = []
    for event in view.state.log[-height:]:
        sign, tone = _LEVEL.get(event.level, ("·", "faint"))
        line = Line(clock(event.at), "faint").add(f" {sign} ", tone)
        lines.append(line.add(event.text, "soft" if event.level == "info" else "ink").fit(width))
    return lines or [Line("nothing to report", "faint")]
