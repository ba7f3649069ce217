"""Tells how long a recording in a multipart form is: in seconds if it is a WAV file, whose rates differ by a
factor of ten, else in bytes, which are compared with those of the same coding only.
"""

import re
from collections.abc import Sequence

from clairvoyant_cli.http.request import Piece

START_BYTES = 64 * 1024  # of each of the first pieces of a form, in which the recording begins
FILE = re.compile(
    rb"\r\n\r\n(?:(?P<wav>RIFF....WAVE)|(?P<flac>fLaC)|(?P<ogg>OggS)|(?P<mp3>ID3|\xff[\xe2\xe3\xf2\xf3\xfa\xfb]))",
    re.DOTALL,
)
BYTES_PER_S = re.compile(rb"fmt .{12}(.{4})", re.DOTALL)  # in the header of a WAV file
# A header that tells another rate is not believed: at most eight channels of 32 bits at 192 kHz.
LEAST_BYTES_PER_S, MOST_BYTES_PER_S = 50, 8 * 4 * 192_000


def start_of(pieces: Sequence[Piece]) -> bytes:
    return b"".join(bytes(piece[:START_BYTES]) for piece in pieces[:8])


def length_of(pieces: Sequence[Piece]) -> tuple[str, float]:
    """Return the seconds of a WAV file in a form, or the coding ("" if unknown) and the form's bytes."""
    size, start = sum(map(len, pieces)), start_of(pieces)
    found = FILE.search(start)
    if found is None:
        return "", float(size)
    if found["wav"] and (rate := BYTES_PER_S.search(start, found.end())):
        bytes_per_s = int.from_bytes(rate[1], "little")
        if LEAST_BYTES_PER_S <= bytes_per_s <= MOST_BYTES_PER_S:
            return "seconds", (size - found.end()) / bytes_per_s
    return found.lastgroup or "", float(size)
