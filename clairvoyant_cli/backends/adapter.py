"""What a kind of server can do and how to talk to it: here any OpenAI-compatible one.

Other kinds are subclasses, each in a module of `kinds`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from math import inf
from typing import Any, ClassVar

import msgspec

from clairvoyant_cli.backends.continuation import NEXT_TOKEN_TIMEOUT_S, Prefill, Way, next_token
from clairvoyant_cli.backends.priority import UNKNOWN, Heeding, Priority
from clairvoyant_cli.backends.prober import Ask
from clairvoyant_cli.backends.process_inspection import values_of, words_of
from clairvoyant_cli.config import MAX_SLOTS
from clairvoyant_cli.http.heads import ResponseHead
from clairvoyant_cli.protocols import probes
from clairvoyant_cli.protocols.can_continue import CAPS, Body, Continuable
from clairvoyant_cli.protocols.errors import Refusal, error_object, response
from clairvoyant_cli.protocols.model_settings import ModelSettings, listed_settings
from clairvoyant_cli.protocols.probes import (
    BusySlots,
    EngineLoad,
    LoadedModel,
    OfferedModel,
    ProbeAnswer,
)
from clairvoyant_cli.protocols.routes import ROUTES, Family, Route, Shape, Work, plainly_spelled, unescaped

LISTED_OR_LOCKED = (200, 401)  # statuses of a list of models, or of a server that wants a key
LOADING = "loading its model"
NO_CAP = "the server does not tell its limit on answers"
FULL = "the server's context may be full soon"
# Another server than it was taken for, or a new version: it answers, so requests may go on.
NOT_UNDERSTOOD = "its answers cannot be parsed"
UNTOLD_CONTEXT = 2048  # tokens for prompt and answer at a server that does not tell: Ollama's least default
CONTEXT_MARGIN = 128  # tokens that may come until a preemption takes effect, and that a template adds
BYTES_A_TOKEN = 2  # of text, fewer only in numbers and in what is no text


class Turn(IntEnum):
    """When a server is asked whether it is of a kind; within a turn, by `addresses.BACKEND_KINDS`."""

    DISTURBED = 0  # other questions would disturb its answers
    ROUTER = 1  # passes most questions on to workers of any kind
    IMITATOR = 2  # gives answers of other kinds besides its own
    ORDINARY = 3


@dataclass(frozen=True, slots=True)
class Found:
    """What answers at a URL; `slots` is None where it is not known how many answers it gives at once."""

    adapter: "Adapter"
    url: str
    prefix: str = ""
    version: str = ""
    slots: int | None = None

    def __str__(self) -> str:
        """Its kind, its version if known, and its address."""
        return " ".join(filter(None, (self.adapter.name, self.version, "at", self.url)))

    @property
    def base_url(self) -> str:
        """Where its API is."""
        return self.url + self.prefix


@dataclass(slots=True)
class Status:
    """What a server said of itself when it was last asked. `Adapter.refresh` keeps it current."""

    state: str = "unknown"  # or up, loading, down
    detail: str = ""  # what is wrong with it, in words
    seen: bool = False  # it was up, or loading, at least once
    version: str = ""
    slots: int = 1  # how many answers it gives at once
    model_slots: int = 0  # of them for one model; 0 if any model may have all
    most_models: int = 0  # that it has loaded at once; 0 if unknown
    models: tuple[LoadedModel, ...] = ()
    offered: dict[str, OfferedModel] | None = (
        None  # by the names that `Adapter.known_as` gives; None if unknown
    )
    aliases: dict[str, str] = field(default_factory=dict)  # other names of its models
    swaps: int = 0  # models that it loaded beside, or in place of, others
    shares_cache: bool = False  # its slots share one KV cache
    overflowed_at: float = 0.0  # tokens in that cache when it was full, where it does not tell its size
    heeding: Heeding = UNKNOWN  # whether it orders its own queue by priority
    engine: EngineLoad | None = None  # what it has in that queue
    most_running: int = 0  # of it at once, as far as its own counts show

    def learn_load(self, engine: EngineLoad | None) -> None:
        """Learn the engine's concurrency from its own counts: one more than it ran while nothing waited
        inside, and no more than it runs while something does.
        """
        self.engine = engine
        if engine is not None and engine.running:
            most = max(self.most_running, engine.running + 1)
            self.most_running = engine.running if engine.waiting else most


def fits(
    asked: Continuable, pieces: Sequence[str], settings: ModelSettings, prompt_tokens: int | None = None
) -> bool:
    """Whether a prompt and the answer so far fit into the context: beyond it, servers refuse or truncate."""
    if prompt_tokens is None:
        prompt_tokens = (asked.prompt_bytes + settings.hidden_chars) // BYTES_A_TOKEN
    return prompt_tokens + len(pieces) + CONTEXT_MARGIN <= (settings.context or UNTOLD_CONTEXT)


def slots_in(*given: str) -> int | None:
    """Return the number of slots of a flag or variable: the last valid one, or None."""
    known = [int(value) for value in given if value.isascii() and value.isdigit() and len(value) < 6]
    return next((slots for slots in reversed(known) if 1 <= slots <= MAX_SLOTS), None)


class Adapter:
    """Any OpenAI-compatible server. Has no state: there is one of each, and any number of servers."""

    name: ClassVar[str] = "other"  # what it is called on the wire, in profiles and in the history
    title: ClassVar[str] = "the server"  # what it is called in a sentence
    usual_ports: ClassVar[tuple[int, ...]] = ()  # ports it listens on by default
    start_command: ClassVar[str] = "clairvoyant serve --backend http://HOST:PORT"
    get_model_command: ClassVar[str] = "load a model in the server"
    LIMITS: ClassVar[str] = ""  # what it cannot do, or not report, in a sentence: `doctor` and the reference

    # Whose routes it answers.
    SPEAKS: ClassVar[frozenset[Family]] = frozenset((Family.OPENAI, Family.ANTHROPIC))
    # The ways in which it may continue an answer that was preempted, the likeliest to be exact first.
    CONTINUES: ClassVar[tuple[Way, ...]] = (Prefill(),)
    CAPS: ClassVar[tuple[str, ...]] = CAPS  # the fields that bound an answer's length there
    # Fields of a request that have its prompt read in one go, though it may be in the cache.
    READ_AGAIN: ClassVar[Mapping[str, Any]] = {}
    PRIORITY: ClassVar[Priority | None] = None  # how its queue is ordered by `priority`, if it was started so
    SETTINGS_WAKE: ClassVar[bool] = False  # reading `settings` loads a model that was unloaded while idle
    TELLS_SLOTS: ClassVar[bool] = False  # tells how many answers it gives at once
    REPORTS_SLOTS: ClassVar[bool] = False  # tells which of its slots are at work, too
    REPORTS_LOADING: ClassVar[bool] = True  # may answer 503 while its model loads, instead of waiting
    SWAPS_MODELS: ClassVar[bool] = False  # loads and unloads models on demand, and lists those loaded
    # A request's options may load its model again, and set how long it stays.
    OPTIONS_RELOAD: ClassVar[bool] = False
    # Seconds for which a prompt, or an unstreamed answer, may go on after its client has left.
    RUNS_ON_S: ClassVar[float] = 0.0
    PROCESS_NAMES: ClassVar[tuple[str, ...]] = ()  # beginnings of the names of its process
    SLOTS_FLAGS: ClassVar[tuple[str, ...]] = ()  # spellings of the flag for its parallel answers
    # Of a server that works on many more requests at once, unless its command line says otherwise.
    USUAL_SLOTS: ClassVar[int | None] = None
    ANSWERS_ANY_MODEL: ClassVar[bool] = False  # has one model, whatever name a request gives
    OBEYS_COMPLETION_CAP: ClassVar[bool] = True  # heeds `max_completion_tokens`
    TURN: ClassVar[Turn] = Turn.ORDINARY  # when a server is asked whether it is this kind
    # Cannot always be identified, so a server at its usual port is assumed to be this kind.
    KNOWN_BY_PORT: ClassVar[bool] = True

    routes: ClassVar[Mapping[str, Route]] = ROUTES  # path of a POST -> what it is
    health_path: ClassVar[str] = "/v1/models"
    models_path: ClassVar[str] = "/v1/models"
    chat_path: ClassVar[str] = "/v1/chat/completions"

    async def identify(self, ask: Ask, url: str, prefix: str) -> Found | None:
        """Return what answers at `url`, asked by `ask`, if it is this server: by default, if it tells its
        version as this one does.
        """
        version = await self.version(ask)
        return None if version is None else Found(self, url, prefix, version)

    async def is_still(self, ask: Ask) -> bool:
        """Whether what answers is still this server, asked as cheaply as can be."""
        found = await self.identify(ask, "", "")
        return found is not None and found.adapter is self

    async def refresh(self, ask: Ask, status: Status, local_port: int | None = None) -> None:
        """Bring a server's status up to date; `local_port` is None if it runs on another machine."""
        answer = await ask(self.health_path)
        was_up = status.state == "up"
        if not answer.status:
            status.state, status.detail = "down", answer.why
        elif answer.status == 503:
            status.state, status.detail = "loading", LOADING
        else:
            status.state = "up"
            await self.inspect(ask, status, answer, local_port, was_up=was_up)

    async def list_models(self, ask: Ask, status: Status) -> None:
        if (offered := await self.offered_models(ask)) is not None:
            status.offered = {self.known_as(model.name): model for model in offered if model.name}
            status.aliases = {alias: model.name for model in offered for alias in model.aliases}

    async def inspect(
        self, ask: Ask, status: Status, health: ProbeAnswer, local_port: int | None, *, was_up: bool
    ) -> None:
        """Update more of a server that has just answered `health`."""
        status.detail = ""
        if not was_up:
            status.version = await self.version(ask) or status.version
            if self.PRIORITY is not None:
                status.heeding = await self.heeding(ask, local_port)

    async def version(self, ask: Ask) -> str | None:
        """Return its version; None if this is another server, "" if it does not say."""
        return None

    async def heeding(self, ask: Ask, local_port: int | None) -> Heeding:
        """Find out whether it orders by priority; `local_port` is None if it runs on another machine.
        A router gets its headers in any case: they change nothing else, and it must not be throttled.
        """
        if self.PRIORITY is None or not self.PRIORITY.headers:
            return UNKNOWN
        return Heeding(
            known=False, priority=self.PRIORITY, why=f"if it was started with {self.PRIORITY.flag}"
        )

    async def busy_slots(self, ask: Ask) -> BusySlots | None:
        """Return the slots at work; None if it does not tell."""
        return None

    def command_line(self, port: int) -> list[str]:
        """Return the command line of its process at a local port; empty if not visible."""
        return words_of(self.PROCESS_NAMES, port)

    def local_slots(self, port: int) -> int | None:
        """Return the number of parallel answers of the process at a local port, by its command line; None if
        not visible.
        """
        given = values_of(self.command_line(port), *self.SLOTS_FLAGS) if self.SLOTS_FLAGS else ()
        return slots_in(*given)

    def route_of(self, method: bytes, path: str) -> Route:
        """Return what a request is."""
        if method == b"POST" and path in self.routes:
            return self.routes[path]
        path = unescaped(path)
        route = self.routes.get(plainly_spelled(path)) if method == b"POST" else None
        return route or Route(self.family_of(path), Work.PASS, Shape.OPAQUE)

    def family_of(self, path: str) -> Family:
        """Return whose error shape an unscheduled path uses."""
        return Family.ANTHROPIC if path.startswith("/v1/messages") else Family.OPENAI

    def known_as(self, model: str) -> str:
        """Return the one name of a model that may be written in several ways."""
        return model

    def render(self, refusal: Refusal, route: Route) -> tuple[ResponseHead, bytes]:
        """Return a refusal as a response's head and body, in the shape that the route's clients read."""
        body = msgspec.json.encode(error_object(refusal, route.family))
        return response(refusal, b"application/json", body)

    async def likely_next(
        self, ask: Ask, way: Way, asked: Continuable, said: str, *, read_again: bool = False
    ) -> dict[str, float]:
        """Return the likeliest tokens after `said` with their log-probabilities; empty if it tells none. With
        `read_again` it reads all before in one go, if it can be asked to.
        """
        onward = await way.onward(ask, asked, said, 0)
        if onward is None:
            return {}
        body = next_token(onward) | (dict(self.READ_AGAIN) if read_again else {})
        answer = await ask(onward.path or self.chat_path, NEXT_TOKEN_TIMEOUT_S, body=body)
        return probes.likely_tokens(answer.body)

    def chat_body(self, model: str, prompt: str, tokens: int | None = None, *, greedy: bool = False) -> Body:
        """Return the body of a streamed chat of one message, with at most `tokens` of answer. `greedy` sets
        temperature 0.
        """
        body: Body = {
            "messages": [{"role": "user", "content": prompt}],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if model:
            body["model"] = model
        if greedy:
            body["temperature"] = 0
        if tokens is not None:
            body["max_tokens"] = tokens
        return body

    def json_type(self, shape: Shape) -> bytes | None:
        """Return the Content-Type of an unstreamed answer; None if it cannot be made of streamed events."""
        return None

    async def settings(self, ask: Ask, model: str, version: str) -> ModelSettings | None:
        """Return what decides a model's answers besides the request; None if unknown."""
        return listed_settings((await ask(self.models_path)).body, model, version)

    def defaults(self, settings: ModelSettings, shape: Shape) -> Mapping[str, Any]:
        """Return its values of the options that a request of this shape leaves out."""
        return settings.options

    async def bounded(
        self, ask: Ask, asked: Continuable, pieces: Sequence[str], settings: ModelSettings
    ) -> Continuable | str:
        """Return a request with the server's own bound, or why a continuation would end elsewhere."""
        if asked.shape is Shape.COMPLETION and not asked.is_capped:
            return NO_CAP  # vLLM's and SGLang's default is 16
        return asked if fits(asked, pieces, settings) else FULL

    async def said_tokens(self, ask: Ask, asked: Continuable, said: str) -> int | None:
        """Count the tokens of what was said so far, as the server does; None if it does not tell."""
        return None

    async def reads_as_written(self, ask: Ask, asked: Continuable, pieces: Sequence[str]) -> bool | None:
        """Whether the text of an answer, which came in `pieces`, tokenises to the tokens it was generated as;
        if not, a continuation may differ. None if unknown.
        """
        return None

    def cache_lookup(self, asked: Continuable) -> tuple[str, Body] | None:
        """Return the path and body of a POST that makes the server search its host cache for a prompt."""
        return None

    async def unloads_in_s(self, ask: Ask, model: str) -> float:
        """Return in how many seconds it unloads a model by itself that gets no request."""
        return inf

    async def offered_models(self, ask: Ask) -> tuple[OfferedModel, ...] | None:
        """Return the models it lists; None if it does not say."""
        return probes.openai_models((await ask(self.models_path)).body)

    def keep_request(self, model: str, *, loaded: bool) -> tuple[str, Body]:
        """Return the path and body of the POST that loads or unloads a model, where it `SWAPS_MODELS`."""
        raise NotImplementedError
