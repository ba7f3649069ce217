"""Looking at the queue changes nothing that a decision depends on."""

from collections import deque
from collections.abc import Callable
from itertools import count
from random import Random

import pytest

from clairvoyant_cli.scheduler.chain import Chain
from clairvoyant_cli.scheduler.explain import Standings
from clairvoyant_cli.scheduler.job import Job
from clairvoyant_cli.scheduler.policy import POLICIES
from clairvoyant_cli.scheduler.queue import Scheduler
from clairvoyant_cli.scheduler.sessions import Session
from clairvoyant_cli.scheduler.start_forecast import start_of
from tests.fakes.daemon_parts import daemon_parts


def frozen(it: object, seen: dict[int, int]) -> object:
    """Return all that an object holds as plain values, for a comparison."""
    if isinstance(it, str | int | float | bytes | None) or callable(it):
        return it
    if isinstance(it, count):
        return repr(it)
    if id(it) in seen:
        return f"the object number {seen[id(it)]}"
    seen[id(it)] = len(seen)
    if isinstance(it, dict):
        return [(frozen(key, seen), frozen(value, seen)) for key, value in it.items()]
    if isinstance(it, list | tuple | deque):
        return [frozen(each, seen) for each in it]
    if isinstance(it, set | frozenset):
        return sorted(map(repr, it))
    slots = [name for kind in type(it).__mro__ for name in getattr(kind, "__slots__", ())]
    names = [*getattr(it, "__dict__", {}), *slots]
    return type(it).__name__, [(name, frozen(getattr(it, name, None), seen)) for name in names]


def look_at(scheduler: Scheduler, now: float) -> None:
    """Ask all that a dashboard asks."""
    joining = Job("new", now, client="c1", cost_s=1.0)
    scheduler.sessions.with_turn(now, 3)
    assert [*Standings(scheduler, now, 1.0, 3)] or not len(scheduler)
    scheduler.next_up(now)
    start_of(scheduler, joining, now)
    scheduler.arrival_order.turns(now)
    scheduler.arrival_order.estimates(now)


def busy(
    policy: str, random: Random, look: Callable[[Scheduler, float], None] = lambda *_: None
) -> tuple[Scheduler, float]:
    """Return a scheduler with waiting, held and running jobs, some of sessions that rest, and the time.
    Somebody may `look` between any two of its steps.
    """
    scheduler, now, turns = (
        Scheduler(POLICIES[policy], servers={"a": 2, "b": 1}, tau_s=20.0),
        0.0,
        6 * [1],
    )
    for server in scheduler.fleet.servers.values():
        server.cache.room_tokens = 3000.0
    for number in range(60):
        now += random.expovariate(1.0)
        job = Job(str(number), now, client=f"c{number % 3}", cost_s=random.expovariate(0.5), tokens=50.0)
        if (session := random.randrange(9)) < len(turns):
            pieces = range(turns[session])
            job.prefix = Chain(
                tuple(hash((session, piece)) for piece in pieces),
                tuple(500 * (piece + 1) for piece in pieces),
            )
            turns[session] += 1
            job.agentic, job.prompt_tokens, job.client = True, 900.0, f"c{session}"
        look(scheduler, now)
        scheduler.submit(job, now)
        look(scheduler, now)
        while scheduler.next(now) is not None:
            look(scheduler, now)
        if random.random() < 0.7 and scheduler.running:
            ended = random.choice([*scheduler.running])
            scheduler.answered(ended, 900.0, 50.0, None, calls_tool=True, now=now)
            scheduler.finish(ended, now)
    scheduler.hold(next(iter(scheduler)).id, now)
    scheduler.sessions.known["rests"] = scheduler.sessions.active["rests"] = resting(now)
    return scheduler, now + 45.0


def resting(now: float) -> Session:
    """Return a session whose turn is over, which no decision has needed to know yet."""
    return Session("rests", "ann", "", True, active=True, last_end_s=now - 60.0, answers=3, tokens=5000.0)


@pytest.mark.parametrize("policy", ["boost", "sjf", "urgency"])
@pytest.mark.parametrize("seed", range(3))
def test_no_reader_changes_the_scheduler(policy: str, seed: int) -> None:
    scheduler, now = busy(policy, Random(seed))
    sessions, joining = scheduler.sessions, Job("new", now, client="c1", cost_s=1.0)
    assert len(sessions.with_turn(now, 1)) < sessions.turns, "a turn is over"
    for read in (
        lambda: sessions.with_turn(now, 3),
        sessions.parked,
        lambda: scheduler.waiting(now),
        lambda: list(Standings(scheduler, now, 1.0, 3)),
        lambda: scheduler.next_up(now),
        lambda: start_of(scheduler, joining, now),
        lambda: (scheduler.clients.counts, scheduler.queue.excess_s(now), scheduler.arrival_order.turns(now)),
    ):
        before = frozen(scheduler, {})
        read()
        assert frozen(scheduler, {}) == before


@pytest.mark.parametrize("policy", ["boost", "sjf", "fcfs", "urgency"])
@pytest.mark.parametrize("seed", range(3))
def test_decisions_are_the_same_however_often_somebody_looks(policy: str, seed: int) -> None:
    alone, now = busy(policy, Random(seed))
    watched, _ = busy(policy, Random(seed), look_at)
    for ours, theirs in (
        ([run.job for run in watched.running.values()], [run.job for run in alone.running.values()]),
        (watched.waiting(now), alone.waiting(now)),
    ):
        assert [(job.id, job.key, job.moves) for job in ours] == [
            (job.id, job.key, job.moves) for job in theirs
        ]


async def test_a_snapshot_changes_nothing_and_ends_no_turn() -> None:
    parts = daemon_parts("a", "b")
    for number in range(5):
        parts.queued(f"0.{number} x", client=f"c{number}")
    sessions = parts.dispatcher.scheduler.sessions
    sessions.known["rests"] = sessions.active["rests"] = resting(parts.now[0])
    read = parts.dispatcher.scheduler, parts.snapshots.backlog
    before = frozen(read, {})
    parts.now[0] += 60.0
    assert parts.snapshot().sessions.turns == 0
    assert frozen(read, {}) == before
