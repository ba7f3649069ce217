"""Measures a server apart from its queue: its model, service times, how fast it reads a prompt, slots."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from secrets import randbits
from statistics import fmean

from clairvoyant_cli.backends.client import Client, Question, TimedAnswer, together
from clairvoyant_cli.calibrate.questions import LONG_CAP, READING_TOKENS, reading
from clairvoyant_cli.calibrate.session import SHORTS_PER_LONG, ServiceTime, Session, Step, is_short
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.protocols.probes import OfferedModel
from profiles.records import Sample, Served, place_of

# The first answer after a pause pays for caches and clocks that the others find warm.
WARM_UP = Question("warm-up", "Count from one to twenty, in words.", 24)
SINGLES_SHARE = 0.35  # of a bounded run for questions one at a time; they tell how long the rest will take
LEAST_SHORTS = 2  # asked one at a time, however long they take
MIN_TOKENS = 32
LATE_S = 10.0  # how long reading the long prompt may take after the time is up
FIRST_PROBE = 6
LARGEST_PROBE = 96
PROBE_S = 0.4  # how long a probing answer should take: long against the jitter of a busy machine
LONGEST_PROBE_TOKENS = 800
HELD = 0.25  # share of the time for which that many must come at once; a late packet overlaps for less


@dataclass(frozen=True, slots=True)
class Survey:
    """What a server reports. `busy` counts the requests of others in it, None where it does not say."""

    served: Served
    resident: bool = False
    slots: int | None = None
    busy: int | None = None


async def survey(client: Client, wanted: str | None) -> Survey:
    """Find the model to ask, and set it as the client's; ClairvoyantError if there is none."""
    found, adapter = client.found, client.found.adapter
    offered = await adapter.offered_models(client.get)
    if offered is None:
        raise ClairvoyantError(f"{found.url} does not answer like {adapter.name}")
    slots = None
    with suppress(ClairvoyantError):
        slots = await adapter.busy_slots(client.get)
    local = {model.name: model for model in offered if not model.remote}
    model = _chosen(wanted, local, adapter.get_model_command)
    client.model = model.name
    served = Served(
        backend=adapter.name,
        model=model.name,
        url=found.base_url,
        place=place_of(found.url),
        version=found.version,
        digest=model.digest,
        quantisation=model.quantisation,
        parameters=model.parameters,
    )
    return Survey(served, model.loaded, found.slots, None if slots is None else len(slots))


def _chosen(wanted: str | None, known: dict[str, OfferedModel], remedy: str) -> OfferedModel:
    if not known:
        raise ClairvoyantError(f"the server has no model; get one first ({remedy})", ExitCode.FAILURE)
    more = f" and {len(known) - 8} more" if len(known) > 8 else ""
    names = ", ".join(list(known)[:8]) + more
    if wanted is not None:
        for name in (wanted, f"{wanted}:latest"):
            if name in known:
                return known[name]
        raise ClairvoyantError(f"the server has no model {wanted!r}; it has {names}", ExitCode.USAGE)
    for choice in (list(known.values()), [model for model in known.values() if model.loaded]):
        if len(choice) == 1:
            return choice[0]
    raise ClairvoyantError(f"which model? name one with --model: {names}", ExitCode.USAGE)


async def one_at_a_time(
    session: Session, shorts: Sequence[Question], longs: Sequence[Question]
) -> list[ServiceTime]:
    """Ask the plan's questions one by one; the short ones first, which tell how long the others take."""
    plan = session.plan
    kinds = (shorts[: plan.singles - plan.long_singles], LEAST_SHORTS), (longs[: plan.long_singles], 1)
    services = session.services
    for number, (questions, least) in enumerate(kinds, 1):
        until_s = (plan.budget_s or inf) * SINGLES_SHARE * number / len(kinds)
        for done, question in enumerate(questions):
            if done >= least and session.took_s > until_s:
                break  # a slow server answers only some of them
            session.tell(Step("one at a time", len(services), plan.singles))
            services.append(await _service_time(session, question))
    return services


async def _service_time(session: Session, question: Question) -> ServiceTime:
    cap, rate, budget_s = None, session.decode_tokens_per_s, session.plan.budget_s
    if budget_s is not None and rate is not None and question.cap >= LONG_CAP:
        # A long answer must fit into a bounded run.
        fits = int(rate * (SINGLES_SHARE * budget_s - session.took_s))
        cap = None if fits >= question.cap else max(MIN_TOKENS, fits)
    answer = await session.ask_alone(question, cap)
    sample = session.sample("service", question, answer)
    rate = session.decode_tokens_per_s
    cut = question.cap - answer.tokens if cap is not None and answer.capped else 0
    more_s = cut / rate if cut and rate else 0.0
    return ServiceTime(sample, sample.sojourn_s + more_s, is_short(sample) and not cut, more_s)


def question_s(services: Sequence[ServiceTime], slots: int) -> float:
    """Return how much longer the queue phase takes for each question."""
    short_s, longer_s = _means(services)
    return (SHORTS_PER_LONG * short_s + longer_s) / (SHORTS_PER_LONG + 1) / slots


def _means(services: Sequence[ServiceTime]) -> tuple[float, float]:
    """Return the mean service times of Short answers and of longer ones; both of all if there is one kind."""
    short, longer = ([each.seconds for each in services if each.short is short] for short in (True, False))
    return fmean(short or longer), fmean(longer or short)


async def measure_prefill(session: Session) -> float | None:
    """Return prompt tokens per second, by a prompt of the plan's length; None if there is no time for it, or
    it does not fit the context. It may exceed the time a little.
    """
    tokens, left_s = session.plan.reading, session.remaining_s
    singles = [service.sample for service in session.services]
    session.tell(Step(f"a prompt of {tokens} tokens", 0, 1))
    if left_s is not None:
        token_s = min((each.ttft_s / max(1, each.prompt_tokens) for each in singles), default=0.0)
        if READING_TOKENS / (session.decode_tokens_per_s or inf) + tokens * token_s > left_s + LATE_S:
            return None
    try:
        # A random beginning, or the server would find the prompt of an earlier run in its cache.
        answer = await session.ask_alone(reading(tokens, randbits(40)))
    except ClairvoyantError:
        return None
    return answer.prefill_tokens_per_s or _seen_prefill(answer, singles)


def _seen_prefill(answer: TimedAnswer, singles: Sequence[Sample]) -> float | None:
    """Return prompt tokens per second by how much later a longer prompt's first token came."""
    base = sorted(singles, key=lambda sample: sample.ttft_s)[: max(1, len(singles) // 2)]
    more_tokens = answer.prompt_tokens - fmean(sample.prompt_tokens for sample in base)
    later_s = answer.ttft_s - fmean(sample.ttft_s for sample in base)
    return more_tokens / later_s if more_tokens > 0 and later_s > 0 else None


async def probe_slots(client: Client, questions: Sequence[Question], tokens_per_s: float | None) -> int:
    """Send more and more long answers at once until they no longer all run together; return how many do."""
    cap = max(8, min(LONGEST_PROBE_TOKENS, round(PROBE_S * (tokens_per_s or 50.0))))
    probe = FIRST_PROBE
    while True:
        batch = [questions[i % len(questions)] for i in range(probe)]
        found = at_once(await together(client.ask(question, cap) for question in batch))
        if found < probe or probe >= LARGEST_PROBE:
            return found
        probe *= 4


def at_once(answers: Sequence[TimedAnswer]) -> int:
    """Return how many answers were being written at the same time, for a fair share of it; at least 1."""
    edges: list[tuple[float, int]] = []
    for answer in answers:
        if answer.first_s and answer.last_s > answer.first_s:
            edges += [(answer.first_s, 1), (answer.last_s, -1)]
    edges.sort()
    held_s: dict[int, float] = {}
    running = 0
    for (at_s, step), (until_s, _) in pairwise(edges):
        running += step
        held_s[running] = held_s.get(running, 0.0) + until_s - at_s
    busy_s = sum(seconds for running, seconds in held_s.items() if running)
    enough_s = 0.0
    for running in sorted(held_s, reverse=True):
        enough_s += held_s[running]
        if running and enough_s >= HELD * busy_s:
            return running
    return 1
