"""The arms of a bench: a policy, what it is told of the answers' lengths, and a starvation timeout."""

from dataclasses import dataclass
from enum import StrEnum

from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.scheduler.policy import POLICIES, SERVABLE

DIRECT = "direct"
"""The arm that sends past the proxy, straight to the backend."""

ORACLE = "oracle"
"""The arm that orders by the answers' real lengths: the bound no prediction can beat."""


class Knowledge(StrEnum):
    """What the scheduler is told of a question: the prediction, the true class, or the true length."""

    PREDICTED = "predicted"
    CLASSES = "classes"
    LENGTHS = "lengths"


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to serve the same questions. `policy` None goes past the proxy; `tau_s` 0 is no guard.

    `tau_s` None leaves the daemon's own timeout. Where classes are told, they are right with probability
    `accuracy`.
    """

    name: str
    policy: str | None
    knowledge: Knowledge = Knowledge.PREDICTED
    tau_s: float | None = None
    accuracy: float = 1.0

    @property
    def interrupts(self) -> bool:
        """Whether its policy cuts answers that run."""
        return self.policy is not None and POLICIES[self.policy].interrupts


def parse_arm(text: str) -> Arm:
    """Read an arm as it is written: `direct`, `oracle`, or POLICY[@classes|@N%|@lengths][:TAU_S].

    `@N%` tells short from long, right N times in a hundred.
    """
    name = text.strip()
    if name == DIRECT:
        return Arm(name, None)
    head, colon, tau = name.partition(":")
    policy, _, knowledge = head.partition("@")
    if policy == ORACLE and not knowledge:
        knowledge = Knowledge.LENGTHS
    if policy not in (ORACLE, *SERVABLE):
        raise _refusal(text, f"no policy {policy!r}; there are {DIRECT}, {ORACLE}, {', '.join(SERVABLE)}")
    accuracy = 1.0
    if knowledge.endswith("%"):
        accuracy = _share(knowledge[:-1], text)
        knowledge = Knowledge.CLASSES
    if knowledge and knowledge not in tuple(Knowledge):
        raise _refusal(text, "after @ comes classes, N% or lengths")
    try:
        tau_s = float(tau) if colon else None
    except ValueError:
        raise _refusal(text, "after : come seconds") from None
    if tau_s is not None and not 0 <= tau_s <= 86_400:
        raise _refusal(text, "tau must be between 0 and 86400 seconds")
    return Arm(name, policy, Knowledge(knowledge or Knowledge.PREDICTED), tau_s, accuracy)


def _share(percent: str, text: str) -> float:
    if not percent.isdecimal() or not 50 <= int(percent) <= 100:
        raise _refusal(text, "@N% takes a whole number from 50 to 100")
    return int(percent) / 100


def _refusal(text: str, why: str) -> ClairvoyantError:
    return ClairvoyantError(f"arm {text!r}: {why}", ExitCode.USAGE)
