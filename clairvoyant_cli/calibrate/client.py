"""Questions to a server in its own dialect, each with the times that the client saw and the server told."""

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import httpx

from clairvoyant_cli.backends.adapter import Found
from clairvoyant_cli.backends.chat import CONNECT_TIMEOUT_S, Clock, client_for, pieces_of
from clairvoyant_cli.calibrate.questions import Question
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.protocols import probes
from clairvoyant_cli.protocols.streams import Piece, error_text


@dataclass(slots=True)
class Answer:
    """One answer. `sent_s` to `ended_s` are seconds by its client's clock; the rest is what the server
    told, None where it told nothing. `first_tokens` came with the first piece of the stream.
    """

    sent_s: float
    first_s: float = 0.0
    last_s: float = 0.0
    ended_s: float = 0.0
    events: int = 0
    first_tokens: int = 0
    told_tokens: int | None = None
    prompt_tokens: int = 0
    prefilled_tokens: int | None = None
    told_decode_s: float | None = None
    told_prefill_s: float | None = None
    load_s: float | None = None
    capped: bool = False

    def note(self, piece: Piece) -> None:
        """Take note of what a line says of the whole answer."""
        told = piece.totals
        self.capped = self.capped or piece.capped
        self.told_tokens = told.tokens or self.told_tokens
        self.prompt_tokens = told.prompt_tokens or self.prompt_tokens
        self.prefilled_tokens = told.prefilled_tokens or self.prefilled_tokens
        self.told_decode_s = told.decode_s or self.told_decode_s
        self.told_prefill_s = told.prefill_s or self.told_prefill_s
        self.load_s = told.load_s or self.load_s

    @property
    def tokens(self) -> int:
        """The answer's length: as told, or as counted."""
        return self.events if self.told_tokens is None else self.told_tokens

    @property
    def sojourn_s(self) -> float:
        """Seconds from sending to the last byte."""
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
        read = self.prefilled_tokens or 0
        if self.told_prefill_s and read >= max(16, self.prompt_tokens / 2):
            return read / self.told_prefill_s
        return None


class Client:
    """Asks one model of one server. Use as an async context manager; `model` may be set later."""

    def __init__(
        self, found: Found, model: str = "", key: str | None = None, clock: Clock = time.monotonic
    ) -> None:
        self.found = found
        self.clock = clock
        self.model = model
        self.http = client_for(found.base_url, key)

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.http.aclose()

    async def ask(self, question: Question, cap: int | None = None) -> Answer:
        """Ask a question and read the answer to its end; ClairvoyantError if there is none."""
        adapter = self.found.adapter
        body = adapter.chat_body(self.model, question.prompt, min(question.cap, cap or question.cap))
        answer = Answer(self.clock())
        try:
            async with self.http.stream("POST", adapter.chat_path, json=body) as response:
                if response.status_code != 200:
                    await response.aread()
                    raise self._refused(response)
                await self._read(response, answer)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None
        answer.ended_s = self.clock()
        return answer

    async def chunks(self, path: str, body: dict[str, Any]) -> AsyncGenerator[tuple[float, bytes]]:
        """Yield what comes of a streamed answer as it comes, and when; whoever closes this closes the
        connection. ClairvoyantError if there is no answer.
        """
        try:
            async with self.http.stream("POST", path, json=body) as response:
                if response.status_code != 200:
                    await response.aread()
                    raise self._refused(response)
                async for data in response.aiter_bytes():
                    yield self.clock(), data
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None

    async def get(
        self, path: str, timeout_s: float | None = None, body: dict[str, Any] | None = None
    ) -> probes.Answer:
        """Ask the server about itself; ClairvoyantError unless it answers."""
        method = "GET" if body is None else "POST"
        return probes.Answer(200, await self._send(method, path, timeout_s, body))

    async def post(self, path: str, body: dict[str, Any]) -> None:
        """Have the server do something, and wait until it has; ClairvoyantError if it will not."""
        await self._send("POST", path, None, body)

    async def _send(
        self, method: str, path: str, timeout_s: float | None, body: dict[str, Any] | None = None
    ) -> bytes:
        timeout = httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S)
        try:
            response = await self.http.request(method, path, json=body, timeout=timeout)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None
        if response.status_code != 200:
            raise self._refused(response)
        return response.content

    @property
    def _where(self) -> str:
        return f"{self.found.adapter.title} at {self.found.url}"

    def _refused(self, response: httpx.Response) -> ClairvoyantError:
        where = self._where
        said = _message(response) or f"HTTP {response.status_code}"
        if response.status_code in (401, 403):
            return ClairvoyantError(f"{where} wants an API key: give it with --backend-key-file ({said})")
        if response.status_code == 404:
            return ClairvoyantError(f"{where} has no model {self.model!r} ({said}); name one with --model")
        if response.status_code == 503:
            return ClairvoyantError(
                f"{where} is loading or overloaded ({said}); try again when it is ready", ExitCode.UNREACHABLE
            )
        return ClairvoyantError(f"{where} refused a question: {said}")

    def _unreachable(self, error: httpx.HTTPError) -> ClairvoyantError:
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return ClairvoyantError(
                f"{self._where} does not answer; start it, or name another with --backend",
                ExitCode.UNREACHABLE,
            )
        return self._broke_off(f" ({type(error).__name__})")

    def _broke_off(self, how: str = "") -> ClairvoyantError:
        return ClairvoyantError(
            f"{self._where} broke off an answer{how}; look at its log and calibrate again",
            ExitCode.UNREACHABLE,
        )

    async def _read(self, response: httpx.Response, answer: Answer) -> None:
        whole = False
        async for at_s, piece in pieces_of(response, self.clock):
            if piece.error is not None:
                raise ClairvoyantError(f"{self._where} failed in mid-answer: {piece.error}")
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


def _message(response: httpx.Response) -> str:
    try:
        said = response.json()
    except ValueError:
        return response.text.strip()[:200]
    return error_text(said)[:200] if isinstance(said, dict) else ""
