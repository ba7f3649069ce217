"""Records: profiles of a model on a machine, and finished requests.

Rule 1: standard library only; the proxy and the dashboards import this module.
Rule 2: fields are only added, with defaults, so that older files stay readable.
Rule 3: `_at` is epoch seconds, `_s` a duration in seconds.
Rule 4: only `Finished.body` has prompt text, and only if the operator asked for it.
"""

from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple
from urllib.parse import urlsplit

MAX_SLOTS = 1024  # above any server's concurrency
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Host:
    """A machine."""

    cpu: str = ""
    cores: int = 0
    memory_gib: int = 0
    gpus: tuple[str, ...] = ()
    gpu_driver: str = ""
    system: str = ""
    machine: str = ""

    @property
    def key(self) -> str:
        """A hash of the hardware, without driver and system versions."""
        parts = (self.cpu, str(self.cores), str(self.memory_gib), *self.gpus, self.machine)
        return sha256("\n".join(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Served:
    """A server and its model. `place` is "local", or the address of another machine."""

    backend: str
    model: str
    url: str = ""
    place: str = "local"
    version: str = ""
    digest: str = ""
    quantisation: str = ""
    parameters: str = ""

    @property
    def profile_name(self) -> str:
        """The usual name of its profile: model@backend."""
        model = self.model.rsplit("/", 1)[-1].removesuffix(".gguf").removesuffix(":latest")
        plain = "".join(letter if letter.isalnum() or letter in "._" else "-" for letter in model)
        return f"{plain.strip('-').lower() or 'model'}@{self.backend}"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean of `n` samples with its 95 % confidence interval."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def doubt(self) -> float:
        """Half the interval relative to the mean: 0.2 is +-20 %."""
        return (self.high - self.low) / 2 / self.mean if self.mean > 0 else float("inf")


@dataclass(frozen=True, slots=True)
class Band:
    """Speeds at one prompt length, with one request in flight."""

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
    """One request of a calibration. `phase` is service (one at a time) or load (queued). `counted` is False
    for requests that only fill the queue. `p_long` is None without a prediction.
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
    """How exactly a preempted answer is continued: `exact` of `trials` greedy answers equal the uncut text.

    `way` is the adapter's method. `repeats` and `exact_repeats` count the trials whose prompt had been
    answered in full before. Medians of the time to the first new token: `warm_s` right after the cut,
    `resume_s` after other requests used the slot. `fingerprint` identifies the model and its settings.
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
        """Whether answers to new prompts may be preempted."""
        first, exact = self.trials - self.repeats, self.exact - self.exact_repeats
        are_exact = 0 < MIN_EXACT_SHARE * first <= exact or self.exact >= MIN_EXACT_SHARE * self.trials
        return self.trials >= MIN_TRIALS and are_exact

    @property
    def repeats_are_exact(self) -> bool:
        """Whether answers to repeated prompts may be preempted."""
        return self.repeats > 0 and self.exact_repeats >= MIN_EXACT_SHARE * self.repeats


MIN_TRIALS = 12
MIN_EXACT_SHARE = 0.95
"""Share of trials that must give the same text. The rest may differ by rounding: prefill and decode compute
the same tokens with different last bits."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The result of one calibration. `plan` names the plan. `method` is how mu_short was obtained: measured
    in the queue, or computed from service times if a queue would take too long.
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
        """The fastest exact continuation; None if there is none."""
        exact = [each for each in self.continuations if each.is_exact]
        return min(exact, key=lambda each: each.resume_s, default=None)


@dataclass(frozen=True, slots=True)
class Finished:
    """One finished request.

    `length_class` is that of the actual answer, "" if incomplete; `tokens` may be partial. `cuts`
    counts preemptions, `repeats` retries after a broken answer. `urgency` is the level (0 is most urgent) and
    `urgency_by` its source. `session` is the id of the conversation, unique over all runs, "" for none.
    `read_tokens` of the prompt were read and `cached_tokens` came from the KV cache, None if the server does
    not report both. `program` is the agent or SDK that sent it, "" if unknown. `remark`: what was wrong with
    it, such as a prompt that the server truncated. `saved_s` is how much longer it would have waited in order
    of arrival, negative if less, and `spared_tokens` how many of its prompt would have been read again; None
    if it was not compared. `body` is what the client sent to `endpoint`, if prompts are recorded.
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
    cuts: int = 0
    urgency: int | None = None
    urgency_by: str = ""
    repeats: int = 0
    session: str = ""
    read_tokens: int | None = None
    cached_tokens: int | None = None
    program: str = ""
    remark: str = ""
    saved_s: float | None = None
    spared_tokens: float | None = None
    body: str | None = None


class Comparison(NamedTuple):
    """What a request gained over order of arrival, as in `Finished`, and which request it was."""

    saved_s: float
    spared_tokens: float
    finished_at: float
    request: str


def place_of(url: str) -> str:
    """Return "local" for a server on this machine, else its address."""
    parts = urlsplit(url)
    return "local" if parts.hostname in LOOPBACK else parts.netloc
