"""What the painters say, where the whole screen would not show it."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from textual.geometry import Region

from clairvoyant_cli.state.snapshot import (
    AnswerPart,
    ArrivalTurn,
    BackendState,
    ClassStats,
    EngineState,
    FinishedRequest,
    GainState,
    LogEvent,
    Percentiles,
    QueuedRequest,
    RunningRequest,
    SessionsState,
)
from tests.tui.board import Script, busy, view
from tests.tui.scene import moved
from tui import formatting as figures
from tui.app import Top
from tui.board_panels import BY_NAME, PANELS
from tui.braille import area
from tui.keys import KEYS
from tui.layout import DECK, SizeHint, has_deck, plan
from tui.panels import header, log, models, stats
from tui.panels.detail import detail
from tui.panels.requests import QUEUE, RECENT, RUNNING, starts
from tui.screens.pages import help_lines
from tui.styled_text import Line, clip, ends, wrap
from tui.table_layout import Fitted, Grid
from tui.view_state import ViewState

Painter = Callable[[ViewState, int, int], list[Line]]


def text_of(lines: list[Line]) -> str:
    return "\n".join(line.plain for line in lines)


# -- numbers and lines ------------------------------------------------------------------------------------

DURATIONS = {None: "–", -1.0: "0.00s", 0.994: "0.99s", 0.996: "1.0s", 9.96: "10s", 59.4: "59s", 59.6: "1m00"}
DURATIONS |= {3599.6: "1h00", 86_399: "23h59", 200_000: "2d07h"}
RANGES = {(0.2, 0.4): "0–1s", (12.0, 40.0): "12–40s", (45.0, 130.0): "45s–3m", (5.1, 5.9): "5–6s"}
RANGES |= {(0.0, 0.0): "0s", (7_000.0, 9_000.0): "1–3h", (-3.0, 99.0): "0–99s", (2.6e5, 7.7e5): "72h–9d"}
COUNTS = {None: "–", 0: "0", 9_999: "9,999", 10_000: "10.0k", 999_949: "999.9k", 1_000_000: "1.0M"}
NAMES = {
    ("127.0.0.1:11434", "127.0.0.1:8080"): ("11434", "8080"),
    ("gpu-box-1.lan:11434", "gpu-box-2.lan:11434"): ("box-1", "box-2"),
    ("desk", "rack"): ("desk", "rack"),
    ("local",): ("local",),
    ("local", "local2"): ("local", "local2"),
}


@pytest.mark.parametrize(
    ("form", "values"),
    [
        (figures.duration, DURATIONS),
        (figures.count, COUNTS),
        (lambda ends: figures.duration_range(*ends), RANGES),  # rounded outwards
        (lambda names: tuple(figures.short_names(names)[each] for each in names), NAMES),
        (figures.brief, {950: "950", 1_200: "1.2k", 48_000: "48k", 1_300_000: "1M"}),
        (figures.size, {None: "–", 5 << 20: "5M", 24 << 30: "24.0G", 200 << 30: "200G"}),
        (figures.rate, {None: "–", 58.04: "58.0", 1234.5: "1,234"}),
        (figures.clock, {0.0: "00:00:00", 1e300: "–"}),
    ],
)
def test_figures_have_no_gaps_at_their_seams(form: Callable[[Any], Any], values: dict[Any, Any]) -> None:
    assert {value: form(value) for value in values} == values


def test_a_difference_that_nobody_notices_is_neither_good_nor_bad() -> None:
    for ours_s, other_s, said in ((0.05, 0.01, "±0%"), (100.2, 100.0, "±0%"), (2.0, 1.0, "+100%")):
        assert figures.change(ours_s, other_s, 20) == said
        assert figures.change(ours_s, other_s, 19) == figures.change(ours_s, 0.0, 20) == ""
        assert figures.gained(ours_s, other_s) == ("soft" if said == "±0%" else "warn")


def test_every_figure_fits_its_column() -> None:
    seconds = [10.0 ** (exponent / 7) for exponent in range(-21, 42)]
    assert max(len(figures.duration(each)) for each in seconds) <= 6
    assert max(len(figures.count(each)) for each in seconds) <= 7
    for fraction in (-1.0, 0.0, 0.001, 0.5, 0.99, 1.0, 7.0):
        assert figures.bar(fraction, 11).width == 11
        assert ("━" in figures.bar(fraction, 11).plain) == (fraction > 0.05)


def test_lines_are_printable_cut_with_an_ellipsis_and_set_beside_each_other() -> None:
    assert Line("a\x1b[2Jb\n").plain == "a·[2Jb·"
    line = Line("abc").add("defgh", "soft")
    assert [line.fit(width).plain for width in (0, 3, 5, 8)] == ["", "abc", "abcd…", "abcdefgh"]
    assert ends(Line("a long left side"), Line("right"), 12).plain == "a lon… right"
    assert clip("日本語", 4) == "日 …"
    assert wrap("one two  three four five", 9) == ["one two", "three", "four five"]
    assert wrap("", 9) == [""]
    siren = Line("a").add(" ", "siren").add(" ").join(Line(" b"))
    assert siren == [("a", "ink"), (" ", "siren"), ("  b", "ink")]


def test_an_area_of_dots_fills_its_box_from_below() -> None:
    lines = area("waiting", [None, 0.0, 2.0, 8.0, 4.0], "accent", 8, 3)
    assert [line.plain for line in lines] == ["… most 8", "    8┤ ⡇", "    0┤⢰⣿"]


# -- tables -----------------------------------------------------------------------------------------------


def test_filter_needs_all_words_and_refuses_some() -> None:
    rows = busy().queue
    chosen = QUEUE.select(rows, "", "LLAMA !notes")
    assert 0 < len(chosen) < len(rows)
    assert all("llama" in row.model and "notes" not in row.client for row in chosen)
    assert QUEUE.select(rows, "", "!") == rows


def test_sort_by_each_column() -> None:
    of: list[tuple[Grid[Any], Any]] = [(QUEUE, busy().queue), (RUNNING, busy().running)]
    for grid, rows in (*of, (RECENT, busy().recent)):
        for name in (column.name for column in grid.columns if column.sort):
            up = grid.select(rows, name, "")
            assert sorted(row.id for row in up) == sorted(row.id for row in rows)
    oldest = QUEUE.select(busy().queue, "-age", "")[0]
    assert oldest.age_s == max(row.age_s for row in busy().queue)


@pytest.mark.parametrize("width", [20, 30, 60, 78, 96, 120, 180])
def test_rows_keep_to_the_width_under_their_titles(width: int) -> None:
    fitted = Fitted.of(QUEUE, width, view())
    drawn = fitted.draw(busy().queue[0], view())
    assert drawn.width == fitted.heading().width <= width


def drawn(grid: Grid[Any], row: Any, width: int, shown: ViewState | None = None) -> str:
    shown = shown or view()
    return Fitted.of(grid, width, shown).draw(row, shown).plain


def columns_of(width: int, **fields: Any) -> set[str]:
    return {column.name for column, _ in Fitted.of(QUEUE, width, view(**fields)).columns}


@pytest.mark.parametrize("width", [78, 118])
def test_long_names_of_models_evict_neither_id_nor_tokens(width: int) -> None:
    state = busy()

    def renamed(rows: tuple[Any, ...]) -> tuple[Any, ...]:
        name = "hf.co/bartowski/Qwen2.5-Coder-32B-Instruct-GGUF:Q4_K_M"
        return tuple(replace(row, model=name) for row in rows)

    shown = view(queue=renamed(state.queue), running=renamed(state.running), recent=renamed(state.recent))
    tables: tuple[Grid[Any], ...] = (QUEUE, RUNNING, RECENT)
    for grid in tables:
        row = grid.rows(shown)[0]
        text = drawn(grid, row, width, shown)
        assert row.id in text
        assert {"id", "tokens", "model"} <= {
            column.name for column, _ in Fitted.of(grid, width, shown).columns
        }
        assert "Q4_K_M" in text
        assert "bartowski" not in text


@pytest.mark.parametrize("width", [98, 106])
def test_names_are_whole_and_servers_are_named_by_what_differs(width: int) -> None:
    state = busy()
    servers = tuple(replace(state.backends[0], name=f"gpu-box-{n}.lan:11434") for n in (1, 2))
    running = tuple(replace(row, backend=servers[n % 2].name) for n, row in enumerate(state.running))
    queue = tuple(replace(row, backends=(servers[n % 2].name,)) for n, row in enumerate(state.queue))
    shown = view(backends=servers, running=running, queue=queue)
    tables: tuple[tuple[Grid[Any], Any], ...] = ((QUEUE, queue[1]), (RUNNING, running[1]))
    for grid, row in tables:
        text = drawn(grid, row, width, shown)
        assert all(word in text for word in (row.model, row.client, "box-2"))
        assert "lan" not in text


def test_a_row_names_the_servers_that_tell_it_from_others() -> None:
    for names, said in (
        (SERVERS[:4], ""),
        (SERVERS[1:4], "not desk-left"),
        (SERVERS[2:3], "gpu-a"),
        ((), ""),
    ):
        rows = (replace(busy().queue[0], backends=names), *busy().queue[1:])
        shown = view(backends=FIVE, queue=rows)
        assert ("only" in {column.name for column, _ in Fitted.of(QUEUE, 110, shown).columns}) is bool(said)
        assert said in drawn(QUEUE, rows[0], 110, shown)
        assert {"id", "tokens"} <= {column.name for column, _ in Fitted.of(QUEUE, 110, shown).columns}


def test_where_room_lacks_the_wait_stays_and_what_has_nothing_to_show_takes_none() -> None:
    for width in (38, 78):
        assert {"rank", "id", "class", "why", "tokens", "eta"} <= columns_of(width)
        assert "priority" not in columns_of(width)
    assert {"bar", "client"} <= columns_of(120)
    anonymous = tuple(replace(row, client="") for row in busy().queue)
    assert "client" not in columns_of(120, queue=anonymous), "names of other tables do not count"
    assert "priority" not in columns_of(120)
    raised = replace(busy().queue[0], priority=-5)
    shown = view(queue=(raised, *busy().queue[1:]))
    assert "-5" in drawn(QUEUE, raised, 120, shown)


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
    paused = view(mode="paused")
    assert starts(row, paused, 7).plain == ("–" if narrow in ("12–40s", "25s", "next") else narrow)


def test_cells_say_what_is_special_of_a_request() -> None:
    queued, running, ended = busy().queue[0], busy().running[0], busy().recent[-1]
    due = replace(queued, cause="down", refused_in_s=48.0)
    assert "refused 48s" in drawn(QUEUE, due, 38, view(queue=(due,))), "it is not cut"
    chore = replace(queued, cause="chore", age_s=340.0, tau_s=None)
    assert ["━" in drawn(QUEUE, row, 120) for row in (chore, replace(chore, tau_s=90.0))] == [False, True]
    cut = replace(queued, cuts=1, tokens=311)
    expected = figures.brief(queued.predicted.expected_tokens)
    assert f" ½311/{expected} " in drawn(QUEUE, cut, 80, view(queue=(cut,)))
    late = replace(running, eta_s=0.2, eta_low_s=None, eta_high_s=None)  # longer than predicted
    assert "0.20s" in drawn(RUNNING, late, 76)
    assert "soon" in drawn(RUNNING, late, 76, replace(view(), drift_s=0.5))
    for dispatched_by, state, sign in (
        ("promoted", "decoding", "▲"),
        ("tau", "prefill", "◔"),
        ("", "new", "?"),
    ):
        assert sign in drawn(RUNNING, replace(running, dispatched_by=dispatched_by, state=state), 76)
    outcomes = ("completed", "client_cancelled", "operator_cancelled", "upstream_error", "odd")
    signs = ("✓ done", "← left", "cancelled", "✗ failed", "odd")
    for outcome, sign in zip(outcomes, signs, strict=True):
        assert sign in drawn(RECENT, replace(ended, outcome=outcome), 76)
    assert " → – " in drawn(RECENT, replace(ended, tokens=None), 120)


# -- the plan ---------------------------------------------------------------------------------------------


EVEN = dict.fromkeys(BY_NAME, 4)
IN_TURNS = EVEN | {"sessions": 1}
CROWDED = {"running": 16, "gpu": 40, "models": 20, "sessions": 40, "clients": 40}


@pytest.mark.parametrize("width", [20, 40, 80, 107, 108, 120, 167, 168, 200, 300])
@pytest.mark.parametrize(
    "wish",
    [
        SizeHint(),
        SizeHint(rows=EVEN | {"queue": 1}),
        SizeHint(deck="log", rows=EVEN | CROWDED),
        SizeHint(maximised="programs"),
        *(SizeHint(hidden=frozenset((name, "log")), rows=IN_TURNS) for name in PANELS if name != "queue"),
        SizeHint(hidden=frozenset(PANELS) - {"queue"}),
    ],
)
def test_boxes_stay_on_the_screen_and_do_not_overlap(width: int, wish: SizeHint) -> None:
    for height in range(4, 70, 3):
        boxes = [*plan(width, height, wish).values()]
        assert all(Region(0, 0, width, height).contains_region(box) for box in boxes)
        assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (200, 60)])
def test_a_hidden_panel_leaves_its_room_to_others(width: int, height: int) -> None:
    for name in plan(width, height, SizeHint()).keys() - {"header", "footer", "queue"}:
        boxes = plan(width, height, SizeHint(hidden=frozenset((name,))))
        assert name not in boxes
        assert sum(box.area for box in boxes.values()) >= 0.95 * width * height, name


def test_larger_screens_show_every_panel_the_small_one_a_panel_of_the_deck() -> None:
    for width, height in ((120, 40), (200, 60)):
        assert set(PANELS) <= set(plan(width, height, SizeHint(rows=IN_TURNS)))
        assert set(PANELS) - set(plan(width, height, SizeHint())) == {"sessions", "programs"}
        assert not has_deck(width, height)
    for name in DECK:
        small = {"header", "footer", "running", "queue", name}
        assert set(plan(80, 24, SizeHint(deck=name, rows=IN_TURNS))) == small


# -- the page of a request --------------------------------------------------------------------------------

QUEUED = replace(busy().queue[-1], id="it")
RUNS = replace(busy().running[0], id="it")
ENDED = replace(busy().recent[-1], id="it")
PARTS = AnswerPart(0.0, 60.0, 500, "local", 1), AnswerPart(90.0, None, 20, "local", 2)
AnyRequest = QueuedRequest | RunningRequest | FinishedRequest


def says(text: str, words: str) -> bool:
    """Whether all words between the bars stand in a text, and none after an exclamation mark."""
    return all((word.removeprefix("!") in text) is not word.startswith("!") for word in words.split("|"))


def page_of(row: AnyRequest, **shown: Any) -> str:
    name = {QueuedRequest: "queue", RunningRequest: "running", FinishedRequest: "recent"}[type(row)]
    fields: dict[str, Any] = {name: (row,)}
    return " ".join(text_of(detail(replace(view(**fields), **shown), row.id, 90)).split())


@pytest.mark.parametrize(
    ("row", "fields", "words"),
    [
        (QUEUED, {}, f"rank {QUEUED.rank} of {QUEUED.rank}|{QUEUED.why}|#{QUEUED.rank_fcfs}, starts in"),
        (QUEUED, {"priority": -5, "rank_fcfs": None}, "priority -5 lower goes sooner"),
        (
            QUEUED,
            {"eta_s": 25.0, "eta_low_s": 12.0, "eta_high_s": 40.0},
            "~25s 12–40s about 12 start before it",
        ),
        (QUEUED, {"ahead": 1.2}, "about 1 starts before it"),
        (QUEUED, {"backends": ("local", "desk")}, "server one of local, desk"),
        (QUEUED, {}, f"{RUNS.client} ({busy().running[0].id}) ends in ~"),
        (QUEUED, {"cause": "down", "refused_in_s": 48.0, "ahead": None}, "refused 48s|!before it"),
        (QUEUED, {"cuts": 2, "tokens": 311}, "suspended 311 of ~|preempted 2 times for shorter requests"),
        (QUEUED, {"tau_s": None, "model": "", "client": ""}, "!of tau|for an unnamed client"),
        (
            QUEUED,
            {"urgency": 0, "urgency_by": "rule"},
            "level 0, immediate set by a rule of the clients",
        ),
        (RUNS, {"urgency": 3, "urgency_by": "operator"}, "level 3, less urgent set by the operator"),
        (QUEUED, {"urgency_by": "share"}, "its client has used its share of urgency"),
        (RUNS, {}, f"!urgency|{RUNS.state} in slot {RUNS.slot} of {RUNS.backend}"),
        (RUNS, {"slot": None, "estimated": True}, f"decoding in local|about {RUNS.tokens:,} of ~"),
        (
            RUNS,
            {"uncut": "too short"},
            "preemption no: too short",
        ),
        (RUNS, {"parts": PARTS}, "parts 1 |1m00, 500 tokens"),
        (ENDED, {"parts": PARTS[:1]}, "████ 1m00, 500 tokens"),
        (ENDED, {"outcome": "rejected", "status": 529, "tokens": None}, "rejected, status 529|tokens –"),
        (ENDED, {"slot": 2}, f"server local, slot 2|sent by {ENDED.dispatched_by}|from arrival"),
        (ENDED, {"dispatched_by": "", "remark": "truncated"}, "not sent to a server|note truncated"),
    ],
)
def test_the_page_of_a_request_says_what_is_known_of_it(
    row: AnyRequest, fields: dict[str, Any], words: str
) -> None:
    page = page_of(replace(row, **fields))
    assert says(page, words), page


def test_the_page_follows_a_request_that_moves_and_ends() -> None:
    last, running = busy().queue[-1], busy().running[0]
    raised = replace(view(), snapshot=moved(busy(), last.id, "promoted"))
    assert "promoted  by the operator" in text_of(detail(raised, last.id, 90))
    ended = replace(busy().recent[-1], id=running.id, outcome="client_cancelled", status=499)
    assert "client_cancelled, status 499" in text_of(
        detail(view(running=(), recent=(ended,)), running.id, 90)
    )
    assert "no longer kept" in text_of(detail(view(), "nobody", 90))


def test_the_page_says_who_is_first_which_slot_comes_free_and_the_wait_in_both_orders() -> None:
    state, last = busy(), busy().queue[-1]
    first, runs = state.queue[0], state.running[0]
    turns = [
        ArrivalTurn(runs.id, "local", 3, 0.0, state.taken_at - 9.0, state.taken_at + 5.0),
        ArrivalTurn(last.id, "local", 3, 20.0, state.taken_at + 5.0, state.taken_at + 9.0),
    ]
    text = " ".join(text_of(detail(view(to_come=tuple(turns)), last.id, 90)).split())
    assert f"server local, slot 3 after {runs.client} ({runs.id})" in text
    assert f"before it #1 S {first.client} ({first.id}) {first.cause} #2" in text
    assert f"why here {last.cause}: {last.why}" in text
    assert "before it" not in text_of(detail(view(), first.id, 90)).replace("start before it", "")
    ended = replace(state.recent[-1], waited_s=2.0)
    turn = ArrivalTurn(ended.id, "local", 0, 20.0, state.taken_at - 30.0, state.taken_at - 9.0, known=True)
    text = " ".join(text_of(detail(view(recent=(ended,), in_order=(turn,)), ended.id, 90)).split())
    assert "waited 2.0s sent by" in text
    assert "by arrival 20s −90%" in text


def test_what_a_word_of_the_prompt_did_is_a_signed_share() -> None:
    features = (("code", -0.5), ("asks for a list", 0.22), ("essay", 1.4), ("characters a word", -0.4))
    page = page_of(replace(QUEUED, predicted=replace(QUEUED.predicted, features=features, source="")))
    assert [word in page for word in ("−39%", "+25%", "×4.1", "characters a word")] == [True] * 3 + [False]
    assert "because" not in page_of(replace(QUEUED, predicted=replace(QUEUED.predicted, features=())))


# -- other panels -----------------------------------------------------------------------------------------


def server(**fields: Any) -> dict[str, tuple[BackendState, ...]]:
    return {"backends": (replace(busy().backends[0], **fields),)}


def of_tau(**fields: Any) -> dict[str, Any]:
    return {"tau": replace(busy().tau, **fields)}


SERVERS = ("desk-left", "desk-right", "gpu-a", "gpu-b", "gpu-c")
FIVE = tuple(replace(busy().backends[0], name=name, state="up") for name in SERVERS)
FIVE = (*FIVE[:4], replace(FIVE[4], state="down", busy=0))
LATE = next(row for row in busy().recent if row.dispatched_by == "tau")
FAILED = replace(LATE, id="it", client="ann", outcome="upstream_error", status=500, dispatched_by="")
QUICK = tuple(
    ClassStats(each.length_class, Percentiles(9, 0.5, 1.0, 1.0), Percentiles()) for each in busy().stats
)
MANY = tuple(replace(each, wait=replace(each.wait, n=1070)) for each in busy().stats_paired)
GAIN = GainState(saved_today_s=4740.0, answers_today=100, estimated_today=58, spared_tokens_today=1049.0)


@pytest.mark.parametrize(
    ("painter", "fields", "size", "words"),
    [
        (stats.body, {"stats_fcfs": ()}, (42, 9), "!by arrival|wait n"),
        (stats.body, {"stats_paired": MANY}, (42, 9), "S 1.1k"),
        (stats.body, {"stats_fcfs": QUICK}, (42, 9), "+"),
        (stats.body, {}, (90, 11), "total     p50|ended 447 done"),
        (models.body, server(name="two", state="down", detail="refused"), (39, 5), "○ two  down refused"),
        (models.body, server(state="odd", standing="draining"), (39, 5), "? local  odd   draining"),
        (models.body, server(self_test="self-test: 8 of 24"), (60, 5), "\n  self-test: 8 of 24|ctx 8192"),
        (models.body, server(models=(), busy=0), (39, 5), "no model loaded"),
        (models.body, server(models=()), (39, 5), "!no model loaded"),
        (models.body, {"backends": FIVE}, (39, 1), "○ gpu-c  down"),
        (
            models.body,
            server(engine=EngineState(8, 40, 2, 0.5)),
            (48, 5),
            "8 run, 40 wait inside, 2|KV 50%",
        ),
        (models.body, server(engine=EngineState(8, 40)), (48, 5), "!KV|!preempted"),
        (log.log, {"log": ()}, (40, 5), "nothing to report"),
        (
            log.went_wrong,
            {"log": (LogEvent(9.0, "warning", "local is down: refused"), LogEvent(9.5, "info", "hello"))},
            (70, 9),
            f"local is down: refused|τ started  {LATE.id} {LATE.client}: had waited|!hello",
        ),
        (
            log.went_wrong,
            {"recent": (FAILED,)},
            (99, 9),
            "✗ failed   it ann: local answered with status 500",
        ),
        (log.went_wrong, {"recent": (replace(FAILED, remark="no slot"),)}, (99, 9), "ann: no slot|!status"),
        (header.header, {"gain": GainState()}, (200, 3), "S 1.8s this hour"),
        (header.header, {"gain": GainState(), "stats_paired": ()}, (80, 3), "No answer yet to compare"),
        (header.header, {"gain": replace(GAIN, saved_today_s=0.0)}, (80, 3), "no change in waiting time"),
        (header.header, {"gain": replace(GAIN, saved_today_s=-99.0)}, (80, 3), "1m39 more waiting today"),
        (header.header, {"gain": GAIN}, (80, 3), "1h19 less waiting today (100 answers, 47s each, 58|!fewer"),
        (header.header, {"gain": GAIN}, (120, 3), "58 estimated)|!tokens read"),
        (
            header.header,
            {"gain": GAIN, "sessions": SessionsState(cached_tokens=9.0)},
            (120, 3),
            "estimated)   about 1,049 fewer tokens read",
        ),
        (
            header.header,
            {"gain": replace(GAIN, estimated_today=8)},
            (80, 3),
            "1h19 less waiting today|!about 1h19",
        ),
        (header.header, {"utilisation_s": 42.0}, (80, 2), "load 42 s"),
    ],
)
def test_a_panel_says_what_is_special_in_whole_words(
    painter: Painter, fields: dict[str, Any], size: tuple[int, int], words: str
) -> None:
    lines = painter(view(**fields), *size)
    assert all(line.width <= size[0] for line in lines)
    assert says(text_of(lines), words), text_of(lines)


def test_a_firing_of_tau_is_lit_for_a_moment() -> None:
    lit = view("empty", **of_tau(firings_total=1, recent=(view("empty").state.taken_at,)))
    assert lit.tau_lit
    assert ("τ 1m30", "siren") in header.header(lit, 80, 2)[1]
    assert not replace(lit, drift_s=10.0).tau_lit


def test_help_lists_every_key_and_fits_80_columns() -> None:
    for width in (70, 110):
        text = text_of(help_lines(view(), width, 40))
        assert all(key.label in text for key in KEYS if key.help)
        written = " ".join(key.label for key in KEYS if key.help).split()
        others = {"up,k": "k", "right_square_bracket": "]", "right_curly_bracket": "}"}
        others |= {"end,G": "G", "right,l": "l", "pageup,ctrl+b": "^B", "ctrl+u": "^U"}
        assert all(others.get(key.keys, key.keys) in written for key in KEYS if not key.help)
        assert all(line.width <= width for line in help_lines(view(), width, 40))


# -- what is not known ------------------------------------------------------------------------------------


async def test_a_daemon_that_falls_silent_is_said_to_and_its_times_stand_still() -> None:
    now = [0.0]
    app = Top(Script(), clock=lambda: now[0])
    async with app.run_test(size=(120, 40)):
        app.take(busy())
        told: list[tuple[float, str]] = []
        for now[0] in (1.0, 1.9, 2.0, 4.2, 14.0):
            seen = app.view()
            told.append((seen.drift_s, text_of(header.header(seen, 120, 1)).strip().split("  ")[0]))
        app.take(busy())
        assert "no news" not in text_of(header.header(app.view(), 120, 1))
        assert [drift_s for drift_s, _ in told] == [1.0, 1.9, 2.0, 2.0, 2.0]
        assert all(words.startswith("● Busy") for _, words in told[:2])
        assert [words for _, words in told[2:]] == ["no news for 2 s", "no news for 4 s", "no news for 14 s"]
        await asyncio.sleep(0)
