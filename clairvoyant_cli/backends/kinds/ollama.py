"""Ollama (server/routes.go, server/sched.go)."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from math import inf
from typing import Any

import psutil

from clairvoyant_cli.backends.adapter import FULL, NOT_UNDERSTOOD, Adapter, Found, Status, fits
from clairvoyant_cli.backends.continuation import Prefill, Raw, openai_defaults
from clairvoyant_cli.backends.prober import Ask
from clairvoyant_cli.backends.process_inspection import listening, values_of
from clairvoyant_cli.config import MAX_SLOTS
from clairvoyant_cli.protocols import probes
from clairvoyant_cli.protocols.can_continue import Body, Continuable
from clairvoyant_cli.protocols.model_settings import ModelSettings, ollama_settings
from clairvoyant_cli.protocols.probes import OfferedModel, ProbeAnswer
from clairvoyant_cli.protocols.request_parsing import RUNNER_OPTIONS
from clairvoyant_cli.protocols.routes import OLLAMA_SHAPES, ROUTES, Family, Shape, Work

TRANSCRIPTIONS = "/v1/audio/transcriptions"
OWN_PLACES = ("registry.ollama.ai/", "library/")  # what it leaves out of a name when it lists its models
# How Ollama learns how many answers to give at once, and how it passes that on to its runner.
PARALLEL, PARALLEL_FLAGS = "OLLAMA_NUM_PARALLEL", ("-np", "--parallel")
SHORTEST_TEXT = "x"  # one token in any vocabulary
TEMPLATE_STOPS = "<["  # what the stop strings of chat templates begin with
READ_TIMEOUT_S = 30.0
MOST_CONTEXTS = 10  # limit on an answer without a cap, as a multiple of the context (llm/server.go)


class Ollama(Adapter):
    """Loads models on demand and lists them; only its process shows how many answers it gives at once."""

    name = "ollama"
    title = "Ollama"
    usual_ports = (11434,)
    start_command = "ollama serve"
    get_model_command = "ollama pull gemma3:4b"
    SPEAKS = frozenset((Family.OLLAMA, Family.OPENAI, Family.ANTHROPIC))
    REPORTS_LOADING = False
    CONTINUES = (Raw(), Prefill())
    CAPS = ("max_tokens", "num_predict")
    SWAPS_MODELS = True
    OPTIONS_RELOAD = True
    OBEYS_COMPLETION_CAP = False  # it has no such field (openai/openai.go, ChatCompletionRequest)
    # A transcription is a chat about a recording.
    routes = ROUTES | {TRANSCRIPTIONS: replace(ROUTES[TRANSCRIPTIONS], work=Work.GENERATE)}
    health_path = "/api/version"
    models_path = "/api/tags"
    chat_path = "/api/chat"

    async def identify(self, ask: Ask, url: str, prefix: str) -> Found | None:
        version = probes.version_of((await ask("/api/version")).body)
        return None if version is None else Found(self, url, prefix, version)

    async def inspect(
        self, ask: Ask, status: Status, health: ProbeAnswer, local_port: int | None, *, was_up: bool
    ) -> None:
        """Update its models: those loaded, and all that it has."""
        listing = await ask("/api/ps")
        models = probes.loaded_models(listing.body)
        before = {model.name for model in status.models}
        status.version, status.models = probes.version_of(health.body) or "", models or ()
        understood = status.version and (models is not None or listing.status != 200)
        status.detail = "" if understood else NOT_UNDERSTOOD
        if before:
            status.swaps += sum(model.name not in before for model in status.models)
        await self.list_models(ask, status)  # which run elsewhere

    def local_slots(self, port: int) -> int | None:
        """Read it from the environment of the server's process, or the command line of its runner."""
        for process in listening(("ollama",), port):
            try:
                given = [process.environ().get(PARALLEL, "")]
                for runner in process.children():
                    given += values_of(runner.cmdline(), *PARALLEL_FLAGS)
            except (psutil.Error, OSError):
                continue
            known = [int(each) for each in given if re.fullmatch("[0-9]{1,6}", each)]
            return next((slots for slots in known if 1 <= slots <= MAX_SLOTS), None)
        return None

    def json_type(self, shape: Shape) -> bytes | None:
        """Return gin's, or that of its OpenAI routes (middleware/openai.go)."""
        return b"application/json; charset=utf-8" if shape in OLLAMA_SHAPES else b"application/json"

    async def settings(self, ask: Ask, model: str, version: str) -> ModelSettings | None:
        shown, running = await asyncio.gather(ask("/api/show", body={"model": model}), ask("/api/ps"))
        if not shown.status or shown.status >= 500:
            return None
        loaded = probes.loaded_models(running.body) or ()
        contexts = (each.context for each in loaded if full_name(each.name) == full_name(model))
        return ollama_settings(shown.body, next(contexts, None), version)

    def defaults(self, settings: ModelSettings, shape: Shape) -> Mapping[str, Any]:
        """Return its Modelfile's, or what its OpenAI routes set instead."""
        return {**settings.options, **openai_defaults(shape)}

    async def bounded(
        self, ask: Ask, asked: Continuable, pieces: Sequence[str], settings: ModelSettings
    ) -> Continuable | str:
        """Bound it as the server does, by the context that it is loaded with."""
        if (wanted := asked.options.get("num_ctx")) and isinstance(wanted, int):
            settings = replace(settings, context=min(wanted, settings.context or wanted))
        if settings.context is not None:
            asked = replace(asked, most=MOST_CONTEXTS * settings.context)
        return asked if fits(asked, pieces, settings) else FULL

    async def said_tokens(self, ask: Ask, asked: Continuable, said: str) -> int | None:
        """Have the model count, if an event may have brought several tokens: a non-ASCII character, or text
        held back because it might have begun a stop string.
        """
        stop = asked.options.get("stop") or asked.defaults.get("stop")
        stops = [stop] if isinstance(stop, str) else stop or ()
        beginnings = {*TEMPLATE_STOPS, *(each[:1] for each in stops)}
        if said.isascii() and not beginnings.intersection(said):
            return None
        counts = [
            probes.tokens_read((await ask("/api/generate", READ_TIMEOUT_S, _to_read(asked, text))).body)
            for text in (said, SHORTEST_TEXT)
        ]
        # What the model begins every text with is counted in both.
        return None if None in counts else max(0, (counts[0] or 0) - (counts[1] or 0) + 1)

    def cache_lookup(self, asked: Continuable) -> tuple[str, Body] | None:
        """Return a generation of one token: its engine is llama.cpp's server, see there."""
        return "/api/generate", _to_read(asked, SHORTEST_TEXT)

    def family_of(self, path: str) -> Family:
        return super().family_of(path) if path.startswith("/v1/") else Family.OLLAMA

    def known_as(self, model: str) -> str:
        return full_name(model)

    def chat_body(self, model: str, prompt: str, tokens: int | None = None, *, greedy: bool = False) -> Body:
        options = ({"temperature": 0} if greedy else {}) | ({} if tokens is None else {"num_predict": tokens})
        return {"model": model, "messages": [{"role": "user", "content": prompt}], "options": options}

    async def unloads_in_s(self, ask: Ask, model: str) -> float:
        at = probes.unloads_at((await ask("/api/ps")).body, model)
        return inf if at is None else (at - datetime.now(UTC)).total_seconds()

    async def offered_models(self, ask: Ask) -> tuple[OfferedModel, ...] | None:
        offered = probes.ollama_models((await ask(self.models_path)).body)
        if offered is None:
            return None
        loaded = {model.name for model in probes.loaded_models((await ask("/api/ps")).body) or ()}
        return tuple(
            replace(m, loaded=m.name in loaded, aliases=(m.digest, m.digest[:12]) if m.digest else ())
            for m in offered
        )

    def keep_request(self, model: str, *, loaded: bool) -> tuple[str, Body]:
        return "/api/generate", {"model": model} | ({} if loaded else {"keep_alive": 0})


KIND = Ollama()


def _to_read(asked: Continuable, text: str) -> Body:
    """Return a generation of one token after a text, with the options that keep the model loaded."""
    options = {name: value for name, value in asked.options.items() if name in RUNNER_OPTIONS}
    body: Body = {name: asked.body[name] for name in ("model", "keep_alive") if name in asked.body}
    if asked.options is asked.body:
        options = {}
    return body | {"prompt": text, "raw": True, "stream": False, "options": options | {"num_predict": 1}}


def full_name(model: str) -> str:
    """Return a model's name as Ollama lists it: lower case, with its tag."""
    name = model.lower()
    for prefix in OWN_PLACES:
        name = name.removeprefix(prefix)
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def larger_context(tokens: float) -> str:
    """Return the setting that gives a prompt of so many tokens and its answer enough context."""
    return f"OLLAMA_CONTEXT_LENGTH={1 << int(tokens * 1.1).bit_length()} (or num_ctx in the request)"
