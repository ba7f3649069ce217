"""Makes a job for the queue of a parsed request: its predicted length, cost, priority and urgency."""

import asyncio
import logging
import time
from dataclasses import dataclass, field, replace

from clairvoyant_cli.http.request import Request
from clairvoyant_cli.protocols.answer_text import AnswerText
from clairvoyant_cli.protocols.chores import CHORE_HEADER, chore_of
from clairvoyant_cli.protocols.client_programs import program_of
from clairvoyant_cli.protocols.conversation import claims_of
from clairvoyant_cli.protocols.printable import decoded
from clairvoyant_cli.protocols.request_parsing import SMALL_BYTES, ParsedRequest
from clairvoyant_cli.protocols.routes import Route
from clairvoyant_cli.proxy.access.keys import Access
from clairvoyant_cli.proxy.access.urgency_levels import UrgencyLevels
from clairvoyant_cli.proxy.journal import Journal
from clairvoyant_cli.proxy.queue.exchange import Asked, Exchange
from clairvoyant_cli.proxy.requests.resubmission import Resubmissions
from clairvoyant_cli.proxy.servers.estimates import ServiceTimes
from clairvoyant_cli.proxy.servers.matching import names
from clairvoyant_cli.proxy.servers.server import Server
from clairvoyant_cli.scheduler.job import Job
from predictor.record import UNKNOWN, Prediction, Predictor, Task

log = logging.getLogger("clairvoyant")

SHOWN_CHARS = 4000  # characters of a prompt that are shown, where prompts are shown at all
ALONG_S = 0.25
"""How long a title request waits for the question it comes with: Open WebUI sends it up to 0.15 s earlier,
and a request whose prompt is being read is not cut before its first token."""

EMBEDDING = Prediction(1.0, 0.0, 0.0, 0.0, 1.0, 1.0, "embedding")
"""Embeddings decode nothing: they count as the shortest jobs."""


@dataclass(frozen=True, slots=True)
class ReadBody:
    """A request that needs a slot; its body tells for how long. It counts towards the share of `client`;
    `shown_name` is what views and records call the client, "" for the same.
    """

    route: Route
    client: str
    shown_name: str = ""


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
        prediction = self._predict(parsed)
        predicted_in_s = self.journal.clock() - now
        levels = 0 if chore is None or chore.waited_for else self.access.stands_back(asks.client)
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
            program=program_of(request.head.get(b"user-agent")),
            priority=self.access.priority_of(request, asks.client, parsed.priority),
            urgency=urgency,
            urgency_by=urgency_by,
            able=names(pool, able),
            background_levels=levels,
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

    def _predict(self, parsed: ParsedRequest) -> Prediction:
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
