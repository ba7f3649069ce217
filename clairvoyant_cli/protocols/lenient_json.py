"""JSON from others: any value may be in any field, and is decoded only when needed.

Rule 1: fields are kept undecoded (`Raw`): a number may take 7 us to decode (6e-317, msgspec 0.22), and a list
may have a hundred thousand entries.
Rule 2: a value of an unexpected type reads as nothing, and the other fields are unaffected.
"""

import re
from collections.abc import Collection
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

T = TypeVar("T")

ABSENT = Raw(b"null")  # what a field holds that is not there
LONGEST_NUMBER = 40
"""Characters of a number that is read. To decode one takes time that grows with the square of its length."""


_SCALAR = msgspec.json.Decoder(str | int | float | bool | None)
OBJECT = msgspec.json.Decoder(dict[str, Raw])
PLAIN_OBJECT = msgspec.json.Decoder(dict[str, Any])  # decoded to the last value, of bounded texts
_ENTRIES = msgspec.json.Decoder(list[Raw])
_VALUE = msgspec.json.Decoder(float_hook=bool)
_NUMBER = msgspec.json.Decoder(float)

_NOTHING = {b"null", b"false", b"0", b'""', b"[]", b"{}"}
_LONGEST_NOTHING = 5

_HALF = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
"""Half of a character, as clients write it that cut a text within one. msgspec refuses a lone one."""

_TEXT_BEGINS, _LIST_BEGINS, _OBJECT_BEGINS = b'"[{'


def fitting(decoder: msgspec.json.Decoder[T], raw: Raw | bytes | bytearray | memoryview) -> T | None:
    """Return what a decoder makes of a text or a field; None if it is of another type, or no JSON."""
    if raw is ABSENT:
        return None
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


class Object(dict[str, Raw]):
    """The members of an object, undecoded; one that is absent reads as `ABSENT`."""

    def __missing__(self, name: str) -> Raw:
        return ABSENT


def object_in(raw: Raw) -> Object:
    """Return the members of an object; none of anything else, which is not decoded: a number may be slow."""
    return Object(fitting(OBJECT, raw) or ()) if memoryview(raw)[0] == _OBJECT_BEGINS else Object()


def object_of(line: bytes) -> Object | None:
    """Return the members of a text that should be an object; None if it is anything else."""
    held = fitting(OBJECT, line)
    return None if held is None else Object(held)


def scalar(raw: Raw) -> str | int | float | bool | None:
    """Return a string, number or boolean; None for anything else, and for absurdly long numbers."""
    if raw is ABSENT or (begins := memoryview(raw)[0]) in b"[{":
        return None
    return fitting(_SCALAR, raw) if len(raw) <= LONGEST_NUMBER or begins == _TEXT_BEGINS else None


def plain_value(raw: Raw) -> Any:
    """Decode a field of a bounded length; None if it cannot be. What is no text in it reads as well as can
    be, and its decimal numbers, which may be slow, as True.
    """
    if raw is ABSENT or (held := fitting(_VALUE, raw)) is not None:
        return None if raw is ABSENT else held
    return fitting(_VALUE, _HALF.sub(rb"\\ufffd", bytes(raw).decode("utf-8", "replace").encode()))


def text(raw: Raw) -> str:
    """Return a field that should be a text; "" if it is anything else."""
    return (plain_value(raw) or "") if memoryview(raw)[0] == _TEXT_BEGINS else ""


def entries(raw: Raw) -> list[Raw] | None:
    """Return the entries of a list, undecoded; None if it is no list."""
    return fitting(_ENTRIES, raw) if memoryview(raw)[0] == _LIST_BEGINS else None


def count(raw: Raw) -> int:
    return 0 if raw is ABSENT else len(entries(raw) or ())


def is_given(raw: Raw) -> bool:
    """Whether a field holds anything: neither null nor false, nor 0, nor an empty text, list or object."""
    return raw is not ABSENT and (len(raw) > _LONGEST_NOTHING or bytes(raw) not in _NOTHING)


def is_text(raw: Raw) -> bool:
    return memoryview(raw)[0] == _TEXT_BEGINS


def is_list(raw: Raw) -> bool:
    return memoryview(raw)[0] == _LIST_BEGINS


def is_object(raw: Raw) -> bool:
    return memoryview(raw)[0] == _OBJECT_BEGINS


def number(raw: Raw) -> float | None:
    """Return a number; None for anything else."""
    return None if raw is ABSENT or len(raw) > LONGEST_NUMBER else fitting(_NUMBER, raw)


def whole_number(raw: Raw, most: int) -> int | None:
    """Return a whole number from 0 to `most`; None for anything else."""
    held = number(raw)
    return int(held) if held is not None and 0 <= held <= most and held.is_integer() else None


def is_plain(raw: bytes | memoryview, deciding: Collection[str]) -> bool:
    """Whether the `deciding` members of an object mean the same to every parser. Go, and so Ollama, ignores
    the case of names, merges objects of one name, and takes the last of other values.
    """
    bare = msgspec.json.format(bytes(raw), indent=-1)
    named = OBJECT.decode(bare)
    if any(name not in deciding and name.casefold() in deciding for name in named):
        return False
    # Written out again it is shorter if a name was repeated, and differs if one was written with escapes.
    return msgspec.json.encode(named) == bare
