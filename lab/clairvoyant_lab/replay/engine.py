"""The replay engine: an LLM server without the LLM.

1. At most `slots` answers run at once; the rest wait first-come-first-served, as inside Ollama.
2. Token i is due at t0 + i / rate from one t0: late timers do not add up.
3. Equal seeds and prompts give equal answers, token for token.
4. Only digests of prompts are kept, never their text.
5. Given the beginning of its own answer, it continues with the rest.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from math import ceil, inf
from random import Random

from clairvoyant_lab.replay.kv_cache import CHARS_PER_TOKEN, KvCache

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


def answer_words(seed: str) -> Iterator[str]:
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


@dataclass(slots=True, eq=False)
class Service:
    """One request; times are seconds on the event loop's clock.

    `tokens` of `planned_tokens` were sent, since `begun_s`. `prompt_tokens` is an estimate of four characters
    a token, plus the `said_tokens` of a resumed answer. `words` is the seed of the answer's words.
    `cached_tokens` of the prompt are not read again.
    """

    digest: str
    prompt_tokens: int
    planned_tokens: int
    capped: bool = False
    said_tokens: int = 0
    words: str = ""
    cached_tokens: int = 0
    begun_s: float = 0.0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Speed:
    """The speeds of prefill and decode; `inf` means instantly."""

    prefill_tokens_per_s: float = inf
    decode_tokens_per_s: float = inf


@dataclass(eq=False)
class Engine:
    """Slots and a clock. One event loop only.

    After the first token, `stride` tokens are sent at a time, when the last of them is due. Resuming a cut
    answer takes `resume_s`, or with None a prefill of the prompt and the answer so far. With a `cache`, every
    prefill takes as long as the tokens that are not cached, and prompts are counted as rendered.
    """

    slots: int = 1
    speed: Speed = field(default_factory=Speed)
    stride: int = 1
    answer_tokens: AnswerTokens = heavy_tailed
    seed: int = 0
    resume_s: float | None = None
    cache: KvCache | None = None

    def __post_init__(self) -> None:
        self._free = asyncio.Semaphore(self.slots)

    def arrive(self, route: str, prompt: str, text_chars: int, cap: int | None, said: str = "") -> Service:
        """Plan the answer to a request; `cap` limits it, `said` is what exists of it already."""
        name, said_tokens = digest(prompt), len(said.split())
        rng = Random(f"{self.seed}:{name}")  # noqa: S311 - replays, keeps no secret
        wanted = max(0, self.answer_tokens(prompt, rng) - said_tokens)
        begun = "".join(islice(answer_words(f"{self.seed}:{name}:words"), said_tokens))
        return Service(
            digest=name,
            prompt_tokens=max(1, ceil(text_chars / 4)) + said_tokens,
            planned_tokens=wanted if cap is None else min(wanted, cap),
            capped=cap is not None and cap < wanted,
            said_tokens=said_tokens,
            words=name if begun == said else f"{name}:{digest(said)}",
        )

    @asynccontextmanager
    async def slot(self, service: Service, text: str = "") -> AsyncIterator[None]:
        """Hold a slot for a request with this rendered prompt; cancelling it frees its place at once.

        With a cache, note what is cached of the prompt, and leave in the slot what was read and written.
        """
        async with self._free:
            if self.cache is None:
                yield
                return
            slot, shared = self.cache.take(text)
            service.prompt_tokens = max(1, ceil(len(text) / CHARS_PER_TOKEN))
            service.cached_tokens = min(shared // CHARS_PER_TOKEN, service.prompt_tokens - 1)
            clock, prefill_s = asyncio.get_running_loop().time, self.prefill_s(service)
            started_s = clock()
            try:
                yield
            finally:
                elapsed_s = clock() - started_s
                if service.tokens == 0 and elapsed_s < prefill_s:
                    text = text[: shared + int((len(text) - shared) * elapsed_s / prefill_s)]
                self.cache.release(slot, text + "".join(islice(self._answer(service), service.tokens)))

    def prefill_s(self, service: Service) -> float:
        """Return the seconds from taking a slot to the begin of decoding."""
        if service.said_tokens and self.resume_s is not None and self.cache is None:
            return self.resume_s
        return (service.prompt_tokens - service.cached_tokens) / self.speed.prefill_tokens_per_s

    async def prefill(self, service: Service) -> None:
        await asyncio.sleep(self.prefill_s(service))

    async def decode(self, service: Service) -> AsyncGenerator[list[str], None]:
        """Yield the tokens of the answer when they are due, several if timers are too coarse."""
        words, rate = self._answer(service), self.speed.decode_tokens_per_s
        clock = asyncio.get_running_loop().time
        service.begun_s = clock()
        last = service.planned_tokens
        while service.tokens < last:
            step = self.stride if service.tokens else 1
            next_due_s = service.begun_s + min(last, service.tokens + step) / rate
            await asyncio.sleep(max(0.0, next_due_s - clock()))
            # An infinite rate still streams: readers see pieces, and a client that leaves is noticed.
            due = int((clock() - service.begun_s) * rate) if rate != inf else 0
            batch = max(1, min(last, due) - service.tokens)
            yield list(islice(words, batch))
            self._sent(service, batch)

    def _sent(self, service: Service, tokens: int) -> None:
        service.tokens += tokens

    def _answer(self, service: Service) -> Iterator[str]:
        return islice(answer_words(f"{self.seed}:{service.words}:words"), service.said_tokens, None)
