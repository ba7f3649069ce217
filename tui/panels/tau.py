"""Draws when the starvation guard promoted requests, and the end of the daemon's log."""

from tui.formatting import clock
from tui.styled_text import Line, Tone, gathered
from tui.view_state import ViewState

_WINDOW_S = 600.0
_LEVEL: dict[str, tuple[str, Tone]] = {
    "warning": ("!", "warn"),
    "error": ("‼", "alert"),
    "tau": ("τ", "alert"),
}


def strip(view: ViewState, width: int) -> Line:
    """Draw the promotions of the last ten minutes, `width` cells wide."""
    step_s = _WINDOW_S / width
    now = (view.now // step_s + 1) * step_s
    hits = {width - 1 - int((now - at) / step_s) for at in view.state.tau.recent}
    return gathered(("◆", "alert") if x in hits else ("·", "track") for x in range(width))


def log(view: ViewState, width: int, height: int) -> list[Line]:
    lines = []
    for event in view.state.log[-height:]:
        sign, tone = _LEVEL.get(event.level, ("·", "faint"))
        line = Line(clock(event.at), "faint").add(f" {sign} ", tone)
        lines.append(line.add(event.text, "soft" if event.level == "info" else "ink"))
    return lines or [Line("nothing to report", "faint")]
