"""The LLM server behind the proxy: which it is, whether it is up, and when a slot of it is really free."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx

from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.http.upstream import Upstream
from clairvoyant_cli.proxy.own_transport import OwnTransport
from clairvoyant_cli.proxy.protocols import probes
from clairvoyant_cli.proxy.protocols.routes import BackendKind
from clairvoyant_cli.proxy.speeds import Speeds
from tui.snapshot import LoadedModel

USUAL_PORTS: dict[BackendKind, tuple[int, ...]] = {
    BackendKind.OLLAMA: (11434,),
    BackendKind.LLAMACPP: (8080, 9931),
    BackendKind.LMSTUDIO: (1234,),
    BackendKind.JAN: (1337,),
}
"""Where each server listens unless told otherwise; llama.cpp is moving from 8080 to 9931."""

PROBE_TIMEOUT_S = 2.0
TIMED_OUT = "no answer in time"
LOADING = "loading its model"
SLOTS_TIMEOUT_S = 60.0
NOT_UNDERSTOOD = "its answers are not understood"
"""Another server than it was taken for, or a new version: it answers, so requests may go on."""

UP_EVERY_S = 5.0
DOWN_EVERY_S = 1.0

SLOTS_EVERY_S = 1.25
"""Time between looks at llama.cpp's /slots. Each look restarts the 1 s timer by which the server notices
that the client of an unstreamed request has left, so it must stay above a second."""

LOOKS_TRUSTED = 3
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
    seen: bool = False

    def __repr__(self) -> str:
        return f"<Backend {self.kind} {self.upstream.url} {self.state}, {self.slots} slots>"

    @property
    def says_not_yet(self) -> bool:
        """Whether it may answer that its model is still loading, as llama.cpp does; Ollama waits instead."""
        return self.kind in (BackendKind.LLAMACPP, BackendKind.OTHER)

    @property
    def away(self) -> bool:
        """Whether it was there and is not now, or loads its model: what waits had better wait on."""
        return self.seen and self.state in ("down", "loading")


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


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a question; no `text` where it is compressed, or too long to be read."""

    status: int
    text: bytes | None

    @property
    def ok(self) -> bool:
        """Whether the question was answered."""
        return self.status == 200

    @property
    def body(self) -> bytes | None:
        """What can be read of an answer that is no error."""
        return self.text if self.ok else None


NO_ANSWER = Answer(0, None)


class Prober:
    """Asks servers who they are and how they do."""

    def __init__(self, api_key: str | None = None) -> None:
        headers = {b"Accept-Encoding": b"identity"}
        if api_key:
            headers[b"Authorization"] = b"Bearer " + api_key.encode()
        # One byte more than is read of an answer, so that a longer one is seen to be longer.
        transport = OwnTransport(probes.ANSWER_BYTES + 1, PROBE_TIMEOUT_S)
        self._client = httpx.AsyncClient(transport=transport, headers=headers, trust_env=False)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def identify(self, url: str, prefix: str = "") -> Found | None:
        """Find out which server answers at `url`; None if none does."""
        base = url + prefix
        if probes.is_object((await self._answer(f"{base}/_clairvoyant/health")).body):
            raise ClairvoyantError(
                f"{url} is a clairvoyant already; give the URL of the LLM server itself with --backend"
            )
        version = probes.version_of((await self._answer(f"{base}/api/version")).body)
        if version is not None:
            return Found(BackendKind.OLLAMA, url, prefix, version)
        props = probes.props_of((await self._answer(f"{base}/props")).body)
        if props is not None and props.tells_slots:
            return Found(BackendKind.LLAMACPP, url, prefix, props.build, props.slots)
        if probes.is_object((await self._answer(f"{base}/api/v0/models")).body):
            return Found(BackendKind.LMSTUDIO, url, prefix)
        try:
            answer = await self._ask(f"{base}/v1/models")
        except httpx.HTTPError:
            return None
        if answer.status == 503 and b"Loading model" in (answer.text or b""):
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
            answer = await self._ask(base + path)
        except httpx.HTTPError as error:
            backend.state, backend.detail = "down", _why(error)
            return
        was_up = backend.state == "up"
        if answer.status == 503:
            backend.state, backend.detail = "loading", LOADING
            return
        backend.state = "up"
        if backend.kind is BackendKind.OLLAMA:
            await self._refresh_ollama(backend, base, answer, was_up=was_up)
        elif backend.kind is not BackendKind.LLAMACPP:
            backend.detail = ""
        else:
            await self._refresh_llamacpp(backend, base, was_up=was_up)

    async def _refresh_ollama(self, backend: Backend, base: str, version: Answer, *, was_up: bool) -> None:
        listing = await self._answer(f"{base}/api/ps")
        models = probes.loaded_models(listing.body)
        before = {model.name for model in backend.models}
        backend.version, backend.models = probes.version_of(version.body) or "", models or ()
        backend.detail = "" if backend.version and (models is not None or not listing.ok) else NOT_UNDERSTOOD
        if before:
            backend.swaps += sum(model.name not in before for model in backend.models)
        if not was_up:
            backend.remote_models = probes.remote_models((await self._answer(f"{base}/api/tags")).body)

    async def _refresh_llamacpp(self, backend: Backend, base: str, *, was_up: bool) -> None:
        # At every look: a server that was restarted in between may have other slots.
        answer = await self._answer(f"{base}/props")
        if was_up and not answer.ok:
            return
        props = probes.props_of(answer.body) or probes.NO_PROPS
        backend.version = props.build or backend.version
        backend.models = () if props.model is None else (props.model,)
        backend.detail = NOT_UNDERSTOOD if answer.ok and props.slots is None else ""
        if props.slots is not None and not backend.slots_fixed:
            backend.slots = props.slots

    async def busy_slots(self, backend: Backend) -> int | None:
        """Count llama.cpp's slots that are at work; None if it does not tell."""
        url = f"{backend.upstream.url}{backend.prefix}/slots"
        return probes.busy_slots((await self._answer(url, SLOTS_TIMEOUT_S)).body)

    async def _answer(self, url: str, timeout_s: float = PROBE_TIMEOUT_S) -> Answer:
        try:
            return await self._ask(url, timeout_s)
        except httpx.HTTPError:
            return NO_ANSWER

    async def _ask(self, url: str, timeout_s: float = PROBE_TIMEOUT_S) -> Answer:
        """Ask a question; httpx.HTTPError if no answer comes, or none in time."""
        try:
            async with asyncio.timeout(timeout_s):
                response = await self._client.send(self._client.build_request("GET", url), stream=True)
                text = await response.aread() if _is_plain(response) else None
        except TimeoutError:
            raise httpx.ReadTimeout("no whole answer in time") from None
        return Answer(response.status_code, text)


def _is_plain(response: httpx.Response) -> bool:
    return bool(response.headers.get("content-encoding", "identity") == "identity")


def _why(error: httpx.HTTPError) -> str:
    if isinstance(error, httpx.ConnectError):
        return (
            "connection refused" if "refused" in str(error).lower() or "failed" in str(error) else str(error)
        )
    return TIMED_OUT if isinstance(error, httpx.TimeoutException) else type(error).__name__


class BackendWatch:
    """Keeps a backend's state current and waits for slots that must drain."""

    def __init__(
        self,
        backend: Backend,
        prober: Prober,
        on_change: Callable[[], None],
        *,
        at_work: Callable[[], bool] = lambda: False,
        on_trial: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`at_work` says whether the backend is answering a request of ours; `on_trial` has one waiting
        request sent, to see whether a backend that was loading serves by now.
        """
        self.backend = backend
        self._prober = prober
        self._on_change = on_change
        self._at_work = at_work
        self._on_trial = on_trial
        self._clock = clock
        self._look = asyncio.Event()
        self._announced: tuple[object, ...] = ()

    def look_now(self) -> None:
        """Look at once: something just went wrong."""
        self._look.set()

    def lost(self, why: str) -> None:
        """No connection could be made: it is down until a look says otherwise."""
        self.backend.state, self.backend.detail = "down", why
        self._announce()
        self.look_now()

    def not_ready(self) -> None:
        """A request was answered with "not yet": nothing more is sent but one now and then, to see."""
        self.backend.state, self.backend.detail = "loading", LOADING
        self._announce()

    def answered(self) -> None:
        """A request was answered: whatever it says of itself, it serves."""
        if self.backend.state == "loading":
            self.backend.state, self.backend.detail = "up", ""
            self._announce()

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await self._refresh()
            self._announce()
            if self.backend.state == "loading":
                self._on_trial()
            pause_s = UP_EVERY_S if self.backend.state == "up" else DOWN_EVERY_S
            self._look.clear()
            try:
                async with asyncio.timeout(pause_s):
                    await self._look.wait()
            except TimeoutError:
                continue

    async def _refresh(self) -> None:
        backend = self.backend
        before = backend.state
        await self._prober.refresh(backend)
        if backend.detail == TIMED_OUT and before == "up" and self._at_work():
            backend.state = "up"  # it has but one thread, and that one works for us
        backend.seen = backend.seen or backend.state in ("up", "loading")

    def _announce(self) -> None:
        news = (self.backend.state, self.backend.slots, self.backend.models)
        if news != self._announced:
            self._announced = news
            self._on_change()

    async def slots_settled(self, others_started_at: Callable[[], list[float]]) -> None:
        """Return when llama.cpp shows no more busy slots than we have requests in flight there.

        `others_started_at` gives, on the monotonic clock, when those were sent; one just sent may not be
        counted by the server yet, so a look is trusted only when all have been there for a moment, or when
        `LOOKS_TRUSTED` in a row say the same: where requests are short, there is always one just sent.
        """
        free = 0
        while self.backend.kind is BackendKind.LLAMACPP:
            asked = self._clock()
            busy = await self._prober.busy_slots(self.backend)
            if busy is None:
                return
            started = others_started_at()
            free = free + 1 if busy <= len(started) else 0
            if free and (free == LOOKS_TRUSTED or all(asked - at >= STARTED_FOR_S for at in started)):
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
