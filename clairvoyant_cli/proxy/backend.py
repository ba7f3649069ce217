"""The LLM server behind the proxy: which it is, whether it is up, and when a slot of it is really free."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.proxy.protocols.routes import BackendKind
from clairvoyant_cli.proxy.speeds import Speeds
from clairvoyant_cli.proxy.upstream import Upstream
from tui.snapshot import LoadedModel

USUAL_PORTS: dict[BackendKind, tuple[int, ...]] = {
    BackendKind.OLLAMA: (11434,),
    BackendKind.LLAMACPP: (8080, 9931),
    BackendKind.LMSTUDIO: (1234,),
    BackendKind.JAN: (1337,),
}
"""Where each server listens unless told otherwise; llama.cpp is moving from 8080 to 9931."""

PROBE_TIMEOUT_S = 2.0
UP_EVERY_S = 5.0
DOWN_EVERY_S = 1.0

PATIENCE_S = 5.0
"""How long a backend gets to notice that its client left before the connection is cut hard."""

SLOTS_EVERY_S = 1.25
"""Time between looks at llama.cpp's /slots. Each look restarts the 1 s timer by which the server notices
that the client of an unstreamed request has left, so it must stay above a second."""

STARTED_FOR_S = 0.2
"""A request sent this long ago is counted by /slots, if it has one."""


@dataclass(slots=True)
class Backend:
    """One LLM server and what is known of it. `state`: up, loading, down, unknown."""

    name: str
    kind: BackendKind
    upstream: Upstream
    prefix: str = ""
    slots: int = 1
    slots_fixed: bool = False
    state: str = "unknown"
    version: str = ""
    detail: str = ""
    models: tuple[LoadedModel, ...] = ()
    remote_models: frozenset[str] = frozenset()
    swaps: int = 0
    speeds: Speeds = field(default_factory=Speeds)

    def __repr__(self) -> str:
        return f"<Backend {self.kind} {self.upstream.url} {self.state}, {self.slots} slots>"


@dataclass(frozen=True, slots=True)
class Found:
    """What answered at a URL."""

    kind: BackendKind
    url: str
    prefix: str = ""
    version: str = ""
    slots: int | None = None


def split_prefix(url: str) -> tuple[str, str]:
    """Return a backend URL without its path, and the API prefix in it; a trailing /v1 is no prefix."""
    if "://" not in url:
        url = f"http://{url}"
    scheme, _, rest = url.partition("://")
    netloc, slash, path = rest.partition("/")
    prefix = (slash + path).rstrip("/").removesuffix("/v1")
    return f"{scheme}://{netloc}", prefix


class Prober:
    """Asks servers who they are and how they do."""

    def __init__(self, api_key: str | None = None) -> None:
        headers = {b"Authorization": b"Bearer " + api_key.encode()} if api_key else {}
        self._client = httpx.AsyncClient(timeout=PROBE_TIMEOUT_S, headers=headers, trust_env=False)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def identify(self, url: str, prefix: str = "") -> Found | None:
        """Find out which server answers at `url`; None if none does."""
        base = url + prefix
        if await self._json(f"{base}/_clairvoyant/health") is not None:
            raise ClairvoyantError(
                f"{url} is a clairvoyant already; give the URL of the LLM server itself with --backend"
            )
        version = await self._json(f"{base}/api/version")
        if version is not None and "version" in version:
            return Found(BackendKind.OLLAMA, url, prefix, str(version["version"]))
        props = await self._json(f"{base}/props")
        if props is not None and "total_slots" in props:
            slots = int(props["total_slots"])
            return Found(BackendKind.LLAMACPP, url, prefix, str(props.get("build_info", "")), slots)
        if await self._json(f"{base}/api/v0/models") is not None:
            return Found(BackendKind.LMSTUDIO, url, prefix)
        try:
            answer = await self._client.get(f"{base}/v1/models")
        except httpx.HTTPError:
            return None
        if answer.status_code == 503 and "Loading model" in answer.text:
            return Found(BackendKind.LLAMACPP, url, prefix)
        return Found(BackendKind.OTHER, url, prefix)

    async def discover(self, *, skip_port: int) -> list[Found]:
        """Look at the usual ports of the usual servers; `skip_port` is our own."""
        places = [(kind, port) for kind, ports in USUAL_PORTS.items() for port in ports if port != skip_port]
        found = await asyncio.gather(*(self._identify_quietly(f"http://127.0.0.1:{p}") for _, p in places))
        servers = []
        for (kind, _), answer in zip(places, found, strict=True):
            if answer is not None:
                # Jan and LM Studio answer like any OpenAI server; the port tells them apart.
                kind = kind if answer.kind is BackendKind.OTHER else answer.kind
                servers.append(Found(kind, answer.url, answer.prefix, answer.version, answer.slots))
        return servers

    async def _identify_quietly(self, url: str) -> Found | None:
        try:
            return await self.identify(url)
        except ClairvoyantError:
            return None

    async def refresh(self, backend: Backend) -> None:
        """Bring a backend's state, version, slots and resident models up to date."""
        base = backend.upstream.url + backend.prefix
        path = {BackendKind.OLLAMA: "/api/version", BackendKind.LLAMACPP: "/health"}.get(
            backend.kind, "/v1/models"
        )
        try:
            answer = await self._client.get(base + path)
        except httpx.HTTPError as error:
            backend.state, backend.detail = "down", _why(error)
            return
        was_up = backend.state == "up"
        if answer.status_code == 503:
            backend.state, backend.detail = "loading", "loading its model"
            return
        backend.state, backend.detail = "up", ""
        if backend.kind is BackendKind.OLLAMA:
            backend.version = str((_decoded(answer) or {}).get("version", ""))
            await self._refresh_ollama(backend, base, was_up=was_up)
        elif backend.kind is BackendKind.LLAMACPP and not was_up:
            await self._refresh_llamacpp(backend, base)

    async def _refresh_ollama(self, backend: Backend, base: str, *, was_up: bool) -> None:
        loaded = (await self._json(f"{base}/api/ps") or {}).get("models") or []
        before = {model.name for model in backend.models}
        backend.models = tuple(
            LoadedModel(
                name=str(model.get("name", "")),
                size_bytes=model.get("size"),
                vram_bytes=model.get("size_vram"),
                context=model.get("context_length"),
                digest=str(model.get("digest") or ""),
            )
            for model in loaded
            if isinstance(model, dict)
        )
        if before:
            backend.swaps += sum(model.name not in before for model in backend.models)
        if not was_up:
            known = (await self._json(f"{base}/api/tags") or {}).get("models") or []
            backend.remote_models = frozenset(
                str(model.get("name"))
                for model in known
                if isinstance(model, dict) and model.get("remote_host")
            )

    async def _refresh_llamacpp(self, backend: Backend, base: str) -> None:
        props = await self._json(f"{base}/props") or {}
        backend.version = str(props.get("build_info", backend.version))
        if "total_slots" in props and not backend.slots_fixed:
            backend.slots = max(1, int(props["total_slots"]))
        name = str(props.get("model_alias") or props.get("model_path", "")).rsplit("/", 1)[-1]
        settings = props.get("default_generation_settings")
        context = settings.get("n_ctx") if isinstance(settings, dict) else None
        backend.models = (LoadedModel(name=name, context=context),) if name else ()

    async def busy_slots(self, backend: Backend) -> int | None:
        """Count llama.cpp's slots that are at work; None if it does not tell."""
        try:
            answer = await self._client.get(f"{backend.upstream.url}{backend.prefix}/slots", timeout=60)
        except httpx.HTTPError:
            return None
        slots = _decoded(answer) if answer.status_code == 200 else None
        if not isinstance(slots, list):
            return None
        return sum(bool(slot.get("is_processing")) for slot in slots if isinstance(slot, dict))

    async def _json(self, url: str) -> dict[str, Any] | None:
        try:
            answer = await self._client.get(url)
        except httpx.HTTPError:
            return None
        data = _decoded(answer) if answer.status_code == 200 else None
        return data if isinstance(data, dict) else None


def _decoded(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        return None


def _why(error: httpx.HTTPError) -> str:
    if isinstance(error, httpx.ConnectError):
        return (
            "connection refused" if "refused" in str(error).lower() or "failed" in str(error) else str(error)
        )
    return "no answer in time" if isinstance(error, httpx.TimeoutException) else type(error).__name__


class BackendWatch:
    """Keeps a backend's state current and waits for slots that must drain."""

    def __init__(self, backend: Backend, prober: Prober, on_change: Callable[[], None]) -> None:
        self.backend = backend
        self._prober = prober
        self._on_change = on_change
        self._look = asyncio.Event()

    def look_now(self) -> None:
        """Look at once: something just went wrong."""
        self._look.set()

    async def run(self) -> None:
        """Look for ever."""
        while True:
            before = (self.backend.state, self.backend.slots, self.backend.models)
            try:
                await self._prober.refresh(self.backend)
            except (AttributeError, TypeError, ValueError) as error:
                # Another server than it was taken for, or a new version: it answers, so requests may go on.
                self.backend.state, self.backend.detail = "up", f"its answers are not understood ({error})"
            if before != (self.backend.state, self.backend.slots, self.backend.models):
                self._on_change()
            pause_s = UP_EVERY_S if self.backend.state == "up" else DOWN_EVERY_S
            self._look.clear()
            try:
                async with asyncio.timeout(pause_s):
                    await self._look.wait()
            except TimeoutError:
                continue

    async def slots_settled(self, others_started_at: Callable[[], list[float]]) -> None:
        """Return when llama.cpp shows no more busy slots than we have requests in flight there.

        `others_started_at` gives, on the monotonic clock, when those were sent; one just sent may not be
        counted by the server yet, so a look is trusted only when all have been there for a moment.
        """
        while self.backend.kind is BackendKind.LLAMACPP:
            asked = time.monotonic()
            busy = await self._prober.busy_slots(self.backend)
            if busy is None:
                return
            started = others_started_at()
            if busy <= len(started) and all(asked - at >= STARTED_FOR_S for at in started):
                return
            if busy == 0:
                return
            await asyncio.sleep(SLOTS_EVERY_S)


async def find_backend(wanted: str | None, prober: Prober, *, listen_port: int) -> tuple[Found, list[Found]]:
    """Return the backend to use and all that were found; a named one is used although it is down."""
    if wanted is None:
        found = await prober.discover(skip_port=listen_port)
        chosen = found[0] if found else Found(BackendKind.OLLAMA, "http://127.0.0.1:11434")
        return chosen, found
    if wanted in USUAL_PORTS:
        kind = BackendKind(wanted)
        urls = [f"http://127.0.0.1:{port}" for port in USUAL_PORTS[kind] if port != listen_port]
        if not urls:
            raise ClairvoyantError("no port left to look at; give the backend's URL", ExitCode.USAGE)
        for url in urls:
            found_here = await prober.identify(url)
            if found_here is not None:
                found_here = Found(kind, url, "", found_here.version, found_here.slots)
                return found_here, [found_here]
        return Found(kind, urls[0]), []
    if not any(sign in wanted for sign in "./:"):
        known = ", ".join(kind.value for kind in USUAL_PORTS)
        raise ClairvoyantError(f"no backend {wanted!r}; give {known}, or a URL", ExitCode.USAGE)
    url, prefix = split_prefix(wanted)
    Upstream(url)  # a URL that is none is refused before anything is asked of it
    found_there = await prober.identify(url, prefix)
    if found_there is not None:
        return found_there, [found_there]
    port = Upstream(url).port
    kind = next((kind for kind, ports in USUAL_PORTS.items() if port in ports), BackendKind.OTHER)
    return Found(kind, url, prefix), []
