"""Shifts the mean log length by what a request shows besides the prompt.

No public data holds system prompts, tools or thinking switches together with answer lengths, so these are
guesses of modest size. `online` corrects each of them by its key from the answers.
"""

from math import exp, log, log1p
from typing import NamedTuple

from predictor.lexical.stated_length import UNITS, asked_tokens
from predictor.lexical.words import split, split_with_numbers, window
from predictor.lognormal import SHIFT_TOKENS, log_tokens
from predictor.record import NO_THINKING, PromptView, Task

CHARACTERS_A_TOKEN = 4

JSON_SHIFT = -0.3
TOOLS_SHIFT = -0.5
COMPLETION_SHIFT = 0.2
SYSTEM_BRIEF_SHIFT = -0.5
SYSTEM_DETAIL_SHIFT = 0.2
INFILL_MEAN = log(60 + SHIFT_TOKENS)
THINKING_FACTOR = 1.5
THINKING_TOKENS = 400.0

STEP_MEAN = 2.0
STEP_BEFORE, STEP_NEW = 0.5, 0.1
USUAL_STEP = 4.9
"""An agent's next answer is predicted from its latest and from the length of the new input. Eleven sets of
trajectories are ranked at 0.60 by this, at 0.54 by the words of tools' results; other weights do as well."""

HISTORY_TURNS = 4  # only the latest answers are looked at: style drifts, and time is short
HISTORY_WEIGHT = 0.5  # the share of a conversation's own mean, once there is much of it
_BRIEF = frozenset(b"brief briefly concise concisely short shortly succinct succinctly terse only".split())
_DETAIL = frozenset(b"detailed comprehensive comprehensively thorough thoroughly elaborate long".split())


class Context(NamedTuple):
    """The mean log length with everything considered, and the keys of what was considered."""

    mean: float
    keys: list[str]


def step_context(view: PromptView) -> Context | None:
    """Return the context of an agent's step or of an infill, whose words tell nothing; None otherwise."""
    if view.task is Task.INFILL:
        return Context(INFILL_MEAN, ["infill"])
    step = view.step
    if step is None or not (step.is_result or step.command or any(step.tools)):
        return None
    before = [log_tokens(count / CHARACTERS_A_TOKEN) for count in step.answers] or [USUAL_STEP]
    mean = STEP_MEAN + STEP_BEFORE * sum(before) / len(before) + STEP_NEW * log1p(step.new_characters)
    return _with_thinking(view, mean, ["step"])


def consider(view: PromptView, mean: float) -> Context:
    """Return the context of any other request, from the mean log length predicted by its prompt."""
    keys: list[str] = []
    if view.task is Task.COMPLETION:
        mean += COMPLETION_SHIFT
        keys.append("completion")
    if view.json_mode:
        mean += JSON_SHIFT
        keys.append("json")
    if view.tools:
        mean += TOOLS_SHIFT
        keys.append("tools")
    if view.images:
        keys.append("images")
    if view.system:
        mean = _with_system(view.system, mean)
        keys.append("system")
    if view.history:
        mean = _with_history(view, mean)
        keys.append("history")
    return _with_thinking(view, mean, keys)


def _with_thinking(view: PromptView, mean: float, keys: list[str]) -> Context:
    if view.thinking not in (None, NO_THINKING):
        mean = log(THINKING_FACTOR * exp(mean) + THINKING_TOKENS)
        keys.append("thinking")
    return Context(mean, keys)


def _with_system(system: str, mean: float) -> float:
    seen = window(system)
    distinct = set(split(seen))
    if not UNITS.isdisjoint(distinct):
        asked, _ = asked_tokens(split_with_numbers(seen))
        if asked:
            return (mean + log_tokens(asked)) / 2
    mean += SYSTEM_BRIEF_SHIFT * (not _BRIEF.isdisjoint(distinct))
    return mean + SYSTEM_DETAIL_SHIFT * (not _DETAIL.isdisjoint(distinct))


def _with_history(view: PromptView, mean: float) -> float:
    lengths = [
        log_tokens(turn.characters / CHARACTERS_A_TOKEN) for turn in view.history if turn.role == "assistant"
    ][-HISTORY_TURNS:]
    if not lengths:
        return mean
    share = HISTORY_WEIGHT * len(lengths) / (len(lengths) + 1)
    return (1 - share) * mean + share * sum(lengths) / len(lengths)
