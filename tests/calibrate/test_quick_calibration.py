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
from clairvoyant_cli.calibrate.queueing import sojourns
from clairvoyant_cli.calibrate.run import calibrate, speed_spread
from clairvoyant_cli.calibrate.session import IN_FLIGHT, QUICK, STANDARD, Plan, Session
from profiles.records import MIN_TRIALS, Profile, Sample
from tests.fakes.remembered import HOST
from tests.fakes.replay_backend import Engine, Replay, Speed

SLOW = Speed(prefill_tokens_per_s=200.0, decode_tokens_per_s=10.0)
"""So slow that a quick calibration has no time for a queue."""

RUNS = 20
NOISE = ("speed varied", "other clients")


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


def test_the_computed_interval_covers_the_truth_and_a_steady_server_is_not_called_noisy() -> None:
    truth, covered = true_mu_short_s(), 0
    for profile in run_virtually(every(RUNS, replace(QUICK, cut_s=0.0))):
        mu_short = profile.mu_short_s
        assert profile.method == "computed"
        assert mu_short is not None
        assert 3 <= mu_short.n <= QUICK.singles
        covered += mu_short.low <= truth <= mu_short.high
        assert not [line for line in profile.advice if any(words in line for words in NOISE)]
    assert covered >= 0.85 * RUNS


@pytest.mark.parametrize("rate", [3.0, 10.0, 30.0, 100.0])
@pytest.mark.parametrize("plan", [QUICK, STANDARD], ids=lambda plan: plan.name)
def test_quick_proves_that_answers_can_be_cut_or_warns_that_the_server_is_too_slow(
    plan: Plan, rate: float
) -> None:
    lines: list[str] = []

    async def run() -> Profile:
        engine = Engine(speed=Speed(2 * rate, rate), answer_tokens=answered)
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


def test_a_server_whose_speed_varies_is_called_noisy() -> None:
    plan = Plan("noise", shorts=1, singles=15, bands=(), cut_s=0.0)
    for profile in run_virtually(every(3, plan, varies=0.6)):
        assert any("speed varied" in line for line in profile.advice), profile.advice


def test_a_bounded_run_ends_though_the_queue_takes_longer_than_it_promised() -> None:
    # Those that were asked alone took 3 s, those in the queue take 20.
    plan = Plan("quick", shorts=40, singles=5, bands=(), budget_s=100.0, cut_s=0.0)

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


def told(tokens: int, tokens_per_s: float) -> Sample:
    return Sample("service", "q", 10, tokens, 0.0, 0.0, 1.0, decode_s=tokens / tokens_per_s)


def test_a_long_answer_that_is_slower_by_its_length_is_no_noise() -> None:
    # Seen on llama.cpp: 2,000 tokens/s for short answers, 700 where the context has grown.
    samples = [told(tokens, 2000.0 * (tokens / 100) ** -0.45) for tokens in (40, 80, 120, 190, 1024)]
    spread, freedom = speed_spread(samples)
    assert freedom == 3
    assert spread == pytest.approx(0.0, abs=1e-9)


def test_answers_of_one_length_are_compared_too() -> None:
    spread, freedom = speed_spread([told(100, rate) for rate in (50.0, 100.0, 50.0, 100.0)])
    assert freedom == 3
    assert 0.3 < spread < 0.5
    assert speed_spread([told(100, 50.0)] * 3) == (0.0, 0)
