"""Serves a queued request: waits for a slot, sends it to a server, passes the answer on.

`serving_rules` decides what follows from each event; this carries it out.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import msgspec

from clairvoyant_cli.backends.continuation import ContinuationRequest
from clairvoyant_cli.backends.priority import BarredError, Priority
from clairvoyant_cli.http.fields import Header
from clairvoyant_cli.http.heads import ResponseHead
from clairvoyant_cli.http.request import Request
from clairvoyant_cli.http.upstream import (
    NotReadyError,
    RefusedError,
    UnreachableError,
    UpstreamConnection,
    UpstreamError,
)
from clairvoyant_cli.protocols.probes import BusySlots
from clairvoyant_cli.protocols.request_parsing import STORING, has_no_side_effects
from clairvoyant_cli.protocols.routes import Work
from clairvoyant_cli.protocols.server_error import cause_of
from clairvoyant_cli.protocols.usage import UsageReader
from clairvoyant_cli.proxy.access.keys import Access
from clairvoyant_cli.proxy.journal import Journal
from clairvoyant_cli.proxy.queue.dispatcher import Dispatcher, Release
from clairvoyant_cli.proxy.queue.ended import Outcome
from clairvoyant_cli.proxy.queue.exchange import (
    Attempt,
    AttemptEnd,
    DisplacedError,
    DrainingError,
    Exchange,
    OperatorCancelledError,
    OutageError,
    Phase,
)
from clairvoyant_cli.proxy.requests.heartbeat import Heartbeat
from clairvoyant_cli.proxy.requests.preemption import Preemption, UnfitError
from clairvoyant_cli.proxy.requests.refusals import Refusals
from clairvoyant_cli.proxy.requests.relay import (
    PreemptedError,
    Relay,
    SplicedRelay,
    forward,
    forward_continuation,
)
from clairvoyant_cli.proxy.requests.serving_rules import (
    Answered,
    BodyBarred,
    ClientLeft,
    Command,
    Failed,
    NotGranted,
    ServingEvent,
    ServingRules,
    WaitAgain,
)
from clairvoyant_cli.proxy.servers.engine_queue import Annotation, EngineQueues
from clairvoyant_cli.proxy.servers.pool import ServerPool
from clairvoyant_cli.proxy.servers.server import Server
from predictor.record import Predictor

log = logging.getLogger("clairvoyant")

HANG_UP_TIMEOUT_S = 5.0
"""How long a server may take to notice that its client left before the connection is reset."""

# When a slot of llama.cpp is really free: an abandoned answer may occupy it for seconds.

# Pause between questions to /slots. Each restarts the 1 s timer by which llama.cpp notices that an unstreamed
# client has left, so it must exceed a second.
SLOTS_EVERY_S = 1.25
FIRST_LOOK_AFTER_S = 0.005  # pause before the second look, doubled each time: a stream ends at its next token
MAX_STOP_S = 3.0  # that an abandoned answer may occupy its slot: llama.cpp ends the batch of a prompt first
# A stream ends at its next token. It may take four times as long as recent ones, each of which counts a
# fifth less than the next.
LEAST_STOP_S = 1.0
STOP_MARGIN = 4.0
STOP_KEPT = 0.8
SHARED = "another program seems to use it: more of its slots are busy than this proxy uses"
SILENT = "its /slots timed out"
STARTED_FOR_S = 0.2  # a request sent this long ago is counted by /slots, if it has one


@dataclass(slots=True)
class Serving:
    """What it takes to serve any request."""

    access: Access
    pool: ServerPool
    dispatcher: Dispatcher
    refusals: Refusals
    rules: ServingRules
    preemption: Preemption
    annotation: Annotation
    engines: EngineQueues
    journal: Journal
    silent_s: float | None
    max_answer_s: float | None
    predictor: Predictor

    async def stop(self, exchange: Exchange) -> None:
        """Return when the server has stopped working for an exchange, or for as long as that may take."""
        attempt = exchange.attempt
        if attempt is None:
            return
        server = self.pool.by_id[attempt.run.server_id]
        streamed = attempt.usage is not None and attempt.usage.streaming
        if attempt.connection is not None:
            runs_on_s = 0.0 if streamed else server.adapter.RUNS_ON_S
            await attempt.connection.hang_up(max(HANG_UP_TIMEOUT_S, runs_on_s))
        if attempt.read_s is not None:
            return  # the server may finish the batch of the prompt: the next request is in line for the slot

        def others_started_at() -> list[float]:
            return [
                other.run.started_s
                for other in self.dispatcher.attempts_on(server.id)
                if other is not attempt
                for _ in range(other.asked.parsed.choices)
            ]  # llama.cpp gives each choice a slot

        clock = self.journal.clock
        remark = server.remark = await slots_settled(server, others_started_at, clock, streamed=streamed)
        if remark and server.is_news(remark, "logged"):
            self.journal.event(logging.WARNING, f"{server.name}: {remark}")


@dataclass(slots=True, eq=False)
class ServedRequest:
    """A request that is being served: its attempts one after the other, and what each answer brings."""

    serving: Serving
    exchange: Exchange
    request: Request
    heartbeat: Heartbeat = field(init=False)
    # Of the last attempt:
    attempt: Attempt = field(init=False)
    server: Server = field(init=False)
    stamps: Priority | None = field(init=False)  # how its server orders its own queue
    resumes: bool = field(init=False)  # it goes on with an answer that had begun
    relay: Relay | None = field(init=False)  # None until it is connected

    async def serve(self) -> None:
        """Serve the exchange to its end, in as many attempts as that takes."""
        exchange, request, dispatcher = self.exchange, self.request, self.serving.dispatcher
        self.heartbeat = Heartbeat(exchange, request, self.serving.refusals, self.serving.silent_s)
        command: Command | None = None
        try:
            while command is None or isinstance(command, WaitAgain):
                event = await self._wait() or await self._attempt()
                command = self.serving.rules.after(exchange, event)
                if isinstance(command, WaitAgain):
                    if isinstance(event, Failed) and command.why is AttemptEnd.BROKEN:
                        self.serving.journal.counts["repeats"] += 1
                        how = "goes on" if exchange.has_begun else "is asked for again"
                        news = f"{self.server.name} broke off the answer to {exchange.id} ({event.why})"
                        self.serving.journal.event(logging.WARNING, f"{news}: it {how}")
                    if request.answered and exchange.splice is not None:
                        self.heartbeat.suspend(exchange.splice.blank)
                carry_out(command, exchange, dispatcher, self.serving.stop)
        except Exception:
            dispatcher.end(exchange, Outcome.UPSTREAM_ERROR, 500)
            raise
        finally:
            self.heartbeat.stop()
        if isinstance(event, ClientLeft) and (command.refusal is None or request.answered):
            raise asyncio.CancelledError
        if command.refusal is not None and request.opened:
            self.serving.journal.refused[command.refusal.kind] += 1
            self.heartbeat.fail(command.refusal)
        elif command.refusal is not None:
            self.serving.refusals.send(request, exchange.asked.route, command.refusal, exchange)

    async def _wait(self) -> ServingEvent | None:
        exchange = self.exchange
        try:
            if exchange.granted.done():
                exchange.granted.result()
                return None
            async with asyncio.timeout(self.serving.rules.operation.patience_s(exchange)):
                await exchange.granted
        except (TimeoutError, DisplacedError, DrainingError, OutageError, OperatorCancelledError) as why:
            return NotGranted(why)
        except asyncio.CancelledError:
            return ClientLeft()
        return None

    async def _attempt(self) -> ServingEvent:
        """Have the granted request answered; return how that ended."""
        exchange, request, attempt = self.exchange, self.request, self.exchange.attempt
        assert attempt is not None  # noqa: S101 - what has been granted is an attempt
        if request.connection.gone:
            return ClientLeft()
        server = self.serving.pool.by_id[attempt.run.server_id]
        self.attempt, self.server, self.relay, self.resumes = attempt, server, None, exchange.has_begun
        self.stamps = server.stamps
        limit = self._limited()
        try:
            onward = await self.serving.preemption.request_for(exchange, attempt, request, server)
            upstream = attempt.connection = await server.upstream.connect()
            request.holds_slot = True
            relay = self.relay = self._relay_from(upstream)
            self._send(relay, onward)
            attempt.phase = Phase.PREFILL
            await relay.finished
        except PreemptedError:
            return await self._preempted()
        except RefusedError as error:
            return Failed(AttemptEnd.REFUSED, str(error))
        except BarredError as error:
            return BodyBarred(error.refusal)
        except UnreachableError as error:
            server.becomes("down", str(error))
            return Failed(AttemptEnd.UNREACHABLE, str(error))
        except NotReadyError as error:
            server.becomes("loading", str(error))  # only trial requests are sent from now on
            return Failed(AttemptEnd.NOT_READY)
        except UpstreamError as error:
            return await self._broken_off(error)
        except asyncio.CancelledError:
            return self._left()
        else:
            return self._answered(relay.status)
        finally:
            # This and the relay refer to each other: only a garbage collection would free them.
            self.relay = attempt.stop_reading = None
            if limit is not None:
                limit.cancel()

    def _limited(self) -> asyncio.TimerHandle | None:
        """Have the answer ended once it has taken as long as it may."""
        own_s = self.serving.access.clients.rules_of(self.exchange.job.client).max_answer_s
        most_s = self.serving.max_answer_s if own_s is None else own_s
        if not most_s:
            return None
        left_s = most_s - self.exchange.service_s(self.serving.journal.clock())
        return asyncio.get_running_loop().call_later(max(left_s, 0.0), _overrun, self.exchange)

    def _relay_from(self, upstream: UpstreamConnection) -> Relay:
        """Return what passes on the answer that comes from a connection."""
        exchange, request, server, pool = self.exchange, self.request, self.server, self.serving.pool
        resumes, shape = self.resumes, exchange.asked.route.shape
        may_wait = request.complete and server.adapter.REPORTS_LOADING and not server.health.given_up
        for attempt in exchange.attempts if may_wait else ():
            if attempt.end is AttemptEnd.NOT_READY:
                # Others may have been served since: one model may be missing for good.
                since_s = attempt.run.ended_s or 0.0
                may_wait = self.serving.journal.clock() - since_s < server.health.grace_s
                break
        kind: Callable[..., Relay] = Relay
        if exchange.splice is not None:
            content_type = server.adapter.json_type(exchange.splice.asked.shape) or b""
            kind = partial(SplicedRelay, splice=exchange.splice, resumes=resumes, content_type=content_type)
        return kind(
            request,
            upstream,
            server,
            self.serving.refusals.pages,
            (*self.serving.refusals.about(exchange), *self.serving.refusals.by(server)),
            watcher=self,
            shape=shape,
            may_wait=may_wait,
            elsewhere=partial(pool.elsewhere, exchange) if request.complete and not resumes else None,
            holds_head=request.complete,
            heartbeat=self.heartbeat,
            on_id=partial(pool.holds, server=server) if len(pool) > 1 and shape in STORING else None,
        )

    def _send(self, relay: Relay, onward: ContinuationRequest | None) -> None:
        """Begin to send the request, or the one that goes on with its answer."""
        exchange, request, attempt = self.exchange, self.request, self.attempt
        server, upstream = self.server, relay.upstream
        parsed, work = exchange.asked.parsed, exchange.asked.route.work
        is_repeatable = has_no_side_effects(request, parsed)
        barred = self.serving.access.barred(exchange.job.client, self.stamps)
        if onward is None:
            keep, stamp = relay.may_wait or relay.elsewhere is not None, None
            if self.stamps is not None:
                stamp = self.serving.annotation.stamp(attempt, server, request.head)
            forward(
                request,
                upstream,
                relay,
                server,
                barred=barred,
                members=None if parsed.ranks_itself is False else parsed.members,
                keep=keep or (request.complete and work is not Work.OPAQUE),
                stamp=stamp,
                uncompressed=self.heartbeat.may_open or relay.on_id is not None,
            )
        else:
            body = msgspec.json.encode(onward.body)
            forward_continuation(request, upstream, relay, server, body, onward.path, barred=barred)
        if request.complete:
            attempt.heard_s = self.serving.journal.clock()
        if request.is_kept and is_repeatable:
            attempt.give_up = relay.give_up if request.complete else None
            # It may be preempted, and sent again, before any of its answer has come.
            if (
                self.stamps is None
                and work is Work.GENERATE
                and self.serving.preemption.enabled
                and not self.resumes
            ):
                attempt.stop_reading = relay.preempt
        if len(exchange.attempts) > 1 and (parts := exchange.parts):
            self.serving.journal.counts["resumes"] += parts[-1].read_s is not None

    # What the answer brings.

    def head(self, head: ResponseHead) -> tuple[UsageReader, tuple[Header, ...]]:
        attempt, server = self.attempt, self.server
        if server.status.state == "loading":
            server.becomes("up")  # it answers, whatever it reports
        if head.status < 500:
            server.health.began()
        usage = UsageReader(head, self.exchange.answer, server.speeds.tokens_an_event)
        attempt.usage, usage.on_answer = usage, self._thought
        if self.stamps is None:
            return usage, ()
        headers = self.serving.engines.dropped(attempt, server, head, self.serving.journal.clock())
        if attempt.dropped:
            self.exchange.remark = f"{server.adapter.title} refused it: {attempt.dropped}"
        return usage, headers

    def piece(self) -> None:
        exchange, attempt, now = self.exchange, self.attempt, self.serving.journal.clock()
        if attempt.first_byte_s is None:
            attempt.first_byte_s = now
            scheduler = self.serving.dispatcher.scheduler
            if self.stamps is not None and exchange.id in scheduler.running:
                scheduler.began(exchange.id, now)
            if self.resumes:
                self.serving.preemption.continued(exchange, attempt)
            attempt.phase = Phase.DECODING
        self.server.silences.heard(attempt, now)

    def _thought(self) -> None:
        """Expect the end of the answer by what follows its thinking."""
        exchange, usage, scheduler = self.exchange, self.attempt.usage, self.serving.dispatcher.scheduler
        parsed = exchange.asked.parsed
        if parsed.view is None or usage is None or parsed.choices > 1 or exchange.id not in scheduler.running:
            return
        thought = exchange.tokens - usage.tokens + round(usage.thought * usage.tokens_an_event)
        try:
            after = self.serving.predictor.after_thinking(parsed.view, thought)
        except Exception:  # the answer passes on its way to the client
            log.exception("the predictor failed; the end of an answer is forecast as before")
            return
        if after is not None:
            exchange.thought_tokens, exchange.after_thinking = thought, after
            now, expected = self.serving.journal.clock(), after.expected_tokens
            scheduler.thought(exchange.id, thought, expected, after.q90_tokens, now)

    # How an attempt ends.

    def _answered(self, status: int) -> Answered:
        attempt = self.attempt
        if attempt.usage is not None:
            attempt.totals = self.serving.preemption.totals(self.exchange, attempt, attempt.usage.totals())
            if (status >= 500 or attempt.totals.error) and not self.exchange.remark:
                self.exchange.remark = cause_of(attempt.usage.passed)
        if self.server.loaded is not None:
            self.server.loaded.answered(attempt, status, is_first=not self.exchange.parts)
        return Answered(status, attempt.totals.error)

    def _left(self) -> ServingEvent:
        attempt, relay = self.attempt, self.relay
        if relay is not None and relay.whole:
            # It left with the last byte. The connection may serve another request by now.
            return self._answered(relay.status)
        if relay is None or relay.broken or attempt.connection is None:
            return ClientLeft()
        attempt.connection.let_go()
        heard_all = False
        if attempt.usage is not None and attempt.usage.streaming:
            totals = attempt.usage.totals()
            heard_all = totals.complete  # OpenAI's SDK leaves before the end of the message
            if heard_all:
                attempt.totals = self.serving.preemption.totals(self.exchange, attempt, totals)
        return ClientLeft(at_work=True, heard_all=heard_all, status=relay.status)

    async def _preempted(self) -> ServingEvent:
        """Wait until the slot of an answer that was preempted is free; its client may leave meanwhile."""
        try:
            self.serving.preemption.suspended(self.exchange, self.attempt)
            await self.serving.stop(self.exchange)
        except asyncio.CancelledError:
            return ClientLeft(at_work=True, status=self.relay.status if self.relay is not None else 0)
        return Failed(AttemptEnd.PREEMPTED)

    async def _broken_off(self, error: UpstreamError) -> ServingEvent:
        """Find out whether the server is still up, and whether the client would notice another attempt."""
        status = self.relay.status if self.relay is not None else 0
        try:
            if isinstance(error, UnfitError) and self.attempt.connection is not None:
                await self.serving.stop(self.exchange)  # the server may be at it still
            elif not await self._is_server_there(str(error)):
                if isinstance(error, UnfitError):
                    return Failed(AttemptEnd.UNREACHABLE, str(error))
                self.attempt.server_gone = True
        except asyncio.CancelledError:
            return ClientLeft(at_work=True, status=status)
        return Failed(AttemptEnd.BROKEN, str(error), status, self._is_repeatable())

    async def _is_server_there(self, why: str) -> bool:
        """Whether a server that broke off can still be reached; it counts as down if not."""
        self.server.probe_due.set()
        try:
            (await self.server.upstream.connect(fresh=True)).close()
        except UnreachableError:
            self.server.becomes("down", why)
            return False
        except UpstreamError:
            pass  # it is this machine that can open no more
        return True

    def _is_repeatable(self) -> bool:
        """Whether another attempt would go unnoticed by the client."""
        exchange, request, splice = self.exchange, self.request, self.exchange.splice
        if request.answered:
            return splice is not None and splice.asked.streamed and splice.can_go_on
        if splice is not None and not splice.asked.streamed:
            exchange.only_as_asked = True
            if splice.holds_more:
                self.serving.preemption.streams_more(self.server, exchange.job.model)
        exchange.splice = None
        return request.complete and has_no_side_effects(request, exchange.asked.parsed)


def _overrun(exchange: Exchange) -> None:
    if exchange.task is not None:
        exchange.overran = True
        exchange.task.cancel()


def carry_out(command: Command, exchange: Exchange, dispatcher: Dispatcher, stop: Release) -> None:
    """Carry out a command; `stop` waits for a server that is still working on the exchange."""
    if isinstance(command, WaitAgain):
        dispatcher.wait_again(exchange, command.why, command.able)
        return
    if command.refusal is not None:
        exchange.remark = exchange.remark or command.refusal.reason
    if command.at_work:
        dispatcher.abandon(exchange, command.outcome, command.status, stop)
    else:
        dispatcher.end(exchange, command.outcome, command.status)


async def slots_settled(
    server: Server,
    others_started_at: Callable[[], list[float]],
    clock: Callable[[], float],
    *,
    streamed: bool = False,
) -> str:
    """Wait until an abandoned answer has left its slot of llama.cpp, or for as long as that may take; return
    what prevented seeing it, "" if nothing did.

    It has left when no more of the slots that were busy at first are at the same task than other requests
    are there. `others_started_at` returns when those were sent; the latest may not be counted yet.
    `streamed` says that the answer was a stream.
    """
    if not server.adapter.REPORTS_SLOTS:
        return ""
    begun_s, said = clock(), SILENT
    pause_s = FIRST_LOOK_AFTER_S if streamed else SLOTS_EVERY_S
    most_s = MAX_STOP_S if streamed else max(MAX_STOP_S, server.adapter.RUNS_ON_S)
    bound_s = max(LEAST_STOP_S, STOP_MARGIN * server.stream_stop_s) if streamed else most_s
    held: BusySlots | None = None
    with suppress(TimeoutError):
        async with asyncio.timeout(most_s):
            while True:
                asked_s = clock()
                busy = await server.adapter.busy_slots(server.ask)
                if busy is None:
                    return ""
                held = busy if held is None else held & busy
                started = others_started_at()
                before = sum(begun_s - at >= STARTED_FOR_S for at in started)
                said = SHARED if len(busy) > len(started) else ""
                counted = all(asked_s - at >= STARTED_FOR_S for at in started)
                took_s = asked_s - begun_s
                if len(held) <= before or (counted and not said):
                    if streamed:
                        server.stream_stop_s = max(took_s, STOP_KEPT * server.stream_stop_s)
                    break
                if took_s >= bound_s:
                    break
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, SLOTS_EVERY_S)
    return said
