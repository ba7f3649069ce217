"""Ways to continue an answer that was preempted: the request that asks the server to.

Which of them gives the answer that would have come without the preemption depends on the server's version,
the chat template and the cache; `calibrate` tries each.
"""

from dataclasses import dataclass, field
from typing import Any

from clairvoyant_cli.backends.prober import Ask
from clairvoyant_cli.protocols.answer_events import Earlier
from clairvoyant_cli.protocols.can_continue import CAPS, Body, Continuable
from clairvoyant_cli.protocols.probes import rendered_prompt
from clairvoyant_cli.protocols.routes import OLLAMA_SHAPES, Shape
from clairvoyant_cli.protocols.splice import Splice

TOLD_TOKENS = 20  # the most that OpenAI's routes and Ollama tell
NEXT_TOKEN_TIMEOUT_S = 30.0  # the prompt may be read before
RENDER_TIMEOUT_S = 30.0  # rendering may have to wait until the model is loaded


@dataclass(frozen=True, slots=True)
class ContinuationRequest:
    """A request that continues an answer. `path` None is the original's; `shape` is the answer's."""

    body: Body
    shape: Shape
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Prefill:
    """The same request, with the answer so far as a last assistant message, or appended to the prompt.
    `extra` keeps the server from starting another turn.
    """

    name: str = "prefill"
    extra: dict[str, Any] = field(default_factory=dict)

    async def onward(
        self, ask: Ask, asked: Continuable, said: str, tokens: int
    ) -> ContinuationRequest | None:
        """Return the request."""
        body = streamed(asked) | capped(asked, tokens)
        if "messages" in body:
            body["messages"] = [*body["messages"], {"role": "assistant", "content": said}]
            body |= self.extra
        else:
            body["prompt"] += said
        if "cache_prompt" in body:
            body["cache_prompt"] = True  # what was said is in the cache, whatever its client thinks of that
        return ContinuationRequest(body, asked.shape)


@dataclass(frozen=True, slots=True)
class Raw:
    """Ollama's `raw` generation: the prompt as its template renders it, and what was said behind it."""

    name: str = "raw"

    async def onward(
        self, ask: Ask, asked: Continuable, said: str, tokens: int
    ) -> ContinuationRequest | None:
        rendered = await _rendered(ask, asked)
        if rendered is None:
            return None
        kept = {name: asked.body[name] for name in ("model", "keep_alive") if name in asked.body}
        caps = asked.capped(tokens)  # those that Ollama's OpenAI routes ignore are dropped
        heeded = [caps[name] for name in ("max_tokens", "num_predict") if name in caps]
        options = _ollama_options(asked) | ({"num_predict": heeded[0]} if heeded else {})
        body = kept | {"prompt": rendered + said, "raw": True, "stream": True, "options": options}
        return ContinuationRequest(body, Shape.OLLAMA_GENERATE, "/api/generate")


Way = Prefill | Raw


async def request_to_continue(
    way: Way, ask: Ask, splice: Splice, counted: int | None, prefill_s: float, decode_s: float
) -> ContinuationRequest | None:
    """Return the request that continues an answer, and have `splice` expect what comes of it; None if the
    way is not available. The server has `counted` the tokens so far, if it tells; they took these seconds.
    """
    tokens = max(splice.tokens, counted or 0)  # an event may bring a letter of several tokens
    onward = await way.onward(ask, splice.asked, splice.said, tokens)
    if onward is not None:
        reread = tokens if counted is None else counted
        splice.continue_in(onward.shape, Earlier(tokens, prefill_s, decode_s, reread))
    return onward


def next_token(onward: ContinuationRequest) -> Body:
    """Return the body that asks for the likeliest tokens at the beginning of a continuation."""
    told = {"stream": False, "logprobs": True, "top_logprobs": TOLD_TOKENS}
    if onward.shape in OLLAMA_SHAPES:
        return onward.body | told | {"options": (onward.body.get("options") or {}) | {"num_predict": 1}}
    body = {name: value for name, value in onward.body.items() if name not in (*CAPS, "stream_options")}
    return body | told | {"max_tokens": 1}


def streamed(asked: Continuable) -> Body:
    """Return a request's body, such that its answer is streamed, with totals if its client gets any."""
    body = asked.body | {"stream": True}
    if asked.shape in (Shape.CHAT, Shape.COMPLETION) and not asked.streamed:
        body["stream_options"] = {"include_usage": True}
    return body


def capped(asked: Continuable, said_tokens: int) -> Body:
    """Return what bounds the rest of an answer, as fields of a body."""
    caps = asked.capped(said_tokens)
    if not caps or asked.options is asked.body:
        return caps
    return {"options": {**asked.options, **caps}}


async def _rendered(ask: Ask, asked: Continuable) -> str | None:
    if asked.shape is Shape.OLLAMA_GENERATE:
        return str(asked.body["prompt"])
    chat = "messages" in asked.body
    field = "messages" if chat else "prompt"
    wanted = {"model": asked.body.get("model"), field: asked.body[field], "stream": False}
    options = {name: value for name, value in _ollama_options(asked).items() if name.startswith("num_")}
    wanted |= {"_debug_render_only": True, "options": options}
    if "think" in asked.body:
        wanted["think"] = asked.body["think"]  # a template writes into the prompt that it is off
    answer = await ask("/api/chat" if chat else "/api/generate", RENDER_TIMEOUT_S, body=wanted)
    return rendered_prompt(answer.body)


def openai_defaults(shape: Shape) -> Body:
    """Return the options that Ollama's OpenAI routes set by default (openai/openai.go, From...Request)."""
    if shape in OLLAMA_SHAPES:
        return {}
    penalties = {"frequency_penalty": 0.0, "presence_penalty": 0.0} if shape is Shape.COMPLETION else {}
    return {"temperature": 1.0, "top_p": 1.0, **penalties}


def _ollama_options(asked: Continuable) -> Body:
    """Return a request's options as Ollama's own routes have them."""
    body = asked.body
    if asked.options is not body:
        return dict(asked.options)
    options = openai_defaults(asked.shape)
    for name in ("temperature", "top_p", "seed", "frequency_penalty", "presence_penalty"):
        if body.get(name) is not None:
            options[name] = body[name]
    if body.get("max_tokens") is not None:
        options["num_predict"] = body["max_tokens"]
    stop = body.get("stop")
    if stop is not None:
        options["stop"] = [stop] if isinstance(stop, str) else stop
    return options


GO_ON = Prefill("continue_final_message", {"add_generation_prompt": False, "continue_final_message": True})
"""Keeps vLLM and SGLang from starting another assistant turn."""
