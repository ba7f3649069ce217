"""Sessions: recognition, turns, holds, and the limits of all three."""

from dataclasses import dataclass, replace
from math import inf
from typing import Any

import pytest

from clairvoyant_cli.scheduler.chain import Chain
from clairvoyant_cli.scheduler.job import Job, QueueFullError, Reason
from clairvoyant_cli.scheduler.policy import POLICIES
from clairvoyant_cli.scheduler.queue import Scheduler
from clairvoyant_cli.scheduler.sessions import GROWTH, USUAL_GAP_S

TURN_TOKENS = 1000.0


@dataclass
class Speed:
    """100 tokens of a prompt and 50 of an answer a second."""

    def seconds(self, prompt_tokens: float, tokens: float) -> float:
        return prompt_tokens / 100.0 + tokens / 50.0


def turn(name: str, number: int, now: float = 0.0, **more: Any) -> Job:
    count = range(1, number + 2)
    prompt_tokens = TURN_TOKENS * (number + 1)
    prefix = Chain(tuple(hash((name, n)) for n in count), tuple(4000 * n for n in count))
    cost_s = Speed().seconds(prompt_tokens, 50.0)
    given: dict[str, Any] = {"agentic": True, "cost_s": cost_s, "tokens": 50.0} | more
    return Job(f"{name}{number}", now, prefix=prefix, prompt_tokens=prompt_tokens, **given)


def queue(slots: int = 1, room: float | None = None, policy: str = "boost", **more: Any) -> Scheduler:
    """Return a queue for one server whose cache behind the slots holds `room` tokens, None: unknown."""
    scheduler = Scheduler(POLICIES[policy], servers={"gpu": slots}, **more)
    scheduler.fleet.set_slots("gpu", slots, at_once=slots)
    scheduler.fleet.servers["gpu"].speed = Speed()
    if room is not None:
        scheduler.fleet.servers["gpu"].cache.room_tokens = room
    return scheduler


def started(scheduler: Scheduler, now: float) -> list[str]:
    """Start all that can start now; return their ids."""
    ids = []
    while (dispatch := scheduler.next(now)) is not None:
        ids.append(dispatch.job.id)
    return ids


def answer(scheduler: Scheduler, job: Job, now: float, cached: float | None = None) -> None:
    scheduler.answered(job.id, job.prompt_tokens, 50.0, cached, calls_tool=True, now=now)
    scheduler.finish(job.id, now)


def serve(scheduler: Scheduler, job: Job, now: float) -> None:
    scheduler.submit(job, now)
    assert started(scheduler, now) == [job.id]
    answer(scheduler, job, now + 1.0)


def test_the_next_turn_costs_what_is_unread() -> None:
    scheduler = queue()
    serve(scheduler, turn("a", 0), 0.0)
    scheduler.submit(turn("a", 1), 2.0)
    scheduler.submit(turn("b", 1), 2.0)
    costs = {entry.id: entry.cost_s for entry in scheduler.waiting()}
    assert costs == {"a1": pytest.approx(20.0 + 1.0 - 10.5), "b1": pytest.approx(21.0)}


def test_a_waiting_turn_is_priced_again_when_its_conversation_is_read() -> None:
    scheduler = queue(policy="fcfs")
    scheduler.pause()
    scheduler.submit(turn("a", 0), 0.0)
    scheduler.submit(turn("a", 1), 0.0)
    assert [entry.cost_s for entry in scheduler.waiting()] == pytest.approx([11.0, 21.0])
    scheduler.resume()
    assert started(scheduler, 0.0) == ["a0"]
    assert [entry.cost_s for entry in scheduler.waiting()] == pytest.approx([11.0])


def test_sessions_that_do_not_fit_together_are_served_one_after_the_other() -> None:
    scheduler = queue(room=500.0)
    for name in "abc":
        scheduler.submit(turn(name, 0), 0.0)
    assert started(scheduler, 0.0) == ["a0"]
    answer(scheduler, turn("a", 0), 11.0)
    assert started(scheduler, 11.0) == [], "a comes back"
    assert scheduler.deferring
    scheduler.submit(turn("a", 1, 11.5), 11.5)
    assert started(scheduler, 11.5) == ["a1"]
    answer(scheduler, turn("a", 1), 20.0)
    assert started(scheduler, 20.0 + 2.0 * USUAL_GAP_S) == ["b0"], "a rests"


def test_sessions_that_fit_together_are_not_parked() -> None:
    for scheduler in (queue(), queue(room=5000.0), queue(slots=2, room=10.0)):
        scheduler.submit(turn("a", 0), 0.0)
        scheduler.submit(turn("b", 0), 0.0)
        first = started(scheduler, 0.0)
        answer(scheduler, turn("a", 0), 11.0)
        assert first + started(scheduler, 11.0) == ["a0", "b0"]


def test_a_question_outside_sessions_starts_while_a_session_has_its_turn() -> None:
    scheduler = queue(room=3000.0)
    serve(scheduler, turn("a", 0), 0.0)
    scheduler.submit(turn("b", 2, 1.1), 1.1)
    scheduler.submit(Job("chat", 1.2, cost_s=1.0, tokens=50.0), 1.2)
    assert started(scheduler, 1.2) == ["chat"]


def test_a_question_waits_a_moment_for_a_session_that_it_would_evict() -> None:
    scheduler = queue(room=500.0)
    serve(scheduler, turn("a", 0), 0.0)
    scheduler.submit(Job("chat", 1.1, cost_s=1.0, tokens=50.0, prompt_tokens=100.0), 1.1)
    assert started(scheduler, 1.1) == []
    assert started(scheduler, 1.0 + USUAL_GAP_S + 0.01) == ["chat"]


def test_a_prompt_that_is_repeated_at_once_is_no_agents() -> None:
    scheduler, now = queue(), 0.0
    for number, is_agents in ((0, False), (0, False), (1, True)):
        job = turn("a", number, now, agentic=False)
        scheduler.submit(job, now)
        assert [each.agent for each in scheduler.sessions.known.values()] == [is_agents]
        assert started(scheduler, now) == [job.id]
        answer(scheduler, job, now + 1.0)
        now += 2.0


def spoken(scheduler: Scheduler, names: str, rounds: int, now: float = 0.0) -> float:
    """Serve agents of one program on one slot, each of which sends its next turn after the answer to the one
    before it; return the seconds that the slot stood idle while a request waited.
    """
    idle_s = 0.0
    for number in range(rounds):
        for name in names:
            job = turn(name, number, now, program="pair")
            scheduler.submit(job, now)
            while not (ids := started(scheduler, now)):
                now, idle_s = now + 0.05, idle_s + 0.05
            assert ids == [job.id]
            answer(scheduler, job, now + 1.0)
            now += 1.3
    return idle_s


def test_agents_that_speak_in_turn_are_held_for_twice_at_most() -> None:
    scheduler = queue(room=500.0)
    assert 0.0 < spoken(scheduler, "ab", 8) <= 2 * USUAL_GAP_S
    assert spoken(scheduler, "cd", 8, 100.0) <= 2 * USUAL_GAP_S, "another pair of the program"


def test_an_agent_is_held_for_again_once_it_comes_back_at_once() -> None:
    scheduler = queue(room=500.0)
    spoken(scheduler, "ab", 4)
    for number in (5, 6):  # alone now
        serve(scheduler, turn("a", number, 100.0 + 2 * number, program="pair"), 100.0 + 2 * number)
    scheduler.submit(turn("c", 5, 113.1), 113.1)
    assert started(scheduler, 113.1) == [], "a is expected"


def test_a_hold_that_ends_while_nobody_waits_is_not_in_vain() -> None:
    scheduler = queue(room=500.0)
    for at_s, job in enumerate((turn("a", 0), turn("b", 0), turn("a", 1))):
        serve(scheduler, replace(job, arrival_s=60.0 * at_s, program="pair"), 60.0 * at_s)
    scheduler.submit(turn("b", 1, 121.1), 121.1)
    assert started(scheduler, 121.1) == [], "a is expected"


def test_a_session_that_never_comes_back_ends_its_turn() -> None:
    scheduler = queue(room=500.0)
    serve(scheduler, turn("a", 0), 0.0)
    scheduler.submit(turn("b", 0, 1.0), 1.0)
    assert started(scheduler, 1.1) == []
    assert started(scheduler, 1.0 + 2.0 * USUAL_GAP_S) == ["b0"]


def test_after_tau_a_parked_session_takes_the_turn_of_the_one_that_has_had_it_longest() -> None:
    scheduler = queue(room=500.0, tau_s=30.0)
    now, number = 0.0, 0
    scheduler.submit(turn("b", 0, 0.5), 0.5)
    scheduler.promote("b0", 0.5)
    assert started(scheduler, 0.5) == ["b0"]
    scheduler.submit(turn("a", 0), 0.6)
    answer(scheduler, turn("b", 0), 1.0)
    while "a0" in scheduler.queue.jobs:
        number += 1
        now += 2.0
        again = replace(turn("b", 1, now), id=f"again{number}")
        scheduler.submit(again, now)
        for job_id in started(scheduler, now):
            if job_id != "a0":
                answer(scheduler, again, now + 1.5)
        assert now < 200.0
    assert now > 30.0
    assert scheduler.sessions.known.get(scheduler.running["a0"].job.session) is not None


@pytest.mark.parametrize("policy", ["fcfs"])
def test_without_a_guard_nothing_is_parked(policy: str) -> None:
    scheduler = queue(room=500.0, policy=policy)
    serve(scheduler, turn("a", 0), 0.0)
    scheduler.submit(turn("b", 0, 1.0), 1.0)
    assert started(scheduler, 1.1) == ["b0"]


def test_a_promoted_request_of_a_parked_session_starts() -> None:
    scheduler = queue(room=500.0)
    serve(scheduler, turn("a", 0), 0.0)
    scheduler.submit(turn("b", 0, 1.0), 1.0)
    assert started(scheduler, 1.1) == []
    scheduler.promote("b0", 1.1)
    dispatch = scheduler.next(1.1)
    assert dispatch is not None
    assert dispatch.reason is Reason.PROMOTED


def test_a_claimed_session_of_another_client_wins_nothing() -> None:
    scheduler = queue(room=500.0)
    serve(scheduler, turn("a", 0, client="alice", claimed="id"), 0.0)
    forged = replace(turn("b", 0, 1.0, client="mallory", claimed="id"), arrival_s=1.0)
    scheduler.submit(forged, 1.0)
    assert started(scheduler, 1.1) == []
    scheduler.submit(turn("a", 1, 1.2, client="mallory", claimed="id"), 1.2)
    assert started(scheduler, 1.2) == [], "nor by her words"
    assert len({session.client for session in scheduler.sessions.known.values()}) == 2


def test_two_sessions_with_the_same_words_are_two_by_their_ids() -> None:
    scheduler = queue()
    serve(scheduler, turn("a", 0, claimed="one"), 0.0)
    serve(scheduler, replace(turn("a", 0, claimed="two"), id="x"), 2.0)
    assert len(scheduler.sessions.known) == 2
    scheduler.submit(turn("a", 1, claimed="one"), 4.0)
    assert scheduler.sessions.known["s1"].waiting == 1


def test_a_cancelled_request_frees_its_sessions_turn() -> None:
    scheduler = queue(room=500.0)
    scheduler.pause()
    scheduler.submit(turn("a", 0), 0.0)
    scheduler.submit(turn("b", 0), 0.0)
    scheduler.resume()
    scheduler.cancel("a0", 1.0)
    assert started(scheduler, 60.0) == ["b0"]


def test_clients_take_turns() -> None:
    scheduler = queue(room=500.0)
    serve(scheduler, turn("a", 0, client="heavy"), 0.0)
    scheduler.submit(turn("b", 0, 1.0, client="heavy"), 1.0)
    scheduler.submit(turn("c", 0, 1.1, client="light"), 1.1)
    assert started(scheduler, 1.0 + 2.0 * USUAL_GAP_S) == ["c0"]


def test_a_parked_request_is_dropped_like_any_other() -> None:
    scheduler = queue(room=500.0, capacity=3)
    serve(scheduler, turn("a", 0, client="heavy"), 0.0)
    for name in "bcd":
        scheduler.submit(turn(name, 0, 1.0, client="heavy"), 1.0)
    dropped = scheduler.submit(Job("x", 1.2, client="light", cost_s=1.0), 1.2)
    assert dropped is not None
    assert dropped.client == "heavy"
    assert len(scheduler) == 3


def test_a_change_of_policy_parks_a_request_that_can_be_cancelled() -> None:
    scheduler = queue(room=500.0, policy="fcfs")
    serve(scheduler, turn("a", 0), 0.0)
    scheduler.submit(turn("b", 0, 1.0), 1.0)
    scheduler.set_policy(POLICIES["boost"], 1.0)
    assert started(scheduler, 1.1) == []
    assert scheduler.cancel("b0", 1.2)


def test_a_request_that_finds_no_place_does_not_keep_its_sessions_turn() -> None:
    scheduler = queue(room=500.0, capacity=1)
    serve(scheduler, turn("a", 0), 0.0)
    scheduler.submit(turn("b", 0, 1.0, client="b"), 1.0)
    with pytest.raises(QueueFullError):
        scheduler.submit(turn("a", 1, 1.1), 1.1)
    assert started(scheduler, 1.2) == [], "a may come back"
    assert started(scheduler, 1.0 + 2.0 * USUAL_GAP_S) == ["b0"]


def test_turns_go_in_order_where_the_cache_is_known_to_hold_their_sessions() -> None:
    for known, first in ((9000.0, "b0"), (0.0, "a1")):
        scheduler = queue()
        scheduler.fleet.servers["gpu"].cache.size = (known, inf)
        serve(scheduler, turn("a", 0), 0.0)
        scheduler.submit(turn("b", 0, 1.1, cost_s=20.0), 1.1)
        scheduler.submit(turn("a", 1, 1.2), 1.2)
        scheduler.submit(Job("chat", 1.3, cost_s=1.0, tokens=50.0), 1.3)
        assert started(scheduler, 1.3) == ["chat"], "which is shorter than any turn"
        scheduler.finish("chat", 2.3)
        assert started(scheduler, 2.3) == [first]


def test_a_session_gets_a_turn_only_with_room_to_grow() -> None:
    for room, parked in ((GROWTH * 1050.0 - 1.0, True), (GROWTH * 1050.0 + 1.0, False)):
        scheduler = queue(room=room)
        serve(scheduler, turn("a", 0), 0.0)
        scheduler.submit(turn("b", 0, 1.0), 1.0)
        assert (started(scheduler, 1.1) == []) == parked
