"""What a server does with a prompt whose client leaves while it is being read: learned from cuts.

llama.cpp goes on to the end of its batch (`--batch-size`, 2,048 tokens by default), and finds what it has
read again if its host cache is on. Others may never stop, or start again from nothing; no server says so.
"""

from collections.abc import Callable
from dataclasses import dataclass

HALF_BATCH_TOKENS = 1024.0  # until the first cut: a server is taken to go on for half of llama.cpp's batch
ASSUMED_KEPT = 0.5
LATEST_WEIGHT = 0.5  # cuts are few, and each costs time where the guess is wrong
MAX_GAP_S = 6.0  # from a cut to the next request in the slot, the time until the server hangs up included
MIN_SHARE = 0.3  # of a prompt that was read, from which its prefill time tells whether that was still there


@dataclass(slots=True)
class PromptCuts:
    """Running means: `stop_s`, the seconds from a cut until the slot is free, None until the first; `kept`,
    the share of what was read that is found again. `closed_s` is the time of a cut after which nothing has
    started, `rest_s` the unread rest of its prompt in seconds.
    """

    stop_s: float | None = None
    kept: float = ASSUMED_KEPT
    closed_s: float | None = None
    rest_s: float = 0.0

    def stops_s(self, read_s: Callable[[float], float], rest_s: float) -> float:
        """Return the expected seconds until the slot is free, at most the rest of the prompt."""
        return min(read_s(HALF_BATCH_TOKENS) if self.stop_s is None else self.stop_s, rest_s)

    def cut(self, now: float, rest_s: float) -> None:
        self.closed_s, self.rest_s = now, rest_s

    def followed(self, granted_s: float) -> float | None:
        """Return the time of the cut that freed a slot granted at `granted_s`; None if there was none."""
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


def share_found(
    read_s: float,
    prompt_s: float,
    took_s: float | None,
    prompt_tokens: int | None,
    prefilled_tokens: int | None,
    saved_s: float = 0.0,
) -> float | None:
    """Return the share of what was read before a cut that was found again; None if that cannot be told.

    `read_s` of `prompt_s` seconds were read before; then the prompt took `took_s`; `saved_s` of it were
    cached from the start. Where the server reports fewer prefilled tokens than the prompt has, these tell; a
    count of all may mean that none was found or that it counts in this way.
    """
    if prompt_tokens and prefilled_tokens and prefilled_tokens < prompt_tokens and prompt_s > 0.0:
        return ((1.0 - prefilled_tokens / prompt_tokens) * prompt_s - saved_s) / read_s
    if took_s is None or read_s < MIN_SHARE * prompt_s:
        return None
    return (prompt_s - saved_s - took_s) / read_s
