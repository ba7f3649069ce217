"""A whole calibration against servers whose truth is known, in virtual time."""

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from statistics import fmean

import pytest
from clairvoyant_lab.virtual_time import run_virtually

from clairvoyant_cli.backends.adapter import Found
from clairvoyant_cli.backends.adapters import adapter_of
from clairvoyant_cli.backends.client import Client
from clairvoyant_cli.calibrate.questions import long_questions, short_questions
from clairvoyant_cli.calibrate.queueing import cs2, simulated_sojourns
from clairvoyant_cli.calibrate.run import Outcome
from clairvoyant_cli.calibrate.session import ServiceTime, Step
from clairvoyant_cli.errors import ClairvoyantError
from profiles.records import Sample
from tests.fakes.calibrating import SMALL, measured, replay
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


def test_the_printed_variability_is_that_of_the_samples(serial: Run) -> None:
    alone = [sample.sojourn_s for sample in serial.outcome.samples if sample.phase == "service"]
    mixed = next(mix for mix in serial.outcome.profile.mixes if mix.name == "mixed")
    assert mixed.n == len(alone) == SMALL.singles
    assert mixed.cs2 == pytest.approx(cs2(alone))


def test_progress_says_what_is_measured_and_how_long_it_takes(serial: Run) -> None:
    titles = list(dict.fromkeys(step.title for step in serial.told))
    assert titles == [
        "loading the model",
        "one at a time",
        "prompts of 400 tokens",
        "slots",
        "short ones among long ones, queueing",
    ]
    assert serial.told[-1].done == serial.told[-1].of
    assert serial.told[-1].left_s == 0.0


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
    assert max(mix.mean_s for mix in profile.mixes) > 1.0


def test_a_queue_on_paper_is_the_queue_of_the_service_times() -> None:
    sample = Sample("service", "q", 1, 1, 0.0, 0.0, 1.0)
    services = [ServiceTime(sample, 2.0, short=True), ServiceTime(sample, 30.0, short=False)]
    times = simulated_sojourns(services, in_flight=5, slots=1)
    # Five in flight are all that a short one waits for and itself: none, one or two of them long.
    assert set(times) <= {10.0, 38.0, 66.0}
    assert fmean(times) == pytest.approx(36.0, rel=0.05)


async def test_a_server_that_fails_in_the_middle_leaves_an_error_and_no_profile() -> None:
    async with replay() as (engine, url):
        engine.die_next(3)
        with pytest.raises(ClairvoyantError, match="broke off"):
            await measured(url)


def test_all_at_once_is_the_papers_script() -> None:
    async def at_once() -> tuple[Outcome, list[Service]]:
        async with server() as (engine, url):
            return (await measured(url, replace(SMALL, in_flight=0, shorts=8)))[0], engine.journal

    outcome, journal = run_virtually(at_once())
    most = max(sum(s.arrived_s <= each.arrived_s < (s.ended_s or 0) for s in journal) for each in journal)
    assert outcome.profile.concurrency == 10
    assert most >= 8  # the first ones may have been answered before the last one came
    assert outcome.profile.mu_short_s is not None
    assert outcome.profile.mu_short_s.n == 8


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
