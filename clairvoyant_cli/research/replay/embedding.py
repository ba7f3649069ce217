"""The embedding routes: jobs as short as their prompt."""

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from clairvoyant_cli.research.replay import ollama, openai
from clairvoyant_cli.research.replay.dialect import Json, RefusedError
from clairvoyant_cli.research.replay.engine import Engine
from clairvoyant_cli.research.replay.exchange import json_response, read_object, send_json, unless_gone
from clairvoyant_cli.research.replay.journal import Service
from clairvoyant_cli.research.replay.models import Models

EMBEDDING_ROUTES = ("/api/embed", "/api/embeddings", "/v1/embeddings")
EMBEDDING_SIZE = 8


class Embedding:
    """One embedding route: a job that takes a slot and the time of its prompt, and writes no tokens."""

    def __init__(self, engine: Engine, shelf: Models, route: str) -> None:
        self.engine = engine
        self.shelf = shelf
        self.route = route
        self.error_body = openai.error_body if route.startswith("/v1/") else ollama.error_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        try:
            body = await read_object(Request(scope, receive))
            self.shelf.loaded.add(self.shelf.named_in(body))
            await unless_gone(self._answer(body, send), receive)
        except ClientDisconnect:
            return
        except RefusedError as refusal:
            error = json_response(self.error_body(refusal.status, refusal.message), refusal.status)
            await error(scope, receive, send)

    async def _answer(self, body: Json, send: Send) -> None:
        given = body.get("input", body.get("prompt", ""))
        texts = [str(text) for text in given] if isinstance(given, list) else [str(given)]
        engine = self.engine
        service = engine.arrive(self.route, "\n".join(texts), sum(map(len, texts)), cap=0)
        async with engine.slot(service):
            await engine.prefill(service)
            await send_json(send, self._body(body, len(texts), service))

    def _body(self, body: Json, inputs: int, service: Service) -> Json:
        raw = bytes.fromhex(service.digest)
        vectors = [[((byte + i) % 256) / 256 for byte in raw[:EMBEDDING_SIZE]] for i in range(inputs)]
        if self.route == "/api/embeddings":
            return {"embedding": vectors[0]}
        if self.route == "/api/embed":
            return {
                "model": body["model"],
                "embeddings": vectors,
                "prompt_eval_count": service.prompt_tokens,
            }
        data = [{"object": "embedding", "embedding": v, "index": i} for i, v in enumerate(vectors)]
        counts = {"prompt_tokens": service.prompt_tokens, "total_tokens": service.prompt_tokens}
        return {"object": "list", "data": data, "model": body["model"], "usage": counts}
