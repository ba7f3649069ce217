"""Reads recorded sessions of agents: the lengths and times of their turns, no text."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.research.simulator.traces import rows_of

MAX = 1e10
"""No time in seconds since 1970 and no number of tokens is larger."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn, `gap_s` after the end of the turn before; a first turn, after the beginning of the trace."""

    gap_s: float
    prompt_tokens: int
    answer_tokens: int


def read_sessions(path: Path) -> dict[str, list[Turn]]:
    """Read the turns of each session from JSON Lines or CSV; ClairvoyantError if there are none.

    A line is a turn: `session`; the tokens of its prompt, as `prompt_tokens`, or `read_tokens` and
    `cached_tokens`, or only the new ones as `new_tokens`; `output_tokens`; and its time, as `gap_s`, or
    `arrival_s`, or `finished_at` and `sojourn_s`. Lines without session or lengths are skipped.
    """
    sessions: dict[str, list[Turn]] = {}
    ended_s: dict[str, float] = {}
    began_s: float | None = None
    try:
        for row in rows_of(path, None):
            name, answer = str(row.get("session") or ""), _number(row, "output_tokens")
            turns = sessions.get(name, [])
            known = turns[-1].prompt_tokens + turns[-1].answer_tokens if turns else 0
            prompt = _prompt_tokens(row, known)
            if not (name and answer and prompt):
                continue
            took_s, gap_s = _number(row, "sojourn_s") or 0.0, _number(row, "gap_s")
            if gap_s is None:
                at_s = _number(row, "arrival_s")
                at_s = float(str(row["finished_at"])) - took_s if at_s is None else at_s
                began_s = at_s if began_s is None else began_s
                gap_s = at_s - ended_s.get(name, began_s)
                ended_s[name] = at_s + took_s
            sessions.setdefault(name, turns).append(Turn(max(0.0, gap_s), int(prompt), int(answer)))
    except (KeyError, ValueError) as error:
        raise ClairvoyantError(f"cannot use {path}: {error}", ExitCode.USAGE) from error
    if not sessions:
        raise ClairvoyantError(f"{path} has no sessions with the lengths of their turns", ExitCode.USAGE)
    return sessions


def _prompt_tokens(row: Mapping[str, object], known: int) -> float | None:
    read, cached = _number(row, "read_tokens"), _number(row, "cached_tokens")
    if read is not None and cached is not None:
        return read + cached
    new = _number(row, "new_tokens")
    return _number(row, "prompt_tokens") if new is None else known + new


def _number(row: Mapping[str, object], name: str) -> float | None:
    value = row.get(name)
    if value is None or value == "":
        return None
    number = float(str(value))
    if not (isfinite(number) and 0 <= number < MAX):
        raise ValueError(f"{name} is {number:g}")
    return number
