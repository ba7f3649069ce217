"""The replay engine's clock, queue and memory, on virtual time."""

import asyncio
from random import Random
from typing import Any

import pytest
from clairvoyant_lab.virtual_time import VirtualLoop, run_virtually
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.replay_backend import Engine, Outcome, Service, Speed, heavy_tailed, tabled


async def answer(engine: Engine, prompt: str, cap: int | None = None) -> Service:
    service = engine.arrive("/test", prompt, len(prompt), cap)
    async with engine.slot(service):
        await engine.prefill(service)
        async for _ in engine.decode(service):
            pass
    return service


def service_s(service: Service) -> float:
    assert service.started_s is not None
    assert service.ended_s is not None
    return service.ended_s - service.started_s


class LateLoop(VirtualLoop):
    """A virtual clock whose timers are late, as on a busy machine."""

    def __init__(self, lateness_s: float) -> None:
        super().__init__()
        jump = self._selector.select  # type: ignore[attr-defined]

        def select(timeout_s: float | None) -> Any:
            before_s, ready = self._now_s, jump(timeout_s)
            self._now_s += lateness_s if self._now_s > before_s else 0.0
            return ready

        self._selector.select = select  # type: ignore[attr-defined]


@given(
    tokens=st.integers(1, 3000),
    rate=st.sampled_from([7.0, 100.0, 2000.0, 50_000.0]),
    lateness_s=st.floats(0.0, 0.02),
)
def test_late_timers_do_not_add_up(tokens: int, rate: float, lateness_s: float) -> None:
    engine = Engine(speed=Speed(decode_tokens_per_s=rate), answer_tokens=lambda prompt, rng: tokens)
    with asyncio.Runner(loop_factory=lambda: LateLoop(lateness_s)) as runner:
        service = runner.run(answer(engine, "x"))
    assert service.tokens == tokens
    assert tokens / rate <= service_s(service) + 1e-9
    # Of all the timers that came late, only the last one may show.
    assert service_s(service) <= tokens / rate + lateness_s + 1e-9


def test_prefill_takes_time() -> None:
    engine = Engine(
        speed=Speed(prefill_tokens_per_s=50, decode_tokens_per_s=10), answer_tokens=tabled({"p" * 400: 20})
    )
    service = run_virtually(answer(engine, "p" * 400))
    assert service_s(service) == pytest.approx(100 / 50 + 20 / 10)


@pytest.mark.parametrize("slots", [1, 3])
def test_never_more_answers_than_slots(slots: int) -> None:
    engine = Engine(slots=slots, speed=Speed(decode_tokens_per_s=100))

    async def burst() -> list[Service]:
        return await asyncio.gather(*(answer(engine, f"prompt {i}") for i in range(12)))

    services = run_virtually(burst())
    edges = [(s.started_s, 1) for s in services] + [(s.ended_s, -1) for s in services]
    busy = 0
    for _, step in sorted(edges, key=lambda e: (e[0] or 0.0, e[1])):
        busy += step
        assert busy <= slots
    assert [s.start_order for s in services] == list(range(12))


def test_a_frozen_engine_holds_its_slot_and_loses_no_token() -> None:
    engine = Engine(speed=Speed(decode_tokens_per_s=10), answer_tokens=lambda prompt, rng: 20)

    async def frozen_for_a_minute() -> Service:
        answering = asyncio.create_task(answer(engine, "x"))
        await engine.wait_until(lambda c: c.first_token == 1)
        engine.freeze()
        await asyncio.sleep(60)
        assert len(engine.running) == 1
        engine.thaw()
        return await answering

    service = run_virtually(frozen_for_a_minute())
    assert service.tokens == 20
    assert service_s(service) == pytest.approx(62.0, abs=0.2)


def test_a_cancelled_request_frees_its_place_in_the_queue() -> None:
    engine = Engine(speed=Speed(decode_tokens_per_s=10), answer_tokens=lambda prompt, rng: 10)

    async def leave() -> list[Outcome]:
        tasks = [asyncio.create_task(answer(engine, name)) for name in "abc"]
        await engine.wait_until(lambda c: c.arrived == 3)
        tasks[1].cancel()
        tasks[0].cancel()
        await asyncio.wait(tasks)
        return [s.outcome for s in engine.journal]

    assert run_virtually(leave()) == [Outcome.CANCELLED, Outcome.CANCELLED, Outcome.COMPLETED]


def test_equal_seeds_give_equal_answers() -> None:
    async def words(seed: int) -> list[str]:
        engine = Engine(seed=seed)
        service = engine.arrive("/test", "a question", 10, None)
        return [word async for batch in engine.decode(service) for word in batch]

    first, again, other = (run_virtually(words(seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_default_lengths_have_the_spread_of_chat_traffic() -> None:
    lengths = sorted(heavy_tailed("", Random(i)) for i in range(2000))
    assert 120 < lengths[1000] < 180
    assert 550 < lengths[1800] < 900
