"""The line that names the limit: right, or not there."""

from dataclasses import replace
from typing import Any

import pytest

from clairvoyant_cli.state.snapshot import LoadedModel, Snapshot
from tests.tui.board import WHERE, busy
from tui.hardware.reading import Gpu, Hardware, Host
from tui.history import History, Sample
from tui.panels.header import bottleneck
from tui.view_state import ViewState

FULL_MODEL = (LoadedModel("m", 8 << 30, 8 << 30),)


def watched(state: Snapshot, gpu: Gpu | None, seconds: int = 12, **link: Any) -> ViewState:
    history = History()
    readings = () if gpu is None else (gpu,)
    hardware = Hardware(Host(), readings)
    for second in range(seconds):
        history.take(replace(state, uptime_s=100.0 + second))
        history.take_hardware(replace(hardware, at_s=float(second + 1)))
    shown = replace(state, uptime_s=99.0 + seconds)
    return ViewState(WHERE, shown, hardware, history, **link)


def gpu(use: float, **fields: Any) -> Gpu:
    return Gpu(0, "RTX", use, 8 << 30, 24 << 30, **fields)


def state(**fields: Any) -> Snapshot:
    (backend,) = busy().backends
    return replace(busy(), backends=(replace(backend, models=FULL_MODEL),), **fields)


def server(**fields: Any) -> Snapshot:
    return replace(state(), backends=(replace(state().backends[0], **fields),))


@pytest.mark.parametrize(
    ("state", "gpu", "words"),
    [
        (state(), gpu(0.98), "GPU 98%: it is the limit"),
        (state(), gpu(0.8), ""),
        (state(), gpu(0.41), "slots full, GPU 41%: try --slots 6"),
        (state(), replace(gpu(0.41), memory_used_bytes=23 << 30), "slots full, GPU 41%"),
        (server(tells_slots=True, models=FULL_MODEL), gpu(0.41), "slots full, GPU 41%"),
        (
            server(models=(LoadedModel("big", 40 << 30, 20 << 30),)),
            gpu(0.3),
            "GPU 30%: part of big is on the CPU",
        ),
        (state(), None, ""),
        (state(), Gpu(0, "MIG slice"), ""),
        (server(stamped=True), gpu(0.98), ""),
        (server(state="loading"), gpu(0.98), ""),
        (state(mode="paused"), gpu(0.98), ""),
        (replace(state(), queue=(), waiting=replace(busy().waiting, total=0)), gpu(0.98), ""),
        (server(busy=1), gpu(0.98), ""),
    ],
)
def test_the_limit_is_named_or_nothing_is(state: Snapshot, gpu: Gpu | None, words: str) -> None:
    assert bottleneck(watched(state, gpu)) == words


def test_nothing_is_named_of_another_machine_a_lost_daemon_or_a_moment() -> None:
    seen = watched(state(), gpu(0.98))
    assert bottleneck(seen)
    assert not bottleneck(watched(state(), gpu(0.98), local=False))
    assert not bottleneck(watched(state(), gpu(0.98), seconds=5))
    assert not bottleneck(replace(seen, lost="no daemon answers"))
    assert not bottleneck(replace(seen, hardware_age_s=60.0))
    assert not bottleneck(replace(seen, past_s=60.0))
    for other in (server(busy=3), state(queue=(), waiting=replace(busy().waiting, total=0))):
        mixed = watched(state(), gpu(0.98))
        mixed.history.take(replace(other, uptime_s=112.0))
        assert not bottleneck(mixed)


def test_slots_of_a_server_that_is_down_do_not_count_as_free() -> None:
    down = replace(busy().backends[0], name="two", state="down", busy=0)
    sample = Sample.of(replace(busy(), backends=(*busy().backends, down)))
    assert (sample.busy, sample.slots) == (4, 4)
