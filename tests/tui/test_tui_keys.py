"""Each key that asks the daemon for something."""

from dataclasses import replace
from pathlib import Path

import pytest

from clairvoyant_cli.state.actions import Action, Verb
from clairvoyant_cli.state.snapshot import PolicyOutlook
from clairvoyant_cli.state.source import Disconnected
from tests.tui.bench import bench
from tests.tui.board import Script, busy, settled
from tests.tui.scene import held, judged
from tests.tui.test_tui_changes import in_turns
from tui.app import Top
from tui.screens.dialogs import Ask, Choose, Confirm

# -- what the daemon is asked to do -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "verb", "value"),
    [
        ("t", Verb.PROMOTE, None),
        ("h", Verb.HOLD, None),
        ("plus", Verb.PRIORITY, -1),
        ("minus", Verb.PRIORITY, 1),
        ("ctrl+k", Verb.CANCEL, None),
    ],
)
async def test_key_acts_on_the_request_under_the_cursor(key: str, verb: Verb, value: int | None) -> None:
    async with bench() as it:
        await it.press("j", key)
        assert it.source.asked == [Action(verb, it.queue[1].id, value)]


async def test_cancel_asks_first() -> None:
    async with bench() as it:
        await it.press("x")
        assert isinstance(it.app.screen, Confirm)
        assert it.source.asked == []
        await it.press("n")
        assert it.source.asked == []
        await it.press("x", "y")
        assert it.source.asked == [Action(Verb.CANCEL, it.queue[0].id)]


async def test_a_running_request_can_be_cancelled_and_nothing_else() -> None:
    async with bench() as it:
        await it.press("1", "t", "h", "plus", "x", "y")
        assert it.source.asked == [Action(Verb.CANCEL, it.snapshot.running[0].id)]


async def test_what_has_ended_cannot_be_cancelled() -> None:
    async with bench() as it:
        await it.press("7", "x", "ctrl+k")
        assert it.source.asked == []


async def test_the_keys_of_requests_do_nothing_to_a_session() -> None:
    async with bench() as it:
        it.app.take(in_turns(it.snapshot))
        for key in ("x", "ctrl+k", "t", "h", "plus", "U", "enter"):
            await it.press("a", key)
            assert it.app.screen is it.app.board
            assert "this key is for requests" in it.text
            it.app._message = ""
            it.app.draw()
        assert it.source.asked == []
        await it.press("slash", *"parked", "enter")
        assert "2 of 5" in it.text
        assert "s15" in it.text
        assert "s12" not in it.text


async def test_marked_requests_are_acted_on_together() -> None:
    async with bench() as it:
        await it.press("space", "space", "t")
        assert [action.id for action in it.source.asked] == [it.queue[0].id, it.queue[1].id]
        assert "2 marked" in it.text
        await it.press("escape")
        assert "marked" not in it.text


async def test_hold_releases_what_is_held() -> None:
    state = held(busy(), busy().queue[0].id)
    async with bench() as it:
        it.app.take(state)
        await it.press("end", "h")
        assert it.source.asked == [Action(Verb.RELEASE, state.queue[-1].id)]


async def test_pause_and_resume() -> None:
    async with bench() as it:
        await it.press("P")
        it.app.take(judged(replace(it.snapshot, mode="paused", running=())))
        await settled(it.app, it.pilot)
        assert "Paused by an operator" in it.text
        assert "next" not in it.text.replace("goes next", "")
        assert "Idle" not in it.text
        await it.press("P")
        assert [action.verb for action in it.source.asked] == [Verb.PAUSE, Verb.RESUME]


async def test_drain_asks_first_and_can_be_taken_back() -> None:
    async with bench() as it:
        await it.press("d", "escape")
        assert it.source.asked == []
        await it.press("d", "enter")
        it.app.take(replace(it.snapshot, mode="draining"))
        await it.press("d")
        assert [action.verb for action in it.source.asked] == [Verb.DRAIN, Verb.RESUME]


async def test_policy_is_chosen_from_what_the_daemon_has() -> None:
    async with bench() as it:
        await it.press("m")
        assert isinstance(it.app.screen, Choose)
        await it.press("j", "enter")
        assert it.source.asked == [Action(Verb.POLICY, value="fcfs")]
        await it.press("m", "escape")
        assert len(it.source.asked) == 1


async def test_the_policy_menu_says_when_the_medians_would_start() -> None:
    async with bench() as it:
        first, second = it.queue[0], it.queue[1]
        it.source.coming = (
            PolicyOutlook("bounded", 3.2, 41.0, first=(first.id, second.id)),
            PolicyOutlook("sjf", 2.0, None, cuts=True, first=(second.id, "gone", first.id)),
            PolicyOutlook("fcfs", 3.2, 48.0),
        )
        await it.press("m")
        await settled(it.app, it.pilot)
        words = " ".join(it.text.split())
        assert "● bounded S in 3.2s L in 41s" in words
        assert "○ fcfs S in 3.2s L in 48s (+7.0s)" in words
        assert "○ sjf S in 2.0s (−1.2s) before any cut" in words
        line = next(line for line in it.text.split("\n") if first.id[-8:] in line and second.id[-8:] in line)
        assert "First under bounded:" in it.text
        assert line.index(first.id[-8:]) < line.index(second.id[-8:])
        await it.press("j")
        assert "First under" not in it.text, "nothing is known of the order under fcfs"
        await it.press("j")
        assert "First under sjf:" in it.text


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
        await it.press("left_curly_bracket", "t")
        assert "waiting 1,230" in it.text
        assert it.source.asked == []
        assert "this is the past" in it.text
        await it.press("right_square_bracket")
        assert "waiting 1,235" in it.text
        await it.press("right_curly_bracket")
        assert "waiting 1,295" in it.text
        await it.press("right_square_bracket")
        assert " ago" not in it.text.split("\n")[0]


async def test_a_letter_sorts_and_columns_are_ones_own_and_both_are_remembered(tmp_path: Path) -> None:
    memory = tmp_path / "top.json"
    for begun in (True, False):
        app = Top(Script(), memory=memory, clock=lambda: 0.0)
        async with app.run_test(size=(120, 40)) as pilot:
            app.take(busy())
            if begun:
                await pilot.press("o", "a", "C", "b", "m", "escape")
            text = await settled(app, pilot)
            assert app.board.table.order.by == "age"
            assert "age↑" in text
            queue = text[text.index("queue") :]
            heading = next(line for line in queue.split("\n") if "cls" in line)
            assert "of τ" not in heading
            assert "model" not in heading[:78]


async def test_the_configuration_comes_before_what_was_left_and_gives_keys(tmp_path: Path) -> None:
    memory, source = tmp_path / "top.json", Script()
    memory.write_text('{"theme": "day", "queue.sort": "age"}')
    likes = {"theme": "contrast", "queue.sort": "-age", "deck": "stats", "keys": "promote=Y nothing=X"}
    app = Top(source, memory=memory, likes=likes, clock=lambda: 0.0)
    async with app.run_test(size=(80, 24)) as pilot:
        app.take(busy())
        text = await settled(app, pilot)
        assert app.theme == "contrast"
        assert "age↓" in text
        assert "by arrival" in text
        await pilot.press("Y")
        assert [action.verb for action in source.asked] == [Verb.PROMOTE]


async def test_a_level_of_urgency_is_corrected_and_a_server_drained_and_brought_up() -> None:
    async with bench() as it:
        await it.press("j", "U")
        assert "policy bounded ignores it" in it.text
        await it.press("j", "enter")
        await it.press("b", "enter")
        (backend,) = it.snapshot.backends
        it.app.take(replace(it.snapshot, backends=(replace(backend, standing="draining"),)))
        await it.press("b", "enter")
        level = Action(Verb.URGENCY, it.queue[1].id, 1)
        assert it.source.asked == [level, *(Action(Verb.BACKEND, "local", deed) for deed in ("drain", "up"))]


@pytest.mark.parametrize(("typed", "tau_s"), [("90", 90.0), ("off", 0.0), ("2.5s", 2.5)])
async def test_tau_is_set(typed: str, tau_s: float) -> None:
    async with bench() as it:
        await it.press("u", "ctrl+u", *typed, "enter")
        assert it.source.asked == [Action(Verb.TAU, value=tau_s)]


async def test_tau_says_what_is_wrong_and_stays() -> None:
    async with bench() as it:
        await it.press("u", "ctrl+u", *"soon", "enter")
        assert isinstance(it.app.screen, Ask)
        assert "a number of seconds, or off" in it.text
        assert it.source.asked == []


@pytest.mark.parametrize("key", ["x", "ctrl+k", "t", "h", "plus", "minus", "P", "d", "m", "u", "U", "b"])
async def test_readonly_refuses_every_action(key: str) -> None:
    async with bench(readonly=True) as it:
        await it.press(key)
        assert it.source.asked == []
        assert "read-only: nothing was changed" in it.text


async def test_nothing_is_asked_of_a_daemon_that_is_gone() -> None:
    async with bench() as it:
        it.app.take(Disconnected("no daemon answers"))
        await it.press("t")
        assert it.source.asked == []
        assert "no daemon: nothing was changed" in it.text


async def test_a_refusal_is_shown_in_the_daemons_words() -> None:
    async with bench() as it:
        it.source.refusal = "it has [started] already"
        await it.press("t")
        assert "it has [started] already" in it.text
