"""What a request's body tells the scheduler. The body itself is forwarded byte for byte, whatever it is.

Rule 1: nothing here raises on a client's input. What cannot be understood is `None`: an unknown request,
which is queued as such and left to the backend to refuse in its own words.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from clairvoyant_cli.proxy.protocols.routes import BackendKind, Family, Route, Shape, Work
from predictor.record import PromptView, Task, Turn

RUNNER_OPTIONS = ("num_ctx", "num_batch", "num_gpu", "main_gpu", "use_mmap", "num_thread")
"""Options that make Ollama load the model anew when they change (server/sched.go, needsReload)."""

MAX_NAME_CHARS = 200
"""The longest model name that is known by its whole name."""

MAX_CAP_TOKENS = 1 << 30
"""A cap beyond this is none; JSON's integers know no end, a predictor's floats do."""

MAX_CHOICES = 1024
"""Answers to one request that are believed; OpenAI allows 128."""

SERVICE_TIERS = {"priority": -1, "flex": 1}


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What is known of a request. `bypass` says why it does not wait in the queue, "" if it does.

    `view` is None where the body could not be understood. `choices` multiplies the answer's cost.
    """

    model: str = ""
    stream: bool = False
    view: PromptView | None = None
    choices: int = 1
    prompt_tokens: float = 0.0
    affinity: str = ""
    priority: int = 0
    bypass: str = ""


def facts_of(body: bytes | None, route: Route, kind: BackendKind, client: str = "") -> RequestFacts:
    """Read a request's body; `body` None means it was too long to be held."""
    unknown = RequestFacts(stream=route.streams)
    if body is None or route.shape is Shape.OPAQUE:
        return unknown
    try:
        data = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return unknown
    if not isinstance(data, dict):
        return unknown
    try:
        return _read(data, route, kind, client)
    except (TypeError, ValueError, AttributeError, KeyError, RecursionError, OverflowError):
        # A field of another type than any client sends. The backend will say so better than we can.
        return unknown


def _read(data: dict[str, Any], route: Route, kind: BackendKind, client: str) -> RequestFacts:
    model = _name(_text(data.get("model")))
    stream = data.get("stream")
    stream = route.streams if stream is None else bool(stream)
    if route.work is Work.EMBED:
        view = PromptView("", task=Task.EMBEDDING, model=model, client=client)
        chars = len(_joined(data.get("input") or data.get("prompt") or data.get("content") or ""))
        return RequestFacts(model, False, view, prompt_tokens=chars / 4, affinity=model)
    if kind is BackendKind.OLLAMA and route.family is Family.OPENAI:
        data.pop("max_completion_tokens", None)  # Ollama has no such field and does not obey it
    view = READERS[route.shape](data, model, client)
    chars = len(view.prompt) + len(view.system) + sum(len(turn.text) for turn in view.history)
    return RequestFacts(
        model=model,
        stream=stream,
        view=view,
        choices=_choices(data),
        prompt_tokens=chars / 4,
        affinity=_affinity(data, model, route),
        priority=SERVICE_TIERS.get(_text(data.get("service_tier")), 0),
        bypass=_bypass(data, view, route, kind, model),
    )


def _bypass(data: dict[str, Any], view: PromptView, route: Route, kind: BackendKind, model: str) -> str:
    if route.family is Family.OLLAMA:
        empty = not data.get("messages") if route.shape is Shape.OLLAMA_CHAT else not data.get("prompt")
        if empty and not view.images:
            return "unload" if data.get("keep_alive") in (0, "0") else "load"
        if data.get("_debug_render_only"):
            return "render"
    if kind is BackendKind.OLLAMA and model.endswith((":cloud", "-cloud")):
        return "cloud"
    return ""


def _affinity(data: dict[str, Any], model: str, route: Route) -> str:
    options = data.get("options") if route.family is Family.OLLAMA else None
    if not isinstance(options, dict):
        return model
    chosen = [f"{name}={options[name]}" for name in RUNNER_OPTIONS if name in options]
    return " ".join([model, *chosen])


def _choices(data: dict[str, Any]) -> int:
    wanted = [data.get(name) for name in ("n", "best_of", "n_cmpl")]
    return min(MAX_CHOICES, max([1, *(n for n in wanted if isinstance(n, int))]))


def _name(model: str) -> str:
    # It goes into logs, labels and dashboards, and a client may write anything into it.
    if len(model) <= MAX_NAME_CHARS and model.isprintable():
        return model
    return "".join(c if c.isprintable() else "?" for c in model[:MAX_NAME_CHARS])


# -- the shapes -------------------------------------------------------------------------------------


def _ollama_chat(data: dict[str, Any], model: str, client: str) -> PromptView:
    options = data.get("options") or {}
    return _conversation(
        data.get("messages") or [],
        cap=_cap(options.get("num_predict")),
        json_mode=bool(data.get("format")),
        tools=_count(data.get("tools")),
        thinking=_thinking(data.get("think")),
        model=model,
        client=client,
    )


def _ollama_generate(data: dict[str, Any], model: str, client: str) -> PromptView:
    options = data.get("options") or {}
    suffix = _text(data.get("suffix"))
    return PromptView(
        prompt=_text(data.get("prompt")) + suffix,
        system=_text(data.get("system")),
        task=Task.INFILL if suffix else Task.COMPLETION if data.get("raw") else Task.CHAT,
        max_tokens=_cap(options.get("num_predict")),
        json_mode=bool(data.get("format")),
        images=_count(data.get("images")),
        thinking=_thinking(data.get("think")),
        model=model,
        client=client,
    )


def _chat(data: dict[str, Any], model: str, client: str) -> PromptView:
    return _conversation(
        data.get("messages") or [],
        cap=_cap(data.get("max_completion_tokens"), data.get("max_tokens"), data.get("n_predict")),
        json_mode=_json_mode(data.get("response_format")) or "json_schema" in data or "grammar" in data,
        tools=_count(data.get("tools")) + _count(data.get("functions")),
        thinking=_thinking(data.get("reasoning_effort")),
        model=model,
        client=client,
    )


def _completion(data: dict[str, Any], model: str, client: str) -> PromptView:
    suffix = _text(data.get("suffix"))
    return PromptView(
        prompt=_joined(data.get("prompt")) + suffix,
        task=Task.INFILL if suffix else Task.COMPLETION,
        max_tokens=_cap(data.get("max_tokens"), data.get("n_predict")),
        json_mode="json_schema" in data or "grammar" in data,
        model=model,
        client=client,
    )


def _infill(data: dict[str, Any], model: str, client: str) -> PromptView:
    return PromptView(
        prompt=_text(data.get("input_prefix")) + _text(data.get("prompt")) + _text(data.get("input_suffix")),
        task=Task.INFILL,
        max_tokens=_cap(data.get("n_predict"), data.get("max_tokens")),
        model=model,
        client=client,
    )


def _responses(data: dict[str, Any], model: str, client: str) -> PromptView:
    given = data.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given or []
    reasoning = data.get("reasoning") or {}
    text = data.get("text") or {}
    return _conversation(
        [{"role": "system", "content": data.get("instructions")}, *items],
        cap=_cap(data.get("max_output_tokens")),
        json_mode=_json_mode(text.get("format")),
        tools=_count(data.get("tools")),
        thinking=_thinking(reasoning.get("effort")),
        model=model,
        client=client,
    )


def _lmstudio_chat(data: dict[str, Any], model: str, client: str) -> PromptView:
    given = data.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given or []
    reasoning = data.get("reasoning")
    return _conversation(
        [{"role": "system", "content": data.get("system_prompt")}, *items],
        cap=_cap(data.get("max_output_tokens")),
        json_mode=False,
        tools=_count(data.get("integrations")),
        thinking=None if reasoning is None else reasoning != "off",
        model=model,
        client=client,
    )


def _messages(data: dict[str, Any], model: str, client: str) -> PromptView:
    thinking = data.get("thinking") or {}
    return _conversation(
        [{"role": "system", "content": data.get("system")}, *(data.get("messages") or [])],
        cap=_cap(data.get("max_tokens")),
        json_mode=False,
        tools=_count(data.get("tools")),
        thinking=None if not thinking else thinking.get("type") == "enabled",
        model=model,
        client=client,
    )


READERS: dict[Shape, Callable[[dict[str, Any], str, str], PromptView]] = {
    Shape.OLLAMA_CHAT: _ollama_chat,
    Shape.OLLAMA_GENERATE: _ollama_generate,
    Shape.CHAT: _chat,
    Shape.COMPLETION: _completion,
    Shape.LLAMACPP_COMPLETION: _completion,
    Shape.INFILL: _infill,
    Shape.RESPONSES: _responses,
    Shape.LMSTUDIO_CHAT: _lmstudio_chat,
    Shape.MESSAGES: _messages,
}


def _conversation(
    messages: list[Any],
    *,
    cap: int | None,
    json_mode: bool,
    tools: int,
    thinking: bool | None,
    model: str,
    client: str,
) -> PromptView:
    system: list[str] = []
    turns: list[Turn] = []
    images = 0
    for message in messages:
        if not isinstance(message, dict):
            continue
        text, pictures = _content(message.get("content"))
        images += pictures + _count(message.get("images"))
        role = _text(message.get("role")) or _text(message.get("type"))
        if role in ("system", "developer"):
            system.append(text)
        else:
            turns.append(Turn(role, text))
    last = turns.pop() if turns else Turn("user", "")
    return PromptView(
        prompt=last.text,
        system="\n".join(filter(None, system)),
        history=tuple(turns),
        max_tokens=cap,
        json_mode=json_mode,
        tools=tools,
        images=images,
        thinking=thinking,
        model=model,
        client=client,
    )


def _content(content: Any) -> tuple[str, int]:
    """Return the text of a message and how many pictures it holds."""
    if isinstance(content, str):
        return content, 0
    if not isinstance(content, list):
        return "", 0
    texts: list[str] = []
    images = 0
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict):
            text = part.get("text")
            if isinstance(text, str):
                texts.append(text)
            elif "image" in _text(part.get("type")):
                images += 1
            elif "content" in part:  # Anthropic's tool_result, Responses' tool output
                inner, pictures = _content(part["content"])
                texts.append(inner)
                images += pictures
    return "\n".join(texts), images


def _joined(prompt: Any) -> str:
    """Return a completion's prompt as text; token ids stand for about four characters each."""
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, int):
        return "    "
    if isinstance(prompt, list):
        if prompt and all(isinstance(item, int) for item in prompt):
            return "    " * len(prompt)
        return "\n".join(_joined(item) for item in prompt)
    if isinstance(prompt, dict):
        return _text(prompt.get("prompt_string"))
    return ""


def _cap(*wanted: Any) -> int | None:
    """Return the first cap given; negative ones mean none (Ollama and llama.cpp: -1 is unlimited)."""
    for value in wanted:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return min(int(value), MAX_CAP_TOKENS) if value >= 0 else None
    return None


def _json_mode(response_format: Any) -> bool:
    return isinstance(response_format, dict) and _text(response_format.get("type")).startswith("json")


def _thinking(value: Any) -> bool | None:
    if value is None:
        return None
    return value not in (False, "none", "minimal", "false")


def _count(value: Any) -> int:
    return len(value) if isinstance(value, list) else 0


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
