"""Encodes and decodes states as JSON: on the wire, in the history."""

from dataclasses import replace
from typing import TypeVar

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

RequestT = TypeVar("RequestT", QueuedRequest, RunningRequest, FinishedRequest)

encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Snapshot)


def decode(data: bytes) -> Snapshot:
    """Read a state; ClairvoyantError if it is none, or has a newer schema than this version reads."""
    try:
        state = _decoder.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ClairvoyantError(f"the daemon's state cannot be read ({error}); use the same version") from None
    if state.schema > SCHEMA_VERSION:
        raise ClairvoyantError(
            f"the state has schema {state.schema}, this version reads {SCHEMA_VERSION}: upgrade clairvoyant"
        )
    return state


def without_prompts(snapshot: Snapshot) -> Snapshot:
    """Return the state without the text of prompts and answers, and the features that quote it."""
    return replace(
        snapshot,
        running=tuple(map(without_prompt, snapshot.running)),
        queue=tuple(map(without_prompt, snapshot.queue)),
        recent=tuple(map(without_prompt, snapshot.recent)),
    )


def without_prompt(request: RequestT) -> RequestT:
    if not isinstance(request, FinishedRequest) and (
        request.prompt is not None or request.answer is not None
    ):
        request = replace(request, prompt=None, answer=None)
    features = request.predicted.features
    wordless = tuple(each for each in features if not each[0].startswith(WORDS))
    if len(wordless) == len(features):
        return request
    return replace(request, predicted=replace(request.predicted, features=wordless))
