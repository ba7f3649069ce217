"""Questions of our own to servers, each with limits: on the time, on the answer's length, on its head."""

import asyncio
import secrets
from functools import partial
from typing import Any

import msgspec

from clairvoyant_cli import __version__
from clairvoyant_cli.backends.adapter import ObservedServer
from clairvoyant_cli.backends.ask_function import PROBE_TIMEOUT_S, Ask
from clairvoyant_cli.http.fields import Header
from clairvoyant_cli.http.own_requests import collect
from clairvoyant_cli.http.upstream import Upstream, UpstreamError
from clairvoyant_cli.protocols.probes import ANSWER_BYTES, Answer, BusySlots

TIMED_OUT = "no answer in time"

MARK_HEADER = b"x-clairvoyant-asker"
"""On our own questions, never on what is passed on: one that comes back to us shows that its server's address
leads here, by way of whatever proxies stand between.
"""


class Prober:
    """Asks servers who they are and how they do. Close it, or use it as an async context manager."""

    def __init__(self, api_key: str | None = None) -> None:
        self.mark = secrets.token_hex(8).encode()
        self._headers: list[Header] = [
            # The second name is the one that our questions always had: logs and filters know them by it.
            (b"User-Agent", b"clairvoyant/" + __version__.encode() + b" python-httpx"),
            (b"Accept-Encoding", b"identity"),
            (MARK_HEADER, self.mark),
        ]
        if api_key:
            self._headers.append((b"Authorization", b"Bearer " + api_key.encode()))
        self._upstreams: dict[str, Upstream] = {}

    async def __aenter__(self) -> "Prober":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        for upstream in self._upstreams.values():
            await upstream.close()

    def asking(self, url: str, prefix: str = "") -> Ask:
        """Return how the server at a URL is asked."""
        if url not in self._upstreams:
            self._upstreams[url] = Upstream(url, connect_timeout_s=PROBE_TIMEOUT_S)
        return partial(self._ask, self._upstreams[url], prefix)

    async def refresh(self, server: ObservedServer) -> None:
        """Bring a backend's state, version, slots and resident models up to date."""
        await server.adapter.refresh(self.asking(server.upstream.url, server.prefix), server)

    async def list_models(self, server: ObservedServer) -> None:
        """Take note of the models that a backend offers; of those it had, if it does not say."""
        ask, adapter = self.asking(server.upstream.url, server.prefix), server.adapter
        offered = await adapter.offered_models(ask)
        if offered is not None:
            server.offered = frozenset(adapter.known_as(model.name) for model in offered if model.name)
            server.remote_models = frozenset(model.name for model in offered if model.remote)

    async def busy_slots(self, server: ObservedServer) -> BusySlots | None:
        """Return the slots that are at work; None if the server does not tell."""
        return await server.adapter.busy_slots(self.asking(server.upstream.url, server.prefix))

    async def _ask(
        self,
        upstream: Upstream,
        prefix: str,
        path: str,
        timeout_s: float = PROBE_TIMEOUT_S,
        body: dict[str, Any] | None = None,
    ) -> Answer:
        sent = None if body is None else msgspec.json.encode(body)
        try:
            async with asyncio.timeout(timeout_s):
                answer = await collect(upstream, prefix + path, self._headers, sent, ANSWER_BYTES)
        except TimeoutError:
            return Answer(0, why=TIMED_OUT)
        except UpstreamError as error:
            return Answer(0, why=str(error))
        return Answer(answer.begun.status, answer.text)
