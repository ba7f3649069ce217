"""The official clients understand the replay backend's answers, streamed and whole."""

from collections.abc import AsyncIterator

import anthropic
import ollama
import openai
import pytest
from clairvoyant_lab.asgi_server import serve_app

from tests.fakes.replay_backend import Engine, Replay, tabled

TOKENS = 6


@pytest.fixture
async def base_url() -> AsyncIterator[str]:
    """The address of a replay backend that answers "hello" in six tokens."""
    backend = Replay(Engine(answer_tokens=tabled({"hello": TOKENS})))
    async with serve_app(backend.app) as url:
        yield url


MESSAGES = [{"role": "user", "content": "hello"}]


async def test_ollama_chat(base_url: str) -> None:
    async with ollama.AsyncClient(base_url) as client:
        whole = await client.chat("replay", MESSAGES)
        streamed = [part async for part in await client.chat("replay", MESSAGES, stream=True)]
        assert (whole.eval_count, whole.done_reason) == (TOKENS, "stop")
        assert len(streamed) == TOKENS + 1
        assert "".join(part.message.content or "" for part in streamed) == whole.message.content
        assert streamed[-1].eval_count == TOKENS


async def test_ollama_generate(base_url: str) -> None:
    async with ollama.AsyncClient(base_url) as client:
        whole = await client.generate("replay", "hello")
        streamed = [part async for part in await client.generate("replay", "hello", stream=True)]
        assert "".join(part.response or "" for part in streamed) == whole.response
        assert len(whole.context or []) == (whole.prompt_eval_count or 0) + TOKENS


async def test_ollama_information(base_url: str) -> None:
    async with ollama.AsyncClient(base_url) as client:
        assert [model.model for model in (await client.list()).models] == ["replay:latest"]
        assert (await client.show("replay")).capabilities == ["completion", "embedding"]
        assert (await client.ps()).models == []
        assert len((await client.embed("replay", ["a", "b"])).embeddings) == 2
        assert len((await client.embeddings("replay", "a")).embedding) == 8
        with pytest.raises(ollama.ResponseError, match="not found"):
            await client.chat("missing", MESSAGES)


async def test_openai_chat(base_url: str) -> None:
    async with openai.AsyncOpenAI(base_url=base_url + "/v1", api_key="none") as client:
        whole = await client.chat.completions.create(
            model="replay", messages=[{"role": "user", "content": "hello"}]
        )
        stream = await client.chat.completions.create(
            model="replay",
            messages=[{"role": "user", "content": "hello"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    assert whole.usage is not None
    assert whole.usage.completion_tokens == TOKENS
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    assert chunks[-2].choices[0].finish_reason == "stop"


async def test_openai_completions_and_embeddings(base_url: str) -> None:
    async with openai.AsyncOpenAI(base_url=base_url + "/v1", api_key="none") as client:
        whole = await client.completions.create(model="replay", prompt="hello", max_tokens=4)
        stream = await client.completions.create(model="replay", prompt="hello", max_tokens=4, stream=True)
        chunks = [chunk async for chunk in stream]
        vectors = await client.embeddings.create(model="replay", input="hello", encoding_format="float")
        models = await client.models.list()
    assert whole.choices[0].finish_reason == "length"
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert len(vectors.data[0].embedding) == 8
    assert [model.id for model in models.data] == ["replay:latest"]


async def test_openai_responses(base_url: str) -> None:
    async with openai.AsyncOpenAI(base_url=base_url + "/v1", api_key="none") as client:
        whole = await client.responses.create(model="replay", input="hello")
        async with client.responses.stream(model="replay", input="hello") as stream:
            final = await stream.get_final_response()
    assert whole.usage is not None
    assert whole.usage.output_tokens == TOKENS
    assert final.output_text == whole.output_text
    assert final.status == "completed"


async def test_anthropic_messages(base_url: str) -> None:
    async with anthropic.AsyncAnthropic(base_url=base_url, api_key="none") as client:
        whole = await client.messages.create(
            model="replay", max_tokens=100, messages=[{"role": "user", "content": "hello"}]
        )
        async with client.messages.stream(
            model="replay", max_tokens=100, messages=[{"role": "user", "content": "hello"}]
        ) as stream:
            final = await stream.get_final_message()
    assert whole.stop_reason == "end_turn"
    assert whole.usage.output_tokens == final.usage.output_tokens == TOKENS
    assert [block.text for block in final.content if block.type == "text"] == [
        block.text for block in whole.content if block.type == "text"
    ]


async def test_errors_arrive_as_the_clients_own(base_url: str) -> None:
    async with openai.AsyncOpenAI(base_url=base_url + "/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.NotFoundError, match="not found"):
            await client.completions.create(model="missing", prompt="hello")
    async with anthropic.AsyncAnthropic(base_url=base_url, api_key="none", max_retries=0) as anthropic_client:
        with pytest.raises(anthropic.NotFoundError, match="not found"):
            await anthropic_client.messages.create(
                model="missing", max_tokens=1, messages=[{"role": "user", "content": "hello"}]
            )
