"""The timeline: what it draws of each slot, as served and in order of arrival."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import pytest

from clairvoyant_cli.proxy.observing.queue_rows import to_come
from clairvoyant_cli.state.snapshot import AnswerPart, Snapshot
from tests.tui.scene import SLOTS, TAU_S, scene
from tui.history import History
from tui.panels import timeline
from tui.panels.timeline import Bar, Slot
from tui.styled_text import Tone
from tui.view_state import ViewState


def seen(state: Snapshot) -> ViewState:
    history = History()
    history.take(state)
    return ViewState("box:7117", state, history=history)


def drawn(bars: list[Bar], width: int = 10, now: int = 6) -> str:
    return timeline.strip(bars, 0.0, 1.0, width, now, "█", "▐").plain


@pytest.mark.parametrize("scenario", ["busy", "overloaded"])
@pytest.mark.parametrize("t", [600.0, 1005.0, 1200.0])
def test_no_slot_has_two_requests_at_once_and_both_halves_have_the_same_ones(scenario: str, t: float) -> None:
    view = seen(scene(scenario).snapshot(t))
    served, arrived = timeline.as_served(view), timeline.as_arrived(view)
    assert len(served) == len(arrived) == SLOTS
    for bars in (*served.values(), *arrived.values()):
        for one, two in pairwise(sorted(bars, key=lambda each: each.begun_at)):
            assert one.ended_at <= two.begun_at + 1e-3

    def taken_s(of: Mapping[Slot, list[Bar]]) -> float:
        return sum(
            min(bar.ended_at, view.now) - max(bar.begun_at, view.now - 120.0)
            for bars in of.values()
            for bar in bars
            if bar.begun_at < view.now and bar.ended_at > view.now - 120.0
        )

    assert taken_s(served) == pytest.approx(taken_s(arrived), rel=0.05)


def test_waits_and_turns_of_tau_are_those_of_the_requests() -> None:
    state = scene("overloaded").snapshot(1000.0)
    bars = [bar for bars in timeline.as_served(seen(state)).values() for bar in bars if bar.known]
    late = [bar.waited_s for bar in bars if bar.by_tau]
    assert len(late) > 10
    assert min(each or 0.0 for each in late) > TAU_S


def test_a_cut_answer_has_a_bar_for_each_part() -> None:
    state = scene("busy").snapshot(1005.0)
    row = next(row for row in state.running if row.slot == 0)
    began_at = state.taken_at - row.elapsed_s
    parts = (
        AnswerPart(began_at - 30.0, began_at - 20.0, 9, "local", 1),
        AnswerPart(began_at, None, 9, "local", 0),
    )
    state = replace(state, recent=(), queue=(), running=(replace(row, parts=parts, cuts=1, eta_s=5.0),))
    bars = timeline.as_served(seen(replace(state, to_come=tuple(to_come(state)))))
    [first] = bars["local", 1]
    rest, forecast = bars["local", 0]
    assert (first.begun_at, first.ended_at, first.cut) == (began_at - 30.0, began_at - 20.0, True)
    assert (rest.begun_at, rest.ended_at, rest.cut) == (began_at, state.taken_at, False)
    assert (forecast.ended_at, forecast.known) == (state.taken_at + 5.0, False)
    waiting = replace(scene("busy").snapshot(1005.0).queue[0], parts=parts[:1], cuts=1)
    bars = timeline.as_served(seen(replace(state, queue=(waiting,), running=(), to_come=())))
    assert [(bar.begun_at, bar.cut) for bar in bars["local", 1]] == [(began_at - 30.0, True)]


def test_a_bar_begins_and_ends_in_the_cells_of_its_times() -> None:
    bars = [
        Bar(-5.0, 1.0, "long", 1.0),
        Bar(2.0, 2.3, "short", 1.0),
        Bar(3.0, 6.0, "short", 1.0, by_tau=True),
        Bar(6.0, 8.0, "short", known=False),
        Bar(8.0, 20.0, "short", 1.0, known=False),
    ]
    assert drawn(bars) == "█ ▐τ██░░▒░"
    assert drawn([Bar(1.0, 3.0, "long", 1.0, cut=True)]) == " ▐╎   │   "
    newcomers = [Bar(0.0, 7.0, "long"), Bar(9.0, 12.0, "short", 1.0, known=False)]
    assert drawn(newcomers) == "███████╱╱▒", "hatching stands for expected requests"


@pytest.mark.parametrize(("height", "lines"), [(5, 5), (9, 9), (30, 17)])
def test_it_takes_the_lines_that_it_has(height: int, lines: int) -> None:
    view = seen(scene("busy").snapshot(1005.0))
    found = timeline.timeline(view, 100, height)
    assert len(found) == lines
    assert all(line.width <= 100 for line in found)
    assert sum("now" in line.plain for line in found) == 1


def test_without_any_request_there_are_slots_and_an_axis() -> None:
    found = [line.plain for line in timeline.timeline(seen(scene("empty").snapshot(10.0)), 60, 9)]
    assert [line.split()[0] for line in found if line] == ["slot"] * 4 + ["−25s"] + ["arrival"] * 4


def test_classes_differ_where_their_colours_do_not() -> None:
    tones: tuple[Tone, ...] = ("short", "medium", "long")
    bars = [Bar(10.0 * at, 10.0 * at + 8.0, tone) for at, tone in enumerate(tones)]
    few, many = (
        timeline.strip(bars, 0.0, 1.0, 40, 35, "█", "▐", fills).plain for fills in (timeline._FILLS, {})
    )
    assert set(few) - set(" │") == {"█", "▓", "▒"}
    assert set(many) - set(" │") == {"█"}
