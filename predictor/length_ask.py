"""How many tokens a prompt asks for in so many words: "500 words", "a five-paragraph essay", "3 tips"."""

from collections.abc import Set

_COUNTING = (
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty"
)
_NUMBER_WORDS = {word.encode(): value for value, word in enumerate(_COUNTING.split(), start=1)} | {
    b"a": 1,
    b"an": 1,
    b"single": 1,
    b"couple": 2,
    b"few": 3,
    b"several": 5,
    b"thirty": 30,
    b"forty": 40,
    b"fifty": 50,
    b"hundred": 100,
    b"thousand": 1000,
}

_TOKENS_A_UNIT = {
    "character characters chars": 0.25,
    "token tokens": 1.0,
    "word words": 1.35,
    "line lines": 14.0,
    "sentence sentences": 26.0,
    "stanza stanzas verse verses": 50.0,
    "slide slides": 90.0,
    "paragraph paragraphs": 110.0,
    "section sections minute minutes min": 180.0,
    "page pages": 600.0,
    "chapter chapters": 800.0,
}

_TOKENS_AN_ITEM = 40.0
_ITEMS = (
    "example examples ideas ways tips steps reasons suggestions recommendations questions topics "
    "items things types facts benefits advantages techniques strategies methods features factors "
    "options differences activities tools exercises names titles books movies recipes tweets posts "
    "scenes episodes prompts jokes headlines slogans quotes lessons challenges variations versions "
    "scenarios problems puzzles days weeks modules stories poems articles bullet bullets point points"
)

_LENGTHS = {word.encode(): size for words, size in _TOKENS_A_UNIT.items() for word in words.split()}
_LISTED = frozenset(word.encode() for word in _ITEMS.split())
UNITS = frozenset(_LENGTHS) | _LISTED
"""The words that make it worth looking: without one of them there is no request to find."""

_REACH = 3
"""How many words before the unit its number may stand: "10 short blog posts"."""

_MAX_DIGITS = 6


def asked_tokens(words: list[bytes], units: Set[bytes]) -> tuple[float, float]:
    """Return the tokens asked for as a length and as a list of items; 0.0 where nothing is asked.

    `units` are those of `UNITS` that occur in `words`; only the first of each is looked at.
    """
    length = listed = 0.0
    for unit in units:
        place = words.index(unit)
        for before in range(place - 1, max(place - 1 - _REACH, -1), -1):
            number = _number(words, before)
            if number is not None:
                if unit in _LISTED:
                    listed = max(listed, number * _TOKENS_AN_ITEM)
                else:
                    length = max(length, number * _LENGTHS[unit])
                break
    return length, listed


def _number(words: list[bytes], place: int) -> int | None:
    word = words[place]
    known = _NUMBER_WORDS.get(word)
    if known is not None:
        return known
    if not word.isdigit() or len(word) > _MAX_DIGITS:
        return None
    number = int(word)
    # "2,000 words" has been split at its comma.
    if len(word) == 3 and place and words[place - 1].isdigit() and len(words[place - 1]) <= 2:
        number += 1000 * int(words[place - 1])
    return number
