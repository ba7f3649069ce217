"""The real llama.cpp server of the tests does what the tests that lean on it assume."""

from pathlib import Path

import httpx
import pytest

from tests.fakes.llamacpp_server import LlamaServer, llama_server

pytestmark = pytest.mark.real


def test_one_slot_and_answers_of_exactly_the_asked_length(llama: LlamaServer) -> None:
    with httpx.Client(base_url=llama.base_url, timeout=30) as client:
        assert client.get("/props").json()["total_slots"] == 1
        body = {"messages": [{"role": "user", "content": "the river"}], "max_tokens": 40}
        answer = client.post("/v1/chat/completions", json=body).json()
    assert answer["usage"]["completion_tokens"] == 40
    assert answer["choices"][0]["message"]["content"].isascii()


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/v1/completions", {"prompt": "the river", "max_tokens": 4}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "river"}], "max_tokens": 4}),
        ("/v1/responses", {"input": "the river", "max_output_tokens": 4}),
        ("/completion", {"prompt": "the river", "n_predict": 4}),
    ],
)
def test_every_generation_route_answers(llama: LlamaServer, route: str, body: dict[str, object]) -> None:
    response = httpx.post(llama.base_url + route, json=body | {"model": "tiny"}, timeout=30)
    assert response.status_code == 200, response.text


def test_a_prompt_of_thousands_of_tokens_fits(llama: LlamaServer) -> None:
    body = {"prompt": "river stone " * 1500, "n_predict": 1}
    answer = httpx.post(llama.base_url + "/completion", json=body, timeout=60).json()
    assert answer["tokens_evaluated"] > 2000


def test_it_restarts_on_its_port_after_it_was_killed(tiny_model: Path) -> None:
    with llama_server(tiny_model, slots=2) as server:
        before = server.base_url
        server.kill()
        with pytest.raises(httpx.ConnectError):
            httpx.get(before + "/health")
        server.start()
        assert server.base_url == before
        assert httpx.get(before + "/props").json()["total_slots"] == 2
