"""Summarises the traffic in a history: work per hour, and the newest answers.

The newest answers come from a bounded number of rows of an index, the hours from all rows of the span.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from math import isfinite
from typing import get_type_hints

from profiles.history import SOUND, Span, where_of

HOUR_S = 3600
ANSWERS = 4000
"""Size of the sample of newest answers."""

ANSWER = (
    "SELECT finished_at, backend, model, policy, length_class, tokens, COALESCE(prompt_tokens, 0), "
    "sojourn_s - waited_s, sojourn_s, p_long, expected_tokens, q90_tokens"
)

MIN_OBSERVED_S = 60.0
"""Shortest time over which a rate is computed."""

LONGEST_PAUSE_H = 31 * 24
"""Longer pauses are capped: years without a request come from a wrong clock."""

LOOKED_AT = 40_000
"""Maximum rows read to find the sample."""


@dataclass(frozen=True, slots=True)
class Hour:
    """Requests that ended within an hour (since the epoch), and their total service time."""

    hour: int
    requests: int
    work_s: float


@dataclass(frozen=True, slots=True)
class Answer:
    """A completed answer: server, times and prediction."""

    finished_at: float
    backend: str
    model: str
    policy: str
    length_class: str
    tokens: int
    prompt_tokens: int
    service_s: float
    sojourn_s: float
    p_long: float
    expected_tokens: float
    q90_tokens: float


_KINDS = tuple(get_type_hints(Answer)[field.name] for field in fields(Answer))
"""The types of the columns; damaged rows have others."""


@dataclass(frozen=True, slots=True)
class Load:
    """How busy a server was, overall and in its busiest clock hour.

    A history shorter than an hour is its own busiest hour, of `busiest_s` seconds.
    """

    requests: int
    span_s: float
    work_s: float
    busiest: Hour
    busiest_s: float
    hours: tuple[Hour, ...] = ()

    @property
    def busiest_per_s(self) -> float:
        """Requests a second in the busiest hour."""
        return self.busiest.requests / self.busiest_s

    def utilisation(self, slots: int) -> float:
        """Return the utilisation of `slots` slots over the whole time."""
        return self.work_s / (self.span_s * slots)

    def busiest_utilisation(self, slots: int) -> float:
        """Return the utilisation of `slots` slots in the busiest hour."""
        return self.busiest.work_s / (self.busiest_s * slots)

    def share_above(self, utilisation: float, slots: int) -> float:
        """Return the share of requests in hours with at least this utilisation."""
        if self.busiest_s < HOUR_S:
            return float(self.busiest_utilisation(slots) >= utilisation)
        least_s = utilisation * slots * HOUR_S
        return sum(hour.requests for hour in self.hours if hour.work_s >= least_s) / self.requests


def by_hour(connection: sqlite3.Connection, span: Span) -> list[Hour]:
    """Return the hours of a span with requests, in order."""
    where, values = where_of(connection, span)
    rows = connection.execute(
        "SELECT CAST(finished_at / 3600 AS INTEGER), COUNT(*), MAX(0.0, SUM(sojourn_s - waited_s)) "  # noqa: S608
        f"FROM history WHERE {where} AND {SOUND} GROUP BY 1 ORDER BY 1",
        values,
    )
    return [Hour(*row) for row in rows]


def newest_answers(connection: sqlite3.Connection, span: Span, limit: int = ANSWERS) -> list[Answer]:
    """Return the completed answers among the newest `LOOKED_AT` requests of a span, newest first."""
    where, values = where_of(connection, replace(span, model=None))
    index = "history_time" if span.client is None else "history_client"
    newest = f"SELECT * FROM history INDEXED BY {index} WHERE {where} ORDER BY finished_at DESC LIMIT ?"  # noqa: S608
    rows = connection.execute(
        f"{ANSWER} FROM ({newest}) "
        "WHERE length_class != '' AND outcome = 'completed' AND (? IS NULL OR model = ?) LIMIT ?",
        (*values, LOOKED_AT, span.model, span.model, limit),
    )
    return [Answer(*row) for row in rows if _is_sound(row)]


def load(connection: sqlite3.Connection, span: Span) -> Load | None:
    """Return how busy the server was in a span; None without requests."""
    hours = by_hour(connection, span)
    if not hours:
        return None
    work_s, requests = sum(hour.work_s for hour in hours), sum(hour.requests for hour in hours)
    busiest, first, last = max(hours, key=lambda hour: hour.work_s), hours[0].hour, hours[-1].hour
    passed_h = sum(min(later.hour - earlier.hour, LONGEST_PAUSE_H) for earlier, later in pairwise(hours))
    span_s, busiest_s = float(HOUR_S * (1 + passed_h)), float(HOUR_S)
    if last <= first + 1:
        # The unobserved part of an hour is not idle time.
        span_s = max(MIN_OBSERVED_S, _observed_s(connection, span))
        if span_s < HOUR_S:
            busiest, busiest_s = Hour(last, requests, work_s), span_s
    return Load(requests, span_s, work_s, busiest, busiest_s, tuple(hours))


def _observed_s(connection: sqlite3.Connection, span: Span) -> float:
    answers = newest_answers(connection, span, LOOKED_AT)
    if not answers:
        return 0.0
    return answers[0].finished_at - min(answer.finished_at - answer.sojourn_s for answer in answers)


def _is_sound(row: Sequence[object]) -> bool:
    finite = all(isfinite(value) for value in row if isinstance(value, float))
    return finite and all(map(isinstance, row, _KINDS))
