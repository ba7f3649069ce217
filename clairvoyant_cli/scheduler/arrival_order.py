"""Replays the requests that were served in order of arrival, and compares each one's wait with the real one.

A request takes the slot of its server that falls free first, when it has arrived and everything before it has
its place (J. Kiefer and J. Wolfowitz, "On the theory of queues with many servers", 1955), for as long as it
really took. So it has its place once it and those before it have ended, which is later the more the real
order differs: example, one slot, an essay of 60 s and then a question of 2 s, and the question was answered
first. It waited 0 s; in order of arrival it waits 60 s, which is known when the essay has ended. Until then
the essay's predicted length stands in, and the pair is an estimate.

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
from dataclasses import dataclass, field, replace
from itertools import islice
from math import inf
from operator import itemgetter
from typing import Any

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


@dataclass(frozen=True, slots=True)
class Turn:
    """A request's time in a slot in order of arrival."""

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

    job: Job
    arrived_s: float  # infinite until it joins
    server_id: str  # "" until it is known
    compares: bool
    work_s: float = 0.0  # slot time so far, without what preemption had it read again
    granted_s: float | None = None  # while it has a slot
    waited_s: float = 0.0  # really
    over: bool = False
    subject: Any = None  # what the pair is about, None if there is none
    answer: tuple[float, float] | None = None  # the real tokens of prompt and answer
    served: bool = True  # its prompt was read
    cached_tokens: float | None = None  # expected in the cache, really; None until it starts
    spared_tokens: float = 0.0  # of its prompt that is read again here
    token_s: float = 0.0  # to read one token of a prompt

    def took_s(self, now: float) -> float:
        """Return its slot time in the replay, as predicted if it has not ended."""
        running_s = 0.0 if self.granted_s is None else now - self.granted_s
        took_s = max(self.work_s + running_s + self.spared_tokens * self.token_s, 0.0)
        return took_s if self.over else max(took_s, self.job.cost_s)

    def pair(self, start_s: float) -> Compared:
        wait_s = start_s - self.arrived_s
        return Compared(self.subject, wait_s - self.waited_s, wait_s, self.spared_tokens)


@dataclass(slots=True, eq=False)
class _Server:
    """A server in the replay."""

    sizes: deque[tuple[float, int]] = field(default_factory=deque)  # since when it has how many slots
    most: int = 0  # slots that it ever had
    ends: list[tuple[float, int]] = field(default_factory=list)  # the last ones, and of which slot
    cache: ServerCache = field(default_factory=ServerCache)
    unread: list[tuple[float, _Run]] = field(default_factory=list)  # answers of which the cache has no end

    def start_s(self, arrived_s: float) -> float:
        """Return when a request starts: as soon as fewer run than there are slots; infinite if never."""
        for at, (since_s, slots) in enumerate(self.sizes, 1):
            until_s = self.sizes[at][0] if at < len(self.sizes) else inf
            free_s = self.ends[-slots][0] if 0 < slots <= len(self.ends) else -inf
            start_s = max(arrived_s, since_s, free_s)
            if slots and start_s < until_s:
                return start_s
        return inf

    def take(self, run: _Run, name: str, start_s: float, took_s: float, *, known: bool) -> Turn:
        """Have a request take a slot."""
        busy = self.ends[bisect_right(self.ends, (start_s, inf)) :]
        slot: int = min({*range(len(busy) + 1)}.difference(map(itemgetter(1), busy)))
        insort(self.ends, (start_s + took_s, slot))
        del self.ends[: -self.most]
        return Turn(run.job.id, name, slot, start_s - run.arrived_s, start_s, start_s + took_s, known)

    def read(self, run: _Run, start_s: float) -> None:
        """Have the cache see a prompt, after the answers that ended before it."""
        while len(self.sizes) > 1 and self.sizes[1][0] <= start_s:
            self.sizes.popleft()
            if not self.sizes[0][1]:
                self.cache = self.cache.emptied()  # as that of the server
        if not run.job.prefix.hashes:
            return
        self.unread.sort(key=itemgetter(0))
        while self.unread and self.unread[0][0] <= start_s + SAME_S:
            _, ended = self.unread.pop(0)
            if not ended.served:
                self.cache.dropped(ended.job.id)
            elif ended.answer is not None:
                self.cache.answered(ended.job.id, *ended.answer)
        job = run.job
        expected = self.cache.started(job.id, job.prefix, job.prompt_tokens, job.session)
        run.spared_tokens = (run.cached_tokens or 0.0) - expected.tokens
        self.unread.append((start_s + run.took_s(0.0), run))


class ArrivalOrder:
    """The replay of a daemon's requests. Times are the scheduler's, in seconds."""

    def __init__(self) -> None:
        self._servers: dict[str, _Server] = {}
        self._runs: dict[str, _Run] = {}  # those that have not ended
        self._pending: list[_Run] = []  # those without a place, in order of arrival
        self._past: deque[Turn] = deque(maxlen=MAX_TURNS)  # in the time of the clock
        self._stands_since_s = 0.0  # the clock; infinite while it runs
        # The clock's time as it went on, and for how long it had stood by then.
        self._stands = deque([(-inf, 0.0)], MAX_TURNS)

    @property
    def behind(self) -> int:
        """The number of requests that have been served, and are not compared yet."""
        return sum(run.over and run.subject is not None for run in self._pending)

    def follow(self, slots: Mapping[str, int], now: float, *, paused: bool) -> None:
        """Follow the servers' slots, 0 for one that is down."""
        if paused or not any(slots.values()):
            self._stands_since_s = min(self._stands_since_s, now)
        elif self._stands_since_s < inf:
            clock_s, self._stands_since_s = self._clock(now), inf
            self._stands.append((clock_s, now - clock_s))
        for name, number in slots.items():
            server = self._servers.setdefault(name, _Server())
            if not server.sizes or server.sizes[-1][1] != number:
                server.sizes.append((self._clock(now), number))
                server.most = max(server.most, number)

    def _clock(self, real_s: float) -> float:
        """Return the replay's time at a real time since it last stood."""
        return min(real_s, self._stands_since_s) - self._stands[-1][1]

    def arrived(self, job: Job, *, at_grant: bool) -> None:
        """Add a job that joins the queue; `at_grant`: it joins the replay when it starts."""
        arrived_s = inf if at_grant else self._clock(job.arrival_s)
        run = self._runs[job.id] = _Run(job, arrived_s, job.pinned, not at_grant)
        if not at_grant:
            self._join(run)

    def _join(self, run: _Run) -> None:
        """Add a run behind those that came before it, or have started by now."""
        at, order = len(self._pending), (run.job.arrival_s, run.job.seq)
        while at:
            before = self._pending[at - 1]
            if before.cached_tokens is not None or (before.job.arrival_s, before.job.seq) < order:
                break
            at -= 1
        self._pending.insert(at, run)
        if len(self._pending) > MAX_PENDING:
            self._pending.pop(0).compares = False

    def held(self, job: Job) -> None:
        """Take a job that is held out of the replay: it joins when it starts."""
        run = self._runs[job.id]
        run.compares = False
        if run.cached_tokens is None:
            self.left(job.id)
            self.arrived(job, at_grant=True)

    def granted(self, job: Job, server: ServerSlots, cached_tokens: float, now: float) -> None:
        """Record that a job starts on a server, which should have `cached_tokens` of its prompt."""
        run, clock_s = self._runs[job.id], self._clock(now)
        if run.cached_tokens is not None and run.server_id != server.id:
            self.left(job.id)
            self.arrived(job, at_grant=True)
            run = self._runs[job.id]
        if run.arrived_s == inf:
            run.arrived_s = clock_s
            self._join(run)
        run.server_id, run.granted_s = server.id, clock_s
        run.waited_s = clock_s - run.arrived_s - run.work_s
        if run.cached_tokens is None:
            run.cached_tokens = cached_tokens
            run.token_s = 0.0 if server.speed is None else server.speed.seconds(1.0, 0.0)
            real, cache = server.cache, self._servers[server.id].cache
            cache.slots, cache.reuse, cache.room_tokens = real.slots, real.reuse, real.room_tokens

    def answered(self, job_id: str, prompt_tokens: float, tokens: float) -> None:
        """Record the real tokens of a running job's prompt and answer."""
        self._runs[job_id].answer = prompt_tokens, tokens

    def ended(self, job_id: str, subject: object | None, less_s: float = 0.0) -> None:
        """Record that a job has ended, before `freed` or `left`. `subject` is what its pair is about, None if
        it is not to be compared; `less_s` is the time for which it read its prompt again after preemptions.
        """
        if (run := self._runs.get(job_id)) is not None:
            run.subject, run.work_s = subject if run.compares else None, run.work_s - less_s

    def freed(self, job_id: str, now: float, *, over: bool, served: bool) -> None:
        """Record that a job has left its slot; `over`: for good. `served`: its prompt was read."""
        run = self._runs[job_id]
        run.work_s += self._clock(now) - (run.granted_s or 0.0)
        run.granted_s, run.served, run.over = None, served, over
        if over:
            del self._runs[job_id]

    def left(self, job_id: str) -> None:
        """Record that a job has left the queue."""
        run = self._runs.pop(job_id)
        run.subject, run.over = None, True
        if run.cached_tokens is None and run in self._pending:  # it never started
            self._pending.remove(run)

    # -- the replay -------------------------------------------------------------------------------------

    def settle(self) -> list[Compared]:
        """Return the pairs that have become known since the last call."""
        blocked, left, pairs = set[str](), list[_Run](), list[Compared]()
        for index, run in enumerate(self._pending):
            # Those that may have it: the one that it started on, once that is known.
            able = {run.server_id} if run.server_id else {*(run.job.able or self._servers)}
            server = self._servers[run.server_id] if run.over and not able & blocked else None
            start_s = inf if server is None else server.start_s(run.arrived_s)
            if server is None or start_s == inf:
                blocked |= able
                left.append(run)
                if blocked >= self._servers.keys():
                    left += self._pending[index + 1 :]
                    break
                continue
            server.read(run, start_s)
            self._past.append(server.take(run, run.server_id, start_s, run.took_s(0.0), known=True))
            if run.subject is not None:
                pairs.append(run.pair(start_s))
        self._pending = left
        return pairs

    def _forecast(self, now: float) -> Iterator[tuple[_Run, Turn]]:
        """Yield requests without a place, and the turn that they would have if lengths that are not known
        were as predicted.
        """
        clock_s = self._clock(now)
        servers = {name: replace(server, ends=[*server.ends]) for name, server in self._servers.items()}
        for run in self._pending:
            able = {run.server_id} if run.server_id else {*(run.job.able or servers)}
            starts = ((servers[each].start_s(run.arrived_s), each) for each in able & servers.keys())
            start_s, name = min(starts, default=(inf, ""))
            if start_s < inf:
                yield run, servers[name].take(run, name, start_s, run.took_s(clock_s), known=False)

    def estimates(self, now: float) -> list[Compared]:
        """Return the pairs of what was served and is not compared yet, by predicted lengths."""
        found = self._forecast(now) if self.behind else ()
        return [run.pair(turn.begun_s) for run, turn in found if run.subject is not None]

    def turns(self, now: float) -> list[Turn]:
        """Return which request had which slot when, the latest of them, and the forecast for the others."""
        turns = [*self._past, *(turn for _, turn in islice(self._forecast(now), MAX_TURNS))]
        stands = [clock_s for clock_s, _ in self._stands]
        # In real time: the last at the beginning, the first at the end.
        return [
            replace(
                turn,
                begun_s=turn.begun_s + self._stands[max(0, bisect_right(stands, turn.begun_s) - 1)][1],
                ended_s=turn.ended_s + self._stands[max(0, bisect_left(stands, turn.ended_s) - 1)][1],
            )
            for turn in turns
        ]
