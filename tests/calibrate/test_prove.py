"""How `calibrate` proves that cut answers are continued: against servers that do, and that do not."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec
import pytest
from clairvoyant_lab import replay as simulated
from clairvoyant_lab.asgi_server import serve_app
from clairvoyant_lab.replay.engine import AnswerTokens
from clairvoyant_lab.virtual_time import run_virtually

from clairvoyant_cli.backends.adapter import Found
from clairvoyant_cli.backends.adapters import adapter_of
from clairvoyant_cli.backends.client import Client
from clairvoyant_cli.calibrate import prove
from clairvoyant_cli.calibrate.prove import (
    FAR_NATS,
    FULL_TOKENS,
    HOPELESS,
    LEAST_TOKENS,
    MOST_TOKENS,
    TRIALS,
    Prover,
    _gap,
    _parting,
)
from clairvoyant_cli.calibrate.run import Outcome
from profiles.records import MIN_TRIALS, Continuation
from tests.fakes.calibrating import SMALL, measured, replay
from tests.fakes.replay_backend import Engine, Replay, Service, Speed

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
    """Goes on otherwise once."""

    taken_up: int = 0

    def arrive(self, route: str, prompt: str, text_chars: int, cap: int | None, said: str = "") -> Service:
        service = super().arrive(route, prompt, text_chars, cap, said)
        self.taken_up += bool(said)
        if self.taken_up == 1 and said:
            service.words += " otherwise"
        return service


@dataclass(eq=False)
class KeepsTheLonger(Engine):
    """Keeps of two prompts that begin alike the longer one, and does not go back far in it, as llama.cpp."""

    def prefill_s(self, service: simulated.Service) -> float:
        whole = (
            each.tokens for each in self.journal if each.digest == service.digest and not each.said_tokens
        )
        kept = not service.said_tokens or service.said_tokens > 0.25 * max(whole)
        return 0.01 if kept else 10.0


@dataclass(eq=False)
class Rounds(Engine):
    """Continues with other words, as where others are nearly as likely."""

    def arrive(self, route: str, prompt: str, text_chars: int, cap: int | None, said: str = "") -> Service:
        service = super().arrive(route, prompt, text_chars, cap, said)
        if said:
            service.words += " otherwise"
        return service


def hundred(prompt: str, rng: object) -> int:
    return 100


def nothing(prompt: str, rng: object) -> int:
    return 0


def proven(
    make: Callable[..., Engine],
    backend: str = "ollama",
    lengths: AnswerTokens = hundred,
    *,
    least: int = TRIALS,
    steps: int = 1000,
    rate: float = 40.0,
) -> tuple[Prover, Engine]:
    """Run up to `steps` steps of a proof in virtual time; return the prover and the server."""
    engine = make(speed=SPEED, answer_tokens=lengths, stride=10)

    async def prove() -> Prover:
        clock = asyncio.get_running_loop().time
        async with (
            serve_app(Replay(engine).app) as url,
            Client(Found(adapter_of(backend), url), "replay", clock=clock) as client,
        ):
            prover = Prover(client, 1, rate, least=least)
            await prover.look()
            while not prover.is_complete and sum(prover.progress.questions.values()) < steps:
                await prover.step()
            return prover

    return run_virtually(prove()), engine


def test_a_server_that_continues_is_proven_by_its_first_way() -> None:
    prover, _ = proven(Engine)
    [raw] = prover.continuations
    assert (raw.way, raw.trials, raw.exact, raw.repeats) == ("raw", TRIALS, TRIALS, TRIALS // 2)
    assert prover.notes == ()
    # Its prompt and what was said are read again, before the first token is written.
    assert 1 / 100 < raw.resume_s < 0.1


@pytest.mark.parametrize("backend", ["llamacpp", "vllm", "other"])
def test_the_chat_of_openai_is_continued_too(backend: str) -> None:
    prover, _ = proven(Engine, backend, least=MIN_TRIALS)
    assert [each.is_exact for each in prover.continuations] == [True]


def test_a_server_that_begins_another_turn_is_found_out_soon() -> None:
    prover, _ = proven(BeginsAnother)
    assert [(each.trials, each.exact, each.is_exact) for each in prover.continuations] == [
        (HOPELESS, 0, False),
        (HOPELESS, 0, False),
    ]


def test_without_probabilities_one_text_in_twenty_four_may_differ_but_not_one_in_twelve() -> None:
    for least, alike in ((TRIALS, True), (MIN_TRIALS, False)):
        prover, _ = proven(DiffersOnce, least=least)
        first = prover.continuations[0]
        assert (first.trials - first.exact, first.is_exact, first.is_rounded) == (1, False, alike)


@pytest.mark.parametrize(
    ("gap_nats", "moved_nats", "rounded"),
    [(0.2, 0.15, True), (0.2, 0.05, False), (3.0, 2.0, False), (0.005, 0.0, True), (None, 0.0, False)],
)
def test_texts_that_part_at_a_tie_differ_by_rounding(
    gap_nats: float | None, moved_nats: float, rounded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A tie is as wide as twice the change of a probability when the tokens are read again, or a nat.
    async def likely_next(self: object, *asked: object, read_again: bool = False) -> dict[str, float]:
        if gap_nats is None:
            return {}
        return {" one": -0.5, " two": -0.5 - gap_nats, " three": -2.0 - moved_nats * read_again}

    monkeypatch.setattr(prove, "_parting", lambda *_: ("", (" one", " two")))
    monkeypatch.setattr(type(adapter_of("ollama")), "likely_next", likely_next)
    prover, _ = proven(Rounds)
    found = prover.continuations[0]
    assert (found.exact, found.is_exact, found.is_rounded) == (0, False, rounded)
    assert found.trials == (TRIALS if rounded else HOPELESS)


def test_a_token_that_is_not_among_the_likely_is_no_tie() -> None:
    likely = {" cat": -0.1, " dog": -0.2}
    assert _gap(likely, (" cats", " dogs")) == pytest.approx(0.1)
    assert _gap(likely, (" cats", " fish")) == FAR_NATS
    assert _gap(likely, (" cats", "")) == pytest.approx(0.1)  # the other may be the end
    assert _gap({}, (" cats", " dogs")) is None
    assert _parting(["a", " b", " c"], ["a", " b", " d"]) == ("a b", (" c", " d"))
    assert _parting(["a", " b"], ["a b", " c"]) == ("a b", ("", " c"))


def test_a_server_that_never_answers_the_same_proves_nothing() -> None:
    prover, _ = proven(NeverTheSame)
    assert prover.is_complete
    assert prover.continuations == ()


def test_interrupted_proof_resumes_and_drops_trials_of_other_settings() -> None:
    half, _ = proven(Engine, steps=3)
    assert not half.is_complete
    known = msgspec.json.decode(msgspec.json.encode(half.progress), type=type(half.progress))

    async def go_on(fingerprint: str) -> int:
        engine = Engine(speed=SPEED, answer_tokens=hundred, stride=10)
        clock = asyncio.get_running_loop().time
        async with (
            serve_app(Replay(engine).app) as url,
            Client(Found(adapter_of("ollama"), url), "replay", clock=clock) as client,
        ):
            prover = Prover(client, 1, 40.0, replace(known, fingerprint=fingerprint))
            await prover.look()
            await prover.step()
            return prover.done

    assert run_virtually(go_on(known.fingerprint)) == 8
    assert run_virtually(go_on(known.fingerprint.replace("model:", "model:0"))) == 2


def test_a_slow_server_is_asked_for_shorter_answers_and_more_of_them() -> None:
    fast, slow = (proven(Engine, steps=0, rate=rate)[0] for rate in (1000.0, 5.0))
    assert (fast.tokens, fast.wanted) == (MOST_TOKENS, TRIALS)
    assert (slow.tokens, slow.wanted) == (LEAST_TOKENS, TRIALS * FULL_TOKENS // LEAST_TOKENS)


def test_no_uncut_answer_stands_in_the_cache_before_its_cuts() -> None:
    prover, _ = proven(KeepsTheLonger)
    assert 0.0 < prover.continuations[0].resume_s < 1.0


def test_answers_without_text_are_not_cut() -> None:
    prover, _ = proven(Engine, lengths=nothing)
    assert prover.continuations == ()
    assert prover.notes == ("no answer can be preempted: its answers are empty",)


def test_a_calibration_keeps_what_was_proven() -> None:
    async def calibrated() -> Outcome:
        async with replay(decode=2000.0, stride=10) as (_, url):
            return (await measured(url, replace(SMALL, trials=MIN_TRIALS, cut_s=None)))[0]

    continuation = run_virtually(calibrated()).profile.continuation
    assert isinstance(continuation, Continuation)
    assert continuation.trials == continuation.exact == MIN_TRIALS
