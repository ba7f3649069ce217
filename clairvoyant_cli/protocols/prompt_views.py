"""Turns requests of each dialect into what a predictor sees, agents' steps included, at a bounded cost."""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple
from zlib import crc32

import msgspec
from msgspec import Raw

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
    short_name,
    text_of,
)
from clairvoyant_cli.protocols.routes import Shape
from predictor.record import NO_THINKING, PromptView, Step, Task, Turn

# Reads from a conversation's last messages where an agent's task stands, at a bounded cost.

ANSWERS, CALLS = 5, 2  # of the latest whose lengths are read, and whose calls
END_CHARACTERS = 400  # at either end of a result, where errors are looked for
ARGUMENT_BYTES = 2048  # of a call's arguments, where a command is looked for
HARNESS_BYTES = 4096  # of the tools on offer: enough to distinguish one agent's from another's
CALL_CHARACTERS, ID_CHARACTERS = 40, 50  # of a call are its name, and its id and type if it has any

_CALLING = frozenset(("function_call", "custom_tool_call", "local_shell_call"))
BY_THE_MODEL = _CALLING | {"assistant", "model", "reasoning"}
_RESULTS = frozenset(("tool", "function", *(f"{call}_output" for call in _CALLING)))
_INSTRUCTIONS = frozenset(("system", "developer"))
_FAILURES = ("error", "traceback", "exception", "fail", "not found", "no such", "invalid", "denied")
_TOOL_USE, _TOOL_RESULT = b'"tool_use"', b'"tool_result"'  # within a text its quotes are escaped
_BEGINNING = r"""\s*([^"'\s\\`]{1,40})(?:[ \t]+([-<>][^"'\s\\`]{0,4}))?"""
_COMMAND = re.compile(rf"""["'](?:command|cmd|script|code)["']\s*:\s*\[?\s*["']{_BEGINNING}""")
_FENCED = re.compile(rf"\A(?:bash|sh|shell|console|mswea_bash_command)?\n{_BEGINNING}")
_FENCE = "```"


class ReadMessage(NamedTuple):
    """A message: who said it, what, how many characters more it was, its pictures, and its calls of tools."""

    role: str
    text: str
    cut: int
    images: int
    calls: Raw = ABSENT

    @property
    def characters(self) -> int:
        return len(self.text) + self.cut


def step_of(
    messages: Sequence[Raw],
    read: Sequence[ReadMessage | None],
    answered: int,
    read_characters: int,
    tools: Raw,
) -> Step:
    """Return where a task stands. `read` are the last messages as they were read; of the whole conversation
    `answered` counts the answers.
    """
    new: list[tuple[Raw, ReadMessage]] = []
    answers: list[int] = []
    called: list[str] = []
    command, goes_on = "", False
    for message, said in zip(reversed(messages), reversed(read), strict=False):
        if said is None or said.role not in BY_THE_MODEL:
            goes_on = False
            if said is not None and not answers and said.role not in _INSTRUCTIONS:
                new.append((message, said))
            continue
        if not goes_on:
            if len(answers) == ANSWERS:
                break
            answers.append(0)
            called.append("")
        goes_on = True
        answers[-1] += said.characters
        if len(answers) <= CALLS and not called[-1]:
            called[-1], begins = _call(message, said)
            command = command or (begins if len(answers) == 1 else "")
    is_result = bool(new) and (new[0][1].role in _RESULTS or _TOOL_RESULT in bytes(new[0][0]))
    return Step(
        new_characters=sum(said.characters for _, said in new),
        is_result=is_result,
        failed=bool(new) and _failed(new[0][1].text),
        answers=tuple(answers),
        tools=tuple(called),
        command=command,
        answered=answered,
        read_characters=read_characters,
        harness=crc32(memoryview(tools)[:HARNESS_BYTES]) if is_given(tools) else 0,
    )


def calls_length(calls: Raw) -> int:
    if not is_given(calls):
        return 0
    count = bytes(calls).count
    return max(0, len(calls) - CALL_CHARACTERS * count(b'"arguments"') - ID_CHARACTERS * count(b'"id"'))


def _failed(result: str) -> bool:
    ends = f"{result[:END_CHARACTERS]} {result[-END_CHARACTERS:]}".lower()
    return any(word in ends for word in _FAILURES)


def _call(message: Raw, said: ReadMessage) -> tuple[str, str]:
    """Return the first tool that a message calls, and how the command begins that it runs."""
    if is_given(said.calls):
        call = nested(next(iter(entries(said.calls) or ()), ABSENT))
    elif said.role in _CALLING:
        call = nested(message)
    elif _TOOL_USE in bytes(message):
        parts = entries(nested(message).content) or ()
        call = nested(next((part for part in parts if _TOOL_USE in bytes(part)), ABSENT))
    else:
        return "", _fenced(said.text)
    if is_given(call.function):
        call = nested(call.function)
    given = next((raw for raw in (call.arguments, call.input, call.action) if raw is not ABSENT), ABSENT)
    if is_text(given):
        arguments = text(given)
    else:
        arguments = bytes(memoryview(given)[:ARGUMENT_BYTES]).decode("utf-8", "replace")
    found = _COMMAND.search(arguments, 0, ARGUMENT_BYTES)
    return short_name(call.name), _words(found)


def _fenced(said: str) -> str:
    """Return how the last fenced command of an answer begins, of agents that call no tools."""
    parts = said[-ARGUMENT_BYTES:].rsplit(_FENCE, 2)
    return _words(_FENCED.search(parts[1])) if len(parts) > 2 else ""


def _words(found: re.Match[str] | None) -> str:
    return " ".join(filter(None, found.groups())) if found else ""


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
        _listed(body.messages),
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
        _listed(body.messages),
        cap=_cap(body.max_completion_tokens, body.max_tokens, body.n_predict),
        json_mode=_is_json(body.response_format) or bool(given(body.json_schema, body.grammar)),
        tools=next(iter(given(body.tools)), body.functions),
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
        *_asked(body.instructions, body.input),
        cap=_cap(body.max_output_tokens),
        json_mode=_is_json(nested(body.text).format),
        tools=body.tools,
        thinking=_thinking(nested(body.reasoning).effort),
    )


def _lmstudio_chat(body: RequestBody) -> PromptView:
    return _conversation(
        *_asked(body.system_prompt, body.input),
        cap=_cap(body.max_output_tokens),
        json_mode=False,
        tools=body.integrations,
        thinking=_thinking(body.reasoning),
    )


def _messages(body: RequestBody) -> PromptView:
    return _conversation(
        *_asked(body.system, body.messages),
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


def _asked(system: Raw, given: Raw) -> tuple[list[Raw], tuple[Nested, ...]]:
    """Return the messages of a request that has its system prompt beside them, and what comes before them."""
    opening = Nested(role=SYSTEM, content=system)
    if is_text(given):
        return [], (opening, Nested(role=USER, content=given))
    return _listed(given), (opening,)


def _listed(messages: Raw) -> list[Raw]:
    listed = entries(messages)
    if listed is None and is_given(messages):
        raise TypeError("these are no messages")
    return listed or []


def _conversation(
    messages: list[Raw],
    before: tuple[Nested, ...] = (),
    *,
    cap: int | None,
    json_mode: bool,
    tools: Raw,
    thinking: str | None,
) -> PromptView:
    system: list[str] = []
    turns: list[Turn] = []
    images = 0
    allowance = Allowance()
    between = messages[FIRST_MESSAGES:-LAST_MESSAGES]
    shown = [*messages[:FIRST_MESSAGES], *messages[-LAST_MESSAGES:]] if between else messages
    looked_at: list[Raw | Nested] = [*before, *shown]
    # The last one is what is asked, and has an allowance of its own.
    told = [_said(message, allowance, HISTORY_PARTS) for message in looked_at[:-1]]
    told += [_said(message, Allowance(), MAX_PARTS) for message in looked_at[-1:]]
    answered = len(between) // 2
    read_characters = 0
    for said in told:
        if said is None:
            continue
        images += said.images
        read_characters += len(said.text) + said.cut
        answered += said.role in BY_THE_MODEL
        if said.role in ("system", "developer"):
            system.append(said.text)
        else:
            turns.append(Turn(said.role, said.text, said.cut))
    asked = turns.pop() if turns else Turn("user", "")
    step = None
    if answered or is_given(tools):
        step = step_of(shown or [ABSENT], told, answered, read_characters, tools)
    return PromptView(
        prompt=asked.text,
        cut=asked.cut,
        system="\n".join(filter(None, system)),
        history=(*_passed_over(between, allowance), *turns),
        max_tokens=cap,
        json_mode=json_mode,
        tools=count(tools),
        images=images,
        thinking=_switched(thinking, asked.text, *system),
        step=step,
    )


def _passed_over(between: list[Raw], allowance: Allowance) -> tuple[Turn, ...]:
    """Return one anonymous, empty turn that is about as long as the messages between a conversation's ends.
    Of a few of them it is found how many characters a byte is: bytes may be escapes, pictures, or left out.
    """
    if not between:
        return ()
    # An odd step: every other message is an answer.
    sample = between[:: len(between) // SAMPLED_MESSAGES | 1]
    said = [_said(message, allowance, SAMPLED_PARTS) for message in sample]
    characters = sum(each.characters for each in said if each) * sum(map(len, between))
    return (Turn("", "", characters // sum(map(len, sample))),)


def _said(message: Raw | Nested, allowance: Allowance, most_parts: int) -> ReadMessage | None:
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
    return response_format is not ABSENT and text(nested(response_format).type).startswith("json")


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
