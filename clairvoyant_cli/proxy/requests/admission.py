"""Admits a request to the queue: judges its head, reads its body, predicts its length, submits it. A request
that is sent again after a time-out keeps its place.

Only the body is waited for, and nothing is sent: `Daemon.handle` acts on the verdict.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from clairvoyant_cli.backends.priority import FIELD, OUTDATED
from clairvoyant_cli.backends.prober import MARK_HEADER
from clairvoyant_cli.http.heads import RequestHead
from clairvoyant_cli.http.limits import READING
from clairvoyant_cli.http.request import Request
from clairvoyant_cli.protocols.chores import CHORE_HEADER, chore_of
from clairvoyant_cli.protocols.client_programs import program_of
from clairvoyant_cli.protocols.conversation import claims_of
from clairvoyant_cli.protocols.errors import Refusal
from clairvoyant_cli.protocols.outer_members import members_of, named_model, read_members
from clairvoyant_cli.protocols.printable import decoded
from clairvoyant_cli.protocols.request_parsing import SMALL_BYTES, ParsedRequest, parse_request
from clairvoyant_cli.protocols.routes import Route, Work
from clairvoyant_cli.protocols.stable_prefix import StablePrefix
from clairvoyant_cli.protocols.usage import AnswerText
from clairvoyant_cli.proxy.access.clients import OWN_PRIORITIES
from clairvoyant_cli.proxy.access.keys import PRIORITY_HEADER, URGENCY_HEADER, Access
from clairvoyant_cli.proxy.access.programs import HOME_ASSISTANT, Program
from clairvoyant_cli.proxy.journal import Journal
from clairvoyant_cli.proxy.queue.exchange import Asked, Exchange
from clairvoyant_cli.proxy.queue.operation import Operation
from clairvoyant_cli.proxy.queue.service_level import ServiceLevel
from clairvoyant_cli.proxy.requests.kept_places import Resubmissions
from clairvoyant_cli.proxy.requests.refusals import DRAINING, IN_A_LOOP, NO_CONNECT, SHUTTING_DOWN, Refusals
from clairvoyant_cli.proxy.servers.engine_queue import Annotation
from clairvoyant_cli.proxy.servers.pool import ServerPool, given_up
from clairvoyant_cli.proxy.servers.server import Server
from clairvoyant_cli.proxy.servers.service_times import ServiceTimes
from clairvoyant_cli.scheduler.job import ClientFullError, Job, QueueFullError, Terms
from clairvoyant_cli.scheduler.urgency import LEVELS, UrgencySource
from predictor.record import UNKNOWN, Prediction, Predictor, Task, UrgencyPredictor

if TYPE_CHECKING:  # numpy comes with it
    from predictor.semantic.opinion import EncoderEstimate

log = logging.getLogger("clairvoyant")


SHOWN_CHARS = 4000  # characters of a prompt that are shown, where prompts are shown at all
ALONG_S = 0.25
"""How long a title request waits for the question it comes with: Open WebUI sends it up to 0.15 s earlier,
and a request whose prompt is being read is not cut before its first token."""

VOICE_PRIORITY = -1  # of a voice assistant: before all whose clients may not choose a lower one

EMBEDDING = Prediction(1.0, 0.0, 0.0, 0.0, 1.0, 1.0, "embedding")
"""Embeddings decode nothing: they count as the shortest jobs."""

Level = tuple[int | None, UrgencySource]  # a level, None if unset, and its source


@dataclass(frozen=True, slots=True)
class ReadBody:
    """A request that needs a slot; its body tells for how long. It counts towards the share of `client`;
    `shown_name` is what views and records call the client, "" for the same; `program` is the one that the
    system says it is, "" if unknown.
    """

    route: Route
    client: str
    shown_name: str = ""
    program: str = ""


@dataclass(slots=True)
class UrgencyLevels:
    """Sets urgency levels."""

    access: Access
    predictor: UrgencyPredictor | None = None

    def at_arrival(self, head: RequestHead, client: str, parsed: ParsedRequest) -> Level:
        clients = self.access.clients
        for rule in clients.urgency:
            if rule.fits(client, parsed.model, head):
                return rule.level, UrgencySource.RULE
        try:
            wish = _clamped(int(head.get(URGENCY_HEADER) or b""), (0, LEVELS - 1))
        except ValueError:  # none, or no number
            return self.predicted(client, parsed)
        return _clamped(wish, clients.rules_of(client).urgency), UrgencySource.CLIENT

    def predicted(
        self, client: str, parsed: ParsedRequest, opinion: "EncoderEstimate | None" = None
    ) -> Level:
        """Return the level predicted from the text, with the encoder's opinion if there is one."""
        view = parsed.view
        if self.predictor is None or view is None or view.task is Task.EMBEDDING or not view.prompt:
            return None, UrgencySource.NOBODY
        try:
            thought = self.predictor.level(view, opinion)
        except Exception:
            log.exception("the urgency predictor failed; the level of the request is unset")
            return None, UrgencySource.NOBODY
        return _clamped(
            thought, self.access.clients.rules_of(client).predicted_urgency
        ), UrgencySource.PREDICTOR


def _clamped(level: int, levels: tuple[int, int]) -> int:
    return max(levels[0], min(level, levels[1]))


@dataclass(slots=True)
class ExchangeFactory:
    """Makes exchanges. `show_prompts` keeps a prompt's beginning and its answer's end for dashboards,
    `record_prompts` the whole body until it is recorded.
    """

    access: Access
    predictor: Predictor
    times: ServiceTimes
    levels: UrgencyLevels
    journal: Journal
    resubmissions: Resubmissions
    show_prompts: bool = False
    record_prompts: bool = False
    _ids: int = 0
    _boot: str = field(default_factory=lambda: f"{int(time.time()) & 0xFFFFF:05x}")

    def exchange(
        self, request: Request, asks: ReadBody, parsed: ParsedRequest, able: list[Server]
    ) -> Exchange:
        """Predict a request's length, and return it as an exchange for the servers in `able`."""
        now = self.journal.clock()
        chore = None
        if parsed.view is not None:
            named, session = request.head.get(CHORE_HEADER), request.head.get(b"x-session-id")
            chore = chore_of(named, parsed.view, session)
            principal = self.access.clients.principal_of(asks.client)
            if chore is not None or principal:
                parsed.view = replace(parsed.view, chore=chore, principal=principal)
        urgency, urgency_by = self.levels.at_arrival(request.head, asks.client, parsed)
        prediction = self.predict(parsed)
        predicted_in_s = self.journal.clock() - now
        is_chore = chore is not None and not chore.interactive
        levels = self.access.clients.rules_of(asks.client).levels_of(chore=is_chore)
        priority = self.priority_of(request, asks, parsed)
        pool = self.times.pool
        claimed, parent = claims_of(request.head, parsed.conversation)
        job_id, age_s = self._id_and_age(asks.client, claimed, parsed, now)
        job = Job(
            id=job_id,
            arrival_s=now - age_s,
            **self.times.estimates(parsed, prediction),
            prompt_tokens=self.times.prompt_tokens(parsed),
            client=asks.client,
            model=parsed.model,
            affinity=pool.affinity_of(parsed),
            prefix=parsed.conversation.chain,
            claimed=claimed,
            parent=parent,
            agentic=parsed.conversation.agentic,
            program=asks.program or program_of(request.head.get(b"user-agent")),
            priority=priority,
            urgency=urgency,
            urgency_by=urgency_by,
            able=pool.ids(able),
            background_levels=levels,
            chore=is_chore,
            not_before_s=now + ALONG_S if levels and chore is not None and chore.along else 0.0,
        )
        shown = parsed.view.prompt[:SHOWN_CHARS] if self.show_prompts and parsed.view else None
        trace = decoded(request.head.get(b"traceparent") or b"")
        body = request.whole(SMALL_BYTES) if self.record_prompts and parsed.view else None
        return Exchange(
            job,
            Asked(asks.route, parsed, prediction, predicted_in_s, shown, asks.shown_name, trace, body),
            granted=asyncio.get_running_loop().create_future(),
            task=asyncio.current_task(),
            answer=AnswerText() if self.show_prompts else None,
            kept_age_s=age_s,
        )

    def priority_of(self, request: Request, asks: ReadBody, parsed: ParsedRequest) -> int:
        """Return the priority that a request asks for, in its client's range; invalid numbers are ignored.
        A voice command goes first.
        """
        rules = self.access.clients.rules_of(asks.client)
        priority = rules.clamped(parsed.priority)
        with suppress(ValueError):
            priority = rules.clamped(int(request.head.get(PRIORITY_HEADER) or parsed.priority))
        is_task = parsed.view is None or parsed.view.json_mode
        if asks.program == HOME_ASSISTANT and rules.priority == OWN_PRIORITIES and not is_task:
            priority = min(priority, VOICE_PRIORITY)
        return priority

    def _id_and_age(self, client: str, claimed: str, parsed: ParsedRequest, now: float) -> tuple[str, float]:
        """Return a new id and no age; of a request that is sent again, its next id and the age it keeps."""
        chain, waiting = parsed.conversation.chain, len(self.times.pool.queue)
        taken = self.resubmissions.take(client, claimed, chain, now, waiting=waiting)
        if taken is None:
            self._ids += 1
            return f"{self._boot}-{self._ids}", 0.0
        left, age_s = taken
        self.journal.event(
            logging.INFO, f"{left.next_id}: {left.id} was sent again and keeps its age of {age_s:.0f} s"
        )
        return left.next_id, age_s

    def predict(self, parsed: ParsedRequest) -> Prediction:
        view = parsed.view
        if view is None:
            return UNKNOWN
        if view.task is Task.EMBEDDING:
            return EMBEDDING
        try:
            return self.predictor.predict(view)
        except Exception:
            log.exception("the predictor failed; the request counts as one of unknown length")
            return UNKNOWN


@dataclass(frozen=True, slots=True)
class Refused:
    route: Route
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class PassOn:
    """The request needs no slot and goes straight to a server. `model` is the one it names, if known."""

    route: Route
    client: str
    model: str = ""


Check = Callable[[ParsedRequest, Sequence[Server]], Refusal | None]
"""Returns why a request is refused that the given servers could serve; None if it is not."""


@dataclass(slots=True)
class Admission:
    """Decides what becomes of an incoming request. A body longer than `body_limit_bytes` is not parsed.

    It refuses requests also by a `check`, and those that would miss the `service_level`.
    `admitted` is called with each exchange that enters the queue.
    """

    access: Access
    pool: ServerPool
    operation: Operation
    journal: Journal
    refusals: Refusals
    factory: ExchangeFactory
    annotation: Annotation
    body_limit_bytes: int
    service_level: ServiceLevel | None
    check: Check | None
    admitted: Callable[[Exchange], None]
    stable_prefix: StablePrefix | None = None
    _entering: Counter[str] = field(default_factory=Counter)

    async def predicted(self, path: str, body: bytes) -> dict[str, Any] | None:
        """Predict the answer to a request to `path`, which is not admitted: tokens, seconds on the fastest
        server, and the head start that a router should give it. None if nothing is generated there.
        """
        route = self.pool.first.adapter.route_of(b"POST", path)
        if route.work not in (Work.GENERATE, Work.EMBED):
            return None
        parsed = await parse_request([body], route, self.pool.speaker(route.family).adapter)
        prediction = self.factory.predict(parsed)
        estimates = self.factory.times.estimates(parsed, prediction)
        return {
            "class": prediction.length_class.value,
            "p_long": estimates["p_long"],
            "expected_tokens": estimates["tokens"],
            "q90_tokens": estimates["tokens_q90"],
            "expected_s": estimates["cost_s"],
            "due_in_s": self.annotation.due_in_s(estimates["cost_s"]),
        }

    async def admit(self, request: Request) -> Exchange | PassOn | Refused:
        """Judge a request by its head, and by its body if it needs a slot."""
        verdict = self.judge_head(request)
        if not isinstance(verdict, ReadBody):
            return verdict
        request.schedule()
        late = None
        if (programs := self.access.programs_of(verdict.client)) is not None:
            named = await programs.wait(request.connection)
            if not named.done():
                late = named
            elif (program := named.result()) is not None:
                verdict = self._of_program(request, verdict, program)
        # It gets a slot once its body is here; one that is too large for that streams to the server.
        limit_bytes = max(self.body_limit_bytes, request.connection.table.body_budget_bytes // 2)
        pieces = await request.read(limit_bytes, verdict.client)
        with self.entering(verdict) as refused:
            if refused is not None:
                return refused
            adapter = self.pool.speaker(verdict.route.family).adapter
            arrived = request.arrived if pieces is None else pieces
            whole = pieces is not None and sum(map(len, pieces)) <= self.body_limit_bytes
            parsed = await parse_request(
                arrived, verdict.route, adapter, verdict.client, whole=whole, ends=pieces is not None
            )
            if self.stable_prefix is not None and parsed.view is not None and not parsed.bypass:
                parsed = await self._stabilised(request, verdict, parsed, self.stable_prefix)
            await self._look_through(request, verdict.route, parsed, whole=whole)
            able = self.pool.able(verdict.route.speakers, parsed)
            objection = self.annotation.objection(parsed, verdict.route, verdict.client, able, whole=whole)
            objection = objection or self.refusals.of_repeated(request, verdict.client)
            if objection is not None:
                return self._rejected(verdict.route, objection)
            await READING.next()
        with READING:
            taken = self.enqueue(request, verdict, parsed)
        if late is not None and isinstance(taken, Exchange):
            late.add_done_callback(lambda named: self._named(taken, request, verdict, named.result()))
        return taken

    def _of_program(self, request: Request, asks: ReadBody, program: Program) -> ReadBody:
        client = self.access.clients.client_of(program)
        shown_name = self.access.shown_name(request.head, client)
        return replace(asks, client=client, shown_name=shown_name, program=program.name)

    def _named(self, exchange: Exchange, request: Request, asks: ReadBody, program: Program | None) -> None:
        """Make an exchange its program's, which is known only now."""
        if program is None or exchange.end is not None:
            return
        asks, job, asked = self._of_program(request, asks, program), exchange.job, exchange.asked
        urgency = self.factory.levels.at_arrival(request.head, asks.client, asked.parsed)
        priority = self.factory.priority_of(request, asks, asked.parsed)
        levels = self.access.clients.rules_of(asks.client).levels_of(chore=job.chore)
        job.program, asked.shown_name = asks.program, asks.shown_name
        dispatcher = self.operation.dispatcher
        dispatcher.scheduler.set_terms(job.id, Terms(asks.client, priority, levels), self.operation.clock())
        if (
            urgency[1] in (UrgencySource.RULE, UrgencySource.CLIENT)
            and job.urgency_by != UrgencySource.OPERATOR
        ):
            dispatcher.set_urgency(exchange, *urgency)
        dispatcher.moved()

    async def _look_through(
        self, request: Request, route: Route, parsed: ParsedRequest, *, whole: bool
    ) -> None:
        """Find out what else decides where a request may go: what decoding its body did not show."""
        if len(self.pool) > 1 and not parsed.model:
            parsed.model = await named_model(request.arrived, request.head)
        if any(server.runs_elsewhere(parsed.model) for server in self.pool):
            able = self.pool.able(route.speakers, parsed)
            # A body that names two models may mean the other one, to Go the last.
            named = await named_model(request.arrived, request.head)
            if named == parsed.model and all(server.runs_elsewhere(named) for server in able):
                parsed.bypass = "cloud"
        if parsed.ranks_itself is not None or not self.pool.stamped:
            return
        if parsed.members is None:
            parsed.members = members_of(request.head)
            await read_members(request.arrived, parsed.members)
        if whole:
            parsed.ranks_itself = parsed.members.sets(FIELD)

    async def _stabilised(
        self, request: Request, asks: ReadBody, parsed: ParsedRequest, stable_prefix: StablePrefix
    ) -> ParsedRequest:
        """Change a request's body so that its prompt begins as the one before; return what is known of it.
        What moves to the end is not there in the next turn, so it is not parsed.
        """
        if not self.factory.times.has_room(parsed):
            return parsed
        await READING.next()
        with READING:
            new = stable_prefix.stabilised(b"".join(request.arrived), asks.route.shape)
            if new is None:
                return parsed
            request.replace_body(new.body, OUTDATED)
        adapter = self.pool.speaker(asks.route.family).adapter
        parsed = await parse_request([new.lasting], asks.route, adapter, asks.client)
        parsed.stabilised = new.done
        return parsed

    def judge_head(self, request: Request) -> ReadBody | PassOn | Refused:
        head = request.head
        head.origin_form = self.pool.without_prefix(head.origin_form)
        route = self.pool.first.adapter.route_of(head.method, head.path)
        mark = head.get(MARK_HEADER)
        if mark is not None and any(server.came_back(mark) for server in self.pool):
            return Refused(route, IN_A_LOOP)
        client = self.access.admit(request)
        if isinstance(client, Refusal):
            return Refused(route, client)
        if head.method == b"CONNECT":
            return Refused(route, NO_CONNECT)
        if self.operation.stopping:
            return Refused(route, SHUTTING_DOWN)
        if not route.scheduled:
            return PassOn(route, client)
        return ReadBody(route, client, self.access.shown_name(head, client))

    @contextmanager
    def entering(self, asks: ReadBody) -> Iterator[Refused | None]:
        """Count a request while its body is parsed; yield a refusal if more are than could wait or start."""
        client = asks.client
        if self._entering[client] >= self.pool.queue.capacity + self.pool.slots:
            yield self._rejected(asks.route, self.refusals.full())
            return
        self._entering[client] += 1
        try:
            yield None
        finally:
            self._entering[client] -= 1
            if not self._entering[client]:
                del self._entering[client]

    def enqueue(self, request: Request, asks: ReadBody, parsed: ParsedRequest) -> Exchange | PassOn | Refused:
        """Predict a request's length and submit it to the queue, or refuse it."""
        if parsed.bypass:
            request.scheduled = False
            return PassOn(asks.route, asks.client, parsed.model)
        servers = self.pool.able(asks.route.speakers, parsed)
        exchange = self.factory.exchange(request, asks, parsed, servers)
        objection = self._objection(asks.client, parsed, servers)
        refusal = objection or self._too_late(exchange) or self._submit(exchange)
        if refusal is not None:
            self.journal.counts["submitted"] += 1
            exchange.remark = refusal.reason
            self.operation.dispatcher.refuse(exchange, refusal.status)
            return Refused(asks.route, refusal)
        self.admitted(exchange)
        return exchange

    def _objection(self, client: str, parsed: ParsedRequest, able: Sequence[Server]) -> Refusal | None:
        """Return why a request is not accepted now; None if it is."""
        if self.operation.draining:
            return DRAINING
        if all(server.leads_back for server in able):
            return IN_A_LOOP
        # If nothing is in flight, one request may find out whether a loading server serves by now.
        if given_up(able) and not (self.pool.loading and not self.operation.dispatcher.live):
            return self.refusals.away(able[0])
        if all(server.health.withdrawn for server in able):
            return self.refusals.draining_alone(able)
        return None if self.check is None else self.check(parsed, able)

    def _too_late(self, exchange: Exchange) -> Refusal | None:
        """Return a refusal if a request's predicted TTFT exceeds the service level."""
        level = self.service_level
        retry_after_s = None if level is None else level.retry_after_s(exchange)
        if level is None or retry_after_s is None:
            return None
        return self.refusals.too_late(level.text, retry_after_s)

    def _submit(self, exchange: Exchange) -> Refusal | None:
        try:
            self.operation.dispatcher.submit(exchange)
        except ClientFullError:
            return self.refusals.client_full(exchange.job.client)
        except QueueFullError:
            return self.refusals.full()
        return None

    def _rejected(self, route: Route, refusal: Refusal) -> Refused:
        """Refuse a request whose body was not read, or not to its end."""
        self.journal.counts["submitted"] += 1
        self.journal.counts["rejected"] += 1
        log.info("- %s %d rejected", route.name, refusal.status)
        return Refused(route, refusal)
