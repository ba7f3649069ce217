"""How fast a backend works, and what follows for the time a request takes."""

from dataclasses import dataclass

ASSUMED_DECODE_TOKENS_PER_S = 30.0
ASSUMED_PREFILL_TOKENS_PER_S = 500.0
"""Until the backend has been seen at work: a small model on a laptop. Only ratios matter for the order."""


@dataclass(slots=True)
class Speeds:
    """Running means of what a backend does per second; None until measured.

    `measured` holds both as a profile has them: learning moves no further than a factor of four from
    there. `frozen` speeds do not learn.
    """

    decode_tokens_per_s: float | None = None
    prefill_tokens_per_s: float | None = None
    measured: tuple[float | None, float | None] = (None, None)
    frozen: bool = False

    def learn(
        self, tokens: float | None, decode_s: float | None, prefilled: float | None, prefill_s: float | None
    ) -> None:
        """Take note of one answer. Tiny samples say more about timers than about speed."""
        if self.frozen:
            return
        decode_measured, prefill_measured = self.measured
        if tokens and decode_s and tokens >= 8:
            self.decode_tokens_per_s = _mean(self.decode_tokens_per_s, tokens / decode_s, decode_measured)
        if prefilled and prefill_s and prefilled >= 32:
            rate = prefilled / prefill_s
            self.prefill_tokens_per_s = _mean(self.prefill_tokens_per_s, rate, prefill_measured)

    def seconds(self, prompt_tokens: float, tokens: float) -> float:
        """Return how long a prompt and an answer of so many tokens take."""
        prefill = self.prefill_tokens_per_s or ASSUMED_PREFILL_TOKENS_PER_S
        decode = self.decode_tokens_per_s or ASSUMED_DECODE_TOKENS_PER_S
        return prompt_tokens / prefill + tokens / decode


def _mean(old: float | None, new: float, measured: float | None, weight: float = 0.2) -> float:
    mean = new if old is None else old + weight * (new - old)
    return mean if measured is None else min(4 * measured, max(measured / 4, mean))
