"""How a bench asks a server for an answer, and what it reads of the stream: Ollama's way and OpenAI's."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Piece:
    """One line of a streamed answer. `tokens` is what this line brought, `total` the server's own count."""

    tokens: int = 0
    total: int | None = None
    done: bool = False
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Dialect:
    """A chat route. `body(model, prompt, tokens)` asks for an answer: of that length, or of any for None."""

    path: str
    body: Callable[[str, str, int | None], Json]
    read: Callable[[str], Piece | None]


def _ollama_body(model: str, prompt: str, tokens: int | None) -> Json:
    options: Json = {"temperature": 0}
    if tokens is not None:
        options["num_predict"] = tokens
    return {"model": model, "messages": [{"role": "user", "content": prompt}], "options": options}


def _ollama_read(line: str) -> Piece | None:
    said = msgspec.json.decode(line)
    if "error" in said:
        return Piece(error=str(said["error"]))
    if said.get("done"):
        return Piece(total=said.get("eval_count"), done=True)
    return Piece(tokens=1)


def _openai_body(model: str, prompt: str, tokens: int | None) -> Json:
    body: Json = {
        "messages": [{"role": "user", "content": prompt}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
    }
    if model:
        body["model"] = model
    if tokens is not None:
        # llama.cpp writes on past the end of its answer if told so; elsewhere the answer may end sooner.
        body |= {"max_tokens": tokens, "ignore_eos": True}
    return body


def _openai_read(line: str) -> Piece | None:
    if not line.startswith("data:"):
        return None
    data = line[5:].strip()
    if data == "[DONE]":
        return Piece(done=True)
    said = msgspec.json.decode(data)
    if "error" in said:
        error = said["error"]
        return Piece(error=str(error.get("message", error)) if isinstance(error, dict) else str(error))
    usage = said.get("usage") or {}
    choices = said.get("choices") or [{}]
    delta = choices[0].get("delta") or {}
    spoken = delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning")
    return Piece(tokens=int(bool(spoken)), total=usage.get("completion_tokens"))


OLLAMA = Dialect("/api/chat", _ollama_body, _ollama_read)
OPENAI = Dialect("/v1/chat/completions", _openai_body, _openai_read)
