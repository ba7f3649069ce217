"""Sums up what has ended, by step of time and program: who had the slots, what waited, failed and gained.

The daemon adds each request as it ends, and at its start those in the history; `history --last-night` adds
the latter. All figures of the last minutes, hour and 24 hours, of today and of yesterday are sums of these
steps. What happened in a step counts as spread evenly over it.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from clairvoyant_cli.proxy.queue.ended import Ended
from clairvoyant_cli.proxy.queue.exchange import Exchange
from clairvoyant_cli.state.last_day import STEP_S, STEPS, DayStep, LastDay, Outage
from clairvoyant_cli.state.snapshot import ProgramsState, ProgramState, UseState
from profiles.records import Incident, ServedRequest

KEPT = 51 * 12  # steps from yesterday's midnight on, if a day has 25 hours
HOUR_S = 3600.0
HALF = 6  # steps of half an hour
MAX_PROGRAMS = 32
SHOWN = 12
UNKNOWN, OTHERS = "-", "others"
STATE_EVERY_S = 1.0
UNTROUBLED = ("completed", "client_cancelled", "operator_cancelled")


@dataclass(slots=True)
class Sums:
    """Of the requests of a program: the time that they had slots or waited within a span, and the others of
    those that ended in it. `compared` are those whose wait in order of arrival is known.
    """

    slot_s: float = 0.0
    waited_s: float = 0.0
    requests: float = 0
    failed: float = 0
    compared: float = 0
    saved_s: float = 0.0  # how much longer the compared ones would have waited
    compared_waited_s: float = 0.0
    spared_tokens: float = 0.0

    def add(self, other: "Sums", share: float = 1) -> None:
        self.slot_s += share * other.slot_s
        self.waited_s += share * other.waited_s
        self.requests += share * other.requests
        self.failed += share * other.failed
        self.compared += share * other.compared
        self.saved_s += share * other.saved_s
        self.compared_waited_s += share * other.compared_waited_s
        self.spared_tokens += share * other.spared_tokens

    @property
    def use(self) -> UseState:
        return UseState(self.slot_s, self.saved_s, round(self.compared))


def begins_at(now: float) -> float:
    """Return when the first step of the last day begins."""
    return (now // STEP_S - STEPS + 1) * STEP_S


def divided(since: float, until: float) -> list[tuple[int, float]]:
    """Return the steps that a span touches, at most those that are kept, each with its seconds in it."""
    first, last = int(since // STEP_S), int(until // STEP_S)
    if first == last:
        return [(first, until - since)]
    steps = range(max(first, last - KEPT), last + 1)
    return [(step, min(until, (step + 1) * STEP_S) - max(since, step * STEP_S)) for step in steps]


@dataclass(slots=True)
class Tally:
    """The sums. `clock` is the wall clock; steps are numbered from its epoch."""

    clock: Callable[[], float] = time.time
    began_at: float = field(init=False)  # since when uses are known
    _sums: dict[tuple[int, str], Sums] = field(default_factory=lambda: defaultdict(Sums))
    _names: set[str] = field(default_factory=set)
    _programs: tuple[float, ProgramsState] = (float("-inf"), ProgramsState())

    def __post_init__(self) -> None:
        self.began_at = self.clock()

    def clear(self) -> None:
        """Forget all sums."""
        self._sums.clear()
        self._programs = (float("-inf"), ProgramsState())

    def ended(self, of: Ended | ServedRequest) -> None:
        """Add a request that has ended. All its waiting counts as before its use of a slot."""
        program, ended_at, sums = self._name(of.program), of.finished_at, self._sums
        arrived_at = ended_at - of.sojourn_s
        began_at = arrived_at + of.waited_s
        for step, waited_s in divided(arrived_at, began_at):
            sums[step, program].waited_s += waited_s
        if began_at < ended_at:
            self.began_at = min(self.began_at, began_at)
            for step, used_s in divided(began_at, ended_at):
                sums[step, program].slot_s += used_s
        last = sums[int(ended_at // STEP_S), program]
        last.requests += 1
        last.failed += of.outcome not in UNTROUBLED

    def compared(self, of: Ended | ServedRequest, saved_s: float, spared_tokens: float) -> None:
        """Add what an answer that was added gained over order of arrival."""
        sums = self._sums[int(of.finished_at // STEP_S), self._name(of.program)]
        sums.compared += 1
        sums.saved_s += saved_s
        sums.compared_waited_s += of.waited_s
        sums.spared_tokens += spared_tokens

    def take_up(self, row: ServedRequest) -> bool:
        """Add a request of the history; return whether it was compared."""
        self.ended(row)
        if not (isinstance(row.saved_s, float) and isinstance(row.spared_tokens, float)):
            return False
        self.compared(row, row.saved_s, row.spared_tokens)
        return True

    def _name(self, program: str) -> str:
        """Return the name for a program; clients may choose any number of names."""
        program = program or UNKNOWN
        if program not in self._names and len(self._names) >= MAX_PROGRAMS:
            return OTHERS
        self._names.add(program)
        return program

    def by_program(self, since: float, until: float) -> dict[str, Sums]:
        """Return the sums of each program in a span, with the whole step in which it ends."""
        found, first, last = defaultdict[str, Sums](Sums), int(since // STEP_S), int(until // STEP_S)
        begins, ends = first * STEP_S, min(first * STEP_S + STEP_S, until)
        if begins < self.began_at < ends:
            begins = self.began_at
        share = 1 if since <= begins else (ends - since) / (ends - begins)
        for (step, name), sums in self._sums.items():
            if first <= step <= last:
                found[name].add(sums, share if step == first else 1)
        return found

    def between(self, since: float, until: float) -> Sums:
        """Return the sums of all programs in a span, with the whole step in which it ends."""
        found = Sums()
        for sums in self.by_program(since, until).values():
            found.add(sums)
        return found

    def utilisation(self, slots: int, running: Iterable[float] = ()) -> tuple[float, float]:
        """Return rho in this step and the one before, and how long these are in seconds; `running` is when
        the busy slots were granted.
        """
        now = self.clock()
        since = max((now // STEP_S - 1) * STEP_S, self.began_at)
        over_s = max(1.0, now - since)
        work_s = self.between(since, now).slot_s + sum(min(now - start, over_s) for start in running)
        return min(1.0, work_s / (over_s * max(1, slots))), over_s

    def programs(self, live: Iterable[Exchange], slots: int, at: Callable[[float], float]) -> ProgramsState:
        """Return what programs have, at most a second old, given the requests that are here and the number of
        slots; `at` converts the daemon's clock.
        """
        now = self.clock()
        if not 0.0 <= now - self._programs[0] < STATE_EVERY_S:
            self._programs = now, self._state(live, slots, at, now)
        return self._programs[1]

    def _state(
        self, live: Iterable[Exchange], slots: int, at: Callable[[float], float], now: float
    ) -> ProgramsState:
        first = round(begins_at(now) / STEP_S)
        for key in [key for key in self._sums if abs(key[0] - first - STEPS + 1) >= KEPT]:
            del self._sums[key]
        hour, day = (self.by_program(now - span_s, now) for span_s in (HOUR_S, STEPS * STEP_S))
        used = [(step, name, sums.slot_s) for (step, name), sums in self._sums.items()]
        running, waiting = Counter[str](), Counter[str]()
        for exchange in live:
            name = self._name(exchange.job.program)
            (waiting if exchange.attempt is None else running)[name] += 1
            for attempt in exchange.held_slots:
                run = attempt.run
                since, until = at(run.started_s), now if run.ended_s is None else at(run.ended_s)
                hour[name].slot_s += max(0.0, until - max(since, now - HOUR_S))
                day[name].slot_s += max(0.0, until - max(since, now - STEPS * STEP_S))
                used += [(step, name, used_s) for step, used_s in divided(since, until)]
        halves_s = defaultdict[str, list[float]](lambda: [0.0] * (STEPS // HALF))
        for step, name, used_s in used:
            if first <= step < first + STEPS:
                halves_s[name][(step - first) // HALF] += used_s
        here = {*(name for name, sums in day.items() if sums.slot_s), *running, *waiting}
        self._names = here - {OTHERS}
        names = sorted(here, key=lambda name: (-hour[name].slot_s, -day[name].slot_s, name))
        there_s = slots * min(HOUR_S, now - self.began_at), slots * min(STEPS * STEP_S, now - self.began_at)
        return ProgramsState(
            listed=tuple(
                ProgramState(
                    name,
                    running[name],
                    waiting[name],
                    hour[name].use,
                    day[name].use,
                    tuple(map(round, halves_s[name])),
                )
                for name in names[:SHOWN]
            ),
            # At least what was used: there may have been more slots.
            hour_s=max(there_s[0], sum(each.slot_s for each in hour.values())),
            day_s=max(there_s[1], sum(each.slot_s for each in day.values())),
            slots=slots,
        )

    def last_day(self, incidents: Iterable[Incident]) -> LastDay:
        """Return the steps of the last 24 hours."""
        now = self.clock()
        first, day = round(begins_at(now) / STEP_S), [Sums() for _ in range(STEPS)]
        for (step, _), sums in self._sums.items():
            if first <= step < first + STEPS:
                day[step - first].add(sums)
        steps = list[DayStep]()
        for step, of in enumerate(day, first):
            lasts_s = min(max(now - step * STEP_S, 1.0), STEP_S)
            requests, failed = round(of.requests), round(of.failed)
            busy, waiting = of.slot_s / lasts_s, of.waited_s / lasts_s
            steps.append(DayStep(step * STEP_S, requests, failed, busy, waiting, of.saved_s))
        by_beginning = sorted(incidents, key=lambda each: each.began_at)
        return LastDay(now, tuple(steps), tuple(Outage(*each) for each in by_beginning))


def last_day(served: Iterable[ServedRequest], incidents: Iterable[Incident], now: float) -> LastDay:
    """Return the steps until `now`, epoch seconds, from the requests that ended in them."""
    tally = Tally(lambda: now)
    for row in served:
        tally.take_up(row)
    return tally.last_day(incidents)
