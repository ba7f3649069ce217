"""The requests by client, by model and by backend, as the daemon keeps their books."""

from collections.abc import Callable

from clairvoyant_cli.state.snapshot import GroupState
from tui.formatting import bar, count, duration, share
from tui.styled_text import Line
from tui.table_layout import Column, Grid
from tui.view_state import ViewState

KINDS = ("client", "model", "backend")


def _number(value: int) -> Line:
    return Line(count(value), "strong") if value else Line("·", "track")


def _share(row: GroupState, view: ViewState, width: int) -> Line:
    return bar(row.share, width - 5).add(f"{share(row.share):>5}")


def _standing(row: GroupState, view: ViewState, width: int) -> Line:
    """What an operator has done to it, or how it is."""
    backends = view.snapshot.backends if view.snapshot else ()
    drained, is_so = row.draining, ""
    for backend in backends:
        if row.kind == "backend" and backend.name == row.name:
            drained, is_so = bool(backend.standing), backend.standing or backend.state
        elif row.kind == "model" and any(model.name == row.name for model in backend.models):
            is_so = "loaded"
    return Line(is_so or "draining", "warn") if drained else Line(is_so, "soft")


def _rows(view: ViewState, kind: str) -> list[GroupState]:
    return [each for each in view.snapshot.groups if each.kind == kind] if view.snapshot else []


def _count(name: str, title: str, of: Callable[[GroupState], int]) -> Column[GroupState]:
    return Column(name, title, 7, lambda r, s, w: _number(of(r)), lambda r: -of(r), right=True)


def grid(kind: str) -> Grid[GroupState]:
    """Return the table of one kind of group."""
    return Grid(
        columns=(
            Column("name", kind, 14, lambda r, s, w: Line(r.name), lambda r: r.name, flex=2),
            Column(
                "waiting", "waiting", 8, lambda r, s, w: _number(r.waiting), lambda r: -r.waiting, right=True
            ),
            Column(
                "running", "running", 8, lambda r, s, w: _number(r.running), lambda r: -r.running, right=True
            ),
            Column("share", "of slots' time", 14, _share, lambda r: -r.share),
            Column(
                "short",
                "S p50",
                6,
                lambda r, s, w: Line(duration(r.short_p50_s)),
                lambda r: r.short_p50_s or 0.0,
                right=True,
            ),
            _count("swaps", "loads", lambda row: row.swaps),
            Column("standing", "", 10, _standing, from_width=80),
        ),
        rows=lambda view: (
            [each for each in view.snapshot.groups if each.kind == kind] if view.snapshot else []
        ),
        id=lambda row: row.name,
        text=lambda row: row.name,
        empty=lambda view: "Nobody has asked for anything within the hour.",
    )
