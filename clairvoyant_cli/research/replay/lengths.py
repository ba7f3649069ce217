"""How long the replayed answers are, and the words they are made of."""

from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from random import Random

AnswerTokens = Callable[[str, Random], int]
"""How long the answer to a prompt is, in tokens; `Random` is seeded by the engine's seed and the prompt."""

VOCABULARY = (
    "amber river stone quiet lantern window garden letter morning harbour copper meadow violet thread "
    "candle winter orchard marble signal forest ribbon silver bridge market summer valley paper island "
    "compass feather kettle mirror pebble saddle timber velvet walnut anchor basket cotton"
)
WORDS = tuple(VOCABULARY.split())


def digest(prompt: str) -> str:
    """Return the name the journal knows a prompt by."""
    return sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def words_of(seed: str) -> Iterator[str]:
    """Yield an answer without end, token by token: words, each but the first with the space before it."""
    rng = Random(seed)  # noqa: S311 - replays, keeps no secret
    yield rng.choice(WORDS)
    while True:
        yield " " + rng.choice(WORDS)


def heavy_tailed(prompt: str, rng: Random) -> int:
    """Draw a length as chat traffic has them: median about 150 tokens, one in ten over 700."""
    return min(4096, max(1, round(rng.lognormvariate(5.0, 1.2))))


def tabled(tokens: Mapping[str, int], otherwise: AnswerTokens = heavy_tailed) -> AnswerTokens:
    """Return the lengths of a table from prompt to tokens; prompts not in it are left to `otherwise`."""
    known = {digest(prompt): count for prompt, count in tokens.items()}

    def look_up(prompt: str, rng: Random) -> int:
        found = known.get(digest(prompt))
        return otherwise(prompt, rng) if found is None else found

    return look_up
