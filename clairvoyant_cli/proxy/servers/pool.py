"""The servers behind the proxy: each a worker with its own state, slots, speeds and loaded models.

Rule 1: a worker that is down or loads its model takes no work; what waits, waits for whichever is up first.
Rule 2: what waits is refused once every worker that can serve it has been away for longer than the grace, and
no sooner.
Rule 3: a worker that drains, leaves, or is in trouble is left what no other can serve.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from clairvoyant_cli.backends.adapter import Backend
from clairvoyant_cli.backends.ask_function import Ask
from clairvoyant_cli.backends.continuation import Way
from clairvoyant_cli.backends.priority import Priority
from clairvoyant_cli.protocols.can_continue import Continuable
from clairvoyant_cli.protocols.model_settings import ModelSettings, changed_parts
from clairvoyant_cli.protocols.printable import plural
from clairvoyant_cli.protocols.request_parsing import ParsedRequest
from clairvoyant_cli.protocols.routes import Family
from clairvoyant_cli.proxy.journal import Journal
from clairvoyant_cli.proxy.queue.dispatcher import Dispatcher
from clairvoyant_cli.proxy.queue.exchange import End, Exchange, OutageError, Outcome
from clairvoyant_cli.proxy.servers.cache_contents import Contexts
from clairvoyant_cli.proxy.servers.health import Health
from clairvoyant_cli.proxy.servers.loaded_models import Residents
from clairvoyant_cli.proxy.servers.outage import Outage
from clairvoyant_cli.proxy.servers.server_watch import BackendWatch
from clairvoyant_cli.scheduler.job import Estimates, Job
from clairvoyant_cli.scheduler.quantile_coverage import Coverage
from clairvoyant_cli.scheduler.queue import Scheduler
from predictor.record import Prediction
from profiles.records import Continuation, Profile

PATIENCE_S = 5.0
"""How long a backend gets to notice that its client left before the connection is cut hard."""

MAX_ASKED_BEFORE = 10_000
AT_ONCE_S = 0.5
"""Limit on looking at a server before a cut: if it takes longer, what the last look told holds."""

CHANGED = "its server is not what was measured"


class ProvenWay(NamedTuple):
    """A way to go on with an answer that was cut, what proves that it is exact, and the settings that this
    was proved with, and that hold.
    """

    way: Way
    proof: Continuation
    settings: ModelSettings


@dataclass(slots=True, eq=False)
class Worker:
    """One server that does the work. `ask` asks it about itself, `key` is its own API key; `residents` is
    None if it swaps no models; `profiles` are what was measured of it, the one to use first. `weight` is its
    share among those that could do as well. One that is `draining` gets nothing new; one that is `leaving`
    goes when it has nothing left. `contexts` are what it is believed to keep of answers that left its slots;
    `settings` are what decides its models' answers, by model; `news` is what was last said of its state,
    `unproved` of models that are not what was measured, and `remark` of what was seen of its slots when an
    answer left one; `remarked` has what was logged of that.
    """

    backend: Backend
    watch: BackendWatch
    outage: Outage
    ask: Ask
    residents: Residents | None = None
    key: bytes | None = None
    profiles: Sequence[Profile] = ()
    weight: float = 1.0
    draining: bool = False
    leaving: bool = False
    health: Health = field(default_factory=lambda: Health(lambda: None))
    contexts: Contexts = field(default_factory=Contexts)
    settings: dict[str, ModelSettings] = field(default_factory=dict)
    news: str = ""
    unproved: str = ""
    remark: str = ""
    remarked: set[str] = field(default_factory=set)
    _asked_before: dict[int, None] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Worker {self.backend!r}>"

    @property
    def name(self) -> str:
        """Its name in the configuration, or its kind."""
        return self.backend.name

    @property
    def standing(self) -> str:
        """Why it gets less than its slots would take, in a word; "" if it does not."""
        if self.leaving or self.draining:
            return "leaving" if self.leaving else "draining"
        if self.health.rests:
            return "resting"
        return "warming" if self.health.slots < self.backend.room else ""

    @property
    def waited_for(self) -> bool:
        """Whether requests are kept for it although it is away."""
        return self.backend.seen and not self.outage.over

    @property
    def proofs(self) -> dict[str, Continuation]:
        """What proves that answers are continued exactly, by model: what the first profile of each says."""
        first = {each.served.model: each for each in reversed(self.profiles)}
        return {model: found for model, each in first.items() if (found := each.continuation) is not None}

    def continuation_of(self, model: str) -> ProvenWay | None:
        """Return how it goes on with an answer of a model that was cut; None if nothing proves that it does:
        what was proved of another build, model, template or settings proves nothing.
        """
        settings = self.settings_of(model)
        ways = {way.name: way for way in self.backend.adapter.CONTINUES}
        for measured, proof in self.proofs.items():
            if settings is None or proof.way not in ways or self._key(measured) != self._key(model):
                continue
            if proof.fingerprint and not changed_parts(proof.fingerprint, settings.fingerprint):
                return ProvenWay(ways[proof.way], proof, settings)
        return None

    def continues_as(self, other: "Worker", model: str) -> bool:
        """Whether it is proved to go on, with the same model and settings, with what another worker began."""
        ours, theirs = self.continuation_of(model), other.continuation_of(model)
        return ours is not None and theirs is not None and ours.proof.fingerprint == theirs.proof.fingerprint

    def settings_of(self, model: str) -> ModelSettings | None:
        """Return what decides a model's answers, as far as it was told."""
        return self.settings.get(self._key(model))

    async def see_settings(self) -> None:
        """Learn what decides the answers of the models of which something is proved."""
        for model in {self._key(model) for model in self.proofs}:
            found = await self.backend.adapter.settings(self.ask, model, self.backend.version)
            if found is not None:
                self.settings[model] = found

    async def bounded(self, model: str, asked: Continuable, pieces: Sequence[str]) -> Continuable | str:
        """Return a request with how the server bounds its answer, of which these pieces have come; or why it
        would not go on the same if it were cut now.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(AT_ONCE_S):
                await self.see_settings()
        found = self.continuation_of(model)
        if found is None:
            return CHANGED
        return await self.backend.adapter.bounded(self.ask, asked, pieces, found.settings)

    def is_asked_again(self, asked: Continuable) -> bool:
        """Whether a question was asked here before, as far as this daemon knows; it has been from now on."""
        body = asked.body
        question = hash(msgspec.json.encode([body.get("model"), body.get("messages") or body.get("prompt")]))
        again = question in self._asked_before
        self._asked_before[question] = None
        if len(self._asked_before) > MAX_ASKED_BEFORE:
            del self._asked_before[next(iter(self._asked_before))]
        return again

    def _key(self, model: str) -> str:
        return "" if self.backend.adapter.ANSWERS_ANY_MODEL else _untagged(model)

    def service_s(self, prompt_tokens: float, tokens: float) -> float:
        """Return how long a prompt and an answer of so many tokens take it, in seconds."""
        return self.backend.speeds.seconds(prompt_tokens, tokens)

    def read_s(self, tokens: float) -> float:
        """Return how long it takes it to read so many tokens, in seconds."""
        return self.service_s(tokens, 0.0)


class BackendPool:
    """One or more workers, and the queue that feeds them."""

    def __init__(self, dispatcher: Dispatcher, journal: Journal) -> None:
        self._workers: dict[str, Worker] = {}
        self._dispatcher = dispatcher
        self._journal = journal
        self.slots_changed: Callable[[int], None] = lambda slots: None
        self.left: list[Callable[[Worker], None]] = []
        self.coverage = Coverage()
        dispatcher.changed.append(self._let_go)

    def __repr__(self) -> str:
        return f"<BackendPool {', '.join(map(repr, self))}>"

    def __getitem__(self, name: str) -> Worker:
        return self._workers[name]

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def get(self, name: str) -> Worker | None:
        """Return a worker by its name; None if it has left."""
        return self._workers.get(name)

    def __len__(self) -> int:
        return len(self._workers)

    def add(self, worker: Worker) -> None:
        """Let a worker take work."""
        self._workers[worker.name] = worker
        worker.health.changed = self.share_out
        self._note_whether_it_swaps(worker)
        self.queue.set_slots(worker.name, worker.backend.room, weight=worker.weight)
        self.queue.set_speed(worker.name, worker.backend.speeds)
        self.slots_changed(self.slots)

    @property
    def queue(self) -> Scheduler:
        """What waits for them."""
        return self._dispatcher.scheduler

    @property
    def first(self) -> Worker:
        """The one that gets what does not wait in the queue."""
        return next(iter(self))

    def worker_of(self, exchange: Exchange) -> Worker:
        """Return the worker that an exchange was granted a slot of; the first if it has none, or is gone."""
        return (
            self.first if exchange.attempt is None else self._workers.get(exchange.attempt.worker, self.first)
        )

    def model_of(self, exchange: Exchange) -> str:
        """Return the model that a request names; where it names none, the only one its worker has."""
        return exchange.asked.parsed.model or only_model_of(self.worker_of(exchange))

    @property
    def described(self) -> str:
        """Name them all, each with its URL."""
        return " and ".join(f"{worker.name} {worker.backend.upstream.url}" for worker in self)

    @property
    def stamped(self) -> list[str]:
        """Those whose requests are stamped with a priority instead of waiting for a slot."""
        return [worker.name for worker in self if worker.backend.stamps is not None]

    @property
    def at_once(self) -> int:
        """Requests that those which take work are known to answer at once."""
        room = self.queue.slots
        return sum(min(room.get(worker.name, 0), worker.backend.at_once) for worker in self)

    @property
    def slots(self) -> int:
        """Requests that all of them answer at once."""
        return sum(worker.backend.room for worker in self)

    @property
    def stamps(self) -> list[Priority | None]:
        """What the requests of each are stamped with."""
        return [worker.backend.stamps for worker in self]

    @property
    def given_up(self) -> bool:
        """Whether all that ever were there have been away for longer than requests are kept waiting."""
        return given_up(self)

    @property
    def may_be_tried(self) -> bool:
        """Whether one of them may serve by now although it says that it does not, and nobody is asking it."""
        loading = any(worker.backend.state == "loading" for worker in self)
        return loading and not self._dispatcher.live

    @property
    def remote_models(self) -> frozenset[str]:
        """Models that are run elsewhere: their requests need no slot."""
        return frozenset().union(*(worker.backend.remote_models for worker in self))

    # -- who can serve what ----------------------------------------------------------------------------

    def able(self, family: Family, model: str) -> list[Worker]:
        """Return the workers that can serve a route of this family for a model.

        Those that list the model; where none does, those that may have it all the same; else all that speak
        the dialect, or all there are: then a server's own refusal is the answer.
        """
        every = list(self)
        speak = [worker for worker in every if family in worker.backend.adapter.SPEAKS] or every
        if not model or len(every) == 1:
            return speak
        listing = [worker for worker in speak if worker.backend.lists(model)]
        return listing or [worker for worker in speak if worker.backend.may_have(model)] or speak

    def speaker(self, family: Family) -> Worker:
        """Return a worker that speaks a dialect, the first if none does."""
        return next((worker for worker in self if family in worker.backend.adapter.SPEAKS), self.first)

    def able_names(self, family: Family, model: str) -> frozenset[str]:
        """Return the names of those that can serve a request, none if all can."""
        return self._names(self.able(family, model))

    def _names(self, workers: list[Worker]) -> frozenset[str]:
        return frozenset() if len(workers) == len(self) else frozenset(worker.name for worker in workers)

    def serving(self, exchange: Exchange) -> list[Worker]:
        """Return the workers that can serve an exchange: of one that has begun, the one that has its
        beginning, and while that is away those that are proved to go on with the same model.
        """
        able = self.able(exchange.asked.route.family, exchange.asked.parsed.model)
        if not exchange.has_begun:
            return able
        origin = self._workers.get((exchange.attempt or exchange.parts[-1]).worker)
        if origin is None:
            return []
        if not origin.backend.away:
            return [origin]
        there = [worker for worker in able if not worker.backend.away]
        return [each for each in there if each.continues_as(origin, exchange.job.model)] or [origin]

    def able_for(self, exchange: Exchange) -> frozenset[str]:
        """Return the names of those that can serve an exchange, none if all can."""
        return self._names(self.serving(exchange))

    def has_given_up(self, exchange: Exchange) -> bool:
        """Whether all that could serve an exchange have been away for longer than it is kept waiting."""
        return given_up(self.serving(exchange))

    def waits_for(self, exchange: Exchange) -> bool:
        """Whether an exchange is kept until a worker that can serve it can be reached."""
        return any(worker.waited_for for worker in self.serving(exchange))

    # -- how long it takes -----------------------------------------------------------------------------

    def fastest_s(self, prompt_tokens: float, tokens: float) -> float:
        """Return how long a request takes the fastest worker that is there, in seconds."""
        there = [worker for worker in self if not worker.backend.away] or list(self)
        return min(worker.service_s(prompt_tokens, tokens) for worker in there)

    def estimates(self, parsed: ParsedRequest, prediction: Prediction) -> Estimates:
        """Return what the queue goes by, of a request whose answer was predicted."""
        tokens = prediction.expected_tokens * parsed.choices
        tokens_q90 = prediction.q90_tokens * parsed.choices
        return Estimates(
            p_long=prediction.p_long,
            cost_s=self.fastest_s(parsed.prompt_tokens, tokens),
            cost_high_s=self.coverage.corrected(
                prediction.length_class.value, self.fastest_s(parsed.prompt_tokens, tokens_q90)
            ),
            tokens=tokens,
            tokens_q90=tokens_q90,
        )

    def affinity_of(self, parsed: ParsedRequest) -> str:
        """Return what a request needs loaded, where it matters to any worker how that is called."""
        residents = (worker.residents for worker in self if worker.residents is not None)
        swaps = next(residents, None)
        return parsed.affinity if swaps is None else swaps.affinity_of(parsed)

    # -- what happens to a worker ----------------------------------------------------------------------

    def changed(self, worker: Worker) -> None:
        """Its state, slots or models have changed: the queue follows."""
        backend = worker.backend
        if not backend.away and (worker.outage.lasts or worker.outage.over):
            worker.health.came_back()
        worker.outage.note(away=backend.away)
        if backend.away:
            worker.contexts.clear()
        self._see_who_is_able()
        self._open_slots()
        self.slots_changed(self.slots)
        why = f" ({backend.detail})" if backend.detail else ""
        news = f"{worker.name} is {backend.state}{why}, {plural(backend.room, 'slot')}"
        if news != worker.news:  # models come and go far more often, and have a panel of their own
            worker.news = news
            self._journal.event(logging.INFO, news)
        if worker.residents is None and backend.adapter.SWAPS_MODELS:  # it has just been recognised
            worker.residents = Residents(self.queue, worker.name)
            self._note_whether_it_swaps(worker)
        if worker.residents is not None:
            here = (each for each in self._dispatcher.live.values() if _is_on(each, worker))
            worker.residents.listed((model.name for model in backend.models), here)
        self._dispatcher.moved()

    def _note_whether_it_swaps(self, worker: Worker) -> None:
        fixed = self.queue.residency.fixed
        (fixed.discard if worker.backend.adapter.SWAPS_MODELS else fixed.add)(worker.name)

    def _see_who_is_able(self) -> None:
        live = self._dispatcher.live

        def able(job: Job) -> frozenset[str]:
            return self.able_for(live[job.id])

        if live:
            self.queue.set_able(able, self._journal.clock())

    def _open_slots(self) -> None:
        """Have each worker given what it may take. One that is alone is trusted whatever it did."""
        takes_work = {worker.name: self._takes_work(worker) for worker in self}
        spared = sum(takes_work.values()) > 1
        for worker in self:
            slots = worker.backend.room if takes_work[worker.name] else 0
            apart = worker.draining
            if spared:
                apart = apart or worker.health.rests
                slots = min(slots, worker.health.slots)
            self.queue.set_slots(
                worker.name,
                slots,
                apart=apart,
                weight=worker.weight,
                at_once=worker.backend.at_once,
            )

    async def see_settings(self, worker: Worker) -> None:
        """Learn what decides a worker's answers, and say so once where that is not what was measured."""
        await worker.see_settings()
        unproved = "; ".join(_unproved(worker))
        if unproved and unproved != worker.unproved:
            news = f"{worker.name}: {unproved}, so no answer is cut; prove it again: clairvoyant calibrate"
            self._journal.event(logging.WARNING, news)
        worker.unproved = unproved

    def share_out(self) -> None:
        """What a worker may take has changed: share out what waits."""
        self._open_slots()
        self._dispatcher.moved()

    def _takes_work(self, worker: Worker) -> bool:
        """Whether it is sent requests: not while it is away; nor one that was never there, while there is or
        was another. Where none ever was, trying tells.
        """
        backend = worker.backend
        if backend.away:
            return False
        return backend.state != "down" or not any(each.backend.seen for each in self)

    def ended(self, exchange: Exchange, end: End) -> None:
        """Take note of how well and how fast a worker answered; of what was not whole no speed is known."""
        totals = exchange.totals
        if exchange.attempt is not None:
            health = self.worker_of(exchange).health
            if end.outcome is Outcome.UPSTREAM_ERROR:
                health.failed()
            elif end.outcome is Outcome.COMPLETED:
                health.answered()
        if totals.complete:
            self._cover(exchange, end)
            speeds = self.worker_of(exchange).backend.speeds
            decode_s = totals.decode_s or _streamed_s(exchange, end)
            speeds.learn(totals.tokens, decode_s, totals.prefilled_tokens, totals.prefill_s)

    def _cover(self, exchange: Exchange, end: End) -> None:
        """Take note of whether an answer took longer than the upper quantile of what was predicted of it."""
        attempt, job = exchange.attempt, exchange.job
        if attempt is None or not job.cost_s or end.outcome is not Outcome.COMPLETED:
            return
        here = self.worker_of(exchange).service_s(job.prompt_tokens, job.tokens) / job.cost_s
        regime = exchange.asked.prediction.length_class.value
        self.coverage.learn(regime, job.cost_high_s * here, exchange.service_s(end.at_s))

    def outlasted(self, worker: Worker) -> None:
        """It has been away for longer than requests are kept waiting for it alone."""
        lost = [
            each
            for each in self._dispatcher.live.values()
            if each.attempt is None and self.has_given_up(each)
        ]
        for exchange in lost:
            self._dispatcher.send_away(exchange, OutageError())
        refused = len(lost)
        news = f"{worker.name} is still {worker.backend.state}: {plural(refused, 'request')} refused"
        self._journal.event(logging.WARNING, news)

    def try_one(self, worker: Worker) -> None:
        """Send one waiting request to a worker that says it is loading, to see whether it serves by now."""
        self.queue.set_slots(worker.name, 1, apart=worker.draining)
        self._dispatcher.pump()
        self._open_slots()

    async def released(self, exchange: Exchange) -> None:
        """Return when the backend has stopped working for an exchange whose client has left."""
        attempt = exchange.attempt
        if attempt is None:
            return
        if attempt.connection is not None:
            await attempt.connection.hang_up(PATIENCE_S)
        worker, live = self._workers[attempt.worker], self._dispatcher.live
        worker.remark = await worker.watch.slots_settled(
            lambda: [
                each.attempt.granted_s
                for each in live.values()
                if each is not exchange and each.attempt is not None and each.attempt.worker == worker.name
                for _ in range(each.asked.parsed.choices)  # llama.cpp gives each a slot
            ],
            streamed=attempt.usage is not None and attempt.usage.streaming,
        )
        if worker.remark and worker.remark not in worker.remarked:
            worker.remarked.add(worker.remark)
            self._journal.event(logging.WARNING, f"{worker.name}: {worker.remark}")

    # -- what an operator does -------------------------------------------------------------------------

    def drain(self, name: str) -> None:
        """Give a worker nothing new but what no other can serve; KeyError if there is none of that name."""
        self._workers[name].draining = True
        self.share_out()

    def bring_up(self, name: str) -> None:
        """Give a worker work again, whatever it did before; KeyError if there is none of that name."""
        worker = self._workers[name]
        worker.draining = worker.leaving = False
        worker.health.forget()
        worker.watch.look_now()
        self.share_out()

    def remove(self, name: str) -> None:
        """Let a worker leave as soon as it has nothing left; KeyError if there is none of that name,
        ValueError if nobody else stays.
        """
        worker = self._workers[name]
        if not any(each is not worker and not each.leaving for each in self):
            raise ValueError(name)
        worker.draining = worker.leaving = True
        self.share_out()

    def _let_go(self) -> None:
        """Let those leave that have nothing left. One that is away gives up what it was waited for with."""
        for worker in [each for each in self if each.leaving]:
            if self._dispatcher.attempts_on(worker.name):
                continue
            waiting = [each for each in self._dispatcher.live.values() if self.serving(each) == [worker]]
            if worker.backend.away or worker.backend.state == "down":
                for exchange in [each for each in waiting if each.is_suspended]:
                    self._dispatcher.send_away(exchange, OutageError())
            elif waiting:
                continue
            self._forget(worker)

    def _forget(self, worker: Worker) -> None:
        del self._workers[worker.name]
        self.queue.remove_worker(worker.name)
        worker.outage.note(away=False)
        worker.health.forget()
        self._see_who_is_able()
        self._open_slots()
        self.slots_changed(self.slots)
        self._journal.event(logging.INFO, f"{worker.name} is removed")
        for listener in self.left:
            listener(worker)
        self._dispatcher.moved()

    async def close(self) -> None:
        """Close the connections to all."""
        await asyncio.gather(*(worker.backend.upstream.close() for worker in self))


def given_up(workers: Iterable[Worker]) -> bool:
    """Whether all of these that ever were there have been away for longer than requests are kept waiting."""
    there = [worker for worker in workers if worker.backend.seen]
    return bool(there) and all(worker.outage.over for worker in there)


def only_model_of(worker: Worker) -> str:
    """Return the model that a worker has, where that is one alone; "" otherwise."""
    models = worker.backend.models
    return models[0].name if len(models) == 1 else ""


def _unproved(worker: Worker) -> Iterator[str]:
    """Say of each model of which something was proved, and that is not what was measured, what is another."""
    for model, proof in worker.proofs.items():
        settings = worker.settings_of(model)
        if settings is None or worker.continuation_of(model) is not None:
            continue
        if proof.fingerprint:
            other = " and ".join(changed_parts(proof.fingerprint, settings.fingerprint))
            yield f"{model} is not what was measured (another {other})"
        else:
            yield f"of {model} it is not known with which settings it was measured"


def _untagged(model: str) -> str:
    return model.removesuffix(":latest")


def _streamed_s(exchange: Exchange, end: End) -> float | None:
    """Return how long an answer streamed that came in one part, as its server does not tell."""
    attempt = exchange.attempt
    if attempt is None or attempt.first_byte_s is None or not exchange.asked.parsed.stream or exchange.parts:
        return None
    return end.at_s - attempt.first_byte_s


def _is_on(exchange: Exchange, worker: Worker) -> bool:
    return exchange.attempt is not None and exchange.attempt.worker == worker.name
