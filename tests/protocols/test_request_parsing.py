"""What is read of requests, dialect by dialect."""

import json
from typing import Any

import pytest

from clairvoyant_cli.backends.adapter import Adapter
from clairvoyant_cli.backends.adapters import adapter_of
from clairvoyant_cli.protocols.printable import MAX_NAME_CHARS
from clairvoyant_cli.protocols.request_parsing import ParsedRequest, parse_body
from clairvoyant_cli.protocols.routes import Family, Work
from predictor.record import Task, Turn

USER = {"role": "user", "content": "river"}


OLLAMA, LLAMACPP, LMSTUDIO, JAN = map(adapter_of, ("ollama", "llamacpp", "lmstudio", "jan"))


def read(path: str, body: Any, adapter: Adapter = OLLAMA) -> ParsedRequest:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return parse_body(raw, adapter.route_of(b"POST", path), adapter, "ann")


@pytest.mark.parametrize(
    ("path", "body", "cap"),
    [
        ("/api/chat", {"messages": [USER], "options": {"num_predict": 7}}, 7),
        ("/api/chat", {"messages": [USER], "options": {"num_predict": -1}}, None),
        ("/api/generate", {"prompt": "river", "options": {"num_predict": 7}}, 7),
        ("/v1/chat/completions", {"messages": [USER], "max_tokens": 7}, 7),
        # Ollama has no max_completion_tokens and does not obey it.
        ("/v1/chat/completions", {"messages": [USER], "max_completion_tokens": 7}, None),
        ("/v1/completions", {"prompt": "river", "max_tokens": 7}, 7),
        ("/v1/responses", {"input": "river", "max_output_tokens": 7}, 7),
        ("/v1/messages", {"messages": [USER], "max_tokens": 7}, 7),
        ("/completion", {"prompt": "river", "n_predict": 7}, 7),
        ("/infill", {"input_prefix": "river", "n_predict": 7}, 7),
        ("/v1/chat/completions", {"messages": [USER], "max_tokens": 10**30}, 1 << 30),
        ("/v1/chat/completions", {"messages": [USER], "max_tokens": 10**400}, None),
        ("/v1/chat/completions", {"messages": [USER], "max_tokens": True}, None),
    ],
)
def test_prompt_and_cap(path: str, body: dict[str, Any], cap: int | None) -> None:
    parsed = read(path, {"model": "m"} | body)
    assert parsed.view is not None
    assert (parsed.model, parsed.view.prompt, parsed.view.max_tokens) == ("m", "river", cap)
    assert (parsed.view.client, parsed.bypass) == ("ann", "")
    assert parsed.prompt_tokens == len("river") / 4


@pytest.mark.parametrize(("caps", "believed"), [((7, 9), 9), ((9, 7), 9), ((7, -1), None), ((7, "9"), 7)])
def test_of_several_caps_the_largest_is_believed(caps: tuple[Any, Any], believed: int | None) -> None:
    body = {"messages": [USER], "max_completion_tokens": caps[0], "n_predict": caps[1]}
    parsed = read("/v1/chat/completions", body, LLAMACPP)
    assert parsed.view is not None
    assert parsed.view.max_tokens == believed


def test_a_conversation() -> None:
    parts = [{"type": "text", "text": "what"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    messages = [
        {"role": "system", "content": "be brief"},
        USER,
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "user", "content": parts},
    ]
    body = {"messages": messages, "tools": [{}, {}], "response_format": {"type": "json_schema"}, "n": 3}
    parsed = read("/v1/chat/completions", body | {"reasoning_effort": "none", "stream": True})
    view = parsed.view
    assert view is not None
    assert (view.prompt, view.system, view.images, view.tools) == ("what", "be brief", 1, 2)
    assert view.history == (Turn("user", "river"), Turn("assistant", ""))
    assert (view.json_mode, view.thinking, parsed.choices, parsed.stream) == (True, "off", 3, True)


CHAT, QWEN = {"messages": [USER]}, {"messages": [{"role": "user", "content": "river /no_think"}]}


@pytest.mark.parametrize(
    ("path", "body", "thinking"),
    [
        ("/api/chat", CHAT, None),
        ("/api/chat", CHAT | {"think": False}, "off"),
        ("/api/chat", CHAT | {"think": True}, "on"),
        ("/api/chat", CHAT | {"think": "high"}, "high"),
        ("/api/chat", QWEN | {"think": True}, "off"),
        ("/api/generate", {"prompt": "river", "think": True}, "on"),
        ("/api/generate", {"prompt": "river /no_think"}, "off"),
        ("/v1/chat/completions", CHAT | {"reasoning_effort": "low"}, "low"),
        ("/v1/chat/completions", CHAT | {"reasoning_effort": "minimal"}, "off"),
        ("/v1/chat/completions", CHAT | {"reasoning": {"effort": "high"}}, "high"),
        ("/v1/chat/completions", CHAT | {"chat_template_kwargs": {"enable_thinking": False}}, "off"),
        ("/v1/chat/completions", CHAT | {"chat_template_kwargs": {"thinking": True}}, "on"),
        ("/v1/chat/completions", CHAT | {"chat_template_kwargs": []}, None),
        ("/v1/chat/completions", CHAT | {"reasoning_effort": "x" * 99}, "x" * 16),
        ("/v1/responses", {"input": "river", "reasoning": {"effort": "medium"}}, "medium"),
        ("/v1/responses", {"input": "river", "reasoning": {"summary": "auto"}}, None),
        ("/v1/messages", CHAT | {"thinking": {"type": "enabled", "budget_tokens": 2048}}, "on"),
        ("/v1/messages", CHAT | {"thinking": {"type": "adaptive"}}, "on"),
        ("/v1/messages", CHAT | {"thinking": {"type": "disabled"}}, "off"),
    ],
)
def test_thinking_switches_of_requests_are_read(
    path: str, body: dict[str, Any], thinking: str | None
) -> None:
    view = read(path, {"model": "m"} | body).view
    assert view is not None
    assert view.thinking == thinking


@pytest.mark.parametrize(
    ("path", "body", "bypass"),
    [
        ("/api/generate", {"model": "m"}, "load"),
        ("/api/generate", {"model": "m", "keep_alive": 0}, "unload"),
        ("/api/chat", {"model": "m", "messages": []}, "load"),
        ("/api/chat", {"model": "m", "messages": [], "keep_alive": 0}, "unload"),
        ("/api/chat", {"model": "m:cloud", "messages": [USER]}, ""),
        ("/api/chat", {"messages": [USER], "_debug_render_only": True}, "render"),
        ("/api/chat", {"messages": [USER], "keep_alive": 0}, ""),
        ("/v1/chat/completions", {"messages": []}, ""),
    ],
)
def test_what_does_not_wait(path: str, body: dict[str, Any], bypass: str) -> None:
    assert read(path, body).bypass == bypass


@pytest.mark.parametrize(
    ("path", "body"),
    [
        # Go matches names without regard to case, to which the long s belongs, and takes the last of several.
        ("/api/chat", '{"model": "m", "Messages": [{"role": "user", "content": "river"}]}'),
        ("/api/chat", '{"model": "m", "meſſages": [{"role": "user", "content": "river"}]}'),
        ("/api/generate", '{"model": "m", "PROMPT": "river"}'),
        ("/api/generate", '{"model": "m", "prompt": "river", "prompt": null}'),
        ("/api/generate", '{"model": "m", "prompt": "river", "\\u0070rompt": null}'),
        ("/api/chat", '{"_debug_render_only": true, "_Debug_render_only": false, "messages": ["river"]}'),
    ],
)
def test_what_may_mean_another_thing_to_ollama_waits_as_unknown(path: str, body: str) -> None:
    parsed = read(path, body.encode())
    assert (parsed.bypass, parsed.view) == ("", None)


def test_names_that_mean_nothing_there_may_be_written_in_any_way() -> None:
    assert (
        read("/api/generate", b' {"Model_" : "x",\n "model": "m" , "keep_alive": 0.0e0 } ').bypass == "unload"
    )


@pytest.mark.parametrize(("path", "streams"), [("/api/chat", True), ("/v1/chat/completions", False)])
def test_an_absent_stream_means_what_the_dialect_says(path: str, streams: bool) -> None:
    assert read(path, {"messages": [USER]}).stream is streams
    assert read(path, {"messages": [USER], "stream": not streams}).stream is not streams


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"5", b"\xff", b'{"messages": 5}', b"[" * 100_000])
def test_what_nobody_can_read_is_unknown(body: bytes) -> None:
    assert read("/v1/chat/completions", body).view is None


def test_embeddings_are_embeddings() -> None:
    for path, name in (("/api/embed", "input"), ("/v1/embeddings", "input"), ("/embedding", "content")):
        view = read(path, {name: ["river", "stone"]}).view
        assert view is not None
        assert (view.task, view.prompt) == (Task.EMBEDDING, "")


def test_runner_options_make_another_affinity() -> None:
    plain = read("/api/chat", {"model": "m", "messages": [USER]})
    wide = read("/api/chat", {"model": "m", "messages": [USER], "options": {"num_ctx": 9, "seed": 1}})
    assert (plain.affinity, wide.affinity) == ("m", "m num_ctx=9")


def test_a_models_name_is_one_short_line() -> None:
    name = read("/api/chat", {"model": "a\nb\x1b[31m" + "c" * 1000, "messages": [USER]}).model
    assert name.startswith("a?b?[31mccc")
    assert (name.isprintable(), len(name)) == (True, MAX_NAME_CHARS)


@pytest.mark.parametrize(
    ("method", "path", "adapter", "family", "work"),
    [
        (b"POST", "/api/chat", OLLAMA, Family.OLLAMA, Work.GENERATE),
        (b"POST", "/v1//chat/completions", LMSTUDIO, Family.OPENAI, Work.GENERATE),
        (b"POST", "//V1/Chat/./x/../Completions/", LMSTUDIO, Family.OPENAI, Work.GENERATE),
        (b"POST", "/v1%u002fchat/complet%u0069ons", LLAMACPP, Family.OPENAI, Work.GENERATE),
        (b"POST", "/v1/chat/%63ompletions", LLAMACPP, Family.OPENAI, Work.GENERATE),
        (b"GET", "/api/chat", OLLAMA, Family.OLLAMA, Work.PASS),
        (b"POST", "/v1/messages/count_tokens", OLLAMA, Family.ANTHROPIC, Work.PASS),
        (b"POST", "/api/pull", OLLAMA, Family.OLLAMA, Work.PASS),
        (b"POST", "/tokenize", LLAMACPP, Family.LLAMACPP, Work.PASS),
        (b"POST", "/v1/audio/transcriptions", OLLAMA, Family.OPENAI, Work.GENERATE),
        (b"POST", "/v1/audio/transcriptions", LLAMACPP, Family.OPENAI, Work.OPAQUE),
        (b"POST", "/unknown", JAN, Family.OPENAI, Work.PASS),
    ],
)
def test_routes(method: bytes, path: str, adapter: Adapter, family: Family, work: Work) -> None:
    route = adapter.route_of(method, path)
    assert (route.family, route.work) == (family, work)
