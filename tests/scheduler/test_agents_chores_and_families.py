"""Titles of agents wait for sessions; subagents and their parents are scheduled as families."""

from statistics import fmean

from clairvoyant_cli.scheduler.job import Job
from clairvoyant_cli.scheduler.queue import Scheduler
from clairvoyant_cli.scheduler.sessions import USUAL_GAP_S
from clairvoyant_cli.scheduler.waiting import MAX_BACK_S
from tests.scheduler.test_sessions import answer, queue, serve, started, turn


def title(now: float) -> Job:
    chain = turn("title", 0).prefix
    return Job("title", now, cost_s=1.0, tokens=9.0, prefix=chain, claimed="a", background_levels=10)


def test_a_title_does_not_evict_a_session_that_comes_back() -> None:
    scheduler = queue(room=500.0)
    serve(scheduler, turn("a", 0, claimed="a"), 0.0)
    scheduler.submit(title(1.1), 1.1)
    assert started(scheduler, 1.2) == [], "a comes back"
    serve(scheduler, turn("a", 1, 1.5, claimed="a"), 1.5)
    assert started(scheduler, 2.6) == []
    assert started(scheduler, 2.5 + USUAL_GAP_S + 0.01) == ["title"]
    assert len(scheduler.sessions.known) == 1, "a title is no session"


def test_a_title_does_not_wait_where_it_evicts_nothing() -> None:
    scheduler = queue(room=50_000.0)
    serve(scheduler, turn("a", 0, claimed="a"), 0.0)
    scheduler.submit(title(1.1), 1.1)
    assert started(scheduler, 1.2) == ["title"]


def test_a_title_does_not_wait_for_ever() -> None:
    scheduler, now = queue(room=500.0), 0.0
    scheduler.submit(title(0.0), 0.0)
    begun: list[str] = []
    number = 0
    while "title" not in begun:
        assert now < MAX_BACK_S + 10.0
        scheduler.submit(turn("a", number, now, claimed="a"), now)
        begun = started(scheduler, now)
        if begun == [f"a{number}"]:
            answer(scheduler, turn("a", number, claimed="a"), now + 1.0)
            number += 1
            begun = started(scheduler, now + 1.1)
        now += 1.5
    assert now > MAX_BACK_S - 10.0


def test_a_session_waits_for_no_request_of_its_own() -> None:
    scheduler = queue(room=500.0)
    serve(scheduler, turn("a", 0, claimed="a"), 0.0)
    scheduler.submit(Job("other", 1.1, cost_s=1.0, prompt_tokens=900.0, claimed="b"), 1.1)
    assert started(scheduler, 1.1) == []
    scheduler.submit(Job("compaction", 1.2, cost_s=5.0, prompt_tokens=900.0, claimed="a"), 1.2)
    assert started(scheduler, 1.2) == ["compaction"]


def test_a_parent_keeps_no_turn_while_its_children_work() -> None:
    scheduler = queue(room=500.0)
    serve(scheduler, turn("parent", 0, claimed="p"), 0.0)
    scheduler.submit(turn("stranger", 0, 1.1), 1.1)
    assert started(scheduler, 1.1) == []
    child = turn("child", 0, 1.2, claimed="c", parent="p")
    scheduler.submit(child, 1.2)
    assert started(scheduler, 1.2) == ["child0"], "before the stranger"
    answer(scheduler, child, 2.0)
    scheduler.submit(turn("parent", 1, 2.1, claimed="p"), 2.1)
    assert started(scheduler, 2.1) == ["parent1"], "its child is done and holds no turn"


def finished(scheduler: Scheduler, *, claims: bool) -> dict[str, float]:
    """Run two parents with two children of two turns each on one slot; return when each parent was done."""
    steps = {f"{p}{c}": 2 for p in "pq" for c in "xy"}
    done: dict[str, float] = {}
    due = [(0.0, "p", 0), (0.1, "q", 0)]
    now = 0.0
    while len(done) < 2:
        while due and min(due)[0] <= now:
            at, name, number = due.pop(due.index(min(due)))
            parent = name[0] if claims and len(name) == 2 else ""
            job = turn(name, number, at, claimed=name if claims else "", parent=parent)
            scheduler.submit(job, now)
        dispatch = scheduler.next(now)
        if dispatch is None:
            now += 0.1
            continue
        job = dispatch.job
        name, number = job.id[:-1], int(job.id[-1])
        cached = dispatch.expected_cache.tokens
        now += (job.prompt_tokens - cached) / 100.0 + 1.0
        answer(scheduler, job, now, cached)
        if len(name) == 2:
            steps[name] -= 1
            if steps[name]:
                due.append((now + 0.3, name, number + 1))
            elif not steps[f"{name[0]}x"] + steps[f"{name[0]}y"]:
                due.append((now + 0.3, name[0], 1))
        elif number == 0:
            due += [(now + 0.2, f"{name}x", 0), (now + 0.3, f"{name}y", 0)]
        else:
            done[name] = now
    return done


def test_parents_are_done_sooner_as_families() -> None:
    apart = finished(queue(room=500.0, policy="boost"), claims=False)
    together = finished(queue(room=500.0, policy="boost"), claims=True)
    assert fmean(together.values()) < fmean(apart.values())
    assert max(together.values()) <= max(apart.values())


def test_a_family_goes_no_sooner_than_another_client() -> None:
    scheduler = queue(room=500.0)
    serve(scheduler, turn("p", 0, client="heavy", claimed="p"), 0.0)
    serve(scheduler, turn("x", 0, 20.0), 20.0)
    scheduler.submit(turn("h", 0, 21.1, client="heavy"), 21.1)
    scheduler.submit(turn("c", 0, 21.2, client="heavy", claimed="c", parent="p"), 21.2)
    scheduler.submit(turn("s", 0, 21.3, client="light"), 21.3)
    assert started(scheduler, 21.4) == []
    assert started(scheduler, 21.0 + 2.0 * USUAL_GAP_S) == ["s0"]
    answer(scheduler, turn("s", 0, client="light"), 30.0)
    assert started(scheduler, 30.0 + 2.0 * USUAL_GAP_S) == ["c0"], "before its client's other session"
