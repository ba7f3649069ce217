"""Levels of urgency, their sources, and the limit on what clients may claim.

Rule 1: levels run from 0, immediate, to 4, not urgent: the Emergency Severity Index minus 1 (semantic
scheduling, section 3.1).
Rule 2: claims of urgency gain a client no more than its share. While others wait, its claims count as long as
the recent service of its urgent requests is within its share of all service. Beyond that they count as
unset; a level that was predicted from the text counts as the least urgent. The operator's levels always
count.
Rule 3: a claim is decided when its request would start, because only then is it known who else waits. The
decision is final.
"""

from enum import StrEnum
from math import log

from clairvoyant_cli.scheduler.fairness import ServiceCounters
from clairvoyant_cli.scheduler.job import Job, Run

LEVELS = 5

UNSAID_URGENCY = 2  # the level of a job without one: the middle of the five
CLAIM_HALF_LIFE_S = 60.0  # half-life of a client's recorded urgent service
CLAIM_WINDOW_S = CLAIM_HALF_LIFE_S / log(2.0)  # the limit of such a counter for a slot that is never idle


class UrgencySource(StrEnum):
    """Sources of a level of urgency, the strongest first."""

    OPERATOR = "operator"
    RULE = "rule"
    CLIENT = "client"
    PREDICTOR = "predictor"
    SHARE = "share"
    """The claim is ignored: its client has used its urgent share."""
    NOBODY = ""


def level_of(job: Job) -> int:
    return UNSAID_URGENCY if job.urgency is None else job.urgency


def is_claim(job: Job) -> bool:
    """Return whether a job goes before others because of a claim of its client."""
    return level_of(job) < UNSAID_URGENCY and job.urgency_by in (
        UrgencySource.CLIENT,
        UrgencySource.PREDICTOR,
    )


def outranks(job: Job, other: Job) -> bool:
    """Return whether a job precedes another by its claim of urgency, and not by the operator's word."""
    by_operator = job.urgency_by in (UrgencySource.OPERATOR, UrgencySource.RULE)
    return not by_operator and level_of(job) < max(level_of(other), UNSAID_URGENCY)


def level_beyond_share(job: Job) -> int | None:
    """Return the level of a job whose claim is ignored; None means unset."""
    return LEVELS - 1 if job.urgency_by == UrgencySource.PREDICTOR else None


class Claims:
    """The recent service of each client's claims."""

    def __init__(self) -> None:
        self._served = ServiceCounters(CLAIM_HALF_LIFE_S)

    def within_share(self, job: Job, share: float, slots: int, now: float) -> bool:
        """Return whether a job's claim counts now; `share` is its client's among the waiting clients."""
        if share >= 1.0 or not is_claim(job):
            return True
        return self._served.used_s(job.client, now) <= share * slots * CLAIM_WINDOW_S

    def charged(self, run: Run, now: float, sign: float = 1.0, received_s: float = 0.0) -> None:
        """Charge a running claim its predicted cost, as of its start; with a `sign` of -1, refund that, and
        charge the service that it has received.
        """
        job = run.job
        if is_claim(job):
            predicted_s = sign * job.cost_s
            self._served.charge(job.client, predicted_s, now, since_s=run.started_s, received_s=received_s)
