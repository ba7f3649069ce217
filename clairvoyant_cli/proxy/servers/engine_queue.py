"""Estimates when requests inside an engine's own queue end, and checks whether it heeds priorities."""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf

from clairvoyant_cli.backends.priority import Priority
from clairvoyant_cli.proxy.queue.dispatcher import Dispatcher
from clairvoyant_cli.proxy.queue.exchange import Attempt, Exchange
from clairvoyant_cli.proxy.servers.pool import ServerPool
from clairvoyant_cli.proxy.servers.server import Server
from clairvoyant_cli.scheduler.engine_priority import EngineRequest, ends_in_s
from clairvoyant_cli.scheduler.job import Job

JUDGED = 20  # starts out of arrival or priority order by which an engine is judged
SENT_BEFORE_S = 0.1  # a request sent this much earlier than another precedes it in the engine's queue
STARTING_S = 1.0
PREFILLS = 3.0
"""A request that has waited longer than a second, and than three times another's prefill, was there before
that one started."""


@dataclass(slots=True)
class EngineQueues:
    """Follows engines that order their own queues; `say` logs an event."""

    dispatcher: Dispatcher
    pool: ServerPool
    say: Callable[[int, str], None]
    _judged: dict[str, deque[bool]] = field(default_factory=dict)
    _warned: set[str] = field(default_factory=set)

    def ends_in_s(self, now: float) -> dict[str, float]:
        """Return the remaining seconds of each request inside such an engine, by id."""
        found: dict[str, float] = {}
        for server in self.pool:
            priority = server.stamps
            if priority is not None:
                running = self.dispatcher.scheduler.running
                inside = (_inside(running[e.id], e, a, priority, now) for e, a in self._there(server))
                found |= ends_in_s(inside, server.at_once)
        return found

    def heeded(self, server: Server) -> float | None:
        """Return the share of recent starts that followed the priorities; None if too few are known."""
        judged = self._judged.get(server.id, ())
        return sum(judged) / JUDGED if len(judged) == JUDGED else None

    def begun(self, exchange: Exchange, attempt: Attempt, now: float) -> None:
        """Judge by the requests that this one overtook, or that overtook it, before its answer began."""
        server = self.pool[attempt.server_id]
        priority = server.stamps
        if priority is None:
            return
        if exchange.id in self.dispatcher.scheduler.running:
            self.dispatcher.scheduler.began(exchange.id, now)
        if attempt.priority is None or not exchange.asked.parsed.stream:
            return
        number = _rank(attempt, priority)
        long_ago_s = now - STARTING_S - PREFILLS * server.service_s(exchange.job.prompt_tokens, 0.0)
        heeded = ignored = False
        for _, other in self._there(server, waiting=True):
            rank = _rank(other, priority)
            heeded = heeded or (rank > number and other.granted_s < attempt.granted_s - SENT_BEFORE_S)
            ignored = ignored or (rank < number and attempt.granted_s < other.granted_s < long_ago_s)
        if heeded is not ignored:
            self._judge(server, heeded)

    def _judge(self, server: Server, heeded: bool) -> None:
        self._judged.setdefault(server.id, deque(maxlen=JUDGED)).append(heeded)
        share, priority = self.heeded(server), server.stamps
        if share is not None and share < 0.5 and server.id not in self._warned and priority is not None:
            self._warned.add(server.id)
            news = f"{server.name} ignores priorities"
            self.say(logging.WARNING, f"{news} ({share:.0%} heeded): start it with {priority.flag}")

    def _there(self, server: Server, *, waiting: bool = False) -> Iterator[tuple[Exchange, Attempt]]:
        """Yield the requests on a server; if `waiting`, only stamped ones whose start will be seen."""
        for job_id in self.dispatcher.scheduler.running:
            exchange = self.dispatcher.live[job_id]
            attempt = exchange.attempt
            if attempt is None or attempt.server_id != server.id:
                continue
            seen = attempt.first_byte_s is not None or not exchange.asked.parsed.stream
            if not waiting or (attempt.priority is not None and not seen):
                yield exchange, attempt


def _rank(attempt: Attempt, priority: Priority) -> float:
    """Return a request's rank, lowest first. Without a priority it is 0 in vLLM and last in SGLang."""
    if attempt.priority is None:
        return 0.0 if priority.lower_first else inf
    return float(attempt.priority if priority.lower_first else -attempt.priority)


def _inside(
    entry: Job, exchange: Exchange, attempt: Attempt, priority: Priority, now: float
) -> EngineRequest:
    begun, unseen_s = attempt.first_byte_s is not None, 0.0
    if not begun and not exchange.asked.parsed.stream:
        unseen_s = now - attempt.granted_s
    left_s = entry.left_s(now) if begun else entry.expected_s
    return EngineRequest(exchange.id, _rank(attempt, priority), left_s, begun, unseen_s)
