"""Who hears of an end, and in which order, where the order matters."""

import asyncio
import logging
from cProfile import Profile
from dataclasses import replace
from random import Random

import pytest

from clairvoyant_cli.protocols.conversation import Conversation
from clairvoyant_cli.protocols.request_parsing import ParsedRequest
from clairvoyant_cli.protocols.usage import Totals
from clairvoyant_cli.proxy import control_api
from clairvoyant_cli.proxy.observing.request_views import RequestViews
from clairvoyant_cli.proxy.queue.ended import Ended, Outcome
from clairvoyant_cli.proxy.queue.exchange import Exchange, RequestEnd
from clairvoyant_cli.proxy.requests.admission import ReadBody
from clairvoyant_cli.proxy.requests.serving_rules import ClientLeft
from clairvoyant_cli.proxy.requests.truncations import Truncations
from clairvoyant_cli.proxy.servers.health import TROUBLE_AFTER
from clairvoyant_cli.proxy.servers.service_times import ClientMeans
from clairvoyant_cli.scheduler.chain import Chain
from clairvoyant_cli.scheduler.job import Estimates, Terms
from clairvoyant_cli.scheduler.server_cache import USUAL_WEIGHT
from clairvoyant_cli.scheduler.urgency import UrgencySource
from clairvoyant_cli.state.snapshot import Snapshot
from predictor.record import UNKNOWN, PromptView
from profiles.records import Finished
from tests.fakes.daemon_parts import DaemonParts, asking, daemon_parts, named
from tests.fakes.remembered import Kept

WHOLE = Totals(prompt_tokens=50_000, tokens=100, decode_s=4.0, complete=True)


def queued(parts: DaemonParts) -> Exchange:
    """Have a request admitted whose prompt is known in pieces."""
    chain = Chain((1, 2), (1000, 2000))
    parsed = ParsedRequest(
        model="m", view=PromptView("0.1"), prompt_tokens=4.0, conversation=Conversation(chain)
    )
    door = parts.admission.judge_head(asking())
    assert isinstance(door, ReadBody)
    exchange = parts.admission.enqueue(asking(), door, parsed)
    assert isinstance(exchange, Exchange)
    return exchange


def answered(parts: DaemonParts, exchange: Exchange) -> None:
    """Have a request answered in 4 s."""
    assert exchange.attempt is not None
    exchange.attempt.totals = WHOLE
    parts.now[0] += 4.0
    parts.dispatcher.end(exchange, Outcome.COMPLETED, 200)


async def test_dashboards_are_told_of_an_end_once_it_is_counted_learned_from_and_its_slot_is_free() -> None:
    parts, states = daemon_parts(), list[Snapshot]()
    running, waiting = queued(parts), queued(parts)
    parts.changed.functions[-1] = lambda: states.append(parts.snapshot())  # which told dashboards
    answered(parts, running)
    state = states[0]
    assert [each.id for each in state.recent] == [running.id]
    assert state.counters.completed == 1
    assert state.backends[0].decode_tokens_per_s == pytest.approx(25.0)
    assert [each.id for each in state.running] == [waiting.id]


async def kept_by(order: Random | None) -> tuple[Snapshot, bytes, list[Finished]]:
    """Return what is known of two ended requests: the state, the metrics and the history."""

    def failing(of: Ended) -> None:
        raise KeyError(of.id)

    parts, kept = daemon_parts(slo="ttft-p95=2s"), Kept()
    parts.admission.factory._boot = "a"
    parts.remember(kept)
    parts.keepers.functions.append(failing)
    if order is not None:
        order.shuffle(parts.keepers.functions)
    for _ in range(2):
        answered(parts, queued(parts))
    assert not parts.dispatcher.live
    for task in parts.tasks:
        task.cancel()
    state = parts.snapshot()
    return replace(state, log=()), b"".join(parts.metrics.render(state)), kept.finished_ones


@pytest.mark.parametrize("seed", range(4))
async def test_keepers_are_told_of_an_end_in_any_order_and_whatever_the_others_do(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    state, metrics, history = await kept_by(Random(seed))
    faults = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert len(faults) == 1, "the second fault of a kind is not logged"
    assert "failing" in faults[0].message
    assert state.counters.completed == len(state.recent) == len(history) == 2
    assert state.backends[0].decode_tokens_per_s == pytest.approx(28.2)  # 30.0 before, and 25.0
    assert (state, metrics, history) == await kept_by(None)


async def test_a_slot_is_free_although_no_record_could_be_made(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    parts = daemon_parts()
    running, waiting = queued(parts), queued(parts)
    with monkeypatch.context() as broken:
        broken.setattr(RequestViews, "ended", lambda *of: 1 / 0)
        answered(parts, running)
    assert parts.dispatcher.live == {waiting.id: waiting}
    assert waiting.attempt is not None
    assert len([each for each in caplog.records if each.levelno == logging.ERROR]) == 1


async def test_a_change_is_told_once_an_end_is_complete_also_where_it_makes_a_server_rest() -> None:
    parts, heard = daemon_parts("a", "b"), list[str]()

    def changed() -> None:
        heard.append(f"changed {len(parts.stats.recent)}")

    for _ in range(TROUBLE_AFTER):
        exchange = parts.queued("0.1")
        parts.now[0] += 1.0
        parts.keepers.functions.append(lambda of: heard.append("ended"))
        parts.changed.functions.append(changed)
        parts.dispatcher.end(exchange, Outcome.UPSTREAM_ERROR, 502)
        parts.keepers.functions.pop()
        parts.changed.functions.pop()
    assert named(parts.pool, "a").health.rests
    assert heard == [said for n in range(TROUBLE_AFTER) for said in ("ended", f"changed {n + 1}")]


async def test_a_prompt_that_was_cut_is_known_to_all_who_record_its_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def found(self: Truncations, exchange: Exchange, end: RequestEnd) -> None:
        exchange.remark, exchange.is_truncated = "prompt cut", True

    monkeypatch.setattr(Truncations, "judge", found)
    parts = daemon_parts()
    answered(parts, queued(parts))
    assert parts.stats.recent[-1].remark == "prompt cut"
    assert parts.times.tokens_per_character == ClientMeans(), "learned from a part of a prompt"


async def test_what_an_answer_leaves_in_the_cache_is_known_by_its_servers_numbers() -> None:
    parts = daemon_parts()
    cache = parts.dispatcher.scheduler.fleet.servers[parts.pool.first.id].cache
    before = cache.usual_tokens
    answered(parts, queued(parts))
    assert cache.usual_tokens == pytest.approx(before + USUAL_WEIGHT * (50_100 - before))


async def test_a_snapshot_keeps_nothing_of_a_request_that_has_ended() -> None:
    parts = daemon_parts()
    exchange = queued(parts)
    parts.snapshot()
    parts.after(exchange, ClientLeft(at_work=True))
    assert [each.id for each in parts.snapshot().running] == [exchange.id], "its slot is not free yet"
    await parts.tasks[0]
    assert not parts.snapshot().running
    assert not parts.views._kept


async def test_a_long_queue_is_shown_in_steps_during_which_it_may_change() -> None:
    parts = daemon_parts("a", "b", capacity=500)
    queued = [parts.queued(f"0.{number % 9} x", client=f"c{number % 7}") for number in range(300)]
    whole = [row.id for row in parts.snapshot().queue]
    steps = iter(parts.snapshots.steps())
    assert next(steps) is None
    gone = [each for each in queued if each.attempt is None][::50]
    for each in gone:
        parts.dispatcher.end(each, Outcome.CLIENT_CANCELLED, 499)
    *between, state = steps
    assert len(between) >= 3
    assert state is not None
    left = {each.id for each in gone}
    assert [row.id for row in state.queue] == [each for each in whole if each not in left]


@pytest.mark.parametrize("states", [("up", "up"), ("down", "up"), ("up", "down")])
@pytest.mark.parametrize("held_at", range(12))
async def test_requests_and_servers_may_change_while_a_state_is_built(
    held_at: int, states: tuple[str, str]
) -> None:
    parts = daemon_parts(capacity=500)
    *_, last = [parts.queued(f"0.{number % 9} x") for number in range(150)]
    scheduler, state = parts.dispatcher.scheduler, None
    parts.becomes("mac", states[0])
    for number, state in enumerate(parts.snapshots.steps()):  # noqa: B007 - the last is the state
        parts.becomes("mac", states[number == held_at])
        (scheduler.hold if number == held_at else scheduler.release)(last.id, parts.now[0])
    assert state is not None
    assert last.id in [row.id for row in state.queue]


async def test_a_row_shows_each_change_of_its_request_and_its_servers_at_once() -> None:
    parts = daemon_parts("a", "b")
    scheduler, now = parts.dispatcher.scheduler, parts.now[0]
    *_, exchange = [parts.queued("0.5 x") for _ in range(3)]
    estimates = Estimates(p_long=0.9, cost_s=9.0, tokens=99.0, tokens_q90=100.0)
    parts.snapshot()
    for change in (
        lambda: scheduler.reestimate(exchange.id, now, **estimates),
        lambda: setattr(
            exchange.asked, "prediction", replace(exchange.asked.prediction, expected_tokens=77.0)
        ),
        lambda: setattr(exchange, "reasons", (("length", 1.0),)),
        lambda: scheduler.set_terms(exchange.id, Terms("ben", 0, 0), now),
        lambda: scheduler.set_urgency(exchange.id, 1, UrgencySource.OPERATOR, now),
        lambda: scheduler.hold(exchange.id, now),
        lambda: scheduler.set_able(lambda job: frozenset({named(parts.pool, "b").id}), now),
        lambda: setattr(named(parts.pool, "b"), "name", "c") or parts.lifecycle.share_out(),  # type: ignore[func-returns-value]
    ):
        before = parts.snapshot().queue[-1]
        change()
        row = parts.snapshot().queue[-1]
        assert row != before
        parts.views._kept.clear()
        assert parts.snapshot().queue[-1] == row


async def test_a_waiting_request_more_costs_a_state_few_calls() -> None:
    parts, calls = daemon_parts(capacity=500), list[int]()
    for _ in range(3):
        for number in range(100):
            parts.queued(f"0.{number % 9} x", client=f"c{number % 7}")
        parts.snapshot()
        profile = Profile()
        profile.runcall(parts.snapshot)
        calls.append(sum(each.callcount for each in profile.getstats() if not isinstance(each.code, str)))
    assert calls[2] - calls[1] < 100 * 75


async def test_a_change_while_a_state_is_sent_is_shown_without_waiting_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(control_api, "HEARTBEAT_S", 3600.0)
    parts = daemon_parts()
    stream = parts.control._stream(0.01)
    await anext(stream)
    parts.queued("0.1 x")  # the state was built before, and its reader pauses after it
    shown = await asyncio.wait_for(anext(stream), 5.0)
    assert b'"/api/chat"' in shown
    await stream.aclose()  # type: ignore[attr-defined]


async def test_a_request_that_waits_to_be_compared_is_kept_as_a_few_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts, kept = daemon_parts(), list[Ended]()
    monkeypatch.setattr(parts.dispatcher.scheduler.arrival_order, "ended", lambda *of: kept.append(of[1]))
    exchange = queued(parts)
    exchange.asked.body = b"secret"
    answered(parts, exchange)
    (of,) = kept
    assert (of.id, of.model, of.tokens, of.waited_s, of.service_s) == (exchange.id, "m", 100, 0.0, 4.0)
    assert (of.body, of.prediction) == (None, UNKNOWN)
