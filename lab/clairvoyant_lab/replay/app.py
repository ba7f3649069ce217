"""The replay backend as an ASGI application: Ollama's routes of information, and the chats."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from clairvoyant_lab.replay.dialects import (
    DIALECTS,
    Answer,
    Ask,
    Json,
    OllamaChat,
    RefusedError,
    encode,
    template,
    timestamp,
)
from clairvoyant_lab.replay.engine import Engine, Service

DEFAULT_MODEL = "replay:latest"

VERSION = "0.40.0"
"""The Ollama version that the replay backend reports."""

CONTEXT_TOKENS = 8192
JSON_MEDIA_TYPE = "application/json; charset=utf-8"

DETAILS: Json = {"family": "replay", "parameter_size": "0B", "quantization_level": "F16"}
RESIDENT: Json = {"expires_at": "2318-01-01T00:00:00Z", "size_vram": 0, "context_length": CONTEXT_TOKENS}


class Replay:
    """A simulated LLM server. `app` is the ASGI application.

    `loaded` are the models in memory. A fixed wall clock `now` makes equal requests give equal bytes. `more`
    are further POST routes.
    """

    more: ClassVar[dict[str, Callable[["Replay", str, Json, Send], Awaitable[None]]]] = {}
    engine_type: ClassVar[type[Engine]] = Engine

    def __init__(
        self,
        engine: Engine | None = None,
        models: tuple[str, ...] = (DEFAULT_MODEL,),
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.engine = self.engine_type() if engine is None else engine
        self.models = models
        self.now = now
        self.loaded: set[str] = set()
        information: dict[str, Callable[[], Json]] = {
            "/api/version": lambda: {"version": VERSION},
            "/api/tags": lambda: {"models": [self._tag(name) for name in self.models]},
            "/api/ps": lambda: {"models": [self._tag(name) | RESIDENT for name in sorted(self.loaded)]},
            "/v1/models": lambda: {"object": "list", "data": [self._model(name) for name in self.models]},
        }
        routes = [Route(path, _telling(tell), methods=["GET"]) for path, tell in information.items()]
        posts = {"/api/show": Replay._show} | dict.fromkeys(DIALECTS, Replay.generate) | self.more
        routes += [
            Route(path, _Post(partial(serve, self), path), methods=["POST"]) for path, serve in posts.items()
        ]
        self.app = Starlette(routes=routes)

    def full_name(self, model: object) -> str:
        """Return the full name of a model; RefusedError 400 if none is named, 404 if it is unknown."""
        if not isinstance(model, str) or not model:
            raise RefusedError(400, "model is required")
        full = model if ":" in model else f"{model}:latest"
        if full not in self.models:
            raise RefusedError(404, f'model "{model}" not found, try pulling it first')
        return full

    def named_in(self, body: Json) -> str:
        """Return the full name of the model that a request names; RefusedError as of `full_name`."""
        return self.full_name(body.get("model", body.get("name")))

    # -- information -----------------------------------------------------------------------------------

    async def _show(self, route: str, body: Json, send: Send) -> None:
        self.named_in(body)
        shown = {
            "parameters": "",
            "template": "{{ .Prompt }}",
            "details": DETAILS,
            "model_info": {"general.architecture": "replay", "replay.context_length": CONTEXT_TOKENS},
            "capabilities": ["completion", "embedding"],
        }
        await send_json(send, shown)

    def _model(self, name: str) -> Json:
        created = int(self.now().timestamp())
        return {"id": name, "object": "model", "created": created, "owned_by": "library"}

    def _tag(self, name: str) -> Json:
        return {
            "name": name,
            "model": name,
            "modified_at": timestamp(self.now()),
            "size": 0,
            "digest": name.encode().hex().ljust(64, "0")[:64],
            "details": DETAILS,
        }

    # -- generation ------------------------------------------------------------------------------------

    async def generate(self, route: str, body: Json, send: Send, ask: Ask | None = None) -> None:
        """Queue for a slot and answer in the route's dialect; `ask` is the request if it was read before."""
        engine, dialect = self.engine, DIALECTS[route]
        ask = ask or dialect.read(body)
        self.loaded.add(self.full_name(ask.model))
        service = engine.arrive(route, ask.prompt, ask.text_chars, ask.cap, ask.said)
        async with engine.slot(service, template(body) if engine.cache else ""):
            await engine.prefill(service)
            decode_s = service.planned_tokens / engine.speed.decode_tokens_per_s
            cached_tokens = None if engine.cache is None else service.cached_tokens
            prefill_s = engine.prefill_s(service)
            answer = Answer(ask, service, self.now(), prefill_s, decode_s, cached_tokens)
            if ask.stream:
                await self._stream(dialect, answer, service, send)
                return
            async with aclosing(engine.decode(service)) as batches:
                text = "".join([word async for words in batches for word in words])
            await send_json(send, dialect.whole(answer, text))

    async def _stream(self, dialect: OllamaChat, answer: Answer, service: Service, send: Send) -> None:
        """Stream an answer. As in Ollama, the status line comes with the first token."""
        start = start_message(200, dialect.stream_media_type)
        text, opening = "", dialect.opening(answer)
        async with aclosing(self.engine.decode(service)) as batches:
            async for words in batches:
                if not text:
                    await send(start)
                frames = opening + b"".join(dialect.token(answer, word) for word in words)
                await send({"type": "http.response.body", "body": frames, "more_body": True})
                text, opening = text + "".join(words), b""
        if not text:
            await send(start)
        closing = opening + dialect.closing(answer, text)
        await send({"type": "http.response.body", "body": closing, "more_body": False})


def _telling(tell: Callable[[], Json]) -> Callable[[Request], Awaitable[Response]]:
    async def respond(request: Request) -> Response:  # a plain function would run on a thread
        return json_response(tell())

    return respond


class _Post:
    """A POST route: reads the body, and stops the work if the client leaves."""

    def __init__(self, serve: Callable[[str, Json, Send], Awaitable[None]], route: str) -> None:
        self._serve = serve
        self._route = route
        self._error = DIALECTS.get(route, DIALECTS["/api/chat"]).error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await _read_object(Request(scope, receive))
            await self._unless_gone(body, receive, send)
        except ClientDisconnect:
            return
        except RefusedError as refusal:
            error = json_response(self._error(refusal.status, refusal.message), refusal.status)
            await error(scope, receive, send)

    async def _unless_gone(self, body: Json, receive: Receive, send: Send) -> None:
        working = asyncio.ensure_future(self._serve(self._route, body, send))
        leaving = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
        finally:
            working.cancel()
            leaving.cancel()
            await asyncio.gather(working, leaving, return_exceptions=True)


async def _read_object(request: Request) -> Json:
    """Return a request's body as a JSON object; RefusedError 400 if it is none."""
    raw = await request.body()
    if not raw:
        raise RefusedError(400, "missing request body")
    try:
        body = msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        raise RefusedError(400, f"invalid JSON: {error}") from None
    if not isinstance(body, dict):
        raise RefusedError(400, "invalid JSON: the body must be an object")
    return body


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def start_message(status: int, media_type: str, length: int | None = None) -> dict[str, Any]:
    """Return the ASGI message that starts a response; without a length it is chunked."""
    headers = [(b"content-type", media_type.encode())]
    if length is not None:
        headers.append((b"content-length", str(length).encode()))
    return {"type": "http.response.start", "status": status, "headers": headers}


async def send_json(send: Send, body: Json) -> None:
    payload = encode(body)
    await send(start_message(200, JSON_MEDIA_TYPE, len(payload)))
    await send({"type": "http.response.body", "body": payload, "more_body": False})


def json_response(body: Json, status: int = 200) -> Response:
    """Return a JSON response with the media type of Ollama."""
    return Response(encode(body), status, media_type=JSON_MEDIA_TYPE)
