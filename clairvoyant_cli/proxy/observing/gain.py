"""What the order of service gained over order of arrival, from the pairs of `scheduler.arrival_order`."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from clairvoyant_cli.proxy.observing.request_stats import percentiles
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
class Day:
    """The sums of a day."""

    answers: int = 0
    estimated: int = 0
    saved_s: float = 0.0
    waited_s: float = 0.0
    spared_tokens: float = 0.0


@dataclass(slots=True)
class Gain:
    """The pairs of the last hour, and the sums of today and yesterday. `clock` is the wall clock. `by_class`
    are the waits of the pairs of the state that was returned last: ours, and in order of arrival. Those that
    are estimated are in the state as long as they are estimated, and nowhere else.
    """

    clock: Callable[[], float] = time.time
    by_class: tuple[tuple[ClassStats, ...], tuple[ClassStats, ...]] = ((), ())
    _by_class: Mapping[LengthClass, deque[Waits]] = field(
        default_factory=lambda: {each: deque(maxlen=MAX_PAIRS) for each in LengthClass}
    )
    _today: Day = field(default_factory=Day)
    _yesterday: Day = field(default_factory=Day)
    _began: float = 0.0  # today
    _behind: int = 0
    _state: tuple[float, GainState] = (float("-inf"), GainState())

    def compared(self, pair: Compared) -> None:
        """Add the pair of an ended request."""
        self.enter(*self._waits_of(pair), pair.spared_tokens, estimated=pair.estimated)

    def _waits_of(self, pair: Compared) -> tuple[LengthClass, Waits]:
        of: Ended = pair.subject
        return LengthClass(of.length_class), Waits(of.finished_at, of.waited_s, pair.saved_s)

    def enter(
        self, kind: LengthClass, waits: Waits, spared_tokens: float = 0.0, *, estimated: bool = False
    ) -> None:
        """Add a pair of a request that ended today or yesterday."""
        self.expire()
        self._by_class[kind].append(waits)
        day = self._today if waits.at >= self._began else self._yesterday
        day.answers += 1
        day.estimated += estimated
        day.saved_s += waits.saved_s
        day.waited_s += waits.waited_s
        day.spared_tokens += spared_tokens
        self._state = (float("-inf"), self._state[1])

    def state(self, behind: int = 0, estimates: Callable[[], Iterable[Compared]] = tuple) -> GainState:
        """Return the comparison, at most a second old. `estimates` returns the pairs of the `behind` answers
        whose waits in order of arrival are not known yet.
        """
        now = self.clock()
        if not 0.0 <= now - self._state[0] < STATE_EVERY_S or behind != self._behind:
            self._behind = behind
            self._state = (now, self._compared(now, [self._waits_of(pair) for pair in estimates()]))
        return self._state[1]

    def _compared(self, now: float, estimated: list[tuple[LengthClass, Waits]]) -> GainState:
        of = {
            kind: [waits for waits in pairs if now - WINDOW_S <= waits.at <= now]
            for kind, pairs in self._by_class.items()
        }
        for kind, waits in estimated:
            of[kind].append(waits)
        self.by_class = _waits(of, attrgetter("waited_s")), _waits(of, attrgetter("in_order_s"))
        return GainState(
            short_s=self.by_class[0][0].wait.p50,
            saved_today_s=self._today.saved_s + sum(waits.saved_s for _, waits in estimated),
            answers_today=self._today.answers + len(estimated),
            estimated_today=self._today.estimated + len(estimated),
            spared_tokens_today=self._today.spared_tokens,
            waited_today_s=self._today.waited_s + sum(waits.waited_s for _, waits in estimated),
            saved_yesterday_s=self._yesterday.saved_s,
            answers_yesterday=self._yesterday.answers,
        )

    def expire(self) -> None:
        """Begin another day at midnight. Call it every few seconds."""
        began = midnight_before(self.clock())
        if began != self._began:
            is_next = midnight_before(began - 1.0) == self._began
            self._yesterday, self._today = self._today if is_next else Day(), Day()
            self._began, self._state = began, (float("-inf"), GainState())


def _waits(of: Mapping[LengthClass, list[Waits]], which: Callable[[Waits], float]) -> tuple[ClassStats, ...]:
    return tuple(
        ClassStats(kind.value, percentiles([*map(which, pairs)]), Percentiles()) for kind, pairs in of.items()
    )
