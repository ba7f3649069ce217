"""The requests that were served: counted, listed, judged, erased.

Rule 1: what is asked by default answers for a million rows in well under a second: totals come from the
tally, percentiles from the newest rows of an index, never from a scan of everything.
"""

import logging
import sqlite3
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any, get_args, get_type_hints

from profiles.clock_repair import JUMP_S, first_since_start, settle
from profiles.clocks import Clocks, Moment, system_clocks
from profiles.database import explained, open_database
from profiles.errors import ProfilesError
from profiles.percentiles import percentile
from profiles.ranking import pairs_in_order
from profiles.records import Finished
from profiles.states import client_hash, drop_states, note_forgetting, salt
from profiles.writer import CLIENT, COLUMNS

log = logging.getLogger("clairvoyant")

NEWEST = 10_000
"""Percentiles are those of so many newest answers of a class."""

PAIRED = 2_000
"""Ranking accuracy is judged on so many newest answers of a class."""

HOUR_S = 3600
CHECKPOINT_TRIES = 20
SELECT = f"SELECT {', '.join(COLUMNS)} FROM history"  # noqa: S608 - column names of our own


ALWAYS, FOREVER = -1e12, 1e12
"""Before and after all times: a clock that was set back dates what was before it to before 1970."""

LAST_ROW = 2**63 - 1

_HINTS = get_type_hints(Finished)
_KINDS = tuple(bytes if name == "client" else get_args(_HINTS[name]) or _HINTS[name] for name in COLUMNS)
"""What a row holds, column by column, unless it is damaged: SQLite keeps any value in any column."""


@dataclass(frozen=True, slots=True)
class Span:
    """From when to when, epoch seconds; the end is not in it. `client` and `model` narrow it further."""

    since: float = ALWAYS
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
    """Count requests by model, outcome and real class. A span's ends are taken to the hour, and a client's
    are those that are still remembered one by one.
    """
    if span.client is not None:
        where, values = _where(connection, span)
        rows = connection.execute(
            "SELECT model, outcome, length_class, COUNT(*), TOTAL(tokens), SUM(waited_s), "  # noqa: S608
            "SUM(sojourn_s) "
            f"FROM history WHERE {where} GROUP BY model, outcome, length_class ORDER BY COUNT(*) DESC",
            values,
        )
        return _totals(rows)
    rows = connection.execute(
        "SELECT model, outcome, length_class, SUM(requests), SUM(tokens), SUM(waited_s), SUM(sojourn_s) "
        "FROM tally WHERE hour >= ? AND hour <= ? AND (? IS NULL OR model = ?) "
        "GROUP BY model, outcome, length_class ORDER BY SUM(requests) DESC",
        (int(span.since // HOUR_S), int(span.until // HOUR_S), span.model, span.model),
    )
    return _totals(rows)


def _totals(rows: Iterable[tuple[Any, ...]]) -> list[Total]:
    return [
        Total(model, outcome, length_class, n, int(tokens), waited_s / n, sojourn_s / n)
        for model, outcome, length_class, n, tokens, waited_s, sojourn_s in rows
        if isinstance(n, int)
        and n > 0
        and all(isinstance(each, str) for each in (model, outcome, length_class))
        and all(isfinite(each) for each in (tokens, waited_s, sojourn_s))
    ]


def spread(connection: sqlite3.Connection, length_class: str, span: Span) -> Spread | None:
    """Return the percentiles of a class within a span; None if it had no answers."""
    where, values = _where(connection, span)
    rows = connection.execute(
        "SELECT sojourn_s, waited_s FROM history INDEXED BY history_class "  # noqa: S608 - names of our own
        f"WHERE length_class = ? AND {where} ORDER BY finished_at DESC LIMIT ?",
        (length_class, *values, NEWEST),
    )
    sound = [row for row in rows if isinstance(row[0], float) and isinstance(row[1], float)]
    if not sound:
        return None
    sojourns, waits = (sorted(column) for column in zip(*sound, strict=True))
    return Spread(
        length_class,
        len(sound),
        *(percentile(sojourns, share) for share in (0.50, 0.95, 0.99)),
        *(percentile(waits, share) for share in (0.50, 0.99)),
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
        (*values, min(limit, LAST_ROW)),
    )
    return list(_sound(rows))


def each(connection: sqlite3.Connection, span: Span) -> Iterator[Finished]:
    """Yield the requests of a span in the order they finished."""
    where, values = _where(connection, span)
    yield from _sound(connection.execute(f"{SELECT} WHERE {where} ORDER BY finished_at", values))


def tokens_since(connection: sqlite3.Connection, since: float) -> dict[bytes, int]:
    """Return the answer tokens of each client, by its hash, of what has ended since a moment."""
    rows = connection.execute(
        "SELECT client, TOTAL(tokens) FROM history INDEXED BY history_time "
        "WHERE finished_at >= ? AND tokens > 0 GROUP BY client",
        (since,),
    )
    return {
        client: int(tokens)
        for client, tokens in rows
        if isinstance(client, bytes) and isfinite(tokens)  # of a damaged row, nothing is counted
    }


def recorded_prompts(connection: sqlite3.Connection, limit: int) -> list[tuple[str, int]]:
    """Return the newest prompts with the tokens of their answers, where prompts were recorded."""
    rows = connection.execute(
        "SELECT prompt, tokens FROM history "
        "WHERE prompt IS NOT NULL AND tokens IS NOT NULL AND outcome = 'completed' "
        "ORDER BY finished_at DESC LIMIT ?",
        (limit,),
    )
    return [row for row in rows if isinstance(row[0], str) and isinstance(row[1], int)]


@dataclass(frozen=True, slots=True)
class Erased:
    """What has been erased: so many requests, which bore times from `first_at` to `last_at`, epoch seconds.

    Of these, `misdated` bore times outside the span: a clock was wrong when they were recorded.
    """

    requests: int
    misdated: int = 0
    first_at: float = 0.0
    last_at: float = 0.0


def forget(path: Path, span: Span, *, states: bool, clocks: Clocks | None = None) -> Erased:
    """Erase a span of history, and the learned states too if asked; return what went.

    Nothing of it is left in the file or beside it: what is deleted is overwritten, the file is written
    anew without it, and the log of changes is emptied. ProfilesError if another process prevents that. A
    running daemon does not write it again: see `Writer`.

    Where times do not say what belongs to the span, it errs on the side of erasing: see `_erasable`.
    """
    clocks = clocks or system_clocks()
    connection = open_database(path, create=False)
    try:
        with explained(path):
            while (erased := _erase(connection, span, states, clocks)) is None:
                pass
            connection.execute("VACUUM")
            _empty_log(connection, path)
    finally:
        connection.close()
    return erased


def _erase(connection: sqlite3.Connection, span: Span, states: bool, clocks: Clocks) -> Erased | None:
    """Erase a span if times are true to the clock of now; else bring some of them there, and return None."""
    connection.execute("BEGIN IMMEDIATE")
    now, erased = clocks.now(), None
    if settle(connection, now):
        # Recorded times are as exact as that.
        span = replace(span, since=span.since - JUMP_S)
        where, values = _erasable(connection, span, now)
        erased = Erased(
            *connection.execute(
                "SELECT COUNT(*), "  # noqa: S608
                "COALESCE(SUM(finished_at < ? OR finished_at >= ? OR finished_at > ?), 0), "
                # Adding a number makes one of a damaged row's text.
                "COALESCE(MIN(finished_at + 0.0), 0), COALESCE(MAX(finished_at + 0.0), 0) "
                f"FROM history WHERE {where}",
                (span.since, span.until, now.wall_s, *values),
            ).fetchone()
        )
        connection.execute(f"DELETE FROM history WHERE {where}", values)  # noqa: S608
        if states:
            drop_states(connection)
        note_forgetting(connection, now, states=states)
    connection.commit()
    return erased


def _erasable(connection: sqlite3.Connection, span: Span, now: Moment) -> tuple[str, tuple[object, ...]]:
    """Select the requests of a span, and those that may be of it though they bear other times.

    Rows are in order of writing, so their neighbours say what a wrong clock did not: erased is all between
    the last row that is older than the span and the first that is younger. A time that is still to come says
    nothing; it is spared where it was before the machine started, and the span begins after that.
    """
    first, end = (_first_row(connection, at, now.wall_s) for at in (span.since, span.until))
    older = connection.execute(
        "SELECT id FROM history WHERE finished_at < ? AND id < ? ORDER BY finished_at DESC, id DESC LIMIT 1",
        (span.since, first),
    ).fetchone()
    proven = first_since_start(connection, now) if span.since >= now.offset_s else 0
    dated = "finished_at >= ? AND finished_at < ?"
    spared = "finished_at > ? AND id < ?"
    narrowed, by = _narrowed(connection, span)
    where = f"({dated} OR id > ? AND id < ?) AND NOT ({spared}){narrowed}"
    return where, (span.since, span.until, older[0] if older else 0, end, now.wall_s, proven, *by)


def _first_row(connection: sqlite3.Connection, since: float, now_s: float) -> int:
    """Return the first row that bears a time from `since` to now; `LAST_ROW` where there is none."""
    (row,) = connection.execute(
        "SELECT MIN(id) FROM history WHERE finished_at >= ? AND finished_at <= ?", (since, now_s)
    ).fetchone()
    return LAST_ROW if row is None else int(row)


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
    narrowed, by = _narrowed(connection, span)
    return f"finished_at >= ? AND finished_at < ?{narrowed}", (span.since, span.until, *by)


def _narrowed(connection: sqlite3.Connection, span: Span) -> tuple[str, tuple[object, ...]]:
    where = ""
    values: tuple[object, ...] = ()
    if span.client is not None:
        hashed = client_hash(salt(connection), span.client)
        where, values = f"{where} AND client = ?", (*values, hashed)
    if span.model is not None:
        where, values = f"{where} AND model = ?", (*values, span.model)
    return where, values


def _sound(rows: Iterable[tuple[Any, ...]]) -> Iterator[Finished]:
    """Yield the requests in rows, clients by their hashes; a damaged one is left out, and counted."""
    damaged = 0
    for row in rows:
        if all(map(isinstance, row, _KINDS)):
            yield Finished(*(*row[:CLIENT], row[CLIENT].hex()[:12], *row[CLIENT + 1 :]))
        else:
            damaged += 1
    if damaged:
        log.warning("history: left out, because they are damaged: %d", damaged)


def _p_long(connection: sqlite3.Connection, length_class: str, span: Span) -> list[float]:
    where, values = _where(connection, span)
    rows = connection.execute(  # names of our own
        f"SELECT p_long FROM history WHERE length_class = ? AND {where} ORDER BY finished_at DESC LIMIT ?",  # noqa: S608
        (length_class, *values, PAIRED),
    )
    return [p_long for (p_long,) in rows if isinstance(p_long, float)]
