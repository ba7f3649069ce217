"""A long body made short: nothing but the middle of long strings is lost, and hostile ones end early."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clairvoyant_cli.protocols import shorten_json as condense
from clairvoyant_cli.protocols.shorten_json import (
    END_BYTES,
    LONGEST_KEPT,
    MAX_BYTES,
    MAX_STEPS,
    NUMBERS_A_STEP,
    ROOM_BYTES,
    Condenser,
    uncut,
)

MIB = 1024 * 1024
LONGEST_CHARACTER = 12
"""Bytes of an emoji that is escaped."""

characters = st.sampled_from("aé中🙂\"\\/\n\t\x01 0{[,:'\u2028\ue000\U0010ffff")
strings = st.text(characters, max_size=8) | st.builds(
    lambda unit, tail, size: unit * (size // max(1, len(unit))) + tail,
    st.text(characters, min_size=1, max_size=5),
    st.text(characters, max_size=3),
    st.integers(0, 4 * LONGEST_KEPT),
)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | strings
    # More without a string than a string may be long.
    | st.integers(0, LONGEST_KEPT).map(lambda count: [7] * count),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(characters, max_size=4), inner),
    max_leaves=12,
)


def condensed(text: bytes, cuts: list[float] | None = None) -> bytes | None:
    """Return the outcome for a text that comes in pieces, cut at these shares of its length."""
    condenser = Condenser()
    places = sorted(int(share * len(text)) for share in cuts or ())
    for start, end in zip([0, *places], [*places, len(text)], strict=True):
        condenser.feed(text[start:end])
    return condenser.condensed()


@given(
    values,
    st.booleans(),
    st.sampled_from([None, 1]),
    st.lists(st.floats(0, 1), max_size=30),
)
def test_only_the_middle_of_long_strings_is_lost(
    value: Any, ascii_only: bool, indent: int | None, cuts: list[float]
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    outcome = condensed(text, cuts)
    assert outcome is not None
    check_same(value, json.loads(outcome), ascii_only)
    assert outcome == condensed(text)


@pytest.mark.parametrize("unit", ["a", "é", "中", "🙂", "\n", '"', "\\", "\ue000"])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_a_string_may_be_cut_anywhere(unit: str, ascii_only: bool) -> None:
    for before in range(LONGEST_CHARACTER + 1):
        value = ["x", "x" * before + unit * LONGEST_KEPT + "🙂"]
        text = json.dumps(value, ensure_ascii=ascii_only).encode()
        for piece in (0.1, 0.5, 0.6):
            outcome = condensed(text, [piece])
            assert outcome is not None
            check_same(value, json.loads(outcome), ascii_only)


def check_same(value: Any, got: Any, ascii_only: bool) -> None:
    """Compare what was sent with what is left of it."""
    if isinstance(value, dict):
        assert list(value) == list(got)
        for key in value:
            check_same(value[key], got[key], ascii_only)
    elif isinstance(value, list):
        assert len(value) == len(got)
        for each, left in zip(value, got, strict=True):
            check_same(each, left, ascii_only)
    elif isinstance(value, str) and value != got:
        check_cut(value, got, ascii_only)
    else:
        assert value == got


def check_cut(value: str, got: str, ascii_only: bool) -> None:
    """Look at a string that was cut: its ends, and what is said to lie between."""
    marker = condense._MARKER.search(got)
    assert marker is not None
    head, tail = got[: marker.start()], got[marker.end() :]
    assert value.startswith(head)
    assert value.endswith(tail)
    middle = value[len(head) : len(value) - len(tail)]
    assert int(marker[1]) == written(middle, ascii_only)
    for end in (head, tail):
        assert abs(written(end, ascii_only) - END_BYTES) <= LONGEST_CHARACTER
    assert written(value, ascii_only) >= LONGEST_KEPT


def written(text: str, ascii_only: bool) -> int:
    """Return the bytes that a text takes within a JSON string."""
    return len(json.dumps(text, ensure_ascii=ascii_only).encode()) - 2


@given(st.binary(max_size=400), st.lists(st.floats(0, 1), max_size=5))
def test_what_holds_no_long_string_is_left_alone(text: bytes, cuts: list[float]) -> None:
    assert condensed(text, cuts) in (text, None)


@pytest.mark.parametrize("unit", ["a", "é", "中", "🙂", "\n", '\\"', "word "])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_the_length_of_what_was_cut_is_known(unit: str, ascii_only: bool) -> None:
    value = "first " + unit * 50_000 + " last"
    outcome = condensed(json.dumps(value, ensure_ascii=ascii_only).encode())
    assert outcome is not None
    text, cut = uncut(json.loads(outcome))
    assert len(text) + cut == pytest.approx(len(value), rel=0.05)
    assert (text[:6], text[-5:]) == ("first ", " last")


def test_what_was_not_cut_has_no_length_but_its_own() -> None:
    for text in ("", "river", "\ue000" + "0" * 16 + " 99999\ue000", "\ue000" * 5000):
        assert uncut(text) == (text, 0)


def test_pieces_of_a_byte_are_pieces() -> None:
    value = ["\\" * 3000 + '"' * 3000 + "🙂" * 1000, "x"]
    text = json.dumps(value).encode()
    condenser = Condenser()
    for byte in text:
        condenser.feed(bytes([byte]))
    outcome = condenser.condensed()
    assert outcome is not None
    assert outcome == condensed(text)
    check_same(value, json.loads(outcome), ascii_only=True)


HOSTILE = {
    "strings": (b'"",', 3 * MAX_STEPS),
    "keys": (b'"a":1,', 6 * MAX_STEPS),
    "objects": (b"{},", 3 * MAX_STEPS),
    "depth": (b"[", MAX_STEPS),
    "lists": (b"[1],", 4 * MAX_STEPS),
    "numbers": (b"1,", 2 * NUMBERS_A_STEP * MAX_STEPS),
    "blanks": (b" ", MAX_BYTES),
    "escapes": (b'"\\n",', 5 * MAX_STEPS),
    "strings that are kept": (b'"' + b"a" * 4000 + b'",', MAX_BYTES),
    "strings that are cut": (b'"' + b"\\n" * 4000 + b'",', 2 * MAX_BYTES),
    "messages": (b'{"role":"user","content":"a"},', 6 * MAX_STEPS),
    "long numbers": (b"9" * 1000 + b",", 0),
}
"""What is repeated, and how many bytes of it are taken at most, to the next piece."""

PIECE_BYTES = 65_536


@pytest.mark.parametrize("name", HOSTILE)
def test_what_would_take_long_to_decode_is_given_up_early(name: str) -> None:
    unit, most = HOSTILE[name]
    piece = unit * (PIECE_BYTES // len(unit))
    condenser = Condenser()
    fed = 0
    while not condenser.given_up:
        condenser.feed(piece)
        fed += len(piece)
        assert fed <= most + PIECE_BYTES
    assert condenser.condensed() is None
    condenser.feed(b"x" * 1000)
    assert condenser._kept == []
    assert condenser._carried == b""


@pytest.mark.parametrize("unit", [b"a", b"\\n", b'\\"', b"\\\\", b"\\u00e9", "é".encode(), b"\x80"])
def test_one_long_string_leaves_next_to_nothing_behind(unit: bytes) -> None:
    condenser = Condenser()
    condenser.feed(b'{"prompt":"')
    for _ in range(200):
        condenser.feed(unit * (65536 // len(unit)))
        assert len(condenser._carried) <= END_BYTES + ROOM_BYTES
    condenser.feed(b'"}')
    outcome = condenser.condensed()
    assert outcome is not None
    assert len(outcome) < LONGEST_KEPT


def tools(count: int) -> list[dict[str, Any]]:
    """Return tools of ten parameters each."""
    properties = {f"field{n}": {"type": "string", "description": "What it is."} for n in range(10)}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    function = {"name": "do", "description": "Does it.", "parameters": schema}
    return [{"type": "function", "function": function}] * count


LEGITIMATE: dict[str, Callable[[], Any]] = {
    "messages of a kilobyte": lambda: [{"role": "user", "content": "word " * 200}] * 2000,
    "messages of a line": lambda: [{"role": "user", "content": "A hundred characters or so. " * 4}] * 15_000,
    "messages of a book": lambda: [{"role": "user", "content": "word\n" * 200_000}] * 8,
    "tools": lambda: tools(1000),
    "token ids": lambda: [71_234] * 100_000,
    "an image": lambda: {"image_url": {"url": "data:image/png;base64," + "QUJD" * (10 * MIB)}},
}
"""What real clients send, all too long to be decoded at once."""


@pytest.mark.parametrize("name", LEGITIMATE)
def test_what_clients_send_is_not_given_up(name: str) -> None:
    value = LEGITIMATE[name]()
    outcome = condensed(json.dumps(value).encode(), [share / 100 for share in range(1, 100)])
    assert outcome is not None
    check_same(value, json.loads(outcome), ascii_only=True)


@pytest.mark.parametrize("text", [b'"', b'"' + b"a" * 10_000, b'["a", "b'])
def test_a_string_that_does_not_end_gives_nothing_to_decode(text: bytes) -> None:
    outcome = condensed(text)
    assert outcome is None or outcome == text


def test_a_piece_of_too_many_strings_is_not_even_taken_apart() -> None:
    condenser = Condenser()
    condenser.feed(b'"",' * (MAX_STEPS + 1))
    assert condenser.given_up
    assert condenser._steps == 0
