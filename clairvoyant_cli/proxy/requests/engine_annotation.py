"""For engines that order their own queues: stamps each request with a priority, and holds none back.

Rule 1: the stamp is one field of the body; nothing else changes.
Rule 2: clients that may not set that field are refused, as are bodies in which it cannot be seen.
Rule 3: stamps do not depend on the run: a restarted daemon continues with comparable numbers.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from clairvoyant_cli.backends.priority import FIELD
from clairvoyant_cli.protocols.errors import Refusal
from clairvoyant_cli.protocols.inject_field import Stamp
from clairvoyant_cli.protocols.request_bodies import MAX_BODY_BYTES
from clairvoyant_cli.protocols.request_parsing import ParsedRequest
from clairvoyant_cli.protocols.routes import Route
from clairvoyant_cli.proxy.access.clients import PRIORITIES, Clients
from clairvoyant_cli.proxy.queue.exchange import Attempt, Exchange
from clairvoyant_cli.proxy.queue.operation import CHOSEN, Operation
from clairvoyant_cli.proxy.servers.pool import ServerPool
from clairvoyant_cli.proxy.servers.server import Server
from clairvoyant_cli.scheduler.engine_priority import due_s
from clairvoyant_cli.scheduler.job import Reason

IN_ARRIVAL_ORDER = "fcfs"

USUAL_TOKENS = 300.0
USUAL_FOR = 10
MEAN_OVER = 50
"""The mean cost starts from that of a usual answer, counted ten times, and follows the last fifty."""

MIN_COST_S = 1e-3

SET_HERE = Refusal(
    400, f"clairvoyant: `{FIELD}` is set by this proxy; leave it out, and send X-Clairvoyant-Priority instead"
)
UNREADABLE = Refusal(
    400,
    f"clairvoyant: no `{FIELD}` can be put into this body; send it as a JSON object, in UTF-8 and of "
    f"{MAX_BODY_BYTES >> 20} MiB at most without its pictures",
)


@dataclass(slots=True)
class Annotation:
    """Stamps requests. `dated` converts the daemon's clock to epoch seconds; `say` logs an event."""

    pool: ServerPool
    operation: Operation
    dated: Callable[[float], float]
    say: Callable[[int, str], None]
    _told: dict[str, str] = field(default_factory=dict)
    _mean_s: float = 0.0
    _stamped: int = USUAL_FOR

    def objection(
        self, parsed: ParsedRequest, route: Route, client: str, clients: Clients, *, whole: bool
    ) -> Refusal | None:
        """Return why a request cannot be stamped, or None; one that is not `whole` is stamped as it is."""
        stamped = any(each.stamps is not None and route.shape in each.stamps.shapes for each in self.pool)
        if not stamped or clients.rules_of(client).engine_priority:
            return None
        if parsed.ranks_itself:
            return SET_HERE
        unseen = parsed.ranks_itself is None or not parsed.opening
        return UNREADABLE if whole and unseen else None

    def tell(self) -> None:
        """Log how requests to each server are ordered, whenever that changes."""
        for server in self.pool:
            news = _news(server)
            if self._told.get(server.name, "") != news:
                self._told[server.name] = news
                self.say(logging.INFO, news)

    def stamp(self, exchange: Exchange, attempt: Attempt, server: Server) -> Stamp | None:
        """Return what is put into a request's body for a server; None if it goes as it is."""
        priority, parsed = server.stamps, exchange.asked.parsed
        if priority is None or exchange.asked.route.shape not in priority.shapes:
            return None
        if not parsed.opening or parsed.ranks_itself:
            return None
        dispatch = attempt.dispatch
        level = PRIORITIES.start if dispatch.reason is Reason.PROMOTED else dispatch.job.own_rank
        if not self._mean_s:
            self._mean_s = server.service_s(0.0, USUAL_TOKENS)
        arrival_s, cost_s = dispatch.job.arrival_s, max(MIN_COST_S, dispatch.job.cost_s)
        self._stamped += 1
        self._mean_s += (cost_s - self._mean_s) / min(self._stamped, MEAN_OVER)
        due = due_s(arrival_s, cost_s, self._mean_s, self._window_s())
        attempt.priority = priority.number(self.dated(due), level)
        return Stamp(b'"%b":%d,' % (FIELD.encode(), attempt.priority), parsed.opening)

    def _window_s(self) -> float | None:
        """Return how long a request may be overtaken, in seconds; None if no tau was chosen."""
        operation = self.operation
        if operation.policy == IN_ARRIVAL_ORDER:
            return 0.0
        if operation.tau_source not in CHOSEN:
            return None
        return inf if operation.tau_s is None else operation.tau_s


def _news(server: Server) -> str:
    """Return how requests to a server are ordered, "" if there is nothing to report."""
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
