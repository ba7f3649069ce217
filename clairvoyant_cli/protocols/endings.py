"""Ends a streamed answer in mid-sentence as its protocol does at a limit of tokens."""

from typing import Any

import msgspec

from clairvoyant_cli.protocols.answer_events import AnswerEvent
from clairvoyant_cli.protocols.routes import Shape

COUNTS = ("usage", "timings")


def ending(shape: Shape, last: bytes, tokens: int) -> bytes | None:
    """Return what ends an answer of `tokens` after its last line; None if that line or route allows none.

    Not for `/v1/responses`: codex would ask again.
    """
    try:
        event: AnswerEvent = msgspec.json.decode(last.removeprefix(b"data:"), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    event = {name: value for name, value in event.items() if name not in COUNTS}
    done = {"done": True, "done_reason": "length", "eval_count": tokens}
    choice = {"index": 0, "finish_reason": "length"}
    match shape, event:
        case Shape.OLLAMA_CHAT, {"message": {"role": role}}:
            return _line(event | {"message": {"role": role, "content": ""}} | done)
        case Shape.OLLAMA_GENERATE, {"response": _}:
            return _line(event | {"response": ""} | done)
        case Shape.CHAT, {"choices": [{"delta": _}]}:
            return _sse(event | {"choices": [choice | {"delta": {}}]}) + b"data: [DONE]\n\n"
        case Shape.COMPLETION, {"choices": [{"text": _}]}:
            return _sse(event | {"choices": [choice | {"text": ""}]}) + b"data: [DONE]\n\n"
        case Shape.LLAMACPP_COMPLETION, {"content": _}:
            return _sse(event | {"content": "", "tokens": [], "stop": True, "stop_type": "limit"})
        case Shape.MESSAGES, {"type": "content_block_delta", "index": index}:
            limit = {"stop_reason": "max_tokens", "stop_sequence": None}
            return b"".join(
                b"event: %b\n" % str(each["type"]).encode() + _sse(each)
                for each in (
                    {"type": "content_block_stop", "index": index},
                    {"type": "message_delta", "delta": limit, "usage": {"output_tokens": tokens}},
                    {"type": "message_stop"},
                )
            )
    return None


def _line(event: AnswerEvent) -> bytes:
    return msgspec.json.encode(event) + b"\n"


def _sse(event: AnswerEvent) -> bytes:
    return b"data: " + msgspec.json.encode(event) + b"\n\n"
