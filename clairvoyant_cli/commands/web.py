"""Serves `clairvoyant top --web`: a page that draws the daemon's state in a browser.

Its panels are painted here, as those of the terminal (`web_panels`). The page is one file that loads nothing
from elsewhere. States and a few actions are relayed, so that the daemon's token stays here: the browser keeps
another, derived from it, in a cookie that scripts cannot read. Access is checked as by the daemon: loopback
only unless there is a token, no pages or names of other sites.
"""

import asyncio
import hashlib
import hmac
import re
import socket
from base64 import b64encode
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from importlib.resources import files

import click
import msgspec

from clairvoyant_cli.addresses import is_loopback, joined, parse_address
from clairvoyant_cli.commands import web_panels
from clairvoyant_cli.config import ServeConfig, load_serve_config
from clairvoyant_cli.errors import InputError
from clairvoyant_cli.http.fields import Header
from clairvoyant_cli.http.heads import RequestHead
from clairvoyant_cli.http.routes import EVENTS, JSON, TEXT, Answer, Asked, Routes, as_json
from clairvoyant_cli.proxy.access.clients_file import origins_of
from clairvoyant_cli.proxy.access.origins import AllowedOrigins
from clairvoyant_cli.proxy.listening_socket import listen, serving
from clairvoyant_cli.state.actions import COMMANDS, TARGETS, Action, Verb, arguments_of
from clairvoyant_cli.state.client import as_its_owner
from clairvoyant_cli.state.encoding import decode, encode
from clairvoyant_cli.state.snapshot import Snapshot
from clairvoyant_cli.state.source import DaemonSource, Disconnected
from tui.hardware.reading import Hardware
from tui.view_state import ViewState

COOKIE = "clairvoyant_top"
"""What the names of cookies begin with; the page's port follows, as a host's cookies go to all its ports."""

MAX_PAGES = 32
MAX_CONNECTIONS = 128
EVERY_S = 0.5
ROWS = 200  # queued requests that a page is sent
PAST_S = 600.0
SAMPLE_S = 2.0
"""The graph shows `PAST_S`, with a point every `SAMPLE_S`; the daemon keeps one every five seconds."""

READ_S = 2.0
"""How often the machine is read."""

MOST_CELLS = 300
"""How wide a column of a page may say it is."""

VERBS = (
    *(Verb.CANCEL, Verb.PROMOTE, Verb.HOLD, Verb.RELEASE),
    *(Verb.PAUSE, Verb.RESUME, Verb.DRAIN, Verb.POLICY, Verb.TAU),
)
"""What a page may ask for."""

HEADERS: tuple[Header, ...] = (
    (b"Cache-Control", b"no-store"),
    (b"Cross-Origin-Resource-Policy", b"same-origin"),
    (b"Referrer-Policy", b"no-referrer"),
    (b"X-Content-Type-Options", b"nosniff"),
)


@dataclass(frozen=True, slots=True)
class Looks:
    """How many cells wide the columns of a page are, and the request that its dialog shows, "" if none."""

    left: int
    right: int
    shown: str = ""

    @classmethod
    def of(cls, asked: Asked) -> "Looks | None":
        """Read what a page says of itself; None if it says nothing."""
        left, right = (asked.query(name) for name in ("left", "right"))
        if not (left.isdecimal() and right.isdecimal()):
            return None
        of_left, of_right = (min(MOST_CELLS, int(each[:4])) for each in (left, right))
        return cls(of_left, of_right, asked.query("shown"))


class Relay:
    """Follows a daemon, and has its newest state for every page."""

    def __init__(self, source: DaemonSource) -> None:
        self.source = source
        self._newest = b""
        self._view = ViewState(source.where, local=source.local)
        self._painted: dict[Looks, bytes] = {}  # of the newest state
        self._news = asyncio.Event()
        self._past: deque[tuple[float, int, float]] = deque(maxlen=int(PAST_S / SAMPLE_S))

    async def follow(self) -> None:
        """Read states until cancelled."""
        async for news in self.source.stream():
            if isinstance(news, Disconnected):
                self._tell(b"event: lost\ndata: " + encode(news.reason))
                continue
            if not self._past:
                await self._look_back(news.taken_at)
            prompts = any(row.prompt is not None for row in news.alive)
            self._view = replace(self._view, snapshot=news, prompts=prompts)
            self._view.history.take(news)
            point = _point(news)
            if not self._past or abs(point[0] - self._past[-1][0]) >= SAMPLE_S:
                self._past.append(point)
            self._tell(b"data: " + encode(replace(news, queue=news.queue[:ROWS])))
            await asyncio.sleep(EVERY_S)

    async def read(self, machine: Callable[[], Hardware]) -> None:
        """Read the machine until cancelled."""
        while True:
            hardware = await asyncio.to_thread(machine)
            self._view = replace(self._view, hardware=hardware)
            self._view.history.take_hardware(hardware)
            await asyncio.sleep(READ_S)

    async def events(self, looks: Looks | None) -> AsyncIterator[bytes]:
        """Yield what a page draws: the past once, then the newest state each time there is one, and the
        panels if it says how it `looks`.
        """
        yield b"retry: 1000\nevent: past\ndata: " + encode(list(self._past)) + b"\n\n"
        while True:
            news = self._news
            if self._newest:
                yield self._newest + b"\n\n"
            if looks is not None and self._view.snapshot is not None:
                yield self._panels(looks)
            await news.wait()

    def _panels(self, looks: Looks) -> bytes:
        if looks not in self._painted:
            panels = web_panels.painted(self._view, looks.left, looks.right, looks.shown)
            self._painted[looks] = b"event: panels\ndata: " + encode(panels) + b"\n\n"
        return self._painted[looks]

    async def _look_back(self, now: float) -> None:
        """Begin the graph with the daemon's history."""
        before = now
        while before > now - PAST_S and (page := (await self.source.past(before)).splitlines()):
            points = [_point(decode(line)) for line in page]
            self._past.extendleft(reversed([each for each in points if each[0] < before]))
            before = points[0][0]

    def _tell(self, event: bytes) -> None:
        self._newest = event
        self._painted.clear()
        self._news.set()
        self._news = asyncio.Event()


def _point(state: Snapshot) -> tuple[float, int, float]:
    """Return a state's point of the graph: time, waiting requests, tokens per second."""
    return state.taken_at, state.waits, sum(each.tokens_per_s or 0.0 for each in state.running)


class Pages:
    """Serves the page to browsers; with a `secret`, only to those that were given it, under a `cookie` of
    that name.
    """

    def __init__(
        self, relay: Relay, origins: AllowedOrigins, secret: str | None, cookie: str, *, readonly: bool
    ) -> None:
        self._relay, self._secret, self._readonly = relay, secret, readonly
        self._origins, self._cookie = origins, cookie
        self._open = 0
        page = files("clairvoyant_cli.commands").joinpath("web.html").read_bytes()
        self._page = page.replace(b"/* colours */", web_panels.style().encode())
        if readonly:
            self._page = self._page.replace(b"<body>", b'<body class="readonly">')
        policy = _policy(self._page.decode()).encode()
        self._headers = (*HEADERS, (b"Content-Security-Policy", policy))
        told = {"/": self._index, "/events": self._events}
        self.routes = Routes(self._guard, told, {"/actions/": self._act})

    def _guard(self, head: RequestHead) -> Answer | None:
        if self._origins.objection(head) is not None:
            return _refusal("open the page by this machine's address, or a name in allow_host", 403)
        asked = Asked(head, b"")
        if self._secret is None or self._has_token(asked) or any(map(self._knows, asked.cookies(COOKIE))):
            return None
        return _refusal("open the address that `clairvoyant top --web` printed, with its token", 401)

    def _has_token(self, asked: Asked) -> bool:
        return asked.head.path == "/" and self._knows(asked.query("token"))

    def _knows(self, given: str) -> bool:
        return self._secret is not None and hmac.compare_digest(given.encode(), self._secret.encode())

    async def _index(self, asked: Asked) -> Answer:
        if self._has_token(asked):
            cookie = f"{self._cookie}={self._secret}; HttpOnly; Path=/; SameSite=strict".encode()
            return Answer(b"", 303, TEXT, (*HEADERS, (b"Location", b"/"), (b"Set-Cookie", cookie)))
        return Answer(self._page, 200, b"text/html; charset=utf-8", self._headers)

    async def _events(self, asked: Asked) -> Answer:
        if self._open >= MAX_PAGES:
            return _refusal("too many pages are open", 503)
        if asked.head.method == b"HEAD":  # its answer has no body that could end it
            return Answer(content_type=EVENTS, headers=HEADERS)
        return Answer(self._stream(Looks.of(asked)), 200, EVENTS, HEADERS)

    async def _stream(self, looks: Looks | None) -> AsyncIterator[bytes]:
        self._open += 1
        try:
            async for event in self._relay.events(looks):
                yield event
        finally:
            self._open -= 1

    async def _act(self, asked: Asked) -> Answer:
        action = asked.name
        if self._readonly or action not in VERBS:
            return as_json({"error": "this page may not do that"}, 403, HEADERS)
        if (asked.head.get(b"content-type") or b"").partition(b";")[0].strip().lower() != JSON:
            return as_json({"error": "actions take a JSON body"}, 400, HEADERS)
        try:
            body = msgspec.json.decode(asked.body, type=dict[str, str])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return as_json({"error": "the body is not a JSON object of texts"}, 400, HEADERS)
        refusal = await self._relay.source.act(_action(Verb(action), body))
        if refusal:
            return as_json({"error": refusal}, 409, HEADERS)
        return as_json({"done": action}, 200, HEADERS)


def _action(verb: Verb, body: dict[str, str]) -> Action:
    """Return what a page asks for; a number is written as in `act`."""
    given = {field: body[field] for field in COMMANDS[verb].fields if field in body}
    values = arguments_of(verb, [f"{key}={text}" for key, text in given.items() if key not in TARGETS])
    return Action(verb, body.get("id"), next(iter(values.values()), None))


def _refusal(why: str, status: int) -> Answer:
    return Answer(f"clairvoyant: {why}\n".encode(), status, TEXT, HEADERS)


def _policy(page: str) -> str:
    """Return the content security policy: the page's own script and style, and requests to here."""
    own = {
        kind: b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for kind, text in re.findall(r"<(script|style)>(.*?)</\1>", page, re.DOTALL)
    }
    return (
        f"default-src 'none'; script-src 'sha256-{own['script']}'; style-src 'sha256-{own['style']}'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def secret_of(token: str, address: str, *, readonly: bool) -> str:
    """Return what a browser is given in place of the daemon's token; it tells nothing of that. No other page
    takes it, and not the one at this address that may do more.
    """
    page = f"clairvoyant top --web {address}{' --readonly' * readonly}"
    return hmac.new(token.encode(), page.encode(), hashlib.sha256).hexdigest()


@asynccontextmanager
async def serving_pages(
    address: str,
    url: str,
    token: str | None,
    config: ServeConfig,
    *,
    readonly: bool = False,
    machine: Callable[[], Hardware] | None = None,
) -> AsyncIterator[str]:
    """Serve pages of the daemon at `url`, and yield their address, with what lets a browser in. `config` has
    the names that the operator allows; `machine` reads what the panel of the GPU shows.
    """
    host, port = parse_address(address, "--web")
    listener = listen(host, port, "--web")
    port = listener.getsockname()[1]
    known = token or as_its_owner(url)[1]
    secret = known and secret_of(known, joined(host, port), readonly=readonly)
    relay = Relay(DaemonSource(url, token, EVERY_S))
    origins = origins_of(config, asks_for_secret=bool(secret))
    pages = Pages(relay, origins, secret, f"{COOKIE}_{port}", readonly=readonly)
    async with serving(listener, pages.routes, MAX_CONNECTIONS) as tasks:
        tasks.spawn(relay.follow())
        if machine is not None:
            tasks.spawn(relay.read(machine))
        end = f"?token={secret}" if secret else ""
        yield f"http://{joined(_reached_at(host), port)}/{end}"


def _reached_at(host: str) -> str:
    """Return where other machines reach a listener on all addresses: by the one of the default route."""
    if host not in ("0.0.0.0", "::"):  # noqa: S104 - compared
        return host
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing (RFC 5737)
        return str(probe.getsockname()[0])
    return "127.0.0.1"


def serve_pages(address: str, url: str, token: str | None, *, readonly: bool) -> None:
    """Serve the dashboard of the daemon at `url` until Ctrl-C. Without a `token`, that of a daemon of this
    account is used.
    """
    if not is_loopback(parse_address(address, "--web")[0]) and token is None:
        raise InputError("beyond loopback --web wants the daemon's admin token; give --token-file")

    from tui.hardware.collect import Machine  # loads drivers

    config = load_serve_config({})

    async def serve() -> None:
        pages = serving_pages(address, url, token, config, readonly=readonly, machine=Machine())
        async with pages as opened_at:
            click.echo(f"clairvoyant top: {opened_at}   (Ctrl-C ends it)")
            await asyncio.Event().wait()

    with suppress(KeyboardInterrupt):
        asyncio.run(serve())
