"""One field more in a body, whatever the body and however it comes in pieces."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clairvoyant_cli.backends.adapters import adapter_of
from clairvoyant_cli.backends.priority import Stamp, Stamping
from clairvoyant_cli.http.fields import Header
from clairvoyant_cli.http.request import Piece
from clairvoyant_cli.protocols.request_parsing import opening_of, parse_body
from clairvoyant_cli.protocols.routes import ROUTES

CHAT = ROUTES["/v1/chat/completions"]

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text().filter(lambda name: name != "priority"), VALUES, min_size=1)


class Sink:
    """Keeps what reaches the wire."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.ended = False

    def body(self, data: Piece) -> None:
        self.got.append(bytes(data))

    def body_end(self, trailers: list[Header]) -> None:
        self.ended = True


@given(OBJECTS, st.lists(st.integers(0, 80)), st.text(" \t\r\n", max_size=9), st.booleans())
def test_the_object_has_one_field_more_and_every_other_byte_is_as_it_was(
    value: dict[str, Any], cuts: list[int], blank: str, ascii_only: bool
) -> None:
    text = (blank + json.dumps(value, ensure_ascii=ascii_only)).encode(errors="surrogatepass")
    bounds = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in pairwise(bounds)]
    stamp, sink = Stamp(b'"priority":-17,', opening_of(pieces)), Sink()
    stamping = Stamping(sink, stamp)
    for piece in pieces:
        stamping.body(memoryview(piece))
    stamping.body_end([])
    sent = b"".join(sink.got)
    at = sent.index(stamp.text)
    assert sent[:at] + sent[at + len(stamp.text) :] == text
    assert json.loads(sent.decode(errors="surrogatepass")) == value | {"priority": -17}
    assert sink.ended


@pytest.mark.parametrize(
    "text", [b"", b"{}", b" { } ", b"[1]", b"null", b'"{"', b"\xef\xbb\xbf" + b'{"a":1}']
)
def test_what_has_no_field_to_be_put_before_is_seen(text: bytes) -> None:
    assert opening_of([text]) == 0


@pytest.mark.parametrize(
    ("text", "ranks_itself"),
    [
        (b'{"messages":[],"priority":0}', True),
        (rb'{"messages":[],"prior\u0069ty":null}', True),
        (b'{"messages":[{"priority":1}],"Priority":1}', False),
        (b'{"messages":[],"temperature":NaN}', None),
        ('{"messages":[]}'.encode("utf-16"), None),
    ],
)
def test_who_has_set_it_already_is_seen_however_it_is_spelled(text: bytes, ranks_itself: bool | None) -> None:
    assert parse_body(text, CHAT, adapter_of("vllm")).ranks_itself is ranks_itself
