"""What a server answers to our own questions: who it is, what it has loaded, how many slots it has.

Rule: an answer is bounded before it is read, and each name and number of it before it is used. A server gone
wrong must not take with it those who wait for it.
"""

from dataclasses import dataclass
from typing import TypeVar

import msgspec
from msgspec import Raw

from clairvoyant_cli.proxy.plain import printable
from clairvoyant_cli.proxy.protocols.loose import (
    ABSENT,
    AnObject,
    entries,
    fields,
    is_given,
    is_list,
    text,
    whole_number,
)
from clairvoyant_cli.proxy.protocols.texts import MAX_NAME_CHARS, short_name
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


class Version(msgspec.Struct, gc=False):
    """Ollama's `/api/version`."""

    version: Raw = ABSENT


class ListedModel(msgspec.Struct, gc=False):
    """A model in Ollama's `/api/ps` or `/api/tags`."""

    name: Raw = ABSENT
    size: Raw = ABSENT
    size_vram: Raw = ABSENT
    context_length: Raw = ABSENT
    digest: Raw = ABSENT
    remote_host: Raw = ABSENT


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

_OBJECT = msgspec.json.Decoder(AnObject)
_VERSION = msgspec.json.Decoder(Version)
_MODELS = msgspec.json.Decoder(Models)
_LISTED_MODEL = msgspec.json.Decoder(ListedModel)
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


def is_object(body: bytes | None) -> bool:
    """Whether an answer is JSON, and an object."""
    return _read(body, _OBJECT) is not None


def version_of(body: bytes | None) -> str | None:
    """Return Ollama's version; None if this is not Ollama's answer."""
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


def remote_models(body: bytes | None) -> frozenset[str]:
    """Return the names of the models that Ollama has run elsewhere."""
    models = _models(body, MAX_LISTED_MODELS) or ()
    return frozenset(short_name(model.name) for model in models if is_given(model.remote_host))


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
