"""Estimates what a server's cache still holds of answers that left its slots.

Servers do not report it: what is still cached when an answer continues, and what is not, shows it.
"""

from dataclasses import dataclass, field
from math import inf

from clairvoyant_cli.scheduler.kept_contexts import KeptContexts


@dataclass(slots=True)
class CacheContents:
    """The contexts that one server holds. Its cache holds `at_least` the tokens of a context that was still
    there, and not the `at_most` of one that was gone.
    """

    at_least: float = 0.0
    at_most: float = inf
    kept: KeptContexts = field(default_factory=KeptContexts)
    _lost: dict[str, float] = field(default_factory=dict)

    @property
    def tokens(self) -> float:
        """The assumed size of the cache: infinite until something was gone."""
        return inf if self.at_most == inf else (self.at_least + self.at_most) / 2.0

    @property
    def waiting(self) -> set[str]:
        """Answers that wait to continue, whether or not their contexts are still there."""
        return self._lost.keys() | self.kept.waiting

    def left(self, job_id: str, tokens: float, *, waits: bool, waited_for: bool = True) -> list[str]:
        """A request has left its slot with `tokens` in it; return the waiting ones that lost theirs."""
        self._lost.pop(job_id, None)
        lost = self.kept.left(job_id, tokens, waits=waits, waited_for=waited_for)
        self._lost |= dict(lost)
        return [each.job_id for each in lost]

    def went_on(self, job_id: str, was_there: bool | None) -> None:
        """An answer continues; `was_there` says whether its context was cached, None if unknown."""
        needed = self._lost.pop(job_id, 0.0) or self.kept.room_for(job_id)
        self.kept.taken(job_id)
        if needed and was_there is not None:
            if was_there:
                self.was_kept(needed)
            else:
                self.was_lost(needed)
            self.kept.room_tokens = self.tokens

    def was_kept(self, tokens: float) -> None:
        """A context of that size was still cached."""
        self.at_least = max(self.at_least, tokens)
        if self.at_most <= self.at_least:
            self.at_most = inf  # it was gone for another reason then

    def was_lost(self, tokens: float) -> None:
        """A context of that size was gone."""
        self.at_most = min(self.at_most, tokens)
        if self.at_least >= self.at_most:
            self.at_least = 0.0

    def ended(self, job_id: str) -> None:
        """A waiting answer will not continue."""
        self._lost.pop(job_id, None)
        self.kept.ended(job_id)

    def clear(self) -> None:
        """The server restarted: its cache is empty, and may have another size."""
        self.at_least, self.at_most = 0.0, inf
        self.kept = KeptContexts()
        self._lost.clear()
