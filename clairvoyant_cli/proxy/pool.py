"""The servers behind the proxy: each a worker with its own state, slots, speeds and loaded models.

Rule 1: a worker that is down or loads its model takes no work; what waits, waits for whichever is up first.
Rule 2: what waits is refused once every worker has been away for longer than the grace, and no sooner.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from clairvoyant_cli.backends.adapter import Backend
from clairvoyant_cli.backends.asking import Ask
from clairvoyant_cli.backends.continuation import Way
from clairvoyant_cli.backends.priority import Priority
from clairvoyant_cli.protocols.request_parsing import ParsedRequest
from clairvoyant_cli.proxy.backend_watch import BackendWatch
from clairvoyant_cli.proxy.dispatcher import Dispatcher
from clairvoyant_cli.proxy.exchange import End, Exchange, OutageError
from clairvoyant_cli.proxy.outage import Outage
from clairvoyant_cli.proxy.request_stats import RequestStats, plural
from clairvoyant_cli.proxy.residents import Residents
from clairvoyant_cli.scheduler.job import Estimates, Job
from clairvoyant_cli.scheduler.queue import Scheduler
from predictor.record import Prediction
from profiles.records import Continuation, Profile

PATIENCE_S = 5.0
"""How long a backend gets to notice that its client left before the connection is cut hard."""


class ProvenWay(NamedTuple):
    """A way to go on with an answer that was cut, and what proves that it is exact."""

    way: Way
    proof: Continuation


@dataclass(slots=True, eq=False)
class Worker:
    """One server that does the work. `ask` asks it about itself, `key` is its own API key; `residents` is
    None if it swaps no models; `profiles` are what was measured of it, the one to use first.
    """

    backend: Backend
    watch: BackendWatch
    outage: Outage
    ask: Ask
    residents: Residents | None = None
    key: bytes | None = None
    profiles: Sequence[Profile] = ()

    def __repr__(self) -> str:
        return f"<Worker {self.backend!r}>"

    @property
    def name(self) -> str:
        """Its name in the configuration, or its kind."""
        return self.backend.name

    @property
    def waited_for(self) -> bool:
        """Whether requests are kept for it although it is away."""
        return self.backend.seen and not self.outage.over

    @property
    def proofs(self) -> list[str]:
        """What was measured of going on with answers, a line a model, of those where it is exact."""
        newest = {each.served.model: each for each in reversed(self.profiles)}
        found = ((model, profile.continuation) for model, profile in newest.items())
        return [
            f"{model}, {proof.exact} of {proof.trials} texts equal, {proof.resume_s * 1000:.0f} ms to resume"
            for model, proof in found
            if proof is not None
        ]

    def continuation_of(self, model: str) -> ProvenWay | None:
        """Return how it goes on with an answer of a model that was cut; None if nothing proves that it does.

        What was proved of another version of the server, or of another model of that name, proves nothing.
        """
        backend = self.backend
        for profile in self.profiles:
            served = profile.served
            if not backend.adapter.ANSWERS_ANY_MODEL and _untagged(served.model) != _untagged(model):
                continue
            digests = {each.digest for each in backend.models if _untagged(each.name) == _untagged(model)}
            changed = served.digest and digests - {served.digest, ""}
            if changed or served.version != backend.version:
                return None
            proof = profile.continuation
            ways = {way.name: way for way in backend.adapter.CONTINUES}
            return None if proof is None or proof.way not in ways else ProvenWay(ways[proof.way], proof)
        return None

    def service_s(self, prompt_tokens: float, tokens: float) -> float:
        """Return how long a prompt and an answer of so many tokens take it, in seconds."""
        return self.backend.speeds.seconds(prompt_tokens, tokens)


class BackendPool:
    """One or more workers, and the queue that feeds them."""

    def __init__(self, dispatcher: Dispatcher, request_stats: RequestStats) -> None:
        self._workers: dict[str, Worker] = {}
        self._dispatcher = dispatcher
        self._stats = request_stats
        dispatcher.service_s = self.service_s

    def __repr__(self) -> str:
        return f"<BackendPool {', '.join(map(repr, self))}>"

    def __getitem__(self, name: str) -> Worker:
        return self._workers[name]

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def __len__(self) -> int:
        return len(self._workers)

    def add(self, worker: Worker) -> None:
        """Let a worker take work."""
        self._workers[worker.name] = worker
        self.queue.set_slots(worker.name, worker.backend.room)
        self._stats.shadow.resize(self.slots)

    @property
    def queue(self) -> Scheduler:
        """What waits for them."""
        return self._dispatcher.scheduler

    @property
    def first(self) -> Worker:
        """The one that gets what does not wait in the queue."""
        return next(iter(self))

    def worker_of(self, exchange: Exchange) -> Worker:
        """Return the worker that an exchange was granted a slot of; the first if it has none."""
        return self.first if exchange.attempt is None else self._workers[exchange.attempt.worker]

    @property
    def described(self) -> str:
        """Name them all, each with its URL."""
        return " and ".join(f"{worker.name} {worker.backend.upstream.url}" for worker in self)

    @property
    def stamped(self) -> list[str]:
        """Those whose requests are stamped with a priority instead of waiting for a slot."""
        return [worker.name for worker in self if worker.backend.stamps is not None]

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
        there = [worker for worker in self if worker.backend.seen]
        return bool(there) and all(worker.outage.over for worker in there)

    @property
    def waited_for(self) -> bool:
        """Whether requests are kept until one of them can be reached."""
        return any(worker.waited_for for worker in self)

    @property
    def may_be_tried(self) -> bool:
        """Whether one of them may serve by now although it says that it does not, and nobody is asking it."""
        loading = any(worker.backend.state == "loading" for worker in self)
        return loading and not self._dispatcher.live

    @property
    def remote_models(self) -> frozenset[str]:
        """Models that are run elsewhere: their requests need no slot."""
        return self.first.backend.remote_models

    def service_s(self, job: Job, worker: str) -> float:
        """Return how long a job is predicted to take on a worker, in seconds."""
        return self._workers[worker].service_s(job.prompt_tokens, job.tokens)

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
            cost_q90_s=self.fastest_s(parsed.prompt_tokens, tokens_q90),
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
        for each in self:
            self.queue.set_slots(each.name, each.backend.room if self._takes_work(each) else 0)
        worker.outage.note(away=backend.away)
        self._stats.shadow.resize(self.slots)
        news = f"{worker.name} is {backend.state}, {plural(backend.room, 'slot')} {backend.detail}"
        self._stats.event(logging.INFO, news.rstrip())
        if worker.residents is not None:
            here = (each for each in self._dispatcher.live.values() if _is_on(each, worker))
            worker.residents.listed((model.name for model in backend.models), here)
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
        """Take note of how fast an answer was; of one that was not whole nothing is known."""
        totals = exchange.totals
        if totals.complete:
            speeds = self.worker_of(exchange).backend.speeds
            speeds.learn(totals.tokens, totals.decode_s, totals.prefilled_tokens, totals.prefill_s)

    def outlasted(self, worker: Worker) -> None:
        """It has been away for longer than requests are kept waiting for it alone."""
        suspended = [
            each
            for each in self._dispatcher.live.values()
            if each.is_suspended and each.cuts[-1].worker == worker.name
        ]
        for exchange in suspended:  # nobody else has the beginning of its answer
            self._dispatcher.send_away(exchange, OutageError())
        refused = len(suspended)
        if self.given_up:
            refused += self._dispatcher.send_away_waiting(OutageError)
        news = f"{worker.name} is still {worker.backend.state}: {plural(refused, 'request')} refused"
        self._stats.event(logging.WARNING, news)

    def try_one(self, worker: Worker) -> None:
        """Send one waiting request to a worker that says it is loading, to see whether it serves by now."""
        self.queue.set_slots(worker.name, 1)
        self._dispatcher.pump()
        self.queue.set_slots(worker.name, 0)

    async def released(self, exchange: Exchange) -> None:
        """Return when the backend has stopped working for an exchange whose client has left."""
        attempt = exchange.attempt
        if attempt is None:
            return
        if attempt.connection is not None:
            await attempt.connection.hang_up(PATIENCE_S)
        await self._workers[attempt.worker].watch.slots_settled(
            lambda: [
                each.granted_s for each in self._dispatcher.attempts_on(attempt.worker) if each is not attempt
            ],
            streamed=attempt.usage is not None and attempt.usage.streaming,
        )

    async def close(self) -> None:
        """Close the connections to all."""
        await asyncio.gather(*(worker.backend.upstream.close() for worker in self))


def _untagged(model: str) -> str:
    return model.removesuffix(":latest")


def _is_on(exchange: Exchange, worker: Worker) -> bool:
    return exchange.attempt is not None and exchange.attempt.worker == worker.name
