"""Reads which conversation a request continues: the chain of its prompt, and the session that it claims.

The chain follows the order in which servers read a prompt: tools, system prompt, messages. Each of these
counts as it was sent, so tool calls, tool results, thinking and images do, too. Only lengths and hashes are
kept, and hashes are keyed for each run.
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import takewhile

from msgspec import Raw

from clairvoyant_cli.http.heads import RequestHead
from clairvoyant_cli.http.limits import READING
from clairvoyant_cli.http.request import Piece
from clairvoyant_cli.protocols.lenient_json import entries, fitting, is_given, text
from clairvoyant_cli.protocols.request_bodies import BODY, MAX_BODY_BYTES, RequestBody, nested
from clairvoyant_cli.scheduler.chain import NO_CHAIN, NO_PARTS, Chain, Parts

PIECE_BYTES = 1024
FINE_BYTES = 256  # a piece in the first FINE_UNTIL bytes of a prompt
FINE_UNTIL = 16 * 1024
SLICE_BYTES = 256 * 1024  # hashed at a time: 1 ms; a short part takes as long as a piece
MAX_PARTS = 4096  # a prompt of more parts has a chain, but what changes in it is not told
SYSTEM_ROLE = re.compile(rb'.{0,99}?"role"\s*:\s*"(?:system|developer)"', re.DOTALL)
"""The beginning of a message of the system text: nearly all clients put the role first."""

CACHE_MARK = re.compile(rb'"cache_control"\s*:\s*\{[^{}]*\}\s*,\s*|,\s*"cache_control"\s*:\s*\{[^{}]*\}')
"""Anthropic's marks of what to cache. Claude Code moves them from turn to turn; no prompt contains them."""

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

_KEY = os.urandom(16)


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a request says about its conversation."""

    chain: Chain = NO_CHAIN
    claimed: str = ""  # the session id that it claims, hashed
    parent: str = ""  # that of the session's parent
    agentic: bool = False  # it offers tools or has used them
    thinks: bool = False  # its messages may have thinking


NO_CONVERSATION = Conversation()


async def read_conversation(pieces: Sequence[Piece], model: str) -> Conversation:
    """Read a whole body, in pieces as it came. Anything that is not understood counts as absent."""
    # A longer one is more than any context.
    if sum(map(len, pieces)) > MAX_BODY_BYTES:
        return NO_CONVERSATION
    await READING.next()
    with READING:
        body = b"".join(pieces)
        held = fitting(BODY, body)
        if held is None:
            return NO_CONVERSATION
        parts, tools, systems = _parts(held)
        agentic = is_given(held.tools) or is_given(held.functions) or any(map(body.__contains__, USES_TOOLS))
        thinks = any(map(body.__contains__, THINKS))
    chain = _Chaining(model)
    for cuts in _slices(parts):
        await READING.next()
        with READING:
            chain.add(cuts)
    return Conversation(chain.chain(tools, systems), _claimed(held), "", agentic, thinks)


def claims_of(head: RequestHead, conversation: Conversation) -> tuple[str, str]:
    """Return the session and the parent session that a request claims, in a header or else in its body."""
    claimed = next(filter(None, map(head.get, SESSION_HEADERS)), b"")
    agent = head.get(AGENT_HEADER) or b""
    parent = next(filter(None, map(head.get, PARENT_HEADERS)), b"")
    if claimed and agent:
        parent = claimed + (head.get(PARENT_AGENT_HEADER) or b"")
    return (hashed(claimed + agent) if claimed else conversation.claimed), hashed(parent)


def hashed(claim: bytes) -> str:
    return blake2b(claim, digest_size=8, key=_KEY).hexdigest() if claim else ""


class _Chaining:
    def __init__(self, model: str) -> None:
        self._model = blake2b(model.encode("utf-8", "surrogatepass"), digest_size=8, key=_KEY)
        self._part = self._model.copy()
        self._before = 0  # what stands for all parts before this one
        self._parts: list[int] = []
        self._ends: list[int] = []
        self._hashes: list[int] = []
        self._characters: list[int] = []
        self._length = 0

    def add(self, cuts: Sequence[tuple[bytes, bool]]) -> None:
        for cut, ends in cuts:
            at = 0
            while at < len(cut):
                piece = cut[at : at + (FINE_BYTES if self._length < FINE_UNTIL else PIECE_BYTES)]
                at += len(piece)
                self._part.update(piece)
                self._length += len(piece)
                self._hashes.append(hash((self._before, self._part.digest())))
                self._characters.append(self._length)
            if ends:
                self._parts.append(int.from_bytes(self._part.digest()))
                self._before = hash((self._before, self._parts[-1]))
                self._ends.append(self._length)
                self._part = self._model.copy()

    def chain(self, tools: int, systems: int) -> Chain:
        few = len(self._parts) <= MAX_PARTS
        parts = Parts(tuple(self._parts), tuple(self._ends), tools, systems) if few else NO_PARTS
        return Chain(tuple(self._hashes), tuple(self._characters), parts)


def _parts(held: RequestBody) -> tuple[list[Raw], int, int]:
    """Return what a server reads, in its order, and how many of these parts are tools and system text."""
    tools = _each(held.tools, held.functions)
    system = _each(held.system, held.instructions, held.system_prompt)
    messages = _each(held.messages, held.input)
    systems = len(system) + len(list(takewhile(SYSTEM_ROLE.match, messages)))
    rest = (held.input_extra, held.input_prefix, held.input_suffix, held.images, held.prompt, held.suffix)
    return tools + system + messages + [part for part in rest if is_given(part)], len(tools), systems


def _each(*fields: Raw) -> list[Raw]:
    parts: list[Raw] = []
    for field in fields:
        listed = entries(field)
        parts += [field] if listed is None and is_given(field) else listed or []
    return parts


def _slices(parts: Sequence[Raw]) -> Iterator[list[tuple[bytes, bool]]]:
    """Yield the parts without marks, about `SLICE_BYTES` at a time: cuts, and whether each ends a part."""
    taken: list[tuple[bytes, bool]] = []
    size = 0
    for part in parts:
        data = bytes(part)
        if b'"cache_control"' in data:
            data = CACHE_MARK.sub(b"", data)
        for at in range(0, len(data), SLICE_BYTES):
            taken.append((data[at : at + SLICE_BYTES], at + SLICE_BYTES >= len(data)))
            size += max(len(taken[-1][0]), PIECE_BYTES)
            if size >= SLICE_BYTES:
                yield taken
                taken, size = [], 0
    yield taken


def _claimed(held: RequestBody) -> str:
    """Return the session that a body claims: of OpenAI's `prompt_cache_key` or Anthropic's `metadata`."""
    key = text(held.prompt_cache_key)
    user = "" if key else text(nested(held.metadata).user_id)
    if user.startswith("{"):
        key = text(nested(Raw(user.encode())).session_id)
    elif found := USER_ID_SESSION.search(user):
        key = found[1]
    return hashed(key.encode("utf-8", "surrogatepass"))
