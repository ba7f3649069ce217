"""A prompt as words and as hashed 1- and 2-grams, in time that does not grow with the prompt.

Only a window is read: the first and the last few hundred characters, where instructions usually are;
between them is the material. Splitting works on UTF-8 bytes, because `bytes.translate` turns
punctuation into blanks for the whole window at once.

Words of other languages that tell an answer's length (`foreign_words.txt`, `unspaced_terms.txt`) read like
their English counterparts: almost all prompts with known answer lengths are English.
"""

import re
from array import array
from functools import cache
from pathlib import Path
from zlib import crc32

import numpy as np
import numpy.typing as npt

HEAD_WORDS = 40
TAIL_WORDS = 24
_CHARACTERS_A_WORD = 7  # room for a word and its blank; English needs 6
_HEAD = HEAD_WORDS * _CHARACTERS_A_WORD
_TAIL = TAIL_WORDS * _CHARACTERS_A_WORD
WINDOW_CHARACTERS = _HEAD + _TAIL

Hashes = npt.NDArray[np.uint32]

_KEPT = frozenset(b"+#")  # c++ and c# are words


def read_word_lists(name: str) -> dict[str, list[str]]:
    """Return the word lists of a file in this directory: lines of `name: words`, continued where indented."""
    lists: dict[str, list[str]] = {}
    for line in (Path(__file__).parent / name).read_text(encoding="utf-8").splitlines():
        if not line.startswith((" ", "#")):
            key, _, line = line.partition(":")
            words = lists.setdefault(key, [])
        if not line.startswith("#"):
            words += line.split()
    return lists


ENGLISH: dict[bytes, bytes] = {
    word.encode(): english.encode()
    for english, words in read_word_lists("foreign_words.txt").items()
    for word in words
}
"""Words of languages that separate words by blanks, in UTF-8, to their English counterparts."""

FOREIGN = ENGLISH.keys()

_UNSPACED = {
    term: f" {english} " for english, terms in read_word_lists("unspaced_terms.txt").items() for term in terms
}
_ANY_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_TWO_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u9fff]{2}")
_MARKS = str.maketrans(
    "，。；：？！、（）「」『』“”‘’«»¿¡—–…،؛؟٠١٢٣٤٥٦٧٨٩０１２３４５６７８９",
    ',.;:?!,()""""""\'\'""  --.,;?01234567890123456789',
)


@cache
def _any_term() -> re.Pattern[str]:
    """Return the pattern of all terms, made at first use: it takes milliseconds to make."""
    return re.compile("|".join(sorted(map(re.escape, _UNSPACED), key=len, reverse=True)))


def _plain(text: str) -> str:
    """Return a lower-case text that is not all ASCII with its marks and terms as English has them.

    Chinese and Japanese characters are split in pairs, which makes words about as long as English ones.
    """
    text = text.translate(_MARKS)
    if not _ANY_UNSPACED.search(text):
        return text
    text = _any_term().sub(lambda found: _UNSPACED[found[0]], text)
    return _TWO_UNSPACED.sub(r"\g<0> ", text)


def _table(digits: bytes) -> bytes:
    table = bytearray(range(256))
    for code in range(128):
        if not chr(code).isalnum() and code not in _KEPT:
            table[code] = ord(" ")
    table[ord("0") : ord("9") + 1] = digits
    return bytes(table)


_DIGITS_BLURRED = _table(b"0" * 10)
_DIGITS_KEPT = _table(b"0123456789")
_PAIR = np.uint32(0x9E3779B1)
_START, _END = crc32(b"^"), crc32(b"$")


def window(prompt: str, head: int = _HEAD, tail: int = _TAIL) -> bytes:
    """Return the first `head` and last `tail` characters, lower-cased, as UTF-8."""
    if len(prompt) > head + tail:
        prompt = f"{prompt[:head]} {prompt[-tail:]}"
    prompt = prompt.lower()
    if not prompt.isascii():
        prompt = _plain(prompt)
    return prompt.encode("utf-8", "replace").replace(b"'", b"")


def split(seen: bytes) -> list[bytes]:
    """Return the words of a window; every digit is 0, so that "500" and "750" are the same word."""
    return seen.translate(_DIGITS_BLURRED).split()


def in_english(words: list[bytes]) -> list[bytes]:
    """Return the words with those of other languages that are known in English, at the same places."""
    return [ENGLISH.get(word, word) for word in words]


def words_of(prompt: str) -> list[bytes]:
    """Return the words of a prompt's window, in English where they are known."""
    return in_english(split(window(prompt)))


def split_with_numbers(seen: bytes) -> list[bytes]:
    """Return the words of a window with the digits as they stand; the same words at the same places."""
    return seen.translate(_DIGITS_KEPT).split()


def gram_hashes(words: list[bytes]) -> Hashes:
    """Return the distinct 32-bit hashes of the words and of the pairs, both ends marked; sorted."""
    count = len(words) + 2
    hashes = np.empty(2 * count - 1, np.uint32)
    hashes[:count] = array("I", (_START, *map(crc32, words), _END))
    pairs = hashes[count:]
    np.multiply(hashes[: count - 1], _PAIR, pairs)
    pairs += hashes[1:count]
    hashes.sort()
    fresh = np.empty(len(hashes), bool)
    fresh[0] = True
    np.not_equal(hashes[1:], hashes[:-1], fresh[1:])
    return hashes[fresh]


def gram_hash(gram: list[bytes]) -> np.uint32:
    """Return the hash of one word or of a pair of words, as `gram_hashes` counts it."""
    first = crc32(gram[0])
    if len(gram) == 1:
        return np.uint32(first)
    return np.uint32((first * int(_PAIR) + crc32(gram[1])) & 0xFFFFFFFF)
