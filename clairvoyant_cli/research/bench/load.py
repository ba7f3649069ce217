"""Questions sent as a client sends them, each with what the client saw of its answer."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import httpx

from clairvoyant_cli.backends.adapter import Adapter, Body
from clairvoyant_cli.backends.chat_probe import Clock, pieces_of
from clairvoyant_cli.backends.ollama import ADAPTER
from clairvoyant_cli.errors import printable
from clairvoyant_cli.research.bench.demo_questions import Question

REPLAYED: Adapter = ADAPTER
"""The simulated backend is asked as Ollama is: what a request allows is the answer's length."""


MAX_WORDS_CHARS = 60
"""So much of an answer is kept, to be shown."""


@dataclass(slots=True, eq=False)
class Call:
    """One question on its way. Times are seconds by its asker's clock; `tokens` counts what has come.

    `predicted_tokens` is what a proxy on the way said it expects; None where none said anything.
    `words` are the first of the answer, in one line.
    """

    question: Question
    sent_s: float | None = None
    first_token_s: float | None = None
    ended_s: float | None = None
    tokens: int = 0
    predicted_tokens: float | None = None
    error: str | None = None
    words: str = ""

    @property
    def sojourn_s(self) -> float | None:
        """Seconds from sending to the last byte; None while it lasts, or if it failed."""
        if self.sent_s is None or self.ended_s is None or self.error is not None:
            return None
        return self.ended_s - self.sent_s

    @property
    def ttft_s(self) -> float | None:
        """Seconds from sending to the first token; None before it, or if the call failed."""
        if self.sent_s is None or self.first_token_s is None or self.error is not None:
            return None
        return self.first_token_s - self.sent_s


@dataclass(frozen=True, slots=True)
class Asker:
    """How questions are put, and to which model. With `sets_length` an answer gets its question's length;
    otherwise it ends where the model ends it, or at the limit that came with its question. With `keeps_words`
    the first words of each are kept.
    """

    model: str
    adapter: Adapter = REPLAYED
    sets_length: bool = False
    prefix: str = ""
    clock: Clock = time.monotonic
    keeps_words: bool = False

    def body(self, question: Question) -> Body:
        """Return what is sent for a question."""
        tokens = question.tokens if self.sets_length else question.max_tokens
        return self.adapter.chat_body(
            self.model, question.prompt, tokens, exact=self.sets_length, greedy=True
        )

    async def ask(self, client: httpx.AsyncClient, call: Call) -> None:
        """Put one question and note what comes; a failure is noted, not raised."""
        body = self.body(call.question)
        call.sent_s = self.clock()
        try:
            async with client.stream("POST", self.prefix + self.adapter.chat_path, json=body) as response:
                if response.status_code != 200:
                    call.error = f"HTTP {response.status_code}"
                else:
                    await self._read(response, call)
        except httpx.HTTPError as error:
            call.error = type(error).__name__
        call.ended_s = self.clock()

    async def _read(self, response: httpx.Response, call: Call) -> None:
        with suppress(KeyError, ValueError):
            call.predicted_tokens = float(response.headers["x-clairvoyant-tokens"])
        done = False
        async for at_s, piece in pieces_of(response, self.clock):
            if call.first_token_s is None and piece.text:
                call.first_token_s = at_s
            call.error = piece.error or call.error
            done = done or piece.whole
            if self.keeps_words and len(call.words) < MAX_WORDS_CHARS:
                call.words = printable(call.words + piece.words)[:MAX_WORDS_CHARS]
            call.tokens = piece.totals.tokens or call.tokens + piece.text
        if not done and call.error is None:
            call.error = "the answer broke off"


async def send_burst(client: httpx.AsyncClient, asker: Asker, calls: Sequence[Call], gap_s: float) -> None:
    """Send the calls in their order, `gap_s` apart so that they arrive in it, and wait for all answers."""
    await send_at(client, asker, calls, [i * gap_s for i in range(len(calls))])


async def send_at(
    client: httpx.AsyncClient,
    asker: Asker,
    calls: Sequence[Call],
    at_s: Sequence[float],
    ended: Callable[[], None] = lambda: None,
) -> None:
    """Send each call at its time, whatever became of those before it, and wait for all answers.

    `at_s` are seconds from now, ascending; `ended` is called as each of them ends.
    """

    async def ask(call: Call) -> None:
        await asker.ask(client, call)
        ended()

    begun_s = asker.clock()
    async with asyncio.TaskGroup() as group:
        for call, due_s in zip(calls, at_s, strict=True):
            await asyncio.sleep(max(0.0, begun_s + due_s - asker.clock()))
            group.create_task(ask(call))
