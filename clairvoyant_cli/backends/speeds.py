"""How fast a server works, and what follows for the time a request takes."""

from collections.abc import Callable
from dataclasses import dataclass

# Until the server has been seen at work: a small model on a laptop. Only ratios matter for the order.
ASSUMED_DECODE_TOKENS_PER_S = 30.0
ASSUMED_PREFILL_TOKENS_PER_S = 500.0
FASTEST_DECODE_TOKENS_PER_S = 1e5  # each token reads the weights: 80 MB at the 8 TB/s of the fastest memory
FASTEST_PREFILL_TOKENS_PER_S = 1e7  # each takes two operations a weight: 100 million weights at 2 petaflops
SLOWEST_TOKENS_PER_S = 0.01  # a model of 100 GB, read from a disk at 1 GB/s for each token
# One answer counts as at most this many times faster or slower than those before: the server's own report
# may be wrong, and the order of the queue depends on it.
MAX_AT_ONCE = 4.0
MAX_SLOWDOWN = 16.0
MIN_TOKENS = 8  # of an answer that tells a speed
MIN_PREFILLED = 32  # tokens of a prompt that tell one


@dataclass(slots=True)
class Speeds:
    """Running means of a server's speeds; None until measured. `measured` are those of its profile:
    learning stays within a factor of four of them. `frozen` ones do not learn.
    """

    decode_tokens_per_s: float | None = None
    prefill_tokens_per_s: float | None = None
    measured: tuple[float | None, float | None] = (None, None)
    frozen: bool = False
    slowdown: float = 1.0  # of the last answer against the mean, at least 1: a hot machine, or another load
    tokens_an_event: float = 1.0  # of its streams: more with speculative decoding, or a stream interval

    def learn(
        self,
        tokens: float | None,
        decode_s: float | None,
        prefilled: float | None,
        prefill_s: float | None,
        events: int = 0,
    ) -> None:
        """Learn from one answer. `events` is the number of stream events with text, 0 if it must not be used
        to learn the tokens of an event. Small samples measure timers rather than speed, and are skipped.
        """
        if tokens and tokens >= MIN_TOKENS and (rate := rate_of(tokens, decode_s)) is not None:
            self.slowdown = min(max(1.0, (self.decode_tokens_per_s or rate) / rate), MAX_SLOWDOWN)
            if not self.frozen:
                self.decode_tokens_per_s = _mean(self.decode_tokens_per_s, rate, self.measured[0])
        if tokens and events >= MIN_TOKENS and not self.frozen:
            self.tokens_an_event = max(1.0, _mean(self.tokens_an_event, tokens / events, None))
        if self.frozen or not prefilled or prefilled < MIN_PREFILLED:
            return
        if (rate := rate_of(prefilled, prefill_s, FASTEST_PREFILL_TOKENS_PER_S)) is not None:
            self.prefill_tokens_per_s = _mean(self.prefill_tokens_per_s, rate, self.measured[1])

    def seconds(self, prompt_tokens: float, tokens: float) -> float:
        """Return the service time of a prompt and an answer of that many tokens, in seconds."""
        prefill = self.prefill_tokens_per_s or ASSUMED_PREFILL_TOKENS_PER_S
        decode = self.decode_tokens_per_s or ASSUMED_DECODE_TOKENS_PER_S
        return prompt_tokens / prefill + tokens / decode

    def read_s(self, tokens: float) -> float:
        return tokens / (self.prefill_tokens_per_s or ASSUMED_PREFILL_TOKENS_PER_S)


def rate_of(
    tokens: float | None, taken_s: float | None, fastest: float = FASTEST_DECODE_TOKENS_PER_S
) -> float | None:
    """Return the tokens a second of an answer; None where that is unknown, or no machine's speed."""
    if not tokens or not taken_s:
        return None
    rate = tokens / taken_s
    return rate if SLOWEST_TOKENS_PER_S <= rate <= fastest else None


def near(rate: float, known: float | None) -> float:
    """Return a rate, or what is nearest to it within `MAX_AT_ONCE` of what is known."""
    return rate if known is None else min(max(rate, known / MAX_AT_ONCE), known * MAX_AT_ONCE)


def _mean(old: float | None, new: float, measured: float | None, weight: float = 0.2) -> float:
    mean = new if old is None else old + weight * (near(new, old) - old)
    return mean if measured is None else min(4 * measured, max(measured / 4, mean))


# Of prompts that are preempted while they are being read.
HALF_BATCH_TOKENS = 1024.0  # until the first one: a server is taken to go on for half of llama.cpp's batch
ASSUMED_KEPT = 0.5
LATEST_WEIGHT = 0.5  # preemptions are few, and each costs time where the guess is wrong
MAX_GAP_S = 6.0  # from one to the next request in the slot, the time until the server hangs up included


@dataclass(slots=True)
class PromptPreemptions:
    """What a server does with a prompt that is preempted while it is being read; running means."""

    stop_s: float | None = None  # from a preemption until the slot is free; None until the first
    kept: float = ASSUMED_KEPT  # share of what was read that is found again
    closed_s: float | None = None  # when the last one was preempted, unless something has started since
    rest_s: float = 0.0  # how long the unread rest of its prompt would have taken

    def stops_s(self, read_s: Callable[[float], float], rest_s: float) -> float:
        """Return the expected seconds until the slot is free, at most the rest of the prompt."""
        return min(read_s(HALF_BATCH_TOKENS) if self.stop_s is None else self.stop_s, rest_s)

    def preempted(self, now: float, rest_s: float) -> None:
        self.closed_s, self.rest_s = now, rest_s

    def followed(self, granted_s: float) -> float | None:
        """Return when the preemption was that freed a slot granted at `granted_s`; None if there was none."""
        closed_s, self.closed_s = self.closed_s, None
        return closed_s if closed_s is not None and granted_s - closed_s <= MAX_GAP_S else None

    def stopped(self, took_s: float) -> None:
        """Learn how long the slot stayed taken, unless the prompt ended before that could be told."""
        if self.stop_s is None:
            self.stop_s = took_s
        elif took_s > self.stop_s or self.rest_s > self.stop_s:
            self.stop_s += LATEST_WEIGHT * (took_s - self.stop_s)

    def found(self, share: float) -> None:
        self.kept += LATEST_WEIGHT * (min(max(share, 0.0), 1.0) - self.kept)
