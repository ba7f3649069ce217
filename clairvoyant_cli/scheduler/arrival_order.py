"""Replays the requests that were served in order of arrival, and compares each one's wait with the real one.

A request takes the slot of its server that falls free first, when it has arrived and everything before it has
its place (J. Kiefer and J. Wolfowitz, "On the theory of queues with many servers", 1955), for as long as it
really took. So its place is known once those before it have ended, which is later the more the real order
differs: example, one slot, an essay of 60 s and then a question of 2 s, and the question was answered first.
It waited 0 s; in order of arrival it waits 60 s, which is known when the essay has ended. Until then the
essay's predicted length stands in, and the pair is an estimate (`pending`).

While nothing may start (the queue is paused, no server is up) the clock of the replay stands still.
A request that is held, has a client with a limit of running requests, or was sent to a second server takes a
slot from its real start on, and is not compared: its wait is not the order's doing. An answer is not
preempted here, so its prompt is not read again. Where the KV cache holds conversations, a second cache sees
the prompts in order of arrival; what it lacks is read again here.

In order of arrival, all differences are 0 by construction.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from itertools import islice
from math import inf
from operator import attrgetter, itemgetter
from typing import Any

from clairvoyant_cli.scheduler.chain import NO_CHAIN, Chain
from clairvoyant_cli.scheduler.job import Job
from clairvoyant_cli.scheduler.placement import ServerSlots
from clairvoyant_cli.scheduler.server_cache import ServerCache

MAX_PENDING = 5000  # requests without a place; beyond that, the oldest are left out
MAX_TURNS = 200  # of the past, and as many to come
SAME_S = 1e-6  # sums of seconds that differ by less are equal


@dataclass(frozen=True, slots=True)
class Compared:
    """A request in order of arrival, beside how it really was."""

    subject: Any
    saved_s: float  # how much longer it would have waited, negative if less
    wait_s: float
    spared_tokens: float = 0.0  # of its prompt that would have been read again
    estimated: bool = False  # a length before it was predicted


@dataclass(frozen=True, slots=True)
class Turn:
    """A request's time in a slot in order of arrival, in real seconds."""

    id: str
    server_id: str
    slot: int  # from 0
    waited_s: float
    begun_s: float
    ended_s: float
    known: bool  # it is no forecast


@dataclass(slots=True, eq=False)
class _Run:
    """A request in the replay. Times are those of its clock."""

    id: str
    order: tuple[float, int]  # real arrival, and its number among those of the same moment
    arrived_s: float = 0.0  # infinite until it joins
    cost_s: float = 0.0  # predicted
    server_id: str = ""  # "" until it is known
    able: frozenset[str] = frozenset()  # servers that may have it, empty for all
    start_s: float = inf
    slot: int = 0
    work_s: float = 0.0  # slot time so far, without what preemption had it read again
    granted_s: float | None = None  # while it has a slot
    waited_s: float = 0.0  # really
    over_s: float = inf  # when it ended, really
    end_s: float = inf  # when it ends in the replay, once it has a place and is over
    counts: bool = True
    subject: Any = None  # what the pair is about
    chain: Chain = NO_CHAIN
    session: str = ""
    prompt_tokens: float = 0.0
    answer: tuple[float, float] | None = None  # the real tokens of prompt and answer
    served: bool = True  # its prompt was read
    cached_tokens: float | None = None  # expected in the cache, really
    cached_in_order: float | None = None  # and in the replay
    token_s: float = 0.0  # to read one token of a prompt

    @property
    def over(self) -> bool:
        return self.over_s < inf

    @property
    def spared_tokens(self) -> float:
        """The tokens of its prompt that would be read again in order of arrival."""
        if self.cached_tokens is None or self.cached_in_order is None:
            return 0.0
        return self.cached_tokens - self.cached_in_order

    def took_s(self, now: float) -> float:
        """Return its slot time in the replay; up to now if it has not ended."""
        running_s = 0.0 if self.granted_s is None else now - self.granted_s
        return max(self.work_s + running_s + self.spared_tokens * self.token_s, 0.0)

    def ends_s(self, now: float) -> float:
        """Return when it ends in the replay, as predicted if it has not ended."""
        if self.end_s < inf:
            return self.end_s
        took_s = self.took_s(now)
        return self.start_s + (took_s if self.over else max(took_s, self.cost_s))


@dataclass(slots=True, eq=False)
class _Server:
    """A server in the replay: the last request in each slot, and its cache."""

    slots: list[_Run] = field(default_factory=list)
    gone: list[_Run] = field(default_factory=list)  # in slots that went while they ran
    size: int = 0
    resizes: deque[tuple[float, int]] = field(default_factory=deque)
    cache: ServerCache = field(default_factory=ServerCache)
    unread: list[_Run] = field(default_factory=list)  # answers that the cache has not seen the end of

    def resize(self) -> None:
        """Carry out the first change of the number of slots."""
        at_s, size = self.resizes.popleft()
        if not size:
            self.cache = self.cache.emptied()  # as that of the server
        while len(self.slots) > size:  # those that fall free first go
            self.gone.append(min(self.slots, key=lambda run: run.ends_s(at_s)))
            self.slots.remove(self.gone[-1])
        self.gone = [run for run in self.gone if run.ends_s(at_s) > at_s]
        while len(self.slots) < size:
            self.slots.append(
                self.gone.pop() if self.gone else _Run("", (at_s, 0), start_s=at_s, over_s=at_s, end_s=at_s)
            )

    def read(self, run: _Run) -> None:
        """Have the cache see a prompt, after the answers that ended before it."""
        self.unread.sort(key=attrgetter("end_s"))
        while self.unread and self.unread[0].end_s <= run.start_s + SAME_S:
            ended = self.unread.pop(0)
            if not ended.served:
                self.cache.dropped(ended.id)
            elif ended.answer is not None:
                self.cache.answered(ended.id, *ended.answer)
        expected = self.cache.started(run.id, run.chain, run.prompt_tokens, run.session)
        run.cached_in_order = expected.tokens
        self.unread.append(run)


class ArrivalOrder:
    """The replay of a daemon's requests. Times are the scheduler's, in seconds."""

    def __init__(self) -> None:
        self._servers: dict[str, _Server] = {}
        self._runs: dict[str, _Run] = {}  # those that have not ended
        self._pending: list[_Run] = []  # those without a place, in order of arrival
        self._placed: list[_Run] = []  # those with one that have not ended, or are not told
        self._past: deque[Turn] = deque(maxlen=MAX_TURNS)
        self._marks: list[tuple[float, float, bool]] = [
            (-inf, 0.0, False)
        ]  # real time, the clock's, whether it runs

    @property
    def behind(self) -> int:
        """The number of requests that have been served, and are not compared yet."""
        return sum(run.over and run.subject is not None for run in self._pending)

    def follow(self, slots: Mapping[str, int], now: float, *, paused: bool) -> None:
        """Follow the servers' slots, 0 for one that is down."""
        is_open = not paused and any(slots.values())
        if is_open != self._marks[-1][2]:
            self._marks.append((now, self._clock(now), is_open))
        for name, number in slots.items():
            server = self._servers.setdefault(name, _Server())
            if number != server.size:
                server.size = number
                server.resizes.append((self._clock(now), number))

    def arrived(self, job: Job, *, at_grant: bool) -> None:
        """Add a job that joins the queue; `at_grant`: it joins the replay when it starts."""
        arrived_s = inf if at_grant else self._clock(job.arrival_s)
        run = _Run(job.id, (job.arrival_s, job.seq), arrived_s, job.cost_s, job.pinned, job.able)
        run.chain, run.session, run.prompt_tokens = job.prefix, job.session, job.prompt_tokens
        run.counts = not at_grant
        self._runs[job.id] = run
        if not at_grant:
            self._join(run)

    def _join(self, run: _Run) -> None:
        insort(self._pending, run, key=attrgetter("order"))
        if len(self._pending) > MAX_PENDING:
            self._pending.pop(0).counts = False

    def held(self, job: Job, now: float) -> None:
        """Take a job that is held out of the replay: it joins when it starts."""
        run = self._runs.get(job.id)
        if run is None:
            return
        run.counts = False
        if run.cached_tokens is None:
            self._again(job, now)

    def _again(self, job: Job, now: float) -> _Run:
        self.left(job.id, now)
        self.arrived(job, at_grant=True)
        return self._runs[job.id]

    def granted(self, job: Job, server: ServerSlots, now: float) -> None:
        """Record that a job starts on a server."""
        run, clock_s = self._runs[job.id], self._clock(now)
        if run.cached_tokens is not None and run.server_id != server.id:
            run = self._again(job, now)
        if run.arrived_s == inf:
            run.arrived_s = clock_s
            self._join(run)
        run.server_id, run.granted_s = server.id, clock_s
        run.waited_s = clock_s - run.arrived_s - run.work_s
        if run.cached_tokens is None:
            run.cached_tokens = job.expected.tokens
            run.token_s = 0.0 if server.speed is None else server.speed.seconds(1.0, 0.0)
            cache = self._servers[server.id].cache
            cache.slots, cache.reuse, cache.room_tokens = (
                server.cache.slots,
                server.cache.reuse,
                server.cache.room_tokens,
            )

    def answered(self, job_id: str, prompt_tokens: float, tokens: float) -> None:
        """Record the real tokens of a running job's prompt and answer."""
        if (run := self._runs.get(job_id)) is not None:
            run.answer = prompt_tokens, tokens

    def ended(self, job_id: str, subject: object | None, less_s: float = 0.0) -> None:
        """Record that a job has ended, before `freed` or `left`. `subject` is what its pair is about, None if
        it is not to be compared; `less_s` is the time for which it read its prompt again after preemptions.
        """
        if (run := self._runs.get(job_id)) is not None:
            run.subject, run.work_s = subject if run.counts else None, run.work_s - less_s

    def freed(self, job_id: str, now: float, *, over: bool, served: bool) -> None:
        """Record that a job has left its slot; `over`: for good. `served`: its prompt was read."""
        run = self._runs.get(job_id)
        if run is not None and run.granted_s is not None:
            clock_s = self._clock(now)
            run.work_s += clock_s - run.granted_s
            run.granted_s, run.served = None, served
            if over:
                self._over(run, clock_s)

    def left(self, job_id: str, now: float) -> None:
        """Record that a job has left the queue."""
        run = self._runs.get(job_id)
        if run is not None:
            run.subject = None
            self._over(run, self._clock(now))
            if run.cached_tokens is None and run in self._pending:  # it never started
                self._pending.remove(run)

    def _over(self, run: _Run, clock_s: float) -> None:
        run.over_s = clock_s
        del self._runs[run.id]
        if run.start_s < inf:
            run.end_s = run.start_s + run.took_s(0.0)

    # -- the replay -------------------------------------------------------------------------------------

    def settle(self, now: float) -> list[Compared]:
        """Return the pairs that have become known since the last call."""
        clock_s, blocked, left = self._clock(now), set[str](), list[_Run]()
        for index, run in enumerate(self._pending):
            if len(blocked) == len(self._servers):
                left += self._pending[index:]
                break
            able = self._able(run)
            if able & blocked or len(able) != 1 or not self._place(run, next(iter(able)), clock_s):
                blocked |= able
                left.append(run)
            else:
                self._placed.append(run)
        self._pending = left
        known, self._placed = self._placed, []
        for run in known:
            if run.end_s == inf:
                self._placed.append(run)
            else:
                self._past.append(self._turn(run, run.server_id, run.slot, run.start_s, run.end_s))
        if not self._runs and not self._pending:
            del self._marks[:-1]
        pairs = []
        for run in known:
            if run.subject is not None and run.end_s < inf:
                pairs.append(_pair(run, run.start_s))
        return pairs

    def _able(self, run: _Run) -> set[str]:
        """Return the servers that may have it: the one that it started on, once that is known."""
        return {run.server_id} if run.server_id else set(run.able or self._servers)

    def _place(self, run: _Run, server_id: str, clock_s: float) -> bool:
        """Give a request its place on a server; False if that is not known yet."""
        server = self._servers.get(server_id)
        while server is not None:
            # A request that has not ended may free its slot at any time from now on.
            first, free_s = None, inf
            for last in server.slots:
                end_s = last.end_s if last.end_s < inf else last.start_s + last.took_s(clock_s)
                if first is None or end_s < free_s:
                    first, free_s = last, end_s
            start_s = max(run.arrived_s, free_s)
            if server.resizes and server.resizes[0][0] <= start_s:
                server.resize()
                continue
            if first is None or first.end_s == inf or start_s >= clock_s - SAME_S:
                return False
            run.start_s, run.server_id, run.slot = start_s, server_id, server.slots.index(first)
            server.slots[run.slot] = run
            if run.chain.hashes:
                server.read(run)
            if run.over_s < inf:
                run.end_s = start_s + run.took_s(0.0)
            return True
        return False

    def _forecast(self, now: float) -> Iterator[tuple[_Run, str, int, float, float]]:
        """Yield requests without a place, and the server, slot, start and end that they would have if lengths
        that are not known were as predicted.
        """
        clock_s, free = self._clock(now), dict[str, list[tuple[float, int]]]()
        for name, server in self._servers.items():
            ends = [(run.ends_s(clock_s), slot) for slot, run in enumerate(server.slots)]
            free[name] = ends or [(clock_s, slot) for slot in range(server.size)]
            heapify(free[name])
        for run in self._pending:
            if able := [name for name in self._able(run) if free.get(name)]:
                name = min(able, key=lambda name: free[name][0])
                free_s, slot = free[name][0]
                start_s = max(free_s, run.arrived_s)
                took_s = run.took_s(clock_s)
                ends_s = start_s + (took_s if run.over else max(took_s, run.cost_s))
                heapreplace(free[name], (ends_s, slot))
                yield run, name, slot, start_s, ends_s

    def estimates(self, now: float) -> list[Compared]:
        """Return the pairs of what was served and is not compared yet, by predicted lengths."""
        found = self._forecast(now) if self.behind else ()
        return [
            _pair(run, start_s, estimated=True) for run, _, _, start_s, _ in found if run.subject is not None
        ]

    def turns(self, now: float) -> list[Turn]:
        """Return which request had which slot when, the latest of them, and the forecast for the others."""
        clock_s = self._clock(now)
        running = [
            self._turn(run, run.server_id, run.slot, run.start_s, run.ends_s(clock_s), known=False)
            for server in self._servers.values()
            for run in server.slots
            if not run.over
        ]
        to_come = [self._turn(*place, known=False) for place in islice(self._forecast(now), MAX_TURNS)]
        return [*self._past, *running, *to_come]

    def _turn(
        self, run: _Run, name: str, slot: int, start_s: float, ends_s: float, *, known: bool = True
    ) -> Turn:
        waited_s = start_s - run.arrived_s
        return Turn(run.id, name, slot, waited_s, self._real(start_s), self._real(ends_s, first=True), known)

    def _clock(self, real_s: float) -> float:
        """Return the replay's time at a real time."""
        mark = self._marks[-1]
        if real_s < mark[0]:
            mark = self._marks[max(0, bisect_right(self._marks, real_s, key=itemgetter(0)) - 1)]
        since_s, clock_s, runs = mark
        return clock_s + real_s - since_s if runs else clock_s

    def _real(self, clock_s: float, *, first: bool = False) -> float:
        """Return the last real time at a time of the replay, or the first."""
        mark, bisect = self._marks[-1], bisect_left if first else bisect_right
        if clock_s <= mark[1]:
            mark = self._marks[max(0, bisect(self._marks, clock_s, key=itemgetter(1)) - 1)]
        return mark[0] + clock_s - mark[1]


def _pair(run: _Run, start_s: float, *, estimated: bool = False) -> Compared:
    wait_s = start_s - run.arrived_s
    return Compared(run.subject, wait_s - run.waited_s, wait_s, run.spared_tokens, estimated)
