"""The chain of a prompt and the session that a request claims, in every dialect."""

import json
from typing import Any

import pytest
from msgspec import Raw

from clairvoyant_cli.http.fields import Fields
from clairvoyant_cli.http.heads import RequestHead
from clairvoyant_cli.protocols.conversation import (
    FINE_BYTES,
    FINE_UNTIL,
    MAX_PARTS,
    PIECE_BYTES,
    SLICE_BYTES,
    Conversation,
    ConversationReader,
    claims_of,
    hashed,
)
from clairvoyant_cli.protocols.lenient_json import Object, object_of
from clairvoyant_cli.protocols.media import Payloads
from clairvoyant_cli.scheduler.chain import Chain

TOOLS = [{"type": "function", "function": {"name": "look"}}]
ASKED = {"role": "user", "content": "where is it?"}
CALL = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "look", "arguments": "{}"}}]}
RESULT = {"role": "tool", "tool_call_id": "1", "content": "here"}


def read(body: Any, model: str = "m") -> Conversation:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    payloads = Payloads()
    text = payloads.feed(raw) + payloads.end()
    reader = ConversationReader(object_of(text) or Object(), model, payloads)
    while reader.read_slice():
        pass
    return reader.conversation(text)


def chat(*messages: Any, **more: Any) -> Chain:
    return read({"model": "m", "messages": messages, **more}).chain


def begins(longer: Chain, shorter: Chain) -> bool:
    count = len(shorter.hashes)
    return 0 < count < len(longer.hashes) and longer.hashes[:count] == shorter.hashes


def shared(one: Chain, other: Chain) -> int:
    return sum(a == b for a, b in zip(one.hashes, other.hashes, strict=False))


def test_a_next_turn_begins_with_the_turn_before() -> None:
    first = chat(ASKED, tools=TOOLS)
    assert begins(chat(ASKED, CALL, RESULT, tools=TOOLS), first)
    assert shared(chat(ASKED, tools=[]), first) == 0
    assert shared(read({"messages": [ASKED], "tools": TOOLS}, "another").chain, first) == 0


def test_tool_calls_and_results_count() -> None:
    other = {**CALL, "tool_calls": [{"id": "1", "function": {"name": "look", "arguments": '{"x": 1}'}}]}
    assert shared(chat(ASKED, CALL, RESULT), chat(ASKED, other, RESULT)) == 1
    assert shared(chat(ASKED, CALL, RESULT), chat(ASKED, CALL, {**RESULT, "content": "there"})) == 2


def test_messages_do_not_run_together() -> None:
    one, two = {"role": "user", "content": "a" * 1000}, {"role": "user", "content": "b"}
    assert begins(chat(one, two), chat(one))


def test_a_longer_prompt_shares_its_pieces_with_a_shorter_message_before() -> None:
    long = {"role": "system", "content": "x" * 3000}
    changed = {"role": "system", "content": "x" * 2500 + "y" * 500}
    assert shared(chat(long, ASKED), chat(changed, ASKED)) == 2500 // FINE_BYTES


def test_any_number_of_messages_is_read() -> None:
    messages = [{"role": "user", "content": f"message {n} {'x' * 400}"} for n in range(2000)]
    before, after = chat(*messages[:-1]), chat(*messages)
    assert len(after.hashes) < 2100
    assert begins(after, before)
    assert after.length > 800_000


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"system": "s", "messages": [ASKED]}, {"system": "s", "messages": [ASKED, RESULT]}),
        ({"instructions": "s", "input": [ASKED]}, {"instructions": "s", "input": [ASKED, RESULT]}),
        ({"system_prompt": "s", "input": [ASKED]}, {"system_prompt": "s", "input": [ASKED, RESULT]}),
        ({"messages": [ASKED], "stream": True}, {"stream": False, "options": {}, "messages": [ASKED, CALL]}),
    ],
)
def test_every_dialect_has_its_order(first: Any, second: Any) -> None:
    assert begins(read(second).chain, read(first).chain)


@pytest.mark.parametrize("field", ["suffix", "input_suffix", "input_extra", "images"])
def test_what_else_is_read_counts(field: str) -> None:
    one, other = (read({"prompt": "a", field: [text]}).chain for text in "bc")
    assert shared(one, other) < len(one.hashes) == len(other.hashes)


SYSTEM = {"role": "system", "content": "s"}


@pytest.mark.parametrize(
    ("body", "tools", "systems", "parts"),
    [
        ({"tools": TOOLS * 3, "messages": [SYSTEM, {**SYSTEM, "role": "developer"}, ASKED, SYSTEM]}, 3, 2, 7),
        ({"system": [{"text": "a"}, {"text": "b"}], "messages": [ASKED, CALL]}, 0, 2, 4),
        ({"instructions": "s", "functions": TOOLS, "input": [ASKED]}, 1, 1, 3),
        ({"instructions": "s", "input": "where?"}, 0, 1, 2),
        ({"system": "s", "prompt": "p", "suffix": "x"}, 0, 1, 3),
        ({"messages": [{"role": "user", "content": '"role":"system"'}]}, 0, 0, 1),
    ],
)
def test_the_parts_of_a_prompt(body: Any, tools: int, systems: int, parts: int) -> None:
    chain = read(body).chain
    assert (chain.parts.tools, chain.parts.systems) == (tools, systems)
    assert len(chain.parts.hashes) == len(chain.parts.ends) == parts
    assert chain.parts.ends[-1] == chain.length
    assert set(chain.parts.ends) <= set(chain.characters)


def test_a_part_is_hashed_in_slices_of_bounded_size() -> None:
    long = json.dumps({"role": "user", "content": "x" * 2 * SLICE_BYTES}).encode()
    reader = ConversationReader(Object(messages=Raw(b"[%b%b]" % (long, b",1" * 1000))), "m", Payloads())
    slices = [(0, 0)]
    while reader.read_slice():
        chain = reader.conversation(long).chain
        slices.append((chain.length, len(chain.parts.hashes)))
        assert slices[-1][0] - slices[-2][0] <= 2 * SLICE_BYTES
        assert slices[-1][1] - slices[-2][1] <= SLICE_BYTES // PIECE_BYTES
    assert len(slices) > 5
    chain = read({"messages": [json.loads(long), ASKED]}).chain
    fine, rest = FINE_UNTIL // FINE_BYTES, len(long) - FINE_UNTIL
    assert len(chain.hashes) == fine + -(-rest // PIECE_BYTES) + 1
    assert chain.parts.ends == (len(long), chain.length)


def test_parts_are_bounded() -> None:
    most, more = (chat(*[ASKED] * count) for count in (MAX_PARTS, MAX_PARTS + 1))
    assert (len(most.parts.hashes), len(more.parts.hashes)) == (MAX_PARTS, 0)
    assert begins(more, most)


def test_marks_of_what_to_cache_do_not_count() -> None:
    part = {"type": "text", "text": "hi"}
    marked = {"role": "user", "content": [{**part, "cache_control": {"type": "ephemeral"}}]}
    first = {"role": "user", "content": [{"cache_control": {"type": "ephemeral"}, **part}]}
    plain = chat({"role": "user", "content": [part]})
    assert chat(marked).hashes == chat(first).hashes == plain.hashes


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"\xff", b'{"messages": 5}', b'{"messages": null}', b"[" * 9999]
)
def test_what_is_not_understood_has_no_chain(body: bytes) -> None:
    assert len(read(body).chain.hashes) <= 1


@pytest.mark.parametrize(
    ("body", "agentic"),
    [
        ({"messages": [ASKED]}, False),
        ({"messages": [ASKED], "tools": []}, False),
        ({"messages": [ASKED], "tools": TOOLS}, True),
        ({"messages": [ASKED, RESULT]}, True),
        ({"messages": [ASKED, CALL]}, True),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, True),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]}, True),
        ({"messages": [{"role": "user", "content": 'what is "tool_calls" or {"role":"tool"}?'}]}, False),
    ],
)
def test_who_uses_tools(body: Any, agentic: bool) -> None:
    assert read(body).agentic is agentic


def claims(headers: dict[str, str], body: Any) -> tuple[str, str]:
    fields = Fields(
        [(b"host", b"here"), *((name.encode(), value.encode()) for name, value in headers.items())]
    )
    head = RequestHead(b"POST", b"/v1/chat/completions", fields)
    return claims_of(head, read(body))


@pytest.mark.parametrize(
    ("headers", "body", "claimed"),
    [
        ({"X-Session-Id": "a"}, {}, b"a"),
        ({"x-affinity": "a"}, {"prompt_cache_key": "b"}, b"a"),
        ({}, {"prompt_cache_key": "b"}, b"b"),
        ({}, {"metadata": {"user_id": '{"device_id": "x", "session_id": "c"}'}}, b"c"),
        ({}, {"metadata": {"user_id": "user_1_account__session_0123abcd-ef"}}, b"0123abcd-ef"),
        ({}, {"metadata": {"user_id": 5}, "prompt_cache_key": ["b"]}, b""),
    ],
)
def test_which_session_is_claimed(headers: dict[str, str], body: Any, claimed: bytes) -> None:
    assert claims(headers, body) == (hashed(claimed), "")
    assert claimed.decode() not in claims(headers, body) or not claimed


@pytest.mark.parametrize(
    ("child", "parent"),
    [
        ({"x-session-id": "b", "x-parent-session-id": "a"}, {"x-session-id": "a"}),
        (
            {"session-id": "a", "thread-id": "b", "x-codex-parent-thread-id": "a"},
            {"session-id": "a", "thread-id": "a"},
        ),
        (
            {"x-claude-code-session-id": "a", "x-claude-code-agent-id": "b"},
            {"x-claude-code-session-id": "a"},
        ),
        (
            {
                "x-claude-code-session-id": "a",
                "x-claude-code-agent-id": "c",
                "x-claude-code-parent-agent-id": "b",
            },
            {"x-claude-code-session-id": "a", "x-claude-code-agent-id": "b"},
        ),
    ],
)
def test_a_subagent_claims_the_session_of_its_parent(child: dict[str, str], parent: dict[str, str]) -> None:
    own, of = claims(child, {})
    assert of == claims(parent, {})[0]
    assert own not in ("", of)
