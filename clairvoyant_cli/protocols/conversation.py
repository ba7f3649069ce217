"""Reads which conversation a request continues: the chain of its prompt, and the session that it claims.

The chain follows the order in which servers read a prompt: tools, system prompt, messages. Each of these
counts as it was sent, so tool calls, tool results and thinking do, too. Media count by number and size, and
are in the hashes: another picture is another prompt. Only lengths and hashes are kept, and hashes are keyed
for each run.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain, repeat, takewhile
from typing import NamedTuple

from msgspec import Raw

from clairvoyant_cli.http.heads import RequestHead
from clairvoyant_cli.protocols.lenient_json import (
    Object,
    entries,
    is_given,
    object_in,
    plain_value,
    text,
)
from clairvoyant_cli.protocols.media import Medium, Payloads
from clairvoyant_cli.protocols.request_bodies import medium_of
from clairvoyant_cli.scheduler.chain import MEDIUM_CHARACTERS, NO_CHAIN, NO_PARTS, Chain, Parts

PIECE_BYTES = 1024
FINE_BYTES = 256  # a piece in the first FINE_UNTIL bytes of a prompt
FINE_UNTIL = 16 * 1024
SLICE_BYTES = 256 * 1024  # hashed at a time: 1 ms; a short part takes as long as a piece
MAX_PARTS = 4096  # a prompt of more parts has a chain, but what changes in it is not told
SYSTEM_ROLE = re.compile(rb'.{0,99}?"role"\s*:\s*"(?:system|developer)"', re.DOTALL)
"""The beginning of a message of the system text: nearly all clients put the role first."""

CACHE_MARK = re.compile(rb'"cache_control"\s*:\s*\{[^{}]*\}\s*,\s*|,\s*"cache_control"\s*:\s*\{[^{}]*\}')
"""Anthropic's marks of what to cache. Claude Code moves them from turn to turn; no prompt contains them."""

MAY_HOLD_MEDIA = re.compile(
    rb'"(?:(?:input_|output_)?(?:image|audio|video|file|document)|computer_screenshot|multimodal_data)'
)
"""What a message or prompt contains that has media; many others contain it as well."""

MEDIA_LISTS = ("images", "image_data")  # beside a prompt; the second was llama.cpp's
HOLD_MEDIA = {"content": False, "output": False, "source": False, "images": True, "multimodal_data": True}
"""Fields that may have media in them, and whether all of their entries are."""

ENTRY, NAME = re.compile(rb"\s*[\[,]\s*"), re.compile(rb'\s*[{,]\s*"(?:[^"\\]|\\.)*"\s*:\s*', re.DOTALL)
COMMA_AFTER, COMMA_BEFORE = re.compile(rb"\s*,\s*"), re.compile(rb"\s*,\s*\Z")
LEVELS = 8  # of lists and objects that media may be in: a document in the result of a tool has 7

CLAIMS = frozenset(("prompt_cache_key", "metadata"))  # fields that may claim a session
OFFERS = {"tools", "functions"}  # fields with the tools that a model may call
USES_TOOLS = (
    b'"tool_calls"',
    b'"tool_use"',
    b'"tool_result"',
    b'"function_call"',
    b'"function_call_output"',
    b'"role":"tool"',
    b'"role": "tool"',
)
"""What a body contains whose messages have tool calls or results. Inside a text the quotes are escaped."""

THINKS = (b'"thinking"', b'"reasoning', b"</think>")
"""What a body contains whose messages may have thinking, which chat templates leave out of later prompts."""

SESSION_HEADERS = (
    b"x-session-id",
    b"thread-id",  # before the next one: a subagent of Codex has its parent's session id and its own thread
    b"session-id",
    b"agent-session-id",
    b"x-affinity",
    b"x-session-affinity",
    b"x-claude-code-session-id",
)
AGENT_HEADER = b"x-claude-code-agent-id"  # tells the subagents of a session of Claude Code
PARENT_AGENT_HEADER = b"x-claude-code-parent-agent-id"  # of a subagent's subagent
PARENT_HEADERS = (b"x-parent-session-id", b"x-codex-parent-thread-id")

USER_ID_SESSION = re.compile(r"_session_([0-9a-f-]{8,})")

KEY = bytearray(os.urandom(16))
"""Of the hashes. A daemon takes over that of the one whose place it takes."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a request says about its conversation."""

    chain: Chain = NO_CHAIN
    media: Mapping[Medium, int] = field(default_factory=dict)  # how many it has of each
    claimed: str = ""  # the session id that it claims, hashed
    parent: str = ""  # that of the session's parent
    agentic: bool = False  # it offers tools or has used them
    thinks: bool = False  # its messages may have thinking


NO_CONVERSATION = Conversation()


def claims_of(head: RequestHead, conversation: Conversation) -> tuple[str, str]:
    """Return the session and the parent session that a request claims, in a header or else in its body."""
    claimed = next(filter(None, map(head.get, SESSION_HEADERS)), b"")
    agent = head.get(AGENT_HEADER) or b""
    parent = next(filter(None, map(head.get, PARENT_HEADERS)), b"")
    if claimed and agent:
        parent = claimed + (head.get(PARENT_AGENT_HEADER) or b"")
    return (hashed(claimed + agent) if claimed else conversation.claimed), hashed(parent) if parent else ""


def hashed(claim: bytes) -> str:
    return blake2b(claim, digest_size=8, key=KEY).hexdigest() if claim else ""


class _Cut(NamedTuple):
    """A slice of a part of a prompt, which may end the part: text, or a medium."""

    data: bytes
    ends: bool = False
    left_out: int = 0  # how much longer the text was
    medium: Medium | None = None


PART_ENDS = _Cut(b"", ends=True)


class ConversationReader:
    """Reads what a server does of a body whose `payloads` were replaced, in its order: tools, system text,
    messages, and the rest. What is not understood counts as absent.
    """

    def __init__(self, held: Object, model: str, payloads: Payloads) -> None:
        self._held = held
        listed: list[Raw] = []
        ends: list[int] = []
        for names in (
            ("tools", "functions"),
            ("system", "instructions", "system_prompt"),
            ("messages", "input"),
        ):
            for name in names:
                if name in held and is_given(raw := held[name]):
                    parts = entries(raw)
                    listed += [raw] if parts is None else parts
            ends.append(len(listed))
        self._tools, first_message, _ = ends
        leading = takewhile(SYSTEM_ROLE.match, listed[first_message:])
        self._systems = first_message - self._tools + len(list(leading))
        for name in ("input_extra", "input_prefix", "input_suffix", *MEDIA_LISTS, "prompt", "suffix"):
            if name in held and is_given(raw := held[name]):
                # A message has such a list as well.
                listed.append(Raw(b'{"images":%b}' % raw) if name in MEDIA_LISTS else raw)
        self._cuts = chain.from_iterable(map(_cuts, listed, repeat(payloads)))
        self._model = blake2b(model.encode("utf-8", "surrogatepass"), digest_size=8, key=KEY)
        self._part = self._model.copy()
        self._before = 0  # what stands for all parts before this one
        self._parts: list[int] = []
        self._ends: list[int] = []
        self._hashes: list[int] = []
        self._characters: list[int] = []
        self._length = 0
        self.media = Counter[Medium]()

    def read_slice(self) -> bool:
        """Read about `SLICE_BYTES`; return whether there is more."""
        size = 0
        for data, ends, left_out, medium in self._cuts:
            at = 0
            while at < len(data):
                fine = FINE_BYTES if self._length < FINE_UNTIL else PIECE_BYTES
                piece = data[at:] if medium else data[at : at + fine]
                at += len(piece)
                self._part.update(piece)
                self._length += MEDIUM_CHARACTERS if medium else len(piece)
                self._length += left_out if at == len(data) else 0
                # Of numbers only: the hashes of bytes differ from process to process.
                self._hashes.append(hash((self._before, int.from_bytes(self._part.digest()))))
                self._characters.append(self._length)
            if medium:
                self.media[medium] += 1
            if ends:
                self._parts.append(int.from_bytes(self._part.digest()))
                self._before = hash((self._before, self._parts[-1]))
                self._ends.append(self._length)
                self._part = self._model.copy()
            size += max(len(data), PIECE_BYTES)
            if size >= SLICE_BYTES:
                return True
        return False

    def conversation(self, body: bytes) -> Conversation:
        """Return what was read of a body."""
        few, held = len(self._parts) <= MAX_PARTS, self._held
        offered = OFFERS & held.keys()
        parts = Parts(tuple(self._parts), tuple(self._ends), self._tools, self._systems) if few else NO_PARTS
        return Conversation(
            Chain(tuple(self._hashes), tuple(self._characters), parts, sum(self.media.values())),
            self.media,
            claimed="" if CLAIMS.isdisjoint(held) else _claimed(held),
            agentic=bool(offered and any(is_given(held[name]) for name in offered))
            or any(map(body.__contains__, USES_TOOLS)),
            thinks=any(map(body.__contains__, THINKS)),
        )


def _cuts(part: Raw, payloads: Payloads) -> Iterable[_Cut]:
    """Return a part of a prompt: its text, without marks, and its media in between."""
    whole = bytes(part)
    if MAY_HOLD_MEDIA.search(whole) is not None:
        return _cuts_at_media(whole, part, payloads)
    return [*_texts(whole, payloads), PART_ENDS]


def _cuts_at_media(whole: bytes, part: Raw, payloads: Payloads) -> Iterator[_Cut]:
    at = 0
    for begin, end, kind in _media(whole, part, 0):
        if not kind:
            yield _Cut(b"")
            continue
        if comma := COMMA_AFTER.match(whole, end) or COMMA_BEFORE.search(whole, max(at, begin - 8), begin):
            begin, end = min(begin, comma.start()), max(end, comma.end())
        yield from _texts(whole[at:begin], payloads)
        data = CACHE_MARK.sub(b"", whole[begin:end]).strip(b", \t\r\n")
        yield _Cut(data, medium=Medium(kind, payloads.length_of(data).bit_length() // 2))
        at = end
    yield from _texts(whole[at:], payloads)
    yield PART_ENDS


def _texts(text: bytes, payloads: Payloads) -> list[_Cut]:
    if b'"cache_control"' in text:
        text = CACHE_MARK.sub(b"", text)
    cuts = []
    for at in range(0, len(text), SLICE_BYTES):
        cut = text[at : at + SLICE_BYTES]
        cuts.append(_Cut(cut, left_out=payloads.length_of(cut) - len(cut) if payloads.left_out else 0))
    return cuts


def _media(whole: bytes, holder: Raw, begin: int, levels: int = LEVELS) -> Iterator[tuple[int, int, str]]:
    """Yield where the media of a message are, of one of its parts, or of a list of parts, which begins at
    `begin`, and their kinds; without a kind, what is none. Media whose place is not certain, because a name
    is repeated, are none.
    """
    if not levels:
        return
    for at, entry in _entries(whole, holder, begin):
        yield at, at, ""
        yield from _media(whole, entry, at, levels - 1)
    part = object_in(holder)
    if kind := medium_of(
        part | {name: plain_value(part[name]) for name in ("type", "source") if name in part}
    ):
        yield begin, begin + len(holder), kind
        return
    for name, value in part.items() if part.keys() & HOLD_MEDIA.keys() else ():
        found = NAME.match(whole, begin)
        begin = len(whole) if found is None else found.end()
        if name in HOLD_MEDIA and whole.startswith(bytes(value), begin):
            if HOLD_MEDIA[name]:
                yield from ((at, at + len(entry), "image") for at, entry in _entries(whole, value, begin))
            else:
                yield from _media(whole, value, begin, levels - 1)
        begin += len(value)


def _entries(whole: bytes, listed: Raw, begin: int) -> Iterator[tuple[int, Raw]]:
    for entry in entries(listed) or ():
        found = ENTRY.match(whole, begin)
        begin = len(whole) if found is None else found.end()
        yield begin, entry
        begin += len(entry)


def _claimed(held: Object) -> str:
    """Return the session that a body claims: of OpenAI's `prompt_cache_key` or Anthropic's `metadata`."""
    key = text(held["prompt_cache_key"])
    user = "" if key else text(object_in(held["metadata"])["user_id"])
    if user.startswith("{"):
        key = text(object_in(Raw(user.encode()))["session_id"])
    elif found := USER_ID_SESSION.search(user):
        key = found[1]
    return hashed(key.encode("utf-8", "surrogatepass"))
