"""What is remembered: ten minutes of the screen's own, and the hour that comes back as it was."""

from dataclasses import replace

import pytest

from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.state.encoding import without_prompts
from clairvoyant_cli.state.snapshot import Counters, Snapshot
from clairvoyant_cli.state.state_history import EVERY_S, PAGE, SPAN_S, StateHistory
from tests.fakes.raw_http import chat
from tests.fakes.replay_backend import Engine, Replay
from tests.fakes.serving import ByFirstWord, asked, replaying
from tests.tui.board import Script, busy, settled, stage, still
from tests.tui.test_tui_living import LENGTHS, watching
from tui.history import POINTS, SAMPLES, History


def watched(number: int, every_s: float = EVERY_S, scenario: str = "busy") -> list[Snapshot]:
    scene, states = stage(scenario, 0.0 if scenario != "busy" else 105.0), []
    for _ in range(number):
        scene.advance(every_s)
        state = scene.snapshot()
        states.append(replace(state, recent=state.recent[-100:], log=()))  # as many as a daemon sends
    return states


# -- the screen's own -------------------------------------------------------------------------------------


def test_history_counts_each_request_once_and_stays_small() -> None:
    history, states = History(), watched(40, 5.0, "overloaded")
    for state in (*states, *states[-3:]):
        history.take(state)
    assert {each.id for each in history.finished.values()} == {row.id for s in states for row in s.recent}
    assert [each.at for each in history.samples] == [state.uptime_s for state in states] + [
        state.uptime_s for state in states[-3:]
    ]
    assert history.per_minute() is not None
    base = states[-1]
    for number in range(2 * POINTS + 9):
        ended = replace(base.recent[0], id=f"r{number}")
        history.take(replace(base, recent=(ended,), uptime_s=base.uptime_s + number))
    assert len(history.samples) == SAMPLES
    assert len(history.finished) == POINTS
    history.take(replace(base, pid=99, recent=()))
    assert not history.finished, "another daemon has another history"
    assert len(history.samples) == 1


def test_what_the_daemon_remembers_is_put_before_what_was_seen() -> None:
    states, history = watched(20, 5.0, "overloaded"), History()
    for state in states[15:]:
        history.take(state)
    history.put_before([*states[:16], replace(states[0], pid=7)])
    assert [each.at for each in history.samples] == [state.uptime_s for state in states]
    ended = [each.finished_at for each in history.finished.values()]
    assert ended == sorted(ended)
    assert len(ended) == len({row.id for state in states for row in state.recent})
    then = history.until(states[10])
    assert [each.at for each in then.samples] == [state.uptime_s for state in states[:11]]
    assert max(each.finished_at for each in then.finished.values()) <= states[10].taken_at


def counted(completed: int) -> Counters:
    return replace(busy().counters, completed=completed)


def test_the_rate_does_not_mind_the_wall_clock() -> None:
    history, rates = History(), [History().per_minute()]
    for state, set_back_s in zip(watched(4, 20.0), (0.0, 0.0, 86_400.0, -86_400.0), strict=True):
        history.take(replace(state, taken_at=state.taken_at - set_back_s))
        rates.append(history.per_minute())
    assert rates[:2] == [None, None]
    assert None not in rates[2:]


# -- the hour behind --------------------------------------------------------------------------------------


def filled(states: list[Snapshot]) -> StateHistory:
    past = StateHistory()
    for state in states:
        past.record(state)
    return past


def test_every_state_comes_back_as_it_was_but_for_prompts() -> None:
    states = watched(2 * PAGE + 3)
    past = filled(states)
    for state in states:
        assert past.before(state.taken_at + 0.1) == without_prompts(state)
        assert past.after(state.taken_at - 0.1) == without_prompts(state)
    assert past.before(0.0) == without_prompts(states[0])
    assert past.after(states[-1].taken_at) is None


def test_what_a_screen_fetches_stands_before_what_it_saw() -> None:
    """It fetches page after page, the last of them cut where its own begins."""
    states = watched(3 * PAGE)
    daemons, own = filled(states), filled(states[PAGE + 5 :])
    fetched = 0
    while own.put_before(daemons.page_before(own.begins_at or 0.0)):
        fetched += 1
    assert fetched == 2
    for state in states:
        assert own.before(state.taken_at + 0.1) == without_prompts(state)
    with pytest.raises(ClairvoyantError):
        own.put_before(b"<html>no state</html>")


def test_a_past_is_bounded_in_time_and_in_bytes() -> None:
    states = watched(8 * PAGE)
    largest = filled(states).size
    past = StateHistory(max_bytes=largest // 2)
    for state in states:
        past.record(state)
        assert past.size <= largest // 2 + largest // 8
    assert past.before(states[-1].taken_at + 0.1) == without_prompts(states[-1])
    assert (past.begins_at or 0.0) > states[0].taken_at

    hour, scene = StateHistory(), stage("empty", 0.0)
    for _ in range(int(SPAN_S / EVERY_S) + 3 * PAGE):
        scene.advance(EVERY_S)
        hour.record(scene.snapshot())
    assert hour.begins_at is not None
    assert SPAN_S - PAGE * EVERY_S <= scene.snapshot().taken_at - hour.begins_at <= SPAN_S + PAGE * EVERY_S


async def test_a_screen_goes_back_to_before_it_was_opened() -> None:
    backend = Replay(Engine(4, answer_tokens=LENGTHS))
    backend.engine.freeze()
    async with replaying(backend, ByFirstWord(), slots=4, announced=True) as daemon:
        await daemon.recorder.kept.wait()
        async with asked(daemon, *[chat("0.9 endless")] * 6), watching(daemon.base_url) as screen:
            await screen.shows("before_scrubbing", "slots ■■■■ 4/4", "waiting 2")
            await screen.pilot.press(*["left_square_bracket"] * 12)  # to the first, however slow the machine
            await screen.shows("scrubbed", "slots □□□□ 0/4", "ago")
            await screen.pilot.press(*["right_square_bracket"] * 13)
            await screen.shows("back_again", "slots ■■■■ 4/4", "waiting 2")


async def test_the_history_begins_with_what_the_daemon_remembers() -> None:
    states = watched(3 * PAGE)
    app = still(Script(kept=filled(states)))
    async with app.run_test(size=(200, 60)) as pilot:
        app.take(states[-1])
        await settled(app, pilot)
        seen = [each.at for each in app.view().history.samples]
        assert seen == [state.uptime_s for state in states]


async def test_a_history_that_cannot_be_read_is_said_to_be_so() -> None:
    source = Script()
    source.kept.page_before = lambda at: b"<html>no state</html>"  # type: ignore[method-assign]
    app = still(source)
    async with app.run_test(size=(120, 40)) as pilot:
        app.take(busy())
        await settled(app, pilot)
        await pilot.press("left_square_bracket")
        assert "the daemon's history cannot be read" in await settled(app, pilot)
