"""Forwards requests that need no slot: chooses the server, and merges model lists.

Rule: of several servers, the request goes to one that speaks the path's dialect, has the model and is up: the
first of them. The answer says which it was.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qsl

import msgspec
from msgspec import Raw

from clairvoyant_cli.backends.priority import BarredError
from clairvoyant_cli.http.heads import ResponseHead, reason_of
from clairvoyant_cli.http.own_requests import OwnAnswer
from clairvoyant_cli.http.request import Request
from clairvoyant_cli.http.upstream import (
    RefusedError,
    StaleError,
    UnreachableError,
    UpstreamConnection,
    UpstreamError,
)
from clairvoyant_cli.protocols.errors import Refusal
from clairvoyant_cli.protocols.lenient_json import OBJECT, entries, fitting, object_in
from clairvoyant_cli.protocols.outer_members import may_have_members, members_of, named_model
from clairvoyant_cli.protocols.printable import decoded, printable
from clairvoyant_cli.protocols.probes import model_name
from clairvoyant_cli.protocols.request_parsing import ParsedRequest
from clairvoyant_cli.protocols.routes import (
    Family,
    Route,
    plainly_spelled,
    speakers_of,
    unescaped,
)
from clairvoyant_cli.proxy.access.keys import BACKEND_HEADER, Access
from clairvoyant_cli.proxy.requests.refusals import IN_A_LOOP, Refusals
from clairvoyant_cli.proxy.requests.relay import Relay, forward
from clairvoyant_cli.proxy.servers.pool import ServerPool
from clairvoyant_cli.proxy.servers.server import Server

log = logging.getLogger("clairvoyant")

LIST_TIMEOUT_S = 5.0  # a server that takes longer is left out of a list
NAMING_BYTES = 4 * 1024 * 1024  # of a body that names a model, maybe behind long messages

ONE_MODEL = "/v1/models/"  # what follows is the name of the model that is asked about
BLOBS = "/api/blobs/"  # what follows is a digest
ONE_RESPONSE = "/responses/"  # what follows is the id of a stored response
READING = (b"GET", b"HEAD", b"OPTIONS")

RESPONSES = ("/v1/responses", "/responses")
# How servers without WebSockets answer an offer of one: LM Studio 200 with an error, uvicorn 403 or 404.
NO_WEBSOCKET = (200, 400, 403, 404, 405, 501)


class WebSocketRelay(Relay):
    """Relays the answer to the offer of a WebSocket for responses. Codex and opencode use HTTP at once after
    426, but retry the offer several times after any other error.
    """

    def head(self, head: ResponseHead) -> None:
        if head.status in NO_WEBSOCKET:
            head.status, head.reason = 426, reason_of(426)
        super().head(head)


@dataclass(slots=True)
class Passthrough:
    pool: ServerPool
    access: Access
    refusals: Refusals
    _left_out: set[tuple[str, str]] = field(default_factory=set)  # lists whose loss has been logged

    async def pass_on(self, request: Request, route: Route, client: str, model: str = "") -> None:
        """Have a request answered by the server that it is for; `model` is the one it names, if known."""
        pool, head = self.pool, request.head
        path = plainly_spelled(unescaped(head.path))
        named = head.get(BACKEND_HEADER)
        is_list = head.method == b"GET" and not head.has_body and path in LISTS
        of_all = is_list and named is None and len(pool) > 1
        if of_all and await self._listed(request, client, path):
            return
        able = await self._able(request, path, client, model)
        if isinstance(able, Refusal):
            self.refusals.send(request, route, able)
            return
        server = next((each for each in able if not each.away), able[0])
        if server.leads_back:
            self.refusals.send(request, route, IN_A_LOOP)
            return
        others = [each for each in able if each is not server and not each.away and not each.leads_back]
        if path.startswith(BLOBS) or not (request.is_kept or not head.has_body):
            others = []  # a blob belongs where its model is created; what is not all here cannot be repeated
        while await self._is_refused(request, route, client, server, others):
            server = others.pop(0)
        if head.method not in READING:
            server.probe_due.set()  # it may have another model by now

    async def _able(self, request: Request, path: str, client: str, model: str) -> list[Server] | Refusal:
        """Return the servers that a request may be for, or why there is none."""
        pool, head = self.pool, request.head
        named = head.get(BACKEND_HEADER)
        if named is not None:
            name = printable(decoded(named))
            message = f"clairvoyant: no server is called {name}; see: clairvoyant status"
            found = [server for server in pool if server.name == name]
            return found or Refusal(400, message, kind="unknown_server")
        if len(pool) == 1:
            return [pool.first]
        before, _, response = path.partition(ONE_RESPONSE)
        holder = pool.holder_of(response.partition("/")[0]) if before in ("", "/v1") else None
        if holder is not None:
            return [holder]
        model = model or await self._model_in(request, path, client)
        return pool.able(speakers_of(path), ParsedRequest(model=model))

    async def _model_in(self, request: Request, path: str, client: str) -> str:
        """Return the model that a request is about, which its path, its query or its body names."""
        head = request.head
        if path.startswith(ONE_MODEL):
            return unescaped(head.path)[len(ONE_MODEL) :]
        asked = dict(parse_qsl(head.query.decode("latin-1"))).get("model", "")
        if asked or not head.has_body or not may_have_members(head):
            return asked
        await request.read(NAMING_BYTES, client)
        return await named_model(request.arrived, head)

    async def _listed(self, request: Request, client: str, path: str) -> bool:
        """Answer with the lists of all servers that give one; False if none does."""
        speak = [server for server in self.pool if LISTS[path] in server.adapter.SPEAKS]
        up = [server for server in speak or self.pool if server.status.state != "down"]
        asked = [server for server in up if server.health.withdrawn != "leaving"]
        answers = await asyncio.gather(*(self._collected(request, client, server) for server in asked))
        lists = []
        for server, answer in zip(asked, answers, strict=True):
            if answer is not None and answer[0].status != 200:
                continue  # it has no such list
            if answer is not None and merged(path, [answer[1]]) is not None:
                lists.append((server, *answer))
            elif (server.name, path) not in self._left_out:
                self._left_out.add((server.name, path))
                log.warning("%s: no list at %s that can be read; it is left out", server.name, path)
        body = merged(path, [text for _, _, text in lists])
        if body is None:
            return False
        names = b", ".join(server.name.encode() for server, _, _ in lists)
        head = lists[0][1]
        kept = [field for field in head.headers if field[0].lower() not in (b"content-length", b"etag")]
        extra = (b"X-Clairvoyant-Backend", names)
        request.connection.respond(ResponseHead(200, head.reason, kept), body, extra)
        return True

    async def _collected(
        self, request: Request, client: str, server: Server
    ) -> tuple[ResponseHead, bytes] | None:
        """Return a server's answer to a request without a body; None if it gave none that can be read."""
        try:
            async with asyncio.timeout(LIST_TIMEOUT_S):
                upstream = await server.upstream.connect()
                answer = OwnAnswer(upstream)
                barred = self.access.barred(client, server.stamps)
                barred = replace(barred, names=(*barred.names, b"accept-encoding"))
                forward(request, upstream, answer, server, barred=barred)
                head, text = await answer.whole(LIST_BYTES)
        except (TimeoutError, UpstreamError):
            return None
        return None if text is None else (head, text)

    async def _is_refused(
        self, request: Request, route: Route, client: str, server: Server, others: list[Server]
    ) -> bool:
        """Have a server answer; True if it refused what one of the `others` might answer."""
        try:
            try:
                await self._relay(request, client, server, others)
            except StaleError:
                if request.head.method not in READING or request.head.has_body:
                    raise  # the server may have seen it (RFC 9110, 9.2.2)
                await self._relay(request, client, server, others, fresh=True)
        except RefusedError:
            return True
        except BarredError as error:
            self.refusals.send(request, route, error.refusal)
        except UpstreamError as error:
            server.probe_due.set()
            refusals = self.refusals
            say = refusals.unreachable if isinstance(error, UnreachableError) else refusals.broken_off
            refusals.send(request, route, say(server, str(error)))
        return False

    async def _relay(
        self, request: Request, client: str, server: Server, others: list[Server], *, fresh: bool = False
    ) -> None:
        upstream: UpstreamConnection | None = None
        relay: Relay | None = None
        try:
            upstream = await server.upstream.connect(fresh=fresh)
            offers = request.head.upgrade and plainly_spelled(unescaped(request.head.path)) in RESPONSES
            kind = WebSocketRelay if offers else Relay
            relay = kind(
                request,
                upstream,
                server,
                self.refusals.pages,
                self.refusals.by(server),
                elsewhere=others.__len__ if others else None,
            )
            barred, members = self.access.barred(client, server.stamps), members_of(request.head)
            forward(request, upstream, relay, server, barred=barred, members=members, keep=bool(others))
            await relay.finished
        except asyncio.CancelledError:
            if relay is not None and relay.whole:
                return  # the connection may serve another request by now
            if upstream is not None:
                upstream.abort()
            raise


# Merges model lists of several servers; entries are kept as their servers wrote them.

OFFERED: dict[str, Family] = {
    "/api/tags": Family.OLLAMA,
    "/v1/models": Family.OPENAI,
    "/models": Family.LLAMACPP,
    "/api/v0/models": Family.OPENAI,
}
"""Path -> family of a list of available models: a name that several servers have is listed once."""

LOADED: dict[str, Family] = {"/api/ps": Family.OLLAMA}
"""Path -> whose list it is of what is loaded: what two have loaded is loaded twice."""

LISTS = OFFERED | LOADED

LIST_BYTES = 8 * 1024 * 1024
LIST_OBJECTS = 20_000
"""The longest list that is merged; it takes some 30 ms."""


def merged(path: str, answers: Sequence[bytes]) -> bytes | None:
    """Return the answers to a path as one list, the first server's first; None if one is not a list."""
    wholes = [
        fitting(OBJECT, answer) if len(answer) <= LIST_BYTES and answer.count(b"{") <= LIST_OBJECTS else None
        for answer in answers
    ]
    if not wholes or None in wholes:
        return None
    lists: dict[str, Raw] = {}
    for whole in wholes:
        for name, value in (whole or {}).items():
            listed, known = entries(value), entries(lists.get(name, value))
            if listed is None or known is None:
                lists.setdefault(name, value)
            elif name not in lists:
                lists[name] = value
            else:
                names = set() if path in LOADED else {_name(each) for each in known}
                lists[name] = Raw(
                    msgspec.json.encode([*known, *(each for each in listed if _name(each) not in names)])
                )
    return msgspec.json.encode(lists)


def _name(entry: Raw) -> str:
    return model_name(object_in(entry)) or bytes(entry).decode(errors="replace")
