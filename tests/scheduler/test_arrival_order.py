"""The replay behind the gain: each request's wait, and its wait in order of arrival."""

from dataclasses import replace
from heapq import heappop, heappush
from itertools import count, pairwise
from random import Random

import pytest

from clairvoyant_cli.scheduler.arrival_order import MAX_PENDING, ArrivalOrder, Compared, Turn
from clairvoyant_cli.scheduler.chain import Chain
from clairvoyant_cli.scheduler.job import Job
from clairvoyant_cli.scheduler.policy import POLICIES
from clairvoyant_cli.scheduler.queue import Scheduler


class Server:
    """A scheduler with servers that take a known time for each job, in virtual time."""

    def __init__(self, policy: str, servers: dict[str, int], seed: int = 0) -> None:
        self.scheduler = Scheduler(POLICIES[policy], servers=servers, tau_s=60.0)
        self.arrival_order = self.scheduler.arrival_order = ArrivalOrder()
        self.slots = dict(servers)
        self.random = Random(seed)
        self.now = 0.0
        self.service_s: dict[str, float] = {}
        self.done_s: dict[str, float] = {}
        self.started_s: dict[str, float] = {}
        self.waited_s: dict[str, float] = {}
        self.compared: dict[str, Compared] = {}
        self.leaves: set[str] = set()
        self._events: list[tuple[float, int, str, str, str]] = []
        self._number = count()
        self.scheduler.next(0.0)

    def at(self, at_s: float, what: str, which: str = "", of: str = "") -> None:
        heappush(self._events, (at_s, next(self._number), what, which, of))

    def submit(self, job: Job, service_s: float) -> None:
        self.service_s[job.id] = service_s
        self._jobs = {**getattr(self, "_jobs", {}), job.id: job}
        self.at(job.arrival_s, "arrive", job.id)

    def run(self) -> "Server":
        while self._events:
            self.now, _, what, which, of = heappop(self._events)
            getattr(self, f"_{what}")(which, of)
            self._fill()
        self._note()
        return self

    def _fill(self) -> None:
        while (dispatch := self.scheduler.next(self.now)) is not None:
            job_id = dispatch.job.id
            self.started_s[job_id] = self.now
            self.waited_s[job_id] = self.now - dispatch.job.arrival_s - self.done_s.get(job_id, 0.0)
            left_s = self.service_s[job_id] - self.done_s.get(job_id, 0.0)
            self.at(self.now + left_s, "end", job_id, str(self.now))
        self._note()

    def _note(self) -> None:
        for each in self.arrival_order.settle():
            assert each.subject not in self.compared
            self.compared[each.subject] = each

    def _arrive(self, job_id: str, _: str) -> None:
        self.scheduler.submit(self._jobs[job_id], self.now)

    def _end(self, job_id: str, since: str) -> None:
        if job_id in self.scheduler.running and str(self.started_s[job_id]) == since:
            answered = job_id not in self.leaves
            if answered and self._jobs[job_id].prefix:
                self.scheduler.answered(job_id, 100.0, 50.0, None, calls_tool=False, now=self.now)
            self.arrival_order.ended(job_id, job_id if answered else None)
            self.scheduler.finish(job_id, self.now)

    def _pause(self, _: str, __: str) -> None:
        self.scheduler.pause()

    def _resume(self, _: str, __: str) -> None:
        self.scheduler.resume()

    def _hold(self, job_id: str, until_s: str) -> None:
        if self.scheduler.hold(job_id, self.now):
            self.at(float(until_s), "release", job_id)

    def _release(self, job_id: str, _: str) -> None:
        self.scheduler.release(job_id, self.now)

    def _slots(self, server_id: str, number: str) -> None:
        self.scheduler.fleet.set_slots(server_id, int(number))

    def _fail(self, server_id: str, _: str) -> None:
        """Fail what runs on a server, which is down from now on: it is asked for again, or given up."""
        for job_id in [
            each for each, entry in self.scheduler.running.items() if entry.server_id == server_id
        ]:
            if self.random.random() < 0.7:
                self.scheduler.requeue(job_id, self.now)
            else:
                self.arrival_order.ended(job_id, None)
                self.scheduler.finish(job_id, self.now, served=False)
        self.scheduler.fleet.set_slots(server_id, 0)

    def _cut(self, server_id: str, _: str) -> None:
        """Cut what runs on a server, unless another would take its slot: that changes the order."""
        running = [each for each, entry in self.scheduler.running.items() if entry.server_id == server_id]
        waiting = [entry.arrival_s for entry in self.scheduler.waiting()]
        latest_s = max((self._jobs[each].arrival_s for each in running), default=0.0)
        if len(running) > self.scheduler.slots[server_id] or min(waiting, default=latest_s) < latest_s:
            return
        for job_id in running:
            self.done_s[job_id] = self.done_s.get(job_id, 0.0) + self.now - self.started_s[job_id]
            self.scheduler.progress(job_id, 1.0)
            self.scheduler.requeue(job_id, self.now, preempted=True)

    def _cancel(self, job_id: str, _: str) -> None:
        if self.scheduler.cancel(job_id, self.now):
            self.service_s.pop(job_id)


def job(number: int, arrival_s: float, cost_s: float = 1.0, **more: object) -> Job:
    return replace(Job(f"r{number}", arrival_s, cost_s=cost_s, p_long=min(cost_s / 60.0, 1.0)), **more)  # type: ignore[arg-type]


def loaded(server: Server, requests: int, rho: float = 0.9, *, sessions: int = 0) -> Server:
    random, now = server.random, 0.0
    for number in range(requests):
        service_s = random.choice((0.5, 1.0, 2.0, 30.0)) * random.uniform(0.8, 1.2)
        now += random.expovariate(rho * sum(server.slots.values()) / 8.4)
        more: dict[str, object] = {}
        if sessions:
            session = random.randrange(sessions)
            hashes = tuple(1000 * session + piece for piece in range(1 + number // 10))
            chain = Chain(hashes, tuple(400 * (piece + 1) for piece in range(len(hashes))))
            more = {"prefix": chain, "prompt_tokens": 100.0, "client": f"c{session}"}
        server.submit(job(number, now, service_s, **more), service_s)
    return server


def troubled(server: Server, until_s: float) -> Server:
    """Add pauses, outages, other numbers of slots, cuts, holds, cancellations and clients that leave."""
    random, now = server.random, 0.0
    while (now := now + random.expovariate(1 / 40)) < until_s:
        server_id, lasts_s = random.choice(list(server.slots)), random.uniform(0.1, 60.0)
        match random.choice(("pause", "fail", "slots", "cut", "cancel", "leave", "hold")):
            case "pause":
                server.at(now, "pause")
                server.at(now + lasts_s, "resume")
            case "fail":
                server.at(now, "fail", server_id)
                server.at(now + lasts_s, "slots", server_id, str(server.slots[server_id]))
            case "slots":
                server.at(now, "slots", server_id, str(random.randint(1, 4)))
            case "cut":
                server.at(now, "cut", server_id)
            case "cancel":
                server.at(now, "cancel", random.choice(list(server.service_s)))
            case "hold":
                server.at(now, "hold", random.choice(list(server.service_s)), str(now + lasts_s))
            case _:
                server.leaves.add(random.choice(list(server.service_s)))
    return server


@pytest.mark.parametrize("seed", range(100))
def test_first_come_first_served_gains_nothing_whatever_happens(seed: int) -> None:
    servers = {"a": 1 + seed % 3} | ({"b": 1} if seed % 2 else {})
    server = troubled(loaded(Server("fcfs", servers, seed), 60, sessions=seed % 3), 600.0).run()
    assert len(server.compared) > 20
    assert all(abs(each.saved_s) < 1e-6 for each in server.compared.values())
    # A prompt that is read again after a preemption is fresher in the real cache.
    assert sum(each.spared_tokens != 0.0 for each in server.compared.values()) <= 1
    assert server.arrival_order.behind == 0


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("policy", ["sjf", "boost", "fcfs"])
def test_the_waits_in_order_of_arrival_are_those_of_that_order(policy: str, slots: int) -> None:
    ours = loaded(Server(policy, {"a": slots}), 300).run()
    in_order = loaded(Server("fcfs", {"a": slots}), 300).run()
    assert len(ours.compared) == 300
    for each in ours.compared.values():
        assert each.wait_s == pytest.approx(in_order.waited_s[each.subject], abs=1e-6)
        assert each.saved_s == pytest.approx(
            in_order.waited_s[each.subject] - ours.waited_s[each.subject], abs=1e-6
        )


def test_shortest_first_saves_what_the_longest_pays() -> None:
    server = Server("sjf", {"a": 1})
    server.submit(job(0, 0.0, 5.0), 5.0)
    server.submit(job(1, 1.0, 30.0), 30.0)
    server.submit(job(2, 2.0, 1.0), 1.0)
    server.run()
    assert {name: each.saved_s for name, each in server.compared.items()} == {"r0": 0, "r1": -1, "r2": 30}


def test_nothing_is_compared_before_the_requests_ahead_of_it_have_ended() -> None:
    server = Server("sjf", {"a": 1})
    for number, service_s in enumerate((5.0, 30.0, 1.0)):
        server.submit(job(number, float(number), service_s), service_s)
    server.at(6.5, "look")
    seen = []
    server._look = lambda *_: seen.append((set(server.compared), server.arrival_order.behind))  # type: ignore[attr-defined]
    server.run()
    assert seen == [({"r0"}, 1)]
    assert len(server.compared) == 3


def test_a_request_on_hold_is_not_compared_and_holds_nothing_up() -> None:
    server = Server("fcfs", {"a": 1})
    for number in range(4):
        server.submit(job(number, 0.0), 1.0)
    server.at(0.5, "hold", "r1", "50.0")
    server.run()
    assert {name: each.saved_s for name, each in server.compared.items()} == {"r0": 0, "r2": 0, "r3": 0}


def test_the_prefill_that_an_order_spares_is_told_apart() -> None:
    """Two conversations take turns in one slot; served one after the other, each finds its own."""
    server = Server("sjf", {"a": 1})
    server.scheduler.fleet.servers["a"].cache.size = (0.0, 1.0)  # nothing is kept behind the slot
    chains = [Chain((10 * at, 10 * at + 1), (400, 800)) for at in range(2)]
    for number in range(8):
        cost_s = 1.0 if number % 2 else 2.0
        server.submit(
            job(number, 0.1 * number, cost_s, prefix=chains[number % 2], prompt_tokens=100.0), cost_s
        )
    server.run()
    assert sum(each.spared_tokens for each in server.compared.values()) > 100


def test_what_is_not_known_yet_is_estimated_from_predicted_lengths() -> None:
    server = Server("sjf", {"a": 1})
    server.submit(job(0, 0.0, 5.0), 5.0)
    server.submit(job(1, 1.0, 30.0), 50.0)
    server.submit(job(2, 2.0, 1.0), 1.0)
    server.at(7.0, "look")
    seen = []
    server._look = lambda *_: seen.append(server.arrival_order.estimates(server.now))  # type: ignore[attr-defined]
    server.run()
    assert seen == [[Compared("r2", 30.0, 33.0)]]  # behind 30 s as predicted; really 50
    assert server.compared["r2"].wait_s == 53.0


def test_the_books_are_bounded() -> None:
    arrival_order = ArrivalOrder()
    for number in range(MAX_PENDING + 50):
        arrival_order.arrived(job(number, float(number)), at_grant=False)
    assert len(arrival_order._pending) == MAX_PENDING


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("policy", ["sjf", "boost"])
def test_turns_are_those_of_the_arrival_order_and_no_slot_has_two_at_once(policy: str, slots: int) -> None:
    ours, looks = loaded(Server(policy, {"a": slots}), 150), list[list[Turn]]()
    in_order = loaded(Server("fcfs", {"a": slots}), 150).run()
    for at_s in range(0, 3000, 50):
        ours.at(float(at_s), "look")
    ours._look = lambda *_: looks.append(ours.arrival_order.turns(ours.now))  # type: ignore[attr-defined]
    ours.run()
    known = {turn.id: turn for turns in looks for turn in turns if turn.known}
    forecast = [turn for turns in looks for turn in turns if not turn.known]
    assert len(known) > 100
    assert len(forecast) > 20
    # All lengths are predicted as they are: what is forecast comes true.
    for turn in [*known.values(), *forecast]:
        assert turn.waited_s == pytest.approx(in_order.waited_s[turn.id], abs=1e-6)
        begun_s, took_s = in_order.started_s[turn.id], in_order.service_s[turn.id]
        assert (turn.begun_s, turn.ended_s) == pytest.approx((begun_s, begun_s + took_s), abs=1e-6)
    for turns in looks:
        by_slot = sorted((turn.slot, turn.begun_s, turn.ended_s) for turn in turns)
        for one, two in pairwise(by_slot):
            assert one[0] != two[0] or one[2] <= two[1] + 1e-6


def test_a_pause_moves_the_turns_behind_it() -> None:
    server = Server("fcfs", {"a": 1})
    for number in range(3):
        server.submit(job(number, 0.0, 10.0), 10.0)
    server.at(5.0, "pause")
    server.at(35.0, "resume")
    server.run()
    turns = [(turn.begun_s, turn.ended_s) for turn in server.arrival_order.turns(server.now)]
    assert turns == [(0.0, 5.0), (35.0, 45.0), (45.0, 55.0)]  # the time of a pause is nobody's
