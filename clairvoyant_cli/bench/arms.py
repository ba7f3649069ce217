"""The arms of a bench: a policy, what it is told of the answers' lengths, and a starvation timeout."""

from dataclasses import dataclass
from enum import StrEnum

from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.scheduler.policy import SERVABLE

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

    `tau_s` None leaves the daemon's own timeout.
    """

    name: str
    policy: str | None
    knowledge: Knowledge = Knowledge.PREDICTED
    tau_s: float | None = None


def parse_arm(text: str) -> Arm:
    """Read an arm as it is written: `direct`, `oracle`, or POLICY[@classes|@lengths][:TAU_S]."""
    name = text.strip()
    if name == DIRECT:
        return Arm(name, None)
    head, colon, tau = name.partition(":")
    policy, _, knowledge = head.partition("@")
    if policy == ORACLE and not knowledge:
        knowledge = Knowledge.LENGTHS
    if policy not in (ORACLE, *SERVABLE):
        raise _refusal(text, f"no policy {policy!r}; there are {DIRECT}, {ORACLE}, {', '.join(SERVABLE)}")
    if knowledge and knowledge not in tuple(Knowledge):
        raise _refusal(text, "after @ comes classes or lengths")
    try:
        tau_s = float(tau) if colon else None
    except ValueError:
        raise _refusal(text, "after : come seconds") from None
    if tau_s is not None and not 0 <= tau_s <= 86_400:
        raise _refusal(text, "tau must be between 0 and 86400 seconds")
    return Arm(name, policy, Knowledge(knowledge or Knowledge.PREDICTED), tau_s)


def _refusal(text: str, why: str) -> ClairvoyantError:
    return ClairvoyantError(f"arm {text!r}: {why}", ExitCode.USAGE)
