"""Sessions of agents: which requests belong together, and which sessions have their turn.

A session is known by its chain: its next prompt begins with the prompt before. If the beginning has changed,
it is known by its messages (see `chain.change`). A claimed session id only separates sessions of one client;
it never joins what the prompts do not.

Sessions take turns, because one that comes back after others were served may find its conversation evicted
and has to have all of it read again. As many sessions have a turn at once as the KV cache of a server holds.
The others are parked: their requests wait until a session rests, that is, until it has not come back for
`hold_s` after its last answer. Its turn is not held where that did not pay (`Session.unpaid`): of two agents
that speak in turn one comes back only once the other is answered. A session that has been parked for too long
(`overdue`) takes the turn of the session that has had one longest.

Example: the cache behind one slot holds 20,000 tokens, and three agents have 9,000 each. Two of them have a
turn. The third waits until one of the two does not come back within 3 s, say, as its longest gap was 2 s. If
all three took the slot by arrival, each turn would evict the conversation that is needed next, and read 9,000
tokens instead of some hundred.

A session may claim a parent: it is a subagent, and its parent waits until all of its subagents are done. The
parent's turn is not held meanwhile, and theirs are not once it comes back.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import takewhile
from math import inf

from clairvoyant_cli.scheduler.chain import BROKEN_SHARE, NO_CHAIN, Chain, Change, change, goes_on
from clairvoyant_cli.scheduler.job import Job, Run
from clairvoyant_cli.scheduler.placement import Fleet, ServerSlots

MAX_SESSIONS = 2000
MAX_ENDS = 20_000
MAX_PIECES = 200_000  # of the sessions' last prompts
"""Bounds of what is remembered; the least recently used is forgotten first."""

AT_ONCE_S = 5.0
"""A request that follows its session's last answer within this time was not written by a person."""

USUAL_GAP_S = 2.0
"""How long a session is expected to take to come back, before it ever has: 86 % of the turns in published
traces of coding agents come back within a second."""

GAP_MARGIN = 1.5  # a hold lasts this many times the longest recent gap
MAX_HOLD_S = 30.0  # and no longer than this

RETURNS_PRIOR = {True: 0.9, False: 0.5}
"""Probability that a session comes back after an answer that called a tool, or did not. Counts as two
observations."""

MAX_QUESTION_S = 10.0
"""The longest that a request outside sessions waits because a session is about to come back."""

MAX_UNPAID, MAX_PROGRAMS = 2, 1000

USUAL_WEIGHT = 0.1  # weight of the latest turn in the running mean of what turns cost
GROWTH = 2.0  # a session is given a turn only if the cache has room for this many times its tokens: it grows
LOGGED_EVERY_S = 20.0  # at most one broken prefix is logged in this time

PATIENCE, MOST_PATIENCE = 2.5, 4.0
"""A session is parked this many times as long as it would wait if every session were read again, or for tau,
whichever is longer, but no longer than the second number says."""


@dataclass(slots=True, eq=False)
class Session:
    """A session and its account. It takes turns with others once it is an `agent`."""

    id: str
    client: str
    claimed: str
    agent: bool  # it uses tools or went on at once
    parent: str = ""  # the id of its parent session
    family: float = inf  # a number, infinite if it has no family
    busy: int = 0  # its children that wait or run
    unpaid: int = 0  # holds in a row that others waited for, and in which it did not come back
    program: str = ""
    since_s: float = 0.0  # when it was first seen
    turns: int = 0
    tokens: float = 0.0  # its context, after the last answer or as expected
    read_tokens: float = 0.0  # what servers read of its prompts
    cached_tokens: float = 0.0  # what they took from their caches
    cache_reported: bool = False  # by a server; until then `cached_tokens` are those that were expected
    returns: int = 0  # of `answers`, how many were followed by another request
    answers: int = 0
    longest_gap_s: float = USUAL_GAP_S / GAP_MARGIN
    calls_tool: bool = False
    active: bool = False  # it has a turn
    server_id: str = ""
    turn_s: float = 0.0  # since when it has a turn
    last_end_s: float = 0.0
    waiting: int = 0
    running: int = 0
    chain: Chain = NO_CHAIN
    reread_tokens: float = 0.0
    broken: str = ""  # what changed last in its prompts so that `reread_tokens` were read again
    broke: Change | None = None  # the change in its last prompt, if it broke the prefix
    again: float = 0.0  # and its tokens
    logged: tuple[str, ...] = ()  # kinds of changes that were logged

    @property
    def returns_p(self) -> float:
        """The probability that it comes back soon."""
        prior = RETURNS_PRIOR[self.calls_tool]
        return (self.returns + 2.0 * prior) / (self.answers + 2.0)


@dataclass(slots=True)
class Sessions:
    """The sessions of all clients, and their turns on the servers of a fleet. One costs about `usual_s`."""

    fleet: Fleet
    known: OrderedDict[str, Session] = field(default_factory=OrderedDict)
    _by_end: OrderedDict[tuple[str, str, int], str] = field(default_factory=OrderedDict)
    _prompts: OrderedDict[str, Chain] = field(default_factory=OrderedDict)  # the last one of each session
    _pieces: int = 0
    _logged_s: float = -LOGGED_EVERY_S
    advised: bool = False  # how to keep a system text unchanged was logged
    active: dict[str, Session] = field(default_factory=dict)
    read_tokens: float = 0.0
    cached_tokens: float = 0.0
    usual_s: float = 0.0
    _mean_s: float = 0.0
    _number: int = 0
    _unpaid: dict[tuple[str, str], int] = field(default_factory=dict)  # as of a session, by its program
    _ended_s: float = -inf  # the last end of an answer

    @property
    def turns(self) -> int:
        return len(self.active)

    def arrived(self, job: Job, now: float) -> str:
        """Return the id of a new job's session; "" without a chain or in the background."""
        if not job.prefix.hashes or job.background_levels:
            return ""
        session = self._find(job)
        if session is None:
            self._number += 1
            session = Session(f"s{self._number}", job.client, job.claimed, job.agentic, since_s=now)
            self._join_family(session, job.parent)
            self._forget_old()
            self.known[session.id] = session
        elif session.answers and not session.running and not session.waiting:
            gap_s = now - session.last_end_s
            if session.active or (
                session.last_end_s >= self._ended_s and gap_s <= GAP_MARGIN * session.longest_gap_s
            ):
                # It came back within a hold, or would have: no other was answered meanwhile.
                session.unpaid = 0
                self._unpaid.pop((session.client, session.program), None)
            if gap_s <= MAX_HOLD_S:
                session.returns += 1
                session.longest_gap_s = max(gap_s, 0.8 * session.longest_gap_s)
            repeated = (job.client, job.claimed, job.prefix.hashes[-1]) in self._by_end
            session.agent = session.agent or (gap_s <= AT_ONCE_S and not repeated)
        session.agent = session.agent or job.agentic
        self.known.move_to_end(session.id)
        session.tokens = max(session.tokens, job.prompt_tokens + job.tokens)
        session.program = job.program
        session.waiting += 1
        if session.parent:
            self._count_child(session, 1)
        if session.family < inf and not session.busy:
            for child in list(self.active.values()):
                if child.parent == session.id and not child.waiting and not child.running:
                    self._end_turn(child)
        return session.id

    def _is_held(self, session: Session) -> bool:
        """Whether to hold a session's turn: not after two of its program's in vain, one of them its own."""
        return not session.unpaid or self._unpaid.get((session.client, session.program), 0) < MAX_UNPAID

    def _join_family(self, session: Session, parent: str) -> None:
        """Find the parent of a new session by the id that it claims for it."""
        for known in reversed(self.known.values()) if parent else ():
            if known.agent and known.claimed == parent and known.client == session.client:
                known.family = min(known.family, self._number)
                session.parent, session.family = known.id, known.family
                return

    def _count_child(self, session: Session, more: int) -> None:
        """Count the busy children of a session's parent."""
        if session.parent in self.known:
            self.known[session.parent].busy += more

    def _find(self, job: Job) -> Session | None:
        for piece in reversed(job.prefix.hashes):
            found = self._by_end.get((job.client, job.claimed, piece))
            if found is not None:
                return self.known.get(found)
        for part in reversed(job.prefix.parts.hashes):
            found = self._by_end.get((job.client, job.claimed, part))
            if found is not None:
                same = change(self._prompts.get(found, NO_CHAIN), job.prefix) is not None
                return self.known.get(found) if same else None
        return None

    def family(self, job: Job) -> float:
        """Return the number of a job's family, lower for an older one; infinity if it has none."""
        session = self.known.get(job.session)
        return inf if session is None else session.family

    def started(self, job: Job, server_id: str, now: float) -> bool:
        """Record that a job of a session takes a slot; return whether `usual_s` has changed."""
        session = self.known.get(job.session)
        if session is None:
            return False
        session.waiting -= 1
        session.running += 1
        if session.agent:
            self._mean_s += (USUAL_WEIGHT if self._mean_s else 1.0) * (job.cost_s - self._mean_s)
            if not session.active:
                session.turn_s = now
            session.active, session.server_id, session.chain = True, server_id, job.prefix
            self.active[session.id] = session
            if not self.usual_s / 2.0 < self._mean_s < 2.0 * self.usual_s:
                self.usual_s = self._mean_s
                return True
        return False

    def left_slot(self, job: Job, now: float, *, waits: bool) -> None:
        """Record that a job leaves its slot; `waits`: it goes back to the queue."""
        session = self.known.get(job.session)
        if session is None:
            return
        session.running -= 1
        session.waiting += waits
        session.last_end_s = now
        if not waits:
            self._ended_s = now
            session.answers += 1
            if session.parent:
                self._count_child(session, -1)

    def renamed(self, job: Job, client: str, now: float) -> None:
        """Make a job another client's, before its `client` changes: a waiting one may go on with a session of
        that client; a running one takes its session along.
        """
        session = self.known.get(job.session)
        if session is None or session.client == client:
            return
        if session.running or session.turns:
            session.client = client
            return
        self.left_queue(job)
        if not session.waiting:
            self._end_turn(session)
            del self.known[session.id]
        job.client = client
        job.session = self.arrived(job, now)

    def left_queue(self, job: Job) -> None:
        session = self.known.get(job.session)
        if session is not None:
            session.waiting -= 1
            if session.parent:
                self._count_child(session, -1)

    def answered(
        self, job: Job, prompt_tokens: float, cached_tokens: float, tokens: float, *, calls_tool: bool
    ) -> None:
        """Record an answer: the tokens of its prompt, those of them from the cache, and its own."""
        session, read_tokens = self.known.get(job.session), max(prompt_tokens - cached_tokens, 0.0)
        if session is None:
            return
        self.read_tokens += read_tokens
        self.cached_tokens += cached_tokens
        session.turns += 1
        session.read_tokens += read_tokens
        session.cached_tokens += cached_tokens
        session.tokens = read_tokens + cached_tokens + tokens
        session.calls_tool = calls_tool
        for end in (*job.prefix.parts.hashes[-1:], job.prefix.hashes[-1]):
            self._by_end[job.client, job.claimed, end] = session.id
        self._pieces += len(job.prefix.hashes) - len(self._prompts.pop(session.id, NO_CHAIN).hashes)
        self._prompts[session.id] = job.prefix
        while self._pieces > MAX_PIECES:
            self._pieces -= len(self._prompts.popitem(last=False)[1].hashes)
        while len(self._by_end) > MAX_ENDS:
            self._by_end.popitem(last=False)

    def read_again(self, run: Run, prompt_tokens: float, cached_tokens: float, now: float) -> str:
        """Account for a changed prompt, before its answer is recorded. The tokens read again are those of the
        prompt before that did not come from the cache.

        A change counts once the next prompt goes on with it: a summary of a conversation, which has its
        messages too, is not gone on with. Return a line for the log then, "" for none.
        """
        job = run.job
        session = self.known.get(job.session)
        before = NO_CHAIN if session is None else self._prompts.get(session.id, NO_CHAIN)
        if session is None or not before.hashes:
            return ""
        news, broke = "", session.broke
        if broke is not None and goes_on(before, job.prefix):
            session.reread_tokens += session.again
            session.broken = broke.text
            if broke.kind not in session.logged and now >= self._logged_s + LOGGED_EVERY_S:
                session.logged, self._logged_s = (*session.logged, broke.kind), now
                whose = f"{session.id} ({session.client})" if session.client else session.id
                read = f"turn {session.turns} read {session.again:,.0f} tokens again"
                news = f"session {whose}: {read}: {broke.text}"
                saved_s = self._read_s(run.server_id, session.again)
                if broke.kind == "system text" and saved_s and not self.advised:
                    news += f"; a rule for `serve --stable-prefix` would save {saved_s:.1f} s a turn"
                    self.advised = True
        changed = change(before, job.prefix)
        session.again = prompt_tokens * min(before.length / job.prefix.length, 1.0) - cached_tokens
        breaks = changed is not None and changed.breaks and session.again >= BROKEN_SHARE * prompt_tokens
        session.broke = changed if breaks else None
        return news

    # -- turns --------------------------------------------------------------------------------------------

    def may_run(self, job: Job, now: float, waiters: int) -> bool:
        """Return whether a job's session has a turn, or gets one because a server's cache has room for it. A
        request outside sessions needs none, but may have to wait. A turn that a job gets begins now, unless
        the job is held.
        """
        waiters = max(waiters, 1)  # the job itself
        session = self.known.get(job.session)
        if session is None or not session.agent:
            return not self.active or not self.must_wait(job, now, waiters)
        if session.active:
            if session.running or session.waiting > 1 or self._stays(session, now, waiters):
                return True
            self._end_turn(session)
        for server in self.fleet.servers.values():
            able = server.slots and (not job.able or server.id in job.able)
            if able and self._fits(session, server, now, waiters):
                if not job.held:
                    self._begin_turn(session, job, now)
                return True
        return False

    def _stays(self, session: Session, now: float, waiters: int) -> bool:
        """Return whether a session keeps its turn: whether the cache holds it beside those that had theirs
        before. They may have grown, or it is smaller than assumed.
        """
        server = self.fleet.servers.get(session.server_id)
        if server is None or server.cache.holds_any:
            return True
        active = self.active_on(server, now, waiters)  # in the order of their turns
        before = takewhile(lambda other: other is not session, active)
        return server.cache.holds([other.tokens for other in (*before, session)], now)

    def _fits(self, session: Session, server: ServerSlots, now: float, waiters: int) -> bool:
        if server.cache.holds_any:
            return True
        active = self.active_on(server, now, waiters)
        return server.cache.holds([GROWTH * other.tokens for other in (*active, session)], now)

    def in_order(self, job: Job, now: float, waiters: int) -> bool:
        """Return whether the turns of sessions are served as they come, whatever their length: the cache is
        known to hold these sessions, so that no order saves anything, and each goes on.
        """
        session = self.known.get(job.session)
        if session is None or not session.active or not self.usual_s:
            return False
        servers = self.fleet.servers
        for server in [servers[session.server_id]] if session.server_id in servers else servers.values():
            if not server.cache.size[0]:
                return False
            contexts = [other.tokens for other in self.active_on(server, now, waiters)]
            if len(contexts) < 2 or not server.cache.holds(contexts, now, surely=True):
                return False
        return True

    def _begin_turn(self, session: Session, job: Job, now: float) -> None:
        session.active, session.turn_s, session.server_id = True, now, session.server_id or job.pinned
        self.active[session.id] = session

    def active_on(self, server: ServerSlots, now: float, waiters: int) -> list[Session]:
        """Return the sessions that have a turn on a server, without those that rest by now."""
        alone, active = len(self.fleet.servers) == 1, self.with_turn(now, waiters)
        return [session for session in active if alone or session.server_id in (server.id, "")]

    def hold_s(self, session: Session, waiters: int) -> float:
        """Return how long a session's turn outlasts its last answer: at most what a reread would cost."""
        if waiters and not self._is_held(session):
            return 0.0
        longest_s = min(GAP_MARGIN * session.longest_gap_s, MAX_HOLD_S)
        reread_s = session.returns_p * self._read_s(session.server_id, session.tokens)
        return min(longest_s, reread_s / max(waiters, 1))

    def must_wait(self, job: Job, now: float, waiters: int) -> bool:
        """Return whether a request outside sessions waits, because it would evict the conversation of a
        session that is about to come back. It waits at most as long as reading that again would take; one in
        the background as long as any has a turn. A session does not come back before its own request.
        """
        for server in self.fleet.servers.values():
            for session in self.active_on(server, now, waiters):
                own = bool(job.claimed) and (session.client, session.claimed) == (job.client, job.claimed)
                if own and not job.background_levels:
                    continue
                if session.chain.hashes and server.cache.evicts(session.chain):
                    if job.background_levels:
                        return True
                    most_s = session.returns_p * self._read_s(server.id, session.tokens)
                    if now - job.arrival_s < min(most_s, MAX_QUESTION_S):
                        return True
        return False

    def overdue(self, job: Job, now: float, tau_s: float | None, parked: Iterable[Job]) -> bool:
        """Return whether a parked job has waited long enough for its session to take another's turn."""
        if tau_s is None:
            return False
        session = self.known.get(job.session)
        others = {other.id: other for other in self.active.values()}
        for other in (self.known.get(each.session) for each in parked):
            if other is not None:
                others[other.id] = other
        fair_s = sum(
            self._read_s(other.server_id, other.tokens) for other in others.values() if other is not session
        )
        return now - job.arrival_s > min(max(tau_s, PATIENCE * fair_s), MOST_PATIENCE * fair_s)

    def take_turn(self, job: Job, now: float) -> None:
        """Give a job's session the turn of the session that has had one longest."""
        longest = min(self.active.values(), key=lambda other: other.turn_s, default=None)
        if longest is not None:
            self._end_turn(longest)
        session = self.known.get(job.session)
        if session is not None and session.agent and not session.active:
            self._begin_turn(session, job, now)

    def _end_turn(self, session: Session) -> None:
        session.active, session.chain = False, NO_CHAIN
        self.active.pop(session.id, None)

    def _read_s(self, server_id: str, tokens: float) -> float:
        server = self.fleet.servers.get(server_id) or next(iter(self.fleet.servers.values()), None)
        return 0.0 if server is None or server.speed is None else server.speed.seconds(tokens, 0.0)

    def parked(self) -> list[Session]:
        return [
            session
            for session in self.known.values()
            if session.agent and session.waiting and not session.active
        ]

    def with_turn(self, now: float, waiters: int) -> list[Session]:
        """Return the sessions with a turn, in order, without those whose turn is over by now."""
        return [session for session in self.active.values() if not self._is_over(session, now, waiters)]

    def expire(self, now: float, waiters: int) -> None:
        """End the turns of sessions that rest, or wait for children. A hold was in vain if others wait."""
        for session in list(self.active.values()):
            if self._is_over(session, now, waiters):
                if waiters and not session.busy and self._is_held(session):
                    session.unpaid += 1
                    program = session.client, session.program
                    self._unpaid[program] = self._unpaid.pop(program, 0) + 1
                    if len(self._unpaid) > MAX_PROGRAMS:
                        del self._unpaid[next(iter(self._unpaid))]
                self._end_turn(session)

    def _is_over(self, session: Session, now: float, waiters: int) -> bool:
        if session.running or session.waiting:
            return False
        return session.busy > 0 or now >= session.last_end_s + self.hold_s(session, waiters)

    def _forget_old(self) -> None:
        """Forget the session that was used longest ago, if there are too many and it is idle."""
        if len(self.known) >= MAX_SESSIONS:
            oldest = next(iter(self.known.values()))
            if oldest.running or oldest.waiting:
                self.known.move_to_end(oldest.id)
            else:
                self._end_turn(self.known.pop(oldest.id))
                self._pieces -= len(self._prompts.pop(oldest.id, NO_CHAIN).hashes)
