"""Which requests can be cut and continued unnoticed."""

import json
from typing import Any

import pytest

from clairvoyant_cli.protocols.can_continue import Continuable, continuable
from clairvoyant_cli.protocols.routes import Shape

ASKED = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


def judged(shape: Shape = Shape.CHAT, **more: Any) -> Continuable | str:
    return continuable(json.dumps(ASKED | more).encode(), shape, streams=False)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"stream": True, "stream_options": {"include_usage": True}},
        {"temperature": 0.7, "top_p": 0.9, "stop": ["\n"], "frequency_penalty": 0.1},
        {"n": 1, "logprobs": False, "tools": [], "seed": None},
        {"temperature": 0, "seed": 7},
        {"response_format": {"type": "text"}},
        {"max_tokens": 100},
        {"max_tokens": -1},
    ],
)
def test_an_ordinary_chat_can(more: dict[str, Any]) -> None:
    assert isinstance(judged(**more), Continuable)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"n": 2}, "n"),
        ({"seed": 7}, "seed"),
        ({"temperature": 0.5, "seed": 7}, "seed"),
        ({"logprobs": True}, "logprobs"),
        ({"tools": [{}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"grammar": "root ::= x"}, "grammar"),
        ({"mirostat": 1}, "mirostat"),
        ({"never_heard_of": 1}, "never_heard_of"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"reasoning_effort": "none"}, "reasoning_effort"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "assistant", "content": "Once"}]}, "the last message is not the user's"),
        ({"messages": [{"role": "tool", "content": "4"}]}, "messages of tools"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages with more than text"),
        ({"messages": [{"role": "user", "content": "?", "images": ["x"]}]}, "messages with more than text"),
    ],
)
def test_what_could_be_told_cannot(more: dict[str, Any], why: str) -> None:
    assert judged(**more) == why


def test_ollamas_options_count_as_well() -> None:
    assert isinstance(judged(Shape.OLLAMA_CHAT, options={"temperature": 0, "num_ctx": 4096}), Continuable)
    assert judged(Shape.OLLAMA_CHAT, options={"mirostat": 2}) == "mirostat"
    assert judged(Shape.OLLAMA_CHAT, options=[]) != ""
    assert judged(Shape.OLLAMA_CHAT, think=True) == "think"
    assert isinstance(judged(Shape.OLLAMA_CHAT, think=False, format=""), Continuable)
    assert judged(Shape.OLLAMA_CHAT, format="json") == "format"
    assert judged(Shape.OLLAMA_CHAT, format={}) == "format"


def test_a_generation_of_ollamas_brings_its_context_unless_it_is_raw() -> None:
    raw = b'{"model":"m","prompt":"x","raw":true}'
    assert isinstance(continuable(raw, Shape.OLLAMA_GENERATE, streams=True), Continuable)
    assert (
        continuable(b'{"prompt":"x"}', Shape.OLLAMA_GENERATE, streams=True)
        == "the answer contains the context"
    )


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b'{"a":1,"A":2}', b"\xff", b"[" * 10_000])
def test_a_body_that_is_none_cannot(raw: bytes) -> None:
    assert continuable(raw, Shape.CHAT, streams=False) == "the body cannot be parsed"


def test_other_routes_cannot() -> None:
    assert judged(Shape.MESSAGES) == "the route"
    assert judged(Shape.RESPONSES) == "the route"


def test_what_was_said_comes_off_the_cap() -> None:
    asked = judged(max_tokens=100, n_predict=50)
    assert isinstance(asked, Continuable)
    assert asked.capped(30) == {"max_tokens": 70, "n_predict": 20}
    assert asked.capped(200) == {"max_tokens": 1, "n_predict": 1}
    unbounded = judged(max_tokens=-1)
    assert isinstance(unbounded, Continuable)
    assert unbounded.capped(30) == {}
