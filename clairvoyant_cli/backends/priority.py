"""How an engine that orders its own queue is told what goes first, and whether it is known to listen."""

from dataclasses import dataclass

from clairvoyant_cli.protocols.engine_metrics import EngineMetrics
from clairvoyant_cli.protocols.routes import Shape

FIELD = "priority"
"""What vLLM and SGLang both call it in a request's body."""

LEVEL_S = 1 << 33
"""One level of a client's priority, in seconds: 272 years outweigh any time of arrival. A hundred levels in
milliseconds stay below 2^53, up to where every JSON reader has whole numbers, and so within 64 bits."""

MAX_IN_FLIGHT = 1024
"""Requests that an engine which orders its own queue may have at once: as many as vLLM batches on the largest
cards. What comes beyond waits here, by our policy."""


@dataclass(frozen=True, slots=True)
class Priority:
    """The numbers by which an engine orders its queue, and what it has to be started with: `flag`.

    `per_s` says how fine they are, in steps a second; `shapes` whose requests carry one; the rest the engine
    treats as it likes. `metrics` are the names of what it says of its queue at `/metrics`.
    """

    flag: str
    shapes: frozenset[Shape]
    metrics: EngineMetrics
    per_s: int = 1000
    lower_first: bool = True

    def number(self, due_s: float, level: int = 0) -> int:
        """Return the number of a request that is due then, epoch seconds; a lower `level`, from -100 to 100,
        goes before all that are higher.
        """
        number = round((due_s + level * LEVEL_S) * self.per_s)
        return number if self.lower_first else -number


@dataclass(frozen=True, slots=True)
class Heeding:
    """Whether an engine orders by priority, and by which; `priority` None if it does not.

    `known` is False where nothing shows it from here; `why` says in words what was seen.
    """

    known: bool
    priority: Priority | None = None
    why: str = ""


UNKNOWN = Heeding(known=False)
