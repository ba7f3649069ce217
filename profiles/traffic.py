"""Summarises the traffic in a history: work per hour, and the newest answers.

Fast on a million rows, like `history`: reads the tally, or a bounded number of the newest rows of an index.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from math import ceil, isfinite
from typing import get_type_hints

from profiles.history import HOUR_S, Span
from profiles.states import client_hash, salt

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
"""Maximum rows read to find the sample, or to count one client's hours."""


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
    """Return the hours of a span with requests, in order; the span is rounded to hours.

    For one client, uses its newest `LOOKED_AT` requests, because the tally has no clients.
    """
    if span.client is not None:
        rows = connection.execute(
            "SELECT CAST(finished_at / 3600 AS INTEGER), COUNT(*), SUM(sojourn_s - waited_s) FROM ("
            "SELECT finished_at, sojourn_s, waited_s, model FROM history INDEXED BY history_client "
            "WHERE client = ? AND finished_at >= ? AND finished_at < ? ORDER BY finished_at DESC LIMIT ?) "
            "WHERE ? IS NULL OR model = ? GROUP BY 1 ORDER BY 1",
            (_client(connection, span), span.since, span.until, LOOKED_AT, span.model, span.model),
        )
    else:
        rows = connection.execute(
            "SELECT hour, SUM(requests), SUM(sojourn_s - waited_s) FROM tally "
            "WHERE hour >= ? AND hour <= ? AND (? IS NULL OR model = ?) GROUP BY hour ORDER BY hour",
            (int(span.since // HOUR_S), ceil(span.until / HOUR_S), span.model, span.model),
        )
    return [
        Hour(hour, requests, max(0.0, work_s))
        for hour, requests, work_s in rows
        if isinstance(hour, int) and isinstance(requests, int) and requests > 0 and isfinite(work_s)
    ]


def newest_answers(connection: sqlite3.Connection, span: Span, limit: int = ANSWERS) -> list[Answer]:
    """Return the completed answers among the newest `LOOKED_AT` requests of a span, newest first."""
    index, where = "history_time", "finished_at >= ? AND finished_at < ?"
    values: tuple[object, ...] = (span.since, span.until)
    if span.client is not None:
        index, where, values = (
            "history_client",
            f"client = ? AND {where}",
            (_client(connection, span), *values),
        )
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


def _client(connection: sqlite3.Connection, span: Span) -> bytes:
    return client_hash(salt(connection), span.client or "")


def _is_sound(row: Sequence[object]) -> bool:
    finite = all(isfinite(value) for value in row if isinstance(value, float))
    return finite and all(map(isinstance, row, _KINDS))
