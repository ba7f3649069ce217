"""Requests as a predictor sees them, dialect by dialect.

Rule: a request's cost here is bounded, however long its lists are (`texts`).
"""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw

from clairvoyant_cli.proxy.protocols.bodies import (
    Chat,
    Completion,
    Embedding,
    Infill,
    LmStudioChat,
    Loose,
    Message,
    Messages,
    OllamaBody,
    OllamaChat,
    OllamaGenerate,
    Options,
    Other,
    Reasoning,
    Responses,
    TextFormat,
    Typed,
)
from clairvoyant_cli.proxy.protocols.condense import uncut
from clairvoyant_cli.proxy.protocols.routes import Shape
from clairvoyant_cli.proxy.protocols.texts import (
    MOST_PARTS,
    content_text,
    ends,
    joined,
    plain,
    prompt_text,
    text_of,
)
from predictor.record import PromptView, Task, Turn

MAX_CAP_TOKENS = 1 << 30
"""A cap beyond this is none; JSON's integers know no end, a predictor's floats do."""

MOST_MESSAGES = 96
"""Messages of a conversation that are looked at, from both ends of it: its system prompts come first, and a
predictor looks back on the last few answers."""

SAMPLED_MESSAGES = 256
"""Of those in between, at least so many tell how long they are; if there are not three times as many, all."""

HISTORY_PARTS = 16
"""Parts of a message that are looked at, of all but the last."""

MESSAGE = msgspec.json.Decoder(Other | Message)


def _ollama_chat(body: OllamaChat, model: str, client: str) -> PromptView:
    return _conversation(
        _listed(body.messages),
        cap=_ollama_cap(body),
        json_mode=bool(body.format),
        tools=_count(body.tools),
        thinking=_thinking(body.think),
        model=model,
        client=client,
    )


def _ollama_generate(body: OllamaGenerate, model: str, client: str) -> PromptView:
    prompt, suffix = text_of(body.prompt), text_of(body.suffix)
    whole = joined((prompt, suffix), "") if suffix.text else prompt
    return PromptView(
        prompt=whole.text,
        cut=whole.cut,
        system=text_of(body.system).text,
        task=Task.INFILL if suffix.text else Task.COMPLETION if body.raw else Task.CHAT,
        max_tokens=_ollama_cap(body),
        json_mode=bool(body.format),
        images=_count(body.images),
        thinking=_thinking(body.think),
        model=model,
        client=client,
    )


def _chat(body: Chat, model: str, client: str) -> PromptView:
    return _conversation(
        _listed(body.messages),
        cap=_cap(body.max_completion_tokens, body.max_tokens, body.n_predict),
        json_mode=_is_json(body.response_format) or body.json_schema is not None or body.grammar is not None,
        tools=_count(body.tools) + _count(body.functions),
        thinking=_thinking(body.reasoning_effort),
        model=model,
        client=client,
    )


def _completion(body: Completion, model: str, client: str) -> PromptView:
    prompt, suffix = prompt_text(body.prompt), text_of(body.suffix)
    whole = joined((prompt, suffix), "") if suffix.text else prompt
    return PromptView(
        prompt=whole.text,
        cut=whole.cut,
        task=Task.INFILL if suffix.text else Task.COMPLETION,
        max_tokens=_cap(body.max_tokens, body.n_predict),
        json_mode=body.json_schema is not None or body.grammar is not None,
        model=model,
        client=client,
    )


def _infill(body: Infill, model: str, client: str) -> PromptView:
    parts = (body.input_prefix, body.prompt, body.input_suffix)
    whole = joined([text_of(part) for part in parts], "")
    return PromptView(
        prompt=whole.text,
        cut=whole.cut,
        task=Task.INFILL,
        max_tokens=_cap(body.n_predict, body.max_tokens),
        model=model,
        client=client,
    )


def _responses(body: Responses, model: str, client: str) -> PromptView:
    text, reasoning = body.text, body.reasoning
    return _conversation(
        *_asked(body.instructions, body.input),
        cap=_cap(body.max_output_tokens),
        json_mode=isinstance(text, TextFormat) and _is_json(text.format),
        tools=_count(body.tools),
        thinking=_thinking(reasoning.effort) if isinstance(reasoning, Reasoning) else None,
        model=model,
        client=client,
    )


def _lmstudio_chat(body: LmStudioChat, model: str, client: str) -> PromptView:
    return _conversation(
        *_asked(body.system_prompt, body.input),
        cap=_cap(body.max_output_tokens),
        json_mode=False,
        tools=_count(body.integrations),
        thinking=None if body.reasoning is None else body.reasoning != "off",
        model=model,
        client=client,
    )


def _messages(body: Messages, model: str, client: str) -> PromptView:
    thinking = plain(body.thinking.type) if isinstance(body.thinking, Typed) else ""
    return _conversation(
        *_asked(body.system, _listed(body.messages)),
        cap=_cap(body.max_tokens),
        json_mode=False,
        tools=_count(body.tools),
        thinking=thinking == "enabled" if thinking else None,
        model=model,
        client=client,
    )


def _embedding(body: Embedding, model: str, client: str) -> PromptView:
    text = prompt_text(body.input or body.prompt or body.content)
    return PromptView("", cut=text.characters, task=Task.EMBEDDING, model=model, client=client)


ViewOf = Callable[[Any, str, str], PromptView]

DIALECTS: dict[Shape, tuple[msgspec.json.Decoder[Any], ViewOf]] = {
    Shape.OLLAMA_CHAT: (msgspec.json.Decoder(OllamaChat), _ollama_chat),
    Shape.OLLAMA_GENERATE: (msgspec.json.Decoder(OllamaGenerate), _ollama_generate),
    Shape.CHAT: (msgspec.json.Decoder(Chat), _chat),
    Shape.COMPLETION: (msgspec.json.Decoder(Completion), _completion),
    Shape.LLAMACPP_COMPLETION: (msgspec.json.Decoder(Completion), _completion),
    Shape.INFILL: (msgspec.json.Decoder(Infill), _infill),
    Shape.RESPONSES: (msgspec.json.Decoder(Responses), _responses),
    Shape.LMSTUDIO_CHAT: (msgspec.json.Decoder(LmStudioChat), _lmstudio_chat),
    Shape.MESSAGES: (msgspec.json.Decoder(Messages), _messages),
    Shape.EMBEDDING: (msgspec.json.Decoder(Embedding), _embedding),
}


def _asked(system: Loose, given: Loose) -> tuple[list[Raw], tuple[Message, ...]]:
    """Return the messages of a request that has its system prompt beside them, and what comes before them."""
    opening = Message(role="system", content=system)
    if isinstance(given, str):
        return [], (opening, Message(role="user", content=given))
    return _listed(given), (opening,)


def _listed(messages: Loose) -> list[Raw]:
    if isinstance(messages, list):
        return messages
    if messages:
        raise TypeError("these are no messages")
    return []


def _conversation(
    messages: list[Raw],
    before: tuple[Message, ...] = (),
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
    looked_at = [*before, *map(MESSAGE.decode, ends(messages, MOST_MESSAGES))]
    for place, message in enumerate(looked_at, 1):
        if not isinstance(message, Message):
            continue
        if isinstance(message.content, str):  # nearly always, and faster so
            text, cut = uncut(message.content)
        else:
            most = HISTORY_PARTS if place < len(looked_at) else MOST_PARTS
            text, cut, pictures = content_text(message.content, most)
            images += pictures
        images += _count(message.images)
        role = plain(message.role) or plain(message.type)
        if role in ("system", "developer"):
            system.append(text)
        else:
            turns.append(Turn(role, text, cut))
    last = turns.pop() if turns else Turn("user", "")
    return PromptView(
        prompt=last.text,
        cut=last.cut,
        system="\n".join(filter(None, system)),
        history=(*_passed_over(messages), *turns),
        max_tokens=cap,
        json_mode=json_mode,
        tools=tools,
        images=images,
        thinking=thinking,
        model=model,
        client=client,
    )


def _passed_over(messages: list[Raw]) -> tuple[Turn, ...]:
    """Return one turn, of nobody and without words, that is as long as all between a conversation's ends."""
    if len(messages) <= MOST_MESSAGES:
        return ()
    between = messages[MOST_MESSAGES // 2 : -(MOST_MESSAGES // 2)]
    # An odd step: every other message is an answer.
    sample = between[:: len(between) // SAMPLED_MESSAGES | 1]
    characters = sum(map(_characters, sample)) * len(between) // len(sample)
    return (Turn("", "", characters),)


def _characters(message: Raw) -> int:
    decoded = MESSAGE.decode(message)
    return content_text(decoded.content, HISTORY_PARTS).characters if isinstance(decoded, Message) else 0


def _cap(*wanted: Loose) -> int | None:
    """Return the first cap given; negative ones mean none (Ollama and llama.cpp: -1 is unlimited)."""
    for value in wanted:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return min(int(value), MAX_CAP_TOKENS) if value >= 0 else None
    return None


def _ollama_cap(body: OllamaBody) -> int | None:
    return _cap(body.options.num_predict) if isinstance(body.options, Options) else None


def _is_json(response_format: Other | Typed) -> bool:
    return isinstance(response_format, Typed) and plain(response_format.type).startswith("json")


def _thinking(value: Loose) -> bool | None:
    if value is None:
        return None
    return value not in (False, "none", "minimal", "false")


def _count(value: Loose) -> int:
    return len(value) if isinstance(value, list) else 0
