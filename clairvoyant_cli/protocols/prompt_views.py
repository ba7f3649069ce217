"""Turns requests of each dialect into what a predictor sees, agents' steps included, at a bounded cost."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from clairvoyant_cli.protocols.agent_steps import BY_THE_MODEL, ReadMessage, calls_length, step_of
from clairvoyant_cli.protocols.lenient_json import (
    ABSENT,
    Object,
    count,
    entries,
    fitting,
    is_given,
    is_text,
    number,
    object_in,
    plain_value,
    scalar,
    text,
)
from clairvoyant_cli.protocols.request_bodies import (
    MAX_PARTS,
    Allowance,
    content_text,
    joined,
    prompt_text,
    shortened,
    text_of,
    written_length,
)
from clairvoyant_cli.protocols.routes import Shape
from predictor.record import NO_THINKING, PromptView, Task, Turn

MAX_CAP_TOKENS = 1 << 30
"""A larger cap counts as none: JSON integers are unbounded, a predictor's floats are not."""

FIRST_MESSAGES, LAST_MESSAGES = 4, 16
"""Messages read of a conversation, from both ends: system prompts come first, and a predictor looks at the
last five answers, of three messages each: what the model thought, its call, and the result."""

SAMPLED_MESSAGES = 4  # of those in between, to learn how many characters a byte is
HISTORY_PARTS = 16  # parts of a message that are looked at, of all but the last
SAMPLED_PARTS = 4  # parts of a message in between that are looked at

SOFT_SWITCH = "/no_think"  # Qwen's switch in a prompt
OFF = (False, "none", "minimal", "false", "off", "disabled")
ON = ("true", "on", "enabled", "adaptive")
EFFORT_CHARS = 16  # of an effort that are kept: clients choose it


class Layout(NamedTuple):
    """The fields of a dialect's conversations, of which `holder.name` is in an object: what is `asked`, a
    system text beside that, the caps, what a format or tools are asked for by, and switches of thinking.
    """

    asked: str = "messages"
    instructions: str = ""
    caps: tuple[str, ...] = ("max_tokens",)
    formats: tuple[str, ...] = ()
    tools: tuple[str, ...] = ("tools",)
    thinking: tuple[str, ...] = ()


CONVERSATIONS = {
    Shape.OLLAMA_CHAT: Layout(caps=("options.num_predict",), formats=("format",), thinking=("think",)),
    Shape.CHAT: Layout(
        caps=("max_completion_tokens", "max_tokens", "n_predict"),
        formats=("response_format", "json_schema", "grammar"),
        tools=("tools", "functions"),
        thinking=(
            "chat_template_kwargs.enable_thinking",
            "chat_template_kwargs.thinking",  # the name in DeepSeek's and Granite's templates
            "reasoning_effort",
            "reasoning.effort",
            "think",
        ),
    ),
    Shape.RESPONSES: Layout(
        asked="input",
        instructions="instructions",
        caps=("max_output_tokens",),
        formats=("text.format",),
        thinking=("reasoning.effort",),
    ),
    Shape.LMSTUDIO_CHAT: Layout(
        asked="input",
        instructions="system_prompt",
        caps=("max_output_tokens",),
        tools=("integrations",),
        thinking=("reasoning",),
    ),
    Shape.MESSAGES: Layout(instructions="system", thinking=("thinking.type",)),
}


OPTIONS = {
    shape: frozenset(path.partition(".")[0] for paths in layout[2:] for path in paths)
    for shape, layout in CONVERSATIONS.items()
}
"""The fields of a conversation that are read besides what it says. Most requests have none of them."""


class PlainMessage(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A message as most are: text alone."""

    role: str
    content: str


_PLAIN_MESSAGES = msgspec.json.Decoder(list[PlainMessage])


def view_of(shape: Shape, body: Object) -> PromptView:
    """Return what a predictor sees of a body; TypeError if its messages are none."""
    return _conversation(body, shape) if shape in CONVERSATIONS else VIEWS[shape](body)


def _ollama_generate(body: Object) -> PromptView:
    prompt, suffix = text_of(body["prompt"]), text_of(body["suffix"])
    whole = joined((prompt, suffix), "")
    return PromptView(
        prompt=whole.text,
        cut=whole.cut,
        system=text_of(body["system"]).text,
        task=Task.INFILL if suffix.text else Task.COMPLETION if is_given(body["raw"]) else Task.CHAT,
        max_tokens=_cap(body, "options.num_predict"),
        json_mode=is_given(body["format"]),
        images=count(body["images"]),
        thinking=NO_THINKING if SOFT_SWITCH in whole.text else _thinking(body, ("think",)),
    )


def _completion(body: Object) -> PromptView:
    prompt, suffix = prompt_text(body["prompt"]), text_of(body["suffix"])
    whole = joined((prompt, suffix), "")
    return PromptView(
        prompt=whole.text,
        cut=whole.cut,
        task=Task.INFILL if suffix.text else Task.COMPLETION,
        max_tokens=_cap(body, "max_tokens", "n_predict"),
        json_mode=_first_given(body, ("json_schema", "grammar")) is not ABSENT,
    )


def _infill(body: Object) -> PromptView:
    parts = (body["input_prefix"], body["prompt"], body["input_suffix"])
    whole = joined([text_of(part) for part in parts], "")
    return PromptView(
        prompt=whole.text,
        cut=whole.cut,
        task=Task.INFILL,
        max_tokens=_cap(body, "n_predict", "max_tokens"),
    )


def _embedding(body: Object) -> PromptView:
    embedded = _first_given(body, ("input", "prompt", "content"))
    cut = prompt_text(embedded).characters
    return PromptView("", cut=cut, task=Task.EMBEDDING)


VIEWS: dict[Shape, Callable[..., PromptView]] = {
    Shape.OLLAMA_GENERATE: _ollama_generate,
    Shape.COMPLETION: _completion,
    Shape.LLAMACPP_COMPLETION: _completion,
    Shape.INFILL: _infill,
    Shape.EMBEDDING: _embedding,
}


def _conversation(body: Object, shape: Shape) -> PromptView:
    layout, options = CONVERSATIONS[shape], OPTIONS[shape] & body.keys()
    asked, tools = body[layout.asked], _first_given(body, layout.tools) if options else ABSENT
    before = []
    if layout.instructions:
        before.append({"role": "system", "content": plain_value(body[layout.instructions])})
    if before and is_text(asked):
        before.append({"role": "user", "content": text(asked)})
        messages: list[Raw] = []
    else:
        listed = entries(asked)
        if listed is None and is_given(asked):
            raise TypeError("these are no messages")
        messages = listed or []
    between = messages[FIRST_MESSAGES:-LAST_MESSAGES]
    shown = [*messages[:FIRST_MESSAGES], *messages[-LAST_MESSAGES:]] if between else messages
    allowance = Allowance()
    plain = None if before or between else fitting(_PLAIN_MESSAGES, asked)
    to_read: Sequence[Any] = [*before, *map(plain_value, shown)] if plain is None else plain
    read = _read_messages(to_read, allowance) if plain is None else _read_plain(plain)
    system: list[str] = []
    turns: list[Turn] = []
    answered, images, read_characters = len(between) // 2, 0, 0
    for message in read:
        if message is None:
            continue
        images += message.images
        read_characters += len(message.text) + message.cut
        answered += message.role in BY_THE_MODEL
        if message.role in ("system", "developer"):
            system.append(message.text)
        else:
            turns.append(Turn(message.role, message.text, message.cut))
    prompt = turns.pop() if turns else Turn("user", "")
    step = None
    if answered or is_given(tools):
        step = step_of(to_read, read, answered, read_characters, tools)
    view = PromptView(
        prompt=prompt.text,
        cut=prompt.cut,
        system="\n".join(filter(None, system)),
        history=(*(_passed_over(between, allowance) if between else ()), *turns),
        images=images,
        step=step,
    )
    if options:
        view.max_tokens = _cap(body, *layout.caps)
        view.json_mode = any(map(_wants_form, _present(body, layout.formats)))
        view.tools = count(tools)
        view.thinking = _thinking(body, layout.thinking)
    if SOFT_SWITCH in view.prompt or SOFT_SWITCH in view.system:
        view.thinking = NO_THINKING
    return view


def _read_plain(messages: Sequence[PlainMessage]) -> list[ReadMessage | None]:
    read: list[ReadMessage | None] = []
    for message in messages:
        text, cut, _ = shortened(message.content)
        read.append(ReadMessage(message.role, text, cut, 0))
    return read


def _read_messages(messages: Sequence[Any], allowance: Allowance) -> list[ReadMessage | None]:
    """Read messages of any form. The last one is what is asked, and has an allowance of its own."""
    read = [_read_message(message, allowance, HISTORY_PARTS) for message in messages[:-1]]
    return [*read, *(_read_message(message, Allowance(), MAX_PARTS) for message in messages[-1:])]


def _passed_over(between: list[Raw], allowance: Allowance) -> tuple[Turn, ...]:
    """Return one anonymous, empty turn that is about as long as the messages between a conversation's ends.
    Of a few of them it is found how many characters a byte is: bytes may be escapes, pictures, or left out.
    """
    # An odd step: every other message is an answer.
    sample = between[:: len(between) // SAMPLED_MESSAGES | 1]
    read = [_read_message(plain_value(message), allowance, SAMPLED_PARTS) for message in sample]
    characters = sum(message.characters for message in read if message) * sum(map(len, between))
    return (Turn("", "", characters // sum(map(len, sample))),)


def _read_message(message: Any, allowance: Allowance, most_parts: int) -> ReadMessage | None:
    if not isinstance(message, dict):
        return None
    content = message.get("content") or message.get("output")
    said, cut, images = content_text(content, allowance, most_parts)
    calls, arguments = message.get("tool_calls"), message.get("arguments")
    cut += calls_length(calls) + (written_length(arguments) if arguments else 0)
    role = message.get("role") or message.get("type")
    pictures = message.get("images")
    images += len(pictures) if isinstance(pictures, list) else 0
    return ReadMessage(role if isinstance(role, str) else "", said, cut, images, calls)


def _present(body: Object, paths: Sequence[str]) -> list[Raw]:
    """Return the fields, or those of objects in a field (`holder.name`), that are there."""
    found = []
    for path in paths:
        holder, dot, name = path.partition(".")
        if holder in body:
            found.append(object_in(body[holder])[name] if dot else body[holder])
    return found


def _first_given(body: Object, names: Sequence[str]) -> Raw:
    return next(filter(is_given, _present(body, names)), ABSENT)


def _cap(body: Object, *names: str) -> int | None:
    """Return the largest cap given: which of them counts depends on the server, and an answer must not be
    taken for shorter than it may become. Negative ones mean unlimited (Ollama, llama.cpp).
    """
    caps = [cap for raw in _present(body, names) if (cap := number(raw)) is not None]
    if not caps or min(caps) < 0:
        return None
    return int(min(max(caps), MAX_CAP_TOKENS))


def _wants_form(asked: Raw) -> bool:
    """Whether an answer is asked for in a form: JSON, or what a schema or a grammar says."""
    return is_given(asked) and text(object_in(asked)["type"]) != "text"


def _thinking(body: Object, names: Sequence[str]) -> str | None:
    """Return whether the model is to think, or how hard, by the first of the fields that is set."""
    value = next((held for raw in _present(body, names) if (held := scalar(raw)) is not None), None)
    if value is None or value in OFF:
        return None if value is None else NO_THINKING
    return value[:EFFORT_CHARS] if isinstance(value, str) and value not in ON else "on"
