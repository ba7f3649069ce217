"""What is remembered: profiles of a model on a machine, and the requests that were served.

Rule 1: standard library only; the proxy and the dashboards import this module.
Rule 2: fields are only ever added, each with a default, so that an older file stays readable.
Rule 3: times are epoch seconds where the name ends in `_at`, durations are seconds where it ends in `_s`.
Rule 4: no prompt text but in `Finished.prompt`, and there only if the operator asked for it.
"""

from dataclasses import dataclass
from hashlib import sha256
from urllib.parse import urlsplit

MAX_SLOTS = 1024
"""More requests at once no server of this kind answers; a larger number is a mistake."""

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Host:
    """The machine that was measured."""

    cpu: str = ""
    cores: int = 0
    memory_gib: int = 0
    gpus: tuple[str, ...] = ()
    gpu_driver: str = ""
    system: str = ""
    machine: str = ""

    @property
    def key(self) -> str:
        """Names the hardware: what a measurement depends on, without the versions that only date it."""
        parts = (self.cpu, str(self.cores), str(self.memory_gib), *self.gpus, self.machine)
        return sha256("\n".join(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Served:
    """The backend and the model in it. `place` is "local", or the address of another machine."""

    backend: str
    model: str
    url: str = ""
    place: str = "local"
    version: str = ""
    digest: str = ""
    quantisation: str = ""
    parameters: str = ""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean, its 95 % confidence interval and how many samples it rests on."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def doubt(self) -> float:
        """Half the interval as a share of the mean: 0.2 is 20 % to either side."""
        return (self.high - self.low) / 2 / self.mean if self.mean > 0 else float("inf")


@dataclass(frozen=True, slots=True)
class Band:
    """Speeds at one length of prompt, with one request in flight."""

    prompt_tokens: int
    prefill_tokens_per_s: float | None
    decode_tokens_per_s: float | None
    ttft_s: float


@dataclass(frozen=True, slots=True)
class Mix:
    """Service times of a mix of requests (Clairvoyant, Table 1). `cs2` is Var[S] / E[S]^2."""

    name: str
    n: int
    mean_s: float
    cs2: float


@dataclass(frozen=True, slots=True)
class Sample:
    """One request of a calibration, from its sending to its last byte.

    `phase` is service (one at a time) or load (in the queue). `counted` is False where the request only
    kept the queue filled. `p_long` is the predictor's word on it, None if none was asked.
    """

    phase: str
    question: str
    prompt_tokens: int
    tokens: int
    sent_s: float
    ttft_s: float
    sojourn_s: float
    decode_s: float | None = None
    prefill_s: float | None = None
    capped: bool = False
    counted: bool = True
    p_long: float | None = None
    load_s: float | None = None


@dataclass(frozen=True, slots=True)
class Continuation:
    """How an answer that was cut is continued, and how well: of `trials` greedy answers `exact` had the very
    text of an uncut one. `way` is the adapter's name for it. Of them `repeats` and `exact_repeats` had been
    answered whole before.

    Seconds from asking to the first new token, medians: `warm_s` right after the cut, `resume_s` after others
    had the slot. `fingerprint` names the model and the settings that this was measured with; "" is not known.
    """

    way: str
    trials: int
    exact: int
    resume_s: float
    warm_s: float
    repeats: int = 0
    exact_repeats: int = 0
    fingerprint: str = ""

    @property
    def is_exact(self) -> bool:
        """Whether answers may be cut that the server writes for the first time."""
        first, exact = self.trials - self.repeats, self.exact - self.exact_repeats
        are_exact = 0 < MIN_EXACT_SHARE * first <= exact or self.exact >= MIN_EXACT_SHARE * self.trials
        return self.trials >= MIN_TRIALS and are_exact

    @property
    def repeats_are_exact(self) -> bool:
        """Whether answers may be cut that it has written before."""
        return self.repeats > 0 and self.exact_repeats >= MIN_EXACT_SHARE * self.repeats


MIN_TRIALS = 12
MIN_EXACT_SHARE = 0.95
"""Of the trials that must give the same text. Of the rest, rounding is the reason: a prompt that is read in
one go has other last bits than one that was written token by token."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What one calibration found. `plan` names how it was measured, `method` where mu_short is from:
    measured in the queue, or computed from service times where a queue would have taken too long.
    """

    name: str
    measured_at: float
    host: Host
    served: Served
    plan: str
    method: str
    concurrency: int
    mu_short_s: Estimate | None
    tau_s: float | None
    decode_tokens_per_s: float | None
    prefill_tokens_per_s: float | None
    ttft_s: float | None
    load_s: float | None
    slots: int
    mixes: tuple[Mix, ...] = ()
    bands: tuple[Band, ...] = ()
    short_p99_s: float | None = None
    ranking_accuracy: float | None = None
    queued_decode_tokens_per_s: float | None = None
    took_s: float = 0.0
    advice: tuple[str, ...] = ()
    measured_by: str = ""
    continuations: tuple[Continuation, ...] = ()

    @property
    def continuation(self) -> Continuation | None:
        """The best of the ways in which an answer is continued exactly, None if none does."""
        exact = [each for each in self.continuations if each.is_exact]
        return min(exact, key=lambda each: each.resume_s, default=None)


@dataclass(frozen=True, slots=True)
class Finished:
    """One request that has ended. `length_class` is that of the real answer, "" if it never came whole;
    `tokens` of one that was given up are those it had until then. `cuts` counts how often it made way,
    `repeats` how often it was asked for again because it broke off.
    `urgency` is its level, 0 the most urgent, and `urgency_by` who said so; None and "" where nobody did.
    """

    finished_at: float
    request: str
    outcome: str
    status: int
    endpoint: str
    backend: str
    model: str
    client: str
    predicted_class: str
    p_long: float
    expected_tokens: float
    q90_tokens: float
    source: str
    tokens: int | None
    prompt_tokens: int | None
    length_class: str
    policy: str
    dispatched_by: str
    waited_s: float
    sojourn_s: float
    ttft_s: float | None = None
    decode_s: float | None = None
    prefill_s: float | None = None
    prompt: str | None = None
    cuts: int = 0
    urgency: int | None = None
    urgency_by: str = ""
    repeats: int = 0


def place_of(url: str) -> str:
    """Return "local" for a server on this machine, its address for one elsewhere."""
    parts = urlsplit(url)
    return "local" if parts.hostname in LOOPBACK else parts.netloc
