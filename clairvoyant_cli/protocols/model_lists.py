"""Merges model lists of several servers; entries are kept as their servers wrote them."""

from collections.abc import Sequence

import msgspec
from msgspec import Raw

from clairvoyant_cli.protocols.lenient_json import OBJECT, entries, fitting, object_in
from clairvoyant_cli.protocols.probes import model_name
from clairvoyant_cli.protocols.routes import Family

OFFERED: dict[str, Family] = {
    "/api/tags": Family.OLLAMA,
    "/v1/models": Family.OPENAI,
    "/models": Family.LLAMACPP,
    "/api/v0/models": Family.OPENAI,
}
"""Path -> family of a list of available models: a name that several servers have is listed once."""

LOADED: dict[str, Family] = {"/api/ps": Family.OLLAMA}
"""Path -> whose list it is of what is loaded: what two have loaded is loaded twice."""

LISTS = OFFERED | LOADED

LIST_BYTES = 8 * 1024 * 1024
LIST_OBJECTS = 20_000
"""The longest list that is merged; it takes some 30 ms."""


def merged(path: str, answers: Sequence[bytes]) -> bytes | None:
    """Return the answers to a path as one list, the first server's first; None if one is not a list."""
    wholes = [
        fitting(OBJECT, answer) if len(answer) <= LIST_BYTES and answer.count(b"{") <= LIST_OBJECTS else None
        for answer in answers
    ]
    if not wholes or None in wholes:
        return None
    told: dict[str, Raw] = {}
    for whole in wholes:
        for field, value in (whole or {}).items():
            listed, known = entries(value), entries(told.get(field, value))
            if listed is None or known is None:
                told.setdefault(field, value)
            elif field not in told:
                told[field] = value
            else:
                names = set() if path in LOADED else {_name(each) for each in known}
                told[field] = Raw(
                    msgspec.json.encode([*known, *(each for each in listed if _name(each) not in names)])
                )
    return msgspec.json.encode(told)


def _name(entry: Raw) -> str:
    return model_name(object_in(entry)) or bytes(entry).decode(errors="replace")
