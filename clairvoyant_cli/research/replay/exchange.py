"""The two ends of an exchange over ASGI: reading a request whole, and stopping when its client leaves."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Send

from clairvoyant_cli.research.replay.dialect import Json, RefusedError, encode

JSON_MEDIA_TYPE = "application/json; charset=utf-8"


async def read_object(request: Request) -> Json:
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


async def unless_gone(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Do the work, or stop it where it stands when the client leaves."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


def start_message(status: int, media_type: str, length: int | None = None) -> dict[str, Any]:
    """Return the ASGI message that starts a response; without a length it is chunked."""
    headers = [(b"content-type", media_type.encode())]
    if length is not None:
        headers.append((b"content-length", str(length).encode()))
    return {"type": "http.response.start", "status": status, "headers": headers}


async def send_json(send: Send, body: Json) -> None:
    """Send a JSON answer whole."""
    payload = encode(body)
    await send(start_message(200, JSON_MEDIA_TYPE, len(payload)))
    await send({"type": "http.response.body", "body": payload, "more_body": False})


def json_response(body: Json | bytes, status: int = 200) -> Response:
    """Return a JSON response with the media type Ollama gives it."""
    content = body if isinstance(body, bytes) else encode(body)
    return Response(content, status, media_type=JSON_MEDIA_TYPE)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
