"""Sends questions as a client does, and records what the client sees of each answer."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import httpx

from clairvoyant_cli.backends.adapter import Adapter
from clairvoyant_cli.backends.adapters import adapter_of
from clairvoyant_cli.backends.chat_probe import Clock, pieces_of
from clairvoyant_cli.demo import questions as demo
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.protocols.can_continue import Body
from clairvoyant_lab.bench.prompts import Question

REPLAYED: Adapter = adapter_of("ollama")
"""The simulated backend speaks as Ollama does; the limit of a request sets the answer's length."""


SETS_LENGTH = ("llamacpp", "vllm", "sglang", "dynamo", "smg", "llm-d")
"""Servers that write an answer of an exact number of tokens (`ignore_eos`)."""


@dataclass(slots=True, eq=False)
class Call(demo.Call):
    """A question of a bench that is asked. Times are those of `Asker.now`."""

    question: Question
    first_token_s: float | None = None
    predicted_tokens: float | None = None  # by a proxy on the way
    text: str = ""  # the answer, if it is kept
    prompt_tokens: int | None = None  # None if the server does not report them
    read_tokens: int | None = None  # of them, those that the server evaluated

    @property
    def ttft_s(self) -> float | None:
        """Seconds from sending to the first token; None before it, or if the call failed."""
        if self.sent_s is None or self.first_token_s is None or self.error is not None:
            return None
        return self.first_token_s - self.sent_s


@dataclass(frozen=True, slots=True)
class Asker:
    """Asks questions of a model. With `sets_length` an answer has its question's length, otherwise the model
    or the question's limit ends it. `keeps_words` keeps each answer's text. All times are multiplied by
    `speedup`: the server is a simulated one that runs faster by that factor.
    """

    model: str
    adapter: Adapter = REPLAYED
    sets_length: bool = False
    prefix: str = ""
    clock: Clock = time.monotonic
    keeps_words: bool = False
    speedup: float = 1.0
    greedy: bool = True  # at temperature 0

    def now(self) -> float:
        """Return the time in seconds."""
        return self.clock() * self.speedup

    def body(self, question: Question) -> Body:
        tokens = question.tokens if self.sets_length else question.max_tokens
        body = self.adapter.chat_body(self.model, question.prompt, tokens, greedy=self.greedy)
        return body | ({"ignore_eos": True} if self.sets_length and self.adapter.name in SETS_LENGTH else {})

    async def ask(
        self,
        client: httpx.AsyncClient,
        call: Call,
        more: Body | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Ask a question and record the answer or failure in its call; `more` replaces keys of the body."""
        body, url = self.body(call.question) | (more or {}), self.prefix + self.adapter.chat_path
        call.sent_s = self.now()
        try:
            async with client.stream("POST", url, json=body, headers=headers) as response:
                if response.status_code != 200:
                    call.error = f"HTTP {response.status_code}"
                else:
                    await self._read(response, call)
        except httpx.HTTPError as error:
            call.error = type(error).__name__
        call.ended_s = self.now()

    async def _read(self, response: httpx.Response, call: Call) -> None:
        with suppress(KeyError, ValueError):
            call.predicted_tokens = float(response.headers["x-clairvoyant-tokens"])
        done = False
        async for at_s, piece in pieces_of(response, self.now):
            if call.first_token_s is None and piece.text:
                call.first_token_s = at_s
            call.error = piece.error or call.error
            done = done or piece.whole
            if self.keeps_words:
                call.text += piece.words
            call.prompt_tokens = piece.totals.prompt_tokens or call.prompt_tokens
            call.read_tokens = piece.totals.read_tokens or call.read_tokens
            call.tokens = piece.totals.tokens or call.tokens + piece.text
        if not done and call.error is None:
            call.error = "the answer broke off"


async def send_at(
    client: httpx.AsyncClient,
    asker: Asker,
    calls: Sequence[Call],
    at_s: Sequence[float],
    ended: Callable[[], None] = lambda: None,
) -> None:
    """Send each call at its time, in ascending seconds from now, and wait for all answers. `ended` is
    called as each answer ends.
    """

    async def ask(call: Call) -> None:
        await asker.ask(client, call)
        ended()

    begun_s = asker.now()
    async with asyncio.TaskGroup() as group:
        for call, due_s in zip(calls, at_s, strict=True):
            await asyncio.sleep(max(0.0, begun_s + due_s - asker.now()) / asker.speedup)
            group.create_task(ask(call))


async def ask_alone(client: httpx.AsyncClient, asker: Asker, questions: Sequence[Question]) -> list[Call]:
    """Ask questions one after another; ClairvoyantError if one fails."""
    calls = [Call(question) for question in questions]
    for call in calls:
        await asker.ask(client, call)
        if call.error is not None:
            raise ClairvoyantError(f"the backend does not answer a question: {call.error}")
    return calls
