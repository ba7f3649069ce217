"""Whether upper quantiles of service times are met as often as they promise, and what corrects them online.

QUARTZ, sections 3.5 and 4.2: a table of corrections, by regime, follows the residuals; where too many
requests take longer than their quantile all the same, predictions are not to be relied upon for the moment.
"""

from collections import deque
from dataclasses import dataclass, field
from math import exp

ALPHA = 0.95
"""The share of requests that should take no longer than their quantile (QUARTZ, Table 3)."""

DELTA = 0.05
"""So much more than 1 - alpha may be missed before predictions are distrusted (QUARTZ, Table 3)."""

RATE = 0.08
"""How far one outcome moves a correction, on the logarithm."""

WINDOW = 128
MIN_JUDGED = 64
"""Outcomes that are looked at for trust, and how many there must be."""

MAX_FACTOR = 16.0
"""A correction goes no further than so many times up or down: what lies beyond is no question of spread."""


@dataclass(slots=True)
class Coverage:
    """Corrections of quantiles by regime, and how often the corrected ones were missed of late.

    A correction rises after a miss and falls otherwise so that `alpha` is met in the long run, whatever the
    distribution: stochastic quantile tracking.
    """

    alpha: float = ALPHA
    delta: float = DELTA
    _factors: dict[str, float] = field(default_factory=dict)
    _missed: deque[bool] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def corrected(self, regime: str, quantile: float) -> float:
        """Return a quantile, in any unit, as the outcomes of its regime correct it."""
        return quantile * self._factors.get(regime, 1.0)

    def learn(self, regime: str, corrected: float, actual: float) -> None:
        """Take note of what became of a request whose corrected quantile was this."""
        missed = actual > corrected
        factor = self._factors.get(regime, 1.0) * exp(RATE * (missed - (1.0 - self.alpha)))
        self._factors[regime] = min(max(factor, 1.0 / MAX_FACTOR), MAX_FACTOR)
        self._missed.append(missed)

    @property
    def missed(self) -> float:
        """The share of the recent ones that took longer than their quantile."""
        return sum(self._missed) / len(self._missed) if self._missed else 0.0

    @property
    def trusted(self) -> bool:
        """Whether the quantiles are missed no more often than is bearable."""
        return len(self._missed) < MIN_JUDGED or self.missed <= 1.0 - self.alpha + self.delta
