"""The replay backend over a real socket: serial, first come first served, and gone when its clients are."""

import asyncio
import json
import subprocess
import sys
from datetime import UTC, datetime

import httpx
import pytest
from clairvoyant_lab.asgi_server import serve_app
from clairvoyant_lab.replay.app import VERSION

from tests.fakes.replay_backend import Engine, Outcome, Replay, Speed, digest, tabled

LENGTHS = tabled({"one": 3, "two": 5, "endless": 100_000})


def replay(**engine: object) -> Replay:
    return Replay(Engine(answer_tokens=LENGTHS, **engine))  # type: ignore[arg-type]


def chat(prompt: str, **fields: object) -> dict[str, object]:
    return {"model": "replay", "messages": [{"role": "user", "content": prompt}], **fields}


async def test_ollama_streams_ndjson_with_a_final_object() -> None:
    backend = replay()
    async with serve_app(backend.app) as url, httpx.AsyncClient(base_url=url) as client:
        response = await client.post("/api/chat", json=chat("one"))
    lines = [json.loads(line) for line in response.text.splitlines()]
    assert response.headers["content-type"] == "application/x-ndjson"
    assert [line["done"] for line in lines] == [False, False, False, True]
    assert lines[-1]["eval_count"] == 3
    assert lines[-1]["done_reason"] == "stop"


async def test_the_cap_of_the_client_shortens_the_answer() -> None:
    backend = replay()
    async with serve_app(backend.app) as url, httpx.AsyncClient(base_url=url) as client:
        body = chat("endless", stream=False, options={"num_predict": 7})
        final = (await client.post("/api/chat", json=body)).json()
    assert (final["eval_count"], final["done_reason"]) == (7, "length")


async def test_one_at_a_time_in_the_order_of_arrival() -> None:
    backend = replay()
    engine = backend.engine
    engine.freeze()
    async with (
        serve_app(backend.app) as url,
        httpx.AsyncClient(base_url=url) as client,
        asyncio.TaskGroup() as group,
    ):
        for arrived, prompt in enumerate(["two", "one", "two"], start=1):
            group.create_task(client.post("/api/chat", json=chat(prompt)))
            await engine.wait_until(lambda c, arrived=arrived: c.arrived == arrived)  # type: ignore[misc]
        await engine.wait_until(lambda c: c.started == 1)
        assert (len(engine.running), len(engine.waiting)) == (1, 2)
        engine.thaw()
    assert [s.digest for s in engine.started] == [digest("two"), digest("one"), digest("two")]
    assert [s.outcome for s in engine.journal] == [Outcome.COMPLETED] * 3


async def test_a_client_that_leaves_while_waiting_is_dropped() -> None:
    backend = replay()
    engine = backend.engine
    engine.freeze()
    async with serve_app(backend.app) as url, httpx.AsyncClient(base_url=url) as client:
        first = asyncio.create_task(client.post("/api/chat", json=chat("two")))
        await engine.wait_until(lambda c: c.started == 1)
        second = asyncio.create_task(client.post("/api/chat", json=chat("one")))
        await engine.wait_until(lambda c: c.arrived == 2)
        second.cancel()
        await engine.wait_until(lambda c: c.cancelled == 1)
        engine.thaw()
        await first
    assert engine.counts.started == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_in_mid_generation_frees_the_slot(stream: bool) -> None:
    backend = replay(speed=Speed(decode_tokens_per_s=2000))
    engine = backend.engine
    async with serve_app(backend.app) as url, httpx.AsyncClient(base_url=url) as client:
        leaver = asyncio.create_task(client.post("/api/chat", json=chat("endless", stream=stream)))
        await engine.wait_until(lambda c: c.first_token == 1)
        leaver.cancel()
        await engine.wait_until(lambda c: c.cancelled == 1)
        await client.post("/api/chat", json=chat("one"))
    assert engine.counts.completed == 1


async def test_a_crash_in_mid_stream_breaks_the_connection() -> None:
    engine = Engine(answer_tokens=LENGTHS)
    backend = Replay(engine)
    engine.die_next(after_tokens=2)
    async with serve_app(backend.app) as url, httpx.AsyncClient(base_url=url) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post("/api/chat", json=chat("two"))
        assert (await client.post("/api/chat", json=chat("two"))).status_code == 200
    assert backend.engine.counts.failed == 1


async def test_equal_requests_give_equal_bytes_on_a_fixed_clock() -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    answers = []
    for _ in range(2):
        backend = Replay(Engine(answer_tokens=LENGTHS), now=lambda: noon)
        async with serve_app(backend.app) as url, httpx.AsyncClient(base_url=url) as client:
            answers.append((await client.post("/api/chat", json=chat("two"))).content)
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("route", "expected"),
    [
        ("/api/embed", {"error": "no"}),
        ("/api/chat", {"error": "no"}),
        (
            "/v1/chat/completions",
            {"error": {"message": "no", "type": "api_error", "param": None, "code": None}},
        ),
        ("/v1/messages", {"type": "error", "error": {"type": "api_error", "message": "no"}}),
    ],
)
async def test_errors_are_in_the_dialect_of_the_route(route: str, expected: object) -> None:
    engine = Engine(answer_tokens=LENGTHS)
    backend = Replay(engine)
    engine.fail_next(500, "no")
    async with serve_app(backend.app) as url, httpx.AsyncClient(base_url=url) as client:
        response = await client.post(route, json=chat("one", max_tokens=5))
    assert (response.status_code, response.json()) == (500, expected)


async def test_invalid_requests_are_refused() -> None:
    backend = replay()
    async with serve_app(backend.app) as url, httpx.AsyncClient(base_url=url) as client:
        missing = await client.post("/api/chat", json=chat("one") | {"model": "other"})
        broken = await client.post("/v1/chat/completions", content=b"{")
        empty = await client.post("/api/generate")
    assert missing.status_code == 404
    assert missing.json() == {"error": 'model "other" not found, try pulling it first'}
    assert (broken.status_code, empty.status_code) == (400, 400)
    assert broken.json()["error"]["type"] == "invalid_request_error"
    assert backend.engine.counts.arrived == 0


async def test_load_and_unload_take_no_slot() -> None:
    backend = replay()
    async with serve_app(backend.app) as url, httpx.AsyncClient(base_url=url) as client:
        load = await client.post("/api/generate", json={"model": "replay"})
        resident = (await client.get("/api/ps")).json()["models"]
        unload = await client.post("/api/chat", json={"model": "replay", "messages": [], "keep_alive": 0})
        after = (await client.get("/api/ps")).json()["models"]
    assert load.json()["done_reason"] == "load"
    assert [model["name"] for model in resident] == ["replay:latest"]
    assert unload.json()["done_reason"] == "unload"
    assert after == []
    assert backend.engine.counts.arrived == 0


async def test_a_server_that_stops_can_start_again_on_its_port() -> None:
    backend = replay()
    async with serve_app(backend.app) as url, httpx.AsyncClient(base_url=url) as client:
        assert (await client.get("/api/version")).json() == {"version": VERSION}
    port = int(url.rsplit(":", 1)[1])
    async with serve_app(backend.app, port) as again, httpx.AsyncClient(base_url=again) as client:
        assert again == url
        assert (await client.get("/api/version")).status_code == 200


async def test_wait_until_times_out_with_the_state() -> None:
    with pytest.raises(TimeoutError, match="0 waiting, 0 running"):
        await Engine().wait_until(lambda c: c.started == 1, timeout_s=0)


def test_the_routes_of_demo_and_bench_are_there_without_those_of_the_tests() -> None:
    code = (
        "from clairvoyant_cli.backends.adapters import OTHER, adapter_of\n"
        "from clairvoyant_lab.replay.dialects import DIALECTS\n"
        "assert {OTHER.chat_path, adapter_of('ollama').chat_path} == {*DIALECTS}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
