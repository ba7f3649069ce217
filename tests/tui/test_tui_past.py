"""The hour behind: what was taken comes back as it was, from the screen's own pages and the daemon's."""

from dataclasses import dataclass, field, replace

import pytest
from clairvoyant_lab.asgi_server import serve_app

from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.state.encoding import without_prompts
from clairvoyant_cli.state.snapshot import Snapshot
from clairvoyant_cli.state.state_history import EVERY_S, PAGE, SPAN_S, StateHistory
from tests.fakes.replay_backend import Engine, Replay
from tests.fakes.serving import ByFirstWord, asked, serving
from tests.tui.board import Script, settled, stage, still
from tests.tui.test_tui_living import LENGTHS, chat, watching


def played(number: int) -> list[Snapshot]:
    watched, states = stage(), []
    for _ in range(number):
        watched.advance(EVERY_S)
        state = watched.snapshot()
        states.append(replace(state, recent=state.recent[-100:], log=()))  # as many as a daemon sends
    return states


def filled(states: list[Snapshot]) -> StateHistory:
    past = StateHistory()
    for state in states:
        past.record(state)
    return past


def test_every_state_comes_back_as_it_was_but_for_prompts() -> None:
    states = played(2 * PAGE + 3)
    past = filled(states)
    for state in states:
        assert past.before(state.taken_at + 0.1) == without_prompts(state)
        assert past.after(state.taken_at - 0.1) == without_prompts(state)
    assert past.before(0.0) == without_prompts(states[0])
    assert past.after(states[-1].taken_at) is None


def test_what_a_screen_fetches_stands_before_what_it_saw() -> None:
    """It fetches page after page, the last of them cut where its own begins."""
    states = played(3 * PAGE)
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
    states = played(8 * PAGE)
    largest = filled(states).size
    past = StateHistory(max_bytes=largest // 2)
    for state in states:
        past.record(state)
        assert past.size <= largest // 2 + largest // 8
    assert past.before(states[-1].taken_at + 0.1) == without_prompts(states[-1])
    assert (past.begins_at or 0.0) > states[0].taken_at

    hour, watched = StateHistory(), stage("empty", 0.0)
    for _ in range(int(SPAN_S / EVERY_S) + 3 * PAGE):
        watched.advance(EVERY_S)
        hour.record(watched.snapshot())
    assert hour.begins_at is not None
    assert SPAN_S - PAGE * EVERY_S <= watched.snapshot().taken_at - hour.begins_at <= SPAN_S + PAGE * EVERY_S


async def test_a_screen_goes_back_to_before_it_was_opened() -> None:
    backend = Replay(Engine(4, answer_tokens=LENGTHS))
    backend.engine.freeze()
    async with (
        serve_app(backend.app) as url,
        serving(url, ByFirstWord(), slots=4, announced=True) as daemon,
    ):
        await daemon.recorder.kept.wait()
        async with asked(daemon, *[chat("0.9 endless")] * 6), watching(daemon.base_url) as screen:
            await screen.shows("before_scrubbing", "slots ■■■■ 4/4", "waiting 2")
            await screen.pilot.press("left_curly_bracket")  # to the first state, however slow the machine
            await screen.shows("scrubbed", "slots □□□□ 0/4", "ago")
            await screen.pilot.press("right_curly_bracket")
            await screen.shows("back_again", "slots ■■■■ 4/4", "waiting 2")


@dataclass
class Remembering(Script):
    """A source with the history of a daemon."""

    kept: StateHistory = field(default_factory=StateHistory)

    async def past(self, before: float) -> bytes:
        """Return the page before."""
        return self.kept.page_before(before)


async def test_the_graph_begins_with_what_the_daemon_remembers() -> None:
    states = played(3 * PAGE)
    app = still(Remembering(kept=filled(states)))
    async with app.run_test(size=(200, 60)) as pilot:
        app.take(states[-1])
        await settled(app, pilot)
        seen = [each.at for each in app.view().history.samples]
        assert seen == [state.uptime_s for state in states]
