"""Our own questions to models, as a client asks them: a streamed answer, and when each line came."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.protocols.usage import Totals, totals_in_event

CONNECT_TIMEOUT_S = 10.0
MAX_LINE_BYTES = 1 << 20
TEXT_FIELDS = ("content", "thinking", "reasoning_content", "reasoning")
Clock = Callable[[], float]  # monotonic seconds: `time.monotonic`, or the time of a loop that simulates it
NOTHING = Totals()


@dataclass(frozen=True, slots=True)
class Piece:
    """What a line says. `text`: it has any, thinking included; `words`: the answer's own; `whole`: the answer
    ends here, `capped` by its limit.
    """

    text: bool = False
    words: str = ""
    whole: bool = False
    capped: bool = False
    error: str | None = None
    totals: Totals = NOTHING


def read_line(line: bytes) -> Piece | None:
    """Parse a line of NDJSON or SSE; None if it is neither."""
    held = line.removeprefix(b"data:").strip()
    if held == b"[DONE]":
        return Piece(whole=True)
    if not held.startswith(b"{"):
        return None
    try:
        said = msgspec.json.decode(held)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if said.get("error"):
        return Piece(error=error_text(said))
    choices = [each for each in said.get("choices") or () if isinstance(each, dict)]
    reasons = [reason for each in choices if (reason := each.get("finish_reason")) is not None]
    if said.get("done") is True:
        reasons.append(said.get("done_reason"))
    parts = [said.get("message"), *(each.get("delta") for each in choices)]
    parts = [part for part in parts if isinstance(part, dict)]
    words = [part.get("content") for part in parts]
    return Piece(
        text=any(part.get(name) for part in parts for name in TEXT_FIELDS),
        words="".join(each for each in words if isinstance(each, str)),
        whole=bool(reasons),
        capped="length" in reasons,
        totals=totals_in_event(held),
    )


def error_text(said: dict[str, Any]) -> str:
    """Return the words of an error object, as OpenAI's servers and Ollama write it."""
    error = said.get("error")
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)


def client_for(base_url: str, api_key: str | None = None) -> httpx.AsyncClient:
    """Return a client that waits for an answer as long as it takes, and heeds no proxy settings."""
    return httpx.AsyncClient(
        base_url=base_url,
        headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
        timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
        # A server may close an idle connection just as a question goes out on it, llama.cpp after a hundred
        # requests: each gets a fresh one.
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        verify=base_url.startswith("https:"),  # to load the certificates takes 0.2 s
        trust_env=False,
    )


async def pieces_of(response: httpx.Response, clock: Clock) -> AsyncIterator[tuple[float, Piece]]:
    """Yield parsed lines with the `clock` times of their last bytes; ClairvoyantError for endless ones."""
    rest = b""
    async for data in response.aiter_bytes():
        at_s = clock()
        *lines, rest = (rest + data).split(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            raise ClairvoyantError(f"{response.url.host} sends a line without end; look at the server's log")
        for line in lines:
            if (piece := read_line(line)) is not None:
                yield at_s, piece
