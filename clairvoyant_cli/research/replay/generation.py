"""The generation routes: read a request, queue it for a slot, answer it in the route's dialect."""

from collections.abc import Callable, Mapping
from contextlib import aclosing

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from clairvoyant_cli.research.replay import anthropic, ollama, openai
from clairvoyant_cli.research.replay.dialect import Answer, Ask, Dialect, Json, RefusedError
from clairvoyant_cli.research.replay.engine import Engine
from clairvoyant_cli.research.replay.exchange import (
    json_response,
    read_object,
    send_json,
    start_message,
    unless_gone,
)
from clairvoyant_cli.research.replay.journal import Service
from clairvoyant_cli.research.replay.models import Models

ErrorBody = Callable[[int, str], bytes]

DIALECTS: Mapping[str, tuple[Dialect, ErrorBody]] = {
    "/api/chat": (ollama.OllamaChat(), ollama.error_body),
    "/api/generate": (ollama.OllamaGenerate(), ollama.error_body),
    "/v1/chat/completions": (openai.CHAT, openai.error_body),
    "/v1/completions": (openai.COMPLETION, openai.error_body),
    "/v1/responses": (openai.OpenAIResponses(), openai.error_body),
    "/v1/messages": (anthropic.AnthropicMessages(), anthropic.error_body),
}


class Generation:
    """One generation route: read, queue for a slot, answer; a client that leaves gives up its place."""

    def __init__(self, engine: Engine, shelf: Models, route: str) -> None:
        self.engine = engine
        self.shelf = shelf
        self.route = route
        self.dialect, self.error_body = DIALECTS[route]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        try:
            body = await read_object(Request(scope, receive))
            native = self.route.startswith("/api/")
            reason = ollama.is_control(body) if native else None
            if reason is not None:
                response = self._control(body, reason)
            elif native and body.get("_debug_render_only") is True:
                response = json_response(ollama.rendered(body, self.shelf.named_in(body), self.shelf.now()))
            else:
                ask = self.dialect.read(body)
                self.shelf.loaded.add(self.shelf.take(ask.model))
                await unless_gone(self._answer(ask, send), receive)
                return
        except ClientDisconnect:
            return
        except RefusedError as refusal:
            response = self._error(refusal.status, refusal.message)
        await response(scope, receive, send)

    async def _answer(self, ask: Ask, send: Send) -> None:
        engine = self.engine
        prompt, said = engine.split(ask.prompt) if ask.plain else (ask.prompt, ask.said)
        chars = ask.text_chars - (len(said) if ask.plain else 0)
        service = engine.arrive(self.route, prompt, chars, ask.cap, said)
        async with engine.slot(service):
            await engine.prefill(service)
            if ask.stream:
                await self._stream(ask, service, send)
            else:
                await self._whole(ask, service, send)

    async def _stream(self, ask: Ask, service: Service, send: Send) -> None:
        answer = self._answer_to(ask, service)
        text = ""
        # As in Ollama, nothing is sent, not even a status line, until the first token is there.
        opening = b"".join(self.dialect.opening(answer))
        started = False
        async with aclosing(self.engine.decode(service)) as batches:
            async for words in batches:
                if not started:
                    await send(start_message(200, self.dialect.stream_media_type))
                    started = True
                frames = opening + b"".join(self.dialect.token(answer, word) for word in words)
                await send({"type": "http.response.body", "body": frames, "more_body": True})
                text += "".join(words)
                opening = b""
        if not started:
            await send(start_message(200, self.dialect.stream_media_type))
        closing = opening + b"".join(self.dialect.closing(answer, text))
        await send({"type": "http.response.body", "body": closing, "more_body": False})

    async def _whole(self, ask: Ask, service: Service, send: Send) -> None:
        answer = self._answer_to(ask, service)
        async with aclosing(self.engine.decode(service)) as batches:
            text = "".join([word async for words in batches for word in words])
        await send_json(send, self.dialect.whole(answer, text))

    def _answer_to(self, ask: Ask, service: Service) -> Answer:
        return Answer(
            id=service.digest,
            model=ask.model,
            created=self.shelf.now(),
            prompt_tokens=service.prompt_tokens,
            tokens=service.planned_tokens,
            capped=service.capped,
            prefill_s=self.engine.prefill_s(service),
            decode_s=self.engine.speed.decode_s(service.planned_tokens),
            wants_usage=ask.wants_usage,
            raw=ask.raw,
        )

    def _control(self, body: Json, reason: str) -> Response:
        model = self.shelf.named_in(body)
        if reason == "load":
            self.shelf.loaded.add(model)
        else:
            self.shelf.loaded.discard(model)
        return json_response(ollama.control_body(body, reason, model, self.shelf.now()))

    def _error(self, status: int, message: str) -> Response:
        return json_response(self.error_body(status, message), status)
