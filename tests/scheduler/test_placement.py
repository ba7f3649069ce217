"""Where jobs run: several servers, what they have loaded, and what clients may take."""

from dataclasses import dataclass, replace

import pytest

from clairvoyant_cli.scheduler.chain import Chain
from clairvoyant_cli.scheduler.fairness import ServiceCounters, Tenant
from clairvoyant_cli.scheduler.job import Job, QueueFullError, Reason
from clairvoyant_cli.scheduler.placement import MAX_PASSED
from clairvoyant_cli.scheduler.policy import POLICIES
from clairvoyant_cli.scheduler.queue import Scheduler
from clairvoyant_cli.scheduler.start_forecast import start_of


def started(scheduler: Scheduler, now: float) -> dict[str, str]:
    """Start all that can start and return which server each job went to."""
    placed = {}
    while (dispatch := scheduler.next(now)) is not None:
        placed[dispatch.job.id] = dispatch.server_id
    return placed


def test_the_least_busy_worker_comes_first() -> None:
    scheduler = Scheduler(POLICIES["fcfs"], servers={"a": 2, "b": 2})
    for number in range(4):
        scheduler.submit(Job(str(number), 0.0), 0.0)
    assert list(started(scheduler, 0.0).values()) == ["a", "b", "a", "b"]


def test_jobs_that_would_overflow_a_shared_kv_cache_do_not_run_together() -> None:
    scheduler = Scheduler(POLICIES["fcfs"], servers={"a": 3})
    scheduler.fleet.servers["a"].shared_tokens = 1000.0
    for name, prompt_tokens in (("first", 600.0), ("huge", 5000.0), ("small", 300.0), ("next", 300.0)):
        scheduler.submit(Job(name, 0.0, prompt_tokens=prompt_tokens, tokens=50.0, tokens_q90=100.0), 0.0)
    assert started(scheduler, 0.0) == {"first": "a"}  # and none before its turn
    scheduler.finish("first", 1.0)
    assert started(scheduler, 1.0) == {"huge": "a"}  # an empty server starts any job
    scheduler.finish("huge", 2.0)
    assert started(scheduler, 2.0) == {"small": "a", "next": "a"}


@dataclass(frozen=True)
class Times:
    """A server that takes `slowness` times as long as the fastest, which writes 10 tokens a second."""

    slowness: float = 1.0

    def seconds(self, prompt_tokens: float, tokens: float) -> float:
        """Return how long it takes; it reads 100 tokens a second."""
        return self.slowness * (prompt_tokens / 100.0 + tokens / 10.0)


def unequal(policy: str = "boost", *, slowness: float = 4.0, tau_s: float | None = None) -> Scheduler:
    scheduler = Scheduler(POLICIES[policy], servers={"slow": 1, "fast": 1}, tau_s=tau_s)
    for server_id, times in (("fast", 1.0), ("slow", slowness)):
        scheduler.fleet.servers[server_id].speed = Times(times)
    return scheduler


def long_for(cost_s: float, name: str = "x", *, at: float = 0.0) -> Job:
    return Job(name, at, cost_s=cost_s, tokens=10.0 * cost_s)


def test_a_job_waits_for_the_fast_worker_only_where_it_ends_sooner_there() -> None:
    for left_s, placed in ((1.0, {}), (40.0, {"x": "slow"})):
        scheduler = unequal()
        scheduler.submit(long_for(left_s, "first"), 0.0)
        assert started(scheduler, 0.0) == {"first": "fast"}
        scheduler.submit(long_for(5.0), 0.0)
        assert started(scheduler, 0.0) == placed
        assert scheduler.deferring == (not placed)


def test_waiting_for_a_worker_ends_when_its_job_outlives_its_prediction() -> None:
    scheduler = unequal()
    scheduler.submit(long_for(2.0, "first"), 0.0)
    started(scheduler, 0.0)
    scheduler.submit(long_for(4.0), 0.0)
    assert started(scheduler, 0.0) == {}
    assert started(scheduler, 90.0) == {"x": "slow"}


def test_overdue_and_promoted_jobs_do_not_wait_for_a_better_worker() -> None:
    for promoted, now in ((False, 11.0), (True, 1.0)):
        scheduler = unequal(tau_s=10.0)
        scheduler.submit(long_for(20.0, "first"), 0.0)
        started(scheduler, 0.0)
        scheduler.submit(long_for(30.0), 0.0)
        assert started(scheduler, 10.0 if not promoted else 0.5) == {}
        if promoted:
            scheduler.promote("x", now)
        assert started(scheduler, now) == {"x": "slow"}


def test_no_worker_stays_idle_where_many_wait() -> None:
    scheduler = unequal(slowness=100.0)
    for number in range(MAX_PASSED + 2):
        scheduler.submit(long_for(1.0 + number, str(number)), 0.0)
    assert set(started(scheduler, 0.0).values()) == {"fast", "slow"}


def test_waiting_for_a_worker_counts_the_jobs_before() -> None:
    scheduler = unequal()
    scheduler.submit(long_for(1.0, "first"), 0.0)
    started(scheduler, 0.0)
    scheduler.submit(long_for(4.0, "next"), 0.0)
    scheduler.submit(Job("pinned", 0.0, cost_s=30.0, tokens=300.0, pinned="fast"), 0.0)
    assert started(scheduler, 0.0) == {"next": "slow"}


def test_a_job_runs_only_where_it_can() -> None:
    scheduler = unequal()
    for name in ("x", "y"):
        scheduler.submit(replace(long_for(5.0, name), able=frozenset({"slow"})), 0.0)
    assert started(scheduler, 0.0) == {"x": "slow"}
    assert not scheduler.deferring


def test_a_job_waits_for_the_worker_that_has_its_model_if_loading_takes_longer() -> None:
    for left_s, placed in ((2.0, {}), (20.0, {"x": "b"})):
        scheduler = Scheduler(POLICIES["boost"], servers={"a": 1, "b": 1}, load_s={"m": 10.0})
        scheduler.fleet.residency.set("a", frozenset({"m"}))
        scheduler.submit(Job("first", 0.0, cost_s=left_s, affinity="m"), 0.0)
        assert started(scheduler, 0.0) == {"first": "a"}
        scheduler.submit(Job("x", 0.0, cost_s=4.0, affinity="m"), 0.0)
        assert started(scheduler, 0.0) == placed


def chain(*turns: str) -> Chain:
    count = len(turns)
    return Chain(
        tuple(hash(turns[: n + 1]) for n in range(count)), tuple(4000 * (n + 1) for n in range(count))
    )


def talking(prefix: Chain, name: str) -> Job:
    return Job(
        name,
        0.0,
        cost_s=1.0 + 10.0 * len(prefix.hashes),
        tokens=10.0,
        prefix=prefix,
        prompt_tokens=prefix.length / 4,
    )


def test_a_conversation_returns_to_the_cache_it_left() -> None:
    scheduler = Scheduler(POLICIES["boost"], servers={"a": 1, "b": 1})
    for server_id in "ab":
        scheduler.fleet.servers[server_id].speed = Times()
    scheduler.submit(talking(chain("hi"), "1"), 0.0)
    scheduler.submit(talking(chain("yo"), "2"), 0.0)
    assert started(scheduler, 0.0) == {"1": "a", "2": "b"}
    scheduler.finish("2", 11.0)
    scheduler.finish("1", 11.0)
    scheduler.submit(talking(chain("yo", "what?"), "3"), 11.0)
    assert started(scheduler, 11.0) == {"3": "b"}
    assert scheduler.running["3"].expected_s == pytest.approx(11.0)  # half of 2000 tokens is there
    scheduler.submit(talking(chain("yo", "what?", "now"), "4"), 11.0)
    assert started(scheduler, 13.0) == {}  # a is free, and would have to read all


def test_a_pinned_job_waits_without_blocking_others() -> None:
    scheduler = Scheduler(POLICIES["fcfs"], servers={"a": 1, "b": 0})
    scheduler.submit(Job("pinned", 0.0, pinned="b"), 0.0)
    scheduler.submit(Job("free", 1.0), 1.0)
    assert started(scheduler, 2.0) == {"free": "a"}
    scheduler.fleet.set_slots("b", 1)
    assert started(scheduler, 3.0) == {"pinned": "b"}


def test_two_models_do_not_thrash() -> None:
    scheduler = Scheduler(POLICIES["boost"], servers={"a": 1}, tau_s=5.0, load_s={"m": 10.0, "n": 10.0})
    for number in range(60):
        scheduler.submit(
            Job(str(number), float(number), cost_s=5.0, affinity="mn"[number % 2]), float(number)
        )
    now, loaded, swaps, order = 60.0, "", 0, []
    while (dispatch := scheduler.next(now)) is not None:
        if dispatch.job.affinity != loaded:
            loaded = dispatch.job.affinity
            swaps += 1
            now += 10.0
        now += 5.0
        order.append(dispatch.job.affinity)
        scheduler.finish(dispatch.job.id, now)
    assert len(order) == 60
    assert 10.0 * swaps <= 60 * 5.0 / 3 + 10.0  # at most a quarter of the time is loading


def test_the_price_of_loading_keeps_a_shorter_job_of_another_model_waiting() -> None:
    scheduler = Scheduler(POLICIES["boost"], servers={"a": 1}, load_s={"m": 10.0, "n": 10.0})
    scheduler.fleet.residency.set("a", frozenset({"m"}))
    scheduler.submit(Job("other", 0.0, cost_s=2.0, affinity="n"), 0.0)
    scheduler.submit(Job("same", 1.0, cost_s=9.0, affinity="m"), 1.0)
    assert started(scheduler, 2.0) == {"same": "a"}


def test_a_recently_loaded_model_stays_except_for_promoted_jobs() -> None:
    scheduler = Scheduler(POLICIES["boost"], servers={"a": 1}, load_s={"m": 10.0, "n": 10.0})
    for number, affinity in enumerate("mnm"):
        scheduler.submit(Job(str(number), 0.0, cost_s=5.0 - number, affinity=affinity), 0.0)
    scheduler.promote("0", 0.0)
    assert started(scheduler, 0.0) == {"0": "a"}
    scheduler.finish("0", 15.0)
    assert started(scheduler, 15.0) == {"2": "a"}
    scheduler.finish("2", 18.0)
    scheduler.submit(Job("3", 18.0, cost_s=1.0, affinity="m"), 18.0)
    scheduler.promote("1", 18.0)
    assert started(scheduler, 18.0) == {"1": "a"}


def swapping(*names: str) -> Scheduler:
    """Return a scheduler of two slots of a server where "m" and "n" have a price of 10 s, and all else 8 s.

    "m" has just been served; a short job of each of `names` waits.
    """
    scheduler = Scheduler(POLICIES["boost"], servers={"a": 2}, load_s={"m": 10.0, "n": 10.0})
    scheduler.fleet.residency.unknown_s = 8.0
    scheduler.fleet.residency.set("a", frozenset({"m"}))
    for number, name in enumerate(names):
        scheduler.submit(Job(f"{name}{number}", 0.0, cost_s=1.0, affinity=name), 0.0)
    return scheduler


def test_a_failed_start_changes_nothing_loaded() -> None:
    scheduler = swapping("n", "m", "n")
    scheduler.promote("n0", 0.0)
    assert started(scheduler, 0.0) == {"n0": "a", "n2": "a"}
    scheduler.finish("n0", 0.1, served=False)
    assert scheduler.fleet.residency.price_s("a", "m") == 10.0  # while the other may have it loaded
    scheduler.requeue("n2", 0.1)
    assert (scheduler.fleet.residency.price_s("a", "m"), scheduler.fleet.residency.must_stay("a", 0.1)) == (
        0.0,
        False,
    )
    assert next(iter(started(scheduler, 0.1))) == "m1"


def test_an_unknown_model_changes_no_load_cost_before_it_is_served() -> None:
    scheduler = swapping("junk", "m", "junk")
    scheduler.promote("junk0", 0.0)
    assert list(started(scheduler, 0.0)) == ["junk0", "m1"]
    scheduler.finish("m1", 1.0)
    assert scheduler.fleet.residency.price_s("a", "m") == 0.0
    assert scheduler.fleet.residency.price_s("a", "junk") == 8.0
    scheduler.finish("junk0", 2.0)
    assert scheduler.fleet.residency.price_s("a", "junk") == 0.0
    assert scheduler.fleet.residency.price_s("a", "m") == 10.0
    assert scheduler.fleet.residency.must_stay("a", 31.0)


def test_a_model_served_without_a_load_is_resident_beside_others() -> None:
    scheduler = swapping("alias")
    started(scheduler, 0.0)
    scheduler.fleet.residency.was_there("a", "alias0")
    scheduler.finish("alias0", 1.0)
    assert {scheduler.fleet.residency.price_s("a", name) for name in ("m", "alias")} == {0.0}
    assert not scheduler.fleet.residency.must_stay("a", 1.0)


def test_a_resident_model_after_a_possible_load_implies_nothing_about_others() -> None:
    scheduler = swapping("n", "n")
    started(scheduler, 0.0)
    scheduler.fleet.residency.was_there("a", "n1")
    assert scheduler.fleet.residency.price_s("a", "m") == 10.0


def test_known_resident_models_are_bounded() -> None:
    residency = swapping().fleet.residency
    for number in range(500):
        residency.dispatched("a", str(number), f"alias {number}", 0.0)
        residency.was_there("a", str(number))
    assert residency.price_s("a", "m") == 0.0
    assert len(residency._servers["a"].known.affinities) <= 64
    assert not residency._servers["a"].starts


def test_a_tenants_own_tau() -> None:
    scheduler = Scheduler(POLICIES["sjf"], servers={"a": 1}, tau_s=1e9, tenants={"gold": Tenant(tau_s=10.0)})
    scheduler.submit(Job("plain", 0.0, p_long=0.9), 0.0)
    scheduler.submit(Job("gold", 1.0, p_long=0.9, client="gold"), 1.0)
    scheduler.submit(Job("short", 2.0, p_long=0.1), 2.0)
    dispatch = scheduler.next(20.0)
    assert dispatch is not None
    assert (dispatch.job.id, dispatch.reason) == ("gold", Reason.TAU)


def test_a_tenants_quotas() -> None:
    tenants = {"bulk": Tenant(max_running=1, max_waiting=2)}
    scheduler = Scheduler(POLICIES["fcfs"], servers={"a": 3}, tenants=tenants)
    scheduler.submit(Job("b0", 0.0, client="bulk"), 0.0)
    scheduler.submit(Job("b1", 0.0, client="bulk"), 0.0)
    with pytest.raises(QueueFullError):
        scheduler.submit(Job("b2", 0.0, client="bulk"), 0.0)
    scheduler.submit(Job("other", 0.0), 0.0)
    assert set(started(scheduler, 0.0)) == {"b0", "other"}
    scheduler.finish("b0", 1.0)
    assert set(started(scheduler, 1.0)) == {"b1"}


def test_a_heavier_tenant_is_served_more() -> None:
    scheduler = Scheduler(POLICIES["boost"], servers={"a": 1}, tenants={"gold": Tenant(weight=3.0)})
    for number in range(9):
        for client in ("gold", "iron"):
            scheduler.submit(Job(f"{client}{number}", 0.0, cost_s=6.0, client=client), 0.0)
    order, now = list[str](), 0.0
    while len(order) < 12:
        order += [job_id.rstrip("0123456789") for job_id in started(scheduler, now)]
        now += 6.0
        scheduler.finish(next(iter(scheduler.running)), now)
    assert order.count("gold") == 9


def test_charges_decay_and_are_forgotten() -> None:
    counters = ServiceCounters(half_life_s=10.0)
    counters.charge("a", 8.0, 0.0)
    assert counters.used_s("a", 10.0) == pytest.approx(4.0)
    for _ in range(1024):
        counters.charge("b", 1.0, 1e6)
    assert len(counters) == 1


def in_debt() -> Scheduler:
    """Return a scheduler whose client "a" has been served 60 s, and whose slot is taken."""
    scheduler = Scheduler(POLICIES["boost"], servers={"w": 1}, capacity=3)
    scheduler.submit(Job("a0", 0.0, cost_s=60.0, client="a"), 0.0)
    scheduler.next(0.0)
    scheduler.finish("a0", 60.0)
    scheduler.submit(Job("blocker", 60.0, cost_s=1.0, client="x"), 60.0)
    scheduler.next(60.0)
    return scheduler


def test_a_cancelled_job_refunds_only_its_own_charge() -> None:
    scheduler = in_debt()
    scheduler.submit(Job("phantom", 60.0, cost_s=27_000.0, client="a"), 60.0)
    scheduler.cancel("phantom", 70.0)
    assert scheduler.clients.used_s("a", 70.0) == pytest.approx(in_debt().clients.used_s("a", 70.0))
    scheduler.submit(Job("b1", 70.0, cost_s=30.0, client="b"), 70.0)
    scheduler.submit(Job("a1", 70.0, cost_s=10.0, client="a"), 70.0)
    scheduler.finish("blocker", 70.0)
    assert started(scheduler, 70.0) == {"b1": "w"}


def test_a_dropped_job_refunds_only_its_own_charge() -> None:
    scheduler = in_debt()
    for number in range(3):
        scheduler.submit(Job(f"a{number}", 60.0, cost_s=9_000.0, client="a"), 60.0)
    displaced = [scheduler.submit(Job(name, 90.0, client=name), 90.0) for name in ("b", "c")]
    scheduler.cancel("a0", 90.0)
    assert [each.client for each in displaced if each is not None] == ["a", "a"]
    assert scheduler.clients.used_s("a", 90.0) == pytest.approx(in_debt().clients.used_s("a", 90.0))


def beside_an_engine(at_once: int) -> Scheduler:
    """Return a scheduler of a server of one slot and an engine, as fast, that takes whatever it is sent."""
    scheduler = Scheduler(POLICIES["boost"], servers={"engine": 1024, "held": 1})
    for server_id in ("engine", "held"):
        scheduler.fleet.servers[server_id].speed = Times()
    scheduler.fleet.set_slots("engine", 1024, at_once=at_once)
    return scheduler


def test_an_engine_with_its_own_queue_does_not_attract_every_job() -> None:
    scheduler = beside_an_engine(at_once=2)
    placed: dict[str, str] = {}
    for number in range(4):
        scheduler.submit(long_for(5.0, f"j{number}"), 0.0)
        placed |= started(scheduler, 0.0)
    assert placed == {"j0": "engine", "j1": "engine", "j2": "held", "j3": "engine"}


def test_a_long_job_avoids_an_engine_with_shorter_jobs_queued() -> None:
    scheduler = beside_an_engine(at_once=1)
    scheduler.submit(replace(long_for(1.0, "held up"), pinned="held"), 0.0)
    for number in range(5):
        scheduler.submit(replace(long_for(2.0, f"inside{number}"), pinned="engine"), 0.0)
    started(scheduler, 0.0)
    scheduler.finish("held up", 0.5)
    scheduler.submit(long_for(9.0, "long"), 0.5)
    assert started(scheduler, 0.5) == {"long": "held"}


def test_jobs_queued_inside_an_engine_count_as_backlog() -> None:
    scheduler = Scheduler(POLICIES["boost"], servers={"engine": 1024})
    scheduler.fleet.servers["engine"].speed = Times()
    scheduler.fleet.set_slots("engine", 1024, at_once=2)
    for number in range(4):
        scheduler.submit(long_for(5.0, f"inside{number}"), 0.0)
    started(scheduler, 0.0)
    wait_s, _ = start_of(scheduler, long_for(1.0), 0.0)
    assert 3.0 < wait_s < 10.0  # two rounds of two, whose ends are not known
