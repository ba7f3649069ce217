"""Pictures, recordings and files are no text, in every dialect and at every place."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import predictor
from clairvoyant_cli.backends.adapters import adapter_of
from clairvoyant_cli.protocols.media import LEAST_BYTES, Payloads
from clairvoyant_cli.protocols.request_parsing import SMALL_BYTES, ParsedRequest, parse_request
from clairvoyant_cli.protocols.routes import ROUTES
from clairvoyant_cli.scheduler.chain import MEDIUM_CHARACTERS

LEXICAL = predictor.load()
Maker = Callable[[list[str]], Any]  # makes a body with these payloads


def url(payload: str) -> str:
    return f"data:image/png;base64,{payload}"


def asked(*parts: Any) -> list[Any]:
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "what is it, and why?"}]}]


def after(message: Any) -> list[Any]:
    """Return a conversation that goes on after a message."""
    return [message, {"role": "assistant", "content": "a river"}, {"role": "user", "content": "and now?"}]


def source(payload: str) -> Any:
    return {"type": "base64", "media_type": "image/png", "data": payload}


def result(parts: list[Any]) -> Any:
    return [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": parts}]}]


CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
PLACES: dict[str, tuple[str, str, Maker]] = {
    "chat image": (
        CHAT,
        "image",
        lambda p: {"messages": asked(*({"type": "image_url", "image_url": {"url": url(x)}} for x in p))},
    ),
    "chat image without a type": (
        CHAT,
        "image",
        lambda p: {"messages": asked(*({"image_url": url(x)} for x in p))},
    ),
    "chat audio": (
        CHAT,
        "audio",
        lambda p: {
            "messages": asked(
                *({"type": "input_audio", "input_audio": {"data": x, "format": "wav"}} for x in p)
            )
        },
    ),
    "chat file": (
        CHAT,
        "file",
        lambda p: {
            "messages": asked(*({"type": "file", "file": {"file_data": url(x), "filename": "a"}} for x in p))
        },
    ),
    "chat video": (
        CHAT,
        "video",
        lambda p: {"messages": asked(*({"type": "video_url", "video_url": {"url": url(x)}} for x in p))},
    ),
    "chat tool": (
        CHAT,
        "image",
        lambda p: {
            "messages": after(
                {
                    "role": "tool",
                    "content": [{"type": "image_url", "image_url": {"url": url(x)}} for x in p],
                }
            )
        },
    ),
    "responses image": (
        RESPONSES,
        "image",
        lambda p: {"input": asked(*({"type": "input_image", "image_url": url(x)} for x in p))},
    ),
    "responses file": (
        RESPONSES,
        "file",
        lambda p: {"input": asked(*({"type": "input_file", "file_data": url(x)} for x in p))},
    ),
    "responses tool": (
        RESPONSES,
        "image",
        lambda p: {
            "input": [
                {
                    "type": "function_call_output",
                    "call_id": "1",
                    "output": [{"type": "input_image", "image_url": url(x)} for x in p],
                }
            ]
        },
    ),
    "lmstudio": (
        "/api/v1/chat",
        "image",
        lambda p: {"input": [*({"type": "image", "data_url": url(x)} for x in p), {"type": "text"}]},
    ),
    "messages image": (
        MESSAGES,
        "image",
        lambda p: {"messages": after(asked(*({"type": "image", "source": source(x)} for x in p))[0])},
    ),
    "messages document": (
        MESSAGES,
        "file",
        lambda p: {"messages": asked(*({"type": "document", "source": source(x)} for x in p))},
    ),
    "messages tool": (
        MESSAGES,
        "image",
        lambda p: {"messages": result([{"type": "image", "source": source(x)} for x in p])},
    ),
    "messages document in a tool": (
        MESSAGES,
        "image",
        lambda p: {
            "messages": result(
                [
                    {
                        "type": "document",
                        "source": {
                            "type": "content",
                            "content": [
                                {"type": "text", "text": "a"},
                                *({"type": "image", "source": source(x)} for x in p),
                            ],
                        },
                    }
                ]
            )
        },
    ),
    "ollama chat": (
        "/api/chat",
        "image",
        lambda p: {"messages": after({"role": "user", "content": "what is it?", "images": p})},
    ),
    "ollama generate": ("/api/generate", "image", lambda p: {"prompt": "what is it?", "images": p}),
    "llamacpp": (
        "/completion",
        "image",
        lambda p: {"prompt": {"prompt_string": "what is it?", "multimodal_data": p}},
    ),
    "llamacpp list": (
        "/completion",
        "image",
        lambda p: {"prompt": [{"prompt_string": "what is it?", "multimodal_data": p}]},
    ),
}


def read(path: str, body: Any, **how: Any) -> ParsedRequest:
    text = json.dumps({"model": "m", **body}, **how).encode()
    return asyncio.run(parse_request([text], ROUTES[path], adapter_of("other")))


@pytest.mark.parametrize("place", PLACES)
@given(
    sizes=st.lists(st.sampled_from([4, LEAST_BYTES - 4, 5000, SMALL_BYTES]), min_size=1, max_size=3),
    compact=st.booleans(),
)
@settings(max_examples=8, deadline=None)
def test_a_request_with_media_is_measured_as_without(place: str, sizes: list[int], compact: bool) -> None:
    path, kind, make = PLACES[place]
    how = {"separators": (",", ":") if compact else None}
    payloads = [f"{n:04}" * (size // 4) for n, size in enumerate(sizes, 1)]
    seen, bare = read(path, make(payloads), **how), read(path, make([]), **how)
    assert seen.modalities == frozenset({kind})
    assert sum(seen.conversation.media.values()) == len(sizes)
    assert not bare.conversation.media
    chain = seen.conversation.chain
    # An empty list of Ollama's is none.
    assert chain.text_length == pytest.approx(bare.conversation.chain.length, abs=len('{"images": []}'))
    assert chain.length - chain.text_length == MEDIUM_CHARACTERS * len(sizes)
    assert seen.prompt_tokens == bare.prompt_tokens
    assert seen.view is not None
    assert bare.view is not None
    assert LEXICAL.predict(seen.view) == LEXICAL.predict(bare.view)
    other = read(path, make(["9" * len(payloads[0]), *payloads[1:]]), **how)
    assert other.conversation.chain.hashes[-1] != chain.hashes[-1]


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": url("QUJD" * 2000)}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "QUJD" * 2000}]}]},
        {"messages": [{"role": "assistant", "content": [{"type": "thinking", "signature": "QUJD" * 2000}]}]},
        {
            "messages": [
                {"role": "assistant", "content": [{"type": "tool_use", "input": {"data": "A" * 8000}}]}
            ]
        },
        {
            "messages": asked(
                {
                    "type": "document",
                    "source": {"type": "text", "media_type": "text/plain", "data": "A" * 8000},
                }
            )
        },
    ],
)
def test_base64_that_is_text_counts_as_text(body: Any) -> None:
    parsed = read(MESSAGES, body)
    assert parsed.conversation.media == {}
    assert parsed.conversation.chain.text_length == pytest.approx(8150, abs=150)


@given(
    st.lists(
        st.sampled_from(
            [
                '"data": "',
                '"data:x;base64,',
                ";base64,",
                '"text": "',
                "QUJD" * 400,
                "A" * 1023,
                "\\",
                "\\/",
                '"',
                "é",
            ]
        ),
        max_size=12,
    ),
    st.lists(st.floats(0, 1), max_size=9),
)
def test_slices_make_no_difference(pieces: list[str], cuts: list[float]) -> None:
    def left(*places: int) -> tuple[bytes, int]:
        payloads = Payloads()
        fed = [payloads.feed(text[a:b]) for a, b in zip((0, *places), (*places, len(text)), strict=True)]
        return b"".join(fed) + payloads.end(), payloads.left_out

    text = "".join(pieces).encode()
    whole = left()
    assert left(*sorted(int(cut * len(text)) for cut in cuts)) == whole
    assert len(whole[0]) + whole[1] == len(text)
