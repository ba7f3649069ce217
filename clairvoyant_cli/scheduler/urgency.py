"""How urgent a request is, who said so, and how far a client's own word goes.

Rule 1: level 0 is immediate, 4 whenever there is time: the Emergency Severity Index from 0 instead of 1
(semantic scheduling, section 3.1).
Rule 2: by saying that its requests are urgent a client gains no more than its share. While others wait, what
it says is believed as long as the seconds that its urgent requests have had of late are within its share of
all there were; beyond that they count as if nobody had said anything, or, where that was read in texts, as
if there was time: whose texts are honest has most of them read as less urgent than the middle.
What the operator says always counts.
Rule 3: whether a claim is believed is decided when its request would start, for only then is it known who
else waits; one that is not believed then is not believed later.
"""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import log

from clairvoyant_cli.scheduler.client_counts import Tally
from clairvoyant_cli.scheduler.fairness import ServiceCounters
from clairvoyant_cli.scheduler.job import Job

LEVELS = 5

UNSAID_URGENCY = 2
"""The level of a job whose urgency nobody said: the middle of the five."""

CLAIM_HALF_LIFE_S = 60.0
"""After this long, half of what a client was served as urgent is forgotten."""

CLAIM_WINDOW_S = CLAIM_HALF_LIFE_S / log(2.0)
"""What a counter of this half-life tends to for a slot that is never idle."""

REMEMBERED_S = 60.0
"""How long a claim that was not believed tells who shouts."""

MIN_REMEMBERED = 3
"""So many claims of a client within that time were not believed before it is one that shouts."""

MAX_REMEMBERED = 1000


class Said(StrEnum):
    """Who said how urgent a request is, the strongest first."""

    OPERATOR = "operator"
    RULE = "rule"
    CLIENT = "client"
    PREDICTOR = "predictor"
    SHARE = "share"
    """Nobody any more: its client has had its share of urgency."""
    NOBODY = ""


def level_of(job: Job) -> int:
    """Return the level that a job counts as."""
    return UNSAID_URGENCY if job.urgency is None else job.urgency


def is_claim(job: Job) -> bool:
    """Say whether a job goes before others because of what its client wrote."""
    return level_of(job) < UNSAID_URGENCY and job.urgency_by in (Said.CLIENT, Said.PREDICTOR)


def outranks(job: Job, other: Job) -> bool:
    """Say whether a job goes before another by what was written of its urgency, and by no word of the
    operator's: it claims to be urgent, or is more so than the other.
    """
    by_operator = job.urgency_by in (Said.OPERATOR, Said.RULE)
    return not by_operator and level_of(job) < max(level_of(other), UNSAID_URGENCY)


def unbelieved(job: Job) -> int | None:
    """Return the level of a job whose claim is not believed, None for that of which nothing was said."""
    return LEVELS - 1 if job.urgency_by == Said.PREDICTOR else None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A claim that was not believed; `share` is what its client's were held to, of the slots' time."""

    at_s: float
    client: str
    share: float


@dataclass(frozen=True, slots=True)
class Shouter:
    """Who claims more than its share, and how many claims of its were not believed in `REMEMBERED_S`."""

    client: str
    unbelieved: int
    share: float


class Claims:
    """The seconds that each client's claims were served of late. `refused` counts those not believed."""

    def __init__(self) -> None:
        self.refused = Tally()
        self._lately: deque[Refusal] = deque(maxlen=MAX_REMEMBERED)
        self._served = ServiceCounters(CLAIM_HALF_LIFE_S)

    def believes(self, job: Job, share: float, slots: Iterable[int], now: float) -> bool:
        """Say whether a job may go before others now by what its client says; `share` is its client's among
        those who wait, itself included.
        """
        if share >= 1.0 or not is_claim(job):
            return True
        return self._served.used_s(job.client, now) <= share * sum(slots) * CLAIM_WINDOW_S

    def refuse(self, client: str, share: float, now: float) -> None:
        """Note that a claim is not believed."""
        self.refused.add(client)
        self._lately.append(Refusal(now, client, share))

    def shouter(self, now: float) -> Shouter | None:
        """Return the client whose claims were refused most often of late, None if hardly any were."""
        lately = [each for each in self._lately if now - each.at_s <= REMEMBERED_S]
        loudest = Counter(each.client for each in lately).most_common(1)
        if not loudest or loudest[0][1] < MIN_REMEMBERED:
            return None
        client, times = loudest[0]
        return Shouter(client, times, next(each.share for each in reversed(lately) if each.client == client))

    def started(self, job: Job, now: float) -> None:
        """Charge a claim that starts with what it is predicted to take."""
        if is_claim(job):
            self._served.charge(job.client, job.cost_s, now)

    def exchanged(self, before: Job, after: Job, started_s: float, now: float) -> None:
        """Charge what runs by what is said of it from now on."""
        if is_claim(before):
            self._served.give_back(before.client, before.cost_s, started_s, now)
        self.started(after, now)

    def stopped(self, job: Job, started_s: float, now: float) -> None:
        """Charge it with what it took instead."""
        if is_claim(job):
            self._served.give_back(job.client, job.cost_s, started_s, now)
            self._served.charge(job.client, now - started_s, now)
