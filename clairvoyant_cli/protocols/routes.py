"""Which route does what. Those that none of the servers knows pass straight through."""

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from posixpath import normpath
from urllib.parse import unquote


class Family(StrEnum):
    """Whose request and error shapes a route uses."""

    OLLAMA = "ollama"
    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    LLAMACPP = "llamacpp"
    VLLM = "vllm"  # also SGLang's


class Work(StrEnum):
    """What a route asks of the backend."""

    GENERATE = "generate"
    EMBED = "embed"
    OPAQUE = "opaque"
    PASS = "pass"  # noqa: S105 - the word, not a password


class Shape(StrEnum):
    """How a route's body and answer are laid out."""

    OLLAMA_CHAT = "ollama-chat"
    OLLAMA_GENERATE = "ollama-generate"
    CHAT = "chat"
    COMPLETION = "completion"
    RESPONSES = "responses"
    MESSAGES = "messages"
    LLAMACPP_COMPLETION = "llamacpp-completion"
    INFILL = "infill"
    LMSTUDIO_CHAT = "lmstudio-chat"
    EMBEDDING = "embedding"
    OPAQUE = "opaque"


OLLAMA_SHAPES = frozenset((Shape.OLLAMA_CHAT, Shape.OLLAMA_GENERATE))
"""Ollama's own, whose sampling options stand in an object of their own."""


@dataclass(frozen=True, slots=True)
class Route:
    """A POST route of a dialect. `streams` is its default of `stream`; `name` its canonical path."""

    family: Family
    work: Work
    shape: Shape
    streams: bool = False
    name: str = ""

    @property
    def speakers(self) -> frozenset[Family]:
        """Whose servers answer it."""
        return frozenset((self.family, Family.VLLM) if "rerank" in self.name else (self.family,))

    @property
    def scheduled(self) -> bool:
        return self.work is not Work.PASS


def _table() -> dict[str, Route]:
    openai = {
        "chat/completions": Route(Family.OPENAI, Work.GENERATE, Shape.CHAT),
        "completions": Route(Family.OPENAI, Work.GENERATE, Shape.COMPLETION),
        "responses": Route(Family.OPENAI, Work.GENERATE, Shape.RESPONSES),
        "embeddings": Route(Family.OPENAI, Work.EMBED, Shape.EMBEDDING),
    }
    sound, images = ("transcriptions", "translations", "speech"), ("generations", "edits", "variations")
    opaque = (*(f"audio/{name}" for name in sound), *(f"images/{name}" for name in images))
    openai |= {name: Route(Family.OPENAI, Work.OPAQUE, Shape.OPAQUE) for name in opaque}
    routes = {f"/v1/{name}": route for name, route in openai.items()}
    # llama.cpp serves its OpenAI routes without the version too; /completions is its own dialect there.
    routes |= {f"/{name}": openai[name] for name in ("chat/completions", "responses")}
    routes |= {f"/api/v0/{name}": openai[name] for name in ("chat/completions", "completions", "embeddings")}
    routes["/api/v1/chat"] = Route(Family.OPENAI, Work.GENERATE, Shape.LMSTUDIO_CHAT)
    routes["/v1/messages"] = Route(Family.ANTHROPIC, Work.GENERATE, Shape.MESSAGES)
    routes["/api/chat"] = Route(Family.OLLAMA, Work.GENERATE, Shape.OLLAMA_CHAT, streams=True)
    routes["/api/generate"] = Route(Family.OLLAMA, Work.GENERATE, Shape.OLLAMA_GENERATE, streams=True)
    for path in ("/api/embed", "/api/embeddings"):
        routes[path] = Route(Family.OLLAMA, Work.EMBED, Shape.EMBEDDING)
    for path in ("/completion", "/completions"):
        routes[path] = Route(Family.LLAMACPP, Work.GENERATE, Shape.LLAMACPP_COMPLETION)
    routes["/infill"] = Route(Family.LLAMACPP, Work.GENERATE, Shape.INFILL)
    for path in ("/embedding", "/embeddings", "/rerank", "/reranking", "/v1/rerank", "/v1/reranking"):
        routes[path] = Route(Family.LLAMACPP, Work.EMBED, Shape.EMBEDDING)
    return {path: replace(route, name=path) for path, route in routes.items()}


ROUTES = _table()
"""Path of a POST -> what it is. Ollama: server/routes.go; llama.cpp: tools/server/server.cpp."""


OF_LLAMACPP = ("/props", "/slots", "/apply-template", "/lora-adapters")
TOKENIZING = ("/tokenize", "/detokenize")
OF_LMSTUDIO = ("/api/v0/", "/api/v1/")


def speakers_of(path: str) -> frozenset[Family]:
    """Return whose servers answer a path; empty if any may."""
    if path in ROUTES:
        return ROUTES[path].speakers
    if path == "/":  # llama.cpp's page, or "Ollama is running"
        return frozenset((Family.OLLAMA, Family.LLAMACPP))
    if path.startswith("/api/") and not path.startswith(OF_LMSTUDIO):
        return frozenset((Family.OLLAMA,))
    if path.startswith(TOKENIZING):
        return frozenset((Family.LLAMACPP, Family.VLLM))
    return frozenset((Family.LLAMACPP,) if path.startswith(OF_LLAMACPP) else ())


_UTF16_ESCAPE = re.compile("%u([0-9A-Fa-f]{4})")
"""An escape that no standard knows, and cpp-httplib, llama.cpp's server, decodes."""


def unescaped(path: str) -> str:
    """Return a request's path as a server reads it."""
    return unquote(_UTF16_ESCAPE.sub(lambda escape: chr(int(escape[1], 16)), path))


def plainly_spelled(path: str) -> str:
    """Return a path in lower case (as in LM Studio's router), without `.`, `..` and empty segments. Any
    spelling that some server accepts must be recognised: a request it would generate for must not bypass the
    queue. Queueing what ends in a 404 does no harm.
    """
    return "/" + normpath(path.lower()).lstrip("/")


def is_known(path: str) -> bool:
    """Whether a path is one of a server's own, so that its beginning is no prefix of another server."""
    return bool(speakers_of(plainly_spelled(unescaped(path))))
