"""The requests that were served: counted, listed, judged, erased.

Rule 1: what is asked by default answers for a million rows in well under a second: totals come from the
tally, percentiles from the newest rows of an index, never from a scan of everything.
"""

import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from profiles.database import explained, open_database
from profiles.errors import ProfilesError
from profiles.ranking import pairs_in_order
from profiles.records import Finished
from profiles.states import client_hash, drop_states, note_forgetting, salt
from profiles.writer import COLUMNS

NEWEST = 10_000
"""Percentiles are those of so many newest answers of a class."""

PAIRED = 2_000
"""Ranking accuracy is judged on so many newest answers of a class."""

HOUR_S = 3600
CHECKPOINT_TRIES = 20
SELECT = f"SELECT {', '.join(COLUMNS)} FROM history"  # noqa: S608 - column names of our own


FOREVER = 1e12


@dataclass(frozen=True, slots=True)
class Span:
    """From when to when, epoch seconds; the end is not in it. `client` and `model` narrow it further."""

    since: float = 0.0
    until: float = FOREVER
    client: str | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Total:
    """Requests of one model that ended alike; `length_class` is "" where no whole answer came."""

    model: str
    outcome: str
    length_class: str
    requests: int
    tokens: int
    mean_wait_s: float
    mean_sojourn_s: float


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles of the newest `n` answers of a class, in seconds."""

    length_class: str
    n: int
    sojourn_p50_s: float
    sojourn_p95_s: float
    sojourn_p99_s: float
    wait_p50_s: float
    wait_p99_s: float


def totals(connection: sqlite3.Connection, span: Span) -> list[Total]:
    """Count requests by model, outcome and real class. A span's ends are taken to the hour."""
    rows = connection.execute(
        "SELECT model, outcome, length_class, SUM(requests), SUM(tokens), SUM(waited_s), SUM(sojourn_s) "
        "FROM tally WHERE hour >= ? AND hour <= ? AND (? IS NULL OR model = ?) "
        "GROUP BY model, outcome, length_class ORDER BY SUM(requests) DESC",
        (int(span.since // HOUR_S), int(span.until // HOUR_S), span.model, span.model),
    )
    return [
        Total(model, outcome, length_class, n, tokens, waited_s / n, sojourn_s / n)
        for model, outcome, length_class, n, tokens, waited_s, sojourn_s in rows
    ]


def spread(connection: sqlite3.Connection, length_class: str, span: Span) -> Spread | None:
    """Return the percentiles of a class within a span; None if it had no answers."""
    rows = connection.execute(
        "SELECT sojourn_s, waited_s FROM history INDEXED BY history_class "
        "WHERE length_class = ? AND finished_at >= ? AND finished_at < ? ORDER BY finished_at DESC LIMIT ?",
        (length_class, span.since, span.until, NEWEST),
    ).fetchall()
    if not rows:
        return None
    sojourns, waits = (sorted(column) for column in zip(*rows, strict=True))
    return Spread(
        length_class,
        len(rows),
        *(_rank(sojourns, fraction) for fraction in (0.50, 0.95, 0.99)),
        *(_rank(waits, fraction) for fraction in (0.50, 0.99)),
    )


def ranking_accuracy(connection: sqlite3.Connection, span: Span) -> float | None:
    """Return the share of (Short, Long) pairs in which the Long one had the higher P(Long), ties half.

    The measure of the paper (Clairvoyant, section 5.2), over the newest answers; None without both kinds.
    """
    short, long = (_p_long(connection, length_class, span) for length_class in ("short", "long"))
    return pairs_in_order(short, long)


def newest(connection: sqlite3.Connection, span: Span, limit: int) -> list[Finished]:
    """Return the newest requests of a span, the newest first; clients are given by their hashes."""
    where, values = _where(connection, span)
    rows = connection.execute(
        f"{SELECT} WHERE {where} ORDER BY finished_at DESC LIMIT ?",
        (*values, limit),
    )
    return [_finished(row) for row in rows]


def each(connection: sqlite3.Connection, span: Span) -> Iterator[Finished]:
    """Yield the requests of a span in the order they finished."""
    where, values = _where(connection, span)
    for row in connection.execute(f"{SELECT} WHERE {where} ORDER BY finished_at", values):
        yield _finished(row)


def tokens_since(connection: sqlite3.Connection, since: float) -> dict[bytes, int]:
    """Return the answer tokens of each client, by its hash, of what has ended since a moment."""
    rows = connection.execute(
        "SELECT client, TOTAL(tokens) FROM history INDEXED BY history_time "
        "WHERE finished_at >= ? AND tokens > 0 GROUP BY client",
        (since,),
    )
    return {bytes(client): int(tokens) for client, tokens in rows}


def recorded_prompts(connection: sqlite3.Connection, limit: int) -> list[tuple[str, int]]:
    """Return the newest prompts with the tokens of their answers, where prompts were recorded."""
    rows = connection.execute(
        "SELECT prompt, tokens FROM history "
        "WHERE prompt IS NOT NULL AND tokens IS NOT NULL AND outcome = 'completed' "
        "ORDER BY finished_at DESC LIMIT ?",
        (limit,),
    )
    return [(prompt, tokens) for prompt, tokens in rows]


def forget(path: Path, span: Span, *, states: bool) -> int:
    """Erase a span of history, and the learned states too if asked; return how many requests went.

    Nothing of it is left in the file or beside it: what is deleted is overwritten, the file is written
    anew without it, and the log of changes is emptied. ProfilesError if another process prevents that. A
    running daemon does not write it again: see `Writer`.
    """
    connection = open_database(path, create=False)
    try:
        with explained(path):
            connection.execute("BEGIN IMMEDIATE")
            where, values = _where(connection, span)
            gone = connection.execute(f"DELETE FROM history WHERE {where}", values).rowcount  # noqa: S608
            if states:
                drop_states(connection)
            note_forgetting(connection, states=states)
            connection.commit()
            connection.execute("VACUUM")
            _empty_log(connection, path)
    finally:
        connection.close()
    return gone


def _empty_log(connection: sqlite3.Connection, path: Path) -> None:
    for _ in range(CHECKPOINT_TRIES):
        if not connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
            return
        time.sleep(0.1)
    raise ProfilesError(
        f"erased, but {path}-wal still holds the old pages because another process reads them; "
        "stop it and run the command again"
    )


def _where(connection: sqlite3.Connection, span: Span) -> tuple[str, tuple[object, ...]]:
    where = "finished_at >= ? AND finished_at < ?"
    values: tuple[object, ...] = (span.since, span.until)
    if span.client is not None:
        hashed = client_hash(salt(connection), span.client)
        where, values = f"{where} AND client = ?", (*values, hashed)
    if span.model is not None:
        where, values = f"{where} AND model = ?", (*values, span.model)
    return where, values


def _finished(row: tuple[object, ...]) -> Finished:
    finished = Finished(*row)  # type: ignore[arg-type]
    client = finished.client
    return replace(finished, client=client.hex()[:12] if isinstance(client, bytes) else client)


def _p_long(connection: sqlite3.Connection, length_class: str, span: Span) -> list[float]:
    rows = connection.execute(
        "SELECT p_long FROM history WHERE length_class = ? AND finished_at >= ? AND finished_at < ? "
        "ORDER BY finished_at DESC LIMIT ?",
        (length_class, span.since, span.until, PAIRED),
    )
    return [p_long for (p_long,) in rows]


def _rank(ordered: list[float], fraction: float) -> float:
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]
