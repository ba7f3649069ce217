"""Sums the totals of a continued answer: the server counted only its last part, and the rest as prompt."""

from dataclasses import dataclass, replace
from typing import Any

from clairvoyant_cli.protocols.answer_events import AnswerEvent
from clairvoyant_cli.protocols.usage import Totals

NS = 1e9
MS = 1e3


@dataclass(frozen=True, slots=True)
class Earlier:
    """The parts before: their tokens, and their durations as measured here.

    As prompt they have `reread` tokens: a model may split words differently than the tokeniser.
    """

    tokens: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    reread: int = 0


def summed(event: AnswerEvent, earlier: Earlier) -> AnswerEvent:
    """Return an event with the totals of the whole answer in place of those of its last part."""
    changed: AnswerEvent = {}
    if _counts(event.get("usage")):
        changed["usage"] = _usage(event["usage"], earlier)
    if isinstance(event.get("timings"), dict):
        changed["timings"] = _timings(event["timings"], earlier)
    if event.get("done") is True:
        changed |= _ollama(event, earlier)
    return event | changed if changed else event


def summed_totals(last: Totals, earlier: Earlier) -> Totals:
    """Return the totals of the whole answer; its prefill speed is unknown."""
    if not earlier.tokens:
        return last
    return replace(
        last,
        tokens=None if last.tokens is None else last.tokens + earlier.tokens,
        prompt_tokens=None if last.prompt_tokens is None else max(1, last.prompt_tokens - earlier.reread),
        decode_s=None if last.decode_s is None else last.decode_s + earlier.decode_s,
        prefill_s=None,
        prefilled_tokens=None,
    )


def openai_usage(event: AnswerEvent, earlier: Earlier) -> AnswerEvent:
    prompt, completion = _number(event, "prompt_eval_count"), _number(event, "eval_count")
    told = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": 0}
    return _usage(told, earlier)


def _usage(usage: dict[str, Any], earlier: Earlier) -> dict[str, Any]:
    completion = _number(usage, "completion_tokens") + earlier.tokens
    prompt = max(0, _number(usage, "prompt_tokens") - earlier.reread)
    changed: dict[str, Any] = {
        "completion_tokens": completion,
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
    }
    details = usage.get("prompt_tokens_details")
    if isinstance(details, dict) and "cached_tokens" in details:
        cached = min(_number(details, "cached_tokens"), prompt)
        changed["prompt_tokens_details"] = details | {"cached_tokens": cached}
    return usage | changed


def _counts(usage: Any) -> bool:
    """Whether it is a count: Ollama's completions have one of zeros in every event."""
    told = ("prompt_tokens", "completion_tokens")
    return isinstance(usage, dict) and any(_number(usage, name) > 0 for name in told)


def _timings(timings: dict[str, Any], earlier: Earlier) -> dict[str, Any]:
    """Return llama.cpp's times; `prompt_n` stays what was evaluated in the end, most of it being cached."""
    tokens = _number(timings, "predicted_n") + earlier.tokens
    decode_ms = _seconds(timings, "predicted_ms") + earlier.decode_s * MS
    prompt_n = max(1, _number(timings, "prompt_n"))
    prompt_ms = _seconds(timings, "prompt_ms") + earlier.prefill_s * MS
    changed: dict[str, Any] = {
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / prompt_n,
        "prompt_per_second": prompt_n / prompt_ms * MS if prompt_ms else 0.0,
        "predicted_n": tokens,
        "predicted_ms": decode_ms,
        "predicted_per_token_ms": decode_ms / max(1, tokens),
        "predicted_per_second": tokens / decode_ms * MS if decode_ms else 0.0,
    }
    if "cache_n" in timings:
        changed["cache_n"] = max(0, _number(timings, "cache_n") - earlier.reread)
    return timings | changed


def _ollama(event: AnswerEvent, earlier: Earlier) -> AnswerEvent:
    changed = {
        "eval_count": _number(event, "eval_count") + earlier.tokens,
        "eval_duration": _number(event, "eval_duration") + round(earlier.decode_s * NS),
        "prompt_eval_duration": _number(event, "prompt_eval_duration") + round(earlier.prefill_s * NS),
        "total_duration": _number(event, "total_duration")
        + round((earlier.prefill_s + earlier.decode_s) * NS),
    }
    if "prompt_eval_count" in event:
        changed["prompt_eval_count"] = max(1, _number(event, "prompt_eval_count") - earlier.reread)
    return changed


def _number(held: dict[str, Any], name: str) -> int:
    value = held.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _seconds(held: dict[str, Any], name: str) -> float:
    value = held.get(name)
    return float(value) if isinstance(value, int | float) else 0.0
