"""Ollama's native generation routes: NDJSON, durations in nanoseconds, streamed unless told otherwise."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from clairvoyant_cli.research.replay.dialect import (
    Answer,
    Ask,
    Json,
    cap_of,
    encode,
    last_user_text,
    model_of,
    text_of,
    turns_of,
)

BEGIN, END = "<|im_start|>", "<|im_end|>"
"""How the template sets a turn apart (ChatML)."""

TURN = re.compile(rf"{re.escape(BEGIN)}(\w+)\n(.*?)(?:{re.escape(END)}|\Z)", re.DOTALL)


def timestamp(moment: datetime) -> str:
    """Return a moment as Ollama writes it."""
    return moment.isoformat().replace("+00:00", "Z")


def done_fields(answer: Answer) -> Json:
    """Return the fields only the final object has; a zero is left out, as Go's omitempty does."""
    counts = {
        "total_duration": _nanoseconds(answer.prefill_s + answer.decode_s),
        "prompt_eval_count": answer.prompt_tokens,
        "prompt_eval_duration": _nanoseconds(answer.prefill_s),
        "eval_count": answer.tokens,
        "eval_duration": _nanoseconds(answer.decode_s),
    }
    reason = "length" if answer.capped else "stop"
    return {"done": True, "done_reason": reason} | {name: count for name, count in counts.items() if count}


def is_control(body: Json) -> str | None:
    """Return "load" or "unload" for a request without prompt, None for one to be answered."""
    if body.get("prompt") or body.get("messages") or body.get("input"):
        return None
    return "unload" if body.get("keep_alive") in (0, "0", "0s") else "load"


def control_body(body: Json, reason: str, model: str, now: datetime) -> Json:
    """Return the answer to a load or unload request."""
    said: Json = {"message": {"role": "assistant", "content": ""}} if "messages" in body else {"response": ""}
    return {"model": model, "created_at": timestamp(now)} | said | {"done": True, "done_reason": reason}


def error_body(status: int, message: str) -> bytes:
    """Return an error as the native routes shape it."""
    return encode({"error": message})


@dataclass(frozen=True, slots=True)
class OllamaChat:
    """POST /api/chat."""

    stream_media_type: str = "application/x-ndjson"

    def read(self, body: Json) -> Ask:
        """Read a request; RefusedError if it cannot be answered."""
        return _ask(body, *turns_of(body.get("messages", [])))

    def opening(self, answer: Answer) -> Iterator[bytes]:
        """Yield nothing: Ollama's first line is the first token's."""
        yield from ()

    def token(self, answer: Answer, word: str) -> bytes:
        """Return the line of one token."""
        return encode(self._object(answer, word) | {"done": False}) + b"\n"

    def closing(self, answer: Answer, text: str) -> Iterator[bytes]:
        """Yield the final line."""
        yield encode(self._object(answer, "") | done_fields(answer)) + b"\n"

    def whole(self, answer: Answer, text: str) -> Json:
        """Return the final object with all of the text in it."""
        return self._object(answer, text) | done_fields(answer)

    def _object(self, answer: Answer, text: str) -> Json:
        message = {"role": "assistant", "content": text}
        return {"model": answer.model, "created_at": timestamp(answer.created), "message": message}


@dataclass(frozen=True, slots=True)
class OllamaGenerate:
    """POST /api/generate."""

    stream_media_type: str = "application/x-ndjson"

    def read(self, body: Json) -> Ask:
        """Read a request; RefusedError if it cannot be answered."""
        prompt = body.get("prompt")
        prompt = prompt if isinstance(prompt, str) else ""
        if body.get("raw") is True:
            turns = [{"role": role, "content": text} for role, text in TURN.findall(prompt)]
            return _ask(body, *turns_of(turns)) if turns else _ask(body, prompt, len(prompt), plain=True)
        system = body.get("system")
        return _ask(body, prompt, len(prompt) + (len(system) if isinstance(system, str) else 0))

    def opening(self, answer: Answer) -> Iterator[bytes]:
        """Yield nothing: Ollama's first line is the first token's."""
        yield from ()

    def token(self, answer: Answer, word: str) -> bytes:
        """Return the line of one token."""
        return encode(self._object(answer, word) | {"done": False}) + b"\n"

    def closing(self, answer: Answer, text: str) -> Iterator[bytes]:
        """Yield the final line."""
        yield encode(self._final(answer, "")) + b"\n"

    def whole(self, answer: Answer, text: str) -> Json:
        """Return the final object with all of the text in it."""
        return self._final(answer, text)

    def _object(self, answer: Answer, text: str) -> Json:
        return {"model": answer.model, "created_at": timestamp(answer.created), "response": text}

    def _final(self, answer: Answer, text: str) -> Json:
        if answer.raw:
            return self._object(answer, text) | done_fields(answer)
        # The context holds token ids; their number is what a client can rely on.
        context = list(range(answer.prompt_tokens + answer.tokens))
        return self._object(answer, text) | done_fields(answer) | {"context": context}


def rendered(body: Json, model: str, now: datetime) -> Json:
    """Return the answer to who asks for a prompt as the template renders it, and for nothing else."""
    messages = body["messages"] if "messages" in body else [{"role": "user", "content": body.get("prompt")}]
    last_user_text(messages)  # refuses what are no messages
    turns = [f"{BEGIN}{each.get('role')}\n{text_of(each.get('content'))}" for each in messages]
    opened = messages and messages[-1].get("role") == "assistant"
    text = f"{END}\n".join(turns if opened else [*turns, f"{BEGIN}assistant\n"])
    return {"model": model, "created_at": timestamp(now), "_debug_info": {"rendered_template": text}}


def _ask(body: Json, prompt: str, text_chars: int, said: str = "", *, plain: bool = False) -> Ask:
    options = body.get("options")
    limit = options.get("num_predict") if isinstance(options, Mapping) else None
    stream = body.get("stream") is not False
    raw = body.get("raw") is True
    return Ask(model_of(body), prompt, text_chars, cap_of(limit), stream, said=said, plain=plain, raw=raw)


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
