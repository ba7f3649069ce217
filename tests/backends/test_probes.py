"""What servers answer to our own questions: bounded before it is read, and understood or not."""

import asyncio
import gzip
import json
from collections.abc import Callable
from itertools import count
from time import monotonic
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clairvoyant_cli.backends.adapter import NOT_UNDERSTOOD, Status
from clairvoyant_cli.backends.adapters import OTHER, adapter_of
from clairvoyant_cli.backends.discovery import identify, locate_server
from clairvoyant_cli.backends.prober import AskingOnce, Prober
from clairvoyant_cli.config import MAX_SLOTS
from clairvoyant_cli.http.framing import CHUNKS_AT_ONCE
from clairvoyant_cli.http.upstream import Upstream
from clairvoyant_cli.protocols import probes
from clairvoyant_cli.protocols.printable import MAX_NAME_CHARS
from clairvoyant_cli.protocols.probes import (
    ANSWER_BYTES,
    ANSWER_ENTRIES,
    ANSWER_OBJECTS,
    MAX_MODELS,
    LoadedModel,
)
from clairvoyant_cli.proxy.requests.serving import SHARED, SILENT, slots_settled
from clairvoyant_cli.proxy.servers.server import Server
from tests.fakes.scripted_upstream import answer, answering
from tests.fakes.serving import serving, until

MODEL = {"name": "m:latest", "size": 5, "size_vram": 4, "context_length": 4096, "digest": "abc"}
PROPS = {
    "total_slots": 4,
    "build_info": "b1",
    "model_path": "/models/m.gguf",
    "default_generation_settings": {},
}

names = st.sampled_from(
    "version models name size size_vram context_length digest remote_host total_slots build_info model_alias "
    "model_path default_generation_settings n_ctx is_processing".split()
)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner))


def text(value: Any) -> bytes:
    return json.dumps(value).encode()


@given(values.map(text) | st.binary(max_size=50))
def test_whatever_is_answered_is_understood_or_not(body: bytes) -> None:
    probes.is_clairvoyant(body)
    probes.version_of(body)
    probes.ollama_models(body)
    probes.openai_models(body)
    probes.sglang_version(body)
    for model in probes.loaded_models(body) or ():
        assert all(
            0 <= (number or 0) < 1 << 63 for number in (model.size_bytes, model.vram_bytes, model.context)
        )
    props = probes.props_of(body)
    assert props is None or props.slots is None or 1 <= props.slots <= MAX_SLOTS
    assert len(probes.busy_slots(body) or ()) <= MAX_SLOTS


def test_what_servers_say_is_read() -> None:
    assert probes.version_of(text({"version": "0.40.1"})) == "0.40.1"
    assert probes.loaded_models(text({"models": [MODEL, 5]})) == (LoadedModel("m:latest", 5, 4, 4096, "abc"),)
    assert probes.loaded_models(text({"models": None})) == ()
    listed = probes.ollama_models(text({"models": [MODEL, {"name": "far", "remote_host": "x"}]}))
    assert [(model.name, model.remote) for model in listed or ()] == [("m:latest", False), ("far", True)]
    props = probes.props_of(text(PROPS | {"default_generation_settings": {"n_ctx": 512}}))
    assert props is not None
    assert (props.build, props.slots, props.model) == ("b1", 4, LoadedModel("m.gguf", context=512))
    slots = [{"is_processing": True, "id_task": 7}, {"is_processing": False}, 5, {"is_processing": True}]
    assert probes.busy_slots(text(slots)) == frozenset({(0, 7), (3, None)})


def test_names_and_numbers_have_an_end() -> None:
    assert probes.version_of(text({"version": "m\u202e" * 500})) == "m?" * (MAX_NAME_CHARS // 2)
    (model,) = (
        probes.loaded_models(text({"models": [{"name": "m" * 5000, "size": -1, "context_length": 1e300}]}))
        or ()
    )
    assert model == LoadedModel("m" * MAX_NAME_CHARS, None, None, None)
    assert len(probes.loaded_models(text({"models": [MODEL] * 2000})) or ()) == MAX_MODELS
    for slots in (10**12, -1, 0, 1.5, "4", True, None, [4]):
        props = probes.props_of(text(PROPS | {"total_slots": slots}))
        assert props is not None
        assert (props.tells_slots, props.slots) == (True, None)


@pytest.mark.parametrize("body", [None, b"", b"[]", b'{"version": 5', b"[" * 100_000, b"\xff"])
def test_what_is_no_answer_is_not_understood(body: bytes | None) -> None:
    assert not probes.is_clairvoyant(body)
    assert probes.version_of(body) is None
    assert probes.loaded_models(body) is None
    assert probes.props_of(body) is None


def test_an_answer_that_holds_too_much_is_not_understood() -> None:
    assert probes.loaded_models(b'{"models":[' + b"{}," * ANSWER_OBJECTS + b"{}]}") is None
    assert probes.busy_slots(b"[" + b"{}," * ANSWER_OBJECTS + b"{}]") is None
    assert probes.busy_slots(b"[" + b"0," * ANSWER_ENTRIES + b"0,0]") is None
    assert probes.version_of(b'{"version": "1", "x": "' + b"x" * ANSWER_BYTES + b'"}') is None


# -- asking ------------------------------------------------------------------------------------------


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
VERSION = text({"version": "1"})

UNREADABLE: dict[str, Callable[[], list[bytes]]] = {
    "too long": lambda: [answer(VERSION + b" " * ANSWER_BYTES)],
    "without an end": lambda: [CHUNKED, *[b"10000\r\n" + b" " * 65_536 + b"\r\n"] * 1000],
    "compressed": lambda: [answer(gzip.compress(VERSION), "Content-Encoding: gzip")],
    "said to be compressed": lambda: [answer(VERSION, "Content-Encoding: gzip")],
    "of a million models": lambda: [answer(b'{"version":"1","models":[' + b"{}," * 1_000_000 + b"{}]}")],
}


@pytest.mark.parametrize("name", UNREADABLE)
async def test_an_answer_that_cannot_be_read_says_nothing(name: str) -> None:
    prober = Prober()
    async with answering(lambda path: UNREADABLE[name]() if path == "/api/version" else []) as url:
        found = await identify(prober, url)
        assert found is not None
        assert found.adapter is OTHER
        adapter, status = adapter_of("ollama"), Status()
        await adapter.refresh(prober.asking(url), status)
        assert (status.state, status.version, status.detail) == ("up", "", NOT_UNDERSTOOD)
    await prober.close()


async def test_what_is_understood_again_is_said_no_more() -> None:
    models = [{"models": "none"}, {"models": [MODEL]}]

    def answers(path: str) -> list[bytes]:
        bodies = {"/api/version": VERSION, "/api/tags": b"{}"}
        return [answer(text(models.pop(0)) if path == "/api/ps" else bodies[path])]

    prober = Prober()
    async with answering(answers) as url:
        adapter, status = adapter_of("ollama"), Status()
        await adapter.refresh(AskingOnce(prober.asking(url)), status)
        assert (status.detail, status.models) == (NOT_UNDERSTOOD, ())
        await adapter.refresh(AskingOnce(prober.asking(url)), status)
        assert (status.detail, [model.name for model in status.models]) == ("", ["m:latest"])
    await prober.close()


@pytest.mark.parametrize("slots", [10**12, -1, "many"])
async def test_a_number_of_slots_that_cannot_be_is_not_taken(slots: object) -> None:
    pages = {"/props": text(PROPS | {"total_slots": slots}), "/health": b"{}", "/slots": b"[]"}
    async with (
        answering(lambda path: [answer(pages[path])] if path in pages else []) as url,
        serving(url) as daemon,
    ):
        state = await until(daemon, lambda state: bool(state.backends[0].models))
        backend = state.backends[0]
        assert backend.state == "up"
        assert (backend.kind, backend.slots, backend.detail) == ("llamacpp", 1, NOT_UNDERSTOOD)
        assert [model.name for model in backend.models] == ["m.gguf"]


async def test_other_slots_after_a_restart_are_noticed_and_a_missing_answer_changes_nothing() -> None:
    pages = {"/props": text(PROPS | {"total_slots": 4}), "/health": b"{}"}
    prober = Prober()
    async with answering(lambda path: [answer(pages[path])] if path in pages else []) as url:
        adapter, status = adapter_of("llamacpp"), Status()
        slots = []
        for props in (pages["/props"], None, text(PROPS | {"total_slots": 1})):
            pages.pop("/props", None)
            if props is not None:
                pages["/props"] = props
            await adapter.refresh(prober.asking(url), status)
            slots.append((status.slots, status.detail, len(status.models)))
        assert slots == [(4, "", 1), (4, "", 1), (1, "", 1)]
    await prober.close()


SLOT_LISTS = {
    "our answer ends": ([[7], []], [], ""),
    "our answer ends, and another program has its slot": ([[7], [8]], [], SHARED),
    "another program's requests come and go beside ours": ([[1, 7], [2, 7], [3, 7], [4]], [], SHARED),
    "a request of ours runs on": ([[1, 7], [1]], [-9.0], ""),
    "a request of ours was just sent": ([[1, 7], [2, 7], [3]], [0.0], ""),
    "slots stay busy": ([[7, 8]] * 9, [], SHARED),
}


@pytest.mark.parametrize(("looks", "sent", "said"), SLOT_LISTS.values(), ids=SLOT_LISTS)
async def test_a_slot_is_free_once_the_answer_that_was_given_up_has_left_it(
    looks: list[list[int]], sent: list[float], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clairvoyant_cli.proxy.requests.serving.LEAST_STOP_S", 0.5)
    monkeypatch.setattr("clairvoyant_cli.proxy.requests.serving.MAX_STOP_S", 60.0)
    left, ticks = list(looks), count()

    def clock() -> float:
        return 0.1 * next(ticks)

    def answers(path: str) -> list[bytes]:
        return [answer(text([{"is_processing": True, "id_task": task} for task in left.pop(0)]))]

    async with answering(answers) as url, Prober() as prober:
        server = Server("llamacpp", adapter_of("llamacpp"), Upstream(url), prober)
        began = slots_settled(server, lambda: [clock() + at for at in sent], clock, streamed=True)
        assert await began == said
    assert not left or said == SHARED


@pytest.mark.parametrize("silent", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n["])
async def test_slots_that_are_never_told_are_not_waited_for(
    silent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clairvoyant_cli.proxy.requests.serving.MAX_STOP_S", 0.05)
    async with answering(lambda path: [silent]) as url, Prober() as prober:
        server = Server("llamacpp", adapter_of("llamacpp"), Upstream(url), prober)
        async with asyncio.timeout(2):
            assert await slots_settled(server, list, monotonic) == SILENT


async def test_the_loop_turns_while_an_answer_comes_in_crumbs() -> None:
    turns, times = 0, 5

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    prober = Prober()
    crumbs = [CHUNKED + b"1\r\n \r\n" * times * CHUNKS_AT_ONCE + b"0\r\n\r\n"]
    async with answering(lambda path: crumbs if path == "/api/version" else []) as url:
        counting = asyncio.create_task(count())
        await locate_server(url, prober)
        counting.cancel()
    await prober.close()
    assert turns >= times


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\n" + b"a:b\r\n" * 20_000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 2**20,
        b"HTTP/1.1 103 Early Hints\r\n\r\n" * 1000,
        b"SSH-2.0-OpenSSH_9.6\r\n",
    ],
)
async def test_a_head_that_is_none_or_too_long_is_no_answer(head: bytes) -> None:
    prober = Prober()
    async with answering(lambda path: [head]) as url:
        assert await identify(prober, url) is None
        adapter, status = adapter_of("ollama"), Status()
        await adapter.refresh(prober.asking(url), status)
        assert status.state == "down"
    await prober.close()


def test_when_ollama_unloads_a_model() -> None:
    listing = b'{"models": [{"name": "m:latest", "expires_at": "2026-11-26T12:00:00.123456789+01:00"}]}'
    at = probes.unloads_at(listing, "m:latest")
    assert at is not None
    assert at.isoformat() == "2026-11-26T12:00:00.123456+01:00"
    assert probes.unloads_at(listing, "other") is None
    assert probes.unloads_at(b'{"models": [{"name": "m", "expires_at": "soon"}]}', "m") is None


def test_a_model_that_sleeps_is_not_loaded() -> None:
    props = probes.props_of(b'{"total_slots": 1, "model_path": "m.gguf", "is_sleeping": true}')
    assert props is not None
    assert props.sleeps
