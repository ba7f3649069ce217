"""What a server answers to our own questions: who it is, what it has loaded, how many slots it has.

Rule: an answer is bounded before it is read, and each name and number of it before it is used. A server gone
wrong must not take with it those who wait for it.
"""

from dataclasses import dataclass
from typing import TypeVar

import msgspec
from msgspec import Raw

from clairvoyant_cli.config import MAX_SLOTS
from clairvoyant_cli.protocols.lenient_json import (
    ABSENT,
    count,
    entries,
    fields,
    fitting,
    is_given,
    is_list,
    is_object,
    number,
    text,
    whole_number,
)
from clairvoyant_cli.protocols.printable import printable
from clairvoyant_cli.protocols.prompt_text import MAX_NAME_CHARS, short_name
from clairvoyant_cli.state.snapshot import LoadedModel

ANSWER_BYTES = 1024 * 1024
ANSWER_OBJECTS = 20_000
ANSWER_ENTRIES = 100_000
"""Of an answer that is longer, or holds more, nothing is understood. A thousand models take 600 KB."""

MAX_MODELS = 100
MAX_LISTED_MODELS = 1000
MAX_BYTES = 1 << 50
MAX_CONTEXT = 1 << 31
MAX_TASK = 1 << 53


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a question: status 0 and `why` if no answer did; no `text` where it cannot be read."""

    status: int
    text: bytes | None = None
    why: str = ""

    @property
    def body(self) -> bytes | None:
        """What can be read of an answer that is no error."""
        return self.text if self.status == 200 else None


class Greeting(msgspec.Struct, gc=False):
    """Who it is: Ollama's `/api/version`, vLLM's `/version`, SGLang's `/server_info`, our own health."""

    version: Raw = ABSENT
    model_path: Raw = ABSENT
    backends: Raw = ABSENT


class Scheduling(msgspec.Struct, gc=False):
    """How SGLang was told to order its queue."""

    model_path: Raw = ABSENT
    enable_priority_scheduling: Raw = ABSENT
    schedule_low_priority_values_first: Raw = ABSENT
    enable_metrics: Raw = ABSENT


class Rendered(msgspec.Struct, gc=False):
    """What llama.cpp makes of a chat, and Ollama where it only renders it, and how much Ollama has read."""

    prompt: Raw = ABSENT
    tokens: Raw = ABSENT
    prompt_eval_count: Raw = ABSENT
    debug_info: Raw = msgspec.field(default=ABSENT, name="_debug_info")
    rendered_template: Raw = ABSENT


class Token(msgspec.Struct, gc=False):
    """A token that llama.cpp lists: its text, or its bytes where these are no text by themselves."""

    piece: str | list[int]


class Details(msgspec.Struct, gc=False):
    """What Ollama (`details`) and llama.cpp (`meta`) say of a model."""

    quantization_level: Raw = ABSENT
    parameter_size: Raw = ABSENT
    ftype: Raw = ABSENT
    n_params: Raw = ABSENT
    size: Raw = ABSENT


class ListedModel(msgspec.Struct, gc=False):
    """A model in Ollama's `/api/ps` or `/api/tags`, or in `/v1/models`."""

    name: Raw = ABSENT
    id: Raw = ABSENT
    owned_by: Raw = ABSENT
    size: Raw = ABSENT
    size_vram: Raw = ABSENT
    context_length: Raw = ABSENT
    digest: Raw = ABSENT
    remote_host: Raw = ABSENT
    details: Raw = ABSENT
    meta: Raw = ABSENT


class Models(msgspec.Struct, gc=False):
    """Ollama's `/api/ps` or `/api/tags`, or `/v1/models`."""

    models: Raw = ABSENT
    data: Raw = ABSENT


class Settings(msgspec.Struct, gc=False):
    """What llama.cpp generates with."""

    n_ctx: Raw = ABSENT


class Props(msgspec.Struct, gc=False):
    """llama.cpp's `/props`."""

    total_slots: Raw = ABSENT
    build_info: Raw = ABSENT
    model_alias: Raw = ABSENT
    model_path: Raw = ABSENT
    default_generation_settings: Raw = ABSENT


class Slot(msgspec.Struct, gc=False):
    """A slot in llama.cpp's `/slots`."""

    is_processing: Raw = ABSENT
    id_task: Raw = ABSENT
    next_token: Raw = ABSENT


class NextToken(msgspec.Struct, gc=False):
    """How far a slot is: in a list of one in newer builds."""

    n_remain: Raw = ABSENT
    n_decoded: Raw = ABSENT


Told = TypeVar("Told")

BusySlots = frozenset[tuple[int, int | None]]
"""Places in the list of slots, each with the number of its task; None where it has none."""

_GREETING = msgspec.json.Decoder(Greeting)
_SCHEDULING = msgspec.json.Decoder(Scheduling)
_RENDERED = msgspec.json.Decoder(Rendered)
_TOKENS = msgspec.json.Decoder(list[Token])
_MODELS = msgspec.json.Decoder(Models)
_LISTED_MODEL = msgspec.json.Decoder(ListedModel)
_DETAILS = msgspec.json.Decoder(Details)
_PROPS = msgspec.json.Decoder(Props)
_SETTINGS = msgspec.json.Decoder(Settings)
_SLOTS = msgspec.json.Decoder(list[Raw])
_SLOT = msgspec.json.Decoder(Slot)
_NEXT_TOKEN = msgspec.json.Decoder(NextToken)


@dataclass(frozen=True, slots=True)
class ServerProps:
    """What llama.cpp says of itself; "" and None for what it does not say, or says in a way that cannot be.

    `tells_slots` is how it is known from others that have properties.
    """

    tells_slots: bool = False
    build: str = ""
    slots: int | None = None
    model: LoadedModel | None = None


NO_PROPS = ServerProps()


@dataclass(frozen=True, slots=True)
class SglangQueue:
    """How SGLang orders its queue; `counts_each` says that its metrics count every priority by itself."""

    by_priority: bool
    lower_first: bool
    counts_each: bool


@dataclass(frozen=True, slots=True)
class OfferedModel:
    """A model that a server lists; "" for what is not said of it. `remote` ones run elsewhere."""

    name: str
    digest: str = ""
    quantisation: str = ""
    parameters: str = ""
    owner: str = ""
    loaded: bool = False
    remote: bool = False


def is_clairvoyant(body: bytes | None) -> bool:
    """Whether an answer is that of a proxy like this one."""
    told = read_as(body, _GREETING)
    return told is not None and is_object(told.backends)


def version_of(body: bytes | None) -> str | None:
    """Return Ollama's version, or vLLM's; None if this is not their answer."""
    told = read_as(body, _GREETING)
    return None if told is None or told.version is ABSENT else short_name(told.version)


def rendered_prompt(body: bytes | None) -> str | None:
    """Return the text that a chat template made; None if there is none."""
    told = read_as(body, _RENDERED)
    if told is not None and is_object(told.debug_info):
        inner = fields(_RENDERED, told.debug_info)
        return None if inner is None else text(inner.rendered_template) or None
    return None if told is None else text(told.prompt) or None


def tokens_in(body: bytes | None) -> int | None:
    """Return how many tokens a text has, as llama.cpp lists them; None if it does not."""
    told = read_as(body, _RENDERED)
    return count(told.tokens) if told is not None and is_list(told.tokens) else None


def token_lengths(body: bytes | None) -> list[int] | None:
    """Return how many bytes each token of a text has, as llama.cpp lists them; None if it does not."""
    told = read_as(body, _RENDERED)
    tokens = fitting(_TOKENS, told.tokens) if told is not None and is_list(told.tokens) else None
    if tokens is None:
        return None
    return [len(each.piece.encode() if isinstance(each.piece, str) else each.piece) for each in tokens]


def tokens_read(body: bytes | None) -> int | None:
    """Return how many tokens Ollama's prompt had, those in its cache included; None if it does not tell."""
    told = read_as(body, _RENDERED)
    return None if told is None else whole_number(told.prompt_eval_count, MAX_CONTEXT) or None


def loaded_models(body: bytes | None) -> tuple[LoadedModel, ...] | None:
    """Return the models that Ollama has loaded; None if the answer is not understood."""
    models = _models(body, MAX_MODELS)
    if models is None:
        return None
    return tuple(
        LoadedModel(
            name=short_name(model.name),
            size_bytes=whole_number(model.size, MAX_BYTES),
            vram_bytes=whole_number(model.size_vram, MAX_BYTES),
            context=whole_number(model.context_length, MAX_CONTEXT),
            digest=short_name(model.digest),
        )
        for model in models
    )


def ollama_models(body: bytes | None) -> tuple[OfferedModel, ...] | None:
    """Return the models that Ollama lists; None if the answer is not understood."""
    models = _models(body, MAX_LISTED_MODELS)
    return None if models is None else tuple(_offered(model) for model in models)


def openai_models(body: bytes | None) -> tuple[OfferedModel, ...] | None:
    """Return the models in `/v1/models`; None if the answer is not understood."""
    told = read_as(body, _MODELS)
    listed = None if told is None else entries(told.data)
    return None if listed is None else tuple(_offered(model) for model in _each(listed, MAX_LISTED_MODELS))


def _offered(model: ListedModel) -> OfferedModel:
    told = fields(_DETAILS, model.details) or fields(_DETAILS, model.meta) or Details()
    size, parameters = whole_number(told.size, MAX_BYTES), whole_number(told.n_params, MAX_BYTES)
    return OfferedModel(
        name=short_name(model.name) or short_name(model.id),
        digest=short_name(model.digest) or ("" if size is None else str(size)),
        quantisation=short_name(told.quantization_level) or short_name(told.ftype),
        parameters=short_name(told.parameter_size) or (f"{parameters / 1e9:.3g}B" if parameters else ""),
        owner=short_name(model.owned_by),
        remote=is_given(model.remote_host),
    )


def sglang_version(body: bytes | None) -> str | None:
    """Return SGLang's version; None if this is not SGLang's answer."""
    told = read_as(body, _GREETING)
    return None if told is None or not is_given(told.model_path) else short_name(told.version)


def sglang_queue(body: bytes | None) -> SglangQueue | None:
    """Return how SGLang orders its queue; None if this is not SGLang's answer."""
    told = read_as(body, _SCHEDULING)
    if told is None or not is_given(told.model_path):
        return None
    switches = (told.enable_priority_scheduling, told.schedule_low_priority_values_first, told.enable_metrics)
    return SglangQueue(*map(is_given, switches))


def props_of(body: bytes | None) -> ServerProps | None:
    """Return llama.cpp's properties; None if the answer is not understood."""
    told = read_as(body, _PROPS)
    if told is None:
        return None
    path = text(told.model_alias) or text(told.model_path)
    name = printable(path.rsplit("/", 1)[-1], MAX_NAME_CHARS)
    settings = fields(_SETTINGS, told.default_generation_settings)
    context = None if settings is None else whole_number(settings.n_ctx, MAX_CONTEXT)
    return ServerProps(
        tells_slots=told.total_slots is not ABSENT,
        build=short_name(told.build_info),
        slots=whole_number(told.total_slots, MAX_SLOTS) or None,
        model=LoadedModel(name=name, context=context) if name else None,
    )


def busy_slots(body: bytes | None) -> BusySlots | None:
    """Return which of llama.cpp's slots are at work, and at which task; None if it does not tell."""
    busy = _busy(body)
    if busy is None:
        return None
    return frozenset((place, whole_number(slot.id_task, MAX_TASK)) for place, slot in busy)


def slots_cap(body: bytes | None) -> int | None:
    """Return how many tokens llama.cpp lets an answer have that names no cap, 0 if any number: as one of its
    slots at work has it; None if they do not tell, or differ.
    """
    caps: set[int] = set()
    for _, slot in _busy(body) or ():
        held = (entries(slot.next_token) or [slot.next_token])[0]
        told = fields(_NEXT_TOKEN, held) or NextToken()
        remain, decoded = number(told.n_remain), whole_number(told.n_decoded, MAX_CONTEXT)
        if decoded:  # before the first token it is not counted
            caps.add(0 if remain is None or remain < 0 else int(remain) + decoded)
    return 0 if 0 in caps else min(caps) if len(caps) == 1 else None


def _busy(body: bytes | None) -> list[tuple[int, Slot]] | None:
    listed = read_as(body, _SLOTS)
    if listed is None:
        return None
    slots = enumerate(fields(_SLOT, each) for each in listed[:MAX_SLOTS])
    return [(place, slot) for place, slot in slots if slot is not None and is_given(slot.is_processing)]


def _models(body: bytes | None, most: int) -> list[ListedModel] | None:
    told = read_as(body, _MODELS)
    if told is None or (is_given(told.models) and not is_list(told.models)):
        return None
    return _each(entries(told.models) or [], most)


def _each(listed: list[Raw], most: int) -> list[ListedModel]:
    return [model for each in listed[:most] if (model := fields(_LISTED_MODEL, each)) is not None]


def read_as(body: bytes | None, decoder: msgspec.json.Decoder[Told]) -> Told | None:
    """Return what a decoder makes of an answer; None if it is too long, or something else."""
    if body is None or len(body) > ANSWER_BYTES:
        return None
    if body.count(b"{") > ANSWER_OBJECTS or body.count(b",") > ANSWER_ENTRIES:
        return None
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
