"""Each key that changes the view, and the mouse."""

from dataclasses import replace
from pathlib import Path

import pytest
from textual.containers import VerticalScroll
from textual.widgets import OptionList, Static

from clairvoyant_cli.state.actions import Action, Verb
from clairvoyant_cli.state.snapshot import ClientState
from tests.tui.bench import bench
from tests.tui.board import Script, settled, stage
from tests.tui.scene import promoted
from tui.app import INTERVALS_S, Top
from tui.palette import THEMES
from tui.screens.dialogs import Choose, Confirm
from tui.screens.pages import Clients, Detail, Help
from tui.widgets.table import Table

# -- the view ---------------------------------------------------------------------------------------------


async def test_filter_follows_every_letter_and_escape_drops_it() -> None:
    async with bench() as it:
        client = it.queue[0].client
        await it.press("slash", *client)
        assert {row.client for row in it.app.query_one("#queue", Table).rows} == {client}
        await it.press("enter")
        assert f"/{client}" in it.text
        await it.press("escape")
        assert len(it.table.rows) == len(it.queue)


async def test_filter_can_be_dropped_while_typing() -> None:
    async with bench() as it:
        await it.press("slash", "q", "x", "z")
        assert "No match" in it.text
        await it.press("escape")
        assert len(it.table.rows) == len(it.queue)


async def test_the_cursor_is_on_no_request_before_it_is_moved() -> None:
    async with bench() as it:
        assert it.table.lit_rows() == frozenset()
        for key in ("x", "ctrl+k", "t", "H", "plus", "minus", "U", "y"):
            await it.press(key)
            assert "no request is chosen: j or k chooses one" in it.text
            it.app._message = ""
        assert it.source.asked == []
        await it.press("j")
        assert it.table.current == it.queue[0]
        await it.press("escape")
        assert it.table.current is None


async def test_the_cursor_follows_its_request() -> None:
    async with bench() as it:
        last = it.queue[-1].id
        await it.press("G", "t")
        it.app.take(promoted(it.snapshot, last))
        await settled(it.app, it.pilot)
        assert it.table.current is not None
        assert (it.table.current.id, it.table.rows.index(it.table.current)) == (last, 0)
        await it.press("plus", "plus", "minus")
        assert {action.id for action in it.source.asked} == {last}
        assert [action.value for action in it.source.asked] == [None, -1, -2, -1]


async def test_a_key_acts_on_no_other_request_once_the_chosen_one_has_left() -> None:
    async with bench() as it:
        await it.press("j", "j")
        chosen, after = it.queue[1:3]
        state = replace(it.snapshot, queue=tuple(row for row in it.queue if row != chosen))
        it.app.take(state)
        for key in ("t", "t", "x", "ctrl+k", "H", "minus"):
            await it.press(key)
            assert f"{chosen.id} has ended: nothing was done" in it.text
            it.app._message = ""
        assert it.source.asked == []
        assert it.table.lit_rows() == frozenset()
        await it.press("enter")
        assert isinstance(it.app.screen, Detail)
        assert chosen.id in it.text, "the page follows it where it went"
        await it.press("escape", "j", "t")
        assert it.source.asked == [Action(Verb.PROMOTE, after.id)], "the row that took its place"


async def test_a_request_that_started_is_said_to_have_started_and_is_found_when_it_comes_back() -> None:
    async with bench() as it:
        await it.press("j")
        chosen, *others = it.queue
        running = replace(it.snapshot.running[0], id=chosen.id)
        it.app.take(replace(it.snapshot, queue=tuple(others), running=(running,)))
        await it.press("t")
        assert f"{chosen.id} has started: nothing was done" in it.text
        it.app.take(it.snapshot)
        await it.press("t")
        assert it.source.asked == [Action(Verb.PROMOTE, chosen.id)]


async def test_marks_that_have_left_or_are_filtered_away_are_not_acted_on() -> None:
    async with bench() as it:
        await it.press("j", "space", "space")
        gone, left, *others = it.queue
        it.app.take(replace(it.snapshot, queue=(left, *others)))
        await it.press("t")
        assert it.source.asked == [Action(Verb.PROMOTE, left.id)]
        it.app.take(replace(it.snapshot, queue=tuple(others)))
        await it.press("t")
        assert f"{gone.id} has ended: nothing was done" in it.text
        await it.press("t")
        assert len(it.source.asked) == 1
        await it.press("g", "space", "slash", *others[3].id, "enter", "ctrl+k")
        assert f"{others[0].id} is not in this list: nothing was done" in it.text
        assert len(it.source.asked) == 1


async def test_a_key_that_can_do_nothing_says_so() -> None:
    async with bench() as it:
        await it.press("1", "j", "t")
        assert "only queued requests can be moved" in it.text
        await it.press("7", "j", "x")
        assert "it has ended" in it.text
        assert it.source.asked == []


async def test_a_hint_in_the_footer_can_be_clicked() -> None:
    async with bench() as it:
        await it.pilot.click("#footer", offset=(it.text.splitlines()[-1].index("help"), 0))
        await settled(it.app, it.pilot)
        assert isinstance(it.app.screen, Help)


async def test_an_order_that_is_reversed_or_sorted_is_marked_however_narrow_the_column() -> None:
    async with bench() as it:
        await it.press("s", "r", "s", "r")
        assert "#↓" in it.text
        await it.press("s", "t")
        assert it.table.order.by == "tokens"
        assert "toke…↑" in it.text


MOVED = [
    "j",
    "down",
    "k",
    "up",
    "pagedown",
    "pageup",
    "ctrl+f",
    "ctrl+b",
    "ctrl+d",
    "ctrl+u",
    "end",
    "home",
    "G",
]


async def test_the_cursor_moves_by_row_page_and_edge() -> None:
    async with bench(size=(80, 24)) as it:
        ids = [row.id for row in it.queue]
        at = []
        for key in (*MOVED, "g", "g"):
            await it.press(key)
            current = it.table.current
            assert current is not None
            at.append(ids.index(current.id))
        last = len(ids) - 1
        page, half = at[4], at[8]
        assert page > half > 0
        assert at == [0, 1, 0, 0, page, 0, page, 0, half, 0, last, 0, last, 0, 0]


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


async def test_maximise_gives_all_the_room_and_takes_it_back() -> None:
    async with bench() as it:
        await it.press("3", "z")
        assert "queue ─" not in it.text
        await it.press("2")
        assert "2 queue" in it.text
        assert "3 tau" not in it.text
        await it.press("escape")
        assert "3 tau" in it.text


async def test_the_deck_turns_at_80x24() -> None:
    async with bench(size=(80, 24)) as it:
        for key, name in (("right", "gpu"), ("left", "tau"), ("l", "gpu"), ("h", "tau")):
            await it.press(key)
            assert it.app.focused is not None
            assert it.app.focused.id == name


async def test_interval_goes_round() -> None:
    async with bench() as it:
        await it.press(*["r"] * len(INTERVALS_S))
        assert it.source.paces == [*INTERVALS_S[1:], INTERVALS_S[0]]


@pytest.mark.parametrize("spoilt", [None, "{", "[]", '{"theme": "no such"}', '{"theme": 1}'])
async def test_the_theme_is_remembered_and_a_spoilt_memory_is_none(
    spoilt: str | None, tmp_path: Path
) -> None:
    memory = tmp_path / "state" / "top.json"
    if spoilt is not None:
        memory.parent.mkdir()
        memory.write_text(spoilt)
    first = Top(Script(), memory=memory, clock=lambda: 0.0)
    async with first.run_test() as pilot:
        assert first.theme == THEMES[0].name
        await pilot.press("colon", *f"theme {THEMES[1].name}", "enter")
    assert Top(Script(), memory=memory, clock=lambda: 0.0).theme == THEMES[1].name


async def test_copy_puts_the_id_on_the_clipboard() -> None:
    async with bench() as it:
        await it.press("j", "y")
        assert it.app.clipboard == it.queue[0].id


async def test_prompts_are_a_column_and_the_answer_is_on_the_page_while_they_are_shown() -> None:
    async with bench(size=(160, 40)) as it:
        answer = "First line.\nA second one, which ends here"
        running = tuple(replace(row, answer=answer) for row in it.snapshot.running)
        it.app.take(replace(it.snapshot, running=running))
        words = " ".join((it.queue[0].prompt or "").split()[:2])
        assert words not in it.text
        await it.press("v")
        assert "prompt" in it.text
        assert words in it.text
        await it.press("1", "enter")
        lines = [line.strip(" │") for line in it.text.split("\n")]
        assert any("First line." in line for line in lines)
        assert any("A second one, which ends here" in line for line in lines)
        await it.press("v")
        assert "First line." not in it.text
        assert words not in it.text


async def test_prompts_are_hidden_until_asked_for() -> None:
    async with bench() as it:
        text = it.queue[0].prompt
        assert text is not None
        await it.press("enter")
        assert isinstance(it.app.screen, Detail)
        assert text not in it.text
        await it.press("v")
        assert text in it.text
        await it.press("escape", "v", "enter")
        assert text not in it.text


@pytest.mark.parametrize("page", ["help", "clients", "detail"])
async def test_a_state_that_comes_while_a_page_opens_is_drawn_when_it_is_open(page: str) -> None:
    async with bench() as it:
        {"help": it.app.action_help, "clients": it.app.action_clients, "detail": it.board.action_detail}[
            page
        ]()
        it.app.take(it.snapshot)
        await settled(it.app, it.pilot)
        assert isinstance(it.app.screen, Help | Clients | Detail)
        assert "Esc closes" in it.text


async def test_help_and_detail_close_by_their_own_key() -> None:
    async with bench() as it:
        await it.press("question_mark")
        assert isinstance(it.app.screen, Help)
        await it.press("question_mark", "enter")
        assert isinstance(it.app.screen, Detail)
        await it.press("enter")
        assert len(it.app.screen_stack) == 1


async def test_the_clients_are_followed_on_a_page_that_closes_by_its_own_key() -> None:
    async with bench() as it:
        await it.press("c")
        assert isinstance(it.app.screen, Clients)
        assert "zed" in it.text
        newcomer = ClientState("somebody-new", waiting=3, max_waiting=4)
        it.app.take(replace(it.snapshot, clients=(newcomer,)))
        assert "somebody-new" in await settled(it.app, it.pilot)
        assert "3/4" in it.text
        await it.press("j", "k", "c")
        assert len(it.app.screen_stack) == 1


async def test_quit_leaves() -> None:
    async with bench() as it:
        await it.press("q")
        assert not it.app.is_running or it.app.return_code == 0


# -- the mouse --------------------------------------------------------------------------------------------


async def test_a_click_chooses_a_row_and_a_double_click_opens_it() -> None:
    async with bench() as it:
        await it.pilot.click("#queue", offset=(20, 3))
        await it.press("t")
        assert it.source.asked == [Action(Verb.PROMOTE, it.queue[1].id)]
        await it.pilot.double_click("#queue", offset=(20, 4))
        await settled(it.app, it.pilot)
        assert isinstance(it.app.screen, Detail)


async def test_a_click_on_a_title_sorts_and_again_reverses() -> None:
    async with bench() as it:
        await it.pilot.click("#queue", offset=(8, 1))
        assert it.table.order.by == "id"
        await it.pilot.click("#queue", offset=(8, 1))
        assert it.table.order.reverse


async def test_a_click_on_a_name_in_the_deck_shows_that_panel() -> None:
    async with bench(size=(80, 24)) as it:
        await it.pilot.click("#tau", offset=(11, 0))
        await settled(it.app, it.pilot)
        assert it.app.focused is not None
        assert it.app.focused.id == "gpu"


async def test_what_a_daemon_says_is_no_markup() -> None:
    """Ids, refusals and clients' names come from a daemon, or from a recording of one."""
    hostile, shown = "[/x][@click=app.bell]\x1b[31m", "[/x][@click=app.bell]·[31m"
    async with bench() as it:
        queue = tuple(replace(each, id=hostile, client=hostile) for each in it.snapshot.queue[:1])
        state = replace(it.snapshot, queue=queue, policies=(hostile,), policy=hostile)
        it.app.take(replace(state, summaries=(hostile,)))
        it.app.board.notify(hostile, markup=True)
        await settled(it.app, it.pilot)
        assert shown in it.text
        it.source.refusal = hostile
        await it.press("j", "t")
        assert shown in it.text.splitlines()[-1]
        await it.press("enter")
        assert isinstance(it.app.screen, Detail)
        title = it.app.screen.query_one(VerticalScroll)._border_title
        assert title is not None
        assert title.plain == shown
        await it.press("escape", "x")
        assert isinstance(it.app.screen, Confirm)
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
        await it.press("escape")
