"""Falls back to arrival order while the upper bounds that a policy uses do not hold.

Rule 1: predictions continue and are judged, so that the policy can return.
Rule 2: the operator's choice of a policy holds.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from clairvoyant_cli.scheduler.policy import POLICIES
from clairvoyant_cli.scheduler.quantile_coverage import Coverage

FALLBACK_POLICY = "fcfs"


@dataclass(slots=True)
class ArrivalFallback:
    """Watches a policy's upper bounds. `displaced` is the policy to restore once they hold."""

    coverage: Coverage | None = None
    displaced: str | None = None

    def review(self, policy: str, choose: Callable[[str], None], say: Callable[[int, str], None]) -> None:
        """Change the policy, and report it, if upper bounds require it."""
        coverage = self.coverage
        if coverage is None:
            return
        if self.displaced is None and POLICIES[policy].candidates is not None and not coverage.trusted:
            self.displaced = policy
            choose(FALLBACK_POLICY)
            news = (
                f"predicted upper bounds do not hold on this traffic ({coverage.missed:.0%} of the answers "
                f"exceeded their quantile, {1.0 - coverage.alpha:.0%} should)"
            )
            say(logging.WARNING, f"{news}: using arrival order until they do")
        elif self.displaced is not None and coverage.trusted:
            policy, self.displaced = self.displaced, None
            choose(policy)
            say(logging.INFO, f"predicted upper bounds hold again: back to policy {policy}")

    def chosen_by_operator(self) -> None:
        """Forget the displaced policy: the operator has chosen one."""
        self.displaced = None
