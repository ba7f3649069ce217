"""Learns mu_short and tau of each model, from its profile and the traffic since, within bounds.

Rule 1: learning moves mu_short at most a factor of two from the profile, after correction for a changed
speed. What was learned before the profile was measured is dropped.
Rule 2: only Short answers that had to queue count: mu_short is a sojourn time under load (Clairvoyant,
section 3.4), and an idle evening must not lead to a tau of seconds.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from clairvoyant_cli.backends.adapters import adapter_of
from clairvoyant_cli.backends.speeds import near
from clairvoyant_cli.scheduler.policy import DEFAULT_TAU_S, TAU_PER_MU_SHORT
from profiles.records import Profile

log = logging.getLogger("clairvoyant")

WEIGHT = 0.02  # weight of one Short answer in the running mean, which follows about the last fifty
QUEUED_S = 0.05
MIN_TOKENS = 16
MIN_QUEUED = 20
MAX_FROM_PROFILE = 2.0
MAX_FROM_DEFAULT = 8.0
MAX_BY_SPEED = 4.0
MAX_MODELS = 50
WORTH_SAYING = 0.1  # relative change of a speed that the source of tau mentions, and of tau that is logged


CacheTokens = tuple[float, float | None]


@dataclass(slots=True)
class LearnedModel:
    """What was learned of a model since its profile was measured, at `since` (epoch seconds, 0: none)."""

    mu_short_s: float = 0.0
    queued: int = 0
    decode_tokens_per_s: float | None = None
    since: float = 0.0


@dataclass(slots=True)
class Learned:
    """What was learned of all models; it is kept over a restart. `cache_tokens` are the limits of the size of
    the server's KV cache behind its slots: what it was seen to hold, and what not (None: nothing).
    """

    models: dict[str, LearnedModel] = field(default_factory=dict)
    cache_tokens: CacheTokens = (0.0, None)


def state_name(backend: str, url: str) -> str:
    return f"learned {backend} {url}"


def learned_of(state: bytes | None) -> Learned:
    """Decode a stored state; a part that cannot be read is logged and left out."""
    learned = Learned()
    parts = _part("", state or b"{}", dict[str, msgspec.Raw]) or {}
    models = _part("models", parts.get("models", b"{}"), dict[str, msgspec.Raw]) or {}
    for name, data in models.items():
        if (known := _part("a model", data, LearnedModel)) is not None:
            learned.models[name] = known
    if (size := _part("cache_tokens", parts.get("cache_tokens", b"null"), CacheTokens | None)) is not None:
        learned.cache_tokens = size
    return learned


def _part(name: str, data: msgspec.Raw | bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        log.warning("learned state: %s cannot be read and is left out (%s)", name or "all of it", error)
    return None


class Learner:
    """Learns mu_short of each model from complete answers. No I/O."""

    def __init__(self, profiles: Sequence[Profile], learned: Learned) -> None:
        self._first = profiles[0] if profiles else None
        self._by_model: dict[str, Profile] = {}
        for profile in profiles:
            for name in (profile.served.model, profile.served.model.rsplit("/", 1)[-1]):
                self._by_model.setdefault(name, profile)
        self.learned = learned

    def prefer(self, model: str) -> Profile | None:
        """Make a model's own profile the default; return it, None if there is none."""
        profile = self._by_model.get(model) or self._by_model.get(f"{model}:latest")
        if profile is not None:
            self._first = profile
        return profile

    def learn_speed(self, model: str, tokens: int, decode_tokens_per_s: float) -> None:
        known = self._known(model)
        if tokens >= MIN_TOKENS:
            before = known.decode_tokens_per_s
            known.decode_tokens_per_s = _towards(before, near(decode_tokens_per_s, before))

    def learn_short(self, model: str, wait_s: float, sojourn_s: float) -> None:
        """Learn from the wait and sojourn time of a Short answer under first-come-first-served."""
        if wait_s >= QUEUED_S:
            known, (anchor_s, _) = self._known(model), _anchor_s(*self._learned_of(model))
            known.mu_short_s = _towards(known.mu_short_s or anchor_s, sojourn_s)
            known.queued += 1

    def mu_short_of(self, model: str) -> float:
        """Return mu_short of a model in seconds, within its bounds."""
        known, profile = self._learned_of(model)
        anchor_s, is_measured = _anchor_s(known, profile)
        if known is None or known.queued < MIN_QUEUED:
            return anchor_s
        most = MAX_FROM_PROFILE if is_measured else MAX_FROM_DEFAULT
        return min(max(known.mu_short_s, anchor_s / most), anchor_s * MAX_FROM_PROFILE)

    def tau_of(self, model: str) -> tuple[float, str]:
        """Return tau for a model in seconds, and a description of its source."""
        known, profile = self._learned_of(model)
        is_measured = profile is not None and profile.mu_short_s is not None
        source = f"profile {profile.name}" if profile is not None and is_measured else "default"
        slowdown = _slowdown(known, profile) if profile is not None else 1.0
        if abs(slowdown - 1.0) > WORTH_SAYING:
            source += f", decoding {'slower' if slowdown > 1.0 else 'faster'} since"
        if known is not None and known.queued >= MIN_QUEUED:
            source = "learned" if source == "default" else f"{source}, learned since"
        return TAU_PER_MU_SHORT * self.mu_short_of(model), source

    def _known(self, model: str) -> LearnedModel:
        """Return what was learned of a model. Of too many, as clients choose the names, the one with the
        fewest answers is forgotten.
        """
        name, models = self._full_name(model), self.learned.models
        if name not in models and len(models) >= MAX_MODELS:
            del models[min(models, key=lambda each: models[each].queued)]
        if self._learned_of(model)[0] is None:
            since = self._by_model[name].measured_at if name in self._by_model else 0.0
            models[name] = LearnedModel(since=since)
        return models[name]

    def _learned_of(self, model: str) -> tuple[LearnedModel | None, Profile | None]:
        """Return what was learned since the model's profile was measured, None if nothing, and the profile
        that counts for it.
        """
        name = self._full_name(model)
        known, own = self.learned.models.get(name), self._by_model.get(name)
        if known is not None and known.since != (0.0 if own is None else own.measured_at):
            known = None
        return known, own or self._first

    def _full_name(self, model: str) -> str:
        """Return the canonical name of a model: Ollama's tag may be omitted, llama.cpp accepts any name."""
        if self._first is not None and adapter_of(self._first.served.backend).ANSWERS_ANY_MODEL:
            return self._first.served.model
        return f"{model}:latest" if f"{model}:latest" in self._by_model else model


def _anchor_s(known: LearnedModel | None, profile: Profile | None) -> tuple[float, bool]:
    """Return the measured mu_short, corrected for a speed outside the measured range, and True; the default
    and False if none was measured.
    """
    if profile is None or profile.mu_short_s is None:
        return DEFAULT_TAU_S / TAU_PER_MU_SHORT, False
    return profile.mu_short_s.mean * _slowdown(known, profile), True


def _slowdown(known: LearnedModel | None, profile: Profile) -> float:
    live = known.decode_tokens_per_s if known is not None else None
    alone, queued = profile.decode_tokens_per_s, profile.queued_decode_tokens_per_s
    if live is None or not alone:
        return 1.0
    # Between the speeds when idle and under load, only the load has changed.
    slow, fast = sorted((alone, queued or alone))
    change = slow / live if live < slow else fast / live if live > fast else 1.0
    return min(MAX_BY_SPEED, max(1 / MAX_BY_SPEED, change))


def _towards(old: float | None, new: float) -> float:
    return new if old is None else old + WEIGHT * (new - old)
