"""Says with whose requests the predictor is not trusted, and falls back to arrival order where the upper
bounds that a policy goes by do not hold.

Rule 1: predictions go on and are judged all the while, so that the predictor can regain trust.
Rule 2: what an operator chooses in the meantime holds.
Rule 3: a client whose answers cannot be ranked loses its own order alone: all of its requests are predicted
alike (`predictor.trust`), and no policy is set aside for it.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from clairvoyant_cli.protocols.printable import NAME_CHARS, printable
from clairvoyant_cli.scheduler.policy import POLICIES
from clairvoyant_cli.scheduler.quantile_coverage import Coverage
from predictor.record import Distrusted, Predictor, Quality

FALLBACK_POLICY = "fcfs"


def quality_of(predictor: Predictor) -> Quality | None:
    """Return how a predictor does on this traffic; None from one that does not keep count."""
    quality: Callable[[], Quality] | None = getattr(predictor, "quality", None)
    return None if quality is None else quality()


def whose(distrusted: Distrusted) -> str:
    """Name a client, and the model that it asked for if it named one."""
    model = f" ({distrusted.model})" if distrusted.model else ""
    return printable(distrusted.client + model, 2 * NAME_CHARS)


@dataclass(slots=True)
class Fallback:
    """Watches a predictor's quality. `displaced` is the policy that waits until its upper bounds hold again,
    if any does.
    """

    predictor: Predictor
    coverage: Coverage | None = None
    displaced: str | None = None
    _distrusted: frozenset[str] = field(default_factory=frozenset)

    def review(self, policy: str, choose: Callable[[str], None], say: Callable[[int, str], None]) -> None:
        """Look at the predictor's quality, and change the policy if upper bounds call for it."""
        self._name_distrusted(say)
        coverage = self.coverage
        if coverage is None:
            return
        if self.displaced is None and POLICIES[policy].candidates is not None and not coverage.trusted:
            self.displaced = policy
            choose(FALLBACK_POLICY)
            news = (
                f"the predictor knows no upper bounds on this traffic ({coverage.missed:.0%} of the answers "
                f"took longer than their quantile, {1.0 - coverage.alpha:.0%} should)"
            )
            say(logging.WARNING, f"{news}: ordering by arrival until it does")
        elif self.displaced is not None and coverage.trusted:
            policy, self.displaced = self.displaced, None
            choose(policy)
            say(logging.INFO, f"the predictor's upper bounds hold again: policy {policy} again")

    def _name_distrusted(self, say: Callable[[int, str], None]) -> None:
        quality = quality_of(self.predictor)
        distrusted = {} if quality is None else {whose(each): each for each in quality.distrusted}
        for name in distrusted.keys() - self._distrusted:
            accuracy = distrusted[name].ranking_accuracy
            ranked = "unknown" if accuracy is None else f"{accuracy:.2f}"
            say(
                logging.WARNING,
                f"the predictor ranks the answers to {name} no better than chance (ranking accuracy {ranked} "
                f"over {distrusted[name].judged}): its requests are predicted alike until it does",
            )
        for name in self._distrusted - distrusted.keys():
            say(logging.INFO, f"the predictor is trusted with the requests of {name} again")
        self._distrusted = frozenset(distrusted)

    def chosen_by_operator(self) -> None:
        """The operator's choice holds, whatever was displaced."""
        self.displaced = None
