"""What a history says of its traffic: how much work came in each hour, and what the newest answers were like.

Rule 1: as in `history`, a million rows answer at once: hours come from the tally or from a bounded number of
rows of an index, answers from the newest rows of an index.
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
"""So many of the newest answers stand for all."""

ANSWER = (
    "SELECT finished_at, backend, model, policy, length_class, tokens, COALESCE(prompt_tokens, 0), "
    "sojourn_s - waited_s, sojourn_s, p_long, expected_tokens, q90_tokens"
)

MIN_OBSERVED_S = 60.0
"""A history of a few seconds says nothing of a rate."""

LONGEST_PAUSE_H = 31 * 24
"""Of a longer one so much counts as idle time: years without a request are those of a wrong clock."""

LOOKED_AT = 40_000
"""At most so many rows are looked at to find them, or to count one client's hours."""


@dataclass(frozen=True, slots=True)
class Hour:
    """What ended within an hour since the epoch: requests, and the seconds for which they held a slot."""

    hour: int
    requests: int
    work_s: float


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer: when and by what it was served, how long it held its slot, and what was predicted."""

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
"""What a row of an answer holds unless it is damaged; SQLite keeps any value in any column."""


@dataclass(frozen=True, slots=True)
class Load:
    """How busy a server was: over the time from the first request to the last, and in the busiest hour.

    Hours are clock hours; a history shorter than one is taken for the busiest, and is `busiest_s` long.
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
        """Share of so many slots' time spent at work, over all the time."""
        return self.work_s / (self.span_s * slots)

    def busiest_utilisation(self, slots: int) -> float:
        """Share of so many slots' time spent at work in the busiest hour."""
        return self.busiest.work_s / (self.busiest_s * slots)

    def share_above(self, utilisation: float, slots: int) -> float:
        """Share of the requests that came in hours at least so busy."""
        if self.busiest_s < HOUR_S:
            return float(self.busiest_utilisation(slots) >= utilisation)
        least_s = utilisation * slots * HOUR_S
        return sum(hour.requests for hour in self.hours if hour.work_s >= least_s) / self.requests


def by_hour(connection: sqlite3.Connection, span: Span) -> list[Hour]:
    """Return the hours of a span in which requests ended, in order; a span's ends are taken to the hour.

    Of one client, those of its newest `LOOKED_AT` requests: the tally does not know clients.
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
    """Return the newest whole answers among the newest `LOOKED_AT` requests of a span, the newest first."""
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
    """Return how busy the server was within a span; None if it had no requests."""
    hours = by_hour(connection, span)
    if not hours:
        return None
    work_s, requests = sum(hour.work_s for hour in hours), sum(hour.requests for hour in hours)
    busiest, first, last = max(hours, key=lambda hour: hour.work_s), hours[0].hour, hours[-1].hour
    passed_h = sum(min(later.hour - earlier.hour, LONGEST_PAUSE_H) for earlier, later in pairwise(hours))
    span_s, busiest_s = float(HOUR_S * (1 + passed_h)), float(HOUR_S)
    if last <= first + 1:
        # What was not observed of a clock hour is not idleness.
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
