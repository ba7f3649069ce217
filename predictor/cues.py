"""The dense features: a few numbers about a prompt's shape, and which classes of words it uses where.

`NAMES` gives their order. Counts are natural logarithms of one plus the count, flags are 0 or 1.
"""

from math import log1p

from predictor.length_ask import UNITS, asked_tokens
from predictor.lexicon import CLASSES
from predictor.words import WINDOW_CHARACTERS, split, split_with_numbers, window

FEATURES_VERSION = 1
"""Raise it when a feature changes its meaning: a model made for another version is refused."""

SHAPE = (
    "characters",
    "words_read",
    "lines",
    "characters_a_word",
    "ends_with_question",
    "ends_with_colon",
    "ends_with_full_stop",
    "ends_with_none",
    "questions",
    "sentences",
    "commas",
    "colons",
    "fences",
    "braces",
    "brackets",
    "asked_length",
    "asked_items",
    "asks_length",
    "asks_items",
    "distinct_share",
    "non_ascii_share",
    "lower_case_start",
    "blank_line",
    "second_choice",
    "after_first_line",
    "list_items",
    "exclamations",
    "quotes",
    "first_line",
)
NAMES = (*SHAPE, *(f"uses_{name}" for name in CLASSES), *(f"opens_{name}" for name in CLASSES))

_OPENING_WORDS = 8

LONGEST_WORD = 20.0
"""Text without blanks is one word; its mean word length must not dwarf every other cue."""


def _places() -> dict[bytes, tuple[int, ...]]:
    places: dict[bytes, tuple[int, ...]] = {}
    for place, words in enumerate(CLASSES.values()):
        for word in words.split():
            places[word.encode()] = (*places.get(word.encode(), ()), place)
    return places


_PLACES = _places()
_KNOWN = _PLACES.keys()


def read(prompt: str) -> tuple[list[bytes], list[float]]:
    """Return the words of the prompt's window and its dense features, in the order of `NAMES`."""
    seen = window(prompt)
    words = split(seen)
    distinct = set(words)
    cues = _shape(prompt, seen, words, distinct)
    used = [0] * len(CLASSES)
    for word in _KNOWN & distinct:
        for place in _PLACES[word]:
            used[place] += 1
    cues += [_LOG1P[count] for count in used]
    opens = [0.0] * len(CLASSES)
    for word in words[:_OPENING_WORDS]:
        for place in _PLACES.get(word, ()):
            opens[place] = 1.0
    cues += opens
    return words, cues


# No window holds more words than this.
_LOG1P = tuple(log1p(count) for count in range(2048))


def _shape(prompt: str, seen: bytes, words: list[bytes], distinct: set[bytes]) -> list[float]:
    length = len(prompt)
    first_line = prompt.find("\n")
    last = prompt[-64:].rstrip()[-1:]
    units = UNITS & distinct
    asked_length, asked_items = asked_tokens(split_with_numbers(seen), units) if units else (0.0, 0.0)
    count = seen.count
    return [
        log1p(length),
        log1p(len(words)),
        log1p(prompt.count("\n")),
        min(len(seen) / (len(words) + 1), LONGEST_WORD),
        float(last == "?"),
        float(last == ":"),
        float(last == "."),
        float(last not in _STOPS),
        log1p(count(b"?")),
        log1p(count(b". ")),
        log1p(count(b",")),
        log1p(count(b":")),
        log1p(count(b"```")),
        log1p(count(b"{")),
        log1p(count(b"(")),
        log1p(asked_length),
        log1p(asked_items),
        float(asked_length > 0),
        float(asked_items > 0),
        len(distinct) / (len(words) or 1),
        (len(seen) - length) / (len(seen) + 1) if length <= WINDOW_CHARACTERS else 0.0,
        float(prompt[:1].islower()),
        float(b"\n\n" in seen),
        float(b"b)" in seen or b"b." in seen or b"(b" in seen),
        log1p(length - 1 - first_line) if first_line >= 0 else 0.0,
        log1p(count(b"\n- ") + count(b"\n* ") + count(b"\n1")) if first_line >= 0 else 0.0,
        log1p(count(b"!")),
        log1p(count(b'"')),
        log1p(first_line if first_line >= 0 else length),
    ]


_STOPS = frozenset(("", ".", "?", "!", ":"))
