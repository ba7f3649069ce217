"""Asks servers about themselves, with limits on the time, on the answer's length, and on its head."""

import asyncio
import secrets
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol
from urllib.parse import urlsplit, urlunsplit

import msgspec

from clairvoyant_cli import __version__
from clairvoyant_cli.addresses import joined
from clairvoyant_cli.http.fields import Header
from clairvoyant_cli.http.own_requests import collect
from clairvoyant_cli.http.upstream import Upstream, UpstreamError
from clairvoyant_cli.protocols.probes import (
    ANSWER_BYTES,
    EngineLoad,
    EngineMetrics,
    ProbeAnswer,
    engine_state,
)

PROBE_TIMEOUT_S = 2.0
TIMED_OUT = "no answer in time"
METRICS_PATH = "/metrics"
# Marks the proxy's own questions. One that comes back to it shows that the server's address leads here.
MARK_HEADER = b"x-clairvoyant-asker"


NO_ANSWER = ProbeAnswer(0)


class Ask(Protocol):
    """Asks one server: GET of an API path, or POST if there is a body. Never raises for its faults."""

    async def __call__(
        self, path: str, timeout_s: float = PROBE_TIMEOUT_S, body: dict[str, Any] | None = None
    ) -> ProbeAnswer:
        """Return the answer within the time, or why there is none."""


class AskingOnce:
    """An `Ask` that sends each GET once, and then returns the same of its `answers`."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self.answers: dict[str, ProbeAnswer] = {}
        self._asking: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def __call__(
        self, path: str, timeout_s: float = PROBE_TIMEOUT_S, body: dict[str, Any] | None = None
    ) -> ProbeAnswer:
        if body is not None:
            return await self._ask(path, timeout_s, body)
        async with self._asking[path]:
            if path not in self.answers:
                self.answers[path] = await self._ask(path, timeout_s)
        return self.answers[path]

    async def answered(self, path: str, *_: object, **__: object) -> ProbeAnswer:
        """Return the answer to a GET that was sent; none to any other."""
        return self.answers.get(path, NO_ANSWER)


class Prober:
    """Asks servers, with one API key. Close it, or use it as an async context manager."""

    def __init__(self, api_key: str | None = None) -> None:
        self.mark = secrets.token_hex(8).encode()
        self._headers: list[Header] = [
            # Logs and filters know these questions by the second name.
            (b"User-Agent", b"clairvoyant/" + __version__.encode() + b" python-httpx"),
            (b"Accept-Encoding", b"identity"),
            (MARK_HEADER, self.mark),
        ]
        self._key: list[Header] = [(b"Authorization", b"Bearer " + api_key.encode())] if api_key else []
        self._upstreams: dict[str, Upstream] = {}

    async def __aenter__(self) -> "Prober":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        for upstream in self._upstreams.values():
            await upstream.close()

    def asking(self, url: str, prefix: str = "", *, with_key: bool = True) -> Ask:
        """Return the function that asks the server at a URL."""
        if url not in self._upstreams:
            self._upstreams[url] = Upstream(url, connect_timeout_s=PROBE_TIMEOUT_S)
        headers = [*self._headers, *self._key] if with_key else self._headers
        return partial(self._ask, self._upstreams[url], prefix, headers=headers)

    async def _ask(
        self,
        upstream: Upstream,
        prefix: str,
        path: str,
        timeout_s: float = PROBE_TIMEOUT_S,
        body: dict[str, Any] | None = None,
        headers: Sequence[Header] = (),
    ) -> ProbeAnswer:
        sent = None if body is None else msgspec.json.encode(body)
        try:
            async with asyncio.timeout(timeout_s):
                head, text = await collect(upstream, prefix + path, headers, sent, ANSWER_BYTES)
        except TimeoutError:
            return ProbeAnswer(0, why=TIMED_OUT)
        except UpstreamError as error:
            return ProbeAnswer(0, why=str(error))
        return ProbeAnswer(head.status, text, headers={name.lower(): value for name, value in head.headers})


async def engine_load(
    metrics: EngineMetrics, ask: Ask, prober: Prober, host: str, metrics_url: str | None
) -> EngineLoad | None:
    """Return what an engine has in its own queue. Another address than its own does not get its API key."""
    if metrics.port is not None:
        metrics_url = metrics_url or f"http://{joined(host, metrics.port)}"
    path = METRICS_PATH
    if metrics_url is not None:
        parts = urlsplit(metrics_url)
        ask = prober.asking(f"{parts.scheme}://{parts.netloc}", with_key=False)
        path = urlunsplit(("", "", parts.path.rstrip("/") or METRICS_PATH, parts.query, ""))
    return engine_state((await ask(path)).body, metrics)
