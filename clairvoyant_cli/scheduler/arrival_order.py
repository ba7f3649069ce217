"""Replays the requests that were served in order of arrival, and compares each one's wait with the real one.

Rule 1: only pairs count: the same request, served whole, with both waits known.
Rule 2: the clock of a server stands still while it may start nothing (paused, down): that time is nobody's.
Rule 3: a request takes its slot in the replay for as long as it really did, also while its server was still
busy with it after its client had left. An answer is not cut there, so its prompt is not read again.
Rule 4: a start is final once everything before it is known. Where that takes longer than `PATIENCE_S`, what
is not known is predicted, and the pairs that depend on it are marked as estimated.
Rule 5: where the KV cache is shared by conversations, a second cache sees the prompts in order of arrival.
The difference between what the two are expected to hold is the prefill that the real order saved.

A request that is held joins when it is released, one whose client has a limit of running requests when it
starts: its wait is the operator's doing. It takes a slot, but is not compared.

Under first-come-first-served, all differences are 0 by construction.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import islice
from math import inf
from operator import attrgetter, itemgetter
from typing import Any

from clairvoyant_cli.scheduler.chain import NO_CHAIN, Chain
from clairvoyant_cli.scheduler.job import Job
from clairvoyant_cli.scheduler.placement import ServerSlots
from clairvoyant_cli.scheduler.server_cache import ServerCache

PATIENCE_S = 180.0  # how long an ended request waits for the real length of one before it

MAX_PENDING = 10_000
"""Requests whose start in order of arrival is not known; beyond that, the oldest are left out."""

MAX_TURNS = 200  # of the past, and as many to come
SAME_S = 1e-6
"""Sums of seconds that differ by less are equal. Starts of this moment have to wait for what else happens in
it: a server that goes down frees its slots one by one.
"""


@dataclass(frozen=True, slots=True)
class Compared:
    """A request in order of arrival, beside how it really was."""

    of: Any
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
    """A request in the replay. Seconds are open time of its server, unless they are said to be real."""

    id: str
    arrived_s: float  # real
    order: tuple[float, int] = (0.0, 0)
    cost_s: float = 0.0
    server_id: str = ""
    able: frozenset[str] = frozenset()
    start_s: float | None = None  # None until it has its place
    slot: int = 0
    work_s: float = 0.0  # slot time so far
    granted_s: float | None = None  # when it was last granted a slot, None while it has none
    freed_s: float = 0.0  # real
    waited_s: float = 0.0
    over: bool = False  # it will not run again
    dropped: bool = False
    over_s: float = inf  # real
    taken_s: float | None = None  # the predicted slot time that others went by
    less_s: float = 0.0  # what it read again after cuts
    estimated: bool = False
    counts: bool = True
    of: Any = None  # what the pair is about, None if it is not compared
    chain: Chain = NO_CHAIN
    session: str = ""
    prompt_tokens: float = 0.0
    answer: tuple[float, float] | None = None  # the real tokens of prompt and answer
    cached_tokens: float | None = None  # to be expected in the cache, really
    cached_in_order: float | None = None  # and in the replay
    read_s: float = 0.0  # the time of a token's prefill
    again: list[tuple[float, float]] = field(default_factory=list)  # starts after cuts: `work_s`, real time

    @property
    def spared_tokens(self) -> float:
        """The tokens of its prompt that would be read again in order of arrival."""
        if self.cached_tokens is None or self.cached_in_order is None:
            return 0.0
        return self.cached_tokens - self.cached_in_order

    def ends_s(self, now: float) -> float:
        """Return when it ends in the replay, at the open time `now`; if not known, the earliest time."""
        running_s = 0.0 if self.granted_s is None else now - self.granted_s
        took_s = self.work_s + running_s - self.less_s + self.spared_tokens * self.read_s
        return (self.start_s or 0.0) + max(took_s if self.taken_s is None else self.taken_s, 0.0)


@dataclass(slots=True, eq=False)
class _Server:
    """A server in the replay: its clock of open time, the last request of each slot, and its cache."""

    marks: list[tuple[float, float, bool]]  # real time, open time then, whether it runs from there
    slots: list[_Run] = field(default_factory=list)
    removed: list[_Run] = field(default_factory=list)
    resizes: deque[tuple[float, int]] = field(default_factory=deque)
    size: int = 0
    is_up: bool = False
    cache: ServerCache = field(default_factory=ServerCache)
    in_cache: list[_Run] = field(default_factory=list)

    def at(self, real_s: float) -> float:
        """Return the open time at a real time."""
        index = max(0, bisect_right(self.marks, real_s, key=lambda mark: mark[0]) - 1)
        since_s, open_s, runs = self.marks[index]
        return open_s + max(real_s - since_s, 0.0) if runs else open_s

    def real(self, open_s: float, *, first: bool = False) -> float:
        """Return the last real time at an open time, or the first; of one to come, as if it stayed open."""
        bisect = bisect_left if first else bisect_right
        since_s, at_s, _ = self.marks[max(0, bisect(self.marks, open_s, key=lambda mark: mark[1]) - 1)]
        return since_s + open_s - at_s

    def turn(
        self, run: _Run, on: str, slot: int, start_s: float, ends_s: float, *, known: bool = False
    ) -> Turn:
        """Return a run's time in a slot of this server, whose name is `on`."""
        waited_s = start_s - self.at(run.arrived_s)
        return Turn(run.id, on, slot, waited_s, self.real(start_s), self.real(ends_s, first=True), known)

    def note(self, slots: int, *, is_open: bool, now: float) -> None:
        """Follow the server's slots, and whether it may start anything."""
        if is_open != self.marks[-1][2]:
            self.marks.append((now, self.at(now), is_open))
        if slots and slots != self.size:
            self.size = slots
            self.resizes.append((self.at(now), slots))

    def grow(self) -> None:
        """Add the slots that came before any went; what still runs in one that had gone has it back."""
        while self.resizes and self.resizes[0][1] >= len(self.slots):
            at_s, slots = self.resizes.popleft()
            while len(self.slots) < slots:
                last = max(self.removed, key=lambda run: run.ends_s(at_s), default=None)
                if last is None or last.ends_s(at_s) <= at_s:
                    self.slots.append(_Run("", at_s, start_s=at_s, over=True))
                else:
                    self.removed.remove(last)
                    self.slots.append(last)

    def shrinks(self, first: _Run, by_s: float) -> bool:
        """Take the slot that falls free first away, if it had to go by a time; return whether it had."""
        if not self.resizes or self.resizes[0][0] > by_s:
            return False
        self.slots.remove(first)
        self.removed.append(first)
        return True


class ArrivalOrder:
    """The replay of a daemon's requests. Times are the scheduler's, in seconds."""

    def __init__(self) -> None:
        self._servers: dict[str, _Server] = {}
        self._runs: dict[str, _Run] = {}
        self._pending: list[_Run] = []  # those without a start, in order of arrival
        self._placed: list[_Run] = []  # those with a start that are not over
        self._ready: list[Compared] = []
        self._past: deque[Turn] = deque(maxlen=MAX_TURNS)
        self._held = set[str]()
        self._seq = 0

    @property
    def behind(self) -> int:
        """The number of requests that have been served, and are not compared yet."""
        return sum(run.over and run.of is not None for run in self._pending)

    def look(self, slots: Mapping[str, int], now: float, *, paused: bool) -> None:
        """Follow the servers' slots, 0 for one that is down."""
        for name, number in slots.items():
            replayed, is_open = self._servers.get(name), bool(number) and not paused
            if replayed is None:
                replayed = self._servers[name] = _Server([(now, now, is_open)])
            elif not number and replayed.is_up:
                self._ready = self.settle(now)
                replayed.cache = replayed.cache.emptied()  # as that of the server
            replayed.is_up = bool(number)
            replayed.note(number, is_open=is_open, now=now)

    def arrived(self, job: Job, *, at_grant: bool) -> None:
        """Add a job that joins the queue; `at_grant`: it joins the replay when it starts."""
        able = job.able or frozenset(self._servers)
        server_id = job.pinned or (next(iter(able)) if len(able) == 1 else "")
        run = _Run(job.id, job.arrival_s, (job.arrival_s, self._seq), job.cost_s, server_id, able)
        run.chain, run.session, run.prompt_tokens = job.prefix, job.session, job.prompt_tokens
        self._seq += 1
        self._runs[job.id] = run
        if at_grant:
            run.counts, run.arrived_s = False, inf
        else:
            self._join(run)

    def _join(self, run: _Run) -> None:
        insort(self._pending, run, key=attrgetter("order"))
        if len(self._pending) > MAX_PENDING:
            self._pending.pop(0).counts = False

    def held(self, job_id: str, now: float) -> None:
        """Take a job that is held out of the replay, until it is released."""
        run = self._runs.get(job_id)
        if run is None:
            return
        self._ready = self.settle(now)
        run.counts = False
        if run in self._pending:
            self._pending.remove(run)
            self._held.add(job_id)
            run.arrived_s = inf

    def released(self, job_id: str, now: float) -> None:
        """Have a job that was held join the replay, at its place in the order of arrival."""
        if job_id in self._held and job_id in self._runs:
            self._ready = self.settle(now)  # those that had their slots before come first
            self._held.remove(job_id)
            self._runs[job_id].arrived_s = now
            self._join(self._runs[job_id])

    def granted(self, job_id: str, server: ServerSlots, now: float, cached_tokens: float) -> None:
        """Record that a job starts on a server, which is expected to have `cached_tokens` of its prompt."""
        run = self._runs.get(job_id)
        if run is None or server.id not in self._servers:
            return
        if run.server_id not in ("", server.id) and (run.work_s or run.start_s is not None):
            run = self._joins_again(run, run.freed_s)
        replayed = self._servers[server.id]
        run.server_id = server.id
        if run.arrived_s == inf:
            run.arrived_s, run.order = now, (now, run.order[1])
            self._join(run)
        if run.cached_tokens is not None:
            run.again.append((run.work_s, now))
        run.granted_s = replayed.at(now)
        run.waited_s = run.granted_s - replayed.at(run.arrived_s) - run.work_s
        if run.cached_tokens is None and run.chain:
            run.cached_tokens = cached_tokens
            run.read_s = 0.0 if server.speed is None else server.speed.seconds(1.0, 0.0)
            replayed.cache.slots, replayed.cache.reuse = server.cache.slots, server.cache.reuse
            replayed.cache.room_tokens = server.cache.room_tokens

    def answered(self, job_id: str, prompt_tokens: float, tokens: float) -> None:
        """Record the real tokens of a running job's prompt and answer."""
        run = self._runs.get(job_id)
        if run is not None:
            run.answer = prompt_tokens, tokens

    def freed(self, job_id: str, now: float, *, over: bool, served: bool, returned: bool = False) -> None:
        """Record that a job has left its slot; `over`: for good. `served`: its prompt was read. One that is
        `returned` goes back to the queue with nothing done, and is not compared.
        """
        run = self._runs.get(job_id)
        if run is None or run.granted_s is None:
            return
        run.work_s += self._servers[run.server_id].at(now) - run.granted_s
        run.granted_s, run.freed_s, run.dropped = None, now, not served
        if returned:
            self._joins_again(run, now)
        elif over:
            del self._runs[job_id]
            self._over(run, now)

    def _joins_again(self, run: _Run, now: float) -> _Run:
        """End a run that did not end its request, which takes its place in the order once more."""
        self._over(run, now)
        run.of = None
        self._ready = self.settle(now)  # those that had their slots before come first
        again = self._runs[run.id] = replace(
            run, arrived_s=now, server_id="", start_s=None, work_s=0.0, counts=False, over=False, over_s=inf
        )
        again.taken_s = again.cached_tokens = again.cached_in_order = None
        again.dropped, again.again = False, []
        self._join(again)
        return again

    def left(self, job_id: str, now: float) -> None:
        run = self._runs.pop(job_id, None)
        self._held.discard(job_id)
        if run is not None:
            run.of = None
            self._over(run, now)
            if not run.work_s and run in self._pending:
                self._pending.remove(run)

    def ended(self, job_id: str, of: object | None, less_s: float = 0.0) -> None:
        """Record that a job has ended, before `freed` or `left`. `of` is what its pair is about, None if it
        is not to be compared; `less_s` is the time for which it read its prompt again after cuts.
        """
        run = self._runs.get(job_id)
        if run is not None:
            run.of, run.less_s = of if run.counts else None, less_s

    def _over(self, run: _Run, now: float) -> None:
        run.over, run.over_s = True, now
        if not run.counts:
            run.of = None

    def settle(self, now: float) -> list[Compared]:
        """Return the pairs that have become known since the last call."""
        late = [
            i for i, run in enumerate(self._pending) if run.of is not None and run.over_s < now - PATIENCE_S
        ]
        guess_until, blocked, left = late[-1] if late else -1, set[str](), list[_Run]()
        for index, run in enumerate(self._pending):
            if len(blocked) >= len(self._servers):
                left += self._pending[index:]
                break
            if not run.server_id and index <= guess_until:
                run.server_id = min(
                    run.able & self._servers.keys(), default="", key=lambda name: self._free_s(name, now)
                )
            if (
                run.server_id
                and run.server_id not in blocked
                and self._place(run, now, guess=index <= guess_until)
            ):
                self._placed.append(run)
            else:
                blocked |= {run.server_id} if run.server_id else run.able & self._servers.keys()
                left.append(run)
        self._pending = left
        found = [*self._ready, *(self._pair(run) for run in self._placed if run.over and run.of is not None)]
        self._ready = []
        for run in self._placed:
            if run.over:
                turn, ended_s = self._servers[run.server_id].turn, run.ends_s(0.0)
                self._past.append(turn(run, run.server_id, run.slot, run.start_s or 0.0, ended_s, known=True))
        self._placed = [run for run in self._placed if not run.over]
        if not self._runs and not self._pending:
            for replayed in self._servers.values():
                del replayed.marks[:-1]
                replayed.removed.clear()
        return found

    def turns(self, now: float) -> list[Turn]:
        """Return who had which slot when, the latest of them, and the forecast for all without an end yet."""
        found, free = list(self._past), dict[str, list[tuple[float, int]]]()
        for server_id, replayed in self._servers.items():
            open_s, ends = replayed.at(now), free.setdefault(server_id, [])
            for slot, run in enumerate(replayed.slots):
                ends_s = run.ends_s(open_s)
                if not run.over:
                    start_s = run.start_s or 0.0
                    ends_s = max(ends_s, start_s + run.cost_s)
                    found.append(replayed.turn(run, server_id, slot, start_s, ends_s))
                heappush(ends, (ends_s, slot))
            if not replayed.slots:
                ends += [(open_s, slot) for slot in range(replayed.size)]
        for run in islice(self._pending, MAX_TURNS):
            able = [name for name in ([run.server_id] if run.server_id else run.able) if free.get(name)]
            if not able:
                continue
            server_id = min(able, key=lambda name: free[name][0])
            replayed = self._servers[server_id]
            open_s, (free_s, slot) = replayed.at(now), heappop(free[server_id])
            start_s = max(free_s, replayed.at(run.arrived_s))
            took_s = run.work_s + (0.0 if run.granted_s is None else open_s - run.granted_s)
            ends_s = start_s + (took_s if run.over else max(took_s, run.cost_s))
            heappush(free[server_id], (ends_s, slot))
            found.append(replayed.turn(run, server_id, slot, start_s, ends_s))
        return found

    def _free_s(self, name: str, now: float) -> float:
        replayed = self._servers[name]
        return min((run.ends_s(replayed.at(now)) for run in replayed.slots), default=inf)

    def _place(self, run: _Run, now: float, *, guess: bool) -> bool:
        """Give a request its start; False if that is not known yet."""
        replayed = self._servers.get(run.server_id)
        if replayed is None:
            return False
        open_s, arrived_s = replayed.at(now), replayed.at(run.arrived_s)
        while True:
            replayed.grow()
            first = min(replayed.slots, key=lambda each: each.ends_s(open_s), default=None)
            if first is None:
                return False
            if not first.over and first.taken_s is None:  # its slot time is not final
                if not guess:
                    return False
                first.taken_s = max(first.ends_s(open_s) - (first.start_s or 0.0), first.cost_s)
                first.estimated = True
                continue
            start_s = max(arrived_s, first.ends_s(open_s))
            if start_s >= open_s - SAME_S:
                return False
            if not replayed.shrinks(first, start_s):
                break
        run.start_s = start_s
        run.estimated = first.estimated and start_s > arrived_s
        run.slot = replayed.slots.index(first)
        replayed.slots[run.slot] = run
        if run.chain:
            self._read(replayed, run)
        return True

    def _read(self, replayed: _Server, run: _Run) -> None:
        """Have the replay's cache see a prompt, once the answers before it are there."""
        start_s, due = run.start_s or 0.0, list[tuple[float, float, _Run, bool]]()
        for each in replayed.in_cache:
            began_s = each.start_s or 0.0
            due += [(round(began_s + after_s, 6), at_s, each, False) for after_s, at_s in each.again]
            due += [(round(each.ends_s(0.0), 6), each.over_s, each, True)] if each.over else []
        for at_s, _, each, ended in sorted(due, key=itemgetter(0, 1)):  # sums of floats that should be equal
            if at_s > round(start_s, 6):
                break
            if not ended:
                replayed.cache.started(each.id, each.chain, each.prompt_tokens, each.session)
                del each.again[0]
                continue
            if each.dropped:
                replayed.cache.dropped(each.id)
            elif each.answer is not None:
                replayed.cache.answered(each.id, *each.answer)
            replayed.in_cache.remove(each)
        run.cached_in_order = replayed.cache.expected(run.chain).tokens
        replayed.cache.started(run.id, run.chain, run.prompt_tokens, run.session)
        replayed.in_cache.append(run)

    def _pair(self, run: _Run) -> Compared:
        wait_s = (run.start_s or 0.0) - self._servers[run.server_id].at(run.arrived_s)
        return Compared(run.of, wait_s - run.waited_s, wait_s, run.spared_tokens, run.estimated)
