"""What a request says of its own length, and how far that is to be believed before any data is seen.

Data with known answer lengths holds few requests that say how long they want the answer, and far fewer of
each way of saying it. So what is said sets a prior: the score is drawn towards it by a fixed share, and
the trees learn what is left. The shares are round numbers: models follow a number of words better than a
number of items, which at twice its share ranked distributions never seen worse.
"""

import re
from collections.abc import Sequence, Set
from math import log, log1p

from predictor.lexical.requested_length import BLURRED, MAX_NUMBERS, NUMBERS, asked_at
from predictor.lexical.words import in_english, split_with_numbers
from predictor.lognormal import SHIFT_TOKENS

STATED_CUES = ("asked_length", "asked_items", "curt", "bare", "copied", "told", "told_share")
"""The cues made here. `told` is the stated length in log tokens, 0 where none is stated; `told_share`, from
0 to 1, how far it counts. Both keep the names that model files have."""

_NOTHING = [0.0] * len(STATED_CUES)

LENGTH_SHARE = 0.6

FULL_TOKENS = 2000.0
LONGER_POWER = 0.7
"""Up to this models write what they are asked for; of what goes beyond it they write less and less."""

ITEMS_SHARE = 0.2
COPY_SHARE = 0.3
SUM_SHARE = 0.5

SUM_TOKENS = 12.0

PLENTY_TOKENS = 1000.0
PLENTY_SHARE = 0.5
"""Sixty questions are long, whatever they are asked as."""

FEW_ITEMS_TOKENS = 60.0
MANY_ITEMS_TOKENS = 200.0
"""Three keywords are short and forty recipes long; what lies between may be as long as it likes."""

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
"""Without one of these there is nothing for the two to find."""

_SUM = re.compile(rb"\d\s*(?:[-+*/x^=]|\xc3\x97)\s*\d")
_LONGEST_SUM = 48
"""Characters: "What is 2+2?", and not an exercise."""

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
_MIN_COPIED = 600
"""Characters; what is told of shorter texts, the words themselves tell."""

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
        return asked_at(words, [words.index(number) for number in numbers])
    places = [place for place, word in enumerate(words) if word in numbers]
    return asked_at(in_english(split_with_numbers(seen)), places[:MAX_NUMBERS])


def _belief(firm: float, listed: float, copied: float) -> tuple[float, float]:
    """Return the tokens that are stated, and their share; the plainest way of saying it wins."""
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
