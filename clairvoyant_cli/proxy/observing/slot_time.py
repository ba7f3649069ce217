"""Who had the slots: slot time by program, and what each gained over order of arrival.

`history --report` sums the same figures up from the history.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from clairvoyant_cli.proxy.queue.ended import Ended
from clairvoyant_cli.proxy.queue.exchange import Exchange
from clairvoyant_cli.scheduler.arrival_order import Compared
from clairvoyant_cli.state.snapshot import ProgramsState, ProgramState, UseState

HOUR = 60.0, 60
DAY = 1800.0, 48
"""Steps, in seconds, and how many of them."""

MAX_PROGRAMS = 32
SHOWN = 12
UNKNOWN, OTHERS = "-", "others"
STATE_EVERY_S = 1.0


@dataclass(slots=True)
class Use:
    """The slot time of a program, and how much longer some answers would have waited in order of arrival."""

    slot_s: float = 0.0
    saved_s: float = 0.0
    compared: int = 0

    def add(self, other: "Use") -> None:
        self.slot_s += other.slot_s
        self.saved_s += other.saved_s
        self.compared += other.compared

    @property
    def state(self) -> UseState:
        return UseState(self.slot_s, self.saved_s, self.compared)


Uses = defaultdict[str, Use]


def divided(since: float, until: float, step_s: float, most: int) -> Iterator[tuple[int, float]]:
    """Yield the steps that a span touches, at most `most` before the last, each with its seconds in it."""
    last = int(until // step_s)
    for step in range(max(int(since // step_s), last - most), last + 1):
        begins = step * step_s
        yield step, min(until, begins + step_s) - max(since, begins)


@dataclass(slots=True)
class Steps:
    """What programs used in each step of time; the newest steps are kept. Times are epoch seconds."""

    step_s: float
    number: int
    uses: dict[int, Uses] = field(default_factory=dict)

    def used(self, program: str, since: float, until: float) -> None:
        """Add a use of a slot."""
        for step, slot_s in divided(since, until, self.step_s, self.number):
            self._at(step)[program].slot_s += slot_s

    def saved(self, program: str, at: float, saved_s: float) -> None:
        """Add the comparison of an answer that ended at a time."""
        self._at(int(at // self.step_s))[program].add(Use(0.0, saved_s, 1))

    def _at(self, step: int) -> Uses:
        return self.uses.setdefault(step, Uses(Use))

    def newest(self, now: float) -> list[Uses]:
        """Return the last steps, the oldest first; the last one lasts until now. Those far from now are
        dropped, also if the clock was set back.
        """
        last = int(now // self.step_s)
        self.uses = {step: uses for step, uses in self.uses.items() if abs(step - last) < self.number}
        return [self.uses.get(step, Uses(Use)) for step in range(last - self.number + 1, last + 1)]

    def covers_s(self, now: float) -> float:
        """Return how long the steps last until now."""
        return now - (now // self.step_s - self.number + 1) * self.step_s


@dataclass(slots=True)
class SlotTime:
    """Slot time by program. `clock` is the wall clock."""

    clock: Callable[[], float] = time.time
    began_at: float = field(init=False)  # since when it is known
    _hour: Steps = field(default_factory=partial(Steps, *HOUR))
    _day: Steps = field(default_factory=partial(Steps, *DAY))
    _names: set[str] = field(default_factory=set)
    _state: tuple[float, ProgramsState] = (float("-inf"), ProgramsState())

    def __post_init__(self) -> None:
        self.began_at = self.clock()

    def ended(self, of: Ended) -> None:
        """Add the uses of an ended request."""
        for use in of.uses:
            if use.worked:
                self.used(of.program, of.at(use.granted_s), of.at(use.ended_s))

    def compared(self, pair: Compared) -> None:
        of: Ended = pair.subject
        self.saved(of.program, of.finished_at, pair.saved_s)

    def used(self, program: str, since: float, until: float) -> None:
        """Add a use of a slot, also one from before the daemon was started."""
        if until <= since:
            return
        self.began_at = min(self.began_at, since)
        for steps in (self._hour, self._day):
            steps.used(self._name(program), since, until)

    def saved(self, program: str, at: float, saved_s: float) -> None:
        for steps in (self._hour, self._day):
            steps.saved(self._name(program), at, saved_s)

    def _name(self, program: str) -> str:
        """Return the name for a program; clients may choose any number of names."""
        program = program or UNKNOWN
        if program not in self._names and len(self._names) >= MAX_PROGRAMS:
            return OTHERS
        self._names.add(program)
        return program

    def state(self, live: Iterable[Exchange], slots: int, at: Callable[[float], float]) -> ProgramsState:
        """Return the state, at most a second old, given the requests that are here and the number of slots;
        `at` converts the daemon's clock.
        """
        now = self.clock()
        if not 0.0 <= now - self._state[0] < STATE_EVERY_S:
            self._state = now, self._programs(live, slots, at, now)
        return self._state[1]

    def _programs(
        self, live: Iterable[Exchange], slots: int, at: Callable[[float], float], now: float
    ) -> ProgramsState:
        running, waiting = Counter[str](), Counter[str]()
        hour, day = Steps(*HOUR), Steps(*DAY)  # of those that are not over
        for exchange in live:
            name = self._name(exchange.job.program)
            (waiting if exchange.attempt is None else running)[name] += 1
            for attempt in exchange.held_slots:
                until = now if attempt.ended_s is None else at(attempt.ended_s)
                hour.used(name, at(attempt.granted_s), until)
                day.used(name, at(attempt.granted_s), until)
        in_hour, in_day = (Uses(Use), Uses(Use))
        _sum_up(in_hour, [*self._hour.newest(now), *hour.newest(now)])
        halves = [[*pair] for pair in zip(self._day.newest(now), day.newest(now), strict=True)]
        _sum_up(in_day, [uses for pair in halves for uses in pair])
        self._names = {*in_day, *running, *waiting} - {OTHERS}
        names = sorted(
            {*self._names, *in_day}, key=lambda name: (-in_hour[name].slot_s, -in_day[name].slot_s, name)
        )
        return ProgramsState(
            listed=tuple(
                ProgramState(
                    name,
                    running[name],
                    waiting[name],
                    in_hour[name].state,
                    in_day[name].state,
                    tuple(round(sum(uses[name].slot_s for uses in pair if name in uses)) for pair in halves),
                )
                for name in names[:SHOWN]
            ),
            hour_s=self._capacity_s(slots, self._hour, in_hour, now),
            day_s=self._capacity_s(slots, self._day, in_day, now),
            slots=slots,
        )

    def _capacity_s(self, slots: int, steps: Steps, uses: Uses, now: float) -> float:
        """Return the slot time that there was, with the slots that there are; at least what was used."""
        span_s = min(steps.covers_s(now), now - self.began_at)
        return max(slots * span_s, sum(use.slot_s for use in uses.values()))


def _sum_up(into: Uses, some: Iterable[Uses]) -> None:
    for uses in some:
        for name, use in uses.items():
            into[name].add(use)
