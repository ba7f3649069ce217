"""Reads what servers answer to the proxy's own questions: version, models, slots, settings, metrics.

Rule: an answer is bounded before it is read, and each name and number in it before it is used. A broken
server must not take the requests that wait for it down with it.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from math import isfinite
from typing import NamedTuple, TypeVar

import msgspec
from msgspec import Raw

from clairvoyant_cli.config import MAX_SLOTS
from clairvoyant_cli.protocols.lenient_json import (
    ABSENT,
    OBJECT,
    Object,
    count,
    entries,
    fitting,
    is_given,
    is_list,
    is_object,
    number,
    object_in,
    text,
    whole_number,
)
from clairvoyant_cli.protocols.printable import MAX_NAME_CHARS, printable
from clairvoyant_cli.protocols.request_bodies import short_name

ANSWER_BYTES = 1024 * 1024
ANSWER_OBJECTS = 20_000
ANSWER_ENTRIES = 100_000
"""An answer that is longer, or holds more, is not read. A thousand models take 600 KB."""

MAX_MODELS = 100
MAX_LISTED_MODELS = 1000
MAX_LIKELY = 100
MAX_BYTES = 1 << 50
MAX_CONTEXT = 1 << 31
MAX_TASK = 1 << 53

CONTEXTS = ("max_model_len", "loaded_context_length", "max_context_length", "context_length")
"""What vLLM and SGLang, LM Studio, and others call a model's context in a list."""

MEDIA = {"vision": "image", "image": "image", "audio": "audio", "video": "video"}

Told = TypeVar("Told")

BusySlots = frozenset[tuple[int, int | None]]
"""Indices in the list of slots, each with the number of its task; None if it has none."""


class Token(msgspec.Struct, gc=False):
    """A token that llama.cpp lists: its text, or its bytes where these are no text by themselves."""

    piece: str | list[int]


_TOKENS = msgspec.json.Decoder(list[Token])
_SLOTS = msgspec.json.Decoder(list[Raw])


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """What came of a question: status 0 and `why` if no answer did; no `text` where it cannot be read."""

    status: int
    text: bytes | None = None
    why: str = ""
    headers: Mapping[bytes, bytes] = field(default_factory=dict)  # by names in lower case

    @property
    def body(self) -> bytes | None:
        return self.text if self.status == 200 else None


class LoadedModel(NamedTuple):
    """A model that a server has loaded; None and "" for what it does not report."""

    name: str
    size_bytes: int | None = None
    vram_bytes: int | None = None
    context: int | None = None  # in tokens
    digest: str = ""


class EngineLoad(NamedTuple):
    """What an engine with a queue of its own has now; None for what it does not report."""

    running: int | None = None
    waiting: int | None = None
    preemptions: int | None = None  # since its start
    kv_used: float | None = None  # the share of its KV cache, 0 to 1


@dataclass(frozen=True, slots=True)
class ServerProps:
    """llama.cpp's properties; "" and None for what is missing. `tells_slots` identifies llama.cpp, `routes`
    its router, which has at most `instances` models loaded, None if any number. `sleeps`: it has unloaded its
    model while idle (`--sleep-idle-seconds`), and most questions would load it.
    """

    tells_slots: bool = False
    build: str = ""
    slots: int | None = None
    model: LoadedModel | None = None
    media: frozenset[str] | None = None
    sleeps: bool = False
    routes: bool = False
    instances: int | None = None


NO_PROPS = ServerProps()


@dataclass(frozen=True, slots=True)
class SglangQueue:
    """How SGLang orders its queue; `counts_each`: its metrics have a series per priority."""

    by_priority: bool
    lower_first: bool
    counts_each: bool


@dataclass(frozen=True, slots=True)
class OfferedModel:
    """A model that a server lists; "" and None for what is unknown. `remote` ones run elsewhere. `media` is
    what prompts may have besides text; `context` counts tokens.
    """

    name: str
    digest: str = ""
    quantisation: str = ""
    parameters: str = ""
    owner: str = ""
    loaded: bool = False
    remote: bool = False
    aliases: tuple[str, ...] = ()
    context: int | None = None
    media: frozenset[str] | None = None


def read_object(body: bytes | None) -> Object | None:
    """Return an answer that is an object; None if it is too long, or something else."""
    held = read_as(body, OBJECT)
    return None if held is None else Object(held)


def members_of(body: bytes | None) -> Object:
    """Return the members of an answer that is an object; none of any other."""
    return read_object(body) or Object()


def is_clairvoyant(body: bytes | None) -> bool:
    """Whether an answer is that of a proxy like this one."""
    return is_object(members_of(body)["backends"])


def version_of(body: bytes | None) -> str | None:
    """Return Ollama's version, or vLLM's; None if this is not their answer."""
    answer = members_of(body)
    return short_name(answer["version"]) if "version" in answer else None


def rendered_prompt(body: bytes | None) -> str | None:
    """Return the prompt as a chat template renders it, llama.cpp's or Ollama's; None if there is none."""
    answer = members_of(body)
    if is_object(answer["_debug_info"]):
        return text(object_in(answer["_debug_info"])["rendered_template"]) or None
    return text(answer["prompt"]) or None


def likely_tokens(body: bytes | None) -> dict[str, float]:
    """Return the likeliest first tokens of an answer with their log-probabilities, as llama.cpp,
    OpenAI's chat or Ollama list them; empty without any.
    """
    answer = members_of(body)
    choice = object_in(_first(answer["choices"]))
    places = answer["completion_probabilities"], object_in(choice["logprobs"])["content"], answer["logprobs"]
    tops = [object_in(_first(place))["top_logprobs"] for place in places if is_list(place)]
    each = [object_in(entry) for top in tops for entry in (entries(top) or ())[:MAX_LIKELY]]
    return {text(one["token"]): number(one["logprob"]) or 0.0 for one in each}


def _first(raw: Raw) -> Raw:
    return next(iter(entries(raw) or ()), ABSENT)


def tokens_in(body: bytes | None) -> int | None:
    tokens = members_of(body)["tokens"]
    return count(tokens) if is_list(tokens) else None


def token_lengths(body: bytes | None) -> list[int] | None:
    """Return how many bytes each token of a text has, as llama.cpp lists them; None if it does not."""
    tokens = fitting(_TOKENS, members_of(body)["tokens"])
    if tokens is None:
        return None
    return [len(token.piece.encode() if isinstance(token.piece, str) else token.piece) for token in tokens]


def tokens_read(body: bytes | None) -> int | None:
    """Return how many tokens Ollama's prompt had, those in its cache included; None if it does not tell."""
    return whole_number(members_of(body)["prompt_eval_count"], MAX_CONTEXT) or None


def loaded_models(body: bytes | None) -> tuple[LoadedModel, ...] | None:
    """Return the models that Ollama has loaded (`/api/ps`); None if the answer is not understood."""
    models = _models(body, MAX_MODELS)
    if models is None:
        return None
    return tuple(
        LoadedModel(
            name=short_name(model["name"]),
            size_bytes=whole_number(model["size"], MAX_BYTES),
            vram_bytes=whole_number(model["size_vram"], MAX_BYTES),
            context=whole_number(model["context_length"], MAX_CONTEXT),
            digest=short_name(model["digest"]),
        )
        for model in models
    )


def unloads_at(body: bytes | None, model: str) -> datetime | None:
    """Return when Ollama unloads a model by itself (`/api/ps`); None if it does not say."""
    for loaded in _models(body, MAX_MODELS) or ():
        if short_name(loaded["name"]) == model:
            with suppress(ValueError):
                at = datetime.fromisoformat(text(loaded["expires_at"]))
                return at if at.tzinfo is not None else None
    return None


def ollama_models(body: bytes | None) -> tuple[OfferedModel, ...] | None:
    """Return the models that Ollama lists (`/api/tags`); None if the answer is not understood."""
    models = _models(body, MAX_LISTED_MODELS)
    return None if models is None else tuple(map(_offered, models))


def openai_models(body: bytes | None) -> tuple[OfferedModel, ...] | None:
    """Return the models in `/v1/models`; None if the answer is not understood."""
    listed = entries(members_of(body)["data"])
    return None if listed is None else tuple(map(_offered, _objects(listed, MAX_LISTED_MODELS)))


def lmstudio_loaded(body: bytes | None) -> tuple[tuple[LoadedModel, int | None], ...]:
    """Return the language models that LM Studio has loaded (`/api/v1/models`, 0.4), and how many answers each
    gives at once, None if it does not tell.
    """
    found = []
    models = (listed for listed in _models(body, MAX_LISTED_MODELS) or () if text(listed["type"]) == "llm")
    for model in models:
        for instance in _objects(entries(model["loaded_instances"]) or [], MAX_MODELS):
            config = object_in(instance["config"])
            context = whole_number(config["context_length"], MAX_CONTEXT)
            size = whole_number(model["size_bytes"], MAX_BYTES)
            loaded = LoadedModel(short_name(instance["id"]), size, context=context)
            found.append((loaded, whole_number(config["parallel"], MAX_SLOTS) or None))
    return tuple(found)


def _offered(model: Object) -> OfferedModel:
    # Ollama describes a model in `details`, llama.cpp in `meta`.
    details = object_in(model["details"] if is_object(model["details"]) else model["meta"])
    contexts = *(model[name] for name in CONTEXTS), details["n_ctx"], details["context_length"]
    size, parameters = whole_number(details["size"], MAX_BYTES), whole_number(details["n_params"], MAX_BYTES)
    return OfferedModel(
        name=model_name(model),
        digest=short_name(model["digest"]) or ("" if size is None else str(size)),
        quantisation=short_name(details["quantization_level"]) or short_name(details["ftype"]),
        parameters=short_name(details["parameter_size"])
        or (f"{parameters / 1e9:.3g}B" if parameters else ""),
        owner=short_name(model["owned_by"]),
        loaded=text(object_in(model["status"])["value"]) == "loaded",  # by llama.cpp's router
        remote=is_given(model["remote_host"]) or is_given(model["remote_model"]),
        aliases=tuple(filter(None, map(short_name, (entries(model["aliases"]) or [])[:MAX_MODELS]))),
        context=next(filter(None, (whole_number(context, MAX_CONTEXT) for context in contexts)), None),
        media=media_of(model),
    )


def media_of(model: Object) -> frozenset[str] | None:
    """Return what a model takes besides text, by how LM Studio (`type`), Ollama (`capabilities`) and
    llama.cpp (`modalities`, or `input_modalities` of an `architecture`) tell; None if it is not told.
    """
    listings = model["capabilities"], object_in(model["architecture"])["input_modalities"]
    listed = next((listing for listing in listings if is_list(listing)), None)
    flags = next((flag for flag in (model["capabilities"], model["modalities"]) if is_object(flag)), None)
    if listed is not None:
        names = {text(name) for name in (entries(listed) or [])[:MAX_MODELS]}
        return None if "multimodal" in names else frozenset(MEDIA[name] for name in names & MEDIA.keys())
    if flags is not None:
        return frozenset(
            MEDIA[name] for name, value in object_in(flags).items() if name in MEDIA and is_given(value)
        )
    kind = text(model["type"])
    return frozenset(("image",) if kind == "vlm" else ()) if kind in ("llm", "vlm") else None


def model_name(model: Object) -> str:
    return short_name(model["name"]) or short_name(model["id"])


def openapi_version(body: bytes | None, title: str) -> str | None:
    """Return the version in an OpenAPI description of that title; None if this is another answer."""
    answer = object_in(members_of(body)["info"])
    return short_name(answer["version"]) if text(answer["title"]) == title else None


def sglang_version(body: bytes | None) -> str | None:
    """Return SGLang's version (`/server_info`); None if this is not SGLang's answer."""
    answer = members_of(body)
    return short_name(answer["version"]) if is_given(answer["model_path"]) else None


def sglang_queue(body: bytes | None) -> SglangQueue | None:
    """Return how SGLang orders its queue (`/server_info`); None if this is not SGLang's answer."""
    answer = members_of(body)
    if not is_given(answer["model_path"]):
        return None
    switches = ("enable_priority_scheduling", "schedule_low_priority_values_first", "enable_metrics")
    return SglangQueue(*(is_given(answer[name]) for name in switches))


def props_of(body: bytes | None) -> ServerProps | None:
    """Return llama.cpp's properties (`/props`); None if the answer is not understood."""
    answer = read_object(body)
    if answer is None:
        return None
    path = text(answer["model_alias"]) or text(answer["model_path"])
    name = printable(path.rsplit("/", 1)[-1], MAX_NAME_CHARS)
    context = whole_number(object_in(answer["default_generation_settings"])["n_ctx"], MAX_CONTEXT)
    return ServerProps(
        tells_slots="total_slots" in answer,
        build=short_name(answer["build_info"]),
        slots=whole_number(answer["total_slots"], MAX_SLOTS) or None,
        model=LoadedModel(name=name, context=context) if name else None,
        media=media_of(answer) if is_object(answer["modalities"]) else None,
        sleeps=is_given(answer["is_sleeping"]),
        routes=text(answer["role"]) == "router",
        instances=whole_number(answer["max_instances"], MAX_MODELS) or None,
    )


def busy_slots(body: bytes | None) -> BusySlots | None:
    """Return which of llama.cpp's slots (`/slots`) are busy, with their tasks; None if it does not tell."""
    slots = _slots(body)
    if slots is None:
        return None
    busy = [
        (place, slot["id_task"] if "id_task" in slot else slot["task_id"])
        for place, slot in enumerate(slots)
        if is_given(slot["is_processing"]) or is_given(slot["state"])  # before 2025, and in llamafile
    ]
    return frozenset((place, whole_number(task, MAX_TASK)) for place, task in busy)


def count_slots(body: bytes | None) -> int | None:
    """Return how many slots are listed (`/slots`); None if the answer is not understood."""
    slots = _slots(body)
    return None if slots is None else len(slots) or None


def slots_cap(body: bytes | None) -> int | None:
    """Return llama.cpp's own limit on answers, in tokens, from its busy slots: 0 if none, None if unknown."""
    caps: set[int] = set()
    for slot in _slots(body) or ():
        token = object_in((entries(slot["next_token"]) or [slot["next_token"]])[0])  # newer builds: a list
        remain, decoded = number(token["n_remain"]), whole_number(token["n_decoded"], MAX_CONTEXT)
        if decoded and is_given(slot["is_processing"]):  # before the first token it is not counted
            caps.add(0 if remain is None or remain < 0 else int(remain) + decoded)
    return 0 if 0 in caps else min(caps) if len(caps) == 1 else None


def _slots(body: bytes | None) -> list[Object] | None:
    listed = read_as(body, _SLOTS)
    return None if listed is None else [object_in(slot) for slot in listed[:MAX_SLOTS]]


def _models(body: bytes | None, most: int) -> list[Object] | None:
    answer = read_object(body)
    if answer is None or (is_given(answer["models"]) and not is_list(answer["models"])):
        return None
    return _objects(entries(answer["models"]) or [], most)


def _objects(listed: list[Raw], most: int) -> list[Object]:
    return [model for entry in listed[:most] if (model := object_in(entry))]


_LINE = re.compile(rb"^([a-zA-Z_:][a-zA-Z0-9_:]*)(\{[^\n]*\})? ([^ \n]+)", re.MULTILINE)
_OF_A_PART = re.compile(rb'priority="[^"]')

MOST = 1e15


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """Metric names of an engine's queue; `preemptions` is a counter. `port` is where a router tells them, on
    its own host, if not where it is asked for answers.
    """

    running: str
    waiting: str
    preemptions: str = ""
    kv_used: str = ""
    counts_all: bool = False  # `running` counts those that wait, too
    counts_twice: bool = False  # as a whole, and again by priority
    port: int | None = None


def engine_state(body: bytes | None, metrics: EngineMetrics) -> EngineLoad | None:
    """Return the state of an engine, or None. Counts of several add up; the fullest cache counts."""
    if body is None or len(body) > ANSWER_BYTES:
        return None
    wanted = (metrics.running, metrics.waiting, metrics.preemptions, metrics.kv_used)
    found: dict[str, list[float]] = {name: [] for name in wanted}
    for name, labels, given in _LINE.findall(body):
        values = found.get(name.decode("ascii"))
        if values is not None and not (metrics.counts_twice and _OF_A_PART.search(labels)):
            value = _number(given)
            values += [] if value is None else [value]
    if not any(found.values()):
        return None
    *counts, kv_used = map(found.__getitem__, wanted)
    running, waiting, preemptions = (int(sum(values)) if values else None for values in counts)
    if metrics.counts_all and running and waiting:
        running = max(0, running - waiting)
    return EngineLoad(running, waiting, preemptions, min(1.0, max(kv_used)) if kv_used else None)


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) and 0.0 <= value <= MOST else None


def read_as(body: bytes | None, decoder: msgspec.json.Decoder[Told]) -> Told | None:
    """Return an answer, decoded; None if it is too long, or something else."""
    if body is None or len(body) > ANSWER_BYTES:
        return None
    if body.count(b"{") > ANSWER_OBJECTS or body.count(b",") > ANSWER_ENTRIES:
        return None
    return fitting(decoder, body)
