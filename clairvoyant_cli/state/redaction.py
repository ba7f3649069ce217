"""Removes prompt text from a state before it is written or exported."""

from dataclasses import replace
from typing import TypeVar

from clairvoyant_cli.state.snapshot import FinishedRequest, QueuedRequest, RunningRequest, Snapshot

WORDS = "words:"
"""How a feature of a prediction begins that quotes the prompt."""

PromptedT = TypeVar("PromptedT", QueuedRequest, RunningRequest)
RequestT = TypeVar("RequestT", QueuedRequest, RunningRequest, FinishedRequest)


def without_prompts(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot as it may be written down: no prompt, and no word of one among what drove a
    prediction.
    """
    return replace(
        snapshot,
        running=tuple(_without_prompt(request) for request in snapshot.running),
        queue=tuple(_without_prompt(request) for request in snapshot.queue),
        recent=tuple(_without_words(request) for request in snapshot.recent),
    )


def _without_prompt(request: PromptedT) -> PromptedT:
    request = _without_words(request)
    return request if request.prompt is None else replace(request, prompt=None)


def _without_words(request: RequestT) -> RequestT:
    features = request.predicted.features
    wordless = tuple(each for each in features if not each[0].startswith(WORDS))
    if len(wordless) == len(features):
        return request
    return replace(request, predicted=replace(request.predicted, features=wordless))
