"""Prompts whose system text changes: only what rules name is moved or held, in every dialect."""

import json
import random
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clairvoyant_cli.protocols.routes import Shape
from clairvoyant_cli.protocols.stable_prefix import KNOWN, LAYOUTS, MARKED, StablePrefix, rule

MARK = {"cache_control": {"type": "ephemeral"}}
ADDED = re.compile(r"\n*<system-reminder>\n(.*?)\n</system-reminder>", re.DOTALL)
OWN = rule(r"^token=\w+", moves=False)
RULES = "Obey the rules.\nBe “brief” \\ and \t exact."
PICTURE = "iVBORw0KGgo" * 20
Body = dict[str, Any]


def time_line(turn: int) -> str:
    return f"Current time is 12:{turn:02}:09. Today's date is 2026-11-27."


def system_of(turn: int) -> str:
    return f"token=t{turn}\n{time_line(turn)}\n{RULES}\nYou are in area Hall and all should target this area."


def messages_body(turn: int) -> Body:
    said: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "Look."}]}]
    for n in range(turn):
        thought = {"type": "thinking", "thinking": f"hm {n}", "signature": "c2ln" * 9}
        call = {"type": "tool_use", "id": f"t{n}", "name": "read", "input": {"path": "a\n/b"}}
        picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}}
        result = {"type": "tool_result", "tool_use_id": f"t{n}", "content": [picture]}
        said += [{"role": "assistant", "content": [thought, call]}, {"role": "user", "content": [result]}]
        said.append({"role": "system", "content": f"<total_tokens>{999 - n} tokens left</total_tokens>"})
    if turn:  # the client moves its mark
        said[-1] = {"role": "system", "content": [{"type": "text", "text": said[-1]["content"], **MARK}]}
    billing = f"x-anthropic-billing-header: cc_version=2.1.37; cch=a{turn};"
    system = [{"type": "text", "text": billing}, {"type": "text", "text": system_of(turn), **MARK}]
    return {"model": "m", "system": system, "messages": said, "tools": tools(turn), "max_tokens": 9}


def chat_body(turn: int) -> Body:
    url = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}}
    said: list[Any] = [{"role": "system", "content": system_of(turn)}]
    for n in range(turn + 1):
        content: Any = [{"type": "text", "text": f"{n}?"}, url] if n % 2 else f"{n}?"
        said.append({"role": "user", "content": content})
        if n < turn:
            call = {
                "id": f"c{n}",
                "type": "function",
                "function": {"name": "read", "arguments": '{"a": "\\n"}'},
            }
            said.append({"role": "assistant", "tool_calls": [call]})
            said.append({"role": "tool", "tool_call_id": f"c{n}", "content": "four"})
            said.append({"role": "assistant", "content": "ok", "reasoning_content": "hm"})
    return {"model": "m", "messages": said, "tools": tools(turn), "stream": True}


def ollama_body(turn: int) -> Body:
    said: list[Any] = [{"role": "system", "content": system_of(turn)}]
    for n in range(turn + 1):
        said += [{"role": "user", "content": f"{n}?", "images": [PICTURE]}]
        said.append({"role": "assistant", "content": "ok", "thinking": "hm"})
    return {"model": "m", "messages": said[:-1], "tools": tools(turn)}


def responses_body(turn: int) -> Body:
    said: list[Any] = [{"type": "message", "role": "developer", "content": system_of(turn)}]
    for n in range(turn + 1):
        text = [{"type": "input_text", "text": f"{n}?"}, {"type": "input_image", "image_url": PICTURE}]
        said.append({"role": "user", "content": text})
        said.append({"type": "reasoning", "id": f"r{n}", "summary": [], "encrypted_content": "c2ln" * 9})
        said.append({"type": "function_call", "call_id": f"c{n}", "name": "read", "arguments": "{}"})
        said.append({"type": "function_call_output", "call_id": f"c{n}", "output": "four"})
    said = said[: len(said) - 3 * (turn % 2)]  # the last request of a tool's loop, or of a question
    return {"model": "m", "instructions": "Help.", "input": said, "tools": tools(turn)}


def generate_body(turn: int) -> Body:
    return {"model": "m", "system": system_of(turn), "prompt": f"{turn}?", "images": [PICTURE]}


def tools(turn: int) -> list[Any]:
    named = [{"type": "function", "function": {"name": name}} for name in ("read", "write", "edit")]
    return [*named[turn % 3 :], *named[: turn % 3]]


BODIES: dict[Shape, Callable[[int], Body]] = {
    Shape.MESSAGES: messages_body,
    Shape.CHAT: chat_body,
    Shape.OLLAMA_CHAT: ollama_body,
    Shape.RESPONSES: responses_body,
    Shape.OLLAMA_GENERATE: generate_body,
}


def without_added(value: Any, added: list[str]) -> Any:
    """Return a value without what was added to it; that goes to `added`."""
    if isinstance(value, str):
        added += ADDED.findall(value)
        return ADDED.sub("", value)
    if isinstance(value, dict):
        return {name: without_added(each, added) for name, each in value.items()}
    if isinstance(value, list):
        kept = [without_added(each, added) for each in value]
        pairs = zip(value, kept, strict=True)
        return [
            new for old, new in pairs if not (isinstance(new, dict) and new.get("text") == "" and old != new)
        ]
    return value


def without_named(value: Any) -> Any:
    """Return a body without all that the rules name, and with its tools sorted."""
    text = json.dumps(value)
    named = (
        r"token=t\d+",
        r"Current time is [\d:]+\. Today's date is [\d-]+\.\\n",
        r"You are in area .*? area\.",
        r"cch=a\d+",
    )
    for pattern in named:
        text = re.sub(pattern, "", text)
    body: Body = json.loads(text)
    body["tools"] = sorted(body.get("tools", []), key=str)
    body["messages"] = [
        each for each in body.get("messages", []) if each["role"] != "system" or "Obey" in str(each)
    ]
    return body


@pytest.mark.parametrize("shape", BODIES)
def test_nothing_but_the_named_lines_moves_and_prompts_begin_as_before(shape: Shape) -> None:
    prefix, before = StablePrefix([*KNOWN, OWN]), ""
    for turn in range(6):
        asked = BODIES[shape](turn)
        found = prefix.stabilised(json.dumps(asked).encode(), shape, "ann")
        assert found is not None
        sent, added = json.loads(found.body), list[str]()
        assert without_named(without_added(sent, added)) == without_named(asked)
        assert time_line(turn) in "\n".join(added)
        head = {name: sent[name] for name in ("tools", "system", "instructions") if name in sent}
        said = [] if shape is Shape.OLLAMA_GENERATE else sent[LAYOUTS[shape].messages]
        text = re.sub(r', "cache_control": \{[^}]*\}', "", json.dumps(head) + json.dumps(said)[:-1])
        assert text.startswith(before)
        before = text


@pytest.mark.parametrize("shape", BODIES)
def test_bodies_without_named_lines_stay_as_they_are(shape: Shape) -> None:
    prefix = StablePrefix(KNOWN)
    for turn in (0, 3, 6, 9):
        text = json.dumps(BODIES[shape](turn)).replace("Current time", "The time").replace("You are in", "In")
        text = text.replace("<total_tokens>", "").replace(
            '"role": "system", "content": "9', '"role": "user", "content": "9'
        )
        if shape is Shape.MESSAGES:
            text = text.replace("x-anthropic", "y").replace('{"role": "system"', '{"role": "user"')
        assert prefix.stabilised(text.encode(), shape, "ann") is None
    assert all(each.program and each.seen_in for each in KNOWN)


@given(st.randoms(use_true_random=False), st.sampled_from(list(BODIES)))
def test_any_bytes_are_taken(rng: random.Random, shape: Shape) -> None:
    prefix = StablePrefix(KNOWN, learns=True)
    body = bytearray(json.dumps(BODIES[shape](rng.randrange(4)), indent=rng.choice([None, 1])).encode())
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(body))
        body[at : at + rng.randrange(3)] = rng.choice([b'"', b"{", b"]", b"\\", b",", b"", b"\xff", b"null"])
    found = prefix.stabilised(bytes(body), shape, "ann")
    with suppress(ValueError):
        json.loads(body)
        assert found is None or json.loads(found.body)


def stabilised(prefix: StablePrefix, system: str, *said: str, client: str = "ann", **how: Any) -> Body | None:
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(said)]
    body = {"messages": [{"role": "system", "content": system}, *messages]}
    found = prefix.stabilised(json.dumps(body).encode(), Shape.CHAT, client, **how)
    return None if found is None else json.loads(found.body)


def test_a_message_keeps_its_line_and_an_equal_one_is_not_repeated() -> None:
    prefix = StablePrefix(KNOWN)
    one, two = f"{time_line(1)}\nRules.", f"{time_line(2)}\nRules."
    marked = [MARKED.format(time_line(1)), MARKED.format(time_line(2))]
    for system, said, expected in (
        (one, ["a"], ["a" + marked[0]]),
        (two, ["a"], ["a" + marked[0]]),  # sent again
        (one, ["a", "b", "c"], ["a" + marked[0], "b", "c"]),
        (two, ["a", "b", "c", "d", "e"], ["a" + marked[0], "b", "c", "d", "e" + marked[1]]),
    ):
        sent = stabilised(prefix, system, *said)
        assert sent is not None
        assert [each["content"] for each in sent["messages"]] == ["Rules.", *expected]


def test_nothing_passes_between_clients_or_from_session_to_session() -> None:
    prefix = StablePrefix([*KNOWN, OWN])
    assert stabilised(prefix, "token=secret", "hello") is None
    assert stabilised(prefix, "token=other", "hello", client="ben") is None
    assert stabilised(prefix, "token=other", "another session") is None
    sent = stabilised(prefix, "token=new", "hello", "yes?", "go on")
    assert sent is not None
    assert sent["messages"][0]["content"] == "token=secret"
    assert stabilised(prefix, f"{time_line(1)}\nRules.", "hi") is not None
    sent = stabilised(prefix, f"{time_line(2)}\nRules.", "hi", client="ben")
    assert sent is not None
    assert time_line(1) not in str(sent)


def test_a_line_that_changes_three_times_is_moved_if_lines_are_learned() -> None:
    def sent(prefix: StablePrefix, turn: int) -> Body | None:
        return stabilised(prefix, f"Rules.\nUnread mails: {turn}\nMore rules.", "hi")

    learns, knows = StablePrefix(KNOWN, learns=True), StablePrefix(KNOWN)
    assert [sent(learns, turn) is None for turn in range(4)] == [True, True, True, False]
    assert [sent(knows, turn) for turn in range(9)] == [None] * 9
    moved = sent(learns, 7)
    assert moved is not None
    assert moved["messages"][0]["content"] == "Rules.\nMore rules."
    another = "\n".join(f"line {n}" for n in range(3))
    assert stabilised(learns, another, "hi") is None


def test_a_prompt_does_not_grow_beyond_the_context() -> None:
    system = f"{time_line(1)}\n{'Rules. ' * 100}"
    assert stabilised(StablePrefix(KNOWN), system, "hi", context=100) is None
    assert stabilised(StablePrefix(KNOWN), system, "hi", context=1000) is not None


def test_the_work_on_a_body_is_bounded() -> None:
    prefix = StablePrefix([*KNOWN, rule("x+", moves=True)], learns=True)
    assert stabilised(prefix, f"Rules.\n{'x' * 4001}", "hi") is None
    assert stabilised(prefix, time_line(1) + "\nRules.", *["hi"] * 5000) is None
    assert stabilised(prefix, time_line(1) + "\nRules.\n" * 10**6, "hi") is None
    assert stabilised(prefix, "You are in area " * 10**5, "hi") is None  # ends at once


@pytest.mark.parametrize(
    "body",
    [
        b'{"system": "x", "system": "%b", "prompt": "a"}',
        b'{"system": {"text": "%b"}, "prompt": "a"}',
        b'{"system": "%b", "prompt": ["a"]}',
        b'{"system": "%b", "prompt": "a", "raw": true}',
        b'{"system": "%b", "prompt": "a"} x',
        b'\x1f\x8b{"system": "%b", "prompt": "a"}',
        b'{"system": "%b"}',
    ],
)
def test_what_is_not_understood_stays_as_it_is(body: bytes) -> None:
    line = time_line(1).encode() + b"\\nRules."
    assert StablePrefix(KNOWN).stabilised(body % line, Shape.OLLAMA_GENERATE, "ann") is None
    understood = b'{"system": "%b", "prompt": "a"}' % line
    assert StablePrefix(KNOWN).stabilised(understood, Shape.OLLAMA_GENERATE, "ann") is not None
