"""Turns requests of each dialect into what a predictor sees, agents' steps included, at a bounded cost."""

from collections.abc import Callable

import msgspec
from msgspec import Raw

from clairvoyant_cli.protocols.agent_steps import BY_THE_MODEL, ReadMessage, calls_length, step_of
from clairvoyant_cli.protocols.lenient_json import (
    ABSENT,
    count,
    entries,
    fields,
    given,
    is_given,
    is_object,
    is_text,
    number,
    scalar,
    text,
)
from clairvoyant_cli.protocols.request_bodies import (
    MAX_PARTS,
    Allowance,
    Nested,
    PlainMessage,
    RequestBody,
    content_text,
    joined,
    nested,
    prompt_text,
    text_of,
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

SYSTEM, USER = Raw(b'"system"'), Raw(b'"user"')  # roles, as a message has them
SOFT_SWITCH = "/no_think"  # Qwen's switch in a prompt
OFF = (False, "none", "minimal", "false", "off", "disabled")
ON = ("true", "on", "enabled", "adaptive")
EFFORT_CHARS = 16  # of an effort that are kept: clients choose it

PLAIN_MESSAGE = msgspec.json.Decoder(PlainMessage)


def _ollama_chat(body: RequestBody) -> PromptView:
    return _conversation(
        body.messages,
        cap=_cap(nested(body.options).num_predict),
        json_mode=is_given(body.format),
        tools=body.tools,
        thinking=_thinking(body.think),
    )


def _ollama_generate(body: RequestBody) -> PromptView:
    prompt, suffix = text_of(body.prompt), text_of(body.suffix)
    whole = joined((prompt, suffix), "")
    return PromptView(
        prompt=whole.text,
        cut=whole.cut,
        system=text_of(body.system).text,
        task=Task.INFILL if suffix.text else Task.COMPLETION if is_given(body.raw) else Task.CHAT,
        max_tokens=_cap(nested(body.options).num_predict),
        json_mode=is_given(body.format),
        images=count(body.images),
        thinking=_switched(_thinking(body.think), whole.text),
    )


def _chat(body: RequestBody) -> PromptView:
    template = nested(body.chat_template_kwargs)
    return _conversation(
        body.messages,
        cap=_cap(body.max_completion_tokens, body.max_tokens, body.n_predict),
        json_mode=(body.response_format is not ABSENT and _is_json(body.response_format))
        or bool(given(body.json_schema, body.grammar)),
        tools=body.tools if is_given(body.tools) else body.functions,
        thinking=_thinking(
            template.enable_thinking,
            template.thinking,
            body.reasoning_effort,
            nested(body.reasoning).effort,
            body.think,
        ),
    )


def _completion(body: RequestBody) -> PromptView:
    prompt, suffix = prompt_text(body.prompt, Allowance()), text_of(body.suffix)
    whole = joined((prompt, suffix), "")
    return PromptView(
        prompt=whole.text,
        cut=whole.cut,
        task=Task.INFILL if suffix.text else Task.COMPLETION,
        max_tokens=_cap(body.max_tokens, body.n_predict),
        json_mode=bool(given(body.json_schema, body.grammar)),
    )


def _infill(body: RequestBody) -> PromptView:
    parts = (body.input_prefix, body.prompt, body.input_suffix)
    whole = joined([text_of(part) for part in parts], "")
    return PromptView(
        prompt=whole.text,
        cut=whole.cut,
        task=Task.INFILL,
        max_tokens=_cap(body.n_predict, body.max_tokens),
    )


def _responses(body: RequestBody) -> PromptView:
    return _conversation(
        body.input,
        body.instructions,
        cap=_cap(body.max_output_tokens),
        json_mode=_is_json(nested(body.text).format),
        tools=body.tools,
        thinking=_thinking(nested(body.reasoning).effort),
    )


def _lmstudio_chat(body: RequestBody) -> PromptView:
    return _conversation(
        body.input,
        body.system_prompt,
        cap=_cap(body.max_output_tokens),
        json_mode=False,
        tools=body.integrations,
        thinking=_thinking(body.reasoning),
    )


def _messages(body: RequestBody) -> PromptView:
    return _conversation(
        body.messages,
        body.system,
        cap=_cap(body.max_tokens),
        json_mode=False,
        tools=body.tools,
        thinking=_thinking(nested(body.thinking).type),
    )


def _embedding(body: RequestBody) -> PromptView:
    embedded = next(iter(given(body.input, body.prompt, body.content)), ABSENT)
    cut = prompt_text(embedded, Allowance()).characters
    return PromptView("", cut=cut, task=Task.EMBEDDING)


VIEWS: dict[Shape, Callable[[RequestBody], PromptView]] = {
    Shape.OLLAMA_CHAT: _ollama_chat,
    Shape.OLLAMA_GENERATE: _ollama_generate,
    Shape.CHAT: _chat,
    Shape.COMPLETION: _completion,
    Shape.LLAMACPP_COMPLETION: _completion,
    Shape.INFILL: _infill,
    Shape.RESPONSES: _responses,
    Shape.LMSTUDIO_CHAT: _lmstudio_chat,
    Shape.MESSAGES: _messages,
    Shape.EMBEDDING: _embedding,
}


def _conversation(
    asked: Raw,
    instructions: Raw | None = None,
    *,
    cap: int | None,
    json_mode: bool,
    tools: Raw,
    thinking: str | None,
) -> PromptView:
    """Return the view of messages, or of a text; `instructions` are a system prompt beside them."""
    before = [] if instructions is None else [Nested(role=SYSTEM, content=instructions)]
    if before and is_text(asked):
        before.append(Nested(role=USER, content=asked))
        messages: list[Raw] = []
    else:
        listed = entries(asked)
        if listed is None and is_given(asked):
            raise TypeError("these are no messages")
        messages = listed or []
    between = messages[FIRST_MESSAGES:-LAST_MESSAGES]
    shown = [*messages[:FIRST_MESSAGES], *messages[-LAST_MESSAGES:]] if between else messages
    allowance = Allowance()
    to_read: list[Raw | Nested] = [*before, *shown]
    read = [_read_message(message, allowance, HISTORY_PARTS) for message in to_read[:-1]]
    if to_read:  # the last one is what is asked, and has an allowance of its own
        read.append(_read_message(to_read[-1], Allowance(), MAX_PARTS))
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
        step = step_of(shown or [ABSENT], read, answered, read_characters, tools)
    return PromptView(
        prompt=prompt.text,
        cut=prompt.cut,
        system="\n".join(filter(None, system)),
        history=(*(_passed_over(between, allowance) if between else ()), *turns),
        max_tokens=cap,
        json_mode=json_mode,
        tools=count(tools),
        images=images,
        thinking=_switched(thinking, prompt.text, *system),
        step=step,
    )


def _passed_over(between: list[Raw], allowance: Allowance) -> tuple[Turn, ...]:
    """Return one anonymous, empty turn that is about as long as the messages between a conversation's ends.
    Of a few of them it is found how many characters a byte is: bytes may be escapes, pictures, or left out.
    """
    # An odd step: every other message is an answer.
    sample = between[:: len(between) // SAMPLED_MESSAGES | 1]
    read = [_read_message(message, allowance, SAMPLED_PARTS) for message in sample]
    characters = sum(message.characters for message in read if message) * sum(map(len, between))
    return (Turn("", "", characters // sum(map(len, sample))),)


def _read_message(message: Raw | Nested, allowance: Allowance, most_parts: int) -> ReadMessage | None:
    if not isinstance(message, Nested):
        plain = fields(PLAIN_MESSAGE, message)
        if plain is not None:
            said, cut, images = content_text(plain.content, allowance, most_parts)
            if plain.tool_calls is not ABSENT:
                cut += calls_length(plain.tool_calls)
            return ReadMessage(plain.role, said, cut, images + count(plain.images), plain.tool_calls)
        if not is_object(message):
            return None
        message = nested(message)
    content = message.content if is_given(message.content) else message.output
    said, cut, images = content_text(content, allowance, most_parts)
    cut += calls_length(message.tool_calls) + (len(message.arguments) if is_given(message.arguments) else 0)
    role = text(message.role) or text(message.type)
    return ReadMessage(role, said, cut, images + count(message.images), message.tool_calls)


def _cap(*caps_given: Raw) -> int | None:
    """Return the largest cap given: which of them counts depends on the server, and an answer must not be
    taken for shorter than it may become. Negative ones mean unlimited (Ollama, llama.cpp).
    """
    caps = [cap for raw in caps_given if raw is not ABSENT and (cap := number(raw)) is not None]
    if not caps or min(caps) < 0:
        return None
    return int(min(max(caps), MAX_CAP_TOKENS))


def _is_json(response_format: Raw) -> bool:
    return text(nested(response_format).type).startswith("json")


def _thinking(*switches: Raw) -> str | None:
    """Return whether the model is to think, or how hard, by the first of the switches that is set."""
    value = None
    for switch in switches:
        if switch is not ABSENT and value is None:
            value = scalar(switch)
    if value is None or value in OFF:
        return None if value is None else NO_THINKING
    return value[:EFFORT_CHARS] if isinstance(value, str) and value not in ON else "on"


def _switched(thinking: str | None, *texts: str) -> str | None:
    """Return whether the model is to think once the switch in a prompt is considered."""
    return NO_THINKING if SOFT_SWITCH in "\n".join(texts) else thinking
