"""What the daemon keeps over a restart: profiles to start from, learned state, and the history.

Rule 1: nothing here waits for a disk or can fail a request.
Rule 2: measured or learned values never overrule what the operator set (`--tau`, an action).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from clairvoyant_cli.backends.speeds import decode_rate
from clairvoyant_cli.proxy.access.daily_quota import midnight_before
from clairvoyant_cli.proxy.learning.learn_queue import LearnQueue
from clairvoyant_cli.proxy.learning.tau_learning import (
    Learned,
    Learner,
    ToldTau,
    learned_of,
    state_name,
)
from clairvoyant_cli.proxy.observing.gain import Gain, Waits
from clairvoyant_cli.proxy.observing.request_stats import RequestStats
from clairvoyant_cli.proxy.queue.exchange import Exchange, Outcome, RequestEnd
from clairvoyant_cli.proxy.queue.operation import Operation
from clairvoyant_cli.proxy.servers.lifecycle import ServerLifecycle
from clairvoyant_cli.proxy.servers.server import Server
from clairvoyant_cli.scheduler.arrival_order import Compared
from clairvoyant_cli.scheduler.starvation import mean_over_slots, tau_from_sojourn
from clairvoyant_cli.state.snapshot import LoadedModel
from predictor.errors import ModelError
from predictor.record import LengthClass, Predictor
from profiles.records import Comparison, Finished, Profile, place_of

SAVE_EVERY_S = 20.0
FOLLOW_EVERY_S = 2.0


class Persistence(Protocol):
    """A daemon's storage. Only `profiles`, `load` and what is `since` a time wait for a disk; they are called
    at the start or on a thread.
    """

    def profiles(self, backend: str, url: str) -> Sequence[Profile]:
        """Return the profiles of this server on this machine, the one to use first."""
        ...

    def stale(self, profile: Profile, version: str) -> str:
        """Return why a profile may be stale, "" if it is not."""
        ...

    def finished(self, record: Finished) -> None:
        """Record an ended request."""
        ...

    def compared(self, comparison: Comparison) -> None:
        """Record what an ended request gained over order of arrival."""
        ...

    def compared_since(self, at: float) -> list[tuple[float, str, float, float, float]]:
        """Return (end, class, wait, saved seconds, spared tokens) of the compared requests since a time."""
        ...

    def answered_since(self, at: float) -> Callable[[str], int]:
        """Return a function from client to its answer tokens since a time in epoch seconds."""
        ...

    def load(self, name: str) -> bytes | None:
        """Return a stored state, None if there is none."""
        ...

    def save(self, name: str, state: bytes) -> None:
        """Store a state."""
        ...

    def forgotten(self) -> bool:
        """Return whether the learned state was erased since the last call."""
        ...

    def profiles_changed(self) -> bool:
        """Return whether profiles were measured or chosen since the last call."""
        ...


@dataclass(slots=True)
class WorkerMemory:
    """The profiles of one worker, the one in use, and what was learned since."""

    worker: Server
    profiles: Sequence[Profile]
    learner: Learner
    used: Profile | None = None
    followed: tuple[LoadedModel, ...] = ()

    @property
    def state_name(self) -> str:
        """The name of its stored state."""
        return state_name(self.worker.adapter.name, self.worker.base_url)

    def take(self, profiles: Sequence[Profile]) -> None:
        """Change the profiles; what was learned under those that stay is kept."""
        self.profiles = self.worker.profiles = profiles
        self.learner = Learner(profiles, self.learner.learned())
        self.followed = ()

    def forget(self) -> None:
        """Drop what was learned; the profiles stay."""
        self.learner = Learner(self.profiles, Learned())
        self.followed = ()


class StateSaver:
    """Initialises a daemon from storage and records what it does. `took_over` listeners are called for each
    worker whose profile changed while the daemon runs.
    """

    def __init__(
        self,
        persistence: Persistence,
        lifecycle: ServerLifecycle,
        operation: Operation,
        stats: RequestStats,
        predictor: Predictor,
        learn_queue: LearnQueue,
        gain: Gain,
        *,
        freeze: bool,
    ) -> None:
        self._persistence = persistence
        self._lifecycle = lifecycle
        self._pool = lifecycle.pool
        self._operation = operation
        self._stats = stats
        self._predictor = predictor
        self._learn_queue = learn_queue
        self._gain = gain
        self._freeze = freeze
        self._forgot_s = -inf
        self._memories = {worker.name: self._memory_of(worker) for worker in self._pool}
        self.took_over: list[Callable[[Server], None]] = []
        self._told_tau = ToldTau()
        self._saved_ago_s = 0.0
        self._unlearned = b""

    def _memory_of(self, worker: Server) -> WorkerMemory:
        profiles = self._profiles_of(worker)
        learned = learned_of(self._persistence.load(state_name(worker.adapter.name, worker.base_url)))
        return WorkerMemory(worker, profiles, Learner(profiles, learned))

    def _profiles_of(self, worker: Server) -> Sequence[Profile]:
        url = worker.base_url
        profiles = self._persistence.profiles(worker.adapter.name, url)
        return measured_at(url, profiles) if len(self._pool) > 1 else profiles

    def begin(self) -> None:
        """Load profiles and learned state, and listen to requests that end."""
        for memory in self._memories.values():
            self._take_up(memory)
        today = self._stats.today
        midnight = midnight_before(today.clock())
        today.take_up(self._persistence.answered_since(midnight))
        for at, kind, waited_s, saved_s, tokens in self._persistence.compared_since(midnight):
            self._gain.enter(LengthClass(kind), Waits(at, waited_s, saved_s), tokens)
        self._unlearned = self._predictor.export_state()
        self._restore_predictor()
        self._operation.dispatcher.ended.append(self.ended)
        self._stats.compared.append(self.compared)

    def take_in(self, worker: Server) -> None:
        """Load the profiles and learned state of a worker that was added. Those of a removed one stay."""
        memory = self._memories[worker.name] = self._memory_of(worker)
        self._take_up(memory)

    async def run(self) -> None:
        """Follow the loaded models and save what is learned, periodically."""
        while True:
            await asyncio.sleep(FOLLOW_EVERY_S)
            if self._persistence.forgotten():
                self.forget()
            if self._persistence.profiles_changed():
                await self.take_over()
            self.follow_the_loaded_models()
            self._saved_ago_s += FOLLOW_EVERY_S
            if self._saved_ago_s >= SAVE_EVERY_S:
                self.save()

    async def take_over(self) -> None:
        """Load the profiles again after `calibrate` or a choice of another profile."""
        self._told_tau = ToldTau(self._operation.tau_s)
        for worker in list(self._pool):
            profiles = await asyncio.to_thread(self._profiles_of, worker)
            memory = self._memories[worker.name]
            if list(profiles) == list(memory.profiles):
                continue
            memory.take(profiles)
            first = self._loaded_profile(memory) or next(iter(profiles), None)
            if first is None:
                memory.used = None
                self._set_tau(memory, "")
                self._say(memory, "its profile was deleted; using defaults")
            elif first != memory.used:
                self._use(memory, first)
            for listener in self.took_over:
                listener(worker)
        self._told_tau.before_s = None

    def save(self) -> None:
        """Store everything that was learned."""
        self._saved_ago_s = 0.0
        self._stats.compare()
        if self._freeze:
            return
        for memory in self._memories.values():
            if (station := self._pool.queue.fleet.stations.get(memory.worker.name)) is not None:
                held, lost = station.cache.size
                memory.learner.learned().cache_tokens = held, None if lost == inf else lost
            self._persistence.save(memory.state_name, msgspec.json.encode(memory.learner.learned()))
            for line in memory.learner.drift():
                self._stats.journal.event(logging.WARNING, line)
        predictor = self._predictor
        if state := predictor.export_state():
            self._persistence.save(f"predictor {predictor.name}", state)

    def forget(self) -> None:
        """Drop the learned state: it was erased from the database and must not be written again."""
        self._forgot_s = self._stats.journal.clock()
        self._learn_queue.clear()
        self._predictor.import_state(self._unlearned)
        self._operation.review_predictor()
        for memory in self._memories.values():
            memory.forget()
            self._set_cache_size(memory)
            self._set_tau(memory, "" if memory.used is None else memory.used.served.model)
        self._stats.journal.event(logging.INFO, "the learned state was erased; learning starts again")

    def ended(self, exchange: Exchange, end: RequestEnd) -> None:
        """Record an ended exchange and learn from it."""
        self._persistence.finished(self._record(exchange, end))
        totals, model = exchange.totals, exchange.asked.parsed.model
        if end.outcome is not Outcome.COMPLETED or not totals.complete or not totals.tokens:
            return
        memory = self._memories[_worker_of(exchange)]
        learner = memory.learner
        if not exchange.job.stands_back:  # a background job's wait is no drift
            learner.judge(totals.tokens, exchange.sojourn_s(end.at_s), exchange.asked.prediction.p_long)
        rate = decode_rate(totals.tokens, totals.decode_s)
        if not self._freeze and rate is not None:
            learner.learn_speed(model, totals.tokens, rate)
        self._set_tau(memory, model)

    def compared(self, exchange: Exchange, pair: Compared) -> None:
        """Record what a request gained, and learn mu_short from its sojourn time in order of arrival.

        Profiles are measured that way; under shortest-first, short requests hardly queue.
        """
        ended_s = exchange.ended_s or 0.0
        at = self._stats.journal.at(ended_s)
        self._persistence.compared(Comparison(pair.saved_s, pair.spared_tokens, at, exchange.id))
        if self._freeze or ended_s < self._forgot_s:  # compared late: what it teaches was erased
            return
        if LengthClass.of(exchange.totals.tokens or 0) is LengthClass.SHORT:
            memory, model = self._memories[_worker_of(exchange)], exchange.asked.parsed.model
            sojourn_s = pair.wait_s + exchange.service_s(ended_s)
            memory.learner.learn_short(model, pair.wait_s, sojourn_s)
            self._set_tau(memory, model)

    # -- profiles ---------------------------------------------------------------------------------------

    def _take_up(self, memory: WorkerMemory) -> None:
        memory.worker.profiles = memory.profiles
        memory.worker.speeds.frozen = self._freeze
        self._set_cache_size(memory)
        if memory.profiles:
            self._use(memory, memory.profiles[0])
            return
        news = "no matching profile, using defaults; measure one: clairvoyant calibrate"
        self._say(memory, news)

    def _set_cache_size(self, memory: WorkerMemory) -> None:
        station = self._pool.queue.fleet.stations.get(memory.worker.name)
        if station is not None:
            held, lost = memory.learner.learned().cache_tokens
            station.cache.size = held, inf if lost is None else lost

    def _say(self, memory: WorkerMemory, news: str, level: int = logging.INFO) -> None:
        whose = f"{memory.worker.name}: " if len(self._pool) > 1 else ""
        self._stats.journal.event(level, whose + news)

    def _use(self, memory: WorkerMemory, profile: Profile) -> None:
        backend = memory.worker
        speeds = backend.speeds
        speeds.decode_tokens_per_s = profile.decode_tokens_per_s
        speeds.prefill_tokens_per_s = profile.prefill_tokens_per_s
        speeds.measured = (profile.decode_tokens_per_s, profile.prefill_tokens_per_s)
        # A server that reports its slots may have been restarted with other slots since.
        if not backend.slots_fixed and not backend.adapter.REPORTS_SLOTS:
            backend.slots = profile.slots
            self._lifecycle.share_out()
        measured_on = datetime.fromtimestamp(profile.measured_at, UTC).astimezone().date()
        self._say(memory, f"using profile {profile.name}, measured on {measured_on}")
        if why := self._persistence.stale(profile, backend.version):
            self._say_stale(memory, profile, why)
        self._set_tau(memory, profile.served.model)
        memory.used = profile

    def follow_the_loaded_models(self) -> None:
        """Use the profile of the model that each backend has loaded."""
        for memory in self._memories.values():
            self._follow(memory)

    def _follow(self, memory: WorkerMemory) -> None:
        loaded, used = memory.worker.models, memory.used
        if used is None or loaded == memory.followed or not loaded:
            return
        memory.followed = loaded
        profile = self._loaded_profile(memory)
        if profile is not None:
            if profile is not used:
                self._use(memory, profile)
            model = next(each for each in loaded if memory.learner.prefer(each.name) is profile)
            if model.digest and profile.served.digest and model.digest != profile.served.digest:
                self._say_stale(memory, profile, f"{model.name} has changed since")
            return
        names = ", ".join(model.name for model in loaded)
        self._say_stale(memory, used, f"it is for {used.served.model}, but {names} is loaded")

    def _loaded_profile(self, memory: WorkerMemory) -> Profile | None:
        """Return the profile of a loaded model, None if there is none."""
        found = (memory.learner.prefer(model.name) for model in memory.worker.models)
        return next((profile for profile in found if profile is not None), None)

    def _say_stale(self, memory: WorkerMemory, profile: Profile, why: str) -> None:
        news = f"profile {profile.name} may be stale ({why}); run: clairvoyant calibrate"
        self._say(memory, news, logging.WARNING)

    def _set_tau(self, memory: WorkerMemory, model: str) -> None:
        """Set tau for a model: of this worker, or with several workers, the mean over all slots."""
        tau_s, source = memory.learner.tau_of(model)
        mu_short_s = memory.learner.mu_short_of(model)
        if len(self._pool) > 1:
            learners = [(each.slots, self._memories[each.name].learner) for each in self._pool]
            mu_short_s = mean_over_slots((slots, learner.mu_short_of(model)) for slots, learner in learners)
            tau_s = tau_from_sojourn(mu_short_s)
        if not self._operation.learn_tau(tau_s, mu_short_s, source):
            return
        if self._told_tau.is_news(model, tau_s, self._stats.journal.clock()):
            self._stats.journal.event(logging.INFO, f"tau is {tau_s:.3g} s, from {source}")

    def _restore_predictor(self) -> None:
        predictor = self._predictor
        state = self._persistence.load(f"predictor {predictor.name}")
        if state is None:
            return
        try:
            predictor.import_state(state)
        except (ValueError, ModelError) as error:
            self._stats.journal.event(logging.WARNING, f"the predictor's learned state is lost: {error}")

    # -- recording -------------------------------------------------------------------------------------

    def _record(self, exchange: Exchange, end: RequestEnd) -> Finished:
        asked, totals, now = exchange.asked, exchange.totals, end.at_s
        prediction, session = asked.prediction, exchange.job.session
        whole = totals.tokens if totals.complete else None
        read, cached = totals.prefilled_tokens, totals.cached_tokens
        if read is None or cached is None:  # after a cut, and where the server counts cached tokens as read
            read = cached = None
        return Finished(
            finished_at=self._stats.journal.at(now),
            request=exchange.id,
            outcome=end.outcome.value,
            status=end.status,
            endpoint=asked.route.name,
            backend=_worker_of(exchange) or self._pool.first.name,
            model=asked.parsed.model,
            client=exchange.client,
            predicted_class=prediction.length_class.value,
            p_long=prediction.p_long,
            expected_tokens=prediction.expected_tokens,
            q90_tokens=prediction.q90_tokens,
            source=prediction.source,
            tokens=whole if whole is not None else exchange.generated(now) or None,
            prompt_tokens=totals.prompt_tokens,
            length_class="" if whole is None else LengthClass.of(whole).value,
            policy=self._operation.policy,
            dispatched_by=exchange.dispatched_by,
            waited_s=exchange.waited_s(now),
            sojourn_s=exchange.sojourn_s(now),
            ttft_s=exchange.ttft_s,
            decode_s=totals.decode_s,
            prefill_s=totals.prefill_s,
            cuts=len(exchange.cuts),
            repeats=exchange.repeats,
            session=f"{exchange.id.rpartition('-')[0]}-{session}" if session else "",
            read_tokens=read,
            cached_tokens=cached,
            program=exchange.job.program,
            remark=exchange.remark,
            urgency=exchange.job.urgency,
            urgency_by=exchange.job.urgency_by,
            body=None if asked.body is None else asked.body.decode("utf-8", "replace"),
        )


def measured_at(url: str, profiles: Sequence[Profile]) -> list[Profile]:
    """Return the profiles that may be of this server beside others: those measured at its port first, none
    of another machine.
    """
    here = [each for each in profiles if not each.served.url or place_of(each.served.url) == place_of(url)]
    port = urlsplit(url).port
    return sorted(here, key=lambda each: bool(each.served.url) and urlsplit(each.served.url).port != port)


def _worker_of(exchange: Exchange) -> str:
    return "" if exchange.attempt is None else exchange.attempt.worker
