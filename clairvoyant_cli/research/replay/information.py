"""The routes that tell of the server and its models; none of them takes a slot."""

from datetime import datetime

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from clairvoyant_cli.research.replay import ollama, openai
from clairvoyant_cli.research.replay.dialect import Json, RefusedError
from clairvoyant_cli.research.replay.exchange import json_response, read_object
from clairvoyant_cli.research.replay.models import Models

VERSION = "0.40.0"
"""The Ollama version the replay backend says it is; clients ask for it."""

CONTEXT_TOKENS = 8192

DETAILS: Json = {
    "parent_model": "",
    "format": "replay",
    "family": "replay",
    "families": ["replay"],
    "parameter_size": "0B",
    "quantization_level": "F16",
}


class Information:
    """Handlers over one shelf of models."""

    def __init__(self, shelf: Models) -> None:
        self.shelf = shelf

    def routes(self) -> list[Route]:
        """Return the routes; HEAD works wherever GET does."""
        return [
            Route("/", self.root, methods=["GET"]),
            Route("/api/version", self.version, methods=["GET"]),
            Route("/api/tags", self.tags, methods=["GET"]),
            Route("/api/ps", self.ps, methods=["GET"]),
            Route("/api/show", self.show, methods=["POST"]),
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/v1/models/{model:path}", self.model, methods=["GET"]),
        ]

    async def root(self, request: Request) -> Response:
        """Say what Ollama says; clients look for it."""
        return PlainTextResponse("Ollama is running")

    async def version(self, request: Request) -> Response:
        """Tell the version."""
        return json_response({"version": VERSION})

    async def tags(self, request: Request) -> Response:
        """List the models."""
        return json_response({"models": [_tag(name, self.shelf.now()) for name in self.shelf.models]})

    async def ps(self, request: Request) -> Response:
        """List the loaded models."""
        resident = {"expires_at": "2318-01-01T00:00:00Z", "size_vram": 0, "context_length": CONTEXT_TOKENS}
        loaded = sorted(self.shelf.loaded)
        return json_response({"models": [_tag(name, self.shelf.now()) | resident for name in loaded]})

    async def show(self, request: Request) -> Response:
        """Describe one model."""
        try:
            self.shelf.named_in(await read_object(request))
        except RefusedError as refusal:
            return json_response(ollama.error_body(refusal.status, refusal.message), refusal.status)
        return json_response(
            {
                "parameters": "",
                "template": "{{ .Prompt }}",
                "details": DETAILS,
                "model_info": {"general.architecture": "replay", "replay.context_length": CONTEXT_TOKENS},
                "capabilities": ["completion", "embedding"],
            }
        )

    async def models(self, request: Request) -> Response:
        """List the models as OpenAI does."""
        data = [self._openai_model(name) for name in self.shelf.models]
        return json_response({"object": "list", "data": data})

    async def model(self, request: Request) -> Response:
        """Describe one model as OpenAI does."""
        try:
            return json_response(self._openai_model(self.shelf.take(request.path_params["model"])))
        except RefusedError as refusal:
            return json_response(openai.error_body(refusal.status, refusal.message), refusal.status)

    def _openai_model(self, name: str) -> Json:
        created = int(self.shelf.now().timestamp())
        return {"id": name, "object": "model", "created": created, "owned_by": "library"}


def _tag(name: str, modified: datetime) -> Json:
    return {
        "name": name,
        "model": name,
        "modified_at": ollama.timestamp(modified),
        "size": 0,
        "digest": name.encode().hex().ljust(64, "0")[:64],
        "details": DETAILS,
    }
