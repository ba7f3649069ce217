"""The views of a request, each made here: its rows in the published state while it waits, runs and has ended,
its record once it has ended, and the row of the history that follows from that.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from math import ceil
from operator import attrgetter
from typing import Any

from clairvoyant_cli.protocols.routes import Work
from clairvoyant_cli.proxy.journal import Journal
from clairvoyant_cli.proxy.queue.ended import NOWHERE, Ended, Outcome, SlotUse
from clairvoyant_cli.proxy.queue.exchange import (
    UNREAD,
    Attempt,
    AttemptEnd,
    Exchange,
    Phase,
    Reasons,
    RequestEnd,
)
from clairvoyant_cli.proxy.servers.pool import ServerPool
from clairvoyant_cli.scheduler.explain import Standing
from clairvoyant_cli.scheduler.job import Move
from clairvoyant_cli.scheduler.urgency import level_of
from clairvoyant_cli.state.snapshot import (
    AnswerPart,
    FinishedRequest,
    MoveRecord,
    PredictionState,
    QueuedRequest,
    RunningRequest,
)
from predictor.record import LengthClass, Prediction
from profiles.records import Finished

WHOLE_PROMPTS, FIRST_CHARS = 50, 200
"""The first rows that have their prompt as far as it is shown, and the characters that the others have: a
thousand whole prompts would be megabytes, several times a second.
"""

Range = tuple[float | None, float | None, float | None]
"""When something is expected: four of five times after the first and before the last."""


def _read(names: list[str]) -> Callable[[object], dict[str, Any]]:
    """Return what reads these attributes of an object, by name."""
    values = attrgetter(*names)
    return lambda of: dict(zip(names, values(of), strict=True))


JOB_OF = _read("id program session claimed urgency urgency_by interactive arrival_s".split())
PARSED_OF = _read("model stream choices amount amount_kind".split())
"""What a record has of its job and of its parsed request, under the same names."""

IN_STATE = _read([each.name for each in fields(FinishedRequest) if each.name in Ended.__struct_fields__])
IN_HISTORY = _read([each.name for each in fields(Finished) if each.name in Ended.__struct_fields__])
"""What the published state and the history have of a record, under the same names."""

IN_BOTH = _read([each.name for each in fields(FinishedRequest) if each.name in Finished.__dataclass_fields__])


@dataclass(slots=True)
class RequestViews:
    """Makes the views of requests that are here, and the records of those that have ended."""

    pool: ServerPool
    journal: Journal
    # Of a thousand waiting requests, making this again would be half of a state's time.
    _kept: dict[str, tuple[tuple[object, ...], dict[str, Any]]] = field(default_factory=dict)

    def queued(
        self, exchange: Exchange, standing: Standing, now: float, *, why: str, refused_in_s: float | None
    ) -> QueuedRequest:
        job, prompt, promoted = standing.job, exchange.asked.prompt, standing.job.promoted
        low_s, eta_s, high_s = standing.start or (None, None, None)
        return QueuedRequest(
            **self._kept_of(exchange),
            model=self.pool.model_of(exchange),
            rank=standing.rank,
            age_s=now - job.arrival_s,
            key=job.key,
            eta_s=eta_s,
            eta_low_s=low_s,
            eta_high_s=high_s,
            ahead=standing.ahead,
            refused_in_s=refused_in_s,
            tau_s=standing.tau_s,
            held=job.held,
            promoted=promoted,
            priority=job.priority if promoted else int(job.rank),
            prompt_tokens=job.prompt_tokens,
            prompt=prompt and prompt[: None if standing.rank <= WHOLE_PROMPTS else FIRST_CHARS],
            answer=exchange.answer.read() if exchange.answer is not None and exchange.has_begun else None,
            cause=standing.cause.value,
            tone=standing.cause.tone,
            why=why,
            rank_fcfs=standing.rank_fcfs,
            eta_fcfs_s=standing.start_fcfs_s,
            expected_s=standing.left_s,
        )

    def running(self, exchange: Exchange, ends: Range, now: float, *, shows_answer: bool) -> RunningRequest:
        attempt = exchange.attempt
        assert attempt is not None  # noqa: S101 - it runs
        tokens, first_byte_s = attempt.tokens, attempt.first_byte_s  # of the part that runs
        decoding_s = 0.0 if first_byte_s is None else now - first_byte_s
        releasing = attempt.phase is Phase.RELEASING
        low_s, eta_s, high_s = (None, None, None) if releasing else ends
        state, tokens_shown, estimated = attempt.phase.value, exchange.tokens, False
        if attempt.phase is Phase.PREFILL and not exchange.asked.parsed.stream:
            tokens_shown, estimated = self._unseen_tokens(exchange, attempt, now), True
            state = Phase.DECODING.value if tokens_shown else state
        if attempt.overdue_s is not None and not releasing:
            state = "silent"
        return RunningRequest(
            **self._common(exchange),
            model=self.pool.model_of(exchange),
            backend=self.pool.name_of(attempt.run.server_id),
            state=state,
            waited_s=exchange.waited_s(now),
            elapsed_s=now - attempt.run.started_s,
            ttft_s=exchange.ttft_s,
            tokens=tokens_shown,
            tokens_per_s=tokens / decoding_s if decoding_s > 0.2 and tokens > 1 else None,
            eta_s=eta_s,
            eta_low_s=low_s,
            eta_high_s=high_s,
            stamp=attempt.priority,
            dispatched_by=attempt.run.reason.value,
            streaming=exchange.asked.parsed.stream,
            moves=self._moves(exchange.job.moves),
            prompt=exchange.asked.prompt,
            slot=attempt.slot,
            uncut=exchange.not_preempted_because,
            estimated=estimated,
            answer=exchange.answer.read() if shows_answer and exchange.answer is not None else None,
        )

    def _common(self, exchange: Exchange) -> dict[str, Any]:
        """Return what the rows of queued and running requests have in common."""
        at, name_of, parts = self.journal.at, self.pool.name_of, []
        for part in exchange.held_slots if exchange.preempted else ():
            run = part.run
            ended_s = run.ended_s or (None if exchange.end is None else exchange.end.at_s)
            ended_at = None if ended_s is None else at(ended_s)
            where = name_of(run.server_id), part.slot
            parts.append(AnswerPart(at(run.started_s), ended_at, part.tokens, *where))
        return {
            "id": exchange.id,
            "endpoint": exchange.asked.route.name,
            "client": exchange.asked.shown_name or exchange.job.client,
            "predicted": _prediction_state(exchange.asked.prediction, exchange.reasons),
            "cuts": len(exchange.preempted),
            "parts": tuple(parts),
            "urgency": exchange.job.urgency,
            "urgency_by": exchange.job.urgency_by,
        }

    def _kept_of(self, exchange: Exchange) -> dict[str, Any]:
        """Return what the row of a waiting request has until something of it changes."""
        job, prediction, reasons = exchange.job, exchange.asked.prediction, exchange.reasons
        servers = self.pool.queue.fleet.changes  # their names may have changed
        version = prediction, reasons, len(job.moves), job.client, job.able, servers
        kept = self._kept.get(exchange.id)
        if kept is None or kept[0] != version:
            row = self._common(exchange) | {
                "streaming": exchange.asked.parsed.stream,
                "moves": self._moves(job.moves),
                "tokens": exchange.tokens,
                "backends": tuple(sorted(map(self.pool.name_of, [job.pinned] if job.pinned else job.able))),
            }
            kept = self._kept[exchange.id] = version, row
        return kept[1]

    def _moves(self, moves: Iterable[Move]) -> tuple[MoveRecord, ...]:
        """Return the steps of a request, with wall-clock times."""
        at, name_of = self.journal.at, self.pool.name_of
        return tuple(MoveRecord(at(move.at_s), move.kind.value, name_of(move.note)) for move in moves)

    def _unseen_tokens(self, exchange: Exchange, attempt: Attempt, now: float) -> int:
        """Estimate how far an answer is that is not streamed, by its server's speeds."""
        speeds = self.pool.server_of(exchange).speeds
        prefill_s = speeds.seconds(exchange.job.prompt_tokens, 0.0)
        whole_s = speeds.seconds(0.0, exchange.job.tokens)
        decoded_s = max(0.0, now - attempt.run.started_s - prefill_s)
        return int(exchange.job.tokens * decoded_s / max(whole_s, 1e-9))

    def ended(self, exchange: Exchange, end: RequestEnd) -> Ended:
        """Return the record of a request that has ended."""
        self._kept.pop(exchange.id, None)
        job, asked, parsed, totals = exchange.job, exchange.asked, exchange.asked.parsed, exchange.totals
        whole, ended_s, uses = totals.tokens if totals.complete else None, end.at_s, list[SlotUse]()
        service_s, resumed_s, counted_tokens, began_s = 0.0, 0.0, 0, None
        cuts = repeats = 0
        for attempt in exchange.attempts:
            run, usage = attempt.run, attempt.usage
            server = self.pool.by_id.get(run.server_id)
            use = SlotUse(
                server_id=run.server_id,
                backend=run.server_id if server is None else server.name,
                provider="" if server is None else server.adapter.name,
                address=None if server is None else (server.upstream.host, server.upstream.port),
                slot=attempt.slot,
                reason=run.reason.value,
                granted_s=run.started_s,
                expected_s=attempt.expected_s,
                first_byte_s=attempt.first_byte_s,
                ended_s=run.ended_s or ended_s,
                tokens=attempt.tokens,
                events=0 if usage is None else usage.events,
                dropped=attempt.dropped,
                worked=attempt.worked,
            )
            uses.append(use)
            cuts += attempt.end is AttemptEnd.PREEMPTED
            repeats += attempt.end is AttemptEnd.BROKEN
            counted_tokens += use.tokens
            if use.worked:
                service_s += use.ended_s - use.granted_s
            if use.first_byte_s is not None:
                if began_s is None:
                    began_s = use.first_byte_s
                elif use.worked:
                    resumed_s += use.first_byte_s - use.granted_s
        remark, prompt = exchange.remark, UNREAD if exchange.attempt is None else exchange.attempt.prompt
        if parsed.stabilised:
            kept = f": {prompt.cached_tokens:,} tokens kept" if prompt.cached_tokens else ""
            remark = f"{remark}; " * bool(remark) + f"{parsed.stabilised}{kept}"
        return Ended(
            **JOB_OF(job),
            **PARSED_OF(parsed),
            endpoint=asked.route.name,
            shape=asked.route.shape,
            served_model=parsed.model or self.pool.model_of(exchange),
            principal=job.client,
            client=asked.shown_name or job.client,
            prompt_hash=job.prefix.hashes[-1] if job.prefix.hashes else None,
            level=level_of(job),
            has_media=bool(parsed.conversation.media),
            traceparent=asked.traceparent,
            body=None if asked.body is None else asked.body.decode("utf-8", "replace"),
            was_queued=bool(job.moves),  # one that is refused at its arrival was not
            kept_age_s=exchange.kept_age_s,
            prediction=asked.prediction,
            predicted_class=asked.prediction.length_class.value,
            reasons=exchange.reasons or (),
            predicted_in_s=asked.predicted_in_s,
            after_thinking=exchange.after_thinking,
            thought_tokens=exchange.thought_tokens,
            job_prompt_tokens=job.prompt_tokens,
            outcome=end.outcome,
            status=end.status,
            ended_s=ended_s,
            finished_at=self.journal.at(ended_s),
            uses=tuple(uses),
            last=NOWHERE if exchange.attempt is None else uses[-1],
            waited_s=ended_s - job.arrival_s - service_s,
            sojourn_s=ended_s - job.arrival_s,
            service_s=service_s,
            resumed_s=resumed_s,
            ttft_s=None if began_s is None else began_s - job.arrival_s,
            cuts=cuts,
            repeats=repeats,
            totals=totals,
            prompt=prompt,
            tokens=whole,
            length_class="" if whole is None else LengthClass.of(whole).value,
            counted_tokens=counted_tokens,
            generated=_generated(exchange, end, whole or counted_tokens),
            counts=end.outcome is Outcome.COMPLETED and whole is not None and job.interactive,
            remark=remark,
        )


def finished_request(of: Ended) -> FinishedRequest:
    """Return the row of an ended request in the published state."""
    own = {
        "outcome": of.outcome.value,
        "model": of.served_model,
        "predicted": _prediction_state(of.prediction, of.reasons),
        "parts": ()
        if not of.cuts
        else tuple(
            AnswerPart(of.at(each.granted_s), of.at(each.ended_s), each.tokens, each.backend, each.slot)
            for each in of.uses
            if each.worked
        ),
        "real_class": of.length_class,
        "backend": of.last.backend,
        "slot": of.last.slot,
        "expected_s": of.last.expected_s,
        "dispatched_by": of.last.reason,
    }
    return FinishedRequest(**IN_STATE(of) | own)


def recorded_request(row: Finished) -> FinishedRequest:
    """Return the row of the published state for a request from before the daemon was started."""
    predicted = PredictionState(
        length_class=row.predicted_class,
        p_short=1.0 - row.p_long,
        p_medium=0.0,  # the history does not tell these two apart
        p_long=row.p_long,
        expected_tokens=row.expected_tokens,
        q90_tokens=row.q90_tokens,
        source=row.source,
    )
    own = {"id": row.request, "predicted": predicted, "real_class": row.length_class}
    return FinishedRequest(**IN_BOTH(row) | own)


def history_row(of: Ended, policy: str, backend: str) -> Finished:
    """Return the row of an ended request in the history; one that never had a slot has that `backend`."""
    totals, prediction, prompt = of.totals, of.prediction, of.prompt
    # Not after a preemption, and not where the server counts cached tokens as read.
    knows_both = prompt.read_tokens is not None and prompt.cached_tokens is not None
    own = {
        "request": of.id,
        "outcome": of.outcome.value,
        "backend": of.last.backend or backend,
        "dispatched_by": of.last.reason,
        "p_long": prediction.p_long,
        "expected_tokens": prediction.expected_tokens,
        "q90_tokens": prediction.q90_tokens,
        "source": prediction.source,
        "tokens": of.tokens if of.tokens is not None else of.generated or None,
        "prompt_tokens": totals.prompt_tokens,
        "policy": policy,
        "decode_s": totals.decode_s,
        "prefill_s": totals.prefill_s,
        "session": f"{of.id.rpartition('-')[0]}-{of.session}" if of.session else "",
        "read_tokens": prompt.read_tokens if knows_both else None,
        "cached_tokens": prompt.cached_tokens if knows_both else None,
    }
    return Finished(**IN_HISTORY(of) | own)


def _prediction_state(prediction: Prediction, reasons: Reasons) -> PredictionState:
    return PredictionState(
        length_class=prediction.length_class.value,
        p_short=prediction.p_short,
        p_medium=prediction.p_medium,
        p_long=prediction.p_long,
        expected_tokens=prediction.expected_tokens,
        q90_tokens=prediction.q90_tokens,
        source=prediction.source,
        features=reasons or (),
    )


def _generated(exchange: Exchange, end: RequestEnd, counted_tokens: int) -> int:
    """Return the tokens of an answer, or those so far if it was abandoned.

    Without totals from the backend (the answer is too long to parse, or compressed) its events are counted;
    an unstreamed answer is estimated from its time at the predicted speed.
    """
    attempt, job = exchange.attempt, exchange.job
    is_error = attempt is not None and attempt.usage is not None and not attempt.usage.is_answer
    if exchange.asked.route.work is not Work.GENERATE or is_error:
        return 0
    if attempt is None or counted_tokens or exchange.asked.parsed.stream:
        return counted_tokens
    share = (end.at_s - attempt.run.started_s) / job.cost_s if job.cost_s > 0 else 1.0
    if end.outcome in (Outcome.CLIENT_CANCELLED, Outcome.OPERATOR_CANCELLED):
        share = min(1.0, share)  # at most the predicted length: the backend may have been slow
    elif end.outcome is not Outcome.COMPLETED:
        return 0
    return ceil(job.tokens * share)
