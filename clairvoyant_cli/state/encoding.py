"""Encodes and decodes states as JSON: on the wire, in the history."""

from dataclasses import replace
from typing import Any, TypeVar, get_type_hints

import msgspec

from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.state.snapshot import (
    SCHEMA_VERSION,
    FinishedRequest,
    QueuedRequest,
    RunningRequest,
    Snapshot,
)

WORDS = "words:"
"""The prefix of a prediction's features that quote the prompt."""

PromptedT = TypeVar("PromptedT", QueuedRequest, RunningRequest)
RequestT = TypeVar("RequestT", QueuedRequest, RunningRequest, FinishedRequest)

encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Snapshot)
_cut = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_cut_rows = msgspec.json.Decoder(list[msgspec.Raw]).decode
_ended = msgspec.json.Decoder(FinishedRequest).decode
_READERS = {name: msgspec.json.Decoder(kind).decode for name, kind in get_type_hints(Snapshot).items()}


def decode(data: bytes) -> Snapshot:
    """Read a state; ClairvoyantError if it is none, or has a newer schema than this version reads."""
    try:
        return _supported(_decoder.decode(data))
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ClairvoyantError(f"the daemon's state cannot be read ({error}); use the same version") from None


def _supported(state: Snapshot) -> Snapshot:
    if state.schema > SCHEMA_VERSION:
        raise ClairvoyantError(
            f"the state has schema {state.schema}, this version reads {SCHEMA_VERSION}: upgrade clairvoyant"
        )
    return state


class StateReader:
    """Reads successive states; parts that did not change, such as ended requests, are decoded once."""

    def __init__(self) -> None:
        self._parts: dict[str, tuple[bytes, Any]] = {}
        self._ended: dict[bytes, FinishedRequest] = {}

    def read(self, data: bytes) -> Snapshot:
        """Read a state; ClairvoyantError as in `decode`."""
        try:
            parts = {name: self._part(name, raw) for name, raw in _cut(data).items() if name in _READERS}
            return _supported(Snapshot(**parts))
        except (msgspec.DecodeError, ValueError, TypeError, RecursionError):
            return decode(data)  # raises with the reason

    def _part(self, name: str, raw: msgspec.Raw) -> Any:
        known, data = self._parts.get(name), bytes(raw)
        if known is None or known[0] != data:
            read = self._recent if name == "recent" else _READERS[name]
            known = self._parts[name] = data, read(data)
        return known[1]

    def _recent(self, data: bytes) -> tuple[FinishedRequest, ...]:
        known = self._ended
        rows = [bytes(raw) for raw in _cut_rows(data)]
        self._ended = {row: known.get(row) or _ended(row) for row in rows}
        return tuple(self._ended[row] for row in rows)


def without_prompts(snapshot: Snapshot) -> Snapshot:
    """Return the state without the text of prompts and answers, and the features that quote it."""
    return replace(
        snapshot,
        running=tuple(map(_without_prompt, snapshot.running)),
        queue=tuple(map(_without_prompt, snapshot.queue)),
        recent=tuple(map(_without_words, snapshot.recent)),
    )


def _without_prompt(request: PromptedT) -> PromptedT:
    request = _without_words(request)
    shows = request.prompt is not None or request.answer is not None
    return replace(request, prompt=None, answer=None) if shows else request


def _without_words(request: RequestT) -> RequestT:
    features = request.predicted.features
    wordless = tuple(each for each in features if not each[0].startswith(WORDS))
    if len(wordless) == len(features):
        return request
    return replace(request, predicted=replace(request.predicted, features=wordless))
