"""The 19 lexical features of the Clairvoyant paper (section 3.2), as the text describes them.

Where the text leaves a choice open, this is what was chosen:

* The keyword groups are the examples the text prints plus their inflections; its "etc." cannot be known.
* The instruction verb comes from the prompt's first token, as the text says, and from nowhere else.
* `prompt_token_len` counts code points, `len(prompt) // 4`; `clause_count` counts whole words.
* Words are looked for in the first and the last `END_CHARACTERS` of a prompt: a proxy cannot take its time.

One pass of `str.split` and set look-ups: linear in the prompt, no regular expression, any Unicode.
"""

from itertools import chain

NUMERIC = tuple(
    (
        "prompt_token_len has_code_keyword has_length_constraint ends_with_question has_format_keyword "
        "clause_count"
    ).split()
)
VERBS = tuple(
    ("what write explain summarize how list implement compare describe generate why define other").split()
)
NAMES = (*NUMERIC, *(f"verb_{verb}" for verb in VERBS))


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


CODE_WORDS = _words(
    "function functions class classes implement implementation algorithm algorithms code program script"
)
LENGTH_WORDS = _words("brief briefly detailed concise short long comprehensive thorough")
LENGTH_PHRASES = ("in one sentence", "in a sentence", "in detail", "step by step", "in one paragraph")
FORMAT_WORDS = _words("table list json csv markdown xml yaml bullet bullets")
CLAUSE_WORDS = _words(
    "although because before after since unless until when whenever where wherever whether while which "
    "that who whom whose if though"
)

END_CHARACTERS = 8192  # so much is read in a millisecond, and a prompt of 4,000 tokens whole
_EDGES = ".,;:!?\"'()[]{}<>*`#-_/\\"
_VERB_AT = {verb: index for index, verb in enumerate(VERBS, start=len(NUMERIC))}
_OTHER_AT = _VERB_AT["other"]


def paper_features(prompt: str, cut: int = 0) -> list[float]:
    """Return the 19 features of a prompt, which was `cut` characters longer, in the order of `NAMES`."""
    length = len(prompt) + cut
    if len(prompt) > 2 * END_CHARACTERS:
        prompt = f"{prompt[:END_CHARACTERS]} {prompt[-END_CHARACTERS:]}"
    lowered = prompt.lower()
    words = [word.strip(_EDGES) for word in lowered.split()]
    distinct = set(words)
    features = [0.0] * len(NAMES)
    features[0] = float(length // 4)
    features[1] = float(not CODE_WORDS.isdisjoint(distinct))
    features[2] = float(
        not LENGTH_WORDS.isdisjoint(distinct) or any(phrase in lowered for phrase in LENGTH_PHRASES)
    )
    features[3] = float(lowered.rstrip().endswith("?"))
    features[4] = float(not FORMAT_WORDS.isdisjoint(distinct))
    features[5] = float(sum(map(CLAUSE_WORDS.__contains__, words)))
    first = next(chain(words, ("",)))
    features[_VERB_AT.get(first, _OTHER_AT)] = 1.0
    return features
