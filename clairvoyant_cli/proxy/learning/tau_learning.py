"""mu_short and tau of each model, from its profile and the traffic since; within bounds.

Rule 1: a profile is the anchor. What is learned moves mu_short no further than a factor of two from it,
after correction for a speed that is no longer the measured one. What was learned before the profile was
measured says nothing of it, and is learned anew.
Rule 2: only Short answers that had to queue say something of mu_short: it is a time in a queue
(Clairvoyant, section 3.4), and an idle evening must not teach a tau of seconds.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from clairvoyant_cli.backends.adapters import adapter_of
from clairvoyant_cli.backends.speeds import near
from clairvoyant_cli.scheduler.starvation import DEFAULT_TAU_S, TAU_PER_MU_SHORT, tau_from_sojourn
from predictor.record import LengthClass
from profiles.percentiles import percentile
from profiles.ranking import pairs_in_order
from profiles.records import Profile

WEIGHT = 0.02
"""Of one Short answer in the running mean: it follows about the last fifty."""

QUEUED_S = 0.05
MIN_TOKENS = 16
MIN_QUEUED = 20
MAX_FROM_PROFILE = 2.0
MAX_FROM_DEFAULT = 8.0
MAX_BY_SPEED = 4.0
MAX_MODELS = 50
WORTH_SAYING = 0.1
"""A change of speed, relative, that is named beside a tau that follows from it."""

JUDGED = 400
MIN_JUDGED = 50
DRIFT_P99 = 2.0
"""The P99 of short answers may be so many times the profile's before it is drift."""

DRIFT_ACCURACY = 0.10


@dataclass(slots=True)
class LearnedModel:
    """What traffic has taught of one model since its profile was measured: `since`, epoch seconds, 0 if it
    had none.
    """

    mu_short_s: float = 0.0
    queued: int = 0
    decode_tokens_per_s: float | None = None
    since: float = 0.0


@dataclass(slots=True)
class Learned:
    """What traffic has taught; outlives the daemon."""

    models: dict[str, LearnedModel] = field(default_factory=dict)


def state_name(backend: str, url: str) -> str:
    """Return the name under which what was learned of a server is kept."""
    return f"learned {backend} {url}"


def learned_of(state: bytes | None) -> Learned:
    """Return what was kept; nothing learned if nothing was kept, or it cannot be read."""
    if state is not None:
        with suppress(msgspec.DecodeError, ValueError, RecursionError):
            return msgspec.json.decode(state, type=Learned)
    return Learned()


class Learner:
    """Learns mu_short of each model; pure, told of each whole answer."""

    def __init__(self, profiles: Sequence[Profile], learned: Learned) -> None:
        self._first = profiles[0] if profiles else None
        self._by_model: dict[str, Profile] = {}
        for profile in profiles:
            for name in (profile.served.model, profile.served.model.rsplit("/", 1)[-1]):
                self._by_model.setdefault(name, profile)
        self._learned = learned
        self._sojourns: deque[float] = deque(maxlen=JUDGED)
        self._scores: dict[LengthClass, deque[float]] = {each: deque(maxlen=JUDGED) for each in LengthClass}
        self._drifting: tuple[bool, bool] = (False, False)
        self.judged = 0

    def learned(self) -> Learned:
        """Return what is to outlive the daemon."""
        return self._learned

    def prefer(self, model: str) -> Profile | None:
        """Take a model's own profile for the first; return it, None if there is none."""
        profile = self._by_model.get(model) or self._by_model.get(f"{model}:latest")
        if profile is not None:
            self._first = profile
        return profile

    def profile_of(self, model: str) -> Profile | None:
        """Return the profile to use for a model: its own, or the first there is."""
        return self._by_model.get(self._full_name(model)) or self._first

    def learn_speed(self, model: str, tokens: int, decode_tokens_per_s: float) -> None:
        """Take note of how fast an answer was written."""
        known = self._known(model)
        if known is not None and tokens >= MIN_TOKENS:
            before = known.decode_tokens_per_s
            known.decode_tokens_per_s = _towards(before, near(decode_tokens_per_s, before))

    def learn_short(self, model: str, wait_s: float, sojourn_s: float) -> None:
        """Take note of how a Short answer would have fared first-come-first-served."""
        known = self._known(model)
        if known is not None and wait_s >= QUEUED_S:
            known.mu_short_s = _towards(known.mu_short_s or self._anchor_s(model), sojourn_s)
            known.queued += 1

    def mu_short_of(self, model: str) -> float:
        """Return mu_short of a model in seconds, learned within its bounds."""
        anchor_s = self._anchor_s(model)
        known = self._learned_of(model)
        if known is None or known.queued < MIN_QUEUED:
            return anchor_s
        most = MAX_FROM_PROFILE if self._mu_measured(model) else MAX_FROM_DEFAULT
        return min(max(known.mu_short_s, anchor_s / most), anchor_s * MAX_FROM_PROFILE)

    def tau_of(self, model: str) -> tuple[float, str]:
        """Return tau for a model in seconds, and in words where it is from."""
        known = self._learned_of(model)
        profile = self.profile_of(model)
        source = f"profile {profile.name}" if profile and self._mu_measured(model) else "default"
        slowdown = self._slowdown(model, profile) if profile is not None else 1.0
        if abs(slowdown - 1.0) > WORTH_SAYING:
            source += f", decoding {'slower' if slowdown > 1.0 else 'faster'} since"
        if known is not None and known.queued >= MIN_QUEUED:
            source += ", learned since"
        return tau_from_sojourn(self.mu_short_of(model)), source

    def judge(self, tokens: int, sojourn_s: float, p_long: float) -> None:
        """Take note of how well an answer was predicted, and how long it took."""
        length_class = LengthClass.of(tokens)
        self._scores[length_class].append(p_long)
        if length_class is LengthClass.SHORT:
            self._sojourns.append(sojourn_s)
        self.judged += 1

    @property
    def ranking_accuracy(self) -> float | None:
        """Share of recent (Short, Long) pairs predicted in order; None without both kinds."""
        return pairs_in_order(tuple(self._scores[LengthClass.SHORT]), tuple(self._scores[LengthClass.LONG]))

    def drift(self) -> Iterator[str]:
        """Yield what has just become worse than the profile says, one line each; each is said once."""
        profile = self._first
        if profile is None or len(self._sojourns) < MIN_JUDGED:
            return
        p99_s = percentile(sorted(self._sojourns), 0.99)
        slow = bool(profile.short_p99_s) and p99_s > DRIFT_P99 * (profile.short_p99_s or 0.0)
        accuracy = self.ranking_accuracy if len(self._scores[LengthClass.LONG]) >= MIN_JUDGED else None
        wrong = (
            accuracy is not None
            and profile.ranking_accuracy is not None
            and accuracy < profile.ranking_accuracy - DRIFT_ACCURACY
        )
        before, self._drifting = self._drifting, (slow, wrong)
        if slow and not before[0]:
            yield f"short answers' P99 is {p99_s:.3g} s, {profile.short_p99_s:.3g} s in {profile.name}"
        if wrong and not before[1]:
            yield (
                f"ranking accuracy is {accuracy:.2f}, {profile.ranking_accuracy:.2f} in {profile.name}; "
                f"train on this traffic, or calibrate anew"
            )

    def _known(self, model: str) -> LearnedModel | None:
        """Return what is known of a model; clients choose the names, so there is an end to them."""
        name, models = self._full_name(model), self._learned.models
        if name not in models and len(models) >= MAX_MODELS:
            return None
        if self._learned_of(model) is None:
            models[name] = LearnedModel(since=self._measured_at(name))
        return models[name]

    def _learned_of(self, model: str) -> LearnedModel | None:
        """Return what was learned of a model since its profile was measured, None if nothing was."""
        name = self._full_name(model)
        known = self._learned.models.get(name)
        return known if known is not None and known.since == self._measured_at(name) else None

    def _measured_at(self, name: str) -> float:
        return self._by_model[name].measured_at if name in self._by_model else 0.0

    def _full_name(self, model: str) -> str:
        """Return the one name of a model: clients leave out Ollama's tag, and tell llama.cpp anything."""
        if self._first is not None and adapter_of(self._first.served.backend).ANSWERS_ANY_MODEL:
            return self._first.served.model
        return f"{model}:latest" if f"{model}:latest" in self._by_model else model

    def _mu_measured(self, model: str) -> bool:
        profile = self.profile_of(model)
        return profile is not None and profile.mu_short_s is not None

    def _anchor_s(self, model: str) -> float:
        """Return mu_short as measured, corrected for a speed outside of what was measured."""
        profile = self.profile_of(model)
        if profile is None or profile.mu_short_s is None:
            return DEFAULT_TAU_S / TAU_PER_MU_SHORT
        return profile.mu_short_s.mean * self._slowdown(model, profile)

    def _slowdown(self, model: str, profile: Profile) -> float:
        known = self._learned_of(model)
        live = known.decode_tokens_per_s if known is not None else None
        alone, queued = profile.decode_tokens_per_s, profile.queued_decode_tokens_per_s
        if live is None or not alone:
            return 1.0
        # Between the speed alone and that in a full queue nothing has changed but the load.
        slow, fast = sorted((alone, queued or alone))
        change = slow / live if live < slow else fast / live if live > fast else 1.0
        return min(MAX_BY_SPEED, max(1 / MAX_BY_SPEED, change))


def _towards(old: float | None, new: float) -> float:
    return new if old is None else old + WEIGHT * (new - old)
