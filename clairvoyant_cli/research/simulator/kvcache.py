"""What becomes of a preempted request's KV cache, and what resuming it costs.

Semantic scheduling (section 3.3) keeps it on the device while there is room, evicts the least urgent and
longest first (its second heap), and then either reloads it from the host or computes it anew, whichever is
cheaper (its Eq. 3 to 6). Two slips of the paper are not copied:
* Eq. 3 calls caching the better choice where loading takes longer than computing; it is the other way round.
* Eq. 6 does not minimise Eq. 5. With d = m' - m* tokens computed anew, Eq. 5 is convex in d and least at
  d = (beta - gamma_2) / gamma_1 - n - 1/2, so m* = m' - d, held between 0 and m'. `tokens_to_keep` is that.
"""

from dataclasses import dataclass
from typing import Protocol

from clairvoyant_cli.scheduler.kept_contexts import KeptContexts


class KvCache(Protocol):
    """What a batch simulation asks of the cache of preempted requests."""

    def paused(self, number: int, tokens: float, key: float) -> None:
        """Take note that a request was preempted, its tokens in the cache and its key in the queue."""
        ...

    def resume_s(self, number: int, prompt_tokens: float, done: float) -> float:
        """Return the seconds it would take to bring the request's cache back."""
        ...

    def resumed(self, number: int) -> None:
        """Take note that the request runs again."""
        ...


@dataclass(frozen=True, slots=True)
class Rates:
    """Seconds per token: prefill `alpha_1` n^2 + `alpha_2` n, decode `gamma_1` i + `gamma_2` for token i,
    load or save `beta` n (semantic scheduling, section 3.3).
    """

    alpha_1: float
    alpha_2: float
    beta: float
    gamma_1: float
    gamma_2: float

    def prefill_s(self, tokens: float) -> float:
        """Return the time to compute the cache of a prompt (left side of Eq. 3)."""
        return self.alpha_1 * tokens * tokens + self.alpha_2 * tokens

    def decode_s(self, prompt_tokens: float, tokens: float) -> float:
        """Return the time to decode so many tokens after a prompt (Eq. 4)."""
        m = tokens
        return self.gamma_1 * (m * m / 2.0 + prompt_tokens * m + m / 2.0) + self.gamma_2 * m

    def tokens_to_keep(self, prompt_tokens: float, done: float) -> float:
        """Return how many decoded tokens' cache to keep for the cheapest resumption (least of Eq. 5)."""
        if self.gamma_1 == 0.0:
            return done if self.beta <= self.gamma_2 else 0.0
        anew = (self.beta - self.gamma_2) / self.gamma_1 - prompt_tokens - 0.5
        return done - min(max(anew, 0.0), done)

    def tokens_to_keep_as_printed(self, prompt_tokens: float) -> float:
        """Return what Eq. 6 as printed keeps; for comparison."""
        top = self.beta - self.gamma_1 * prompt_tokens - (self.gamma_1 + 2.0 * self.gamma_2) / 2.0
        return max(0.0, top / (2.0 * self.gamma_1))

    def resume_with_s(self, prompt_tokens: float, done: float, kept: float) -> float:
        """Return the cost of resuming with so many decoded tokens kept (Eq. 5, and Eq. 3 for the prompt)."""
        prompt_s = min(self.beta * prompt_tokens, self.prefill_s(prompt_tokens))
        return prompt_s + self.beta * kept + self.decode_s(prompt_tokens, done - kept)

    def resume_s(self, prompt_tokens: float, done: float) -> float:
        """Return the least cost of resuming an evicted request."""
        return self.resume_with_s(prompt_tokens, done, self.tokens_to_keep(prompt_tokens, done))


class Discarded:
    """No cache survives a preemption: prompt and answer so far are prefilled again (vLLM's recompute)."""

    def __init__(self, rates: Rates) -> None:
        self._rates = rates

    def paused(self, number: int, tokens: float, key: float) -> None:
        """Forget it."""

    def resume_s(self, number: int, prompt_tokens: float, done: float) -> float:
        """Return the time of a prefill of all there was."""
        return self._rates.prefill_s(prompt_tokens + done)

    def resumed(self, number: int) -> None:
        """Nothing to do."""


class Evicting:
    """Caches stay on the device until it is full, then the least urgent leaves first.

    `capacity_tokens` is the room for the caches of preempted requests: what running ones leave.
    """

    def __init__(self, rates: Rates, capacity_tokens: float) -> None:
        self._rates = rates
        self._resident = KeptContexts(capacity_tokens)
        self.evictions = 0

    def paused(self, number: int, tokens: float, key: float) -> None:
        """Keep it, and evict the least urgent while the device is over its capacity."""
        self.evictions += len(self._resident.left(str(number), tokens, key=key))

    def resume_s(self, number: int, prompt_tokens: float, done: float) -> float:
        """Return 0 while it is on the device, the cheaper of reloading and recomputing after."""
        return 0.0 if str(number) in self._resident else self._rates.resume_s(prompt_tokens, done)

    def resumed(self, number: int) -> None:
        """It is in use again, and no candidate for eviction."""
        self._resident.taken(str(number))
