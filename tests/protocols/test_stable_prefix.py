"""Prompts whose system text changes: only what rules name is moved, to the end, in every dialect."""

import json
import random
import re
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clairvoyant_cli.protocols.routes import Shape
from clairvoyant_cli.protocols.stable_prefix import LAYOUTS, StablePrefix

MARK = {"cache_control": {"type": "ephemeral"}}
ADDED = re.compile(r"\n*<system-reminder>\n(.*?)\n</system-reminder>", re.DOTALL)
OWN = r"token=\w+"
RULES = "Obey the rules.\nBe “brief” \\ and \t exact."
PICTURE = "iVBORw0KGgo" * 20
Body = dict[str, Any]


def time_line(turn: int) -> str:
    return f"Current time is 12:{turn // 60 % 60:02}:{turn % 60:02}. Today's date is 2026-11-27."


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
    system = [{"type": "text", "text": "You help."}, {"type": "text", "text": system_of(turn), **MARK}]
    return {"model": "m", "system": system, "messages": said, "max_tokens": 9}


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
    return {"model": "m", "messages": said, "stream": True}


def ollama_body(turn: int) -> Body:
    said: list[Any] = [{"role": "system", "content": system_of(turn)}]
    for n in range(turn + 1):
        said += [{"role": "user", "content": f"{n}?", "images": [PICTURE]}]
        said.append({"role": "assistant", "content": "ok", "thinking": "hm"})
    return {"model": "m", "messages": said[:-1]}


def responses_body(turn: int) -> Body:
    said: list[Any] = [{"type": "message", "role": "developer", "content": system_of(turn)}]
    for n in range(turn + 1):
        text = [{"type": "input_text", "text": f"{n}?"}, {"type": "input_image", "image_url": PICTURE}]
        said.append({"role": "user", "content": text})
        said.append({"type": "reasoning", "id": f"r{n}", "summary": [], "encrypted_content": "c2ln" * 9})
        said.append({"type": "function_call", "call_id": f"c{n}", "name": "read", "arguments": "{}"})
        said.append({"type": "function_call_output", "call_id": f"c{n}", "output": "four"})
    said = said[: len(said) - 3 * (turn % 2)]  # the last request of a tool's loop, or of a question
    return {"model": "m", "instructions": "Help.", "input": said}


def generate_body(turn: int) -> Body:
    return {"model": "m", "system": system_of(turn), "prompt": f"{turn}?", "images": [PICTURE]}


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
    """Return a body without what the rules name and without late system messages."""
    text = json.dumps(value)
    for pattern in (r"token=t\d+", r"Current time is [\d:]+\. Today's date is [\d-]+\.\\n"):
        text = re.sub(pattern, "", text)
    text = re.sub(r"You are in area .*? area\.", "", text)
    body: Body = json.loads(text)
    said = body.get("messages", [])
    body["messages"] = [each for each in said if each["role"] != "system" or "Obey" in str(each)]
    return body


@pytest.mark.parametrize("shape", BODIES)
def test_only_the_named_lines_move_to_the_end_and_the_rest_begins_as_before(shape: Shape) -> None:
    prefix, before = StablePrefix(OWN), ""
    for turn in range(6):
        asked = BODIES[shape](turn)
        found = prefix.stabilised(json.dumps(asked).encode(), shape)
        assert found is not None
        sent, added = json.loads(found.body), list[str]()
        assert without_named(without_added(sent, added)) == without_named(asked)
        assert added[-1].split("\n")[-3:] == [
            time_line(turn),
            system_of(turn).split("\n")[-1],
            f"token=t{turn}",
        ]
        lasting = json.loads(found.lasting)
        assert time_line(turn) not in str(lasting)
        head = {name: lasting[name] for name in ("system", "instructions") if name in lasting}
        said = [] if shape is Shape.OLLAMA_GENERATE else lasting[LAYOUTS[shape][1]]
        text = re.sub(r', "cache_control": \{[^}]*\}', "", json.dumps(head) + json.dumps(said)[:-1])
        assert text.startswith(before)
        before = text


@pytest.mark.parametrize("shape", BODIES)
def test_bodies_without_named_lines_stay_as_they_are(shape: Shape) -> None:
    for turn in (0, 3, 6):
        text = json.dumps(BODIES[shape](turn)).replace("Current time", "The time").replace("You are in", "In")
        if shape is Shape.MESSAGES:
            text = text.replace('{"role": "system"', '{"role": "user"')
        assert StablePrefix().stabilised(text.encode(), shape) is None


@given(st.randoms(use_true_random=False), st.sampled_from(list(BODIES)))
def test_any_bytes_are_taken(rng: random.Random, shape: Shape) -> None:
    prefix = StablePrefix(OWN)
    body = bytearray(json.dumps(BODIES[shape](rng.randrange(4)), indent=rng.choice([None, 1])).encode())
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(body))
        body[at : at + rng.randrange(3)] = rng.choice([b'"', b"{", b"]", b"\\", b",", b"", b"\xff", b"null"])
    found = prefix.stabilised(bytes(body), shape)
    with suppress(ValueError):
        json.loads(body)
        assert found is None or json.loads(found.body)


def words_of(body: bytes) -> list[str]:
    """Return all words of a body, sorted, without the tags of what was moved."""
    text = re.sub("</?system-reminder>", "", body.decode().replace("\\n", " "))
    return sorted(re.findall(r"[\w:.'-]+", text))


def test_ten_thousand_requests_of_four_clients_say_what_each_says_and_nothing_else() -> None:
    """Every value is unique, so a value of another request, a lost one and a repeated one are seen."""
    prefix, rng = StablePrefix(OWN), random.Random(7)
    conversations: list[tuple[str, list[Any]]] = [(f"client {n % 4}", []) for n in range(12)]
    for n in range(10_000):
        client, said = rng.choice(conversations)
        area = f"You are in area {n} and all should target this area."
        named = [time_line(n), f"Use token={client[-1]}x{n} only.", f"token={n}", area]
        lines = rng.sample([*named, *named[1:3], RULES, ""], 6)
        if rng.random() < 0.4:
            said.clear()
        said += [{"role": "assistant", "content": f"answer {n}"}] if said else []
        said.append({"role": rng.choice(["user", "tool"]), "content": rng.choice(["hello", f"asked {n}"])})
        system = {"role": "system", "content": "\n".join([client, *lines, "End."])}
        asked = json.dumps({"model": client, "messages": [system, *said]}, ensure_ascii=False).encode()
        found = prefix.stabilised(asked, Shape.CHAT)
        assert found is not None
        assert words_of(found.body) == words_of(asked)
        sent = json.loads(found.body)["messages"]
        (moved,) = ADDED.findall(sent[-1]["content"])
        assert sorted(moved.split("\n")) == sorted(each for each in lines if each in named)
        assert not any(each in sent[0]["content"] for each in named)
        assert sent[1:-1] == said[:-1]


def stabilised(system: str, *said: str, own: str | None = None) -> Body | None:
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(said)]
    body = {"messages": [{"role": "system", "content": system}, *messages]}
    found = StablePrefix(own).stabilised(json.dumps(body).encode(), Shape.CHAT)
    return None if found is None else json.loads(found.body)


@pytest.mark.parametrize(
    ("system", "own", "moved"),
    [
        (
            "Read with id=a only.\nWrite with id=b only.\nEnd.",
            r"id=\w+",
            "Read with id=a only.\nWrite with id=b only.",
        ),
        ("id=a\r\nEnd.\r\n", r"id=\w+", "id=a"),
        ("Mode: ACT\nEnd.\nMode: ACT", "^Mode: .*$", "Mode: ACT\nMode: ACT"),
        ("Now: 1\nEnd.", "(?i)^now|x*", "Now: 1\nEnd."),
    ],
)
def test_lines_move_whole_and_in_their_number(system: str, own: str, moved: str) -> None:
    sent = stabilised(f"Begin.\n\n{system}", "a", "b", "c", "The answer is", own=own)
    if own.endswith("x*"):  # it matches every line: nothing would be left of the system text
        assert sent is None
        return
    assert sent is not None
    assert [each["content"] for each in sent["messages"][1:]] == [
        "a",
        "b",
        f"c\n\n<system-reminder>\n{moved}\n</system-reminder>",
        "The answer is",
    ]


def test_lines_that_end_as_on_windows_keep_their_ends() -> None:
    for text, kept in ((f"{time_line(1)}\r\nRules.", "Rules."), ("A\r\nid=1\r\nB", "A\r\n\r\nB")):
        sent = stabilised(text, "hi", own="id=")
        assert sent is not None
        assert sent["messages"][0]["content"] == kept


def test_the_work_on_a_body_is_bounded() -> None:
    assert stabilised(f"Rules.\n{'x' * 4001}", "hi", own="x+") is None
    assert stabilised(time_line(1) + "\nRules.", *["hi"] * 5000) is None
    assert stabilised(time_line(1) + "\nRules.\n" * 10**5, "hi") is None
    began_s = time.process_time()
    stabilised("x" * 250_000, "hi", own=r"(\w+\s?)*;|.*.*Now: .*|\s*x*y")
    stabilised("You are in area " * 16_000, "hi")
    assert time.process_time() - began_s < 0.5  # Python's own expressions would take hours


@pytest.mark.parametrize(
    "body",
    [
        b'{"system": "x", "system": "%b", "prompt": "a"}',
        b'{"system": {"text": "%b"}, "prompt": "a"}',
        b'{"system": "%b", "prompt": ["a"]}',
        b'{"system": "%b", "prompt": "a", "raw": true}',
        b'{"system": "%b", "prompt": "a", "continue_final_message": true}',
        b'{"system": "%b", "prompt": "def f(", "suffix": "return x"}',
        b'{"system": "%b", "prompt": "a", "context": [1, 2]}',
        b'{"system": "%b", "prompt": ""}',
        b'{"system": "%b", "prompt": "", "keep_alive": 0}',
        b'{"system": "%b", "prompt": "\xff"}',
        b'{"system": "%b", "prompt": "a"} x',
        b'\x1f\x8b{"system": "%b", "prompt": "a"}',
        b'{"system": "%b"}',
    ],
)
def test_what_is_unusual_stays_as_it_is(body: bytes) -> None:
    line = time_line(1).encode() + b"\\nRules."
    assert StablePrefix().stabilised(body % line, Shape.OLLAMA_GENERATE) is None
    understood = b'{"system": "%b", "prompt": "a"}' % line
    assert StablePrefix().stabilised(understood, Shape.OLLAMA_GENERATE) is not None
