"""A streamed answer as a client reads it, a line at a time: OpenAI's events and Ollama's objects."""

from dataclasses import dataclass
from typing import Any

import msgspec

from clairvoyant_cli.protocols.usage import Totals, told_by_line

NOTHING = Totals()


@dataclass(frozen=True, slots=True)
class Piece:
    """What a line says. `text`: it has any, thinking included; `words`: the answer's own; `whole`: the answer
    ends here, `capped` by its limit.
    """

    text: bool = False
    words: str = ""
    whole: bool = False
    capped: bool = False
    error: str | None = None
    totals: Totals = NOTHING


def read_line(line: bytes) -> Piece | None:
    """Parse a line of NDJSON or SSE; None if it is neither."""
    held = line.removeprefix(b"data:").strip()
    if held == b"[DONE]":
        return Piece(whole=True)
    if not held.startswith(b"{"):
        return None
    try:
        said = msgspec.json.decode(held)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if said.get("error"):
        return Piece(error=error_text(said))
    choices = [each for each in said.get("choices") or () if isinstance(each, dict)]
    reasons = [reason for each in choices if (reason := each.get("finish_reason")) is not None]
    if said.get("done") is True:
        reasons.append(said.get("done_reason"))
    parts = [said.get("message"), *(each.get("delta") for each in choices)]
    return Piece(
        text=any(map(_has_text, parts)),
        words="".join(map(_words, parts)),
        whole=bool(reasons),
        capped="length" in reasons,
        totals=told_by_line(held),
    )


def error_text(said: dict[str, Any]) -> str:
    """Return the words of an error object, as OpenAI's servers and Ollama write it."""
    error = said.get("error")
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)


def _has_text(part: Any) -> bool:
    return isinstance(part, dict) and any(
        part.get(name) for name in ("content", "thinking", "reasoning_content", "reasoning")
    )


def _words(part: Any) -> str:
    words = part.get("content") if isinstance(part, dict) else None
    return words if isinstance(words, str) else ""
