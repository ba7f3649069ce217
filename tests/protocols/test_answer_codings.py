"""Answers behind an early head that a server compressed, or only labels so."""

import gzip
import zlib

import pytest

from clairvoyant_cli.protocols.heartbeat import Decoded, Joint

EVENTS = b'data: {"choices": [{"delta": {"content": "caf\xc3\xa9"}}]}\n\n' * 5


def compressed(bits: int) -> bytes:
    coder = zlib.compressobj(wbits=bits)
    return coder.compress(EVENTS) + coder.flush()


@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 1000])
@pytest.mark.parametrize(
    "sent",
    [gzip.compress(EVENTS), compressed(zlib.MAX_WBITS), compressed(-zlib.MAX_WBITS), EVENTS],
    ids=["gzip", "zlib", "deflate without a head", "plain"],
)
def test_a_coding_is_told_by_its_data_in_pieces_of_any_size(sent: bytes, size: int) -> None:
    joint = Decoded(Joint())
    got = b"".join(joint.feed(sent[at : at + size]) for at in range(0, len(sent), size))
    assert got + joint.end() == EVENTS


@pytest.mark.parametrize("sent", [b"", b"{", b"{}"])
def test_an_answer_shorter_than_what_tells_its_coding_passes(sent: bytes) -> None:
    joint = Decoded(Joint())
    assert joint.feed(sent) + joint.end() == sent
