"""Reads the answer length that a prompt states: "500 words", "a five-paragraph essay", "3 tips".

Data with known answer lengths holds few requests that state one. So the predicted mean is moved towards it by
a fixed share (`model.Reading.drawn`). Models follow a number of words better than a number of items.

Rule 1: a number counts only where it is asked for, not where it describes given material ("the 1000-word text
below"). Rule 2: "a sentence" or "a page" is idiom; "one sentence" and "two pages" are requests.
"""

import re
from collections.abc import Sequence, Set
from math import log, log1p, prod

from predictor.lexical.words import in_english, read_word_lists, split_with_numbers
from predictor.lognormal import SHIFT_TOKENS

_WORDS = {tuple(kind.split()): words for kind, words in read_word_lists("length_words.txt").items()}


def _sizes(kind: str) -> dict[bytes, float]:
    return {
        word.encode(): float(size) for (each, size), words in _WORDS.items() if each == kind for word in words
    }


_NUMBER_WORDS, _LENGTHS, _LISTED = _sizes("number"), _sizes("unit"), _sizes("item")

_TOKENS_ANY_ITEM = 35.0

UNITS = frozenset(_LENGTHS) | frozenset(_LISTED)  # what lengths and lists are counted in
BLURRED = frozenset(b"0 00 000 0000 00000 000000 0k 00k".split())
NUMBERS = frozenset(_NUMBER_WORDS) | BLURRED  # without one of these no length is stated

_SPOKEN_UNITS = frozenset(b"minute minutes min hour".split())
_SPOKEN = frozenset(b"speech talk lecture presentation script podcast sermon monologue video eulogy".split())
"""A minute is a length only of something spoken."""

_CHARACTERS = frozenset(b"character characters".split())
_MIN_CHARACTERS = 20  # fewer are people in a story

_NOT_LENGTHS = frozenset(b"problem problems puzzle puzzles game games search list lists".split())
"""After these, "25 word" is no length."""

_GIVEN = frozenset(b"the this these those following above below your my our given its their".split())
_GENERATIVE = frozenset(
    b"list give generate create write make produce suggest provide propose compose draft tell name show "
    b"me us".split()
)
_MULTIPLES = (b"hundred", b"thousand")
_MAX_DIGITS = 6
_BEFORE_COUNT = 3
_OPENING = 20
_MIN_LISTED = 3  # fewer are "two things", however long
_REACH = 4  # how many words from a number its unit may stand: "10 short blog posts"
MAX_NUMBERS = 8  # a prompt that holds more of them holds data
MAX_ASKED = 8000.0  # no model writes more at once, whatever it is asked


def asked_tokens(words: Sequence[bytes], places: Sequence[int] | None = None) -> tuple[float, float]:
    """Return the tokens asked for as a length and as a list of items; 0.0 where nothing is asked.

    `words` keep their digits; `places` are those of the numbers, found here if not given. "Three chapters of
    1000 words each" is a length of 3000 words.
    """
    if places is None:
        places = [place for place, word in enumerate(words) if word in _NUMBER_WORDS or word[:1].isdigit()]
    lengths: list[tuple[float, float]] = []
    items: list[tuple[float, float]] = []
    for place in places[:MAX_NUMBERS]:
        number = _number(words, place)
        if number is None or (place and words[place - 1] in _GIVEN):
            continue
        # "Give me 40 creative dishes": any plural is what a number counts that opens a list.
        opens_list = number >= _MIN_LISTED and place < _OPENING
        opens_list &= not _GENERATIVE.isdisjoint(words[max(0, place - _BEFORE_COUNT) : place])
        for where in range(place + 1, min(place + 1 + _REACH, len(words))):
            unit = words[where]
            if unit in _NUMBER_WORDS or unit.isdigit():
                break  # what follows is counted by that one
            if unit in _LENGTHS:
                if _is_length(words, where, number):
                    lengths.append((_LENGTHS[unit], number))
                    break
            elif unit in _LISTED or (opens_list and unit[-1:] == b"s"):
                items.append((_LISTED.get(unit, _TOKENS_ANY_ITEM), number))
                break
    if not (lengths or items):
        return 0.0, 0.0
    length = max(map(prod, lengths), default=0.0)
    if lengths and b"each" in words:
        size, number = min(lengths)
        length = max([length, *(size * number * times for other, times in lengths + items if other > size)])
    listed = max(map(prod, items), default=0.0)
    return min(length, MAX_ASKED), min(listed, MAX_ASKED)


def _is_length(words: Sequence[bytes], place: int, number: float) -> bool:
    unit = words[place]
    if place + 1 < len(words) and words[place + 1] in _NOT_LENGTHS:
        return False
    if unit in _SPOKEN_UNITS:
        return not _SPOKEN.isdisjoint(words)
    return unit not in _CHARACTERS or number >= _MIN_CHARACTERS


def _number(words: Sequence[bytes], place: int) -> float | None:
    """Return the number that ends at a place; None if it continues or is not a number."""
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


# -- the cues ------------------------------------------------------------------------------------------------

STATED_CUES = ("asked_length", "asked_items", "curt", "bare", "copied", "told", "told_share")
"""`told` is the stated length in log tokens, 0 if none is stated; `told_share`, 0 to 1, is its weight."""

_NOTHING = [0.0] * len(STATED_CUES)

LENGTH_SHARE = 0.6

FULL_TOKENS = 2000.0
LONGER_POWER = 0.7
"""Models write what is asked up to `FULL_TOKENS`, and less and less of what exceeds it."""

ITEMS_SHARE = 0.2
COPY_SHARE = 0.3
SUM_SHARE = 0.5

SUM_TOKENS = 12.0

PLENTY_TOKENS = 1000.0
PLENTY_SHARE = 0.5
FEW_ITEMS_TOKENS = 60.0
MANY_ITEMS_TOKENS = 200.0
"""Three keywords are short and forty recipes long; lists between these two bounds tell nothing."""

_CURT = re.compile(
    b"yes or no|true or false|(?:one|a single|single) (?:word|letter|number)|just (?:the|a) (?:number|name|"
    b"word|answer|code|result|letter)|only (?:the|a) (?:number|name|word|command|letter|result|final answer)|"
    b"(?:number|name|word|letter|command) only|one liner|in a (?:word|sentence)|one short (?:line|sentence)"
)
_BARE = re.compile(
    b"nothing else|(?:no|without(?: any)?) explanations?|only (?:reply|answer|respond|return|output)|"
    b"(?:reply|answer|respond|return|output)(?: with)? only|tldr|tl dr|be brief|keep it (?:short|brief)|"
    b"very (?:short|brief)|no (?:more|other) (?:words|text)"
)
_MARKERS = frozenset(
    b"yes true only just nothing explanation explanations single one liner tldr tl brief short word sentence "
    b"other".split()
)
"""Every match of `_CURT` and `_BARE` contains one of these words."""

_SUM = re.compile(rb"\d\s*(?:[-+*/x^=]|\xc3\x97)\s*\d")
_LONGEST_SUM = 48  # characters: "What is 2+2?", and not an exercise
_SUM_STATED = [0.0, 0.0, 1.0, 0.0, 0.0, log(SUM_TOKENS + SHIFT_TOKENS), SUM_SHARE]

_COPYING = frozenset(
    b"translate proofread paraphrase rephrase rewrite reword convert correct fix improve edit refactor "
    b"polish transcribe retype retell".split()
)
_NOT_COPYING = frozenset(
    b"summarize summary summarise summarized shorten shorter brief briefly concise simplify tldr title "
    b"keywords classify".split()
)
_HEAD_WORDS = 10
_TAIL_WORDS = 22
_MIN_COPIED = 600  # characters; for shorter texts the words themselves are enough
_CHARACTERS_A_TOKEN = 4.2


def stated_cues(length: int, seen: bytes, words: list[bytes], distinct: Set[bytes]) -> list[float]:
    """Return the cues of `STATED_CUES` for a prompt of `length` characters."""
    numbers = NUMBERS & distinct
    marked = not _MARKERS.isdisjoint(distinct)
    if length < _LONGEST_SUM and _SUM.search(seen):
        return _SUM_STATED
    if not (numbers or marked) and length < _MIN_COPIED:
        return _NOTHING
    firm = listed = 0.0
    curt = bare = False
    if numbers:
        firm, listed = _asked(seen, words, numbers)
    if marked:
        joined = b" ".join(words)
        curt = _CURT.search(joined) is not None
        bare = _BARE.search(joined) is not None
    copied = length / _CHARACTERS_A_TOKEN if length >= _MIN_COPIED and _copies(words, distinct) else 0.0
    tokens, share = _belief(firm, listed, copied)
    mean = log(tokens + SHIFT_TOKENS) if share else 0.0
    return [log1p(firm), log1p(listed), float(curt), float(bare), log1p(copied), mean, share]


def _asked(seen: bytes, words: list[bytes], numbers: Set[bytes]) -> tuple[float, float]:
    if BLURRED.isdisjoint(numbers):
        return asked_tokens(words, sorted(map(words.index, numbers)))
    places = [place for place, word in enumerate(words) if word in numbers]
    return asked_tokens(in_english(split_with_numbers(seen)), places)


def _belief(firm: float, listed: float, copied: float) -> tuple[float, float]:
    """Return the stated tokens and their share; a length counts before a copy, and a copy before items."""
    if firm:
        asked = max(firm, listed) if listed > 2 * firm else firm
        return min(asked, FULL_TOKENS * (asked / FULL_TOKENS) ** LONGER_POWER), LENGTH_SHARE
    if copied:
        return copied, COPY_SHARE
    if listed >= PLENTY_TOKENS:
        return listed, PLENTY_SHARE
    if listed >= MANY_ITEMS_TOKENS or 0 < listed <= FEW_ITEMS_TOKENS:
        return listed, ITEMS_SHARE
    return 0.0, 0.0


def _copies(words: Sequence[bytes], distinct: Set[bytes]) -> bool:
    if _COPYING.isdisjoint(distinct) or not _NOT_COPYING.isdisjoint(distinct):
        return False
    return not (_COPYING.isdisjoint(words[:_HEAD_WORDS]) and _COPYING.isdisjoint(words[-_TAIL_WORDS:]))
