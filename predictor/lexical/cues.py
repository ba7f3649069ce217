"""Reads the dense features of a prompt: its shape, and which classes of words it uses where.

`NAMES` gives their order. Counts are natural logarithms of one plus the count, flags are 0 or 1.
"""

from math import log1p

from predictor.lexical.stated_length import STATED_CUES, stated_cues
from predictor.lexical.words import FOREIGN, WINDOW_CHARACTERS, in_english, read_word_lists, split, window

FEATURES_VERSION = 6
"""Raise it when a feature changes its meaning: a model made for another version is refused."""

CLASSES = read_word_lists("word_classes.txt")

SHAPE = (
    "characters words_read lines characters_a_word ends_with_question ends_with_colon "
    "ends_with_full_stop ends_with_none questions sentences commas colons fences braces brackets "
    "distinct_share non_ascii_share lower_case_start blank_line second_choice after_first_line "
    "list_items exclamations quotes first_line"
).split()
NAMES = (*SHAPE, *(f"uses_{name}" for name in CLASSES), *(f"opens_{name}" for name in CLASSES), *STATED_CUES)

_OPENING_WORDS = 8

LONGEST_WORD = 20.0  # text without blanks is one word; its mean word length must not dwarf every other cue


def _places() -> dict[bytes, tuple[int, ...]]:
    """Return the places in `NAMES` of the classes that each word is of."""
    places: dict[bytes, tuple[int, ...]] = {}
    for place, words in enumerate(CLASSES.values(), start=len(SHAPE)):
        for word in words:
            places[word.encode()] = (*places.get(word.encode(), ()), place)
    return places


_PLACES = _places()
_KNOWN = _PLACES.keys()


def read(prompt: str, cut: int = 0) -> tuple[list[bytes], list[float]]:
    """Return the words of the prompt's window and its dense features, in the order of `NAMES`.

    `cut` says how many characters longer the prompt was; its middle, which no window shows, was left out.
    """
    seen = window(prompt)
    words = split(seen)
    distinct = set(words)
    if not FOREIGN.isdisjoint(distinct):
        words = in_english(words)
        distinct = set(words)
    cues = [
        *_shape(prompt, cut, seen, words, distinct),
        *_NO_CLASSES,
        *stated_cues(len(prompt) + cut, seen, words, distinct),
    ]
    for word in _KNOWN & distinct:
        for place in _PLACES[word]:
            used = cues[place]
            cues[place] = _ONE_MORE[used] if used else _ONE
    for word in words[:_OPENING_WORDS]:
        for place in _PLACES.get(word, ()):
            cues[place + len(CLASSES)] = 1.0
    return words, cues


_NO_CLASSES = [0.0] * (2 * len(CLASSES))
_ONE = log1p(1)
_ONE_MORE = {log1p(count): log1p(count + 1) for count in range(WINDOW_CHARACTERS)}


def _shape(prompt: str, cut: int, seen: bytes, words: list[bytes], distinct: set[bytes]) -> list[float]:
    length = len(prompt) + cut
    first_line = prompt.find("\n")
    lines: float = prompt.count("\n") if first_line >= 0 else 0
    if cut and lines:  # they are as long in between as they are at the ends
        lines *= length / len(prompt)
    last = seen[-64:].rstrip()[-1:]
    count = seen.count
    return [
        log1p(length),
        log1p(len(words)),
        log1p(lines),
        min(len(seen) / (len(words) + 1), LONGEST_WORD),
        1.0 if last == b"?" else 0.0,
        1.0 if last == b":" else 0.0,
        1.0 if last == b"." else 0.0,
        0.0 if last in _STOPS else 1.0,
        log1p(count(b"?")),
        log1p(count(b". ")),
        log1p(count(b",")),
        log1p(count(b":")),
        log1p(count(b"```")),
        log1p(count(b"{")),
        log1p(count(b"(")),
        len(distinct) / (len(words) or 1),
        0.0 if seen.isascii() else 1.0 - len(seen.decode("utf-8")) / len(seen),
        1.0 if prompt[:1].islower() else 0.0,
        1.0 if first_line >= 0 and b"\n\n" in seen else 0.0,
        1.0 if b"b)" in seen or b"b." in seen or b"(b" in seen else 0.0,
        log1p(length - 1 - first_line) if first_line >= 0 else 0.0,
        log1p(count(b"\n- ") + count(b"\n* ") + count(b"\n1")) if first_line >= 0 else 0.0,
        log1p(count(b"!")),
        log1p(count(b'"')),
        log1p(first_line if first_line >= 0 else length),
    ]


_STOPS = frozenset((b"", b".", b"?", b"!", b":"))
