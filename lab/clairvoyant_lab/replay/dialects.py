"""The chat routes of Ollama, its own and OpenAI's: how each reads a request and writes an answer."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from clairvoyant_lab.replay.engine import Service

Json = dict[str, Any]

BEGIN, END = "<|im_start|>", "<|im_end|>"
"""The marks of a turn in the template (ChatML)."""


class RefusedError(Exception):
    """A request that the server refuses with this HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True, slots=True)
class Ask:
    """A generation request. `prompt` is the last user message, `text_chars` counts all text.

    `cap` limits the answer in tokens. `said` is the beginning of the answer to continue, not counted in
    `text_chars`.
    """

    model: str
    prompt: str
    text_chars: int
    cap: int | None
    stream: bool
    said: str = ""
    wants_usage: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """The facts of an answer. Durations are those of the speed model, in seconds.

    `cached_tokens` of the prompt were not read; None if the server has no cache to report of.
    """

    ask: Ask
    service: Service
    created: datetime
    prefill_s: float
    decode_s: float
    cached_tokens: int | None = None

    @property
    def finish_reason(self) -> str:
        """Why it ended, as Ollama and OpenAI name it."""
        return "length" if self.service.capped else "stop"


def encode(value: object) -> bytes:
    """Return compact JSON, as the servers written in Go and C++ send it."""
    return msgspec.json.encode(value)


def text_of(content: object) -> str:
    """Return the text of a message's content: a string, or a list of parts some of which have text."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = (part.get("text") for part in content if isinstance(part, Mapping))
        return "\n".join(part for part in parts if isinstance(part, str))
    return ""


def read_turns(messages: object, *, continues: bool = True) -> tuple[str, int, str]:
    """Return the last user message, the characters of all messages, and the answer to continue.

    The latter is a last message of the assistant, which is not counted; "" unless the route `continues`.
    """
    if not isinstance(messages, list):
        raise RefusedError(400, "messages must be a list")
    last, chars, said = "", 0, ""
    for number, message in enumerate(messages, 1):
        if not isinstance(message, Mapping):
            raise RefusedError(400, "every message must be an object")
        text, role = text_of(message.get("content")), message.get("role", "user")
        if continues and role == "assistant" and number == len(messages):
            said = text
        else:
            chars += len(text)
        if role == "user":
            last = text
    return last, chars, said


def model_of(body: Json) -> str:
    """Return the model that a request names; RefusedError 400 if it names none."""
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise RefusedError(400, "model is required")
    return model


def cap_of(*limits: object) -> int | None:
    """Return the first limit given; a negative one means no limit, as in Ollama and llama.cpp."""
    for limit in limits:
        if isinstance(limit, int) and not isinstance(limit, bool):
            return limit if limit >= 0 else None
    return None


def timestamp(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


class OllamaChat:
    """POST /api/chat: NDJSON, durations in nanoseconds, streamed by default. Methods return whole frames."""

    stream_media_type = "application/x-ndjson"

    def read(self, body: Json) -> Ask:
        return self._ask(body, *read_turns(body.get("messages", [])))

    def opening(self, answer: Answer) -> bytes:
        return b""

    def token(self, answer: Answer, word: str) -> bytes:
        return encode(self._object(answer, word) | {"done": False}) + b"\n"

    def closing(self, answer: Answer, text: str) -> bytes:
        return encode(self.whole(answer, "")) + b"\n"

    def whole(self, answer: Answer, text: str) -> Json:
        """Return the final object; zero counts are missing, as Go's omitempty leaves them out."""
        counts = {
            "total_duration": round((answer.prefill_s + answer.decode_s) * 1e9),
            "prompt_eval_count": answer.service.prompt_tokens,
            "prompt_eval_cached_count": answer.cached_tokens,
            "prompt_eval_duration": round(answer.prefill_s * 1e9),
            "eval_count": answer.service.planned_tokens,
            "eval_duration": round(answer.decode_s * 1e9),
        }
        done = {"done": True, "done_reason": answer.finish_reason}
        return self._object(answer, text) | done | {name: count for name, count in counts.items() if count}

    def error(self, status: int, message: str) -> Json:
        return {"error": message}

    def _object(self, answer: Answer, text: str) -> Json:
        return {"model": answer.ask.model, "created_at": timestamp(answer.created)} | self._content(text)

    def _content(self, text: str) -> Json:
        return {"message": {"role": "assistant", "content": text}}

    def _ask(self, body: Json, prompt: str, text_chars: int, said: str = "") -> Ask:
        options = body.get("options")
        cap = cap_of(options.get("num_predict") if isinstance(options, Mapping) else None)
        return Ask(model_of(body), prompt, text_chars, cap, body.get("stream") is not False, said)


def template(body: Json) -> str:
    """Return a request's prompt as the model reads it, its tools first."""
    if "messages" not in body and body.get("raw") is True:
        return text_of(body.get("prompt"))
    messages = body["messages"] if "messages" in body else [{"role": "user", "content": body.get("prompt")}]
    read_turns(messages)  # refuses invalid messages
    turns = [f"{BEGIN}{each.get('role')}\n{text_of(each.get('content'))}" for each in messages]
    if body.get("tools"):
        turns.insert(0, f"{BEGIN}tools\n{encode(body['tools']).decode()}")
    opened = messages and messages[-1].get("role") == "assistant"
    return f"{END}\n".join(turns if opened else [*turns, f"{BEGIN}assistant\n"])


def sse(value: object, event: str | None = None) -> bytes:
    head = b"" if event is None else b"event: " + event.encode() + b"\n"
    return head + b"data: " + encode(value) + b"\n\n"


class OpenAIChat(OllamaChat):
    """POST /v1/chat/completions: events of one kind, usage on request, a terminator."""

    stream_media_type = "text/event-stream"
    id_prefix = "chatcmpl-"
    kind = "chat.completion"
    stream_kind = "chat.completion.chunk"

    def read(self, body: Json) -> Ask:
        prompt, chars, said = read_turns(body.get("messages"))
        cap = cap_of(body.get("max_completion_tokens"), body.get("max_tokens"))
        return Ask(model_of(body), prompt, chars, cap, body.get("stream") is True, said, wants_usage(body))

    def token(self, answer: Answer, word: str) -> bytes:
        """Return the event of one token; the role is in every one, as in Ollama."""
        return sse(self._object(answer, self.stream_kind, self._choice(word, "delta", None)))

    def closing(self, answer: Answer, text: str) -> bytes:
        """Return the finish reason, the usage if requested, and the terminator."""
        last = self._choice("", "delta", answer.finish_reason)
        frames = sse(self._object(answer, self.stream_kind, last) | _timings(answer))
        if answer.ask.wants_usage:
            frames += sse(
                self._object(answer, self.stream_kind) | {"usage": _usage(answer)} | _timings(answer)
            )
        return frames + b"data: [DONE]\n\n"

    def whole(self, answer: Answer, text: str) -> Json:
        choice = self._choice(text, "message", answer.finish_reason)
        return self._object(answer, self.kind, choice) | {"usage": _usage(answer)} | _timings(answer)

    def error(self, status: int, message: str) -> Json:
        """Return the body of an error, as Ollama's OpenAI routes write it."""
        kind = {400: "invalid_request_error", 404: "not_found_error"}.get(status, "api_error")
        return {"error": {"message": message, "type": kind, "param": None, "code": None}}

    def _choice(self, text: str, field: str, reason: str | None) -> Json:
        return {"index": 0, field: {"role": "assistant", "content": text}, "finish_reason": reason}

    def _object(self, answer: Answer, kind: str, *choices: Json) -> Json:
        return {
            "id": self.id_prefix + answer.service.digest,
            "object": kind,
            "created": int(answer.created.timestamp()),
            "model": answer.ask.model,
            "system_fingerprint": "fp_replay",
            "choices": choices,
        }


def wants_usage(body: Json) -> bool:
    """Return whether a stream shall end with its usage."""
    options = body.get("stream_options")
    return isinstance(options, Mapping) and options.get("include_usage") is True


def _usage(answer: Answer) -> Json:
    cached = answer.cached_tokens
    return ({} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}) | {
        "prompt_tokens": answer.service.prompt_tokens,
        "completion_tokens": answer.service.planned_tokens,
        "total_tokens": answer.service.prompt_tokens + answer.service.planned_tokens,
    }


def _timings(answer: Answer) -> Json:
    """Return the timings of an answer as llama.cpp reports them, if the server has a cache."""
    if answer.cached_tokens is None:
        return {}
    timings = {
        "cache_n": answer.cached_tokens,
        "prompt_n": answer.service.prompt_tokens - answer.cached_tokens,
        "prompt_ms": answer.prefill_s * 1e3,
        "predicted_n": answer.service.planned_tokens,
        "predicted_ms": answer.decode_s * 1e3,
    }
    return {"timings": timings}


DIALECTS = {"/api/chat": OllamaChat(), "/v1/chat/completions": OpenAIChat()}
