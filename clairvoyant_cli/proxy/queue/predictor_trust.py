"""Reports clients whose answers the predictor cannot rank, and falls back to arrival order while the upper
bounds that a policy uses do not hold.

Rule 1: predictions continue and are judged, so that trust can return.
Rule 2: the operator's choice of a policy holds.
Rule 3: for a client whose answers cannot be ranked, all requests get the same prediction (`predictor.trust`);
the policy does not change.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from clairvoyant_cli.protocols.printable import NAME_CHARS, printable
from clairvoyant_cli.scheduler.policy import POLICIES
from clairvoyant_cli.scheduler.quantile_coverage import Coverage
from predictor.record import Distrusted, Predictor

FALLBACK_POLICY = "fcfs"


def whose(distrusted: Distrusted) -> str:
    """Name a client, and the model that it asked for if it named one."""
    model = f" ({distrusted.model})" if distrusted.model else ""
    return printable(distrusted.client + model, 2 * NAME_CHARS)


@dataclass(slots=True)
class PredictorTrust:
    """Watches a predictor's quality. `displaced` is the policy to restore once its bounds hold."""

    predictor: Predictor
    coverage: Coverage | None = None
    displaced: str | None = None
    _distrusted: frozenset[str] = field(default_factory=frozenset)

    def review(self, policy: str, choose: Callable[[str], None], say: Callable[[int, str], None]) -> None:
        """Report changes of trust, and change the policy if upper bounds require it."""
        self._name_distrusted(say)
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

    def _name_distrusted(self, say: Callable[[int, str], None]) -> None:
        distrusted = {whose(each): each for each in self.predictor.quality().distrusted}
        for name in distrusted.keys() - self._distrusted:
            accuracy = distrusted[name].ranking_accuracy
            ranked = "unknown" if accuracy is None else f"{accuracy:.2f}"
            say(
                logging.WARNING,
                f"the predictor ranks the answers to {name} no better than chance (ranking accuracy {ranked} "
                f"over {distrusted[name].judged}): its requests get equal predictions until it does",
            )
        for name in self._distrusted - distrusted.keys():
            say(logging.INFO, f"the predictor is trusted again for the requests of {name}")
        self._distrusted = frozenset(distrusted)

    def chosen_by_operator(self) -> None:
        """Forget the displaced policy: the operator has chosen one."""
        self.displaced = None
