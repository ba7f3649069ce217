"""Online correction of upper quantiles of service times, and whether they are met.

QUARTZ, sections 3.5 and 4.2: a table of corrections by regime follows the residuals. While too many requests
exceed their corrected quantile, predictions are not trusted.
"""

from collections import deque
from dataclasses import dataclass, field
from math import exp

ALPHA = 0.95  # the share of requests that should not exceed their quantile (QUARTZ, Table 3)
DELTA = 0.05  # predictions are distrusted above a miss rate of 1 - alpha + delta (QUARTZ, Table 3)
RATE = 0.08  # step of the log correction per outcome

WINDOW = 128  # outcomes used for trust
MIN_JUDGED = 64  # the least number needed
MAX_FACTOR = 16.0  # limit of a correction, up or down


@dataclass(slots=True)
class Coverage:
    """Corrections of quantiles by regime, and the recent rate of misses.

    Stochastic quantile tracking: a correction rises after a miss and falls otherwise, so that `alpha` is met
    in the long run for any distribution.
    """

    alpha: float = ALPHA
    delta: float = DELTA
    _factors: dict[str, float] = field(default_factory=dict)
    _missed: deque[bool] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def corrected(self, regime: str, quantile: float) -> float:
        """Return a quantile, in any unit, with the correction of its regime."""
        return quantile * self._factors.get(regime, 1.0)

    def learn(self, regime: str, corrected: float, actual: float) -> None:
        missed = actual > corrected
        factor = self._factors.get(regime, 1.0) * exp(RATE * (missed - (1.0 - self.alpha)))
        self._factors[regime] = min(max(factor, 1.0 / MAX_FACTOR), MAX_FACTOR)
        self._missed.append(missed)

    @property
    def missed(self) -> float:
        """The share of recent requests that exceeded their quantile."""
        return sum(self._missed) / len(self._missed) if self._missed else 0.0

    @property
    def trusted(self) -> bool:
        """Whether the miss rate is within its limit."""
        return len(self._missed) < MIN_JUDGED or self.missed <= 1.0 - self.alpha + self.delta
