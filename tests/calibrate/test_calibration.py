"""A whole calibration against servers whose truth is known, in virtual time."""

import asyncio
import random
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from statistics import fmean

import pytest
from clairvoyant_lab.virtual_time import run_virtually

from clairvoyant_cli.backends.adapter import Found
from clairvoyant_cli.backends.adapters import adapter_of
from clairvoyant_cli.backends.client import Client, TimedAnswer
from clairvoyant_cli.calibrate.questions import LONG_CAP, long_questions, mixed, short_questions
from clairvoyant_cli.calibrate.queueing import computed_mu_short, estimate
from clairvoyant_cli.calibrate.run import Outcome
from clairvoyant_cli.calibrate.server_speeds import at_once
from clairvoyant_cli.calibrate.session import IN_FLIGHT, ServiceTime, Step
from clairvoyant_cli.errors import ClairvoyantError
from predictor.record import LONG_FROM_TOKENS, SHORT_BELOW_TOKENS
from profiles.records import Sample
from tests.fakes.calibrating import SMALL, measured, replay, sojourns
from tests.fakes.replay_backend import Engine, Service, digest


@dataclass(frozen=True)
class Run:
    """A calibration and the journal of the server it measured."""

    outcome: Outcome
    told: list[Step]
    journal: list[Service]


def server(slots: int = 1, decode: float = 4000.0) -> AbstractAsyncContextManager[tuple[Engine, str]]:
    """Run a backend that sends an answer in few pieces: only its ends count here."""
    return replay(slots=slots, decode=decode, stride=100)


async def run(slots: int) -> Run:
    async with server(slots) as (engine, url):
        outcome, told = await measured(url)
    return Run(outcome, told, engine.journal)


@pytest.fixture(scope="module")
def serial() -> Run:
    return run_virtually(run(slots=1))


def check_against_the_journal(run: Run) -> None:
    profile = run.outcome.profile
    assert profile.decode_tokens_per_s == pytest.approx(4000.0, rel=0.03)
    assert profile.prefill_tokens_per_s == pytest.approx(20_000.0, rel=0.03)
    assert profile.mu_short_s is not None
    assert profile.tau_s == pytest.approx(3 * profile.mu_short_s.mean)
    # What the server itself says of the same requests.
    prompts = {question.name: question.prompt for question in short_questions(0)}
    counted = [s for s in run.outcome.samples if s.phase == "load" and s.counted and s.question in prompts]
    served = {service.digest: service for service in run.journal}
    journal = [served[digest(prompts[sample.question])] for sample in counted]
    sojourns = [service.ended_s - service.arrived_s for service in journal if service.ended_s is not None]
    assert profile.mu_short_s.n == len(sojourns) == SMALL.shorts
    assert profile.mu_short_s.mean == pytest.approx(fmean(sojourns), rel=0.25)


def test_what_is_measured_is_what_the_server_did(serial: Run) -> None:
    assert serial.outcome.profile.slots == 1
    check_against_the_journal(serial)


def test_two_slots_are_seen_and_kept_busy() -> None:
    parallel = run_virtually(run(slots=2))
    assert parallel.outcome.profile.slots == 2
    assert parallel.outcome.profile.concurrency == 10
    check_against_the_journal(parallel)


def test_progress_says_what_is_measured(serial: Run) -> None:
    titles = list(dict.fromkeys(step.title for step in serial.told))
    assert titles == [
        "loading the model",
        "one at a time",
        "slots",
        "a prompt of 400 tokens",
        "short ones among long ones, queueing",
    ]
    assert serial.told[-1].done == serial.told[-1].of


def test_a_bounded_run_computes_what_it_has_no_time_to_measure() -> None:
    plan = replace(SMALL, name="quick", singles=5, budget_s=0.5)

    async def bounded() -> Outcome:
        async with server(decode=600.0) as (_, url):
            return (await measured(url, plan))[0]

    outcome = run_virtually(bounded())
    profile = outcome.profile
    assert profile.method == "computed"
    assert profile.mu_short_s is not None
    assert any("computed" in line for line in profile.advice)
    assert {sample.phase for sample in outcome.samples} == {"service"}
    # A long answer that was cut short for want of time counts with the rest of it.
    assert profile.mu_short_s.mean > max(sample.sojourn_s for sample in outcome.samples)


async def test_a_server_that_fails_in_the_middle_leaves_an_error_and_no_profile() -> None:
    async with replay() as (engine, url):
        engine.die_next(3)
        with pytest.raises(ClairvoyantError, match="broke off"):
            await measured(url)


def test_other_clients_are_noticed() -> None:
    async def disturbed() -> Outcome:
        # Two of them: with one, whether ours waits for half of its answers or more is a matter of timing.
        async with server() as (_, url), Client(Found(adapter_of("ollama"), url), "replay") as other:

            async def busy() -> None:
                for question in long_questions(5):
                    await other.ask(question)

            tasks = [asyncio.create_task(busy()) for _ in range(2)]
            try:
                return (await measured(url, replace(SMALL, shorts=8, singles=5)))[0]
            finally:
                for task in tasks:
                    task.cancel()

    assert any("other clients" in line for line in run_virtually(disturbed()).profile.advice)


def test_there_are_a_hundred_of_each_and_none_twice() -> None:
    for questions in (short_questions(0), long_questions(0)):
        assert len({question.prompt for question in questions}) == 100
        assert len({question.name for question in questions}) == 100


def test_caps_keep_short_ones_short_and_let_long_ones_be_long() -> None:
    assert all(question.cap < SHORT_BELOW_TOKENS for question in short_questions(0))
    assert LONG_CAP >= LONG_FROM_TOKENS


def test_the_mix_has_one_long_question_in_each_block() -> None:
    questions = mixed(short_questions(0), long_questions(0), count=50, shorts_per_long=4, seed=3)
    for start in range(0, 50, 5):
        block = questions[start : start + 5]
        assert sum(question.cap == LONG_CAP for question in block) == 1
    assert len({question.prompt for question in questions}) == 50


def answer(first_s: float, last_s: float) -> TimedAnswer:
    return TimedAnswer(0.0, first_s, last_s, last_s, events=10)


def test_answers_that_follow_each_other_are_one_at_a_time() -> None:
    assert at_once([answer(i, i + 1.01) for i in range(6)]) == 1


def test_answers_that_overlap_are_counted_by_their_most() -> None:
    pairs = [answer(i + shift, i + 1.0 + shift) for i in range(3) for shift in (0.0, 0.1)]
    assert at_once(pairs) == 2
    assert at_once([answer(1.0, 2.0)] * 4) == 4
    assert at_once([]) == 1


def test_the_interval_covers_the_mean_about_as_often_as_it_says() -> None:
    rng = random.Random(1)
    covered = 0
    for _ in range(40):
        found = estimate([rng.expovariate(0.5) for _ in range(100)])
        assert found is not None
        covered += found.low <= 2.0 <= found.high
    assert covered >= 35


def test_samples_that_wait_for_the_same_jobs_are_less_certain() -> None:
    rng = random.Random(3)
    values = [level for _ in range(20) for level in [rng.gauss(10.0, 3.0)] * 5]
    alone, in_blocks = estimate(values), estimate(values, batch=5)
    assert alone is not None
    assert in_blocks is not None
    assert in_blocks.high - in_blocks.low > 1.5 * (alone.high - alone.low)


def test_there_is_no_estimate_of_nothing_and_one_of_one() -> None:
    assert estimate([]) is None
    single = estimate([3.0], batch=5)
    assert single is not None
    assert (single.low, single.mean, single.high) == (3.0, 3.0, 3.0)


@pytest.mark.parametrize("a_slot", [8, 14, 40, 100])
@pytest.mark.parametrize("slots", [1, 4])
def test_the_interval_of_a_queue_covers_its_mean(a_slot: int, slots: int) -> None:
    in_flight = 5 * slots

    def queued(rng: random.Random, count: int) -> list[float]:
        long = [number % 5 == rng.randrange(5) for number in range(count * 5 // 4 + in_flight)]
        services = [rng.uniform(5.0, 25.0) if each else rng.uniform(0.2, 5.0) for each in long]
        times = zip(long, sojourns(services, in_flight, slots), strict=True)
        return [time_s for each, time_s in list(times)[in_flight:] if not each]

    truth = fmean(queued(random.Random(0), 40_000))
    rng, covered = random.Random(1), 0
    for _ in range(100):
        found = estimate(queued(rng, a_slot * slots), batch=in_flight)
        assert found is not None
        covered += found.low <= truth <= found.high
    assert covered >= 85


@pytest.mark.parametrize("slots", [1, 4])
def test_what_is_computed_is_the_mean_of_a_queue(slots: int) -> None:
    rng = random.Random(2)
    kinds = [rng.random() < 0.2 for _ in range(20_000)]
    times_s = [rng.uniform(5.0, 25.0) if long else rng.uniform(0.2, 5.0) for long in kinds]
    queued = zip(kinds, sojourns(times_s, IN_FLIGHT * slots, slots), strict=True)
    truth = fmean(time_s for long, time_s in list(queued)[IN_FLIGHT * slots :] if not long)
    sample = Sample("service", "q", 10, 50, 0.0, 0.0, 1.0)
    services = [ServiceTime(sample, time_s, not long) for long, time_s in zip(kinds, times_s, strict=True)]
    assert computed_mu_short(services, 0.1).mean == pytest.approx(truth, rel=0.05)
