"""Falls back to arrival order while the predictor does no better than chance, and says so.

Rule 1: predictions go on and are judged all the while, so the predictor can earn its place back.
Rule 2: what an operator chooses in the meantime holds.
Rule 3: a policy that goes by levels of urgency or by clients' shares holds as well. Or a client whose answers
nobody can foretell would do away with the share that it is to keep to.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from clairvoyant_cli.scheduler.coverage import Coverage
from clairvoyant_cli.scheduler.policy import POLICIES
from predictor.record import Predictor, Quality

FALLBACK_POLICY = "fcfs"


def quality_of(predictor: Predictor) -> Quality | None:
    """Return how a predictor does on this traffic; None from one that does not keep count."""
    quality: Callable[[], Quality] | None = getattr(predictor, "quality", None)
    return None if quality is None else quality()


@dataclass(slots=True)
class Fallback:
    """Watches a predictor's quality. `displaced` is the policy that waits for its return, if any does."""

    predictor: Predictor
    coverage: Coverage | None = None
    displaced: str | None = None
    trusting: bool = True

    def review(self, policy: str, choose: Callable[[str], None], say: Callable[[int, str], None]) -> None:
        """Look at the predictor's quality and change the policy if it calls for it."""
        why = self._why_not(self.displaced or policy)
        if (why is None) == self.trusting:
            return
        self.trusting = why is None
        if why is not None and not _holds(policy):
            self.displaced = policy
            choose(FALLBACK_POLICY)
            say(logging.WARNING, f"{why}: ordering by arrival until it does")
        elif why is None and self.displaced is not None:
            policy, self.displaced = self.displaced, None
            choose(policy)
            say(logging.INFO, f"the predictor has earned its place back: policy {policy} again")

    def _why_not(self, policy: str) -> str | None:
        """Say why the predictor is not to be trusted with a policy; None if it is."""
        quality = quality_of(self.predictor)
        if quality is not None and not quality.trusted:
            accuracy = "unknown" if quality.ranking_accuracy is None else f"{quality.ranking_accuracy:.2f}"
            return (
                f"the predictor ranks no better than chance on this traffic (ranking accuracy {accuracy} "
                f"over {quality.judged} answers)"
            )
        coverage = self.coverage
        if coverage is not None and POLICIES[policy].candidates is not None and not coverage.trusted:
            return (
                f"the predictor knows no upper bounds on this traffic ({coverage.missed:.0%} of the answers "
                f"took longer than their quantile, {1.0 - coverage.alpha:.0%} should)"
            )
        return None

    def chosen_by_operator(self) -> None:
        """The operator's choice holds, whatever was displaced."""
        self.displaced = None


def _holds(policy: str) -> bool:
    """Whether a policy is worth following where no length can be foretold."""
    of = POLICIES[policy]
    return of.by_level or of.by_share or policy == FALLBACK_POLICY
