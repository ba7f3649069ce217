"""Records: profiles of a model on a machine, and finished requests.

Rule 1: standard library only; the proxy and the dashboards import this module.
Rule 2: new fields have defaults, so that older files stay readable; unknown fields are ignored.
Rule 3: `_at` is epoch seconds, `_s` a duration in seconds.
Rule 4: only `Finished.body` has prompt text, and only if the operator asked for it.
"""

from collections.abc import Iterable
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


@dataclass(frozen=True, slots=True)
class Sample:
    """One request of a calibration."""

    phase: str  # service (one at a time) or load (queued)
    question: str
    prompt_tokens: int
    tokens: int
    sent_s: float
    ttft_s: float
    sojourn_s: float
    decode_s: float | None = None
    prefill_s: float | None = None
    capped: bool = False
    counted: bool = True  # False for requests that only fill the queue
    load_s: float | None = None


@dataclass(frozen=True, slots=True)
class Continuation:
    """How a preempted answer is continued by one of the adapter's methods, `way`: a comparison of greedy
    answers that were cut with the same answers uncut. Times are medians, in seconds.
    """

    way: str
    trials: int
    exact: int  # trials of equal text
    resume_s: float  # to the first new token after other requests used the slot
    repeats: int = 0  # trials whose prompt had been answered in full before
    exact_repeats: int = 0
    fingerprint: str = ""  # of the model and its settings
    rounded: int = 0  # trials that first differ where both tokens were nearly tied
    tie_nats: float | None = None  # how far apart ties may be; None if the server tells no probabilities

    @property
    def is_exact(self) -> bool:
        """Whether the answers to all new prompts were equal, so that any answer may be preempted."""
        first, exact = self.trials - self.repeats, self.exact - self.exact_repeats
        return self.trials >= MIN_TRIALS and 0 < first == exact

    @property
    def is_rounded(self) -> bool:
        """Whether the answers differ by rounding at most, so that sampled ones may be preempted."""
        return self.trials >= MIN_TRIALS and self.exact + self.rounded >= MIN_ALIKE_SHARE * self.trials

    @property
    def fits(self) -> bool:
        return self.is_exact or self.is_rounded

    @property
    def faulty(self) -> int:
        """Trials whose text differed by more than rounding."""
        return self.trials - self.exact - self.rounded

    @property
    def repeats_are_exact(self) -> bool:
        """Whether greedy answers to repeated prompts may be preempted."""
        return 0 < self.repeats == self.exact_repeats

    @property
    def rounding(self) -> str:
        """How many texts differ by rounding, as the clause of a sentence; "" if that cannot be told."""
        if self.tie_nats is None:
            return ""
        return f", {self.rounded} differ by rounding (ties within {self.tie_nats:.2g} nats)"


def best_of(continuations: Iterable[Continuation]) -> Continuation | None:
    """Return the fastest exact one, else the fastest that is equal up to rounding."""
    fit = [each for each in continuations if each.fits]
    return min(fit, key=lambda each: (not each.is_exact, each.resume_s), default=None)


def verdict_of(proof: Continuation) -> str:
    """Return in words which requests may be preempted, and why."""
    counts = f"{proof.exact} of {proof.trials} continuations matched"
    if proof.is_exact:
        decides = f", all {proof.trials - proof.repeats} to new prompts, which decide"
        return counts + decides * (proof.exact < proof.trials)
    return f"{counts}{proof.rounding}; answers at temperature 0 are not preempted"


MIN_TRIALS = 12
MIN_ALIKE_SHARE = 0.95
"""Share of trials that must be equal, or equal up to rounding: prefill and decode compute the same tokens
with different last bits, as do two sizes of a batch."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The result of one calibration."""

    name: str
    measured_at: float
    host: Host
    served: Served
    plan: str
    method: str = "not measured"  # how mu_short was obtained: in the queue, or from service times
    concurrency: int = 0
    mu_short_s: Estimate | None = None
    tau_s: float | None = None
    decode_tokens_per_s: float | None = None
    prefill_tokens_per_s: float | None = None
    ttft_s: float | None = None
    slots: int = 1
    queued_decode_tokens_per_s: float | None = None
    took_s: float = 0.0
    advice: tuple[str, ...] = ()
    measured_by: str = ""
    continuations: tuple[Continuation, ...] = ()

    @property
    def continuation(self) -> Continuation | None:
        """The fastest exact continuation, else the fastest that is equal up to rounding; None without any."""
        return best_of(self.continuations)


@dataclass(slots=True)  # not frozen: that triples the time to make one, and each request has one
class Finished:
    """One finished request."""

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
    tokens: int | None  # may be partial
    prompt_tokens: int | None
    length_class: str  # of the actual answer, "" if incomplete
    policy: str
    dispatched_by: str
    waited_s: float
    sojourn_s: float
    ttft_s: float | None = None
    decode_s: float | None = None
    prefill_s: float | None = None
    cuts: int = 0  # preemptions
    urgency: int | None = None  # the level, 0 is most urgent
    urgency_by: str = ""  # its source
    repeats: int = 0  # retries after a broken answer
    session: str = ""  # the id of the conversation, unique over all runs
    read_tokens: int | None = None  # of the prompt; None if the server does not report this and the next
    cached_tokens: int | None = None  # of the prompt, from the KV cache
    program: str = ""  # that sent it: its name, or that of the SDK in its user agent, "" if unknown
    remark: str = ""  # what was wrong with it, such as a prompt that the server truncated
    saved_s: float | None = None  # how much longer it would have waited in order of arrival, if compared
    spared_tokens: float | None = None  # how many of its prompt would have been read again
    body: str | None = None  # what the client sent to `endpoint`, if prompts are recorded


class Begun(NamedTuple):
    """A request that a daemon has begun; the fields mean the same as in `Finished`."""

    request: str
    began_at: float  # when it arrived
    client: str
    program: str
    model: str
    endpoint: str


class ServedRequest(NamedTuple):
    """What the history has of a request for the figures of a day, as in `Finished`."""

    finished_at: float
    length_class: str
    program: str
    waited_s: float
    sojourn_s: float
    saved_s: float | None
    spared_tokens: float | None
    outcome: str


class Incident(NamedTuple):
    """A time of trouble with a server, or of refusals while the queue was full: one record for all requests
    that failed in it. No text of a request.
    """

    server: str  # its name, "" for the queue
    began_at: float
    ended_at: float  # when the trouble was last seen
    down: bool  # the server did not answer at all
    failed: int  # requests that failed or were refused
    cause: str  # in the words of the server, "" if it gave none


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
