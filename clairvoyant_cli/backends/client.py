"""Asks a server questions in its own dialect, and times the answers."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
import msgspec

from clairvoyant_cli.backends.adapter import Found
from clairvoyant_cli.backends.chat_probe import (
    CONNECT_TIMEOUT_S,
    Clock,
    Piece,
    client_for,
    error_text,
    pieces_of,
)
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.protocols import probes
from clairvoyant_cli.protocols.can_continue import Body

T = TypeVar("T")

SILENCE_S = 30.0  # unless a plan sets another
LOAD_S = 600.0
MAX_ANSWER_BYTES = 16 << 20
SPARE_EVENTS, EVENTS_PER_TOKEN = 200, 4
"""Bounds of what is read of an answer that is longer than it was asked to be."""


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt, the name under which its sample is kept, and the most tokens its answer may have."""

    name: str
    prompt: str
    cap: int


@dataclass(slots=True)
class TimedAnswer:
    """One answer: times by its client's clock, and what the server reported, None where it did not."""

    sent_s: float
    first_s: float = 0.0
    last_s: float = 0.0
    ended_s: float = 0.0
    events: int = 0
    first_tokens: int = 0
    told_tokens: int | None = None
    prompt_tokens: int = 0
    read_tokens: int | None = None
    told_decode_s: float | None = None
    told_prefill_s: float | None = None
    load_s: float | None = None
    capped: bool = False

    def note(self, piece: Piece) -> None:
        told = piece.totals
        self.capped = self.capped or piece.capped
        self.told_tokens = told.tokens or self.told_tokens
        self.prompt_tokens = told.prompt_tokens or self.prompt_tokens
        self.read_tokens = told.read_tokens or self.read_tokens
        self.told_decode_s = told.decode_s or self.told_decode_s
        self.told_prefill_s = told.prefill_s or self.told_prefill_s
        self.load_s = told.load_s or self.load_s

    @property
    def tokens(self) -> int:
        """The answer's length: as told, or as counted."""
        return self.events if self.told_tokens is None else self.told_tokens

    @property
    def sojourn_s(self) -> float:
        return self.ended_s - self.sent_s

    @property
    def ttft_s(self) -> float:
        """Seconds from sending to the first token."""
        return (self.first_s or self.ended_s) - self.sent_s

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Tokens per second while answering; None where the answer is too short to tell."""
        if self.told_decode_s and self.tokens >= 8:
            return self.tokens / self.told_decode_s
        spent_s, later = self.last_s - self.first_s, self.tokens - self.first_tokens
        return later / spent_s if spent_s > 0 and later >= 8 else None

    @property
    def prefill_tokens_per_s(self) -> float | None:
        """Prompt tokens per second as the server told; None if it did not, or came out of its cache."""
        read = self.read_tokens or 0
        if self.told_prefill_s and read >= max(16, self.prompt_tokens / 2):
            return read / self.told_prefill_s
        return None


class Client:
    """Asks one model of one server, as an async context manager; gives up after `silence_s` of silence.
    `options` and `extra` fields are sent with every question. No request takes longer than `piece_s`, None:
    without limit.
    """

    def __init__(
        self, found: Found, model: str = "", key: str | None = None, clock: Clock = time.monotonic
    ) -> None:
        self.found = found
        self.clock = clock
        self.model = model
        self.options: Body = {}
        self.extra: Body = {}
        self.silence_s = SILENCE_S
        self.piece_s: float | None = None
        self.http = client_for(found.base_url, key)
        self._bounds: set[asyncio.Timeout] = set()

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.http.aclose()

    def body(self, question: Question, cap: int, *, greedy: bool = False) -> Body:
        """Return the body that asks a question, with the `options` that keep the model loaded."""
        body = self.found.adapter.chat_body(self.model, question.prompt, cap, greedy=greedy)
        body |= self.extra
        return body | {"options": body["options"] | self.options} if self.options else body

    async def ask(self, question: Question, cap: int | None = None) -> TimedAnswer:
        """Ask a question and read the answer to its end; ClairvoyantError if there is none."""
        path, body_cap = self.found.adapter.chat_path, min(question.cap, cap or question.cap)
        body = self.body(question, body_cap)
        answer = TimedAnswer(self.clock())
        async with self._within(self.silence_s), self._reply("POST", path, body) as response:
            await self._read(response, answer, EVENTS_PER_TOKEN * body_cap + SPARE_EVENTS)
        answer.ended_s = self.clock()
        return answer

    async def _read(self, response: httpx.Response, answer: TimedAnswer, most_events: int) -> None:
        whole = False
        async for at_s, piece in pieces_of(response, self.clock):
            if piece.error is not None:
                raise self._error(f"failed in mid-answer: {piece.error}")
            # The server is at work, and others may be queued in it: all timeouts start again.
            until_s = asyncio.get_running_loop().time() + self.silence_s
            for bound in self._bounds:
                if not bound.expired():
                    bound.reschedule(until_s)
            most_events -= 1
            if not most_events:
                raise self._endless()
            if piece.text:
                if not answer.first_s:
                    answer.first_s = at_s
                answer.events += 1
                answer.first_tokens += at_s == answer.first_s
                answer.last_s = at_s
            answer.note(piece)
            whole = whole or piece.whole
        if not whole:
            raise self._broke_off()

    async def chunks(self, path: str, body: dict[str, Any]) -> AsyncGenerator[tuple[float, bytes]]:
        """Yield the chunks of a streamed answer and their times; ClairvoyantError if there is no answer."""
        size, begun_s = 0, self.clock()
        async with self._reply("POST", path, body, self.silence_s) as response:
            async for data in response.aiter_bytes():
                size += len(data)
                if size > MAX_ANSWER_BYTES or self.clock() - begun_s > LOAD_S:
                    raise self._endless()
                yield self.clock(), data

    async def get(
        self, path: str, timeout_s: float | None = None, body: dict[str, Any] | None = None
    ) -> probes.ProbeAnswer:
        """Ask the server about itself, by POST if there is a body; ClairvoyantError unless it answers."""
        method = "GET" if body is None else "POST"
        async with self._within(timeout_s or self.silence_s), self._reply(method, path, body) as response:
            return probes.ProbeAnswer(200, await self._whole(response))

    @asynccontextmanager
    async def _reply(
        self, method: str, path: str, body: dict[str, Any] | None, silence_s: float | None = None
    ) -> AsyncIterator[httpx.Response]:
        """Yield the head of an answer, to be read; ClairvoyantError if it is an error, or does not come."""
        timeout = httpx.Timeout(silence_s, connect=CONNECT_TIMEOUT_S)
        try:
            async with (
                asyncio.timeout(self.piece_s) as piece,
                self.http.stream(method, path, json=body, timeout=timeout) as response,
            ):
                if response.status_code != 200:
                    raise self._refused(response.status_code, await self._whole(response))
                yield response
        except TimeoutError:
            if not piece.expired():
                raise
            raise self._error(
                f"needs more than {self.piece_s:g} s for a short answer", ExitCode.UNREACHABLE
            ) from None
        except httpx.ReadTimeout:
            raise self._silent(silence_s or 0.0) from None
        except (httpx.ConnectError, httpx.ConnectTimeout):
            raise self._error(
                "does not answer; start it, or name another with --backend", ExitCode.UNREACHABLE
            ) from None
        except httpx.HTTPError as error:
            raise self._broke_off(f" ({type(error).__name__})") from None

    @asynccontextmanager
    async def _within(self, seconds: float) -> AsyncIterator[None]:
        """Raise ClairvoyantError once no answer has sent anything for this many seconds."""
        try:
            async with asyncio.timeout(seconds) as bound:
                self._bounds.add(bound)
                try:
                    yield
                finally:
                    self._bounds.discard(bound)
        except TimeoutError:
            raise self._silent(seconds) from None

    async def _whole(self, response: httpx.Response) -> bytes:
        body = bytearray()
        async for data in response.aiter_bytes():
            body += data
            if len(body) > MAX_ANSWER_BYTES:
                raise self._endless()
        return bytes(body)

    def _refused(self, status: int, body: bytes) -> ClairvoyantError:
        try:
            decoded = msgspec.json.decode(body)
            said = error_text(decoded)[:200] if isinstance(decoded, dict) else ""
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            said = body.decode(errors="replace").strip()[:200]
        said = said or f"HTTP {status}"
        if status in (401, 403):
            return self._error(f"requires an API key: give it with --backend-key-file ({said})")
        if status == 404:
            return self._error(f"has no model {self.model!r} ({said}); name one with --model")
        if status == 503:
            return self._error(
                f"is loading or overloaded ({said}); try again when it is ready", ExitCode.UNREACHABLE
            )
        return self._error(f"refused a question: {said}")

    def _broke_off(self, how: str = "") -> ClairvoyantError:
        return self._error(
            f"broke off an answer{how}; look at its log and calibrate again", ExitCode.UNREACHABLE
        )

    def _silent(self, seconds: float) -> ClairvoyantError:
        return self._error(
            f"has sent nothing for {seconds:.0f} s; look at its log, make sure that nobody else uses it, and "
            "calibrate again (without --quick if it is slow)",
            ExitCode.UNREACHABLE,
        )

    def _endless(self) -> ClairvoyantError:
        return self._error("sends an answer without end; look at its log")

    def _error(self, what: str, code: ExitCode = ExitCode.FAILURE) -> ClairvoyantError:
        return ClairvoyantError(f"{self.found.adapter.title} at {self.found.url} {what}", code)


async def together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all, and return their results in order; the first failure cancels the rest and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in work]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
