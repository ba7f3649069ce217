"""The official clients through the proxy: openai and anthropic on llama.cpp, ollama on the replay backend."""

from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import anthropic
import httpx
import ollama
import openai
import pytest

from clairvoyant_cli.proxy.composition import Daemon
from predictor import load
from tests.fakes.llamacpp_server import LlamaServer
from tests.fakes.replay_backend import Engine, Replay, tabled
from tests.fakes.serving import replaying, serving

ASK: Any = [{"role": "user", "content": "Tell me about the river and the stone."}]
LENGTHS = tabled({ASK[0]["content"]: 12})


@pytest.fixture
async def before_llama(llama: LlamaServer) -> AsyncIterator[Daemon]:
    async with serving(llama.base_url, load()) as daemon:
        yield daemon


@pytest.fixture
async def replay() -> AsyncIterator[tuple[Daemon, Engine]]:
    backend = Replay(Engine(answer_tokens=LENGTHS))
    async with replaying(backend, load()) as daemon:
        yield daemon, backend.engine


@pytest.fixture
async def client_of_openai(before_llama: Daemon) -> AsyncIterator[openai.AsyncOpenAI]:
    base_url = f"{before_llama.base_url}/v1"
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def client_of_ollama(replay: tuple[Daemon, Engine]) -> AsyncIterator[ollama.AsyncClient]:
    client = ollama.AsyncClient(host=replay[0].base_url)
    yield client
    await client.close()  # type: ignore[no-untyped-call]


@pytest.mark.real
async def test_openai_chat(client_of_openai: openai.AsyncOpenAI, before_llama: Daemon) -> None:
    chat = client_of_openai.chat.completions
    whole = await chat.create(model="tiny", messages=ASK, max_tokens=16, temperature=0)
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 16
    stream = await chat.create(model="tiny", messages=ASK, max_tokens=16, temperature=0, stream=True)
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == whole.choices[0].message.content
    recent = before_llama.snapshot().recent
    assert [(each.endpoint, each.outcome, each.tokens) for each in recent] == [
        ("/v1/chat/completions", "completed", 16),
        ("/v1/chat/completions", "completed", 16),
    ]


@pytest.mark.real
async def test_openai_completions_and_responses(client_of_openai: openai.AsyncOpenAI) -> None:
    completion = await client_of_openai.completions.create(model="tiny", prompt="the river", max_tokens=5)
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 5
    response = await client_of_openai.responses.create(model="tiny", input="river", max_output_tokens=6)
    assert response.usage is not None
    assert response.usage.output_tokens == 6
    kinds = [
        event.type
        async for event in await client_of_openai.responses.create(
            model="tiny", input="river", max_output_tokens=6, stream=True
        )
    ]
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"


@pytest.mark.real
async def test_openai_lists_models_and_gets_the_backends_own_errors(
    client_of_openai: openai.AsyncOpenAI,
) -> None:
    assert [model.id async for model in client_of_openai.models.list()] == ["tiny"]
    with pytest.raises(openai.BadRequestError) as wrong:
        await client_of_openai.chat.completions.create(model="tiny", messages=5)  # type: ignore[call-overload]
    assert "messages" in str(wrong.value)
    with pytest.raises(openai.InternalServerError) as unsupported:
        await client_of_openai.embeddings.create(model="tiny", input="river")
    assert unsupported.value.status_code == 501


@pytest.mark.real
async def test_anthropic(before_llama: Daemon) -> None:
    async with anthropic.AsyncAnthropic(
        base_url=before_llama.base_url, api_key="none", max_retries=0
    ) as client:
        whole = await client.messages.create(model="tiny", messages=ASK, max_tokens=9)
        assert whole.usage.output_tokens == 9
        async with client.messages.stream(model="tiny", messages=ASK, max_tokens=9) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            final = await stream.get_final_message()
        assert getattr(final.content[0], "text", None) == text
        assert final.usage.output_tokens == 9
        counted = await client.messages.count_tokens(model="tiny", messages=ASK)
        assert counted.input_tokens > 5
    assert {each.tokens for each in before_llama.snapshot().recent} == {9}


async def test_ollama(client_of_ollama: ollama.AsyncClient, replay: tuple[Daemon, Engine]) -> None:
    (daemon, engine), client = replay, client_of_ollama
    whole = await client.chat(model="replay", messages=ASK)
    parts = [part async for part in await client.chat(model="replay", messages=ASK, stream=True)]
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert (whole.eval_count, parts[-1].eval_count, parts[-1].done_reason) == (12, 12, "stop")
    generated = await client.generate(model="replay", prompt=ASK[0]["content"])
    assert generated.eval_count == 12
    assert len((await client.embed(model="replay", input=["one", "two"])).embeddings) == 2
    assert [model.model for model in (await client.list()).models] == ["replay:latest"]
    assert (await client.show("replay")).capabilities == ["completion", "embedding"]
    assert [model.name for model in (await client.ps()).models] == ["replay:latest"]
    assert daemon.snapshot().counters.completed == engine.counts.completed == 4


async def test_ollama_errors_are_its_own(client_of_ollama: ollama.AsyncClient) -> None:
    with pytest.raises(ollama.ResponseError, match='model "other" not found') as missing:
        await client_of_ollama.chat(model="other", messages=ASK)
    assert missing.value.status_code == 404


async def test_an_answer_tells_what_was_predicted(replay: tuple[Daemon, Engine]) -> None:
    daemon, _ = replay
    async with httpx.AsyncClient(base_url=daemon.base_url) as client:
        answers = [
            await client.post("/api/chat", json={"model": "replay", "messages": ASK, "stream": False})
            for _ in range(3)
        ]
    told = [answer.headers for answer in answers]
    numbers = [int(each["x-clairvoyant-request-id"].rsplit("-", 1)[1]) for each in told]
    assert all(after == before + 1 for before, after in pairwise(numbers))
    assert {each["x-clairvoyant-class"] for each in told} <= {"short", "medium", "long"}
    assert all(int(each["x-clairvoyant-tokens"]) > 0 for each in told)
    assert all(float(each["x-clairvoyant-queue-ms"]) >= 0 for each in told)
