"""Online correction of upper quantiles: a table of corrections by regime follows the residuals (QUARTZ,
sections 3.5 and 4.2).
"""

from dataclasses import dataclass, field
from math import exp

RATE = 0.08
"""Step of the log correction per outcome."""

MAX_FACTOR = 16.0
"""Limit of a correction, up or down."""


@dataclass(slots=True)
class Coverage:
    """Corrections of quantiles by regime; `alpha` is the share of outcomes that should not exceed them.

    Stochastic quantile tracking: a correction rises after a miss and falls otherwise, so that `alpha` is met
    in the long run for any distribution.
    """

    alpha: float = 0.95
    _factors: dict[str, float] = field(default_factory=dict)

    def corrected(self, regime: str, quantile: float) -> float:
        """Return a quantile, in any unit, with the correction of its regime."""
        return quantile * self._factors.get(regime, 1.0)

    def learn(self, regime: str, corrected: float, actual: float) -> None:
        missed = actual > corrected
        factor = self._factors.get(regime, 1.0) * exp(RATE * (missed - (1.0 - self.alpha)))
        self._factors[regime] = min(max(factor, 1.0 / MAX_FACTOR), MAX_FACTOR)
