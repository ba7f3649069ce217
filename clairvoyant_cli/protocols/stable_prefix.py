"""Keeps the beginning of prompts the same from turn to turn: changes the few lines that change.

Rule 1: only what a rule names is changed; every other byte of a body stays. A body that is not understood
completely stays as it is.
Rule 2: what was sent once is sent again: a user message keeps the lines that were moved into it, or a
server's cache would end there.
Rule 3: what is remembered of one client is used for no other.
"""

import re
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import msgspec

from clairvoyant_cli.protocols.conversation import CACHE_MARK
from clairvoyant_cli.protocols.lenient_json import OBJECT, fitting
from clairvoyant_cli.protocols.printable import plural
from clairvoyant_cli.protocols.request_bodies import without_pictures
from clairvoyant_cli.protocols.routes import Shape

MAX_BODY_BYTES = 2 * 1024 * 1024  # a longer one would take more than some milliseconds
BYTES_A_TOKEN = 3  # at least, of a whole body: JSON is longer than its text
MAX_ENTRIES = 4096  # of a list or an object, such as messages
MAX_REMEMBERED = 5000  # lines and orders of all clients
MAX_MOVED_CHARS = 4000  # of a request
MAX_LINES = 2000  # a longer text is not watched for lines that change
MAX_LINE_CHARS = 1000  # a longer one is not moved for having changed
CHANGES = 3  # as often a line must have changed
MAX_CHANGING = 3  # if more lines differ, it is another text

MARKED = "\n\n<system-reminder>\n{}\n</system-reminder>"
"""How moved text stands in a user message: coding agents have what is the system's in these tags."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A part of a system text that changes: moved, or else held at its first value."""

    pattern: re.Pattern[str]
    moves: bool
    program: str = ""  # that sends it; "" for a rule of the operator's
    seen_in: str = ""  # its versions


def rule(pattern: str, *, moves: bool, program: str = "", seen_in: str = "") -> Rule:
    return Rule(re.compile(pattern, re.MULTILINE), moves, program, seen_in)


KNOWN = (
    rule(
        r"\Ax-anthropic-billing-header: [^\n]*",
        moves=False,
        program="Claude Code",
        seen_in="2.1.37 to 2.1.332; with cch= up to 2.1.177",
    ),
    rule(
        r"Current time is \d\d:\d\d:\d\d\. Today's date is \d{4}-\d\d-\d\d\.(?:\n|\Z)",
        moves=True,
        program="Home Assistant",
        seen_in="2025.12, 2026.2",
    ),
    rule(
        r"You are in area [^\n]{1,200} should target this area\.(?:\n|\Z)",
        moves=True,
        program="Home Assistant",
        seen_in="2025.12, 2026.2",
    ),
    rule(
        r"The current date and time is [A-Z][^\n]{5,40} \d{1,2}:\d\d [AP]M\.",
        moves=True,
        program="AnythingLLM",
        seen_in="September 2026",
    ),
)


Span = tuple[int, int]  # where a value begins and ends in a body
Edit = tuple[int, int, bytes]  # what stands there instead
Message = tuple[int, int, str]  # where it begins and ends, and its role


@dataclass(frozen=True, slots=True)
class Stabilised:
    """A body that was changed, and what was done to it."""

    body: bytes
    done: str


class NotPlainError(Exception):
    """A body is not understood completely."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a dialect has its system text and its messages, and the type of a text in a list of parts."""

    system: str
    messages: str
    text_type: str = "text"


LAYOUTS = {
    Shape.MESSAGES: Layout("system", "messages"),
    Shape.CHAT: Layout("", "messages"),
    Shape.OLLAMA_CHAT: Layout("", "messages"),
    Shape.RESPONSES: Layout("instructions", "input", "input_text"),
    Shape.OLLAMA_GENERATE: Layout("system", "prompt"),
}
SYSTEM_ROLES = ("system", "developer")
TEXT_TYPES = ("text", "input_text")


class StablePrefix:
    """What is changed in prompts, and what is remembered of them. `learns`: also lines seen to change."""

    def __init__(self, rules: Sequence[Rule], *, learns: bool = False) -> None:
        self.rules = rules
        self.learns = learns
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()

    def stabilised(
        self, body: bytes, shape: Shape, client: str, context: int | None = None
    ) -> Stabilised | None:
        """Return a body as it should be sent; None if it stays as it is. It does not grow where it might
        exceed the `context`, in tokens.
        """
        layout = LAYOUTS.get(shape)
        if layout is None or len(body) > MAX_BODY_BYTES:
            return None
        try:
            work = _Work(self, body, layout, client)
            work.do(late=shape is Shape.MESSAGES)
        except NotPlainError:
            return None
        if not work.edits:
            return None
        new = _applied(body, work.edits)
        most = inf if context is None else BYTES_A_TOKEN * context
        if len(body) < len(new) > most and len(without_pictures(new)) > most:
            return None
        return Stabilised(new, work.done)

    def recall(self, key: Hashable) -> Any:
        """Return what was kept under a key; None if nothing is."""
        if key in self._kept:
            self._kept.move_to_end(key)
        return self._kept.get(key)

    def keep(self, key: Hashable, value: Any) -> None:
        self._kept[key] = value
        if len(self._kept) > MAX_REMEMBERED:
            self._kept.popitem(last=False)


class _Work:
    """The work on one body."""

    def __init__(self, memory: StablePrefix, body: bytes, layout: Layout, client: str) -> None:
        self.memory, self.body, self.layout, self.client = memory, body, layout, client
        self.edits: list[Edit] = []
        self._fields = _members(body, (0, len(body)))
        self._moved: list[str] = []
        self._has_marks = b'"cache_control"' in body
        self._marks: dict[int, bytes] = {}  # of `cache_control`, in what is added to a message
        self._held = self._late = 0
        self._sorted = False

    @property
    def done(self) -> str:
        counted = (
            (len(self._moved), "line", "moved"),
            (self._held, "line", "held"),
            (self._late, "system message", "moved"),
        )
        parts = [f"{plural(count, what)} {how}" for count, what, how in counted if count]
        return ", ".join([*parts, *["tools sorted"] * self._sorted])

    def do(self, *, late: bool) -> None:
        if "raw" in self._fields and self.body[slice(*self._fields["raw"])] == b"true":
            return
        prompt = self._fields.get(self.layout.messages)
        if prompt is None:
            return
        messages = iter(()) if self._is_text(prompt) else self._messages(prompt)
        leading, first = [], None
        for first in messages:
            if first[2] not in SYSTEM_ROLES:
                break
            leading.append(first)
        else:
            first = None
        self._change_system_texts(list(self._system_texts(leading)), first)
        self._sort_tools()
        if sum(map(len, self._moved)) > MAX_MOVED_CHARS:
            raise NotPlainError
        if self._moved or late:
            rest = [] if first is None else [first, *messages]
            additions = self._late_system_messages(rest) if late else {}
            self._add_to_messages(prompt, rest, additions)

    # -- system text ----------------------------------------------------------------------------------------

    def _system_texts(self, leading: Iterable[Message]) -> Iterator[Span]:
        system = self._fields.get(self.layout.system)
        if system is not None:
            yield from self._texts(system)
        for message in leading:
            yield from self._texts(self._content(message))

    def _texts(self, content: Span) -> Iterator[Span]:
        """Yield the texts of a content, which is one, or a list of parts that are texts."""
        if self._is_text(content):
            yield content
        elif self.body[content[0] : content[1]] != b"null":
            for part in _entries(self.body, content):
                fields = _members(self.body, part)
                if "text" not in fields or self._text(fields.get("type")) not in TEXT_TYPES:
                    raise NotPlainError
                yield fields["text"]

    def _change_system_texts(self, spans: Sequence[Span], first: Message | None) -> None:
        texts = [self._text(each) for each in spans]
        changing = self._changing_lines(texts) if self.memory.learns else frozenset()
        for span, text in zip(spans, texts, strict=True):
            new = text
            for each in self.memory.rules:
                new = self._by_rule(each, new, first)
            if changing:
                lines = new.split("\n")
                self._moved += filter(changing.__contains__, lines)
                new = "\n".join(line for line in lines if line not in changing)
            if not new.strip() and text.strip():
                raise NotPlainError  # some servers refuse an empty text
            if new != text:
                self.edits.append((*span, msgspec.json.encode(new)))

    def _by_rule(self, rule: Rule, text: str, first: Message | None) -> str:
        if rule.moves:
            found = [each[0] for each in rule.pattern.finditer(text) if each[0]]
            self._moved += (each.strip("\n") for each in found)
            return rule.pattern.sub("", text) if found else text
        # Another session may need another value, unless it is known to mean nothing.
        session = 0 if rule.program or first is None else self._hash_of(*first[:2])

        def first_value(found: re.Match[str]) -> str:
            key = self.client, rule.pattern.pattern, session
            value: str | None = self.memory.recall(key)
            if value is None:
                value = found[0]
                self.memory.keep(key, value)
            self._held += value != found[0]
            return value

        return rule.pattern.sub(first_value, text)

    def _changing_lines(self, texts: Sequence[str]) -> frozenset[str]:
        """Return the lines that have changed often enough in a client's texts of so many lines."""
        lines = "\n".join(texts).split("\n")
        if len(lines) > MAX_LINES:
            return frozenset()
        key = self.client, len(lines)
        hashes = [hash(line) for line in lines]
        before: tuple[list[int], dict[int, int]] = self.memory.recall(key) or (hashes, {})
        differing = [n for n, pair in enumerate(zip(before[0], hashes, strict=True)) if pair[0] != pair[1]]
        changes = before[1]
        if len(differing) > MAX_CHANGING or 2 * len(differing) > len(lines):
            changes, differing = {}, []
        for n in differing:
            changes[n] = changes.get(n, 0) + 1
        self.memory.keep(key, (hashes, changes))
        often = (lines[n] for n, times in changes.items() if times >= CHANGES)
        return frozenset(line for line in often if line.strip() and len(line) <= MAX_LINE_CHARS)

    # -- tools and messages ---------------------------------------------------------------------------------

    def _sort_tools(self) -> None:
        if (tools := self._fields.get("tools")) is None or self.body[tools[0]] != ord("["):
            return
        given = [self.body[slice(*each)] for each in _entries(self.body, tools)]
        hashes = [hash(CACHE_MARK.sub(b"", each) if self._has_marks else each) for each in given]
        key = self.client, "tools", frozenset(hashes)
        order: list[int] | None = self.memory.recall(key)
        if order is None:
            self.memory.keep(key, hashes)
        elif order != hashes and sorted(order) == sorted(hashes):
            by_hash = dict(zip(hashes, given, strict=True))
            self.edits.append((*tools, b"[" + b",".join(by_hash[each] for each in order) + b"]"))
            self._sorted = True

    def _late_system_messages(self, rest: Sequence[Message]) -> dict[int, list[str]]:
        """Take system messages out that follow a user message; return their texts by its number."""
        additions: dict[int, list[str]] = {}
        user = -1
        for n, message in enumerate(rest):
            if message[2] not in SYSTEM_ROLES:
                user = n if message[2] == "user" else -1
            elif user >= 0:
                content = self._content(message)
                additions.setdefault(user, []).extend(map(self._text, self._texts(content)))
                found = CACHE_MARK.search(self.body, *content) if self._has_marks else None
                self._marks[user] = b"," + found[0].strip(b", \t\r\n") if found else b""
                self.edits.append((rest[n - 1][1], message[1], b""))
                self._late += 1
        return additions

    def _add_to_messages(
        self, prompt: Span, rest: Sequence[Message], additions: dict[int, list[str]]
    ) -> None:
        """Add to user messages what was added before, and to the last one what was moved now."""
        if not rest:
            if not self._is_text(prompt):
                raise NotPlainError
            self._append(prompt, self._moved)
            return
        users = [n for n, each in enumerate(rest) if each[2] == "user"]
        if self._moved and not users:
            raise NotPlainError
        chained, latest, at = 0, "", rest[0][0]
        for n in users:
            lines, end = list(additions.get(n, ())), rest[n][1]
            if self._moved:
                chained, at = self._hash_of(at, end, chained), end
                key = self.client, "line", chained
                line: str | None = self.memory.recall(key)
                if n == users[-1] and line is None:
                    line = "\n".join(self._moved)
                    line = "" if line == latest else line
                    self.memory.keep(key, line)
                latest = line or latest
                lines += [line] if line else []
            if lines:
                self._append(self._content(rest[n]), lines, self._marks.get(n, b""))

    def _append(self, content: Span, lines: Sequence[str], mark: bytes = b"") -> None:
        text = MARKED.format("\n".join(lines))
        end = content[1] - 1
        if self._is_text(content):
            self.edits.append((end, end, msgspec.json.encode(text)[1:-1]))
        elif self.body[content[0]] == ord("["):
            part = msgspec.json.encode({"type": self.layout.text_type, "text": text.lstrip()})
            comma = b"," if self.body[content[0] + 1 : end].strip() else b""
            self.edits.append((end, end, comma + part[:-1] + mark + b"}"))
        else:
            raise NotPlainError

    # -- reading --------------------------------------------------------------------------------------------

    def _messages(self, listed: Span) -> Iterator[Message]:
        for start, end in _entries(self.body, listed):
            begins = _ROLE_FIRST.match(self.body, start)
            if begins is not None:
                role = begins[1].decode()
            elif (held := fitting(_ROLE, self.body[start:end])) is not None:
                role = held.role
            else:
                raise NotPlainError
            yield start, end, role

    def _content(self, message: Message) -> Span:
        start, end, _ = message
        if (found := _PLAIN.match(self.body, start, end)) and found.end() == end:
            return found.span(1)
        try:
            return _members(self.body, (start, end))["content"]
        except KeyError:
            raise NotPlainError from None

    def _hash_of(self, start: int, end: int, before: int = 0) -> int:
        data = self.body[start:end]
        return hash((before, CACHE_MARK.sub(b"", data) if self._has_marks else data))

    def _is_text(self, span: Span) -> bool:
        return self.body[span[0]] == ord('"')

    def _text(self, span: Span | None) -> str:
        value = fitting(_TEXT, self.body[slice(*span)]) if span is not None and self._is_text(span) else None
        if value is None:
            raise NotPlainError
        return value


class _Role(msgspec.Struct, gc=False):
    role: str = ""


_PLAIN = re.compile(rb'\{"role": ?"[a-z]+", ?"content": ?("(?:[^"\\]|\\.)*+")\}', re.DOTALL)
_ROLE_FIRST = re.compile(rb'\{"role": ?"([a-z]+)"')
_ROLE = msgspec.json.Decoder(_Role)
_TEXT = msgspec.json.Decoder(str)
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_NAME = re.compile(rb'[ \t\r\n]*[,{][ \t\r\n]*("(?:[^"\\]|\\.)*+")[ \t\r\n]*:[ \t\r\n]*', re.DOTALL)
_COMMA = re.compile(rb"[ \t\r\n]*[,\[][ \t\r\n]*")


def _members(body: bytes, span: Span) -> dict[str, Span]:
    """Return where the members of an object stand; NotPlainError if it is none, or a name is repeated."""
    held = fitting(OBJECT, memoryview(body)[slice(*span)])
    if held is None or len(held) > MAX_ENTRIES:
        raise NotPlainError
    found: dict[str, Span] = {}
    at, end = span
    for name, raw in held.items():
        begins = _NAME.match(body, at, end)
        if begins is None or fitting(_TEXT, begins[1]) != name:
            raise NotPlainError
        at = begins.end() + len(raw)
        found[name] = begins.end(), at
    if body[at:end].strip() not in (b"}", b"{}"):
        raise NotPlainError
    return found


def _entries(body: bytes, span: Span) -> Iterator[Span]:
    """Yield where the entries of a list stand; NotPlainError if it is none."""
    held = fitting(_LIST, memoryview(body)[slice(*span)])
    if held is None or len(held) > MAX_ENTRIES:
        raise NotPlainError
    at, end = span
    for raw in held:
        begins = _COMMA.match(body, at, end)
        if begins is None:
            raise NotPlainError
        start = begins.end()
        at = start + len(raw)
        yield start, at


def _applied(body: bytes, edits: list[Edit]) -> bytes:
    parts, at = [], 0
    for start, end, text in sorted(edits):
        parts += [body[at:start], text]
        at = end
    return b"".join([*parts, body[at:]])
