"""Falls back to arrival order while the predictor does no better than chance, and says so.

Predictions go on and are judged all the while, so the predictor can earn its place back. What an operator
chooses in the meantime holds.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from clairvoyant_cli.scheduler.policy import URGENCY_POLICY
from predictor.record import Predictor, Quality

FALLBACK_POLICY = "fcfs"


def quality_of(predictor: Predictor) -> Quality | None:
    """Return how a predictor does on this traffic; None from one that does not keep count."""
    quality: Callable[[], Quality] | None = getattr(predictor, "quality", None)
    return None if quality is None else quality()


@dataclass(slots=True)
class Fallback:
    """Watches a predictor's quality; levels of urgency do not depend on it. `displaced` is the policy
    that waits for its return, if any does.
    """

    predictor: Predictor
    displaced: str | None = None
    trusting: bool = True

    def review(self, policy: str, choose: Callable[[str], None], say: Callable[[int, str], None]) -> None:
        """Look at the predictor's quality and change the policy if it calls for it."""
        quality = quality_of(self.predictor)
        if quality is None:
            return
        if quality.trusted == self.trusting:
            return
        self.trusting = quality.trusted
        if not quality.trusted and policy not in (FALLBACK_POLICY, URGENCY_POLICY):
            self.displaced = policy
            choose(FALLBACK_POLICY)
            accuracy = "unknown" if quality.ranking_accuracy is None else f"{quality.ranking_accuracy:.2f}"
            say(
                logging.WARNING,
                f"the predictor ranks no better than chance on this traffic (ranking accuracy {accuracy} "
                f"over {quality.judged} answers): ordering by arrival until it does",
            )
        elif quality.trusted and self.displaced is not None:
            policy, self.displaced = self.displaced, None
            choose(policy)
            say(logging.INFO, f"the predictor has earned its place back: policy {policy} again")

    def chosen_by_operator(self) -> None:
        """The operator's choice holds, whatever was displaced."""
        self.displaced = None
