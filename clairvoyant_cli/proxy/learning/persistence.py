"""What the daemon keeps over a restart: profiles to start from, learned state, and the history.

Rule 1: nothing here waits for a disk or can fail a request.
Rule 2: measured or learned values never overrule what the operator set (`--tau`, an action).
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from clairvoyant_cli.backends.speeds import rate_of
from clairvoyant_cli.protocols.printable import plural, printable
from clairvoyant_cli.protocols.probes import LoadedModel
from clairvoyant_cli.proxy.journal import COALESCE_S, Journal
from clairvoyant_cli.proxy.learning.learn_queue import LearnQueue
from clairvoyant_cli.proxy.learning.tau_learning import (
    WORTH_SAYING,
    Learned,
    Learner,
    learned_of,
    state_name,
)
from clairvoyant_cli.proxy.observing.gain import Gain, Waits, midnight_before
from clairvoyant_cli.proxy.observing.incidents import Incidents
from clairvoyant_cli.proxy.observing.request_stats import RequestStats
from clairvoyant_cli.proxy.observing.request_views import history_row, recorded_request
from clairvoyant_cli.proxy.observing.tally import begins_at
from clairvoyant_cli.proxy.queue.ended import Ended, Outcome
from clairvoyant_cli.proxy.queue.exchange import Exchange
from clairvoyant_cli.proxy.queue.operation import Operation
from clairvoyant_cli.proxy.servers.lifecycle import ServerLifecycle
from clairvoyant_cli.proxy.servers.server import Server
from clairvoyant_cli.proxy.tasks import repeat
from clairvoyant_cli.scheduler.arrival_order import Compared
from clairvoyant_cli.scheduler.policy import mean_over_slots
from predictor.errors import ModelError
from predictor.record import LengthClass, Predictor
from profiles.records import Begun, Comparison, Finished, Incident, Profile, ServedRequest, place_of

log = logging.getLogger("clairvoyant")

SAVE_EVERY_S = 20.0
FOLLOW_EVERY_S = 2.0
MOST_READS = 5  # of the history, if requests end while it is read
STORED = "stored responses"  # the name of the state that tells which server stores which


class Persistence(Protocol):
    """A daemon's storage; `profiles.ledger.Ledger` describes what its methods do. Only `profiles`, `load`,
    `flush` and what is `since` a time wait for a disk; they are called at the start or on a thread.
    """

    def profiles(self, backend: str, url: str) -> Sequence[Profile]: ...
    def stale(self, profile: Profile, version: str) -> str: ...

    lost: list[str]

    def begin(self, begun: Begun) -> None: ...
    def withdraw(self, request: str) -> None: ...
    def put(self, finished: Finished) -> None: ...
    def compare(self, comparison: Comparison) -> None: ...
    def served_since(self, at: float) -> list[ServedRequest]: ...
    def newest(self, since: float, limit: int, names: Iterable[str]) -> list[Finished]: ...
    def note(self, incident: Incident) -> None: ...
    def incidents_since(self, at: float) -> list[Incident]: ...
    def load(self, name: str) -> bytes | None: ...
    def save(self, name: str, state: bytes) -> None: ...
    def flush(self) -> None: ...
    def forgotten(self) -> bool: ...
    def profiles_changed(self) -> bool: ...


@dataclass(slots=True)
class ServerMemory:
    """What was learned of one server since its profiles were measured, and the profile in use."""

    server: Server
    learner: Learner
    used: Profile | None = None
    followed: tuple[LoadedModel, ...] = ()

    @property
    def state_name(self) -> str:
        return state_name(self.server.adapter.name, self.server.id)

    def take(self, profiles: Sequence[Profile]) -> None:
        """Change the profiles; what was learned under those that stay is kept."""
        self.server.profiles = profiles
        self.learner = Learner(profiles, self.learner.learned)
        self.followed = ()

    def forget(self) -> None:
        """Drop what was learned; the profiles stay."""
        self.learner = Learner(self.server.profiles, Learned())
        self.followed = ()


@dataclass(slots=True)
class StateSaver:
    """Initialises a daemon from storage and records what it does. `took_over` is called when the profile of a
    server has changed while the daemon runs.
    """

    persistence: Persistence
    lifecycle: ServerLifecycle
    operation: Operation
    journal: Journal
    stats: RequestStats
    known_clients: Callable[[], Iterable[str]]  # their names
    predictor: Predictor
    learn_queue: LearnQueue
    gain: Gain
    freeze: bool
    took_over: Callable[[], None]
    incidents: Incidents = field(init=False)
    replaced: bool = False  # another daemon has loaded the states, and learns on
    _memories: dict[str, ServerMemory] = field(default_factory=dict)
    _answered: tuple[ServerMemory, str] | None = None  # the server and model of an answer learned from
    _logged_tau: tuple[float, float] | None = None  # the tau of all models that was logged last, and when
    _forgot_s: float = -inf
    _saved_ago_s: float = 0.0
    _unlearned: bytes = b""
    _stored: bytes = b"{}"

    def __post_init__(self) -> None:
        self.incidents = Incidents(self.lifecycle.pool, self.persistence.note)

    def _profiles_of(self, server: Server) -> Sequence[Profile]:
        url = server.id
        profiles = self.persistence.profiles(server.adapter.name, url)
        return measured_at(url, profiles) if len(self.lifecycle.pool) > 1 else profiles

    def begin(self) -> None:
        """Load profiles and learned state, and say which requests were lost."""
        if lost := Counter(self.persistence.lost):
            programs = ", ".join(f"{n} from {printable(name) or '-'}" for name, n in lost.most_common(5))
            programs += ", ..." * (len(lost) > 5)
            self.journal.event(
                logging.WARNING,
                f"{plural(lost.total(), 'request')} lost when the last daemon was killed ({programs}); "
                "see: clairvoyant history",
            )
        for memory in [self._remember(server, *self._load(server)) for server in self.lifecycle.pool]:
            self._take_up(memory)
        self._look_back()
        try:
            stored = msgspec.json.decode(self.persistence.load(STORED) or b"{}", type=dict[str, str])
            self.lifecycle.pool.stored |= stored
        except (ValueError, RecursionError) as error:
            news = f"which server has which stored response cannot be read and is left out ({error})"
            self.journal.event(logging.WARNING, news)
        self._unlearned = self.predictor.export_state()
        try:
            if (state := self.persistence.load(f"predictor {self.predictor.name}")) is not None:
                self.predictor.import_state(state)
        except (ValueError, ModelError) as error:
            self.journal.event(logging.WARNING, f"the predictor's learned state is lost: {error}")

    def _look_back(self) -> None:
        """Fill in the sums of two days, the pairs of the last hour, recent requests, and incidents."""
        now, lost_at = self.journal.wall(), 0.0
        served = self._served()
        for row in served:
            if row.outcome == "lost":
                lost_at = row.finished_at
        for row in self._sum_up(served):
            self.stats.times[LengthClass(row.length_class)].append((row.waited_s, row.sojourn_s))
        recent = self.stats.recent
        room = (recent.maxlen or 0) - len(recent)
        earlier = self.persistence.newest(begins_at(now), room, self.known_clients())
        recent.extendleft(map(recorded_request, reversed(earlier)))
        self.incidents.take_up(self.persistence.incidents_since(begins_at(now)))
        if self.persistence.lost and lost_at:
            self.incidents.killed(lost_at, now, len(self.persistence.lost))

    def _served(self) -> list[ServedRequest]:
        """Return the requests of two days."""
        return self.persistence.served_since(midnight_before(midnight_before(self.journal.wall()) - 1.0))

    def _sum_up(self, served: Iterable[ServedRequest]) -> list[ServedRequest]:
        """Fill in the sums of two days and the pairs of the last hour; return those that were compared."""
        compared = [row for row in served if self.gain.tally.take_up(row)]
        for row in compared:
            self.gain.enter(row.length_class, Waits(row.finished_at, row.waited_s, row.saved_s or 0.0))
        return compared

    async def sum_up_again(self) -> None:
        """Compute the sums anew when another daemon that wrote to the same database has ended: only then is
        known what its last requests gained.
        """
        served = list[ServedRequest]()
        for _ in range(MOST_READS):
            before = self.journal.counts.copy()
            await asyncio.to_thread(self.persistence.flush)  # it waits for the disk
            served = await asyncio.to_thread(self._served)
            if self.journal.counts == before:
                break
        self.gain.clear()
        self._sum_up(served)

    async def take_in(self, server: Server) -> None:
        """Load the profiles and learned state of a server that was added. Those of a removed one stay."""
        self._take_up(self._remember(server, *await asyncio.to_thread(self._load, server)))

    def _load(self, server: Server) -> tuple[Sequence[Profile], Learned]:
        learned = learned_of(self.persistence.load(state_name(server.adapter.name, server.id)))
        return self._profiles_of(server), learned

    def _remember(self, server: Server, profiles: Sequence[Profile], learned: Learned) -> ServerMemory:
        server.profiles = profiles
        memory = self._memories[server.id] = ServerMemory(server, Learner(profiles, learned))
        return memory

    def _take_up(self, memory: ServerMemory) -> None:
        memory.server.speeds.frozen = self.freeze
        self._set_cache_size(memory)
        if memory.server.profiles:
            self._use(memory, memory.server.profiles[0])
        else:
            self._say(memory, "no matching profile, using defaults; measure one: clairvoyant calibrate")

    async def run(self) -> None:
        """Follow the loaded models and save what is learned, periodically."""
        await repeat("learning", self._follow, FOLLOW_EVERY_S)

    async def _follow(self) -> None:
        self._saved_ago_s += FOLLOW_EVERY_S
        if self.persistence.forgotten():
            self.forget()
        if self.persistence.profiles_changed():
            await self.take_over()
        self.follow()
        if self._saved_ago_s >= SAVE_EVERY_S:
            self.save()
        else:
            self.incidents.look(self.journal.wall())

    async def take_over(self) -> None:
        """Load the profiles again after `calibrate` or a choice of another profile."""
        self.operation.forget_tau()
        for server in list(self.lifecycle.pool):
            profiles = await asyncio.to_thread(self._profiles_of, server)
            memory = self._memories.get(server.id)
            if memory is None or list(profiles) == list(server.profiles):
                continue
            memory.take(profiles)
            await self.lifecycle.see_settings(server)  # a proof holds for known settings only
            first = self._loaded_profile(memory) or next(iter(profiles), None)
            if first is None:
                memory.used = None
                self._set_tau(memory, "")
                self._say(memory, "its profile was deleted; using defaults")
            elif first != memory.used:
                self._use(memory, first)
            self.took_over()

    def save(self) -> None:
        self._saved_ago_s = 0.0
        self.incidents.look(self.journal.wall())
        if self.replaced:
            return
        if (stored := msgspec.json.encode(self.lifecycle.pool.stored)) != self._stored:
            self._stored = stored
            self.persistence.save(STORED, stored)
        if self.freeze:
            return
        for memory in self._memories.values():
            if (server := self.lifecycle.pool.queue.fleet.servers.get(memory.server.id)) is not None:
                held, lost = server.cache.size
                memory.learner.learned.cache_tokens = held, None if lost == inf else lost
            self.persistence.save(memory.state_name, msgspec.json.encode(memory.learner.learned))
        predictor = self.predictor
        if state := predictor.export_state():
            self.persistence.save(f"predictor {predictor.name}", state)

    def forget(self) -> None:
        """Drop the learned state: it was erased from the database and must not be written again."""
        self._forgot_s = self.journal.clock()
        self.learn_queue.clear()
        self.lifecycle.pool.stored.clear()
        self.predictor.import_state(self._unlearned)
        self.operation.forget_tau()
        for memory in self._memories.values():
            memory.forget()
            self._set_cache_size(memory)
            self._set_tau(memory, "" if memory.used is None else memory.used.served.model)
        self.journal.event(logging.INFO, "the learned state was erased; learning starts again")

    def began(self, exchange: Exchange) -> None:
        """Record that a request has joined the queue."""
        job, asked = exchange.job, exchange.asked
        if exchange.end is None:
            client, model = asked.shown_name or job.client, asked.parsed.model
            arrived_at = self.journal.at(job.arrival_s)
            self.persistence.begin(Begun(job.id, arrived_at, client, job.program, model, asked.route.name))

    def ended(self, of: Ended) -> None:
        self.persistence.put(history_row(of, self.operation.policy, self.lifecycle.pool.first.name))
        self.incidents.ended(of)
        memory = self._memories.get(of.last.server_id)
        if memory is None or of.outcome is not Outcome.COMPLETED or not of.tokens:
            return
        learner = memory.learner
        rate = rate_of(of.tokens, of.totals.decode_s)
        if not self.freeze and rate is not None:
            learner.learn_speed(of.model, of.tokens, rate)
        self._answered = memory, of.model

    def compared(self, pair: Compared) -> None:
        """Record what a request gained, and learn mu_short from its sojourn time in order of arrival.
        Profiles are measured that way; under shortest-first, short requests hardly queue.
        """
        of: Ended = pair.subject
        self.persistence.compare(Comparison(pair.saved_s, pair.spared_tokens, of.finished_at, of.id))
        if self.freeze or of.ended_s < self._forgot_s:  # compared late: what it teaches was erased
            return
        memory = self._memories.get(of.last.server_id)
        if memory is not None and of.length_class == LengthClass.SHORT:
            memory.learner.learn_short(of.model, pair.wait_s, pair.wait_s + of.service_s)
            self._answered = memory, of.model

    # -- profiles ---------------------------------------------------------------------------------------

    def _set_cache_size(self, memory: ServerMemory) -> None:
        server = self.lifecycle.pool.queue.fleet.servers.get(memory.server.id)
        if server is not None:
            held, lost = memory.learner.learned.cache_tokens
            server.cache.size = held, inf if lost is None else lost

    def _say(self, memory: ServerMemory, news: str, level: int = logging.INFO) -> None:
        whose = f"{memory.server.name}: " if len(self.lifecycle.pool) > 1 else ""
        self.journal.event(level, whose + news)

    def _use(self, memory: ServerMemory, profile: Profile) -> None:
        backend = memory.server
        speeds = backend.speeds
        speeds.decode_tokens_per_s = profile.decode_tokens_per_s
        speeds.prefill_tokens_per_s = profile.prefill_tokens_per_s
        speeds.measured = (profile.decode_tokens_per_s, profile.prefill_tokens_per_s)
        # A server that reports its slots may have been restarted with other slots since. One that works on as
        # many requests as it is sent would get them all.
        if not (backend.adapter.REPORTS_SLOTS or backend.adapter.USUAL_SLOTS):
            backend.status.slots = profile.slots
            self.lifecycle.share_out()
        measured_on = datetime.fromtimestamp(profile.measured_at, UTC).astimezone().date()
        self._say(memory, f"using profile {profile.name}, measured on {measured_on}")
        if why := self.persistence.stale(profile, backend.status.version):
            self._say_stale(memory, profile, why)
        self._set_tau(memory, profile.served.model)
        memory.used = profile

    def follow(self) -> None:
        """Set tau for the model of the latest answer, and use the profile of what is loaded."""
        if self._answered is not None:
            answered, asked_as = self._answered
            self._set_tau(answered, asked_as, asked_as=asked_as)
            self._answered = None
        for memory in self._memories.values():
            loaded, used = memory.server.status.models, memory.used
            if used is None or loaded == memory.followed or not loaded:
                continue
            memory.followed = loaded
            profile = self._loaded_profile(memory)
            if profile is None:
                names = ", ".join(model.name for model in loaded)
                self._say_stale(memory, used, f"it is for {used.served.model}, but {names} is loaded")
                continue
            if profile is not used:
                self._use(memory, profile)
            model = next(each for each in loaded if memory.learner.prefer(each.name) is profile)
            if model.digest and profile.served.digest and model.digest != profile.served.digest:
                self._say_stale(memory, profile, f"{model.name} has changed since")

    def _loaded_profile(self, memory: ServerMemory) -> Profile | None:
        found = (memory.learner.prefer(model.name) for model in memory.server.status.models)
        return next((profile for profile in found if profile is not None), None)

    def _say_stale(self, memory: ServerMemory, profile: Profile, why: str) -> None:
        news = f"profile {profile.name} may be stale ({why}); run: clairvoyant calibrate"
        self._say(memory, news, logging.WARNING)

    def _set_tau(self, memory: ServerMemory, model: str, *, asked_as: str = "") -> None:
        """Set tau for a model: of this server, or with several servers, the mean over all slots. It is
        for the requests that name the model so; without a name, for all until an answer tells a name.
        """
        tau_s, source = memory.learner.tau_of(model)
        if len(self.lifecycle.pool) > 1:
            known = [
                (each.slots, self._memories.get(each.id)) for each in self.lifecycle.pool
            ]  # some are being loaded
            learners = [(slots, each.learner) for slots, each in known if each is not None]
            tau_s = mean_over_slots((slots, learner.tau_of(model)[0]) for slots, learner in learners)
        if not self.operation.learn_tau(asked_as, tau_s, source):
            return
        tau_s, now = self.operation.tau_s or 0.0, self.journal.clock()
        before_s, logged_s = self._logged_tau = self._logged_tau or (tau_s, -inf)  # the first one is no news
        if abs(tau_s - before_s) >= WORTH_SAYING * before_s and now - logged_s >= COALESCE_S:
            self._logged_tau = tau_s, now
            log.info("tau is %.3g s, from %s", tau_s, self.operation.tau_source)


def measured_at(url: str, profiles: Sequence[Profile]) -> list[Profile]:
    """Return the profiles that may be of this server beside others: those measured at its port first, none
    of another machine.
    """
    here = [each for each in profiles if not each.served.url or place_of(each.served.url) == place_of(url)]
    port = urlsplit(url).port
    return sorted(here, key=lambda each: bool(each.served.url) and urlsplit(each.served.url).port != port)
