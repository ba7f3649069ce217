"""Plans of questions and arrival times: bursts and Poisson arrivals. Seeded, no I/O."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from clairvoyant_lab.bench.prompts import Question
from clairvoyant_lab.simulator.workload import MIN_SERVICE_S, TwoNormals
from predictor.record import LengthClass

PAPER = TwoNormals()
Pools = Mapping[LengthClass, Sequence[Question]]


@dataclass(frozen=True, slots=True)
class Arrival:
    """A question and its arrival in seconds from the start."""

    at_s: float
    question: Question


Plan = tuple[Arrival, ...]


@dataclass(frozen=True, slots=True)
class Load:
    """A load and its name in tables; `plan` returns the questions of a run."""

    name: str
    plan: Callable[[int], Plan]


Draw = Callable[[LengthClass, Random], Question]


@dataclass(frozen=True, slots=True)
class PaperAnswers:
    """Draws service times of the paper (section 5.5), as answers of a backend with this decode rate. The
    classes are the paper's, whatever the length.
    """

    pools: Pools
    service: TwoNormals = PAPER
    tokens_per_s: float = 50.0

    def __call__(self, kind: LengthClass, rng: Random) -> Question:
        times = self.service
        short = kind is LengthClass.SHORT
        mean_s = times.short_mean_s if short else times.long_mean_s
        service_s = rng.gauss(mean_s, times.short_sd_s if short else times.long_sd_s)
        tokens = round(max(MIN_SERVICE_S, service_s) * self.tokens_per_s)
        return replace(rng.choice(self.pools[kind]), tokens=tokens, known_class=kind)


def as_written(pools: Pools) -> Draw:
    """Return a draw of the prompts with their own lengths."""
    return lambda kind, rng: rng.choice(pools[kind])


def without_repeats(draw: Draw, pools: Pools) -> Draw:
    """Return a draw that repeats no prompt before all prompts of its class were drawn."""
    left: dict[LengthClass, set[str]] = {}

    def fresh(kind: LengthClass, rng: Random) -> Question:
        unused = left.get(kind) or {question.prompt for question in pools[kind]}
        while (question := draw(kind, rng)).prompt not in unused:
            pass
        unused.discard(question.prompt)
        left[kind] = unused
        return question

    return fresh


def burst(count: int, gap_s: float, draw: Draw, rng: Random) -> Plan:
    """Return `count` questions, half short and half long (an odd one short), in random order. They arrive
    `gap_s` apart; above 0, all arms get them in the same order.
    """
    longs = count // 2
    kinds = [LengthClass.SHORT] * (count - longs) + [LengthClass.LONG] * longs
    rng.shuffle(kinds)
    return tuple(Arrival(i * gap_s, draw(kind, rng)) for i, kind in enumerate(kinds))


def poisson(count: int, rate_per_s: float, draw: Draw, rng: Random) -> Plan:
    """Return `count` questions, each short or long with even chances, arriving as a Poisson process."""
    at_s, plan = 0.0, []
    for _ in range(count):
        at_s += rng.expovariate(rate_per_s)
        plan.append(Arrival(at_s, draw(rng.choice((LengthClass.SHORT, LengthClass.LONG)), rng)))
    return tuple(plan)
