"""Each key that asks the daemon for something."""

from dataclasses import replace
from pathlib import Path

import pytest
from textual import events
from textual.widgets import Input

from clairvoyant_cli.state.actions import Action, Verb
from clairvoyant_cli.state.snapshot import PolicyOutlook
from clairvoyant_cli.state.source import Disconnected
from tests.tui.bench import Bench, bench
from tests.tui.board import Script, busy, settled
from tests.tui.scene import held, judged
from tests.tui.test_tui_changes import in_turns
from tui.app import Top
from tui.keys import KEYS
from tui.screens.dialogs import Choose, Confirm, Prompt
from tui.screens.pages import PageScreen
from tui.widgets.table import Table

# -- what the daemon is asked to do -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "verb", "value"),
    [
        ("t", Verb.PROMOTE, None),
        ("H", Verb.HOLD, None),
        ("plus", Verb.PRIORITY, -1),
        ("minus", Verb.PRIORITY, 1),
        ("ctrl+k", Verb.CANCEL, None),
    ],
)
async def test_key_acts_on_the_request_under_the_cursor(key: str, verb: Verb, value: int | None) -> None:
    async with bench() as it:
        await it.press("j", "j", key)
        assert it.source.asked == [Action(verb, it.queue[1].id, value)]


async def test_only_y_says_yes_to_a_cancel() -> None:
    async with bench() as it:
        for no in ("n", "escape", "q", "enter"):
            await it.press("j", "k", "x")
            assert isinstance(it.app.screen, Confirm)
            assert "This cannot be" in it.text
            await it.press(no)
            assert len(it.app.screen_stack) == 1
        assert it.source.asked == []
        await it.press("x", "y")
        assert it.source.asked == [Action(Verb.CANCEL, it.queue[0].id)]
        assert f"cancelled {it.queue[0].id}" in it.text
        await it.press("u")
        assert f"cancelled {it.queue[0].id}: cannot be undone" in it.text
        assert len(it.source.asked) == 1


async def test_a_running_request_can_be_cancelled_and_nothing_else() -> None:
    async with bench() as it:
        await it.press("1", "j", "t", "H", "plus", "x", "y")
        assert it.source.asked == [Action(Verb.CANCEL, it.snapshot.running[0].id)]


async def test_what_has_ended_cannot_be_cancelled() -> None:
    async with bench() as it:
        await it.press("7", "j", "x", "ctrl+k")
        assert it.source.asked == []


async def test_keys_act_on_no_table_that_is_hidden_or_has_not_the_focus() -> None:
    async with bench() as it:
        await it.press("j")
        for go in (("9",), ("9", "z"), ("3",)):
            await it.press(*go)
            for key in ("x", "ctrl+k", "t", "H", "plus", "minus", "U", "space", "enter", "slash", "j"):
                await it.press(key)
                assert "this panel has no rows" in it.text
                assert it.app.screen is it.board
                it.app._message = ""
        assert it.source.asked == []
        await it.press("2", "t")
        assert it.source.asked == [Action(Verb.PROMOTE, it.queue[0].id)]


async def test_keys_typed_at_once_act_on_the_table_that_the_first_of_them_goes_to() -> None:
    async with bench() as it:
        for key in ("1", "j", "ctrl+k"):
            it.app.post_message(events.Key(key, None))
        await it.press()
        assert it.source.asked == [Action(Verb.CANCEL, it.snapshot.running[0].id)]


async def test_a_command_typed_at_once_is_whole() -> None:
    async with bench() as it:
        for letter in ":tau 90":
            it.app.post_message(events.Key("colon" if letter == ":" else letter, letter))
        await it.press("enter")
        assert it.source.asked == [Action(Verb.TAU, value=90.0)]


async def test_a_paste_is_no_row_of_keys() -> None:
    async with bench() as it:
        await it.press("j")
        it.app.post_message(events.Paste("xytPDTu\x0b\ny"))
        await it.press()
        assert it.source.asked == []
        assert it.app.screen is it.board
        await it.press("x")
        it.app.post_message(events.Paste("y"))
        await it.press()
        assert isinstance(it.app.screen, Confirm)
        assert it.source.asked == []


async def test_the_keys_of_requests_do_nothing_to_a_session() -> None:
    async with bench() as it:
        it.app.take(in_turns(it.snapshot))
        for key in ("x", "ctrl+k", "t", "H", "plus", "U", "enter"):
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
        await it.press("j", "space", "space", "t")
        assert [action.id for action in it.source.asked] == [it.queue[0].id, it.queue[1].id]
        assert "2 marked" in it.text
        await it.press("escape")
        assert "marked" not in it.text


async def test_hold_releases_what_is_held() -> None:
    state = held(busy(), busy().queue[0].id)
    async with bench() as it:
        it.app.take(state)
        await it.press("end", "H")
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
        for no in ("escape", "enter"):
            await it.press("D", no)
        await it.press("colon", *"drain", "enter", "enter")
        assert it.source.asked == []
        await it.press("D", "y")
        it.app._message = ""
        it.app.take(replace(it.snapshot, mode="draining"))
        assert "D resume" in await settled(it.app, it.pilot)
        await it.press("D")
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
        it.source.coming = (
            PolicyOutlook("bounded", 3.2, 41.0),
            PolicyOutlook("sjf", 2.0, None, cuts=True),
            PolicyOutlook("fcfs", 3.2, 48.0),
        )
        await it.press("m")
        await settled(it.app, it.pilot)
        words = " ".join(it.text.split())
        assert "● bounded S in 3.2s L in 41s" in words
        assert "○ fcfs S in 3.2s L in 48s (+7.0s)" in words
        assert "○ sjf S in 2.0s (−1.2s) before any cut" in words


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
        await it.press("left_curly_bracket", "j", "t")
        assert "waiting 1,230" in it.text
        assert it.source.asked == []
        assert "this is the past" in it.text
        await it.press("right_square_bracket")
        assert "waiting 1,235" in it.text
        await it.press("right_curly_bracket")
        assert "waiting 1,295" in it.text
        await it.press("right_square_bracket")
        assert " ago" not in it.text.split("\n")[0]
        await it.press("left_square_bracket", "escape")
        assert " ago" not in it.text.split("\n")[0]


async def test_a_letter_sorts_and_columns_are_ones_own_and_both_are_remembered(tmp_path: Path) -> None:
    memory = tmp_path / "top.json"
    for begun in (True, False):
        app = Top(Script(), memory=memory, clock=lambda: 0.0)
        async with app.run_test(size=(120, 40)) as pilot:
            app.take(busy())
            if begun:
                await pilot.press("s", "a", "C", "b", "m", "escape")
            text = await settled(app, pilot)
            assert app.query_one("#queue", Table).order.by == "age"
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
        await pilot.press("j", "Y")
        assert [action.verb for action in source.asked] == [Verb.PROMOTE]


async def test_a_level_of_urgency_is_corrected_and_a_server_drained_and_brought_up() -> None:
    async with bench() as it:
        await it.press("j", "j", "U")
        assert "policy bounded ignores it" in it.text
        await it.press("j", "enter")
        await it.press("B", *"dr", "tab", "tab", "enter", "enter")
        assert len(it.source.asked) == 1, "Enter is no yes to a drain"
        await it.press("B", *"drain local", "enter", "y")
        assert "draining local" in it.text
        (backend,) = it.snapshot.backends
        it.app.take(replace(it.snapshot, backends=(replace(backend, standing="draining"),)))
        await it.press("B", *"up local", "enter")
        level = Action(Verb.URGENCY, it.queue[1].id, 1)
        assert it.source.asked == [level, *(Action(Verb.BACKEND, "local", deed) for deed in ("drain", "up"))]


@pytest.mark.parametrize(("typed", "tau_s"), [("60", 60), ("off", 0), ("2.5s", 2.5)])
async def test_tau_is_set(typed: str, tau_s: float) -> None:
    async with bench() as it:
        await it.press("T")
        assert "tau 90" in it.text
        await it.press("backspace", "backspace", *typed, "enter")
        assert it.source.asked == [Action(Verb.TAU, value=tau_s)]
        assert f"tau 90 s → {f'{tau_s:g} s' if tau_s else 'off'}" in it.text


@pytest.mark.parametrize("key", ["x", "ctrl+k", "t", "H", "plus", "minus", "P", "D", "m", "u", "U", "B", "T"])
async def test_readonly_refuses_every_action(key: str) -> None:
    async with bench(readonly=True) as it:
        await it.press("j", key)
        assert it.source.asked == []
        assert "read-only: nothing was changed" in it.text


async def test_nothing_is_asked_of_a_daemon_that_is_gone() -> None:
    async with bench() as it:
        it.app.take(Disconnected("no daemon answers"))
        await it.press("j", "t")
        assert it.source.asked == []
        assert "no daemon: nothing was changed" in it.text


async def test_a_refusal_is_shown_in_the_daemons_words() -> None:
    async with bench() as it:
        it.source.refusal = "it has [started] already"
        await it.press("j", "t")
        assert "it has [started] already" in it.text


# -- undo -------------------------------------------------------------------------------------------------


async def changed(it: Bench, **fields: object) -> None:
    """Let the daemon show a change of its first queued request."""
    row = replace(it.queue[0], **fields)  # type: ignore[arg-type]
    it.app.take(replace(it.snapshot, queue=(row, *it.queue[1:])))
    await settled(it.app, it.pilot)


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
            (("colon", *"policy srpt", "enter"), "policy bounded → srpt", Verb.POLICY, "bounded"),
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


async def test_several_are_undone_together_and_a_promoted_held_one_is_held_again() -> None:
    async with bench() as it:
        first, second = it.queue[:2]
        it.app.take(replace(it.snapshot, queue=(replace(first, held=True, priority=3), *it.queue[1:])))
        await it.press("j", "space", "space", "t")
        assert "promoted 2 requests" in it.text
        await it.press("u")
        assert it.source.asked[2:] == [
            Action(Verb.PRIORITY, second.id, 0),
            Action(Verb.PRIORITY, first.id, 3),
            Action(Verb.HOLD, first.id),
        ]


async def test_what_somebody_else_changed_since_is_not_undone() -> None:
    async with bench() as it:
        clock = [0.0]
        it.app._clock = lambda: clock[0]
        await it.press("j", "minus")
        clock[0] = 10.0
        await changed(it, priority=7)
        await it.press("u")
        assert "it was changed since: nothing was undone" in it.text
        await changed(it)
        await it.press("t")
        clock[0] = 20.0
        it.app.take(replace(it.snapshot, queue=it.queue[1:]))
        await it.press("u")
        assert "it has started or ended since: nothing was undone" in it.text
        assert [action.verb for action in it.source.asked] == [Verb.PRIORITY, Verb.PROMOTE]


async def test_nothing_is_undone_in_another_run_of_the_daemon() -> None:
    async with bench() as it:
        await it.press("P")
        it.app.take(Disconnected("no daemon answers"))
        it.app.take(replace(it.snapshot, mode="paused", uptime_s=3.0))
        await it.press("u")
        assert "nothing to undo" in it.text
        assert [action.verb for action in it.source.asked] == [Verb.PAUSE]


async def test_what_the_daemon_refused_is_not_undone() -> None:
    async with bench() as it:
        it.source.refusal = "it has started already"
        await it.press("j", "t", "u")
        assert "nothing to undo" in it.text
        assert len(it.source.asked) == 1


# -- the command line -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "asked"),
    [
        ("cancel abc-7", Action(Verb.CANCEL, "abc-7")),
        ("cancel id=abc-7", Action(Verb.CANCEL, "abc-7")),
        ("policy srpt", Action(Verb.POLICY, value="srpt")),
        ("tau 90", Action(Verb.TAU, value=90)),
        ("tau auto", Action(Verb.TAU, value="auto")),
        ("pause", Action(Verb.PAUSE)),
        ("backend drain local", Action(Verb.BACKEND, "local", "drain")),
        ("model unload m:7b", Action(Verb.MODEL, "m:7b", "unload")),
        ("priority abc-7 -5", Action(Verb.PRIORITY, "abc-7", -5)),
    ],
)
async def test_a_verb_can_be_typed(typed: str, asked: Action) -> None:
    async with bench() as it:
        await it.press("9", "colon", *typed, "enter")
        if typed.startswith(("cancel", "backend drain")):
            assert it.source.asked == []
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
            await it.press("colon", *typed, "enter")
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
            ("backend dr", ("tab", "tab"), "backend drain local "),
            (f"hold {it.queue[3].id[-3:]}", ("tab",), f"hold {it.queue[3].id} "),
        ):
            await it.press("colon", *typed, *keys)
            assert it.app.screen.query_one(Input).value == whole
            await it.press("escape")
        await it.press("colon", *"urgency ", "tab")
        assert it.queue[0].id in it.text
        await it.press("escape", "colon", *"tau 5", "enter", "colon", "up")
        assert it.app.screen.query_one(Input).value == "tau 5"
        assert len(it.source.asked) == 1


# -- the footer -------------------------------------------------------------------------------------------


async def test_the_footer_offers_what_works_now() -> None:
    def hints(it: Bench) -> str:
        return it.text.splitlines()[-1]

    async with bench(size=(200, 60)) as it:
        assert "j k choose" in hints(it)
        assert "x cancel" not in hints(it)
        await it.press("j")
        for hint in ("x cancel", "t to top", "H hold", "P pause", "s sort"):
            assert hint in hints(it)
        await it.press("1", "j")
        assert "x cancel" in hints(it)
        assert "t to top" not in hints(it)
        await it.press("9")
        assert "x cancel" not in hints(it)
        assert "s sort" not in hints(it)
        await changed(it, held=True)
        await it.press("2", "g")
        assert "H release" in hints(it)
        it.app.take(replace(it.snapshot, mode="paused"))
        await settled(it.app, it.pilot)
        assert "P resume" in hints(it)
        it.app.take(Disconnected("no daemon answers"))
        await settled(it.app, it.pilot)
        assert "P resume" not in hints(it)
        assert "x cancel" not in hints(it)


def test_each_key_has_one_meaning() -> None:
    bound = [(each, key) for key in KEYS if key.action for each in key.keys.split(",")]
    assert len({each for each, _ in bound}) == len(bound)
    page = {each: binding.action for each, binding in PageScreen("t", lambda *_: [])._bindings}
    meant = {each: key.action for each, key in bound}
    differ = {each for each in page if each in meant and page[each] != meant[each]}
    assert differ == {"q", "escape", "ctrl+c"}, "the app has its own for the last"


@pytest.mark.parametrize("opened", [(), ("question_mark",), ("j", "x"), ("colon",)])
async def test_control_c_quits_from_every_screen(opened: tuple[str, ...]) -> None:
    async with bench() as it:
        await it.press(*opened, "ctrl+c")
        assert not it.app.is_running or it.app.return_code == 0
