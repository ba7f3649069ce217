"""What one server is believed to keep of the answers it has written, and what going on with one costs there.

No server tells how much its cache holds. What it still has when an answer goes on, and what it has to read
again, shows it.
"""

from dataclasses import dataclass, field
from math import inf

from clairvoyant_cli.scheduler.kept_contexts import KeptContexts


@dataclass(slots=True)
class LearntRoom:
    """How many tokens a server's cache holds, as far as it has shown: it tells nobody.

    What was still there shows that it holds that many `at_least`, what was gone that it does not hold
    `at_most`.
    """

    at_least: float = 0.0
    at_most: float = inf

    @property
    def tokens(self) -> float:
        """The room to reckon with: endless until something was gone."""
        return inf if self.at_most == inf else (self.at_least + self.at_most) / 2.0

    def was_kept(self, tokens: float) -> None:
        """A context was there that needed so much room."""
        self.at_least = max(self.at_least, tokens)
        if self.at_most <= self.at_least:
            self.at_most = inf  # it was gone for another reason then

    def was_lost(self, tokens: float) -> None:
        """A context was gone that needed so much room."""
        self.at_most = min(self.at_most, tokens)
        if self.at_least >= self.at_most:
            self.at_least = 0.0


@dataclass(slots=True)
class CacheContents:
    """The account of one server."""

    room: LearntRoom = field(default_factory=LearntRoom)
    kept: KeptContexts = field(default_factory=KeptContexts)
    _lost: dict[str, float] = field(default_factory=dict)

    def left(self, job_id: str, tokens: float, *, waits: bool, waited_for: bool = True) -> list[str]:
        """Take note that a request has left its slot, with so many tokens in it; return those that wait to go
        on and have lost theirs by that.
        """
        self._lost.pop(job_id, None)
        lost = self.kept.left(job_id, tokens, waits=waits, waited_for=waited_for)
        self._lost |= dict(lost)
        return [each.job_id for each in lost]

    @property
    def waiting(self) -> set[str]:
        """Those that wait to go on, their contexts there or lost."""
        return self._lost.keys() | self.kept.waiting

    def went_on(self, job_id: str, was_there: bool | None) -> None:
        """Take note that an answer goes on, and whether its context was there; None if nothing tells."""
        needed = self._lost.pop(job_id, 0.0) or self.kept.room_for(job_id)
        self.kept.taken(job_id)
        if needed and was_there is not None:
            (self.room.was_kept if was_there else self.room.was_lost)(needed)
            self.kept.room_tokens = self.room.tokens

    def ended(self, job_id: str) -> None:
        """Take note that an answer that waits to go on never will."""
        self._lost.pop(job_id, None)
        self.kept.ended(job_id)

    def clear(self) -> None:
        """The server has gone, and its cache with it; another may have more room."""
        self.room = LearntRoom()
        self.kept = KeptContexts()
        self._lost.clear()
