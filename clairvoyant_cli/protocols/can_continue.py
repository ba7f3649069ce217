"""Which requests can be cut and continued without the client noticing, judged by their bodies.

Rule: only what is known to be harmless is cut. Whatever depends on the whole run (a seed, a grammar, tools,
log-probabilities) or is unknown here keeps a request from being cut.
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from clairvoyant_cli.protocols.answer_events import CUTTABLE
from clairvoyant_cli.protocols.lenient_json import PLAIN_OBJECT, fitting
from clairvoyant_cli.protocols.routes import OLLAMA_SHAPES, Shape

Body = dict[str, Any]

HARMLESS = {
    *"model user metadata store keep_alive cache_prompt temperature top_p top_k min_p typical_p".split(),
    *"top_n_sigma repeat_penalty repeat_last_n presence_penalty frequency_penalty logit_bias stop".split(),
    *"ignore_eos service_tier num_ctx num_batch num_gpu main_gpu use_mmap num_thread".split(),
}
"""Fields that mean the same for the rest of an answer: penalties look back on prompt and answer alike, and a
continuation is asked with the same runner options of Ollama."""

CAPS = ("max_completion_tokens", "max_tokens", "n_predict", "num_predict")
"""Fields that bound the answer's length, which is less for its rest."""

MAX_CAP = 1 << 30

RANDOM_SEEDS = (None, -1, 0xFFFFFFFF)  # seeds that mean a random one for each answer


@dataclass(frozen=True, slots=True)
class Continuable:
    """A request that can be continued: its body, and whether the client wants a stream, and totals in it.

    `defaults` are the server's values of absent options, `caps` the names of those that limit the answer, and
    `most` is the server's own limit in tokens.
    """

    shape: Shape
    body: Body
    streamed: bool
    wants_usage: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)
    caps: tuple[str, ...] = CAPS
    most: int | None = None

    @property
    def options(self) -> Mapping[str, Any]:
        """Where its sampling options stand: in an object of their own with Ollama, else in the body."""
        return _options(self.shape, self.body)

    @property
    def is_greedy(self) -> bool:
        """Whether its client expects the same answer each time."""
        return _is_greedy(_in_effect(self.options, self.defaults))

    @property
    def is_capped(self) -> bool:
        return any(_is_cap(self.options.get(name)) for name in self.caps)

    @property
    def prompt_bytes(self) -> int:
        texts = [message["content"] for message in self.body.get("messages") or ()]
        return len("".join(texts or [self.body["prompt"]]).encode())

    @property
    def shared_chars(self) -> int:
        """Characters that it may begin with as others do: its system prompts."""
        messages = self.body.get("messages") or ()
        return sum(
            len(message["content"]) for message in messages if message["role"] in ("system", "developer")
        )

    def capped(self, said_tokens: int) -> Body:
        """Return the caps of a continuation after `said_tokens`: the request's, or else the server's own."""
        named = [name for name in self.caps if self.options.get(name) is not None]
        given = {name: self.options[name] for name in named if _is_cap(self.options[name])}
        if not given:
            own = () if named else (self.defaults.get(name) for name in self.caps)
            cap = next(filter(_is_cap, own), self.most)
            names = named or ["max_tokens" if self.options is self.body else "num_predict"]
            given = {} if cap is None else dict.fromkeys(names, cap)
        return {name: max(1, min(cap, self.most or cap) - said_tokens) for name, cap in given.items()}


def continuable(
    raw: bytes,
    shape: Shape,
    *,
    streams: bool,
    defaults: Mapping[str, Any] | None = None,
    caps: tuple[str, ...] = CAPS,
) -> Continuable | str:
    """Return what is needed to continue the answer to a request, or why it cannot be. `streams` is the
    route's default of `stream`; see `Continuable` for the others.
    """
    defaults = defaults or {}
    if shape not in CUTTABLE:
        return "the route"
    body = fitting(PLAIN_OBJECT, raw)
    if body is None or len(set(map(str.casefold, body))) != len(body):
        return "the body cannot be parsed"
    stream = body.get("stream")
    why = _obstacle(shape, body) if stream in (None, True, False) else "stream"
    if why or (why := _own(_options(shape, body), defaults)):
        return why
    options = body.get("stream_options") or {}
    return Continuable(
        shape,
        body,
        streams if stream is None else bool(stream),
        wants_usage=bool(isinstance(options, dict) and options.get("include_usage")),
        defaults=defaults,
        caps=caps,
    )


def _obstacle(shape: Shape, body: Body) -> str:
    """Return what in a body prevents cutting, "" if nothing does."""
    known = {"stream", "messages", "prompt"}
    if shape is Shape.OLLAMA_GENERATE and body.get("raw") is not True:
        return "the answer contains the context"  # token ids, which only the server knows
    if shape in (Shape.CHAT, Shape.OLLAMA_CHAT):
        why = _messages(body.get("messages"))
        known.remove("prompt")
    else:
        why = "" if isinstance(body.get("prompt"), str) and body["prompt"] else "prompt"
        known.remove("messages")
    if shape not in OLLAMA_SHAPES:
        return why or _fields(body, body, known)
    known |= {"options", "raw"} if shape is Shape.OLLAMA_GENERATE else {"options"}
    options = body.get("options") or {}
    if not isinstance(options, dict):
        return "options"
    return why or _fields(body, options, known) or _fields(options, options, set())


def _fields(body: Body, options: Body, known: Set[str]) -> str:
    """Return the first field that prevents cutting, "" if none does."""
    for name, value in body.items():
        if value is None or name in HARMLESS or name in known:
            continue
        fits = CONDITIONS.get(name)
        if fits is None or not fits(value, options):
            return name
    return ""


def _options(shape: Shape, body: Body) -> Mapping[str, Any]:
    return body.get("options") or {} if shape in OLLAMA_SHAPES else body


def _in_effect(options: Mapping[str, Any], defaults: Mapping[str, Any]) -> Body:
    return {**defaults, **{name: value for name, value in options.items() if value is not None}}


def _own(options: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """Return the first of the server's own options that prevents cutting, "" if none does."""
    held = _in_effect(options, defaults)
    for name in OWN:
        if options.get(name) is None and name in held and not CONDITIONS[name](held[name], held):
            return f"the server's own {name}"
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


def _is_cap(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < MAX_CAP


def _bounds(value: Any, options: Body) -> bool:
    # Zero, -2 and what is no number mean something of their own to each server; -1 is no bound.
    return _is_cap(value) or value == -1


def _is_off(value: Any, options: Body) -> bool:
    return value in (False, 0, "", "none", [], {}) or value is None


def _is_greedy(options: Mapping[str, Any]) -> bool:
    temperature = options.get("temperature")
    return options.get("top_k") == 1 or (isinstance(temperature, int | float) and temperature <= 0)


CONDITIONS: Mapping[str, Callable[[Any, Body], Any]] = {
    **dict.fromkeys(CAPS, _bounds),
    **dict.fromkeys(("n", "best_of"), lambda value, _: value == 1),
    **dict.fromkeys("tools functions logprobs top_logprobs echo think images suffix".split(), _is_off),
    **dict.fromkeys(("mirostat", "dry_multiplier", "xtc_probability"), _is_off),
    # Below zero a full context keeps all of the prompt, to which what was said belongs in a continuation.
    **dict.fromkeys(("num_keep", "n_keep"), lambda value, _: isinstance(value, int) and value >= 0),
    "format": lambda value, _: value == "",  # an empty object is a schema, which would start again
    "seed": lambda seed, options: seed in RANDOM_SEEDS or _is_greedy(options),
    "response_format": lambda value, _: value == {"type": "text"},
    "stream_options": lambda value, _: isinstance(value, dict) and not set(value) - {"include_usage"},
}
"""Fields that are harmless with certain values."""

OWN = ("seed", "mirostat", "dry_multiplier", "xtc_probability", "num_keep", "n_keep")
"""Of these, those that a server may have values of its own of."""
