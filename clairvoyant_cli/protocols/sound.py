"""Reads how long a recording in a multipart form is, by its header: WAV, FLAC, Ogg (Opus, Vorbis) and MP3."""

import re
import struct
from collections.abc import Sequence

from clairvoyant_cli.http.request import Piece

START_BYTES = 64 * 1024  # of each of the first pieces of a form, in which the recording begins
END_BYTES = 64 * 1024  # of each of the last pieces, in which the last page of an Ogg file begins
FILE = re.compile(
    rb"\r\n\r\n(?:(?P<wav>RIFF....WAVE)|(?P<flac>fLaC)|(?P<ogg>OggS)|(?P<mp3>ID3|\xff[\xe2\xe3\xf2\xf3\xfa\xfb]))",
    re.DOTALL,
)
# A header that promises more or less than these is not believed.
LEAST_BYTES_PER_S, MOST_BYTES_PER_S = 50.0, 192_000 * 8 * 4.0  # Opus of silence, eight channels of 32 bits
MP3_KBIT_S = (
    (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0),  # MPEG 2 and 2.5
    (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0),  # MPEG 1
)
MP3_HZ = (44_100, 48_000, 32_000, 0)  # of MPEG 1; MPEG 2 has half as many, 2.5 a quarter


def start_of(pieces: Sequence[Piece]) -> bytes:
    return b"".join(bytes(piece[:START_BYTES]) for piece in pieces[:8])


def length_of(pieces: Sequence[Piece]) -> tuple[str, float]:
    """Return the seconds of the recording in a form, or its coding ("" if unknown) and the form's bytes."""
    size, start = sum(map(len, pieces)), start_of(pieces)
    found = FILE.search(start)
    if found is None:
        return "", float(size)
    end = b"".join(bytes(piece[-END_BYTES:]) for piece in pieces[-8:])
    coding, sound = found.lastgroup or "", start[found.start() + 4 :]
    try:
        seconds = _seconds(coding, sound, size - found.start() - 4, end)
    except (struct.error, ValueError, ZeroDivisionError, IndexError):  # no header that anybody can read
        seconds = 0.0
    believed = size / MOST_BYTES_PER_S <= seconds <= size / LEAST_BYTES_PER_S
    return ("seconds", seconds) if believed else (coding, float(size))


def _seconds(coding: str, sound: bytes, size: int, end: bytes) -> float:
    match coding:
        case "wav":
            (bytes_per_s,) = struct.unpack_from("<I", sound, sound.index(b"fmt ") + 16)
            return float(size / bytes_per_s)
        case "flac":  # STREAMINFO: 20 bits of Hz, 8 of the format, 36 of samples
            (format_and_samples,) = struct.unpack_from(">Q", sound, 18)
            return float((format_and_samples & 0xF_FFFF_FFFF) / (format_and_samples >> 44))
        case "ogg":  # the last page tells the samples up to its end
            vorbis = sound.find(b"\x01vorbis", 0, 256)
            hz = 48_000 if vorbis < 0 else struct.unpack_from("<I", sound, vorbis + 12)[0]
            return float(struct.unpack_from("<q", end, end.rindex(b"OggS") + 6)[0] / hz)
        case _:
            return _mp3_seconds(sound, size)


def _mp3_seconds(sound: bytes, size: int) -> float:
    at = 0
    if sound.startswith(b"ID3"):
        seven = sound[6:10]  # seven bits each
        at = 10 + (seven[0] << 21 | seven[1] << 14 | seven[2] << 7 | seven[3])
    if sound[at] != 0xFF:  # the first frame lies behind a large picture
        return 0.0
    version, kind = sound[at + 1] >> 3 & 3, sound[at + 2]
    hz = MP3_HZ[kind >> 2 & 3] >> (2, 0, 1, 0)[version]
    samples = 1152 if version == 3 else 576
    for tag in (b"Xing", b"Info"):  # an encoder's count of the frames, whose size may vary
        frames_at = sound.find(tag, at, at + 64)
        if frames_at >= 0 and sound[frames_at + 7] & 1:
            return float(struct.unpack_from(">I", sound, frames_at + 8)[0]) * samples / hz
    return (size - at) / (MP3_KBIT_S[version == 3][kind >> 4] * 125.0)
