"""The OpenAI routes: chat completions, completions and responses, as server-sent events."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from clairvoyant_cli.research.replay.dialect import (
    Answer,
    Ask,
    Json,
    cap_of,
    encode,
    last_user_text,
    model_of,
    sse,
    text_of,
    turns_of,
)

DONE = b"data: [DONE]\n\n"
SSE = "text/event-stream"


def usage(answer: Answer) -> Json:
    """Return the token counts as OpenAI's chat and completion routes name them."""
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.tokens,
        "total_tokens": answer.prompt_tokens + answer.tokens,
    }


@dataclass(frozen=True, slots=True)
class OpenAICompletions:
    """POST /v1/chat/completions and /v1/completions: events of one kind, usage if asked for, a terminator.

    `piece` and `all_of` put text into a choice; `kind_of_piece` and `kind` are what the objects are called.
    """

    read: Callable[[Json], Ask]
    prefix: str
    kind_of_piece: str
    kind: str
    piece: Callable[[str], Json]
    all_of: Callable[[str], Json]
    stream_media_type: str = SSE

    def opening(self, answer: Answer) -> Iterator[bytes]:
        """Yield nothing: the role travels with every token, as in Ollama."""
        yield from ()

    def token(self, answer: Answer, word: str) -> bytes:
        """Return the event of one token."""
        return sse(self._envelope(answer, self.kind_of_piece, self.piece(word) | {"finish_reason": None}))

    def closing(self, answer: Answer, text: str) -> Iterator[bytes]:
        """Yield the finish reason, the usage if it was asked for, and the terminator."""
        last = self.piece("") | {"finish_reason": _finish_reason(answer)}
        yield sse(self._envelope(answer, self.kind_of_piece, last))
        if answer.wants_usage:
            yield sse(self._envelope(answer, self.kind_of_piece) | {"usage": usage(answer)})
        yield DONE

    def whole(self, answer: Answer, text: str) -> Json:
        """Return the completion object."""
        choice = self.all_of(text) | {"finish_reason": _finish_reason(answer)}
        return self._envelope(answer, self.kind, choice) | {"usage": usage(answer)}

    def _envelope(self, answer: Answer, kind: str, *choices: Json) -> Json:
        return {
            "id": self.prefix + answer.id,
            "object": kind,
            "created": int(answer.created.timestamp()),
            "model": answer.model,
            "system_fingerprint": "fp_replay",
            "choices": choices,
        }


def _read_chat(body: Json) -> Ask:
    prompt, chars, said = turns_of(body.get("messages"))
    cap = cap_of(body.get("max_completion_tokens"), body.get("max_tokens"))
    return Ask(model_of(body), prompt, chars, cap, body.get("stream") is True, _wants_usage(body), said)


def _read_completion(body: Json) -> Ask:
    prompt = _prompt_text(body.get("prompt"))
    cap = cap_of(body.get("max_tokens"))
    stream = body.get("stream") is True
    return Ask(model_of(body), prompt, len(prompt), cap, stream, _wants_usage(body), plain=True)


CHAT = OpenAICompletions(
    _read_chat,
    "chatcmpl-",
    "chat.completion.chunk",
    "chat.completion",
    lambda text: {"index": 0, "delta": {"role": "assistant", "content": text}},
    lambda text: {"index": 0, "message": {"role": "assistant", "content": text}},
)
COMPLETION = OpenAICompletions(
    _read_completion,
    "cmpl-",
    "text_completion",
    "text_completion",
    lambda text: {"text": text, "index": 0},
    lambda text: {"text": text, "index": 0},
)


@dataclass(frozen=True, slots=True)
class OpenAIResponses:
    """POST /v1/responses: named events, usage in the last one, no terminator."""

    stream_media_type: str = SSE

    def read(self, body: Json) -> Ask:
        """Read a request; RefusedError if it cannot be answered."""
        given = body.get("input")
        if isinstance(given, list):
            prompt, chars = last_user_text(given)
        else:
            prompt = text_of(given)
            chars = len(prompt)
        chars += len(text_of(body.get("instructions")))
        cap = cap_of(body.get("max_output_tokens"))
        return Ask(model_of(body), prompt, chars, cap, stream=body.get("stream") is True)

    def opening(self, answer: Answer) -> Iterator[bytes]:
        """Yield the events that announce the response and its one text part."""
        started = self._response(answer, "in_progress", [])
        for kind in ("response.created", "response.in_progress"):
            yield _named(kind, {"response": started})
        item = _message_item(answer, "in_progress", [])
        yield _named("response.output_item.added", {"output_index": 0, "item": item})
        yield _named("response.content_part.added", _place(answer) | {"part": _text_part("")})

    def token(self, answer: Answer, word: str) -> bytes:
        """Return the event of one token."""
        return _named("response.output_text.delta", _place(answer) | {"delta": word, "logprobs": []})

    def closing(self, answer: Answer, text: str) -> Iterator[bytes]:
        """Yield the events that close the part, the item and the response."""
        yield _named("response.output_text.done", _place(answer) | {"text": text, "logprobs": []})
        yield _named("response.content_part.done", _place(answer) | {"part": _text_part(text)})
        item = _message_item(answer, "completed", [_text_part(text)])
        yield _named("response.output_item.done", {"output_index": 0, "item": item})
        kind = "response.incomplete" if answer.capped else "response.completed"
        yield _named(kind, {"response": self.whole(answer, text)})

    def whole(self, answer: Answer, text: str) -> Json:
        """Return the response object."""
        item = _message_item(answer, "completed", [_text_part(text)])
        status = "incomplete" if answer.capped else "completed"
        counts = {
            "input_tokens": answer.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": answer.tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": answer.prompt_tokens + answer.tokens,
        }
        return self._response(answer, status, [item]) | {"usage": counts}

    def _response(self, answer: Answer, status: str, output: list[Json]) -> Json:
        reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": "resp_" + answer.id,
            "object": "response",
            "created_at": int(answer.created.timestamp()),
            "status": status,
            "error": None,
            "incomplete_details": reason,
            "model": answer.model,
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": None,
        }


def error_body(status: int, message: str) -> bytes:
    """Return an error as Ollama's OpenAI routes shape it."""
    kind = {400: "invalid_request_error", 404: "not_found_error"}.get(status, "api_error")
    return encode({"error": {"message": message, "type": kind, "param": None, "code": None}})


def _finish_reason(answer: Answer) -> str:
    return "length" if answer.capped else "stop"


def _wants_usage(body: Json) -> bool:
    options = body.get("stream_options")
    return isinstance(options, Mapping) and options.get("include_usage") is True


def _prompt_text(prompt: object) -> str:
    if isinstance(prompt, list):
        return "\n".join(part for part in prompt if isinstance(part, str))
    return prompt if isinstance(prompt, str) else ""


def _named(kind: str, fields: Json) -> bytes:
    return sse({"type": kind} | fields, event=kind)


def _place(answer: Answer) -> Json:
    return {"item_id": "msg_" + answer.id, "output_index": 0, "content_index": 0}


def _text_part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _message_item(answer: Answer, status: str, content: list[Json]) -> Json:
    return {
        "id": "msg_" + answer.id,
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": content,
    }
