"""What outlives the daemon: what it starts from, what it learns, what it records.

Rule 1: nothing here waits for a disk, and nothing here can fail a request.
Rule 2: what the operator set (`--tau`, an action) is never overruled by what was measured or learned.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from clairvoyant_cli.backends.server import Backend
from clairvoyant_cli.backends.speeds import decode_rate
from clairvoyant_cli.proxy.exchange import Exchange, Outcome
from clairvoyant_cli.proxy.gateway import Gateway
from clairvoyant_cli.proxy.learning import Learned, Learner, learned_of, state_name
from clairvoyant_cli.proxy.shadow import ShadowRun
from clairvoyant_cli.proxy.snapshots import SnapshotBuilder
from clairvoyant_cli.proxy.today import midnight_before
from predictor.errors import ModelError
from predictor.record import LengthClass
from profiles.records import Finished, Profile
from tui.snapshot import LoadedModel

SAVE_EVERY_S = 20.0
FOLLOW_EVERY_S = 2.0


class Persistence(Protocol):
    """Where a daemon keeps what is to outlive it. No method waits for a disk but `profiles`, `load` and
    `answered_since`, which are asked at the start.
    """

    def profiles(self, backend: str, url: str) -> Sequence[Profile]:
        """Return what was measured of this server on this machine: the one to use first."""
        ...

    def stale(self, profile: Profile, version: str) -> str:
        """Say why a profile may no longer hold, "" if it does."""
        ...

    def finished(self, record: Finished) -> None:
        """Record a request that has ended."""
        ...

    def answered_since(self, at: float) -> Callable[[str], int]:
        """Return what tells of a client how many answer tokens it had from a moment on, epoch seconds."""
        ...

    def load(self, name: str) -> bytes | None:
        """Return a state kept by an earlier daemon, None if there is none."""
        ...

    def save(self, name: str, state: bytes) -> None:
        """Keep a state for later daemons."""
        ...

    def forgotten(self) -> bool:
        """Say whether what was learned has been erased since this was last asked."""
        ...


@runtime_checkable
class StatefulPredictor(Protocol):
    """A predictor whose learning can outlive it."""

    def export_state(self) -> bytes:
        """Return what it has learned."""
        ...

    def import_state(self, state: bytes) -> None:
        """Take up what an earlier one had learned; ValueError if it cannot be read."""
        ...


class StateSaver:
    """Starts a daemon from what is known, and records what it does."""

    def __init__(
        self,
        persistence: Persistence,
        gateway: Gateway,
        snapshots: SnapshotBuilder,
        *,
        default_tau_s: float,
        freeze: bool,
        record_prompts: bool,
    ) -> None:
        self._keepsake = persistence
        self._gateway = gateway
        self._snapshots = snapshots
        self._freeze = freeze
        self._record_prompts = record_prompts
        backend = gateway.watch.backend
        url = backend.upstream.url + backend.prefix
        self._profiles = persistence.profiles(backend.adapter.name, url)
        self._state_name = state_name(backend.adapter.name, url)
        self._default_tau_s = default_tau_s
        self._learner = Learner(self._profiles, default_tau_s, learned_of(persistence.load(self._state_name)))
        self._told = ""
        self._saved_ago_s = 0.0
        self._used: Profile | None = None
        self._followed: tuple[LoadedModel, ...] = ()
        self._unlearned = b""

    def begin(self) -> None:
        """Take up what was measured and learned before, and listen to what ends from now on."""
        backend, request_stats = self._gateway.watch.backend, self._gateway.request_stats
        self._take_up(backend)
        request_stats.today.take_up(
            self._keepsake.answered_since(midnight_before(request_stats.today.clock()))
        )
        predictor = self._gateway.predictor
        if isinstance(predictor, StatefulPredictor):
            self._unlearned = predictor.export_state()
        self._restore_predictor()
        before = request_stats.on_finished

        def on_finished(exchange: Exchange) -> None:
            before(exchange)
            self.ended(exchange)

        request_stats.on_finished = on_finished
        request_stats.on_shadow = self.in_order_of_arrival

    async def run(self) -> None:
        """Follow the model that is loaded, and save what is learned, again and again."""
        while True:
            await asyncio.sleep(FOLLOW_EVERY_S)
            if self._keepsake.forgotten():
                self.forget()
            self.follow_the_loaded_model()
            self._saved_ago_s += FOLLOW_EVERY_S
            if self._saved_ago_s >= SAVE_EVERY_S:
                self.save()

    def save(self) -> None:
        """Have all that was learned written."""
        self._saved_ago_s = 0.0
        if self._freeze:
            return
        self._keepsake.save(self._state_name, msgspec.json.encode(self._learner.learned()))
        predictor = self._gateway.predictor
        if isinstance(predictor, StatefulPredictor):
            self._keepsake.save(f"predictor {predictor.name}", predictor.export_state())
        for line in self._learner.drift():
            self._gateway.request_stats.event(logging.WARNING, line)

    def forget(self) -> None:
        """Start afresh: what was learned has been erased from the disk, and is not to come back from here."""
        self._gateway.learn_queue.clear()
        self._learner = Learner(self._profiles, self._default_tau_s, Learned())
        self._followed = ()
        predictor = self._gateway.predictor
        if isinstance(predictor, StatefulPredictor):
            predictor.import_state(self._unlearned)
        self._set_tau("" if self._used is None else self._used.served.model)
        self._gateway.request_stats.event(
            logging.INFO, "what was learned has been erased; learning starts afresh"
        )

    def ended(self, exchange: Exchange) -> None:
        """Record a finished exchange, and learn from it."""
        self._keepsake.finished(self._record(exchange))
        totals = exchange.totals
        if exchange.outcome is not Outcome.COMPLETED or not totals.complete or not totals.tokens:
            return
        now = exchange.ended_s or 0.0
        self._learner.judge(totals.tokens, exchange.sojourn_s(now), exchange.prediction.p_long)
        rate = decode_rate(totals.tokens, totals.decode_s)
        if not self._freeze and rate is not None:
            self._learner.learn_speed(exchange.parsed.model, totals.tokens, rate)
        self._set_tau(exchange.parsed.model)

    def in_order_of_arrival(self, run: ShadowRun) -> None:
        """Learn mu_short from how a request would have fared first-come-first-served.

        That is how a profile's was measured; served shortest-first, short ones hardly queue.
        """
        tokens = run.exchange.totals.tokens or 0
        if not self._freeze and LengthClass.of(tokens) is LengthClass.SHORT:
            self._learner.learn_short(run.exchange.parsed.model, run.wait_s, run.wait_s + run.service_s)

    # -- taking up -------------------------------------------------------------------------------------

    def _take_up(self, backend: Backend) -> None:
        request_stats = self._gateway.request_stats
        backend.speeds.frozen = self._freeze
        if not self._profiles:
            request_stats.event(
                logging.INFO, "no profile fits, so defaults hold; measure one: clairvoyant calibrate"
            )
            return
        self._use(self._profiles[0])

    def _use(self, profile: Profile) -> None:
        backend, request_stats = self._gateway.watch.backend, self._gateway.request_stats
        speeds = backend.speeds
        speeds.decode_tokens_per_s = profile.decode_tokens_per_s
        speeds.prefill_tokens_per_s = profile.prefill_tokens_per_s
        speeds.measured = (profile.decode_tokens_per_s, profile.prefill_tokens_per_s)
        # A server that tells its slots may have been started with others since.
        if not backend.slots_fixed and not backend.adapter.REPORTS_SLOTS:
            backend.slots = profile.slots
            self._gateway.dispatcher.scheduler.set_slots(backend.name, profile.slots)
        age_days = max(0.0, request_stats.wall() - profile.measured_at) / 86_400
        request_stats.event(logging.INFO, f"using profile {profile.name}, measured {age_days:.1f} days ago")
        if why := self._keepsake.stale(profile, backend.version):
            self._say_stale(profile, why)
        self._set_tau(profile.served.model)
        self._used = profile

    def follow_the_loaded_model(self) -> None:
        """Use the profile of the model that the backend has loaded, once that is known."""
        loaded, used = self._gateway.watch.backend.models, self._used
        if used is None or loaded == self._followed or not loaded:
            return
        self._followed = loaded
        for model in loaded:
            profile = self._learner.prefer(model.name)
            if profile is None:
                continue
            if profile is not used:
                self._use(profile)
            if model.digest and profile.served.digest and model.digest != profile.served.digest:
                self._say_stale(profile, f"{model.name} has been changed since")
            return
        names = ", ".join(model.name for model in loaded)
        self._say_stale(used, f"it is of {used.served.model}, and {names} is loaded")

    def _say_stale(self, profile: Profile, why: str) -> None:
        self._gateway.request_stats.event(
            logging.WARNING, f"profile {profile.name} may be stale ({why}); run: clairvoyant calibrate"
        )

    def _set_tau(self, model: str) -> None:
        if self._snapshots.tau_source in ("flag", "operator"):
            return
        tau_s, source = self._learner.tau_of(model)
        self._gateway.dispatcher.scheduler.tau_s = tau_s
        self._snapshots.tau_source = source
        self._snapshots.mu_short_s = self._learner.mu_short_of(model)
        if self._told and source != self._told:
            self._gateway.request_stats.event(logging.INFO, f"tau is {tau_s:.3g} s, from {source}")
        self._told = source

    def _restore_predictor(self) -> None:
        predictor = self._gateway.predictor
        if not isinstance(predictor, StatefulPredictor):
            return
        state = self._keepsake.load(f"predictor {predictor.name}")
        if state is None:
            return
        try:
            predictor.import_state(state)
        except (ValueError, ModelError) as error:
            self._gateway.request_stats.event(
                logging.WARNING, f"what the predictor had learned is lost: {error}"
            )

    # -- recording -------------------------------------------------------------------------------------

    def _record(self, exchange: Exchange) -> Finished:
        gateway = self._gateway
        now = exchange.ended_s or 0.0
        totals, prediction, view = exchange.totals, exchange.prediction, exchange.parsed.view
        whole = totals.tokens if totals.complete else None
        return Finished(
            finished_at=gateway.request_stats.at(now),
            request=exchange.id,
            outcome=(exchange.outcome or Outcome.UPSTREAM_ERROR).value,
            status=exchange.status,
            endpoint=exchange.endpoint,
            backend=gateway.watch.backend.name,
            model=exchange.parsed.model,
            client=exchange.job.client,
            predicted_class=prediction.length_class.value,
            p_long=prediction.p_long,
            expected_tokens=prediction.expected_tokens,
            q90_tokens=prediction.q90_tokens,
            source=prediction.source,
            tokens=whole if whole is not None else exchange.generated(now) or None,
            prompt_tokens=totals.prompt_tokens,
            length_class="" if whole is None else LengthClass.of(whole).value,
            policy=gateway.dispatcher.scheduler.policy.name,
            dispatched_by="" if exchange.dispatch is None else exchange.dispatch.reason.value,
            waited_s=exchange.waited_s(now),
            sojourn_s=exchange.sojourn_s(now),
            ttft_s=exchange.ttft_s,
            decode_s=totals.decode_s,
            prefill_s=totals.prefill_s,
            # The ends of a prompt would teach a predictor a wrong length.
            prompt=view.prompt if self._record_prompts and view is not None and not view.cut else None,
        )
