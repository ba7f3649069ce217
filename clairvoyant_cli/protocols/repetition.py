"""Tells whether a streamed answer repeats itself, whatever the protocol.

Rule: only exact repetition counts, and much of it: lists, tables and code repeat their lines, but not all of
a line a thousand tokens long.
"""

import re

LOOK_BYTES = 16 * 1024  # of the stream that are looked at together: 0.1 ms for some 80 events
KEPT_BYTES = 8 * 1024
PERIODS = 4  # that the end of the text has, at least
LEAST_BYTES = 2048  # that these have, at least
CERTAIN_BYTES = 4096  # of text, about a thousand tokens, that went on so
KEY_BYTES = 64

TEXTS = re.compile(
    rb'"(content|response|text|thinking|reasoning|reasoning_content|arguments|partial_json|delta)"'
    rb'\s*:\s*"((?:[^"\\]|\\.)*+)"'
)
"""The text in an event of any protocol, after its name."""


class Repetition:
    """Follows the text of an answer; `found` once it repeats itself."""

    def __init__(self) -> None:
        self.found = False
        self._fresh = bytearray()
        self._text = b""
        self._repeated = 0

    def feed(self, data: bytes) -> None:
        fresh = self._fresh
        fresh += data
        if len(fresh) < LOOK_BYTES:
            return
        said = b"".join([text for _, text in TEXTS.findall(fresh, 0, fresh.rfind(b"\n") + 1)])
        del fresh[: fresh.rfind(b"\n") + 1 or len(fresh)]
        self._text = (self._text + said)[-KEPT_BYTES:]
        self._repeated = self._repeated + len(said) if said and ends_in_repetition(self._text) else 0
        self.found = self._repeated >= CERTAIN_BYTES


def ends_in_repetition(text: bytes) -> bool:
    """Return whether a text ends in `PERIODS` equal parts, or more."""
    period = len(text) - KEY_BYTES - text.rfind(text[-KEY_BYTES:], 0, -1)
    end = text[-max(LEAST_BYTES, PERIODS * period) :]
    return len(end) >= max(LEAST_BYTES, PERIODS * period) and end[period:] == end[:-period]
