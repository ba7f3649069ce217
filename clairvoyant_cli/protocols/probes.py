"""What a server answers to our own questions: who it is, what it has loaded, how many slots it has.

Rule: an answer is bounded before it is read, and each name and number of it before it is used. A server gone
wrong must not take with it those who wait for it.
"""

from dataclasses import dataclass
from typing import TypeVar

import msgspec
from msgspec import Raw

from clairvoyant_cli.protocols.loose import (
    ABSENT,
    entries,
    fields,
    is_given,
    is_list,
    is_object,
    text,
    whole_number,
)
from clairvoyant_cli.protocols.plain import printable
from clairvoyant_cli.protocols.texts import MAX_NAME_CHARS, short_name
from tui.snapshot import LoadedModel

ANSWER_BYTES = 1024 * 1024
ANSWER_OBJECTS = 20_000
ANSWER_ENTRIES = 100_000
"""Of an answer that is longer, or holds more, nothing is understood. A thousand models take 600 KB."""

MAX_MODELS = 100
MAX_LISTED_MODELS = 1000
MAX_BYTES = 1 << 50
MAX_CONTEXT = 1 << 31

MAX_SLOTS = 1024
"""llama.cpp knows 256 sequences at most (LLAMA_MAX_SEQ)."""


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


class Health(msgspec.Struct, gc=False):
    """The proxy's own `/_clairvoyant/health`."""

    backends: Raw = ABSENT


class Version(msgspec.Struct, gc=False):
    """Ollama's `/api/version`, and vLLM's `/version`."""

    version: Raw = ABSENT


class SgLangInfo(msgspec.Struct, gc=False):
    """SGLang's `/server_info`."""

    version: Raw = ABSENT
    model_path: Raw = ABSENT


class Details(msgspec.Struct, gc=False):
    """What Ollama says of a model."""

    quantization_level: Raw = ABSENT
    parameter_size: Raw = ABSENT


class ListedModel(msgspec.Struct, gc=False):
    """A model in Ollama's `/api/ps` or `/api/tags`."""

    name: Raw = ABSENT
    size: Raw = ABSENT
    size_vram: Raw = ABSENT
    context_length: Raw = ABSENT
    digest: Raw = ABSENT
    remote_host: Raw = ABSENT
    details: Raw = ABSENT


class Meta(msgspec.Struct, gc=False):
    """What llama.cpp says of its model."""

    n_params: Raw = ABSENT
    size: Raw = ABSENT
    ftype: Raw = ABSENT


class OpenAiModel(msgspec.Struct, gc=False):
    """A model in `/v1/models`."""

    id: Raw = ABSENT
    owned_by: Raw = ABSENT
    meta: Raw = ABSENT


class OpenAiModels(msgspec.Struct, gc=False):
    """`/v1/models`."""

    data: Raw = ABSENT


class Models(msgspec.Struct, gc=False):
    """Ollama's `/api/ps` or `/api/tags`."""

    models: Raw = ABSENT


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


Told = TypeVar("Told")

_HEALTH = msgspec.json.Decoder(Health)
_VERSION = msgspec.json.Decoder(Version)
_MODELS = msgspec.json.Decoder(Models)
_LISTED_MODEL = msgspec.json.Decoder(ListedModel)
_DETAILS = msgspec.json.Decoder(Details)
_OPENAI_MODELS = msgspec.json.Decoder(OpenAiModels)
_OPENAI_MODEL = msgspec.json.Decoder(OpenAiModel)
_META = msgspec.json.Decoder(Meta)
_SGLANG_INFO = msgspec.json.Decoder(SgLangInfo)
_PROPS = msgspec.json.Decoder(Props)
_SETTINGS = msgspec.json.Decoder(Settings)
_SLOTS = msgspec.json.Decoder(list[Raw])
_SLOT = msgspec.json.Decoder(Slot)


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
    told = _read(body, _HEALTH)
    return told is not None and is_object(told.backends)


def version_of(body: bytes | None) -> str | None:
    """Return Ollama's version, or vLLM's; None if this is not their answer."""
    told = _read(body, _VERSION)
    return None if told is None or told.version is ABSENT else short_name(told.version)


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


def _offered(model: ListedModel) -> OfferedModel:
    details = fields(_DETAILS, model.details) or Details()
    return OfferedModel(
        name=short_name(model.name),
        digest=short_name(model.digest),
        quantisation=short_name(details.quantization_level),
        parameters=short_name(details.parameter_size),
        remote=is_given(model.remote_host),
    )


def openai_models(body: bytes | None) -> tuple[OfferedModel, ...] | None:
    """Return the models in `/v1/models`; None if the answer is not understood."""
    told = _read(body, _OPENAI_MODELS)
    if told is None or not is_list(told.data):
        return None
    listed = (fields(_OPENAI_MODEL, each) for each in (entries(told.data) or [])[:MAX_LISTED_MODELS])
    return tuple(_offered_by_openai(model) for model in listed if model is not None)


def _offered_by_openai(model: OpenAiModel) -> OfferedModel:
    meta = fields(_META, model.meta) or Meta()
    size, parameters = whole_number(meta.size, MAX_BYTES), whole_number(meta.n_params, MAX_BYTES)
    return OfferedModel(
        name=short_name(model.id),
        digest="" if size is None else str(size),
        quantisation=short_name(meta.ftype),
        parameters="" if parameters is None else f"{parameters / 1e9:.3g}B",
        owner=short_name(model.owned_by),
    )


def sglang_version(body: bytes | None) -> str | None:
    """Return SGLang's version; None if this is not SGLang's answer."""
    told = _read(body, _SGLANG_INFO)
    return None if told is None or not is_given(told.model_path) else short_name(told.version)


def props_of(body: bytes | None) -> ServerProps | None:
    """Return llama.cpp's properties; None if the answer is not understood."""
    told = _read(body, _PROPS)
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


def busy_slots(body: bytes | None) -> int | None:
    """Return how many of llama.cpp's slots are at work; None if it does not tell."""
    listed = _read(body, _SLOTS)
    if listed is None:
        return None
    slots = (fields(_SLOT, each) for each in listed[:MAX_SLOTS])
    return sum(is_given(slot.is_processing) for slot in slots if slot is not None)


def _models(body: bytes | None, most: int) -> list[ListedModel] | None:
    told = _read(body, _MODELS)
    if told is None or (is_given(told.models) and not is_list(told.models)):
        return None
    models = (fields(_LISTED_MODEL, each) for each in (entries(told.models) or [])[:most])
    return [model for model in models if model is not None]


def _read(body: bytes | None, decoder: msgspec.json.Decoder[Told]) -> Told | None:
    if body is None or len(body) > ANSWER_BYTES:
        return None
    if body.count(b"{") > ANSWER_OBJECTS or body.count(b",") > ANSWER_ENTRIES:
        return None
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
