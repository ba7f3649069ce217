"""What the order of service gained over order of arrival, from the pairs of `scheduler.arrival_order`."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from clairvoyant_cli.proxy.observing.request_stats import percentiles
from clairvoyant_cli.proxy.observing.tally import Tally
from clairvoyant_cli.proxy.queue.ended import Ended
from clairvoyant_cli.scheduler.arrival_order import Compared
from clairvoyant_cli.state.snapshot import ClassStats, GainState, Percentiles
from predictor.record import LengthClass

WINDOW_S = 3600.0
MAX_PAIRS = 2000
"""Pairs of each class that are looked at; of more in an hour, the newest."""

STATE_EVERY_S = 1.0


class Waits(NamedTuple):
    """When a request ended on the wall clock, its wait, and how much longer it waits in order of arrival."""

    at: float
    waited_s: float
    saved_s: float

    @property
    def in_order_s(self) -> float:
        """Its wait in order of arrival."""
        return max(self.waited_s + self.saved_s, 0.0)


def midnight_before(now: float) -> float:
    """Return when the local day began, in epoch seconds."""
    then = time.localtime(now)
    return time.mktime((then.tm_year, then.tm_mon, then.tm_mday, 0, 0, 0, 0, 0, -1))


@dataclass(slots=True)
class Gain:
    """The pairs of the last hour, beside the sums of today and yesterday in the tally. `by_class` has the
    waits of the pairs of the state that was returned last: ours, and in order of arrival. Those that are
    estimated are in the state as long as they are estimated, and nowhere else.
    """

    tally: Tally
    by_class: tuple[tuple[ClassStats, ...], tuple[ClassStats, ...]] = ((), ())
    _by_class: Mapping[LengthClass, deque[Waits]] = field(
        default_factory=lambda: {each: deque(maxlen=MAX_PAIRS) for each in LengthClass}
    )
    _behind: int = 0
    _state: tuple[float, GainState] = (float("-inf"), GainState())

    def compared(self, pair: Compared) -> None:
        """Add the pair of an ended request."""
        of: Ended = pair.subject
        self.tally.compared(of, pair.saved_s, pair.spared_tokens)
        self.enter(of.length_class, Waits(of.finished_at, of.waited_s, pair.saved_s))

    def clear(self) -> None:
        """Forget all pairs, and the sums."""
        self.tally.clear()
        for pairs in self._by_class.values():
            pairs.clear()
        self._state = (float("-inf"), self._state[1])

    def enter(self, length_class: str, waits: Waits) -> None:
        """Add the waits of a pair whose gain the tally has."""
        self._by_class[LengthClass(length_class)].append(waits)
        self._state = (float("-inf"), self._state[1])

    def state(self, behind: int = 0, estimates: Callable[[], Iterable[Compared]] = tuple) -> GainState:
        """Return the comparison, at most a second old. `estimates` returns the pairs of the `behind` answers
        whose waits in order of arrival are not known yet.
        """
        now = self.tally.clock()
        if not 0.0 <= now - self._state[0] < STATE_EVERY_S or behind != self._behind:
            self._behind = behind
            self._state = now, self._compared(now, [*estimates()])
        return self._state[1]

    def _compared(self, now: float, estimated: list[Compared]) -> GainState:
        of = {
            kind: [waits for waits in pairs if now - WINDOW_S <= waits.at <= now]
            for kind, pairs in self._by_class.items()
        }
        for pair in estimated:
            ended: Ended = pair.subject
            of[LengthClass(ended.length_class)].append(Waits(now, ended.waited_s, pair.saved_s))
        self.by_class = _waits(of, attrgetter("waited_s")), _waits(of, attrgetter("in_order_s"))
        midnight = midnight_before(now)
        today = self.tally.between(midnight, now)
        yesterday = self.tally.between(midnight_before(midnight - 1.0), midnight - 1.0)
        return GainState(
            short_s=self.by_class[0][0].wait.p50,
            saved_today_s=today.saved_s + sum(pair.saved_s for pair in estimated),
            answers_today=round(today.compared) + len(estimated),
            estimated_today=len(estimated),
            spared_tokens_today=today.spared_tokens,
            waited_today_s=today.compared_waited_s + sum(pair.subject.waited_s for pair in estimated),
            saved_yesterday_s=yesterday.saved_s,
            answers_yesterday=round(yesterday.compared),
        )


def _waits(of: Mapping[LengthClass, list[Waits]], which: Callable[[Waits], float]) -> tuple[ClassStats, ...]:
    return tuple(
        ClassStats(kind.value, percentiles([*map(which, pairs)]), Percentiles()) for kind, pairs in of.items()
    )
