"""Questions with known answer lengths, and what a client sees of the answers."""

import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec

from clairvoyant_cli.backends.chat_probe import pieces_of
from clairvoyant_cli.demo.simulated_server import MODEL
from predictor.record import LengthClass

QUESTIONS = Path(__file__).with_name("prompts.jsonl")  # no model was trained on them; lengths are estimates
TITLED = Path(__file__).with_name("demo_prompts.jsonl")  # with titles that fit into a narrow column


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt, the length of its answer, and a short title."""

    prompt: str
    tokens: int
    title: str = ""

    @property
    def length_class(self) -> LengthClass:
        return LengthClass.of(self.tokens)


def load_questions(path: Path = QUESTIONS) -> dict[LengthClass, list[Question]]:
    """Return the questions of a file by the class of their answers."""
    pools: dict[LengthClass, list[Question]] = {each: [] for each in LengthClass}
    for line in path.read_bytes().splitlines():
        question = msgspec.json.decode(line, type=Question)
        pools[question.length_class].append(question)
    return pools


@dataclass(slots=True, eq=False)
class Call:
    """A question that is asked: when it was sent and its answer ended, and the tokens that have arrived."""

    question: Question
    sent_s: float | None = None
    ended_s: float | None = None
    tokens: int = 0
    error: str | None = None

    @property
    def sojourn_s(self) -> float | None:
        """Seconds from sending to the last byte; None before it, or if the call failed."""
        if self.sent_s is None or self.ended_s is None or self.error is not None:
            return None
        return self.ended_s - self.sent_s


async def ask(client: httpx.AsyncClient, call: Call) -> None:
    """Ask the simulated server a question, and record its answer or failure."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": call.question.prompt}]}
    call.sent_s, done = time.monotonic(), False
    try:
        async with client.stream("POST", "/api/chat", json=body) as response:
            response.raise_for_status()
            async for _, piece in pieces_of(response, time.monotonic):
                call.error, done = piece.error or call.error, done or piece.whole
                call.tokens = piece.totals.tokens or call.tokens + piece.text
        if not done and call.error is None:
            call.error = "the answer broke off"
    except httpx.HTTPStatusError as error:
        call.error = f"HTTP {error.response.status_code}"
    except httpx.HTTPError as error:
        call.error = type(error).__name__
    call.ended_s = time.monotonic()
