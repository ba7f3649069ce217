"""Priorities for engines that order their own queues, and whether an engine is known to heed them."""

from dataclasses import dataclass

from clairvoyant_cli.protocols.probes import EngineMetrics
from clairvoyant_cli.protocols.routes import Shape

FIELD = "priority"  # what vLLM and SGLang both call it in a request's body
# One level of a client's priority, in seconds: 272 years outweigh any arrival time. A hundred levels in
# milliseconds stay below 2^53, which every JSON reader can represent.
LEVEL_S = 1 << 33
MAX_IN_FLIGHT = 1024  # requests that an engine may have at once: as many as vLLM batches on the largest cards


@dataclass(frozen=True, slots=True)
class Priority:
    """The priorities that an engine orders by, and the `flag` it must be started with.

    `per_s` are steps per second, `shapes` the routes whose requests carry one, `metrics` the names of its
    queue's metrics at `/metrics`.
    """

    flag: str
    metrics: EngineMetrics
    per_s: int = 1000
    lower_first: bool = True
    shapes: frozenset[Shape] = frozenset({Shape.CHAT, Shape.COMPLETION, Shape.RESPONSES, Shape.EMBEDDING})

    def number(self, due_s: float, level: int = 0) -> int:
        """Return the number for a due time in epoch seconds. Lower levels, from -100 to 100, go first."""
        number = round((due_s + level * LEVEL_S) * self.per_s)
        return number if self.lower_first else -number


@dataclass(frozen=True, slots=True)
class Heeding:
    """Whether an engine orders by priority: `priority` is None if not, `known` False if it cannot be told.
    `why` says what was seen.
    """

    known: bool
    priority: Priority | None = None
    why: str = ""


UNKNOWN = Heeding(known=False)
