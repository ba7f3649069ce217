"""The replay engine: an LLM server without the LLM, and a journal of what it served.

1. At most `slots` answers run at once; the rest wait first-come-first-served, as inside Ollama.
2. Token i is due at t0 + i / rate from one t0: late timers do not add up.
3. Equal seeds and prompts give equal answers, token for token.
4. The journal contains digests of prompts, never their text.
5. Given the beginning of its own answer, it continues with the rest.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from math import ceil, inf
from random import Random

from clairvoyant_cli.research.replay.kv_cache import CHARS_PER_TOKEN, KvCache
from clairvoyant_cli.research.replay.lengths import AnswerTokens, digest, heavy_tailed, words_of


class Outcome(StrEnum):
    """The state of a request."""

    WAITING = "waiting"
    RUNNING = "running"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class Service:
    """One request in the journal; times are seconds on the event loop's clock.

    `start_order` counts from 0 in the order of taking slots. `tokens` of `planned_tokens` were sent.
    `prompt_tokens` is an estimate of four characters a token, plus the `said_tokens` of a resumed answer.
    `words` is the seed of the answer's words. `cached_tokens` of the prompt are not read again.
    """

    route: str
    digest: str
    prompt_tokens: int
    planned_tokens: int
    arrived_s: float
    capped: bool = False
    said_tokens: int = 0
    words: str = ""
    cached_tokens: int = 0
    start_order: int | None = None
    started_s: float | None = None
    ended_s: float | None = None
    tokens: int = 0
    outcome: Outcome = Outcome.WAITING


@dataclass(slots=True)
class Counts:
    """The numbers of requests that have ever reached a state."""

    arrived: int = 0
    started: int = 0
    first_token: int = 0
    completed: int = 0
    cancelled: int = 0
    failed: int = 0

    @property
    def ended(self) -> int:
        """Requests that have ended in any way."""
        return self.completed + self.cancelled + self.failed


@dataclass(frozen=True, slots=True)
class Speed:
    """The speeds of prefill and decode; `inf` means instantly."""

    prefill_tokens_per_s: float = inf
    decode_tokens_per_s: float = inf

    def prefill_s(self, tokens: int) -> float:
        """Return the seconds of a prefill."""
        return tokens / self.prefill_tokens_per_s

    def decode_s(self, tokens: int) -> float:
        """Return the seconds it takes to decode an answer."""
        return tokens / self.decode_tokens_per_s


@dataclass(eq=False)
class Engine:
    """Slots, a clock and a journal. One event loop only.

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
    journal: list[Service] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        self._free = asyncio.Semaphore(self.slots)
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Engine {len(self.waiting)} waiting, {len(self.running)} running, {self.counts}>"

    # -- state -----------------------------------------------------------------------------------------

    @property
    def waiting(self) -> list[Service]:
        """The requests without a slot, in order of arrival."""
        return [s for s in self.journal if s.outcome is Outcome.WAITING]

    @property
    def running(self) -> list[Service]:
        """The requests in a slot, in order of arrival."""
        return [s for s in self.journal if s.outcome is Outcome.RUNNING]

    @property
    def started(self) -> list[Service]:
        """The requests that got a slot, in that order."""
        return sorted(
            (s for s in self.journal if s.start_order is not None), key=lambda s: s.start_order or 0
        )

    async def wait_until(self, reached: Callable[[Counts], bool], timeout_s: float = 10.0) -> None:
        """Wait until `reached(self.counts)`; TimeoutError with the state if that takes too long."""
        try:
            async with asyncio.timeout(timeout_s):
                while not reached(self.counts):
                    await self._changed.wait()
        except TimeoutError:
            raise TimeoutError(f"the replay backend did not reach it in {timeout_s} s: {self!r}") from None

    # -- controls --------------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Stop sending tokens until `thaw`; slots stay occupied."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Send tokens again."""
        self._flowing.set()

    # -- serving ---------------------------------------------------------------------------------------

    def arrive(self, route: str, prompt: str, text_chars: int, cap: int | None, said: str = "") -> Service:
        """Enter a request into the journal; `cap` limits its answer, `said` is what exists of it already."""
        rng = Random(f"{self.seed}:{digest(prompt)}")  # noqa: S311 - replays, keeps no secret
        said_tokens = len(said.split())
        wanted = max(0, self.answer_tokens(prompt, rng) - said_tokens)
        service = Service(
            route=route,
            digest=digest(prompt),
            prompt_tokens=max(1, ceil(text_chars / 4)) + said_tokens,
            planned_tokens=wanted if cap is None else min(wanted, cap),
            arrived_s=asyncio.get_running_loop().time(),
            capped=cap is not None and cap < wanted,
            said_tokens=said_tokens,
            words=self._words(digest(prompt), said_tokens, said),
        )
        self.journal.append(service)
        self.counts.arrived += 1
        self._tell()
        return service

    @asynccontextmanager
    async def slot(self, service: Service, text: str = "") -> AsyncIterator[None]:
        """Hold a slot for a request with this rendered prompt; cancelling it frees its place at once."""
        try:
            async with self._free:
                service.outcome = Outcome.RUNNING
                service.start_order = self.counts.started
                service.started_s = asyncio.get_running_loop().time()
                self.counts.started += 1
                self._tell()
                with self._cached(service, text):
                    yield
            service.outcome = Outcome.COMPLETED
            self.counts.completed += 1
        except asyncio.CancelledError:
            service.outcome = Outcome.CANCELLED
            self.counts.cancelled += 1
            raise
        except BaseException:
            service.outcome = Outcome.FAILED
            self.counts.failed += 1
            raise
        finally:
            service.ended_s = asyncio.get_running_loop().time()
            self._tell()

    @contextmanager
    def _cached(self, service: Service, text: str) -> Iterator[None]:
        """Note what is cached of a prompt, and leave in the slot what was read and written."""
        if self.cache is None or service.started_s is None:
            yield
            return
        slot, shared = self.cache.take(text)
        service.prompt_tokens = max(1, ceil(len(text) / CHARS_PER_TOKEN))
        service.cached_tokens = min(shared // CHARS_PER_TOKEN, service.prompt_tokens - 1)
        try:
            yield
        finally:
            elapsed_s, prefill_s = (
                asyncio.get_running_loop().time() - service.started_s,
                self.prefill_s(service),
            )
            if service.tokens == 0 and elapsed_s < prefill_s:
                text = text[: shared + int((len(text) - shared) * elapsed_s / prefill_s)]
            self.cache.release(slot, text + "".join(islice(self._answer(service), service.tokens)))

    def prefill_s(self, service: Service) -> float:
        """Return the seconds from taking a slot to the begin of decoding."""
        if service.said_tokens and self.resume_s is not None and self.cache is None:
            return self.resume_s
        return self.speed.prefill_s(service.prompt_tokens - service.cached_tokens)

    async def prefill(self, service: Service) -> None:
        await asyncio.sleep(self.prefill_s(service))
        await self._flowing.wait()

    async def decode(self, service: Service) -> AsyncGenerator[list[str], None]:
        """Yield the tokens of the answer when they are due, several if timers are too coarse."""
        words = self._answer(service)
        clock = asyncio.get_running_loop().time
        begun_s, frozen_s = clock(), 0.0
        last = service.planned_tokens
        while service.tokens < last:
            step = self.stride if service.tokens else 1
            next_due_s = begun_s + frozen_s + self.speed.decode_s(min(last, service.tokens + step))
            await asyncio.sleep(max(0.0, next_due_s - clock()))
            frozen_s += await self._while_frozen()
            due = self._due_tokens(clock() - begun_s - frozen_s)
            batch = max(1, min(last, due) - service.tokens)
            yield list(islice(words, batch))
            self._sent(service, batch)

    def _answer(self, service: Service) -> Iterator[str]:
        return islice(words_of(f"{self.seed}:{service.words}:words"), service.said_tokens, None)

    def _words(self, prompt: str, said_tokens: int, said: str) -> str:
        begun = "".join(islice(words_of(f"{self.seed}:{prompt}:words"), said_tokens))
        return prompt if begun == said else f"{prompt}:{digest(said)}"

    def _due_tokens(self, elapsed_s: float) -> int:
        rate = self.speed.decode_tokens_per_s
        # An infinite rate still streams: readers see pieces, and a client that leaves is noticed.
        return int(elapsed_s * rate) if rate != inf else 0

    async def _while_frozen(self) -> float:
        if self._flowing.is_set():
            return 0.0
        clock = asyncio.get_running_loop().time
        frozen_at_s = clock()
        await self._flowing.wait()
        return clock() - frozen_at_s

    def _sent(self, service: Service, tokens: int) -> None:
        if service.tokens == 0:
            self.counts.first_token += 1
        service.tokens += tokens
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
