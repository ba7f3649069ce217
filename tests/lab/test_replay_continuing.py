"""The replay backend resumes a cut answer in each dialect."""

from collections.abc import AsyncIterator, Callable

import httpx
import pytest
from clairvoyant_lab.asgi_server import serve_app
from clairvoyant_lab.virtual_time import run_virtually

from tests.fakes.replay_backend import Engine, Replay, Speed, tabled

Json = dict[str, object]

QUESTION = "a question about the river"


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    """Ask a backend that answers the question in 40 tokens, and knows of nothing before."""
    engine = Engine(answer_tokens=tabled({QUESTION: 40}))
    async with serve_app(Replay(engine).app) as url, httpx.AsyncClient(base_url=url) as client:
        yield client


def chat(said: str) -> Json:
    begun = [{"role": "assistant", "content": said}] if said else []
    return {"messages": [{"role": "user", "content": QUESTION}, *begun]}


def prompt(said: str) -> Json:
    return {"prompt": QUESTION + said}


def rendered(said: str) -> Json:
    turn = f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
    return {"prompt": turn + said, "raw": True}


def openai_chat(answer: Json) -> tuple[str, int, int]:
    usage = answer["usage"]
    return answer["choices"][0]["message"]["content"], usage["prompt_tokens"], usage["completion_tokens"]  # type: ignore[index]


def completion(answer: Json) -> tuple[str, int, int]:
    usage = answer["usage"]
    return answer["choices"][0]["text"], usage["prompt_tokens"], usage["completion_tokens"]  # type: ignore[index]


def ollama(answer: Json) -> tuple[str, int, int]:
    text = answer["message"]["content"] if "message" in answer else answer["response"]  # type: ignore[index]
    return text, answer["prompt_eval_count"], answer["eval_count"]  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("path", "asked", "told"),
    [
        ("/v1/chat/completions", chat, openai_chat),
        ("/v1/completions", prompt, completion),
        ("/api/chat", chat, ollama),
        ("/api/generate", rendered, ollama),
        ("/api/generate", lambda said: prompt(said) | {"raw": True}, ollama),
    ],
)
async def test_a_resumed_answer_is_the_rest_of_the_whole(
    client: httpx.AsyncClient,
    path: str,
    asked: Callable[[str], Json],
    told: Callable[[Json], tuple[str, int, int]],
) -> None:
    async def ask(said: str) -> tuple[str, int, int]:
        body = asked(said) | {"model": "replay", "stream": False}
        return told((await client.post(path, json=body)).json())

    text, prompt_tokens, tokens = await ask("")
    assert tokens == len(text.split()) == 40
    said = " ".join(text.split()[:15])
    rest, its_prompt_tokens, its_tokens = await ask(said)
    assert said + rest == text
    assert (its_prompt_tokens, its_tokens) == (prompt_tokens + 15, 25)
    # Another beginning, another end: a splice that lost a word would be seen.
    other = " ".join(text.split()[1:16])
    assert not text.endswith((await ask(other))[0])


@pytest.mark.parametrize(("resume_s", "expected_s"), [(None, 0.8), (0.05, 0.05)])
def test_resuming_takes_resume_s(resume_s: float | None, expected_s: float) -> None:
    async def first_token_s() -> float:
        engine = Engine(speed=Speed(50.0, 100.0), answer_tokens=lambda prompt, rng: 40, resume_s=resume_s)
        whole = engine.arrive("/test", "p" * 80, 80, None)
        said = "".join([word async for words in engine.decode(whole) for word in words][:20])
        service = engine.arrive("/test", "p" * 80, 80, None, said)
        async with engine.slot(service):
            await engine.prefill(service)
            began_s = engine.prefill_s(service)
            async for _ in engine.decode(service):
                pass
        assert service.ended_s is not None
        assert service.started_s is not None
        assert service.ended_s - service.started_s == pytest.approx(began_s + 20 / 100.0)
        return began_s

    assert run_virtually(first_token_s()) == pytest.approx(expected_s)
