"""What a server answers to our own questions: who it is, what it has loaded, how many slots it has.

Rule: an answer is bounded before it is read, and each name and number of it before it is used. A server gone
wrong must not take with it those who wait for it.
"""

from dataclasses import dataclass
from typing import TypedDict, TypeVar

import msgspec

from clairvoyant_cli.proxy.protocols.loose import Loose, Other, Skipped, number
from clairvoyant_cli.proxy.protocols.texts import short_name
from tui.snapshot import LoadedModel

ANSWER_BYTES = 1024 * 1024
ANSWER_OBJECTS = 20_000
"""Of an answer that is longer, or holds more, nothing is understood. A thousand models take 600 KB."""

MOST_MODELS = 100
MOST_REMOTE_MODELS = 1000
MOST_BYTES = 1 << 50
MOST_CONTEXT = 1 << 31

MOST_SLOTS = 1024
"""llama.cpp knows 256 sequences at most (LLAMA_MAX_SEQ)."""


class Version(TypedDict, total=False):
    """Ollama's `/api/version`."""

    version: Loose


class ListedModel(TypedDict, total=False):
    """A model in Ollama's `/api/ps` or `/api/tags`."""

    name: Loose
    size: Loose
    size_vram: Loose
    context_length: Loose
    digest: Loose
    remote_host: Loose


class Models(TypedDict, total=False):
    """Ollama's `/api/ps` or `/api/tags`."""

    models: str | float | bool | Skipped | list[Other | ListedModel] | None


class Settings(TypedDict, total=False):
    """What llama.cpp generates with."""

    n_ctx: Loose


class Props(TypedDict, total=False):
    """llama.cpp's `/props`."""

    total_slots: Loose
    build_info: Loose
    model_alias: Loose
    model_path: Loose
    default_generation_settings: Other | Settings


class Slot(TypedDict, total=False):
    """A slot in llama.cpp's `/slots`."""

    is_processing: Loose


Told = TypeVar("Told")

_SKIPPED = msgspec.json.Decoder(Skipped)
_VERSION = msgspec.json.Decoder(Version)
_MODELS = msgspec.json.Decoder(Models)
_PROPS = msgspec.json.Decoder(Props)
_SLOTS = msgspec.json.Decoder(list[Other | Slot])


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
    return _read(body, _SKIPPED) is not None


def version_of(body: bytes | None) -> str | None:
    """Return Ollama's version; None if this is not Ollama's answer."""
    told = _read(body, _VERSION)
    return None if told is None or "version" not in told else short_name(told["version"])


def loaded_models(body: bytes | None) -> tuple[LoadedModel, ...] | None:
    """Return the models that Ollama has loaded; None if the answer is not understood."""
    models = _models(body)
    if models is None:
        return None
    return tuple(
        LoadedModel(
            name=short_name(model.get("name")),
            size_bytes=number(model.get("size"), MOST_BYTES),
            vram_bytes=number(model.get("size_vram"), MOST_BYTES),
            context=number(model.get("context_length"), MOST_CONTEXT),
            digest=short_name(model.get("digest")),
        )
        for model in models[:MOST_MODELS]
    )


def remote_models(body: bytes | None) -> frozenset[str]:
    """Return the names of the models that Ollama has run elsewhere."""
    remote = [model for model in _models(body) or () if model.get("remote_host")]
    return frozenset(short_name(model.get("name")) for model in remote[:MOST_REMOTE_MODELS])


def props_of(body: bytes | None) -> ServerProps | None:
    """Return llama.cpp's properties; None if the answer is not understood."""
    told = _read(body, _PROPS)
    if told is None:
        return None
    path = told.get("model_alias") or told.get("model_path")
    name = short_name(path.rsplit("/", 1)[-1]) if isinstance(path, str) else ""
    settings = told.get("default_generation_settings")
    context = number(settings.get("n_ctx"), MOST_CONTEXT) if isinstance(settings, dict) else None
    return ServerProps(
        tells_slots="total_slots" in told,
        build=short_name(told.get("build_info")),
        slots=number(told.get("total_slots"), MOST_SLOTS) or None,
        model=LoadedModel(name=name, context=context) if name else None,
    )


def busy_slots(body: bytes | None) -> int | None:
    """Return how many of llama.cpp's slots are at work; None if it does not tell."""
    slots = _read(body, _SLOTS)
    if slots is None:
        return None
    return sum(bool(slot.get("is_processing")) for slot in slots if isinstance(slot, dict))


def _models(body: bytes | None) -> list[ListedModel] | None:
    told = _read(body, _MODELS)
    models = None if told is None else told.get("models") or []
    return [model for model in models if isinstance(model, dict)] if isinstance(models, list) else None


def _read(body: bytes | None, decoder: msgspec.json.Decoder[Told]) -> Told | None:
    if body is None or len(body) > ANSWER_BYTES or body.count(b"{") > ANSWER_OBJECTS:
        return None
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
