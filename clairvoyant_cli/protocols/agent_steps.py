"""Reads from a conversation's last messages where an agent's task stands, at a bounded cost."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
from msgspec import Raw

from clairvoyant_cli.protocols.lenient_json import is_given
from clairvoyant_cli.protocols.printable import MAX_NAME_CHARS, printable
from predictor.record import Step

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
    calls: Any = None  # as they stand in the message

    @property
    def characters(self) -> int:
        return len(self.text) + self.cut


def step_of(
    messages: Sequence[Any],
    read: Sequence[ReadMessage | None],
    answered: int,
    read_characters: int,
    tools: Raw,
) -> Step:
    """Return where a task stands. `read` are the last messages as they were read; of the whole conversation
    `answered` counts the answers.
    """
    new: list[tuple[Any, ReadMessage]] = []
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
    is_result = bool(new) and (new[0][1].role in _RESULTS or _part_of(new[0][0], "tool_result") is not None)
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


def calls_length(calls: Any) -> int:
    if not calls:
        return 0
    written = msgspec.json.encode(calls)
    count = written.count
    return max(0, len(written) - CALL_CHARACTERS * count(b'"arguments"') - ID_CHARACTERS * count(b'"id"'))


def _failed(result: str) -> bool:
    ends = f"{result[:END_CHARACTERS]} {result[-END_CHARACTERS:]}".lower()
    return any(word in ends for word in _FAILURES)


def _call(message: Any, said: ReadMessage) -> tuple[str, str]:
    """Return the first tool that a message calls, and how the command begins that it runs."""
    if said.calls:
        call = said.calls[0] if isinstance(said.calls, list) else None
    elif said.role in _CALLING:
        call = message
    else:
        call = _part_of(message, "tool_use")
        if call is None:
            return "", _fenced(said.text)
    if isinstance(call, dict) and isinstance(call.get("function"), dict):
        call = call["function"]
    if not isinstance(call, dict):
        return "", ""
    given = next((call[name] for name in ("arguments", "input", "action") if name in call), "")
    arguments = given if isinstance(given, str) else msgspec.json.encode(given).decode()
    name, found = call.get("name"), _COMMAND.search(arguments, 0, ARGUMENT_BYTES)
    return printable(name if isinstance(name, str) else "", MAX_NAME_CHARS), _words(found)


def _part_of(message: Any, part_type: str) -> dict[str, Any] | None:
    """Return the first part of a message that is of a type."""
    parts = message.get("content") if isinstance(message, dict) else None
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, dict) and part.get("type") == part_type:
            return part
    return None


def _fenced(said: str) -> str:
    """Return how the last fenced command of an answer begins, of agents that call no tools."""
    parts = said[-ARGUMENT_BYTES:].rsplit(_FENCE, 2)
    return _words(_FENCED.search(parts[1])) if len(parts) > 2 else ""


def _words(found: re.Match[str] | None) -> str:
    return " ".join(filter(None, found.groups())) if found else ""
