"""How `calibrate` proves that cut answers are continued: against servers that do, and that do not."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from clairvoyant_cli.backends.adapter import Found
from clairvoyant_cli.backends.adapters import adapter_of
from clairvoyant_cli.calibrate.client import Client
from clairvoyant_cli.calibrate.continuation import HOPELESS, Proof, prove_continuing
from clairvoyant_cli.calibrate.run import Outcome
from clairvoyant_cli.calibrate.session import QUICK, STANDARD, Plan, Session, Step
from clairvoyant_cli.research.bench.asgi_server import serve_app
from clairvoyant_cli.research.bench.virtual_time import run_virtually
from clairvoyant_cli.research.replay import Engine, Replay, Service, Speed
from clairvoyant_cli.research.replay.lengths import AnswerTokens
from profiles.records import MIN_TRIALS, Continuation
from tests.fakes.calibrating import SMALL, measured, replay

FEW_TOKENS = replace(STANDARD, cut_tokens=30)
SPEED = Speed(prefill_tokens_per_s=2000.0, decode_tokens_per_s=100.0)


@dataclass(eq=False)
class BeginsAnother(Engine):
    """Takes what was said for a turn that has ended, and begins another one."""

    def arrive(self, route: str, prompt: str, text_chars: int, cap: int | None, said: str = "") -> Service:
        return super().arrive(route, prompt + said, text_chars, cap)


@dataclass(eq=False)
class NeverTheSame(Engine):
    """Answers otherwise each time, as a server that batches may."""

    def arrive(self, route: str, prompt: str, text_chars: int, cap: int | None, said: str = "") -> Service:
        self.seed += 1
        return super().arrive(route, prompt, text_chars, cap, said)


@dataclass(eq=False)
class DiffersOnce(Engine):
    """Goes on otherwise once: not when it is asked for the first token alone, but the next time."""

    taken_up: int = 0

    def arrive(self, route: str, prompt: str, text_chars: int, cap: int | None, said: str = "") -> Service:
        service = super().arrive(route, prompt, text_chars, cap, said)
        self.taken_up += bool(said)
        if self.taken_up == 2 and said:
            service.words += " otherwise"
        return service


@dataclass(eq=False)
class KeepsTheLonger(Engine):
    """Keeps of two prompts that begin alike the longer one, and does not go back far in it, as llama.cpp."""

    def prefill_s(self, service: Service) -> float:
        whole = (
            each.tokens for each in self.journal if each.digest == service.digest and not each.said_tokens
        )
        kept = not service.said_tokens or service.said_tokens > 0.25 * max(whole)
        return 0.01 if kept else 10.0


def hundred(prompt: str, rng: object) -> int:
    return 100


def nothing(prompt: str, rng: object) -> int:
    return 0


def proven(
    make: Callable[..., Engine], plan: Plan, backend: str = "ollama", lengths: AnswerTokens = hundred
) -> tuple[Proof, list[Step], Engine]:
    """Prove it in virtual time; return what came of it, what was told, and the server."""
    told: list[Step] = []
    engine = make(speed=SPEED, answer_tokens=lengths)

    async def prove() -> Proof:
        clock = asyncio.get_running_loop().time
        async with (
            serve_app(Replay(engine).app) as url,
            Client(Found(adapter_of(backend), url), "replay", clock=clock) as client,
        ):
            return await prove_continuing(Session(client, plan, told.append), slots=1)

    return run_virtually(prove()), told, engine


def test_a_server_that_continues_has_its_ways_proven() -> None:
    proof, told, _ = proven(Engine, FEW_TOKENS)
    assert [(each.way, each.trials, each.exact) for each in proof.continuations] == [
        ("raw", STANDARD.trials, STANDARD.trials),
        ("prefill", MIN_TRIALS, MIN_TRIALS),
    ]
    assert proof.notes == ()
    for each in proof.continuations:
        # Its prompt and what was said are read again, before the first token is written.
        assert 1 / 100 < each.warm_s < 0.1
        assert each.resume_s >= each.warm_s
    assert told[-1] == Step("cut and continued", 1, 1, 0.0)
    lefts = [step.left_s for step in told if step.left_s is not None]
    assert lefts[0] > lefts[-1]


@pytest.mark.parametrize("backend", ["llamacpp", "vllm", "other"])
def test_the_chat_of_openai_is_continued_too(backend: str) -> None:
    proof, _, _ = proven(Engine, QUICK, backend)
    assert [each.is_exact for each in proof.continuations] == [True]


def test_a_server_that_begins_another_turn_is_found_out_soon() -> None:
    proof, _, _ = proven(BeginsAnother, FEW_TOKENS)
    assert [(each.trials, each.exact, each.is_exact) for each in proof.continuations] == [
        (HOPELESS, 0, False),
        (HOPELESS, 0, False),
    ]


def test_one_text_in_twenty_four_may_differ_but_not_one_in_twelve() -> None:
    for plan, exact in ((FEW_TOKENS, True), (replace(FEW_TOKENS, trials=12), False)):
        proof, _, _ = proven(DiffersOnce, plan)
        first = proof.continuations[0]
        assert (first.trials - first.exact, first.is_exact) == (1, exact)


def test_a_server_that_never_answers_the_same_proves_nothing() -> None:
    proof, _, _ = proven(NeverTheSame, replace(FEW_TOKENS, cut_s=20.0))
    assert not any(each.is_exact for each in proof.continuations)
    assert sum(each.trials for each in proof.continuations) == 0


def test_a_quick_run_stops_when_its_time_is_up_and_at_the_first_exact_way() -> None:
    proof, _, engine = proven(Engine, QUICK)
    assert [each.way for each in proof.continuations] == ["raw"]
    assert proof.continuations[0].trials == QUICK.trials == MIN_TRIALS
    assert QUICK.cut_s is not None
    ended = max(service.ended_s or 0.0 for service in engine.journal)
    assert ended < QUICK.cut_s
    slow = replace(QUICK, cut_s=3.0)
    proof, _, engine = proven(Engine, slow)
    assert not proof.continuations[0].is_exact
    assert max(service.ended_s or 0.0 for service in engine.journal) < 6.0


def test_no_uncut_answer_stands_in_the_cache_before_its_cuts() -> None:
    proof, _, _ = proven(KeepsTheLonger, replace(FEW_TOKENS, cut_s=None))
    assert 0.0 < proof.continuations[0].resume_s < 1.0


def test_answers_shorter_than_asked_are_cut_all_the_same() -> None:
    proof, _, _ = proven(Engine, replace(FEW_TOKENS, cut_tokens=200), lengths=lambda prompt, rng: 20)
    assert proof.continuations[0].trials == STANDARD.trials


def test_answers_without_text_are_not_cut() -> None:
    proof, _, _ = proven(Engine, QUICK, lengths=nothing)
    assert proof.continuations == ()
    assert proof.why_not == "its answers are empty"


def test_a_calibration_keeps_what_was_proven() -> None:
    async def calibrated() -> Outcome:
        async with replay(decode=2000.0, stride=10) as (_, url):
            return (
                await measured(url, replace(SMALL, shorts=4, trials=MIN_TRIALS, cut_tokens=30, cut_s=None))
            )[0]

    continuation = run_virtually(calibrated()).profile.continuation
    assert isinstance(continuation, Continuation)
    assert continuation.trials == continuation.exact == MIN_TRIALS
