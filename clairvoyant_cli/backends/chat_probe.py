"""Our own questions to models, as a client asks them: a streamed answer, and when each line came."""

from collections.abc import AsyncIterator, Callable

import httpx

from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.protocols.stream_lines import Piece, read_line

CONNECT_TIMEOUT_S = 10.0
MAX_LINE_BYTES = 1 << 20

Clock = Callable[[], float]
"""Seconds from whenever, which never go back: `time.monotonic`, or the time of a loop that simulates it."""


def client_for(base_url: str, api_key: str | None = None) -> httpx.AsyncClient:
    """Return a client that waits for an answer as long as it takes, and heeds no proxy settings."""
    return httpx.AsyncClient(
        base_url=base_url,
        headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
        timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
        # A server may close an idle connection just as a question goes out on it, llama.cpp after a hundred
        # requests: each gets a fresh one.
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
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
