"""The service level objective (`--slo`): rejects requests whose predicted TTFT exceeds the target.

Rule 1: the forecast of TTFT is the scheduler's predicted start plus the prefill. Outcomes correct the
forecasts per class, until the promised share of requests stays within them.
Rule 2: a request that would miss the target on an idle server is not rejected: a retry would not help.
Rule 3: the objective is counted over all accepted requests, including those whose client left before it.
"""

import logging
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil, exp, inf
from typing import NamedTuple

from clairvoyant_cli.config import SLO
from clairvoyant_cli.protocols.errors import MAX_RETRY_AFTER_S
from clairvoyant_cli.proxy.access.clients import ClientCounts
from clairvoyant_cli.proxy.queue.ended import Ended, Outcome
from clairvoyant_cli.scheduler.job import Job
from clairvoyant_cli.scheduler.queue import Scheduler
from clairvoyant_cli.scheduler.start_forecast import start_of

FIRST_TOKEN_S = 0.1
"""Part of every forecast: connecting and the first token, so that a correction has something to multiply."""

RECENT = 200
MIN_RECENT = 20
"""Requests that an alert is based on, and the least number needed."""


RATE = 0.08  # step of the log correction per outcome
MAX_FACTOR = 16.0  # limit of a correction, up or down


class Objective(NamedTuple):
    """A share of the requests, and their TTFT in seconds."""

    share: float
    ttft_s: float


def objective_of(text: str) -> Objective:
    """Parse an objective such as `ttft-p95=2s`; ValueError if it is invalid."""
    found = SLO.fullmatch(text)
    if found is None:
        raise ValueError(text)
    percent, number, unit = found.groups()
    return Objective(float(percent) / 100.0, float(number) / (1000.0 if unit == "ms" else 1.0))


@dataclass(slots=True)
class ServiceLevel:
    """Forecasts, rejects and counts. `say` takes a logging level and a line."""

    text: str
    scheduler: Scheduler
    clock: Callable[[], float]
    say: Callable[[int, str], None]
    refused: int = 0
    alerting: bool = False
    judged: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    missed_by_client: ClientCounts = field(default_factory=ClientCounts)
    objective: Objective = field(init=False)
    # What forecasts are multiplied by, by class.
    _factors: dict[str, float] = field(default_factory=dict)
    _forecasts: dict[str, float] = field(default_factory=dict)
    _recent: deque[bool] = field(default_factory=lambda: deque(maxlen=RECENT))

    def __post_init__(self) -> None:
        self.objective = objective_of(self.text)

    def retry_after_s(self, job: Job, regime: str) -> float | None:
        """Return the seconds after which a job that arrives, of a predicted class, could meet the target
        without further arrivals; None if it meets it now or never could.
        """
        if not job.interactive:
            return None
        wait_s, read_s = start_of(self.scheduler, job, self.clock())
        if wait_s == inf:
            return None  # no server is available: the rules of an outage apply
        factor = self._factors.get(regime, 1.0)
        forecast_s = factor * (wait_s + read_s + FIRST_TOKEN_S)
        least_s = factor * (read_s + FIRST_TOKEN_S)
        if forecast_s <= self.objective.ttft_s or least_s > self.objective.ttft_s or not wait_s:
            self._forecasts[job.id] = forecast_s
            return None
        self.refused += 1
        return min(float(ceil((forecast_s - self.objective.ttft_s) / factor)), MAX_RETRY_AFTER_S)

    def ended(self, ended: Ended) -> None:
        forecast_s, actual_s = self._forecasts.pop(ended.id, None), _first_token_s(ended)
        if forecast_s is None or actual_s is None:
            return
        self._learn(ended.predicted_class, late=actual_s > forecast_s)
        missed = actual_s > self.objective.ttft_s
        self.judged[ended.predicted_class] += 1
        self._recent.append(missed)
        if missed:
            self.missed[ended.predicted_class] += 1
            self.missed_by_client.add(ended.principal)
        self._alert()

    def _learn(self, regime: str, *, late: bool) -> None:
        """Correct the forecasts of a class by stochastic quantile tracking (QUARTZ, section 3.5): the factor
        rises after a start that was later than forecast and falls otherwise, so that the promised share is
        met in the long run for any distribution.
        """
        factor = self._factors.get(regime, 1.0) * exp(RATE * (late - (1.0 - self.objective.share)))
        self._factors[regime] = min(max(factor, 1.0 / MAX_FACTOR), MAX_FACTOR)

    @property
    def recent_missed(self) -> float:
        return sum(self._recent) / len(self._recent) if self._recent else 0.0

    def _alert(self) -> None:
        broken = len(self._recent) >= MIN_RECENT and self.recent_missed > 1.0 - self.objective.share + 1e-9
        if broken == self.alerting:
            return
        self.alerting = broken
        share = f"{self.recent_missed:.0%} of the last {len(self._recent)} requests"
        if broken:
            self.say(logging.WARNING, f"objective {self.text} is not met: {share} were late")
        else:
            self.say(logging.INFO, f"objective {self.text} is met again: {share} were late")


def _first_token_s(ended: Ended) -> float | None:
    """Return TTFT in seconds, or the wait of a client that left before; None if it is unknown: an unstreamed
    answer has it only if the server reports its prefill time.
    """
    if ended.outcome is not Outcome.COMPLETED and ended.ttft_s is None:
        return ended.sojourn_s if ended.outcome in (Outcome.CLIENT_CANCELLED, Outcome.TIMEOUT) else None
    if ended.stream:
        return ended.ttft_s
    return None if ended.totals.prefill_s is None else ended.waited_s + ended.totals.prefill_s
