"""What a quick calibration claims, against twenty servers whose truth is known; in virtual time."""

import asyncio
from dataclasses import replace
from random import Random
from statistics import fmean

import pytest
from clairvoyant_lab.asgi_server import serve_app
from clairvoyant_lab.virtual_time import run_virtually

from clairvoyant_cli.backends.adapter import Found
from clairvoyant_cli.backends.adapters import adapter_of
from clairvoyant_cli.backends.client import Client
from clairvoyant_cli.calibrate.questions import long_questions, mixed, short_questions
from clairvoyant_cli.calibrate.run import calibrate
from clairvoyant_cli.calibrate.session import IN_FLIGHT, QUICK, STANDARD, Plan, Session
from profiles.records import MIN_TRIALS, Profile
from tests.fakes.calibrating import sojourns
from tests.fakes.remembered import HOST
from tests.fakes.replay_backend import Engine, Replay, Speed

SLOW = Speed(prefill_tokens_per_s=200.0, decode_tokens_per_s=10.0)
"""So slow that a quick calibration has no time for a queue."""

RUNS = 20


def answered(prompt: str, rng: Random) -> int:
    asks_for_much = any(word in prompt for word in ("long", "detailed", "depth", "comprehensive"))
    median, least, most = (330, 205, 700) if asks_for_much else (30, 3, 190)
    return min(most, max(least, int(median * rng.lognormvariate(0.0, 0.5))))


def true_mu_short_s() -> float:
    """Return the mean over many queues of the very questions, each answered by its own luck."""
    times: list[float] = []
    for seed in range(20):
        rng = Random(seed)
        questions = mixed(
            short_questions(seed), long_questions(seed), count=500, shorts_per_long=4, seed=seed
        )
        tokens = [answered(question.prompt, rng) for question in questions]
        services = [
            -(-len(question.prompt) // 4) / SLOW.prefill_tokens_per_s + count / SLOW.decode_tokens_per_s
            for question, count in zip(questions, tokens, strict=True)
        ]
        queued = zip(tokens, sojourns(services, IN_FLIGHT, 1), strict=True)
        times += [time_s for count, time_s in list(queued)[IN_FLIGHT:] if count < 200]
    return fmean(times)


async def every(runs: int, plan: Plan, varies: float = 0.0) -> list[Profile]:
    """Calibrate as many servers side by side, each with luck of its own."""
    return await asyncio.gather(*(calibrated(seed, plan, varies) for seed in range(runs)))


def asking(url: str) -> Client:
    return Client(Found(adapter_of("ollama"), url), clock=asyncio.get_running_loop().time)


async def calibrated(seed: int, plan: Plan, varies: float) -> Profile:
    """Calibrate a server; with `varies`, its speed is another for each answer, by so many log units."""
    luck = Random(seed)

    def answer(prompt: str, rng: Random) -> int:
        factor = luck.lognormvariate(0.0, varies) if varies else 1.0
        engine.speed = Speed(SLOW.prefill_tokens_per_s, factor * SLOW.decode_tokens_per_s)
        return answered(prompt, rng)

    engine = Engine(stride=100, answer_tokens=answer, seed=seed)
    async with serve_app(Replay(engine).app) as url, asking(url) as client:
        session = Session(client, plan, lambda step: None, seed=seed)
        return (await calibrate(session, None, HOST, "test")).profile


def test_the_computed_interval_covers_the_truth_and_nobody_is_said_to_disturb() -> None:
    truth, covered = true_mu_short_s(), 0
    for profile in run_virtually(every(RUNS, replace(QUICK, cut_s=0.0))):
        mu_short = profile.mu_short_s
        assert profile.method == "computed"
        assert mu_short is not None
        assert 3 <= mu_short.n <= QUICK.singles
        covered += mu_short.low <= truth <= mu_short.high
        assert not [line for line in profile.advice if "other clients" in line]
    assert covered >= 0.85 * RUNS


@pytest.mark.parametrize("rate", [3.0, 10.0, 30.0, 100.0])
@pytest.mark.parametrize("plan", [QUICK, STANDARD], ids=lambda plan: plan.name)
def test_quick_proves_that_answers_can_be_cut_or_warns_that_the_server_is_too_slow(
    plan: Plan, rate: float
) -> None:
    lines: list[str] = []

    async def run() -> Profile:
        stride = max(1, round(rate / 5))  # tokens that are sent at once: five times a second
        engine = Engine(speed=Speed(2 * rate, rate), answer_tokens=answered, stride=stride)
        async with serve_app(Replay(engine).app) as url, asking(url) as client:
            session = Session(client, replace(plan), lambda step: None, say=lines.append)
            return (await calibrate(session, None, HOST, "test")).profile

    profile = run_virtually(run())
    assert profile.took_s <= (100.0 if plan is QUICK else 180.0)
    remedy = "run it without --quick" if plan is QUICK else "run it with --full"
    slow = [line for line in lines if "too slow" in line]
    assert slow or (profile.continuation is not None and profile.continuation.trials >= MIN_TRIALS)
    assert not slow or rate <= 10.0
    assert all(line.endswith(remedy) for line in slow)


def test_a_bounded_run_ends_though_the_queue_takes_longer_than_it_promised() -> None:
    # Those that were asked alone took 3 s, those in the queue take 20.
    plan = Plan("quick", shorts=40, singles=5, reading=400, budget_s=100.0, cut_s=0.0)

    async def measured() -> Profile:
        asked = iter(range(10_000))

        def answer(prompt: str, rng: Random) -> int:
            return 30 if next(asked) < 12 else 200

        engine = Engine(speed=SLOW, stride=100, answer_tokens=answer)
        async with serve_app(Replay(engine).app) as url, asking(url) as client:
            return (await calibrate(Session(client, plan, lambda step: None), None, HOST, "test")).profile

    profile = run_virtually(measured())
    assert profile.method == "measured"
    assert 100.0 < profile.took_s < 100.0 + (IN_FLIGHT + 1) * 20.0
