"""The replay engine's clock, queue and memory, on virtual time."""

import asyncio
from typing import Any

import pytest
from clairvoyant_lab.virtual_time import VirtualLoop, run_virtually
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.replay_backend import Engine, Service, Speed, tabled


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
