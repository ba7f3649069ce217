"""What the painters say, where the whole screen would not show it."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from clairvoyant_cli.state.snapshot import (
    ClassStats,
    ClientState,
    EngineState,
    GainState,
    MoveRecord,
    Percentiles,
    Snapshot,
    StatusLine,
)
from tests.tui.board import Script, busy, stage, view
from tests.tui.scene import cancelled, promoted
from tui import formatting as figures
from tui.app import Top
from tui.braille import Dots
from tui.hardware.reading import Gpu, Hardware, Host
from tui.history import POINTS, SAMPLES, History
from tui.keys import KEYS
from tui.layout import DECK, PANELS, SizeHint, has_deck, plan
from tui.panels import clients, detail, graph, header, models, plots, requests, stats, tau, timeline
from tui.panels.requests import QUEUE, RUNNING, starts
from tui.screens.pages import help_lines
from tui.styled_text import Line, clip, ends, wrap
from tui.table_layout import Fitted, Grid, Order, select
from tui.view_state import ViewState

# -- numbers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (-1.0, "0.00s"),
        (0.994, "0.99s"),
        (0.996, "1.0s"),
        (9.96, "10s"),
        (59.4, "59s"),
        (59.6, "1m00"),
        (3599.6, "1h00"),
        (86_399, "23h59"),
        (200_000, "2d07h"),
    ],
)
def test_duration_has_no_gaps_at_its_seams(seconds: float | None, text: str) -> None:
    assert figures.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0"), (9_999, "9,999"), (10_000, "10.0k"), (999_949, "999.9k"), (1_000_000, "1.0M")],
)
def test_count(value: float | None, text: str) -> None:
    assert figures.count(value) == text


def test_every_figure_fits_its_column() -> None:
    seconds = [10.0 ** (exponent / 7) for exponent in range(-21, 42)]
    assert max(len(figures.duration(each)) for each in seconds) <= 6
    assert max(len(figures.count(each)) for each in seconds) <= 7


@pytest.mark.parametrize("fraction", [-1.0, 0.0, 0.001, 0.5, 0.99, 1.0, 7.0])
def test_a_bar_is_as_wide_as_asked(fraction: float) -> None:
    assert figures.bar(fraction, 11).width == 11
    assert ("━" in figures.bar(fraction, 11).plain) == (fraction > 0.05)


def test_size_and_rate() -> None:
    assert figures.size(None) == "–"
    assert figures.size(5 << 20) == "5M"
    assert figures.size(24 << 30) == "24.0G"
    assert figures.rate(1234.5) == "1,234"


# -- lines ------------------------------------------------------------------------------------------------


def test_control_characters_never_reach_the_terminal() -> None:
    assert Line("a\x1b[2Jb\n").plain == "a·[2Jb·"


def test_lines_are_cut_with_an_ellipsis() -> None:
    line = Line("abc").add("defgh", "soft")
    assert line.fit(5).plain == "abcd…"
    assert line.fit(8) is line
    assert ends(Line("a long left side"), Line("right"), 12).plain == "a lon… right"
    assert clip("日本語", 4) == "日…"[:2] or clip("日本語", 4).startswith("日")


def test_wrap_keeps_every_word() -> None:
    text = "one two three four five"
    assert wrap(text, 9) == ["one two", "three", "four five"]
    assert wrap("", 9) == [""]


# -- tables -----------------------------------------------------------------------------------------------


def test_filter_needs_all_words_and_refuses_some() -> None:
    rows = busy().queue
    chosen = select(QUEUE, rows, Order(filter="LLAMA !notes"))
    assert 0 < len(chosen) < len(rows)
    assert all("llama" in row.model and "notes" not in row.client for row in chosen)
    assert select(QUEUE, rows, Order(filter="!")) == rows


def test_sort_by_each_column() -> None:
    rows = busy().queue
    for name in (column.name for column in QUEUE.columns if column.sort):
        up = select(QUEUE, rows, Order(by=name))
        assert sorted(row.id for row in up) == sorted(row.id for row in rows)
    oldest = select(QUEUE, rows, Order(by="age", reverse=True))[0]
    assert oldest.age_s == max(row.age_s for row in rows)


def test_an_answer_that_is_longer_than_predicted_ends_soon_and_not_now() -> None:
    row = replace(busy().running[0], eta_s=0.2, eta_low_s=None, eta_high_s=None)
    fitted = Fitted.of(RUNNING, 76, view())
    assert "0.20s" in fitted.draw(row, view()).plain
    assert "soon" in fitted.draw(row, replace(view(), drift_s=0.5)).plain


@pytest.mark.parametrize("width", [20, 30, 60, 78, 96, 120, 180])
def test_rows_keep_to_the_width_under_their_titles(width: int) -> None:
    fitted = Fitted.of(QUEUE, width, view())
    drawn = fitted.draw(busy().queue[0], view())
    assert drawn.width == fitted.heading(Order()).width <= width


def columns_of(grid: Grid[Any], width: int, state: Snapshot) -> list[str]:
    fitted = Fitted.of(grid, width, replace(view(), snapshot=state))
    return [column.name for column, _ in fitted.columns]


def on_two_servers() -> Snapshot:
    state = busy()
    servers = tuple(replace(state.backends[0], name=f"gpu-box-{n}.lan:11434") for n in (1, 2))
    running = tuple(replace(row, backend=servers[n % 2].name) for n, row in enumerate(state.running))
    queue = tuple(replace(row, backends=(servers[n % 2].name,)) for n, row in enumerate(state.queue))
    return replace(state, backends=servers, running=running, queue=queue)


@pytest.mark.parametrize("width", [74, 78, 106])
def test_names_are_whole_and_servers_are_named_by_what_differs(width: int) -> None:
    state = on_two_servers()
    shown = replace(view(), snapshot=state)
    tables: tuple[tuple[Grid[Any], Any], ...] = ((QUEUE, state.queue[1]), (RUNNING, state.running[1]))
    for grid, row in tables:
        text = Fitted.of(grid, width, shown).draw(row, shown).plain
        assert row.model in text
        assert row.client in text
        assert "box-2" in text
        assert "lan" not in text


def test_where_room_lacks_the_wait_stays_and_the_odds_go() -> None:
    for width in (38, 78):
        shown = columns_of(QUEUE, width, busy())
        assert {"rank", "class", "why", "eta", "age"} <= set(shown)
        assert "p_long" not in shown
    assert {"p_long", "q90", "endpoint", "bar"} <= set(columns_of(QUEUE, 120, busy()))


def test_a_column_with_nothing_to_show_takes_no_room() -> None:
    state = busy()
    anonymous = tuple(replace(row, client="") for row in state.queue)
    bare = replace(state, queue=anonymous, running=(), recent=())
    assert "client" not in columns_of(QUEUE, 120, bare)
    assert "priority" not in columns_of(QUEUE, 120, state)
    raised = (replace(state.queue[0], priority=-5), *state.queue[1:])
    assert "priority" in columns_of(QUEUE, 120, replace(state, queue=raised))


@pytest.mark.parametrize(
    ("fields", "narrow", "wide"),
    [
        ({}, "12–40s", "~25s  12–40s"),
        ({"eta_low_s": None, "eta_high_s": None}, "25s", "25s"),
        ({"eta_s": None}, "–", "–"),
        ({"held": True}, "held", "held"),
        ({"cause": "session"}, "parked", "parked"),
        ({"cause": "down"}, "–", "–"),
        ({"cause": "down", "refused_in_s": 48.0, "eta_s": 0.13}, "refused 48s", "refused 48s"),
        ({"eta_s": 0.0, "eta_low_s": 0.0, "eta_high_s": 0.0}, "next", "next"),
    ],
)
def test_the_start_is_a_range_or_what_stands_in_its_way(
    fields: dict[str, Any], narrow: str, wide: str
) -> None:
    row = replace(busy().queue[0], eta_s=25.0, eta_low_s=12.0, eta_high_s=40.0, cause="size")
    row = replace(row, **fields)
    assert starts(row, view(), 7).plain == narrow
    assert starts(row, view(), 14).plain == wide
    paused = replace(view(), snapshot=replace(busy(), mode="paused"))
    assert starts(row, paused, 7).plain == ("–" if narrow in ("12–40s", "25s", "next") else narrow)


def test_a_refusal_to_come_is_not_cut() -> None:
    state = busy()
    due = replace(state.queue[0], cause="down", refused_in_s=48.0)
    shown = replace(view(), snapshot=replace(state, queue=(due, *state.queue[1:])))
    assert "refused 48s" in Fitted.of(QUEUE, 38, shown).draw(due, shown).plain


def test_a_background_request_has_no_bar_of_tau() -> None:
    row = replace(busy().queue[0], cause="chore", age_s=340.0, tau_s=None)
    fitted = Fitted.of(QUEUE, 120, view())
    assert "━" not in fitted.draw(row, view()).plain
    assert "━" in fitted.draw(replace(row, cause="size", tau_s=90.0), view()).plain


@pytest.mark.parametrize(
    ("low_s", "high_s", "text"),
    [
        (0.2, 0.4, "0–1s"),
        (12.0, 40.0, "12–40s"),
        (45.0, 130.0, "45s–3m"),
        (5.1, 5.9, "5–6s"),
        (7_000.0, 9_000.0, "1–3h"),
        (-3.0, 99.0, "0–99s"),
    ],
)
def test_a_range_is_rounded_outwards(low_s: float, high_s: float, text: str) -> None:
    assert figures.duration_range(low_s, high_s) == text


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (("127.0.0.1:11434", "127.0.0.1:8080"), ("11434", "8080")),
        (("gpu-box-1.lan:11434", "gpu-box-2.lan:11434"), ("box-1", "box-2")),
        (("desk", "rack"), ("desk", "rack")),
        (("local",), ("local",)),
        (("local", "local2"), ("local", "local2")),
    ],
)
def test_names_are_shortened_to_what_differs(names: tuple[str, ...], short: tuple[str, ...]) -> None:
    assert tuple(figures.short_names(names)[each] for each in names) == short


# -- the plan ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [20, 80, 107, 108, 120, 167, 168, 200, 300])
@pytest.mark.parametrize(
    "wish",
    [
        SizeHint(),
        SizeHint(queue=1),
        SizeHint(deck="log", slots=16, gpu=40, models=20, sessions=40),
        SizeHint(maximised="plots"),
    ],
)
def test_boxes_stay_on_the_screen_and_do_not_overlap(width: int, wish: SizeHint) -> None:
    for height in range(4, 70, 3):
        taken: set[tuple[int, int]] = set()
        for box in plan(width, height, wish).values():
            cells = {
                (x, y) for x in range(box.x, box.x + box.width) for y in range(box.y, box.y + box.height)
            }
            assert not taken & cells
            taken |= cells
        assert all(x < width and y < height for x, y in taken)


@pytest.mark.parametrize(("width", "height"), [(120, 40), (200, 60)])
def test_larger_screens_show_every_panel(width: int, height: int) -> None:
    assert set(PANELS) <= set(plan(width, height, SizeHint(queue=4, sessions=1)))
    assert set(PANELS) - set(plan(width, height, SizeHint(queue=4))) == {"sessions"}
    assert not has_deck(width, height)


@pytest.mark.parametrize("name", DECK)
def test_the_small_screen_shows_one_of_the_deck(name: str) -> None:
    assert set(plan(80, 24, SizeHint(deck=name, sessions=1))) == {
        "header",
        "footer",
        "running",
        "queue",
        name,
    }


# -- panels -----------------------------------------------------------------------------------------------


def text_of(lines: list[Line]) -> str:
    return "\n".join(line.plain for line in lines)


def test_the_page_says_why_a_request_is_where_it_is() -> None:
    base = view()
    rows = busy().queue
    last = rows[-1]
    page = text_of(detail.detail(base, last.id, 90))
    assert f"rank {last.rank} of {len(rows)}" in page
    assert last.why
    assert last.why in " ".join(page.split())
    assert f"#{last.rank_fcfs}" in page
    raised = replace(base, snapshot=promoted(busy(), last.id))
    assert "promoted  by the operator" in text_of(detail.detail(raised, last.id, 90))


@pytest.mark.parametrize(
    ("level", "by", "words"),
    [
        (0, "rule", "level 0, immediate  set by a rule of the clients file"),
        (None, "share", "its client has used its share of urgency"),
        (None, "", ""),
    ],
)
def test_request_page_shows_urgency_level_and_who_set_it(level: int | None, by: str, words: str) -> None:
    base = view()
    assert base.snapshot is not None
    row = replace(base.snapshot.queue[-1], urgency=level, urgency_by=by)
    runs = replace(base.snapshot.running[0], urgency=level, urgency_by=by)
    state = replace(base, snapshot=replace(base.snapshot, queue=(row,), running=(runs,)))
    for each in (row, runs):
        page = text_of(detail.detail(state, each.id, 90))
        assert words in page
        assert ("urgency" in page) == bool(by)


def test_what_a_word_of_the_prompt_did_is_a_signed_share() -> None:
    base, row = view(), busy().queue[0]
    features = (("characters a word", -0.0004), ("code", -0.5), ("asks for a list", 0.22), ("essay", 1.4))
    told = replace(row, predicted=replace(row.predicted, features=features))
    state = replace(busy(), queue=(told,))
    page = text_of(detail.detail(replace(base, snapshot=state), row.id, 90))
    assert [word in page for word in ("−39%", "+25%", "×4.1", "characters a word")] == [True] * 3 + [False]


def test_the_page_says_when_it_starts_and_how_many_before_it() -> None:
    row = replace(busy().queue[0], eta_s=25.0, eta_low_s=12.0, eta_high_s=40.0, ahead=3.6)
    page = text_of(detail.detail(replace(view(), snapshot=replace(busy(), queue=(row,))), row.id, 90))
    assert "~25s  12–40s  about 4 start before it" in page
    due = replace(row, cause="down", refused_in_s=48.0, ahead=None)
    page = text_of(detail.detail(replace(view(), snapshot=replace(busy(), queue=(due,))), row.id, 90))
    assert "refused 48s" in page
    assert "before it" not in page


def test_the_page_follows_a_request_to_its_slot_and_its_end() -> None:
    base = view()
    running = busy().running[0]
    page = text_of(detail.detail(base, running.id, 90))
    assert f"{running.state} in slot {running.slot}" in page
    later = replace(base, snapshot=cancelled(busy(), running.id))
    assert "client_cancelled, status 499" in text_of(detail.detail(later, running.id, 90))
    assert "no longer kept" in text_of(detail.detail(base, "nobody", 90))


def test_prompts_are_on_the_page_only_when_shown() -> None:
    base, row = view(), busy().queue[0]
    assert row.prompt is not None
    assert row.prompt not in text_of(detail.detail(base, row.id, 90))
    assert row.prompt in text_of(detail.detail(replace(base, prompts=True), row.id, 90))


def test_a_tau_that_is_not_heeded_says_so_in_whole_words() -> None:
    base = view()
    assert base.snapshot is not None
    unheeded = replace(base.snapshot.tau, tau_s=240.0, mu_short_s=154.0, guards=False)
    shown = text_of(tau.body(replace(base, snapshot=replace(base.snapshot, tau=unheeded)), 40, 4))
    assert "limit 4m00" in shown
    assert "not used by this policy" in shown
    assert "…" not in shown


def test_a_long_source_of_tau_does_not_displace_its_value() -> None:
    base = view()
    assert base.snapshot is not None
    learned = replace(base.snapshot.tau, tau_s=63.0, source="profile full, decoding faster since")
    shown = tau.body(replace(base, snapshot=replace(base.snapshot, tau=learned)), 40, 4)[0].plain
    assert shown.startswith("limit 1m03 profile full, decoding")
    assert len(shown) == 40


def test_tau_off_and_never_fired() -> None:
    base = view("empty")
    assert base.snapshot is not None
    off = replace(base.snapshot, tau=replace(base.snapshot.tau, tau_s=None))
    text = text_of(tau.body(replace(base, snapshot=off), 40, 6))
    assert "limit off" in text
    assert "fired 0 times" in text


def test_stats_without_a_shadow_and_without_a_load() -> None:
    base = view()
    assert base.snapshot is not None
    bare = replace(base.snapshot, stats_fcfs=(), utilisation=None)
    text = text_of(stats.body(replace(base, snapshot=bare), 42, 9))
    assert "by arrival" not in text
    assert "load not known yet" in text


def test_a_load_is_not_light_while_more_wait_than_there_are_slots() -> None:
    """Half of the slots may be those of a server that has not what they ask for."""
    state = busy()
    for waiting, light in ((2, True), (4_600, False)):
        crowd = replace(state, utilisation=0.48, queue=(), waiting=replace(state.waiting, total=waiting))
        lines = stats.body(replace(view(), snapshot=crowd), 45, 14)
        assert any("light" in line.plain for line in lines) == light


def test_slots_are_told_apart_by_what_differs_in_their_servers_names() -> None:
    state = busy()
    for names, prefixes in ((("desk", "rack"),) * 2, (("::1:11434", "::1:8080"), ("11434", "8080"))):
        servers = tuple(replace(state.backends[0], name=name) for name in names)
        lines = timeline.timeline(replace(view(), snapshot=replace(state, backends=servers)), 80, 20)
        assert all(any(line.plain.startswith(f"{each} 0") for line in lines) for each in prefixes)


def test_the_gain_drops_what_does_not_fit_and_cuts_no_word() -> None:
    gain = GainState(saved_today_s=4740.0, answers_today=100, estimated_today=58, spared_tokens_today=1049.0)
    seen = replace(view(), snapshot=replace(busy(), gain=gain))
    narrow, wide = (header.worth(seen, width).plain.strip() for width in (80, 120))
    assert narrow == "1h19 less waiting today (100 answers, 47s each, 58 estimated)"
    assert wide == f"{narrow}   about 1,049 fewer tokens read"  # and no titles of bars that are not there
    open_still = replace(seen, snapshot=replace(busy(), gain=replace(gain, answers_today=1_135, behind=1103)))
    narrow, wide = (header.worth(open_still, width).plain for width in (80, 120))
    assert narrow.endswith("estimated)   provisional")
    assert "estimated)   provisional, 1,103 to compare" in wide


def test_thousands_of_answers_are_not_cut_to_a_digit() -> None:
    many = tuple(replace(each, wait=replace(each.wait, n=1070)) for each in busy().stats_paired)
    lines = stats.body(replace(view(), snapshot=replace(busy(), stats_paired=many)), 42, 9)
    assert lines[1].plain.startswith("S 1.1k")


@pytest.mark.parametrize(("rho", "means"), [(0.66, "order matters"), (0.97, "heavy")])
def test_what_a_load_means_is_not_cut(rho: float, means: str) -> None:
    lines = stats.body(replace(view(), snapshot=replace(busy(), utilisation=rho)), 39, 20)
    assert means in text_of([line.fit(39) for line in lines])


def test_a_server_that_is_down_says_why_in_whole_words() -> None:
    backend = replace(
        busy().backends[0],
        name="two",
        kind="ollama",
        version="0.40.0",
        state="down",
        detail="connection refused",
    )
    [line, *_] = models.body(replace(view(), snapshot=replace(busy(), backends=(backend,))), 39, 5)
    assert line.plain.strip() == "○ two  down connection refused"


def test_a_self_test_has_a_line_of_its_own() -> None:
    backend = replace(busy().backends[0], self_test="self-test: 8 of 24 tried, idle time only")
    lines = models.body(replace(view(), snapshot=replace(busy(), backends=(backend,))), 60, 5)
    assert lines[1].plain.rstrip() == "  self-test: 8 of 24 tried, idle time only"


def test_stats_call_a_loss_a_loss() -> None:
    base = view()
    assert base.snapshot is not None
    quick = tuple(
        ClassStats(each.length_class, Percentiles(9, 0.5, 1.0, 1.0), Percentiles(), Percentiles())
        for each in base.snapshot.stats
    )
    text = text_of(stats.body(replace(base, snapshot=replace(base.snapshot, stats_fcfs=quick)), 42, 9))
    assert "+" in text or "×" in text


@pytest.mark.parametrize("size", [(20, 3), (40, 8), (44, 16), (90, 10), (90, 30)])
def test_plots_fill_their_box(size: tuple[int, int]) -> None:
    width, height = size
    for shown in (view(), view("empty")):
        lines = plots.body(shown, width, height)
        assert len(lines) <= height
        assert all(line.width <= width for line in lines)


def test_classes_have_letters_in_plots() -> None:
    waits = [line.plain for line in plots.waits(view(), 42, 10)[1:]]
    assert [line[0] for line in waits if line[0] != " "] == ["S", "M", "L"]
    assert plots.predicted_and_real(view(), 42, 10)[-1].plain.split() == ["S", "M", "L"]


def with_samples(number: int, **fields: Any) -> ViewState:
    base = view("empty")
    assert base.snapshot is not None
    history = History()
    for second in range(number):
        waiting = replace(base.snapshot.waiting, total=second % 50)
        fired_at = tuple(base.snapshot.taken_at - 600.0 + at for at in range(100, second + 1, 100))
        tau_state = replace(base.snapshot.tau, firings_total=len(fired_at), recent=fired_at)
        state = replace(base.snapshot, uptime_s=float(second), waiting=waiting, tau=tau_state, **fields)
        history.take(state)
    return replace(base, snapshot=state, history=history)


@pytest.mark.parametrize("height", [7, 10, 11, 18])
def test_the_graph_shows_ten_minutes_of_queue_tokens_and_tau(height: int) -> None:
    lines = graph.body(with_samples(601, running=busy().running), 66, height)
    text = text_of(lines)
    assert len(lines) == height
    assert all(line.width <= 66 for line in lines)
    assert "waiting 0" in text
    assert "most 49" in text
    assert ("tokens/s" in text) is (height >= 11)
    strip = next(line.plain for line in lines if line.plain.startswith("  tau"))
    assert strip.count("◆") == 6
    assert "10 min ago" in lines[-1].plain


def test_the_graph_is_empty_before_the_first_state() -> None:
    lines = graph.body(replace(with_samples(1), history=History()), 66, 12)
    assert "waiting –" in text_of(lines)


def test_dots_stay_inside() -> None:
    dots = Dots(3, 2)
    dots.dot(-1, 0, "ink")
    dots.dot(6, 8, "ink")
    assert text_of(dots.lines()).strip() == ""
    dots.mark(0.0, 0.0, "ink")
    dots.mark(1.0, 9.0, "ink")
    assert text_of(dots.lines()) == "  ⠈\n⡀  "


# -- what is remembered -----------------------------------------------------------------------------------


def test_history_counts_each_request_once_and_stays_small() -> None:
    history = History()
    watched = stage("overloaded", 0.0)
    for _ in range(40):
        watched.advance(5.0)
        history.take(watched.snapshot())
        history.take(watched.snapshot())
    assert history.ended == len(history.finished)
    assert history.per_minute() is not None
    base = watched.snapshot()
    template = base.recent[0]
    for number in range(2 * POINTS + 9):
        ended = replace(template, id=f"r{number}")
        history.take(replace(base, recent=(ended,), uptime_s=base.uptime_s + number))
    assert len(history.samples) == SAMPLES
    assert len(history.finished) == POINTS


def test_what_the_daemon_remembers_is_put_before_what_was_seen() -> None:
    watched, states = stage("overloaded", 0.0), []
    for _ in range(20):
        watched.advance(5.0)
        states.append(watched.snapshot())
    history = History()
    for state in states[15:]:
        history.take(state)
    ended = history.ended
    history.put_before([*states[:16], replace(states[0], pid=7)])
    assert [each.at for each in history.samples] == [state.uptime_s for state in states]
    assert history.ended > ended
    assert history.ended == len(history.finished)
    assert [each.finished_at for each in history.finished.values()] == sorted(
        each.finished_at for each in history.finished.values()
    )


def test_clients_have_ten_minutes_of_their_requests() -> None:
    history = History()
    for second in range(700):
        had = ClientState("ann", waiting=second // 25, running=1)
        clients = (had,) if second < 650 else ()
        history.take(replace(busy(), uptime_s=float(second), clients=clients))
    points = [*history.clients["ann"]]
    assert len(points) == 24
    assert points[:3] == [5, 6, 7]
    assert points[-2:] == [0, 0]


def test_energy_is_power_over_time_shared_by_the_answers_meanwhile() -> None:
    history = History()
    assert history.energy_each_wh() is None
    for second in range(61):
        reading = Gpu(0, "a", power_w=360.0 if second != 30 else None)
        history.take_hardware(Hardware(Host(), (reading,), at_s=10.0 + second))
        completed = replace(busy().counters, completed=10 + second // 6)
        history.take(replace(busy(), uptime_s=float(second), counters=completed))
    wh, answers = history.energy_each_wh() or (0.0, 0)
    assert answers == 10
    assert wh == pytest.approx(58 * 360.0 / 3600.0 / 10)
    history.take_hardware(Hardware(Host(), (reading,), at_s=10_000.0))
    assert history.energy_j < 70 * 360.0, "a gap in the readings is not filled"


def test_the_rate_does_not_mind_the_wall_clock() -> None:
    history = History()
    watched = stage("busy", 0.0)
    rates = []
    for set_back_s in (0.0, 0.0, 86_400.0, -86_400.0):
        watched.advance(20.0)
        base = watched.snapshot()
        history.take(replace(base, taken_at=base.taken_at - set_back_s))
        rates.append(history.per_minute())
    assert rates[0] is None
    assert None not in rates[1:]


def test_history_is_cleared_when_the_daemon_changes() -> None:
    history = History()
    history.take(busy())
    history.take(replace(busy(), pid=99, recent=()))
    assert not history.finished


def test_a_firing_is_lit_for_a_moment() -> None:
    base = view("empty")
    assert base.snapshot is not None
    tau = replace(base.snapshot.tau, firings_total=1, recent=(base.snapshot.taken_at,))
    fired = replace(base.snapshot, tau=tau)
    lit = replace(base, snapshot=fired)
    assert lit.tau_lit
    assert not replace(lit, drift_s=10.0).tau_lit


# -- keys -------------------------------------------------------------------------------------------------


def test_help_lists_every_key_and_fits_80_columns() -> None:
    for width in (70, 110):
        text = text_of(help_lines(width))
        assert all(key.label in text for key in KEYS if key.help)
        written = " ".join(key.label for key in KEYS if key.help).split()
        others = {"up,k": "k", "right_square_bracket": "]", "right_curly_bracket": "}"}
        others |= {"end,G": "G", "right,l": "l", "pageup,ctrl+b": "^B", "ctrl+u": "^U"}
        assert all(others.get(key.keys, key.keys) in written for key in KEYS if not key.help)
        assert all(line.width <= width for line in help_lines(width))


def test_no_key_is_bound_twice() -> None:
    keys = [name for key in KEYS for name in key.keys.split(",")]
    assert len(keys) == len(set(keys))


def test_moves_are_records() -> None:
    assert MoveRecord(0.0, "submitted").note == ""


# -- clients ----------------------------------------------------------------------------------------------


def _client_line(client: ClientState, width: int = 100) -> Line:
    told = replace(busy(), clients=(client,))
    heading, line = clients.body(replace(view(), snapshot=told), width)
    assert heading.width == line.width <= width
    return line


@pytest.mark.parametrize(
    ("client", "words"),
    [
        (ClientState("ann"), "ann · · 1 0 – 0..100"),
        (ClientState("ann", 3, 1, 1200, 0.5), "ann 3 1 0.5 1,200 – 0..100"),
        (ClientState("ann", 3, 1, max_waiting=50, max_running=2), "ann 3/50 1/2 1 0 – 0..100"),
        (ClientState("ann", tau_s=30.0, priority=(-10, 50)), "ann · · 1 0 30s -10..50"),
        (ClientState("ann", tau_s=0.0), "ann · · 1 0 none 0..100"),
    ],
)
def test_a_client_is_a_row(client: ClientState, words: str) -> None:
    assert _client_line(client).plain.split() == words.split()


def test_no_clients_are_said_to_be_none() -> None:
    [line] = clients.body(replace(view(), snapshot=replace(busy(), clients=())), 80)
    assert line.plain == "No requests yet."


def test_an_engine_says_what_is_inside_it() -> None:
    snapshot = busy()
    backend = replace(snapshot.backends[0], models=(), engine=EngineState(8, 40, 2, 0.5))
    shown = SimpleNamespace(snapshot=replace(snapshot, backends=(backend,)), now=0.0)
    lines = [line.plain for line in models.body(cast(ViewState, shown), 48, 5)]
    assert lines[1].startswith("  8 run, 40 wait inside, 2 preempted")
    assert lines[1].endswith("KV 50%")


# -- what is not known ------------------------------------------------------------------------------------


async def test_a_daemon_that_falls_silent_is_said_to_and_its_times_stand_still() -> None:
    now = [0.0]
    app = Top(Script(), clock=lambda: now[0])
    async with app.run_test(size=(120, 40)):
        app.take(busy())
        told: list[tuple[float, str]] = []
        for now[0] in (1.0, 1.9, 2.0, 4.2, 14.0):
            seen = app.view()
            told.append((seen.drift_s, text_of(header.header(seen, 120, 1)).strip()))
        app.take(busy())
        assert "no news" not in text_of(header.header(app.view(), 120, 1))
    assert [drift_s for drift_s, _ in told] == [1.0, 1.9, 2.0, 2.0, 2.0]
    assert all(text.startswith("● All well") for _, text in told[:2])
    words = [text.split("  ")[0] for _, text in told[2:]]
    assert words == ["no news for 2 s", "no news for 4 s", "no news for 14 s"]


async def test_states_that_are_asked_for_seldom_are_waited_for_longer() -> None:
    now = [0.0]
    app = Top(Script(), clock=lambda: now[0])
    async with app.run_test(size=(80, 24)):
        app.take(busy())
        while app._every_s < 2.0:
            app.action_interval()
        now[0] = 3.9
        assert not app.view().silent_s
        now[0] = 4.0
        assert app.view().silent_s == 4.0


def test_while_no_server_is_up_nothing_starts_at_once_and_no_slot_is_free() -> None:
    base = view("empty")
    assert base.snapshot is not None
    up, down = (
        base.snapshot.backends[0],
        replace(base.snapshot.backends[0], name="gone", state="down", busy=0),
    )
    dark = replace(base, snapshot=replace(base.snapshot, backends=(down,), queue=()))
    assert requests.QUEUE.empty(dark) == "The queue is empty, and no server is up."
    assert requests.RUNNING.empty(dark) == "No server takes requests now."
    half = replace(base, snapshot=replace(base.snapshot, backends=(replace(up, busy=0), down), queue=()))
    assert requests.QUEUE.empty(half) == "The queue is empty: a new request starts at once."
    assert f"0/{up.slots}" in text_of(header.header(half, 120, 2))
    assert "gone" not in text_of(timeline.timeline(replace(half, history=History()), 120, 20))


def test_what_short_answers_took_is_told_from_what_tau_was_computed_from() -> None:
    base = view()
    assert base.snapshot is not None
    floored = replace(base.snapshot.tau, tau_s=120.0, mu_short_s=40.0, short_s=2.1)
    text = text_of(tau.body(replace(base, snapshot=replace(base.snapshot, tau=floored)), 80, 4))
    assert "mean short 2.1s" in text
    assert "taken as 40s" in text


def test_end_of_a_request_names_who_ended_it() -> None:
    base, row = view(), busy().recent[-1]
    outcome = next(each for each in requests.RECENT.columns if each.name == "outcome")
    told = {
        of: outcome.draw(replace(row, outcome=of), base, 9).plain
        for of in ("completed", "client_cancelled", "operator_cancelled", "upstream_error")
    }
    assert list(told.values()) == ["✓ done", "← left", "cancelled", "✗ failed"]


def test_the_sentence_goes_before_what_else_is_in_its_line() -> None:
    base, said = view(), "ollama is down: 2 waiting need it, refused in 40 s unless it returns"
    assert base.snapshot is not None
    loud = replace(base, snapshot=replace(base.snapshot, verdict=StatusLine("warn", said)))
    assert [text_of(header.header(loud, width, 1)).strip() for width in (80, 120)] == [
        f"▲ {said}",
        f"▲ {said}{' ' * 27}clairvoyant  up 16m45",
    ]
    badged = text_of(header.header(replace(loud, frozen=True), 80, 1))
    assert "frozen" in badged
