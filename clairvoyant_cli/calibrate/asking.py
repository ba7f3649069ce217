"""Questions to a server in its own dialect, each with the times that the client saw and the server told."""

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

from clairvoyant_cli.calibrate.questions import Question
from clairvoyant_cli.errors import ClairvoyantError, ExitCode

CONNECT_TIMEOUT_S = 5.0
NS_PER_S = 1e9
MS_PER_S = 1e3


@dataclass(frozen=True, slots=True)
class Target:
    """A server, by the name of its dialect, and the model in it that is asked."""

    backend: str
    url: str
    model: str
    prefix: str = ""
    version: str = ""
    key: str | None = None

    @property
    def spoken(self) -> str:
        """The server as it is named to people."""
        name = "the server" if self.backend == "other" else self.backend
        return f"{name} at {self.url}"


@dataclass(slots=True)
class Answer:
    """One answer. `sent_s` to `ended_s` are seconds on the monotonic clock; the rest is what the server
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
    def told_service_s(self) -> float | None:
        """Seconds of work as the server told them, without any queue; None if it did not."""
        if self.told_decode_s is None:
            return None
        return self.told_decode_s + (self.told_prefill_s or 0.0) + (self.load_s or 0.0)

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


class Asker:
    """Asks one model of one server. Use as an async context manager."""

    def __init__(self, target: Target) -> None:
        self.target = target
        headers = {"Authorization": f"Bearer {target.key}"} if target.key else {}
        self.client = httpx.AsyncClient(
            base_url=target.url + target.prefix,
            headers=headers,
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
            # llama.cpp closes a connection after a hundred requests, or five idle seconds, unannounced.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            trust_env=False,
        )

    async def __aenter__(self) -> "Asker":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.client.aclose()

    async def ask(self, question: Question, cap: int | None = None) -> Answer:
        """Ask a question and read the answer to its end; ClairvoyantError if there is none."""
        ollama = self.target.backend == "ollama"
        path = "/api/chat" if ollama else "/v1/chat/completions"
        answer = Answer(time.monotonic())
        try:
            async with self.client.stream("POST", path, json=self._body(question, cap, ollama)) as response:
                if response.status_code != 200:
                    await response.aread()
                    raise self.refused(response)
                await self._read(response, answer)
        except httpx.HTTPError as error:
            raise self.unreachable(error) from None
        answer.ended_s = time.monotonic()
        return answer

    def refused(self, response: httpx.Response) -> ClairvoyantError:
        """Return what to say of a refusal."""
        where = self.target.spoken
        said = _message(response) or f"HTTP {response.status_code}"
        if response.status_code in (401, 403):
            return ClairvoyantError(f"{where} wants an API key: give it with --backend-key-file ({said})")
        if response.status_code == 404:
            return ClairvoyantError(
                f"{where} has no model {self.target.model!r} ({said}); name one with --model"
            )
        if response.status_code == 503:
            return ClairvoyantError(
                f"{where} is loading or overloaded ({said}); try again when it is ready", ExitCode.UNREACHABLE
            )
        return ClairvoyantError(f"{where} refused a question: {said}")

    def unreachable(self, error: httpx.HTTPError) -> ClairvoyantError:
        """Return what to say when the connection could not be made, or broke."""
        where = self.target.spoken
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return ClairvoyantError(
                f"{where} does not answer; start it, or name another with --backend", ExitCode.UNREACHABLE
            )
        return ClairvoyantError(
            f"{where} broke off an answer ({type(error).__name__}); look at its log and calibrate again",
            ExitCode.UNREACHABLE,
        )

    def _body(self, question: Question, cap: int | None, ollama: bool) -> dict[str, Any]:
        tokens = min(question.cap, cap or question.cap)
        body: dict[str, Any] = {
            "model": self.target.model,
            "messages": [{"role": "user", "content": question.prompt}],
            "stream": True,
        }
        if ollama:
            return body | {"options": {"num_predict": tokens}}
        return body | {"max_tokens": tokens, "stream_options": {"include_usage": True}}

    async def _read(self, response: httpx.Response, answer: Answer) -> None:
        whole = False
        async for at_s, said in _objects(response):
            if said.get("error"):
                raise ClairvoyantError(f"{self.target.spoken} failed in mid-answer: {_error_text(said)}")
            if _has_text(said):
                if not answer.first_s:
                    answer.first_s = at_s
                answer.events += 1
                answer.first_tokens += at_s == answer.first_s
                answer.last_s = at_s
            whole = _note(said, answer) or whole
        if not whole:
            raise ClairvoyantError(
                f"{self.target.spoken} broke off an answer; look at its log and calibrate again",
                ExitCode.UNREACHABLE,
            )


async def _objects(response: httpx.Response) -> AsyncIterator[tuple[float, dict[str, Any]]]:
    """Yield the objects of an NDJSON or SSE stream, each with the time at which its piece arrived."""
    rest = b""
    async for piece in response.aiter_bytes():
        at_s = time.monotonic()
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            text = line.removeprefix(b"data:").strip()
            if text.startswith(b"{"):
                try:
                    said = msgspec.json.decode(text)
                except msgspec.DecodeError:
                    continue
                yield at_s, said


def _has_text(said: dict[str, Any]) -> bool:
    if "message" in said:
        message = said["message"]
        return bool(message.get("content") or message.get("thinking"))
    for choice in said.get("choices") or ():
        delta = choice.get("delta") or {}
        if delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning"):
            return True
    return False


def _note(said: dict[str, Any], answer: Answer) -> bool:
    """Take note of what an object says of the whole answer; return whether it ends it."""
    whole = False
    for choice in said.get("choices") or ():
        reason = choice.get("finish_reason")
        whole = whole or reason is not None
        answer.capped = answer.capped or reason == "length"
    usage = said.get("usage")
    if isinstance(usage, dict):
        answer.told_tokens = usage.get("completion_tokens", answer.told_tokens)
        answer.prompt_tokens = usage.get("prompt_tokens") or answer.prompt_tokens
    timings = said.get("timings")
    if isinstance(timings, dict):  # llama.cpp
        answer.told_tokens = timings.get("predicted_n", answer.told_tokens)
        answer.prefilled_tokens = timings.get("prompt_n")
        answer.told_decode_s = timings.get("predicted_ms", 0.0) / MS_PER_S or None
        answer.told_prefill_s = timings.get("prompt_ms", 0.0) / MS_PER_S or None
    if said.get("done") is True:  # Ollama, which leaves out what is zero
        whole = True
        answer.capped = said.get("done_reason") == "length"
        answer.told_tokens = said.get("eval_count", 0)
        answer.prompt_tokens = answer.prefilled_tokens = said.get("prompt_eval_count", 0)
        answer.told_decode_s = said.get("eval_duration", 0) / NS_PER_S or None
        answer.told_prefill_s = said.get("prompt_eval_duration", 0) / NS_PER_S or None
        answer.load_s = said.get("load_duration", 0) / NS_PER_S or None
    return whole


def _message(response: httpx.Response) -> str:
    try:
        said = response.json()
    except ValueError:
        return response.text.strip()[:200]
    return _error_text(said)[:200] if isinstance(said, dict) else ""


def _error_text(said: dict[str, Any]) -> str:
    error = said.get("error")
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
