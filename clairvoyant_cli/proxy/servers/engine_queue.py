"""Engines that order their own queues: stamps requests with priorities, estimates when those inside end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, inf, log
from urllib.parse import quote

from clairvoyant_cli.backends.priority import FIELD, SET_HERE, UNREADABLE, Priority, Stamp
from clairvoyant_cli.http.fields import Header
from clairvoyant_cli.http.heads import RequestHead, ResponseHead
from clairvoyant_cli.protocols.errors import MAX_RETRY_AFTER_S, Refusal
from clairvoyant_cli.protocols.printable import decoded, printable
from clairvoyant_cli.protocols.request_parsing import ParsedRequest
from clairvoyant_cli.protocols.routes import Route
from clairvoyant_cli.proxy.access.clients import PRIORITIES
from clairvoyant_cli.proxy.access.keys import Access
from clairvoyant_cli.proxy.queue.dispatcher import Dispatcher
from clairvoyant_cli.proxy.queue.exchange import Attempt
from clairvoyant_cli.proxy.queue.operation import CHOSEN, Operation
from clairvoyant_cli.proxy.servers.pool import ServerPool
from clairvoyant_cli.proxy.servers.server import Server
from clairvoyant_cli.scheduler.engine_priority import EngineRequest, due_s, ends_in_s
from clairvoyant_cli.scheduler.job import Job, Reason

OVERLOADED = (408, 429, 503, 529)  # statuses of requests that may be tried again later


@dataclass(slots=True)
class EngineQueues:
    """Follows engines that order their own queues."""

    dispatcher: Dispatcher
    pool: ServerPool

    def ends_in_s(self, now: float) -> dict[str, float]:
        """Return the remaining seconds of each request inside such an engine, by id."""
        found: dict[str, float] = {}
        for server in self.pool:
            if server.stamps is not None:
                found |= self._ends_in_s(server, server.stamps, now)
        return found

    def _ends_in_s(self, server: Server, priority: Priority, now: float) -> dict[str, float]:
        inside = (_inside(attempt, priority, now) for attempt in self.dispatcher.attempts_on(server.id))
        return ends_in_s(inside, server.at_once)

    def dropped(self, attempt: Attempt, server: Server, head: ResponseHead, now: float) -> tuple[Header, ...]:
        """Note why a router refused a request by itself, and return the Retry-After that its answer lacks:
        the time until a tenth of the requests inside have ended.
        """
        priority = server.stamps
        why = None if priority is None else head.get(priority.dropped_header)
        if priority is None or why is None:
            return ()
        attempt.dropped = printable(decoded(why))
        if head.status not in OVERLOADED or head.get(b"retry-after") is not None:
            return ()
        ends_s = self._ends_in_s(server, priority, now)
        others_s = [left_s for job_id, left_s in ends_s.items() if job_id != attempt.run.job.id]
        least_s = sorted(others_s)[len(others_s) // 10] if others_s else 0.0
        return ((b"Retry-After", b"%d" % max(1, min(least_s, MAX_RETRY_AFTER_S))),)


def _inside(attempt: Attempt, priority: Priority, now: float) -> EngineRequest:
    begun, unseen_s = attempt.first_byte_s is not None, 0.0
    if not begun and not attempt.asked.parsed.stream:
        unseen_s = now - attempt.run.started_s
    left_s = attempt.run.left_s(now) if begun else attempt.run.expected_s
    rank = priority.rank(attempt.priority, attempt.run.started_s)
    return EngineRequest(attempt.run.job.id, rank, left_s, begun, unseen_s)


# Stamps each request with a priority, and holds none back.
#
# Rule 1: the stamp is one field of the body, or headers; nothing else changes.
# Rule 2: clients that may not set that field are refused, as are bodies in which it cannot be seen. Their
# headers are replaced.
# Rule 3: stamps do not depend on the run: a restarted daemon continues with comparable numbers.

IN_ARRIVAL_ORDER = "fcfs"

USUAL_TOKENS = 300.0
USUAL_FOR = 10
MEAN_OVER = 50
"""The mean costs start from that of a usual answer, counted ten times, and follow the last fifty. They are
counted in usual answers, so that they hold when a server's speed becomes known.
"""

MIN_COST_S = 1e-3


@dataclass(slots=True)
class Annotation:
    """Stamps requests. `dated` converts the daemon's clock to epoch seconds."""

    pool: ServerPool
    operation: Operation
    access: Access
    dated: Callable[[float], float]
    _mean: float = 1.0
    _log_middle: float = 0.0
    _stamped: int = USUAL_FOR

    def objection(
        self, parsed: ParsedRequest, route: Route, client: str, able: Sequence[Server], *, whole: bool
    ) -> Refusal | None:
        """Return why a request may not go to one of these servers, or cannot be stamped there; None if it
        may. One that is not `whole` is stamped as it is, and looked through while it is sent.
        """
        stamps, in_body = False, False
        for server in able:
            if (priority := server.stamps) is not None:
                stamps = True
                in_body = in_body or (not priority.headers and route.shape in priority.shapes)
        if not stamps or self.access.clients.rules_of(client).engine_priority:
            return None
        if parsed.ranks_itself:
            return SET_HERE
        unseen = parsed.ranks_itself is None or (in_body and not parsed.opening)
        return UNREADABLE if whole and unseen else None

    def stamp(self, attempt: Attempt, server: Server, head: RequestHead) -> Stamp | None:
        """Return what is put into a request for a server; None if it goes as it is."""
        priority, parsed, job = server.stamps, attempt.asked.parsed, attempt.run.job
        if priority is None:
            return None
        if priority.headers:
            own = self.access.clients.rules_of(job.client).engine_priority
            if own and any(head.get(name) is not None for name in priority.headers):
                return None
            attempt.priority = self._number(attempt, server, priority)
            headers = _in_headers(priority, attempt.priority, job, head)
            return Stamp(headers=tuple(each for each in headers if not own or head.get(each[0]) is None))
        if attempt.asked.route.shape not in priority.shapes or not parsed.opening or parsed.ranks_itself:
            return None
        attempt.priority = self._number(attempt, server, priority)
        return Stamp(b'"%b":%d,' % (FIELD.encode(), attempt.priority), parsed.opening)

    def _number(self, attempt: Attempt, server: Server, priority: Priority) -> int:
        run, job = attempt.run, attempt.run.job
        level = PRIORITIES.start if run.reason is Reason.PROMOTED else job.own_rank
        usual_s = server.speeds.seconds(0.0, USUAL_TOKENS)
        cost_s = max(MIN_COST_S, job.cost_s)
        self._stamped += 1
        share = 1.0 / min(self._stamped, MEAN_OVER)
        self._mean += share * (cost_s / usual_s - self._mean)
        self._log_middle += share * (log(cost_s / usual_s) - self._log_middle)
        due = job.arrival_s + self._after_s(cost_s, usual_s)
        return priority.number(self.dated(due), self.dated(run.started_s), level)

    def due_in_s(self, cost_s: float) -> float:
        """Return when a request of so many predicted seconds is due after its arrival; a short one below 0,
        and the means are those of requests stamped lately.
        """
        return self._after_s(max(MIN_COST_S, cost_s), self.pool.first.speeds.seconds(0.0, USUAL_TOKENS))

    def _after_s(self, cost_s: float, usual_s: float) -> float:
        middle_s, operation, window_s = exp(self._log_middle) * usual_s, self.operation, None
        if operation.policy == IN_ARRIVAL_ORDER:
            window_s = 0.0
        elif operation.tau_source in CHOSEN:  # how long a request may be overtaken
            window_s = inf if operation.tau_s is None else operation.tau_s
        return due_s(0.0, cost_s, self._mean * usual_s, window_s, middle_s)


def _in_headers(priority: Priority, number: int, job: Job, head: RequestHead) -> list[Header]:
    """Return the stamp of a request to a router. A session that the client has named there is kept."""
    headers = priority.in_headers(number)
    if priority.client_header:
        headers.append((priority.client_header, quote(job.client, safe="@/:").encode()))
    if priority.session_header and job.claimed and head.get(priority.session_header) is None:
        headers.append((priority.session_header, job.claimed.encode()))
    return headers


def order_at(server: Server) -> str:
    """Return how requests to a server are ordered, for the log; "" if there is nothing to report."""
    name, priority, heeding = server.name, server.adapter.PRIORITY, server.status.heeding
    if server.annotate == "off" or server.status.state in ("unknown", "down"):
        return ""
    if priority is None:
        return f"{name} has no priority queue: requests wait here" if server.annotate == "on" else ""
    flag = priority.flag
    if server.stamps is None and heeding.known:
        return f"{name} does not order by priority ({heeding.why}): requests wait here; start it with {flag}"
    if server.stamps is None:
        return f"{name} may order by priority: if it was started with {flag}, use --annotate on"
    sure = heeding.why if heeding.priority is not None else f"if it was started with {flag}"
    if heeding.known and heeding.priority is None:
        sure = f"but {heeding.why}: start it with {flag}"
    return f"{name} orders requests by a priority set here ({sure}), {server.room} at once"
