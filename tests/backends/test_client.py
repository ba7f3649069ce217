"""One question in each dialect: the numbers the server tells, or those of the stream if it tells none."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from clairvoyant_lab.asgi_server import serve_app
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from clairvoyant_cli.backends.adapter import Found
from clairvoyant_cli.backends.adapters import adapter_of
from clairvoyant_cli.backends.client import Client, Question, TimedAnswer
from clairvoyant_cli.calibrate.server_speeds import survey
from clairvoyant_cli.errors import ClairvoyantError
from tests.fakes.calibrating import replay

QUESTION = Question("q", "Write a long story.", 64)


def sse(*events: object) -> bytes:
    return b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events) + b"data: [DONE]\n\n"


def delta(text: str, reason: str | None = None) -> dict[str, object]:
    return {"choices": [{"delta": {"content": text}, "finish_reason": reason}]}


@asynccontextmanager
async def server(path: str, response: Response) -> AsyncIterator[str]:
    async def answer(request: Request) -> Response:
        return response

    async with serve_app(Starlette(routes=[Route(path, answer, methods=["GET", "POST"])])) as url:
        yield url


async def asked(url: str, backend: str = "llamacpp") -> TimedAnswer:
    async with Client(Found(adapter_of(backend), url), "m") as client:
        return await client.ask(QUESTION)


async def test_ollama_tells_its_durations() -> None:
    async with (
        replay(decode=2000.0, prefill=10_000.0) as (_, url),
        Client(Found(adapter_of("ollama"), url), "replay") as client,
    ):
        answer = await client.ask(QUESTION)
    assert (answer.tokens, answer.capped) == (64, True)
    assert answer.decode_tokens_per_s == pytest.approx(2000.0)
    assert answer.told_prefill_s == pytest.approx(answer.prompt_tokens / 10_000.0)


async def test_a_stream_without_durations_is_timed() -> None:
    async with (
        replay(decode=400.0) as (_, url),
        Client(Found(adapter_of("lmstudio"), url), "replay:latest") as client,
    ):
        answer = await client.ask(Question("q", "Write a long story.", 200))
    assert answer.told_decode_s is None
    assert answer.tokens == 200
    # The stream's pieces are late by chance on a busy machine, but the server never hurries.
    assert answer.decode_tokens_per_s is not None
    assert answer.decode_tokens_per_s < 1.2 * 400.0


async def test_llamacpp_tells_its_timings() -> None:
    timings = {"prompt_n": 32, "prompt_ms": 64.0, "predicted_n": 10, "predicted_ms": 200.0}
    last = delta("", "stop") | {"timings": timings}
    body = sse(*(delta("word ") for _ in range(10)), last)
    async with server("/v1/chat/completions", StreamingResponse(iter([body]))) as url:
        answer = await asked(url)
    assert answer.decode_tokens_per_s == pytest.approx(50.0)
    assert answer.prefill_tokens_per_s == pytest.approx(500.0)
    assert (answer.told_prefill_s, answer.told_decode_s) == pytest.approx((0.064, 0.2))


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (401, '{"error": {"message": "no key"}}', "--backend-key-file"),
        (404, '{"error": "model \'m\' not found"}', "--model"),
        (503, '{"error": {"message": "Loading model"}}', "loading"),
        (500, "out of memory", "out of memory"),
    ],
)
async def test_a_refusal_says_what_to_do(status: int, body: str, words: str) -> None:
    async with server("/v1/chat/completions", PlainTextResponse(body, status)) as url:
        with pytest.raises(ClairvoyantError, match=words):
            await asked(url)


async def test_an_answer_that_breaks_off_is_no_sample() -> None:
    cut = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
    async with server("/v1/chat/completions", StreamingResponse(iter([cut]))) as url:
        with pytest.raises(ClairvoyantError, match="broke off"):
            await asked(url)
    async with server("/api/chat", StreamingResponse(iter([b'{"error": "cuda"}\n']))) as url:
        with pytest.raises(ClairvoyantError, match="cuda"):
            await asked(url, "ollama")


@pytest.mark.parametrize("pings", [False, True])
async def test_a_silent_server_is_given_up(pings: bool) -> None:
    async def nothing() -> AsyncIterator[bytes]:
        while True:
            await asyncio.sleep(0.01)
            if pings:
                yield b":\n\n"

    async with (
        server("/v1/chat/completions", StreamingResponse(nothing())) as url,
        Client(Found(adapter_of("llamacpp"), url), "m") as client,
    ):
        client.silence_s = 0.2
        with pytest.raises(ClairvoyantError, match="has sent nothing for"):
            await client.ask(QUESTION)


async def test_a_server_that_answers_others_meanwhile_is_not_silent() -> None:
    async def slowly() -> AsyncIterator[bytes]:
        for _ in range(8):
            await asyncio.sleep(0.1)
            yield sse(delta("word "))[:-14]
        yield sse(delta("", "stop"))

    async def at_last() -> AsyncIterator[bytes]:
        await asyncio.sleep(0.7)
        yield sse(delta("word ", "stop"))

    replies = iter([slowly(), at_last()])

    async def answer(request: Request) -> Response:
        return StreamingResponse(next(replies))

    app = Starlette(routes=[Route("/v1/chat/completions", answer, methods=["POST"])])
    async with serve_app(app) as url, Client(Found(adapter_of("llamacpp"), url), "m") as client:
        client.silence_s = 0.4
        first, second = await asyncio.gather(client.ask(QUESTION), client.ask(QUESTION))
    assert (first.events, second.events) == (8, 1)


@pytest.mark.parametrize("piece", [b"A" * 60_000, sse(delta("word "))[:-14], b"data: {}\n\n"])
async def test_an_endless_answer_is_given_up(piece: bytes) -> None:
    async def flood() -> AsyncIterator[bytes]:
        for _ in range(200):  # more than is read of it
            yield piece * 20

    async with server("/v1/chat/completions", StreamingResponse(flood())) as url:
        with pytest.raises(ClairvoyantError, match="without end"):
            await asked(url)


@pytest.mark.parametrize(
    ("models", "wanted", "words"),
    [
        ([], None, "no model"),
        (["a", "b"], None, "--model: a, b"),
        (["a", "b"], "c", "it has a, b"),
    ],
)
async def test_which_model_is_settled_before_anything_is_measured(
    models: list[str], wanted: str | None, words: str
) -> None:
    listed = JSONResponse({"data": [{"id": name} for name in models]})
    async with server("/v1/models", listed) as url, Client(Found(adapter_of("lmstudio"), url)) as client:
        with pytest.raises(ClairvoyantError, match=words):
            await survey(client, wanted)
