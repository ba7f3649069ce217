"""How many tokens a prompt asks for in so many words: "500 words", "a five-paragraph essay", "3 tips".

Rule 1: a number counts only where it is asked for, not where it belongs to material that is given ("the
1000-word text below").
Rule 2: "a sentence" or "a page" is a way of speaking; "one sentence" and "two pages" are requests.
"""

from collections.abc import Sequence, Set

from predictor.lexical.words import read_word_lists

_WORDS = {tuple(kind.split()): words for kind, words in read_word_lists("length_words.txt").items()}


def _sizes(kind: str) -> dict[bytes, float]:
    return {
        word.encode(): float(size) for (each, size), words in _WORDS.items() if each == kind for word in words
    }


_NUMBER_WORDS, _LENGTHS, _LISTED = _sizes("number"), _sizes("unit"), _sizes("item")

_TOKENS_ANY_ITEM = 35.0

UNITS = frozenset(_LENGTHS) | frozenset(_LISTED)
"""What lengths and lists are counted in."""

BLURRED = frozenset(b"0 00 000 0000 00000 000000 0k 00k".split())
NUMBERS = frozenset(_NUMBER_WORDS) | BLURRED
"""The numbers, those in digits blurred: where none of them is, nothing is asked for."""

_SPOKEN_UNITS = frozenset(b"minute minutes min hour".split())
_SPOKEN = frozenset(b"speech talk lecture presentation script podcast sermon monologue video eulogy".split())
"""A minute is a length of what is spoken, and otherwise a time."""

_CHARACTERS = frozenset(b"character characters".split())
_MIN_CHARACTERS = 20
"""Fewer are people in a story."""

_NOT_LENGTHS = frozenset(b"problem problems puzzle puzzles game games search list lists".split())
"""What makes of "25 word" something else."""

_GIVEN = frozenset(b"the this these those following above below your my our given its their".split())
_GENERATIVE = frozenset(
    b"list give generate create write make produce suggest provide propose compose draft tell name show "
    b"me us".split()
)
_BEFORE_COUNT = 3
_OPENING = 20
_MIN_LISTED = 3
"""Fewer are "two things", however long."""

_REACH = 4
"""How many words from a number its unit may stand: "10 short blog posts"."""

MAX_NUMBERS = 8
"""A prompt that holds more of them holds data."""

MAX_ASKED = 8000.0
"""No model writes more at once, whatever it is asked."""


def asked_tokens(words: Sequence[bytes], units: Set[bytes] = UNITS) -> tuple[float, float]:
    """Return the tokens asked for as a length and as a list of items; 0.0 where nothing is asked.

    Digits in `words` stand as they are; of `UNITS`, only those in `units` are looked for. "Three chapters of
    1000 words each" is a length of 3000 words, and in "give me 40 creative dishes" any plural is an item.
    """
    numbers = [place for place, word in enumerate(words) if word in _NUMBER_WORDS or word[:1].isdigit()]
    if len(units) < len(UNITS):
        words = [word if word in units or word not in UNITS else b"" for word in words]
    return asked_at(words, numbers[:MAX_NUMBERS])


def asked_at(words: Sequence[bytes], places: Sequence[int]) -> tuple[float, float]:
    """Return what `asked_tokens` does, given the places of the numbers."""
    lengths: list[tuple[float, float]] = []
    items: list[tuple[float, float]] = []
    for place in places:
        number = _number(words, place)
        if number is None or (place and words[place - 1] in _GIVEN):
            continue
        for where in range(place + 1, min(place + 1 + _REACH, len(words))):
            unit = words[where]
            if unit in _NUMBER_WORDS or unit.isdigit():
                break  # what follows is counted by that one
            if unit in _LENGTHS:
                if _is_length(words, where, number):
                    lengths.append((_LENGTHS[unit], number))
                    break
            elif unit in _LISTED or (unit[-1:] == b"s" and _opens_list(words, place, number)):
                items.append((_LISTED.get(unit, _TOKENS_ANY_ITEM), number))
                break
    if not (lengths or items):
        return 0.0, 0.0
    length = max([size * number for size, number in lengths], default=0.0)
    if lengths and b"each" in words:
        size, number = min(lengths)
        length = max([length, *(size * number * times for other, times in lengths + items if other > size)])
    listed = max([size * number for size, number in items], default=0.0)
    return min(length, MAX_ASKED), min(listed, MAX_ASKED)


def _is_length(words: Sequence[bytes], place: int, number: float) -> bool:
    unit = words[place]
    if place + 1 < len(words) and words[place + 1] in _NOT_LENGTHS:
        return False
    if unit in _SPOKEN_UNITS:
        return not _SPOKEN.isdisjoint(words)
    return unit not in _CHARACTERS or number >= _MIN_CHARACTERS


def _opens_list(words: Sequence[bytes], place: int, number: float) -> bool:
    """Tell whether a number is that of "give me 40 creative dishes", whatever the things are called."""
    if number < _MIN_LISTED or place >= _OPENING:
        return False
    return not _GENERATIVE.isdisjoint(words[max(0, place - _BEFORE_COUNT) : place])


def _number(words: Sequence[bytes], place: int) -> float | None:
    """Return the number that ends at a place; None where it goes on, or is none."""
    word = words[place]
    before = words[place - 1] if place else b""
    after = words[place + 1] if place + 1 < len(words) else b""
    known = _NUMBER_WORDS.get(word)
    if known is not None:
        if after in _MULTIPLES and known < 100:
            return None
        # "two thousand words"
        return known * _NUMBER_WORDS.get(before, 1) if known >= 100 else known
    if len(word) > _MAX_DIGITS:
        return None
    if word[-1:] == b"k" and word[:-1].isdigit():
        return 1000.0 * int(word[:-1])
    if not word.isdigit():
        return None
    number = int(word)
    # "2,000 words" has been split at its comma.
    if len(after) == 3 and len(word) <= 2 and after.isdigit():
        return None
    if len(word) == 3 and before.isdigit() and len(before) <= 2:
        number += 1000 * int(before)
    return number


_MULTIPLES = (b"hundred", b"thousand")
_MAX_DIGITS = 6
