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

from clairvoyant_cli.addresses import THIS_MACHINE
from clairvoyant_cli.backends.priority import FIELD, OUTDATED
from clairvoyant_cli.backends.prober import MARK_HEADER
from clairvoyant_cli.http.heads import RequestHead
from clairvoyant_cli.http.limits import READING
from clairvoyant_cli.http.request import Piece, Request
from clairvoyant_cli.protocols.chores import CHORE_HEADER, chore_of
from clairvoyant_cli.protocols.client_programs import program_of
from clairvoyant_cli.protocols.conversation import claims_of
from clairvoyant_cli.protocols.errors import Refusal
from clairvoyant_cli.protocols.outer_members import members_of, named_model, read_members
from clairvoyant_cli.protocols.printable import decoded, printable
from clairvoyant_cli.protocols.request_parsing import SMALL_BYTES, ParsedRequest, parse_request
from clairvoyant_cli.protocols.routes import Route, Work
from clairvoyant_cli.protocols.stable_prefix import StablePrefix
from clairvoyant_cli.protocols.usage import AnswerText
from clairvoyant_cli.proxy.access.clients import OWN_PRIORITIES
from clairvoyant_cli.proxy.access.keys import CLIENT_HEADER, PRIORITY_HEADER, URGENCY_HEADER, Access
from clairvoyant_cli.proxy.access.programs import HOME_ASSISTANT, WAIT_S, Program
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
from clairvoyant_cli.scheduler.urgency import UrgencySource
from predictor.record import UNKNOWN, Prediction, Predictor, Task, UrgencyPredictor

if TYPE_CHECKING:  # numpy comes with it
    from predictor.semantic.opinion import EncoderEstimate

log = logging.getLogger("clairvoyant")


SHOWN_CHARS = 4000  # characters of a prompt that are shown, where prompts are shown at all
ALONG_S = 0.25
"""How long a title request waits for the question it comes with: Open WebUI sends it up to 0.15 s earlier,
and a request whose prompt is being read is not preempted before its first token."""

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
            wish = int(head.get(URGENCY_HEADER) or b"")
        except ValueError:  # none, or no number
            none = None, UrgencySource.NOBODY
            return none if self.predictor is None else self.predicted(client, parsed)
        most, least = clients.rules_of(client).urgency
        return max(most, min(wish, least)), UrgencySource.CLIENT

    def predicted(
        self, client: str, parsed: ParsedRequest, opinion: "EncoderEstimate | None" = None
    ) -> Level:
        """Return the level predicted from the text, with the encoder's opinion if there is one."""
        view = parsed.view
        if self.predictor is None or view is None or view.task is Task.EMBEDDING or not view.prompt:
            return None, UrgencySource.NOBODY
        try:
            level = self.predictor.level(view, opinion)
        except Exception:
            log.exception("the urgency predictor failed; the level of the request is unset")
            return None, UrgencySource.NOBODY
        most, least = self.access.clients.rules_of(client).predicted_urgency
        return max(most, min(level, least)), UrgencySource.PREDICTOR


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
            parsed.view.chore, parsed.view.principal = chore, principal
        urgency, urgency_by = self.levels.at_arrival(request.head, asks.client, parsed)
        prediction = self.predict(parsed)
        predicted_in_s = self.journal.clock() - now
        is_chore = chore is not None and not chore.interactive
        terms = self.terms(request, asks, parsed, is_chore=is_chore)
        pool, prompt_tokens = self.times.pool, self.times.prompt_tokens(parsed)
        claimed, parent = claims_of(request.head, parsed.conversation)
        chain, waiting = parsed.conversation.chain, len(pool.queue)
        moved = self.resubmissions.moved.pop(request.connection, None)
        left = self.resubmissions.take(asks.client, claimed, chain, now, waiting=waiting, moved=moved)
        if left is None:
            self._ids += 1
            job_id, age_s = f"{self._boot}-{self._ids}", 0.0
        else:
            job_id, age_s = left[0].next_id, left[1]
            how = "was passed on by another daemon" if moved else "was sent again"
            news = f"{job_id}: {left[0].id} {how} and keeps its age of {age_s:.0f} s"
            self.journal.event(logging.INFO, news)
        job = Job(
            id=job_id,
            arrival_s=now - age_s,
            **self.times.estimates(parsed, prediction, prompt_tokens),
            prompt_tokens=prompt_tokens,
            client=asks.client,
            model=parsed.model,
            affinity=pool.affinity_of(parsed),
            prefix=chain,
            claimed=claimed,
            parent=parent,
            agentic=parsed.conversation.agentic,
            program=asks.program or program_of(request.head.get(b"user-agent")),
            priority=terms.priority,
            urgency=urgency,
            urgency_by=urgency_by,
            able=pool.ids(able),
            background_levels=terms.background_levels,
            chore=is_chore,
            not_before_s=now + ALONG_S if terms.background_levels and chore and chore.along else 0.0,
        )
        shown = parsed.view.prompt[:SHOWN_CHARS] if self.show_prompts and parsed.view else None
        traced = request.head.get(b"traceparent")
        trace = "" if traced is None else decoded(traced)
        body = request.whole(SMALL_BYTES) if self.record_prompts and parsed.view else None
        return Exchange(
            job_id,
            job,
            Asked(asks.route, parsed, prediction, predicted_in_s, shown, asks.shown_name, trace, body),
            granted=asyncio.get_running_loop().create_future(),
            task=asyncio.current_task(),
            answer=AnswerText() if self.show_prompts else None,
            kept_age_s=age_s,
        )

    def terms(self, request: Request, asks: ReadBody, parsed: ParsedRequest, *, is_chore: bool) -> Terms:
        """Return a request's client, the priority that it asks for, in its client's range, and the levels
        that it waits behind others. Invalid numbers are ignored; a voice command goes first.
        """
        rules, priority = self.access.clients.rules_of(asks.client), parsed.priority
        with suppress(ValueError):
            priority = int(request.head.get(PRIORITY_HEADER) or priority)
        priority = rules.clamped(priority)
        is_task = parsed.view is None or parsed.view.json_mode
        if asks.program == HOME_ASSISTANT and rules.priority == OWN_PRIORITIES and not is_task:
            priority = min(priority, VOICE_PRIORITY)
        return Terms(asks.client, priority, rules.levels_of(chore=is_chore))

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
        times = self.factory.times
        estimates = times.estimates(parsed, prediction, times.prompt_tokens(parsed))
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
        asks = self.judge_head(request)
        if not isinstance(asks, ReadBody):
            return asks
        request.schedule()
        named = None
        # Without keys, all programs of this machine are one client otherwise.
        programs = None if asks.client != THIS_MACHINE or self.access.clients.keys else self.access.programs
        if programs is not None:
            named = programs.search(request.connection)
            if not named.done():
                await asyncio.wait([named], timeout=WAIT_S)
            if named.done():
                asks, named = self._of_program(asks, named.result()), None
        # It gets a slot once its body is here; one that is too large for that streams to the server.
        pieces = await request.read(request.connection.table.body_budget_bytes // 2, asks.client)
        with self.entering(asks) as refused:
            if refused is not None:
                return refused
            parsed, whole = await self._parsed(request, asks, pieces)
            if self.refusals.final and (repeated := self.refusals.of_repeated(request, asks.client)):
                return self._rejected(asks.route, repeated)
            await READING.next()
        admitted = self.enqueue(request, asks, parsed, whole=whole)
        if named is not None and isinstance(admitted, Exchange):
            named.add_done_callback(lambda named: self._named(admitted, request, asks, named.result()))
        return admitted

    def _of_program(self, asks: ReadBody, program: Program | None) -> ReadBody:
        if program is None:
            return asks
        return replace(asks, client=self.access.clients.client_of(program), program=program.name)

    def _named(self, exchange: Exchange, request: Request, asks: ReadBody, program: Program | None) -> None:
        """Make an exchange its program's, which is known only now."""
        if program is None or exchange.end is not None:
            return
        asks, job, parsed = self._of_program(asks, program), exchange.job, exchange.asked.parsed
        level, by = self.factory.levels.at_arrival(request.head, asks.client, parsed)
        terms = self.factory.terms(request, asks, parsed, is_chore=job.chore)
        job.program, dispatcher = asks.program, self.operation.dispatcher
        dispatcher.scheduler.set_terms(job.id, terms, self.operation.clock())
        if by in (UrgencySource.RULE, UrgencySource.CLIENT) and job.urgency_by != UrgencySource.OPERATOR:
            dispatcher.set_urgency(exchange, level, by)
        dispatcher.moved()

    async def _parsed(
        self, request: Request, asks: ReadBody, pieces: Sequence[Piece] | None
    ) -> tuple[ParsedRequest, bool]:
        """Parse a request, of which only the beginning is here if `pieces` is None, and find out what else
        decides where it may go. Return also whether all of it was decoded.
        """
        route, pool, adapter = asks.route, self.pool, self.pool.speaker(asks.route.family).adapter
        arrived, ends = (request.arrived, False) if pieces is None else (pieces, True)
        whole = ends and sum(map(len, arrived)) <= self.body_limit_bytes
        parsed = await parse_request(arrived, route, adapter, asks.client, whole=whole, ends=ends)
        if self.stable_prefix is not None and parsed.view is not None and not parsed.bypass:
            parsed = await self._stabilised(request, asks, parsed, self.stable_prefix)
        if len(pool) > 1 and not parsed.model:
            parsed.model = await named_model(request.arrived, request.head)
        if any(server.runs_elsewhere(parsed.model) for server in pool):
            able = pool.able(route.speakers, parsed)
            # A body that names two models may mean the other one, to Go the last.
            named = await named_model(request.arrived, request.head)
            if named == parsed.model and all(server.runs_elsewhere(named) for server in able):
                parsed.bypass = "cloud"
        if parsed.ranks_itself is None and pool.stamped:
            if parsed.members is None:
                parsed.members = members_of(request.head)
                await read_members(request.arrived, parsed.members)
            if whole:
                parsed.ranks_itself = parsed.members.sets(FIELD)
        return parsed, whole

    async def _stabilised(
        self, request: Request, asks: ReadBody, parsed: ParsedRequest, stable_prefix: StablePrefix
    ) -> ParsedRequest:
        """Change a request's body so that its prompt begins as the one before; return what is known of it.
        What moves to the end is not there in the next turn, so it is not parsed.
        """
        if not self.factory.times.has_room(parsed):
            return parsed
        await READING.next()
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
        if (mark := head.get(MARK_HEADER)) is not None:
            for server in self.pool:
                if mark == server.prober.mark:  # its address leads back to this proxy
                    server.probe_came_back = server.leads_back = True
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
        # What it calls its client in views and records.
        named = None if self.access.clients.keys else head.get(CLIENT_HEADER)
        return ReadBody(route, client, printable(decoded(named)) if named else "")

    @contextmanager
    def entering(self, asks: ReadBody) -> Iterator[Refused | None]:
        """Count a request while its body is parsed; yield a refusal if more are than could wait or start."""
        client, most = asks.client, self.pool.queue.capacity
        if self._entering[client] >= most and self._entering[client] >= most + self.pool.slots:
            yield self._rejected(asks.route, self.refusals.full())
            return
        self._entering[client] += 1
        try:
            yield None
        finally:
            self._entering[client] -= 1
            if not self._entering[client]:
                del self._entering[client]

    def enqueue(
        self, request: Request, asks: ReadBody, parsed: ParsedRequest, *, whole: bool = False
    ) -> Exchange | PassOn | Refused:
        """Predict a request's length and submit it to the queue, or refuse it. One that is not `whole` is
        looked through while it is sent.
        """
        able = self.pool.able(asks.route.speakers, parsed)
        barred = self.annotation.objection(parsed, asks.route, asks.client, able, whole=whole)
        if barred is not None:
            return self._rejected(asks.route, barred)
        if parsed.bypass:
            request.scheduled = False
            return PassOn(asks.route, asks.client, parsed.model)
        exchange = self.factory.exchange(request, asks, parsed, able)
        refusal, dispatcher = self._objection(exchange, able), self.operation.dispatcher
        try:
            if refusal is None:
                dispatcher.submit(exchange)
        except ClientFullError:
            refusal = self.refusals.client_full(asks.client)
        except QueueFullError:
            refusal = self.refusals.full()
        if refusal is not None:
            self.journal.counts["submitted"] += 1
            exchange.remark = refusal.reason
            dispatcher.refuse(exchange, refusal.status)
            return Refused(asks.route, refusal)
        self.admitted(exchange)
        return exchange

    def _objection(self, exchange: Exchange, able: Sequence[Server]) -> Refusal | None:
        """Return why a request is not accepted now, such as that its predicted TTFT exceeds the service
        level; None if it is.
        """
        if self.operation.draining:
            return DRAINING
        if all(server.leads_back for server in able):
            return IN_A_LOOP
        # If nothing is in flight, one request may find out whether a loading server serves by now.
        if given_up(able) and not (self.pool.loading and not self.operation.dispatcher.live):
            return self.refusals.away(able[0])
        if all(server.health.withdrawn for server in able):
            return self.refusals.draining_alone(able)
        level, asked = self.service_level, exchange.asked
        objection = None if self.check is None else self.check(asked.parsed, able)
        if objection is not None or level is None or asked.route.work is not Work.GENERATE:
            return objection
        retry_after_s = level.retry_after_s(exchange.job, asked.prediction.length_class.value)
        return None if retry_after_s is None else self.refusals.too_late(level.text, retry_after_s)

    def _rejected(self, route: Route, refusal: Refusal) -> Refused:
        """Refuse a request whose body was not read, or not to its end."""
        self.journal.counts["submitted"] += 1
        self.journal.counts["rejected"] += 1
        log.info("- %s %d rejected", route.name, refusal.status)
        return Refused(route, refusal)
