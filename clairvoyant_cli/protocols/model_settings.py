"""Reads a model's settings, and fingerprints them to tell when answers might change.

Rule: a fingerprint holds only hashes, one per part, and is stable across restarts.
"""

import calendar
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from msgspec import Raw

from clairvoyant_cli.protocols.lenient_json import Object, entries, object_in, scalar, text, whole_number
from clairvoyant_cli.protocols.probes import MAX_CONTEXT, MAX_LISTED_MODELS, read_object

DATES = re.compile(
    b"[0-9]+|" + "|".join([*calendar.month_name[1:], *calendar.month_abbr[1:], *calendar.day_name]).encode()
)
"""Chat templates may write today's date into the prompt."""

LASTING = "id root owned_by max_model_len n_vocab n_ctx_train n_embd n_params size ftype".split()
"""Fields of an entry of `/v1/models`, and of llama.cpp's `meta` in it, that identify the model."""

WEIGHTS = re.compile(r"^(?:FROM|ADAPTER) .*", re.MULTILINE)
"""Lines of a Modelfile that name files by their digests."""


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What decides a model's answers besides the request.

    `fingerprint` covers build, weights, template and settings. `context` is the limit on prompt and answer in
    tokens, None if unknown. `options` are the server's defaults. `hidden_chars` counts what the server adds
    to the prompt.
    """

    fingerprint: str
    context: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    hidden_chars: int = 0


def changed_parts(before: str, after: str) -> list[str]:
    """Return the parts in which two fingerprints differ, of those that both have."""
    was, now = (dict(part.split(":", 1) for part in text.split() if ":" in part) for text in (before, after))
    return sorted(name for name in was.keys() & now.keys() if was[name] != now[name])


def llamacpp_settings(
    props: bytes | None, models: bytes | None, rendered: Iterable[bytes | None], model: str | None = None
) -> ModelSettings | None:
    """Return llama.cpp's settings from `/props`, `/v1/models` and some chats as its template renders them,
    which alone shows `--no-jinja`; None if unknown. `model` is None if it has only one.
    """
    answer = read_object(props)
    if answer is None:
        return None
    settings = object_in(answer["default_generation_settings"])
    # The context may be fitted to the memory that is free at a start.
    context = whole_number(settings["n_ctx"], MAX_CONTEXT)
    settings.pop("n_ctx", None)
    texts = [DATES.sub(b"0", prompt) for prompt in rendered if prompt is not None]
    options = settings | object_in(settings["params"])
    return ModelSettings(
        _fingerprint(
            build=[answer["build_info"]],
            model=[answer["model_alias"], answer["model_path"], *_listed(_entry(models, model))],
            template=[answer["chat_template"]],
            settings=_listed(settings),
            **({"rendering": texts} if texts else {}),
        ),
        context or None,
        {name: scalar(value) for name, value in options.items()},
    )


def ollama_settings(shown: bytes | None, context: int | None, version: str) -> ModelSettings:
    """Return the settings of a model of Ollama's from `/api/show`; `context` is what it is loaded with."""
    answer = read_object(shown) or Object()
    prompt = (answer["template"], answer["system"], answer["messages"])
    return ModelSettings(
        _fingerprint(
            build=[version.encode()],
            model=[
                *(line.encode() for line in WEIGHTS.findall(text(answer["modelfile"]))),
                answer["details"],
            ],
            template=prompt,
            settings=[answer["parameters"]],
        ),
        context,
        _parameters(text(answer["parameters"])),
        sum(map(len, prompt)),
    )


def listed_settings(models: bytes | None, model: str, version: str) -> ModelSettings | None:
    """Return the settings of a model as `/v1/models` lists it; None if that is not understood."""
    if read_object(models) is None:
        return None
    entry = _entry(models, model)
    context = whole_number(entry["max_model_len"], MAX_CONTEXT)
    return ModelSettings(_fingerprint(build=[version.encode()], model=_listed(entry)), context or None)


def _entry(models: bytes | None, model: str | None) -> Object:
    """Return the lasting fields of a model in `/v1/models`, of the first if none is named."""
    listing = read_object(models) or Object()
    for raw in (entries(listing["data"]) or [])[:MAX_LISTED_MODELS]:
        entry = object_in(raw)
        if model is None or text(entry["id"]) == model:
            merged = entry | object_in(entry["meta"])
            return Object((name, value) for name, value in merged.items() if name in LASTING)
    return Object()


def _listed(held: Mapping[str, Raw]) -> list[bytes]:
    return [part for name in sorted(held) for part in (name.encode(), bytes(held[name]))]


def _parameters(lines: str) -> dict[str, Any]:
    """Return the PARAMETERs of a Modelfile as `/api/show` writes them: a name and a value a line."""
    found: dict[str, Any] = {}
    for line in lines.splitlines():
        name, _, value = line.strip().partition(" ")
        held = scalar(Raw(value.strip().encode() or b"null"))
        if name == "stop":
            found.setdefault(name, []).append(value.strip() if held is None else held)
        elif name:
            found[name] = held
    return found


def _fingerprint(**parts: Iterable[bytes | Raw]) -> str:
    hashed = {name: sha256(b"\0".join(map(bytes, part))) for name, part in parts.items()}
    return " ".join(f"{name}:{digest.hexdigest()[:16]}" for name, digest in hashed.items())
