"""Which requests can be cut and continued unnoticed, as their bodies tell.

Rule: what is not known to be harmless is left alone. A request is continued by asking anew with what was said
so far; its client must not be able to tell, so whatever depends on the whole run (a seed, a grammar, tools,
log-probabilities) or is not known here keeps a request from being cut.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from clairvoyant_cli.protocols.routes import Shape

Body = dict[str, Any]

HARMLESS = frozenset(
    {
        "model",
        "user",
        "metadata",
        "store",
        "keep_alive",
        "cache_prompt",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "typical_p",
        "top_n_sigma",
        "repeat_penalty",
        "repeat_last_n",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "stop",
        "ignore_eos",
        "service_tier",
        # Ollama's runner options: the continuation is asked with the same ones.
        "num_ctx",
        "num_batch",
        "num_gpu",
        "main_gpu",
        "use_mmap",
        "num_thread",
        "num_keep",
    }
)
"""Fields that mean the same for the rest of an answer as for all of it: a sampler's penalties look back on
the prompt's tokens as on the answer's."""

CAPS = ("max_completion_tokens", "max_tokens", "n_predict", "num_predict")
"""Fields that bound the answer's length, which is less for its rest."""

MAX_CAP = 1 << 30


@dataclass(frozen=True, slots=True)
class Continuable:
    """A request that can be continued: its body, and whether its client wants a stream, and totals in it."""

    shape: Shape
    body: Body
    streamed: bool
    wants_usage: bool = False

    @property
    def options(self) -> Mapping[str, Any]:
        """Where its sampling options stand: in an object of their own with Ollama, else in the body."""
        if self.shape in (Shape.OLLAMA_CHAT, Shape.OLLAMA_GENERATE):
            return self.body.get("options") or {}
        return self.body

    @property
    def is_greedy(self) -> bool:
        """Whether its client expects the same answer each time."""
        return bool(self.options.get("temperature") == 0)

    @property
    def shared_chars(self) -> int:
        """Characters that it may begin with as others do: its system prompts."""
        messages = self.body.get("messages") or ()
        return sum(len(each["content"]) for each in messages if each["role"] in ("system", "developer"))

    def capped(self, said_tokens: int) -> Body:
        """Return the caps of a continuation after so many tokens, of those that the request has."""
        given = {name: self.options[name] for name in CAPS if _is_cap(self.options.get(name))}
        return {name: max(1, cap - said_tokens) for name, cap in given.items()}


def continuable(raw: bytes, shape: Shape, *, streams: bool) -> Continuable | str:
    """Return what is needed to continue the answer to a request, or why that might be noticed.

    `streams` is what an absent `stream` means on the route.
    """
    if shape not in SHAPES:
        return "its route"
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "its body is not understood"
    if not isinstance(body, dict) or len(set(map(str.casefold, body))) != len(body):
        return "its body is not understood"
    stream = body.get("stream")
    why = SHAPES[shape](body) if stream in (None, True, False) else "stream"
    if why:
        return why
    options = body.get("stream_options") or {}
    return Continuable(
        shape,
        body,
        streams if stream is None else bool(stream),
        wants_usage=bool(isinstance(options, dict) and options.get("include_usage")),
    )


# -- shape by shape ---------------------------------------------------------------------------------


def _chat(body: Body) -> str:
    return _messages(body.get("messages")) or _fields(body, body, "messages", "stream")


def _completion(body: Body) -> str:
    return _prompt(body) or _fields(body, body, "prompt", "stream")


def _ollama_chat(body: Body) -> str:
    return _messages(body.get("messages")) or _ollama(body, "messages")


def _ollama_generate(body: Body) -> str:
    if body.get("raw") is not True:
        return "its answer holds the context"  # token ids of prompt and answer, which nobody else knows
    return _prompt(body) or _ollama(body, "prompt", "raw")


def _ollama(body: Body, *known: str) -> str:
    options = body.get("options") or {}
    if not isinstance(options, dict):
        return "its options"
    return _fields(body, options, *known, "stream", "options") or _fields(options, options)


SHAPES: Mapping[Shape, Callable[[Body], str]] = {
    Shape.CHAT: _chat,
    Shape.COMPLETION: _completion,
    Shape.OLLAMA_CHAT: _ollama_chat,
    Shape.OLLAMA_GENERATE: _ollama_generate,
}


def _fields(body: Body, options: Body, *known: str) -> str:
    """Name the first field that stands in the way, "" if none does."""
    for name, value in body.items():
        if value is None or name in HARMLESS or name in known:
            continue
        fits = CONDITIONS.get(name)
        if fits is None or not fits(value, options):
            return name
    return ""


def _messages(messages: Any) -> str:
    if not isinstance(messages, list) or not messages:
        return "messages"
    for message in messages:
        if not isinstance(message, dict) or set(message) - {"role", "content", "name"}:
            return "messages with more than text"
        if message.get("role") not in ("system", "developer", "user", "assistant"):
            return "messages of tools"
        if not isinstance(message.get("content"), str):
            return "messages with more than text"
    return "" if messages[-1]["role"] == "user" else "the last message is not the user's"


def _prompt(body: Body) -> str:
    return "" if isinstance(body.get("prompt"), str) and body["prompt"] else "prompt"


def _is_cap(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < MAX_CAP


def _bounds(value: Any, options: Body) -> bool:
    # Zero and what is no number mean something of their own to each server; below zero is no bound.
    return _is_cap(value) or (isinstance(value, int) and value < 0)


def _is_off(value: Any, options: Body) -> bool:
    return value in (False, 0, "", "none", [], {}) or value is None


def _is_no_format(value: Any, options: Body) -> bool:
    return bool(value == "")  # an empty object is a schema, and whatever keeps to it begins anew


def _is_one(value: Any, options: Body) -> bool:
    return bool(value == 1)


def _is_greedy(value: Any, options: Body) -> bool:
    """Whether a seed decides nothing."""
    return options.get("temperature") == 0


def _is_text(value: Any, options: Body) -> bool:
    return bool(value == {"type": "text"})


def _asks_usage_alone(value: Any, options: Body) -> bool:
    return isinstance(value, dict) and not set(value) - {"include_usage"}


CONDITIONS: Mapping[str, Callable[[Any, Body], bool]] = {
    **dict.fromkeys(CAPS, _bounds),
    **dict.fromkeys(("n", "best_of"), _is_one),
    **dict.fromkeys(
        ("tools", "functions", "logprobs", "top_logprobs", "echo", "think", "images", "suffix"),
        _is_off,
    ),
    **dict.fromkeys(("mirostat", "dry_multiplier", "xtc_probability"), _is_off),
    "format": _is_no_format,
    "seed": _is_greedy,
    "response_format": _is_text,
    "stream_options": _asks_usage_alone,
}
"""Fields that stand in nobody's way if they have certain values."""
