"""Anthropic's messages route, which Ollama and llama.cpp speak too: named events, no terminator."""

from collections.abc import Iterator
from dataclasses import dataclass

from clairvoyant_cli.research.replay.dialect import (
    Answer,
    Ask,
    Json,
    RefusedError,
    cap_of,
    encode,
    last_user_text,
    model_of,
    sse,
    text_of,
)


@dataclass(frozen=True, slots=True)
class AnthropicMessages:
    """POST /v1/messages."""

    stream_media_type: str = "text/event-stream"

    def read(self, body: Json) -> Ask:
        """Read a request; RefusedError if it cannot be answered."""
        prompt, chars = last_user_text(body.get("messages"))
        chars += len(text_of(body.get("system")))
        cap = cap_of(body.get("max_tokens"))
        if cap is None or cap == 0:
            raise RefusedError(400, "max_tokens is required and must be positive")
        return Ask(model_of(body), prompt, chars, cap, stream=body.get("stream") is True)

    def opening(self, answer: Answer) -> Iterator[bytes]:
        """Yield the events that announce the message and its one text block."""
        counts = {"input_tokens": answer.prompt_tokens, "output_tokens": 0}
        yield _named("message_start", {"message": _message(answer, [], None, counts)})
        block = {"type": "text", "text": ""}
        yield _named("content_block_start", {"index": 0, "content_block": block})

    def token(self, answer: Answer, word: str) -> bytes:
        """Return the event of one token."""
        delta = {"type": "text_delta", "text": word}
        return _named("content_block_delta", {"index": 0, "delta": delta})

    def closing(self, answer: Answer, text: str) -> Iterator[bytes]:
        """Yield the events that close the block and the message; the usage is in the last but one."""
        yield _named("content_block_stop", {"index": 0})
        delta = {"stop_reason": _stop_reason(answer), "stop_sequence": None}
        counts = {"input_tokens": answer.prompt_tokens, "output_tokens": answer.tokens}
        yield _named("message_delta", {"delta": delta, "usage": counts})
        yield _named("message_stop", {})

    def whole(self, answer: Answer, text: str) -> Json:
        """Return the message object."""
        counts = {"input_tokens": answer.prompt_tokens, "output_tokens": answer.tokens}
        return _message(answer, [{"type": "text", "text": text}], _stop_reason(answer), counts)


def error_body(status: int, message: str) -> bytes:
    """Return an error as the messages route shapes it."""
    kinds = {400: "invalid_request_error", 404: "not_found_error", 503: "overloaded_error"}
    error = {"type": kinds.get(status, "api_error"), "message": message}
    return encode({"type": "error", "error": error})


def _message(answer: Answer, content: list[Json], stop_reason: str | None, usage: Json) -> Json:
    return {
        "id": "msg_" + answer.id,
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": usage,
    }


def _stop_reason(answer: Answer) -> str:
    return "max_tokens" if answer.capped else "end_turn"


def _named(kind: str, fields: Json) -> bytes:
    return sse({"type": kind} | fields, event=kind)
