"""Each key, what is typed, and the mouse: what the daemon is asked, and what the view makes of it."""

from dataclasses import replace
from errno import EROFS
from pathlib import Path
from time import localtime, strftime
from typing import Any

import pytest
from textual import events
from textual.containers import VerticalScroll
from textual.widgets import Input, OptionList, Static

from clairvoyant_cli.state.actions import Action, Verb
from clairvoyant_cli.state.snapshot import ClientState
from clairvoyant_cli.state.source import Disconnected
from tests.tui.board import Script, bench, busy, settled, stage
from tests.tui.scene import judged, moved
from tests.tui.test_tui_screens import in_turns
from tui.app import Top
from tui.formatting import duration
from tui.keys import KEYS
from tui.palette import THEMES
from tui.panels.requests import QUEUE
from tui.screens.dialogs import Choose, Confirm, Prompt
from tui.screens.pages import PageScreen
from tui.widgets.canvas import Panel
from tui.widgets.table import Table

ON_REQUESTS = ("x", "ctrl+k", "t", "H", "plus", "minus", "U")

# -- what the daemon is asked to do -----------------------------------------------------------------------


ASKED: dict[str, list[tuple[Any, ...]]] = {
    "j j t": [(Verb.PROMOTE, 1)],
    "j j H": [(Verb.HOLD, 1)],
    "j j plus": [(Verb.PRIORITY, 1, -1)],
    "j j minus": [(Verb.PRIORITY, 1, 1)],
    "j j ctrl+k": [(Verb.CANCEL, 1)],
    "j x y": [(Verb.CANCEL, 0)],
    "j j U j enter": [(Verb.URGENCY, 1, 1)],
    "j space space t": [(Verb.PROMOTE, 0), (Verb.PROMOTE, 1)],
    "j space space U g enter": [(Verb.URGENCY, 0, 0), (Verb.URGENCY, 1, 0)],
    "j x n x escape x q x enter": [],  # only y says yes
    "7 j x ctrl+k U": [],  # they have ended
    "D escape D enter D n": [],
    "D y": [(Verb.DRAIN, None)],
    "P": [(Verb.PAUSE, None)],
    "m j enter": [(Verb.POLICY, None, "fcfs")],
    "m escape m q": [],
}


async def test_keys_ask_the_daemon() -> None:
    async with bench() as it:
        for keys, asked in ASKED.items():
            it.table.unchoose()
            it.source.asked.clear()
            it.app._expected.clear()
            await it.press("1", "2", *keys.split())
            assert it.source.asked == [
                Action(verb, None if at is None else it.queue[at].id, *value) for verb, at, *value in asked
            ], keys
            assert it.app.screen is it.board


async def test_a_running_request_can_be_cancelled_and_nothing_else() -> None:
    async with bench() as it:
        await it.press("1", "j", "t")
        assert "only queued requests can be moved" in it.text
        await it.press("H", "plus", "x", "y")
        assert it.source.asked == [Action(Verb.CANCEL, it.snapshot.running[0].id)]
        await it.press("7", "j", "x")
        assert "it has ended" in it.text


async def test_keys_act_on_no_table_that_is_hidden_or_has_not_the_focus() -> None:
    async with bench() as it:
        await it.press("j")
        for go in ("9", "z"):
            await it.press(go)
            for key in (*ON_REQUESTS, "space", "enter", "slash", "j", "s"):
                await it.press(key)
                assert "this panel has no rows" in it.text
                assert it.app.screen is it.board
                it.quiet()
        assert it.source.asked == []
        await it.press("2", "t")
        assert it.source.asked == [Action(Verb.PROMOTE, it.queue[0].id)]


async def test_keys_typed_at_once_act_on_what_the_first_of_them_goes_to() -> None:
    async with bench() as it:
        for key in ("1", "j", "ctrl+k"):
            it.app.post_message(events.Key(key, None))
        await it.press()
        for letter in ":tau 90":
            it.app.post_message(events.Key("colon" if letter == ":" else letter, letter))
        await it.press("enter")
        running = it.snapshot.running[0].id
        assert it.source.asked == [Action(Verb.CANCEL, running), Action(Verb.TAU, value=90.0)]


async def test_the_keys_of_requests_do_nothing_to_a_session() -> None:
    async with bench(in_turns(busy())) as it:
        for key in ("x", "ctrl+k", "t", "H", "plus", "U", "enter"):
            await it.press("a", key)
            assert it.app.screen is it.app.board
            assert "this key is for requests" in it.text
            it.quiet()
        assert it.source.asked == []
        await it.press("slash", *"parked", "enter")
        assert "2 of 5" in it.text
        assert "s15" in it.text
        assert "s12" not in it.text


async def test_what_is_held_paused_or_draining_is_taken_back_by_the_same_key() -> None:
    state = moved(busy(), busy().queue[0].id, "held")
    async with bench(state) as it:
        await it.press("end", "H")
        assert it.source.asked == [Action(Verb.RELEASE, state.queue[-1].id)]
    for key, verb, mode in (("P", Verb.PAUSE, "paused"), ("D", Verb.DRAIN, "draining")):
        async with bench() as it:
            await it.press(key, "y")
            await it.take(mode=mode, running=(), verdict=judged(replace(busy(), mode=mode)).verdict)
            assert f"{key} resume" in it.text
            assert "next" not in it.text.replace("goes next", "") or mode != "paused"
            await it.press(key)
            assert [action.verb for action in it.source.asked] == [verb, Verb.RESUME]


async def test_the_policy_menu_says_what_each_does() -> None:
    async with bench() as it:
        names = ("boost", "fcfs", "urgency", "sjf")
        await it.take(policies=names, summaries=[f"what {name} does" for name in names], seldom=("sjf",))
        await it.press("m")
        words = " ".join(it.text.split())
        for said in ("● boost", "what boost does", "○ fcfs", "what fcfs does"):
            assert said in words
        assert not any(f"○ {name}" in words for name in ("sjf",)), "`:policy sjf` has it"


async def test_tau_is_set() -> None:
    async with bench() as it:
        for typed, tau_s in (("60", 60.0), ("off", 0.0), ("2.5s", 2.5)):
            await it.press("T")
            assert "tau 90" in it.text
            await it.press("backspace", "backspace", *typed, "enter")
            assert it.source.asked[-1] == Action(Verb.TAU, value=tau_s)
            assert f"tau 90 s → {f'{tau_s:g} s' if tau_s else 'off'}" in it.text


async def test_readonly_and_a_daemon_that_is_gone_refuse_every_action() -> None:
    keys = (*ON_REQUESTS, "P", "D", "m", "u", "B", "T")
    async with bench(readonly=True) as it:
        for key in keys:
            await it.press("j", key)
            assert "read-only: nothing was changed" in it.text
            it.quiet()
        assert it.source.asked == []
    async with bench() as it:
        it.app.take(Disconnected("no daemon answers"))
        for key in ("x", "H", "P", "m"):
            await it.press("j", key)
            assert "no daemon: nothing was changed" in it.text
            it.quiet()
        assert it.source.asked == []


async def test_a_refusal_is_shown_in_the_daemons_words_and_not_undone() -> None:
    async with bench() as it:
        it.source.refusal = "it has [started] already"
        await it.press("j", "t")
        assert "it has [started] already" in it.text
        await it.press("u")
        assert "nothing to undo" in it.text
        assert len(it.source.asked) == 1


# -- undo -------------------------------------------------------------------------------------------------


async def test_each_key_says_what_it_did_and_one_key_undoes_it() -> None:
    async with bench() as it:
        ident = it.queue[0].id
        for keys, said, verb, value in (
            (("t",), f"promoted {ident}", Verb.PRIORITY, 0),
            (("H",), f"held {ident}", Verb.RELEASE, None),
            (("minus",), f"priority of {ident} 0 → 1", Verb.PRIORITY, 0),
            (("U", "g", "enter"), f"urgency of {ident} none → 0", Verb.URGENCY, 2),
            (("P",), "paused", Verb.RESUME, None),
            (("D", "y"), "draining", Verb.RESUME, None),
            (("colon", *"policy sjf", "enter"), "policy boost → sjf", Verb.POLICY, "boost"),
            (("colon", *"tau 7", "enter"), "tau 90 s → 7 s", Verb.TAU, "auto"),
            (("B", *"drain local", "enter", "y"), "draining local", Verb.BACKEND, "up"),
        ):
            await it.press("g", *keys)
            assert f"{said}  (u: undo)" in it.text
            await it.press("u")
            assert f"undone: {said}" in it.text
            assert (it.source.asked[-1].verb, it.source.asked[-1].value) == (verb, value)
            it.app._expected.clear()
        await it.press("u")
        assert "nothing to undo" in it.text
        await it.press("g", "x", "y", "u")
        assert f"cancelled {ident}: cannot be undone" in it.text


async def test_several_are_undone_together_and_as_they_were() -> None:
    async with bench() as it:
        first, second = it.queue[:2]
        await it.take(queue=(replace(first, held=True, priority=3), *it.queue[1:]))
        await it.press("j", "space", "space", "t")
        assert "promoted 2 requests" in it.text
        await it.press("u")
        assert it.source.asked[2:] == [
            Action(Verb.PRIORITY, second.id, 0),
            Action(Verb.PRIORITY, first.id, 3),
            Action(Verb.HOLD, first.id),
        ]
        await it.take(queue=(replace(first, promoted=True, held=True), *it.queue[1:]))
        await it.press("escape", "g", "H", "u", "minus", "u")
        verbs = [action.verb for action in it.source.asked[5:]]
        assert verbs == [Verb.RELEASE, Verb.HOLD, Verb.PRIORITY, Verb.PROMOTE]


async def test_what_has_changed_since_is_not_undone() -> None:
    async with bench() as it:
        clock = [0.0]
        it.app._clock = lambda: clock[0]
        await it.press("j", "minus")
        clock[0] = 10.0
        await it.take(queue=(replace(it.queue[0], priority=7), *it.queue[1:]))
        await it.press("u")
        assert "it was changed since: nothing was undone" in it.text
        await it.take()
        await it.press("t")
        clock[0] = 20.0
        await it.take(queue=it.queue[1:])
        await it.press("u")
        assert "it has started or ended since: nothing was undone" in it.text
        await it.press("P")
        it.app.take(Disconnected("no daemon answers"))
        await it.take(mode="paused", uptime_s=3.0)  # another run of the daemon
        await it.press("u")
        assert "nothing to undo" in it.text
        assert [action.verb for action in it.source.asked] == [Verb.PRIORITY, Verb.PROMOTE, Verb.PAUSE]


# -- the command line -------------------------------------------------------------------------------------


TYPED = {
    "cancel abc-7": Action(Verb.CANCEL, "abc-7"),
    "cancel id=abc-7": Action(Verb.CANCEL, "abc-7"),
    "policy sjf": Action(Verb.POLICY, value="sjf"),
    "tau 90": Action(Verb.TAU, value=90),
    "tau auto": Action(Verb.TAU, value="auto"),
    "pause": Action(Verb.PAUSE),
    "backend drain local": Action(Verb.BACKEND, "local", "drain"),
    "backend up local": Action(Verb.BACKEND, "local", "up"),
    "model unload m:7b": Action(Verb.MODEL, "m:7b", "unload"),
    "priority abc-7 -5": Action(Verb.PRIORITY, "abc-7", -5),
}


async def test_a_verb_can_be_typed() -> None:
    async with bench() as it:
        for typed, asked in TYPED.items():
            it.source.asked.clear()
            await it.press("1", "9", "colon")
            await it.type(typed)
            if typed.startswith(("cancel", "backend drain")):
                await it.press("enter", "colon")
                await it.type(typed)
                assert it.source.asked == [], "Enter is no yes"
                await it.press("y")
            assert it.source.asked == [asked]
            assert it.app.screen is it.board


async def test_a_verb_without_a_name_acts_on_the_chosen_request() -> None:
    async with bench() as it:
        await it.press("colon", *"hold", "enter")
        assert "no request is chosen" in it.text
        await it.press("j", "colon", *"hold", "enter", "colon", *"priority 4", "enter")
        ident = it.queue[0].id
        assert it.source.asked == [Action(Verb.HOLD, ident), Action(Verb.PRIORITY, ident, 4)]
        await it.press("colon", *"cancel", "enter")
        assert isinstance(it.app.screen, Confirm)


async def test_what_is_wrong_with_a_command_is_said_in_a_line_and_it_stays() -> None:
    async with bench() as it:
        for typed, said in (
            ("frobnicate", "no command frobnicate: Tab lists them"),
            ("policy", "give policy POLICY"),
            ("pause now", "'now' is too much: pause, or KEY=VALUE"),
            ("go nowhere", "give go running|queue|"),
        ):
            await it.press("colon")
            await it.type(typed)
            assert isinstance(it.app.screen, Prompt)
            assert said in it.text
            await it.press("escape")
        assert it.source.asked == []


async def test_what_is_typed_goes_to_panels_and_does_what_keys_do() -> None:
    async with bench() as it:
        await it.press("colon", *"go recent", "enter")
        assert it.app.focused is not None
        assert it.app.focused.id == "recent"
        await it.press("c", "colon", *"freeze", "enter")
        assert "frozen" in it.text
        assert it.app.screen is it.board, "a page is left for the command line"
        await it.press("colon", "q", "enter")
        assert not it.app.is_running or it.app.return_code == 0


async def test_tab_completes_verbs_ids_policies_and_servers() -> None:
    async with bench() as it:
        for typed, keys, whole in (
            ("ca", ("tab",), "cancel"),
            ("pro", ("tab", "o", "tab"), "promote "),
            ("policy sj", ("tab",), "policy sjf "),
            ("theme c", ("tab",), "theme contrast "),
            ("backend dr", ("tab", "tab"), "backend drain local "),
            ("pause x", ("tab",), "pause x"),
            (f"hold {it.queue[3].id[-3:]}", ("tab",), f"hold {it.queue[3].id} "),
        ):
            await it.press("colon", *typed, *keys)
            assert it.app.screen.query_one(Input).value == whole
            await it.press("escape")
        await it.press("colon")
        assert "cancel  promote  hold" in it.text
        await it.press("escape", "colon", *"urgency ", "tab")
        assert it.queue[0].id in it.text
        await it.press("escape", "colon", *"tau 5", "enter")
        assert len(it.source.asked) == 1


# -- the page of a request --------------------------------------------------------------------------------


async def test_the_keys_act_on_the_request_whose_page_is_open() -> None:
    async with bench() as it:
        first, second = it.queue[:2]
        await it.press("j", "j", "enter")
        assert "x cancel  t to top  H hold  U urgency  y copy  j k scroll" in it.text
        await it.press("t", "H", "plus", "y")
        assert it.source.asked == [
            Action(Verb.PROMOTE, second.id),
            Action(Verb.HOLD, second.id),
            Action(Verb.PRIORITY, second.id, second.priority - 1),
        ]
        assert it.app.clipboard == second.id
        await it.press("x")
        assert f"Cancel {second.id}?" in it.text
        await it.press("y")
        await it.press("U", "0", "enter")
        assert it.source.asked[3] == Action(Verb.CANCEL, second.id)
        assert it.source.asked[4].verb is Verb.URGENCY
        assert it.source.asked[4].id == second.id
        await it.press("escape", "t")
        assert it.source.asked[5] == Action(Verb.PROMOTE, second.id), "on the board, the chosen one"
        assert first.id not in {each.id for each in it.source.asked}


async def test_no_key_of_a_page_acts_on_a_request_that_has_ended_or_under_readonly() -> None:
    async with bench() as it:
        ident = it.queue[0].id
        await it.press("j", "enter")
        await it.take(queue=it.queue[1:])
        for key in ("x", "t", "H", "U"):
            await it.press(key)
            assert f"{ident} has ended: nothing was done" in it.text
            it.quiet()
        assert it.source.asked == []
    async with bench(readonly=True) as it:
        await it.press("j", "enter", "x")
        assert "read-only: nothing was changed" in it.text
        assert it.source.asked == []


# -- the cursor -------------------------------------------------------------------------------------------


async def test_the_cursor_is_on_no_request_before_it_is_moved() -> None:
    async with bench() as it:
        assert it.table.lit_row() is None
        for key in (*ON_REQUESTS, "y"):
            await it.press(key)
            assert "no request is chosen: j or k chooses one" in it.text
            it.quiet()
        assert it.source.asked == []
        await it.press("j", "y")
        assert it.table.current == it.queue[0]
        assert it.app.clipboard == it.queue[0].id
        await it.press("escape")
        assert it.table.current is None


async def test_the_cursor_moves_by_rows_pages_and_ends() -> None:
    moved = "j down k up pagedown pageup ctrl+f ctrl+b ctrl+d ctrl+u G home end g g".split()
    async with bench() as it:
        ids, at = [row.id for row in it.queue], []
        for key in moved:
            await it.press(key)
            at.append(ids.index(it.table.current.id))
        last, page, half = len(ids) - 1, at[4], at[8]
        assert page > half > 0
        assert at == [0, 1, 0, 0, page, 0, page, 0, half, 0, last, 0, last, 0, 0]


async def test_ended_requests_are_followed_again_once_another_panel_has_the_focus() -> None:
    async with bench() as it:
        recent = it.board.query_one("#recent", Table)
        await it.press("7", "G")
        assert recent.current is recent.rows[-1]
        await it.press("2")
        it.app.take(it.snapshot)
        await it.press()
        assert (recent.current, recent._top) == (None, 0)


async def test_the_cursor_follows_its_request() -> None:
    async with bench() as it:
        last = it.queue[-1].id
        await it.press("G", "t")
        await it.take(queue=moved(it.snapshot, last, "promoted").queue)
        assert (it.table.current.id, it.table.rows.index(it.table.current)) == (last, 0)
        await it.press("plus", "plus", "minus")
        assert {action.id for action in it.source.asked} == {last}
        assert [action.value for action in it.source.asked] == [None, -1, -2, -1]


async def test_a_key_acts_on_no_other_request_once_the_chosen_one_has_left() -> None:
    async with bench() as it:
        await it.press("j", "j")
        chosen, after = it.queue[1:3]
        await it.take(queue=tuple(row for row in it.queue if row != chosen))
        for key in ("t", "t", "x", "ctrl+k", "H", "minus"):
            await it.press(key)
            assert f"{chosen.id} has ended: nothing was done" in it.text
            it.quiet()
        assert it.source.asked == []
        assert it.table.lit_row() is None
        await it.press("enter")
        assert isinstance(it.app.screen, PageScreen)
        assert chosen.id in it.text, "the page follows it where it went"
        await it.press("escape", "j", "t")
        assert it.source.asked == [Action(Verb.PROMOTE, after.id)], "the row that took its place"


async def test_a_request_that_started_is_said_to_have_started_and_is_found_when_it_comes_back() -> None:
    async with bench() as it:
        await it.press("j")
        chosen, *others = it.queue
        await it.take(queue=tuple(others), running=(replace(it.snapshot.running[0], id=chosen.id),))
        await it.press("t")
        assert f"{chosen.id} has started: nothing was done" in it.text
        it.app.take(it.snapshot)
        await it.press("t")
        assert it.source.asked == [Action(Verb.PROMOTE, chosen.id)]


async def test_marks_that_have_left_or_are_filtered_away_are_not_acted_on() -> None:
    async with bench() as it:
        await it.press("j", "space", "space")
        assert "2 marked" in it.text
        gone, left, *others = it.queue
        await it.take(queue=(left, *others))
        await it.press("t")
        assert it.source.asked == [Action(Verb.PROMOTE, left.id)]
        await it.take(queue=tuple(others))
        await it.press("t")
        assert f"{gone.id} has ended: nothing was done" in it.text
        await it.press("t")
        assert len(it.source.asked) == 1
        await it.press("g", "space", "slash", *others[3].id, "enter", "ctrl+k")
        assert f"{others[0].id} is not in this list: nothing was done" in it.text
        assert len(it.source.asked) == 1
        await it.press("escape")
        assert "marked" not in it.text


# -- the view ---------------------------------------------------------------------------------------------


async def test_filter_follows_every_letter_and_escape_drops_it() -> None:
    async with bench() as it:
        client = it.queue[0].client
        await it.press("slash", *client)
        assert {row.client for row in it.table.rows} == {client}
        await it.press("enter")
        assert f"/{client}" in it.text
        await it.press("escape")
        assert len(it.table.rows) == len(it.queue)
        await it.press("slash", "q", "x", "z")
        assert "No match" in it.text
        await it.press("escape")
        assert len(it.table.rows) == len(it.queue)


async def test_the_last_hour_can_be_looked_back_on_and_nothing_is_changed_there() -> None:
    async with bench() as it:
        begun = it.snapshot.taken_at
        for passed_s in range(5, 300, 5):
            state = replace(it.snapshot, taken_at=begun + passed_s, uptime_s=1000.0 + passed_s)
            it.app.take(replace(state, waiting=replace(state.waiting, total=1_000 + passed_s)))
        await settled(it.app, it.pilot)
        assert "waiting 1,295" in it.text
        await it.press("left_square_bracket")
        assert "waiting 1,290" in it.text
        assert "5.0s ago" in it.text
        await it.press("left_square_bracket", "j", "t")
        assert "waiting 1,285" in it.text
        assert it.source.asked == []
        assert "this is the past" in it.text
        await it.press("right_square_bracket")
        assert "waiting 1,290" in it.text
        await it.press("right_square_bracket")
        assert "waiting 1,295" in it.text
        await it.press("right_square_bracket")
        assert " ago" not in it.text.split("\n")[0]
        await it.press("left_curly_bracket")
        assert "1m00 ago" in it.text
        at = strftime("%H:%M:%S", localtime(begun + 200.0))
        await it.press("colon", *f"at {at}", "enter")
        assert "waiting 1,200" in it.text
        await it.press("colon", *"at noon", "enter")
        assert "give a time, such as " in it.text
        await it.press(
            "escape", "escape", "colon", *f"at {strftime('%H:%M', localtime(begun - 7200.0))}", "enter"
        )
        assert "the states of the last hour are kept" in it.text
        await it.press("escape", "escape")
        assert " ago" not in it.text.split("\n")[0]


async def test_freeze_keeps_the_picture_while_the_daemon_works_on() -> None:
    later = stage(play_s=135.0).snapshot()
    async with bench() as it:
        await it.press("p")
        it.app.take(later)
        await settled(it.app, it.pilot)
        assert it.app.view().snapshot == it.snapshot
        assert "frozen" in it.text
        await it.press("p")
        assert it.app.view().snapshot == later


async def test_a_panel_takes_all_the_room_and_the_deck_turns() -> None:
    async with bench() as it:
        await it.press("3", "z")
        assert "queue ─" not in it.text
        await it.press("2")
        assert "2 queue" in it.text
        assert "3 timeline" not in it.text
        await it.press("escape", "z", "z")
        assert "3 timeline" in it.text
    async with bench(size=(80, 24)) as it:
        for key, name in (("right", "gpu"), ("left", "timeline"), ("l", "gpu"), ("h", "timeline")):
            await it.press(key)
            assert it.app.focused is not None
            assert it.app.focused.id == name


@pytest.mark.parametrize("spoilt", [None, "{", "[]", '{"theme": "no such"}', '{"theme": 1}'])
async def test_the_theme_is_remembered_and_a_spoilt_memory_is_none(
    spoilt: str | None, tmp_path: Path
) -> None:
    memory = tmp_path / "state" / "top.json"
    if spoilt is not None:
        memory.parent.mkdir()
        memory.write_text(spoilt)
    async with bench(memory=memory) as it:
        assert it.app.theme == THEMES[0].name
        await it.press("colon", *f"theme {THEMES[1].name}", "enter")
    assert Top(Script(), memory=memory, clock=lambda: 0.0).theme == THEMES[1].name


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_the_key_of_a_panel_that_has_the_focus_hides_it_until_it_is_pressed_again(
    size: tuple[int, int], tmp_path: Path
) -> None:
    memory, keys = tmp_path / "top.json", ("3", "1")
    async with bench(memory=memory, size=size) as it:
        shown = {each.id for each in it.app.board.query(Panel) if each.display}
        for key in keys:
            await it.press(key, key)
        await it.press("2", "2")
    async with bench(memory=memory, size=size) as it:
        left = {each.id for each in it.app.board.query(Panel) if each.display}
        assert left == shown - {"timeline", "running"}
        assert it.app.board.table is it.table
        await it.press(*keys)
        assert {each.id for each in it.app.board.query(Panel) if each.display} == shown


async def test_a_narrow_pane_keeps_slots_and_queue_ids_and_tokens() -> None:
    async with bench(size=(40, 30)) as it:
        state, lines = it.snapshot, it.text.split("\n")
        assert all(word in lines[1] for word in ("slots 4/4", f"waiting {state.waits}", "τ"))
        assert "…" not in "".join(line for line in lines if "timeline" in line)
        for row in state.queue[:3]:
            [line] = [line for line in lines if row.id in line]
            assert f"~{row.predicted.expected_tokens:,.0f}" in line


async def test_the_page_of_programs_tells_who_waits_longest() -> None:
    async with bench() as it:
        await it.press("c")
        first = max(it.queue, key=lambda row: row.age_s)
        lines = [line for line in it.text.split("\n") if f" {first.client} " in line]
        assert any(duration(first.age_s) in line for line in lines)


async def test_a_column_sorts_and_the_order_is_remembered(tmp_path: Path) -> None:
    memory = tmp_path / "top.json"
    at = [each.name for each in QUEUE.columns if each.sort].index("age")
    for begun in (True, False):
        async with bench(memory=memory) as it:
            if begun:
                await it.press("s", *["j"] * at, "enter", "s", "escape")
            assert it.table.sort == "age"
            assert "age↑" in it.text


async def test_a_sorted_column_is_marked_however_narrow() -> None:
    async with bench() as it:
        for name in ("rank", "rank", "tokens"):
            it.table.sort_by(name)
        assert "toke…↑" in (await settled(it.app, it.pilot))
        it.table.sort_by("rank")
        it.table.sort_by("rank")
        assert "#↓" in (await settled(it.app, it.pilot))


async def test_the_configuration_comes_before_what_was_left_and_gives_keys(tmp_path: Path) -> None:
    memory = tmp_path / "top.json"
    memory.write_text('{"theme": "day", "queue.sort": "age"}')
    preferences = {"theme": "contrast", "queue.sort": "-age", "deck": "stats", "keys": "promote=Y nothing=X"}
    async with bench(size=(80, 24), memory=memory, preferences=preferences) as it:
        assert it.app.theme == "contrast"
        assert "age↓" in it.text
        assert "by arrival" in it.text
        await it.press("j", "Y")
        assert [action.verb for action in it.source.asked] == [Verb.PROMOTE]


async def test_prompts_and_answers_are_hidden_until_asked_for() -> None:
    running = tuple(replace(row, answer="First line.\nA second one") for row in busy().running)
    async with bench(replace(busy(), running=running), size=(160, 40)) as it:
        words = " ".join((it.queue[0].prompt or "").split()[:2])
        assert words not in it.text
        await it.press("v")
        assert words in it.text
        await it.press("1", "enter")
        lines = [line.strip(" │") for line in it.text.split("\n")]
        assert any("First line." in line for line in lines)
        assert any("A second one" in line for line in lines)
        await it.press("v")
        assert "First line." not in it.text
        assert words not in it.text
        bare = tuple(replace(row, prompt=None) for row in it.queue)
        await it.take(queue=bare, running=tuple(replace(row, prompt=None) for row in it.snapshot.running))
        await it.press("escape", "v")
        assert "The daemon does not send prompts." in it.text


@pytest.mark.parametrize("key", ["question_mark", "c", "enter"])
async def test_a_page_is_kept_up_to_date_scrolls_and_closes_by_its_own_key(key: str) -> None:
    async with bench() as it:
        open_page = {"question_mark": it.app.action_help, "c": it.app.action_clients}
        open_page.get(key, it.board.action_detail)()
        newcomer = ClientState("somebody-new", waiting=3, max_waiting=4)
        it.app.take(replace(it.snapshot, clients=(newcomer,)))  # while it opens
        await settled(it.app, it.pilot)
        assert "Esc closes" in it.text
        assert ("somebody-new" in it.text and "3/4" in it.text) == (key == "c")
        await it.press("j", "k", "G", "g", key)
        assert it.app.screen is it.board
        await it.press(key, "q")
        assert it.app.screen is it.board
        await it.press("q")
        assert not it.app.is_running or it.app.return_code == 0


async def test_the_screen_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    saved: dict[str, str] = {}
    monkeypatch.setattr(Path, "write_text", lambda path, text, **_: saved.update({path.suffix: text}))
    async with bench() as it:
        await it.press("S")
        assert it.queue[0].id in saved[".svg"]
        assert ".svg in the working directory" in it.text
        monkeypatch.setattr(Path, "write_text", failing)
        await it.press("S")
        assert "here: read-only file system" in it.text


def failing(*_: object, **__: object) -> int:
    raise OSError(EROFS, "read-only file system")


# -- the footer and the mouse -----------------------------------------------------------------------------


async def test_the_footer_offers_what_works_now() -> None:
    async with bench(size=(200, 60)) as it:
        for keys, offered, refused in (
            ("", "j k choose", "x cancel"),
            ("j", "x cancel|t to top|H hold|P pause|s sort", "j k choose"),
            ("1 j", "x cancel", "t to top"),
            ("9", "P pause", "x cancel|s sort"),
        ):
            await it.press(*keys.split())
            footer = it.text.splitlines()[-1]
            assert all(hint in footer for hint in offered.split("|"))
            assert not any(hint in footer for hint in refused.split("|"))
        await it.take(mode="paused", queue=(replace(it.queue[0], held=True), *it.queue[1:]))
        await it.press("2", "g")
        assert all(hint in it.text.splitlines()[-1] for hint in ("H release", "P resume"))
        it.app.take(Disconnected("no daemon answers"))
        await settled(it.app, it.pilot)
        assert not any(hint in it.text.splitlines()[-1] for hint in ("P resume", "x cancel"))


def test_each_key_has_one_meaning() -> None:
    bound = [(each, key) for key in KEYS if key.action for each in key.keys.split(",")]
    assert len({each for each, _ in bound}) == len(bound)
    page = {each: binding.action for each, binding in PageScreen("t", lambda *_: [])._bindings}
    meant = {each: key.action for each, key in bound}
    differ = {each for each in page if each in meant and page[each] != meant[each]}
    assert differ == {"q", "escape", "enter", "ctrl+c"}, "the app has its own for the last"


@pytest.mark.parametrize("opened", [(), ("question_mark",), ("j", "x"), ("colon",)])
async def test_control_c_quits_from_every_screen(opened: tuple[str, ...]) -> None:
    async with bench() as it:
        await it.press(*opened, "ctrl+c")
        assert not it.app.is_running or it.app.return_code == 0


async def test_the_mouse_chooses_opens_sorts_and_goes_where_it_clicks() -> None:
    async with bench() as it:
        await it.pilot.click("#queue", offset=(20, 3))
        await it.press("t")
        assert it.source.asked == [Action(Verb.PROMOTE, it.queue[1].id)]
        await it.pilot.click("#queue", offset=(8, 1))
        assert it.table.sort == "id"
        await it.pilot.click("#queue", offset=(8, 1))
        assert it.table.sort == "-id"
        it.table.on_mouse_scroll_down()
        it.table.on_mouse_scroll_up()
        await it.pilot.double_click("#queue", offset=(20, 4))
        await it.press()
        assert isinstance(it.app.screen, PageScreen)
    async with bench(size=(80, 24)) as it:
        await it.pilot.click("#timeline", offset=(16, 0))
        await it.press()
        assert it.app.focused is not None
        assert it.app.focused.id == "gpu"


async def test_what_a_daemon_says_is_no_markup() -> None:
    """Ids, refusals and clients' names come from a daemon, or from a recording of one."""
    hostile, shown = "[/x][@click=app.bell]\x1b[31m", "[/x][@click=app.bell]·[31m"
    async with bench() as it:
        queue = tuple(replace(each, id=hostile, client=hostile) for each in it.snapshot.queue[:1])
        await it.take(queue=queue, policies=(hostile,), policy=hostile, summaries=(hostile,))
        it.app.board.notify(hostile, markup=True)
        await it.press()
        assert shown in it.text
        it.source.refusal = hostile
        await it.press("j", "t")
        assert shown in it.text.splitlines()[-1]
        await it.press("enter")
        title = it.app.screen.query_one(VerticalScroll)._border_title
        assert title is not None
        assert title.plain == shown
        await it.press("escape", "x")
        texts = [str(each.render()) for each in it.app.screen.query(Static)]
        assert texts[:2] == [
            f"Cancel {shown}?",
            f"Its client ({shown}) gets an error. This cannot be undone.",
        ]
        await it.press("n", "m")
        assert isinstance(it.app.screen, Choose)
        assert [str(each.prompt) for each in it.app.screen.query_one(OptionList).options] == [
            f"● {shown}\n  {shown}"
        ]
