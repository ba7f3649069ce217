"""Moves the lines of a system text that change at each turn to the end of the prompt, so that a server reads
only what is new.

Law 1: what is moved reaches the model verbatim, at the end of what the server reads, and each time as the
request has it. Every other byte of a body stays.
Law 2: nothing is remembered. What is sent depends on one request and the rules alone, so no line of an
earlier turn, another conversation or another client can be in it.
Law 3: only whole sentences and lines are moved, so that no word loses its context.
Law 4: a body that is not understood completely, or that asks for something unusual, stays as it is.
Law 5: the work on a body takes milliseconds: sizes and counts are bounded, expressions take linear time.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from operator import itemgetter
from typing import Any, TypeVar

import msgspec

from clairvoyant_cli.protocols.conversation import CACHE_MARK
from clairvoyant_cli.protocols.lenient_json import OBJECT, fitting
from clairvoyant_cli.protocols.printable import plural
from clairvoyant_cli.protocols.routes import Shape

MAX_BODY_BYTES = 2 * 1024 * 1024
MAX_SYSTEM_BYTES = 256 * 1024  # of a system text
MAX_MOVED_BYTES = 4000  # of all lines of a request
MAX_ENTRIES = 2048  # of a list or an object, such as messages

REMINDER = "<system-reminder>\n{}\n</system-reminder>"
"""How moved text stands in a message: coding agents put what is the system's in these tags."""

KNOWN = (
    # Home Assistant 2025.12 and 2026.2
    r"Current time is \d\d:\d\d:\d\d\. Today's date is \d{4}-\d\d-\d\d\.(?:\r?\n|\z)",
    r"You are in area .{1,200} should target this area\.(?:\r?\n|\z)",
    # AnythingLLM, September 2026
    r"The current date and time is [A-Z].{5,40} \d{1,2}:\d\d [AP]M\.",
)
"""What the system texts of programs have that changes, as regular expressions of RE2."""

T = TypeVar("T")
Span = tuple[int, int]  # where a value begins and ends in a body
Edit = tuple[int, int, bytes]  # what stands there instead


@dataclass(frozen=True, slots=True)
class Stabilised:
    """A body to send. `lasting` is the body without what was moved: the prompts of a conversation's turns
    begin with those of the turns before.
    """

    body: bytes
    lasting: bytes
    done: str


class NotPlainError(Exception):
    """A body is not understood completely."""


LAYOUTS = {
    Shape.MESSAGES: ("system", "messages"),
    Shape.CHAT: ("", "messages"),
    Shape.OLLAMA_CHAT: ("", "messages"),
    Shape.RESPONSES: ("instructions", "input"),
    Shape.OLLAMA_GENERATE: ("system", "prompt"),
}
"""Where a dialect has its system text, beside leading messages, and its messages or its prompt."""

SYSTEM_ROLES = ("system", "developer")
LAST_ROLES = ("user", "tool", "function", "function_call_output")  # of messages that a model answers
TEXT_TYPES = ("text", "input_text")
UNUSUAL = {"raw", "suffix", "context", "template", "previous_response_id", "conversation"} | {
    "continue_final_message"
}
"""Fields of requests whose prompt is more, or something else, than a system text and messages."""
NOTHING = (b"null", b"false", b'""', b"[]")


class Message(msgspec.Struct, gc=False):
    role: str = ""
    type: str = ""  # of an entry of Responses that has no role


class StablePrefix:
    """Moves what the rules name: those of known programs, and lines that match the operator's expression."""

    def __init__(self, own: str | None = None) -> None:
        re2 = import_module("re2")  # 4 MiB of memory, for those who use it
        options = re2.Options()
        options.log_errors = False
        options.never_capture = True  # or some expressions would take a hundred times as long
        lines = (f"^.*(?:{own}).*$",) if own else ()
        self._rules = [re2.compile(f"(?m){rule}", options) for rule in (*KNOWN, *lines)]

    def stabilised(self, body: bytes, shape: Shape) -> Stabilised | None:
        """Return a body as it should be sent; None if it stays as it is."""
        layout = LAYOUTS.get(shape)
        if layout is None or len(body) > MAX_BODY_BYTES:
            return None
        try:
            body.decode()
            return _Work(body, layout, self._rules).done(late=shape is Shape.MESSAGES)
        except (NotPlainError, UnicodeDecodeError):
            return None


class _Work:
    """The work on one body."""

    def __init__(self, body: bytes, layout: tuple[str, str], rules: Sequence[Any]) -> None:
        self._body, self._rules = body, rules
        self._system, self._messages = layout
        self._edits: list[Edit] = []
        self._moved: list[bytes] = []

    def done(self, *, late: bool) -> Stabilised | None:
        fields = _members(self._body, (0, len(self._body)))
        prompt = _given(fields.get(self._messages))
        if any(self._bytes(fields[name]) not in NOTHING for name in UNUSUAL & fields.keys()):
            raise NotPlainError
        alone = self._messages != "messages" and self._is_text(prompt)
        messages = [] if alone else list(_entries(self._body, prompt))
        roles = [self._role(message) for message in messages]
        leading = next((n for n, role in enumerate(roles) if role not in SYSTEM_ROLES), len(roles))
        system = fields.get(self._system)
        self._cut([*([] if system is None else [system]), *map(self._content, messages[:leading])])
        merged = self._merge_late(messages, roles, leading) if late else 0
        if not self._edits:
            return None
        lasting = self._edited()
        if self._moved:
            rest = reversed(list(zip(roles, messages, strict=True))[leading:])
            last = next((message for role, message in rest if role in LAST_ROLES), None)
            end = prompt if alone else self._content(_given(last))
            self._append(end, b"\n".join(self._moved).decode())
        counts = (len(self._moved), "line"), (merged, "system message")
        done = ", ".join(f"{plural(count, what)} moved" for count, what in counts if count)
        return Stabilised(self._edited(), lasting, done)

    # -- system text ----------------------------------------------------------------------------------------

    def _cut(self, contents: Iterable[Span]) -> None:
        """Cut what the rules name out of the texts of a system text."""
        for span in itertools.chain.from_iterable(map(self._texts, contents)):
            old = new = self._text(span).encode()
            if len(old) > MAX_SYSTEM_BYTES:
                raise NotPlainError
            for rule in self._rules:
                new = rule.sub(self._cut_out, new)
            if new != old:
                if not new.strip():
                    raise NotPlainError  # some servers refuse an empty text
                self._edits.append((*span, msgspec.json.encode(new.decode())))

    def _cut_out(self, found: Any) -> bytes:
        """Note what is moved; nothing stands there any more, but the end of a line that was not found."""
        if line := found[0].strip(b"\r\n"):
            self._moved.append(line)
            if sum(map(len, self._moved)) > MAX_MOVED_BYTES:
                raise NotPlainError
            return b"\r" if found[0].endswith(b"\r") else b""
        return bytes(found[0])

    def _texts(self, content: Span) -> Iterator[Span]:
        """Yield the texts of a content, which is one, or a list of parts that are texts."""
        if self._is_text(content):
            yield content
        elif self._bytes(content) != b"null":
            for part in _entries(self._body, content):
                fields = _members(self._body, part)
                if self._text(_given(fields.get("type"))) not in TEXT_TYPES:
                    raise NotPlainError
                yield _given(fields.get("text"))

    # -- messages -------------------------------------------------------------------------------------------

    def _merge_late(self, messages: Sequence[Span], roles: Sequence[str], first: int) -> int:
        """Put system messages that follow a user message into that one; return how many. Chat templates
        would put them before all messages, or refuse them.
        """
        merged = 0
        user: Span | None = None
        for n in range(first, len(messages)):
            if roles[n] not in SYSTEM_ROLES:
                user = messages[n] if roles[n] == "user" else None
            elif user is not None:
                content = self._content(messages[n])
                text = "\n".join(map(self._text, self._texts(content)))
                mark = CACHE_MARK.search(self._body, *content)
                self._append(self._content(user), text, mark[0].strip(b", \t\r\n") if mark else b"")
                self._edits.append((messages[n - 1][1], messages[n][1], b""))
                merged += 1
        return merged

    def _append(self, content: Span, text: str, mark: bytes = b"") -> None:
        reminder, end = REMINDER.format(text), content[1] - 1
        if self._is_text(content) and end > content[0] + 1:
            self._edits.append((end, end, msgspec.json.encode(f"\n\n{reminder}")[1:-1]))
        elif self._body[content[0]] == ord("[") and self._body[content[0] + 1 : end].strip():
            text_type = "input_text" if self._messages == "input" else "text"
            part = msgspec.json.encode({"type": text_type, "text": reminder})
            self._edits.append((end, end, b"," + part[:-1] + (b"," + mark if mark else b"") + b"}"))
        else:
            raise NotPlainError

    # -- reading and writing --------------------------------------------------------------------------------

    def _bytes(self, span: Span) -> bytes:
        return self._body[slice(*span)]

    def _is_text(self, span: Span) -> bool:
        return self._body[span[0]] == ord('"')

    def _text(self, span: Span) -> str:
        return _given(fitting(_TEXT, self._bytes(span)))

    def _role(self, message: Span) -> str:
        held = _given(fitting(_MESSAGE, self._bytes(message)))
        return held.role or held.type

    def _content(self, message: Span) -> Span:
        fields = _members(self._body, message)
        return _given(fields.get("content", fields.get("output")))

    def _edited(self) -> bytes:
        pieces, at = [], 0
        for start, end, text in sorted(self._edits, key=itemgetter(0)):
            pieces += [self._body[at:start], text]
            at = end
        return b"".join([*pieces, self._body[at:]])


_MESSAGE = msgspec.json.Decoder(Message)
_TEXT = msgspec.json.Decoder(str)
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_NAME = re.compile(rb'[ \t\r\n]*[,{][ \t\r\n]*("(?:[^"\\]|\\.)*+")[ \t\r\n]*:[ \t\r\n]*', re.DOTALL)
_COMMA = re.compile(rb"[ \t\r\n]*[,\[][ \t\r\n]*")


def _given(value: T | None) -> T:
    if value is None:
        raise NotPlainError
    return value


def _members(body: bytes, span: Span) -> dict[str, Span]:
    """Return where the members of an object stand; NotPlainError if it is none, or a name is repeated."""
    found: dict[str, Span] = {}
    at, end = span
    held = _given(fitting(OBJECT, body[at:end]))
    if len(held) > MAX_ENTRIES:
        raise NotPlainError
    for name, raw in held.items():
        begins = _given(_NAME.match(body, at, end))
        if fitting(_TEXT, begins[1]) != name:
            raise NotPlainError
        at = begins.end() + len(raw)
        found[name] = begins.end(), at
    if body[at:end].strip() not in (b"}", b"{}"):
        raise NotPlainError
    return found


def _entries(body: bytes, span: Span) -> Iterator[Span]:
    """Yield where the entries of a list stand; NotPlainError if it is none."""
    at, end = span
    held = _given(fitting(_LIST, body[at:end]))
    if len(held) > MAX_ENTRIES:
        raise NotPlainError
    for raw in held:
        start = _given(_COMMA.match(body, at, end)).end()
        at = start + len(raw)
        yield start, at
