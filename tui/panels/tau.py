"""Draws the starvation guard: tau, and when it promoted requests; and the end of the daemon's log."""

from tui.formatting import clock, count, duration
from tui.styled_text import Line, Tone, ends, flow, gathered
from tui.view_state import ViewState

_WINDOW_S = 600.0
_LEVEL: dict[str, tuple[str, Tone]] = {
    "warning": ("!", "warn"),
    "error": ("‼", "alert"),
    "tau": ("τ", "alert"),
}


def facts(view: ViewState) -> Line:
    firings = view.state.tau.firings_last_minute
    return Line(f" {firings}/min ", "siren" if view.tau_lit else "alert" if firings else "soft")


def body(view: ViewState, width: int, height: int) -> list[Line]:
    """Tau and what it was computed from, its promotions, a strip of the last ten minutes, the last times."""
    tau = view.state.tau
    limit = Line("limit ", "faint").add(duration(tau.tau_s) if tau.tau_s else "off", "strong")
    mean = Line("mean short ", "faint").add(duration(tau.short_s))
    basis = Line("taken as ", "faint").add(duration(tau.mu_short_s)) if tau.mu_short_s else Line()
    source = Line(tau.source if tau.guards else "not used by this policy", "soft")
    source = source.fit(max(0, width - limit.width - 1))
    firings = Line("fired ", "faint").add(count(tau.firings_total), "strong").add(" times", "faint")
    if tau.recent:
        firings.add("  last ", "faint").add(clock(tau.recent[-1]), "alert")
        firings.add(f" {duration(view.now - tau.recent[-1])} ago", "soft")
    earlier = [
        Line("◆ ", "alert").add(clock(at)).add(f"  {duration(view.now - at)} ago", "soft")
        for at in tau.recent[-2::-1][: max(0, height - 4)]
    ]
    return [
        ends(flow([limit, mean, basis], width - source.width - 1), source, width),
        firings,
        strip(view, width),
        ends(Line("10 min ago", "faint"), Line("now", "faint"), width),
        *earlier,
    ]


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
