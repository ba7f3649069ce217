"""Saves, finds and removes profiles."""

import logging
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from profiles.database import ProfilesError
from profiles.records import MAX_SLOTS, Profile, Sample

log = logging.getLogger("clairvoyant")

LATEST = 1e12  # latest valid date of a profile, epoch seconds
Record = TypeVar("Record")


def save(connection: sqlite3.Connection, profile: Profile, samples: Sequence[Sample] = ()) -> Profile:
    """Store a profile and its samples; a name in use gets a number appended."""
    profile = replace(profile, name=_free_name(connection, profile.name))
    served = profile.served
    cursor = connection.execute(
        "INSERT INTO profiles (name, backend, place, model, host, measured_at, record) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            profile.name,
            served.backend,
            served.place,
            served.model,
            profile.host.key,
            profile.measured_at,
            msgspec.json.encode(profile).decode(),
        ),
    )
    connection.executemany(
        "INSERT INTO samples VALUES (?, ?, ?)",
        [(cursor.lastrowid, n, msgspec.json.encode(sample).decode()) for n, sample in enumerate(samples)],
    )
    return profile


def amend(connection: sqlite3.Connection, profile: Profile) -> None:
    """Replace the record of a profile; date and samples stay. ProfilesError if there is none."""
    record = msgspec.json.encode(profile).decode()
    if not connection.execute(
        "UPDATE profiles SET record = ? WHERE name = ?", (record, profile.name)
    ).rowcount:
        raise ProfilesError(_no_such(connection, profile.name))


def every(connection: sqlite3.Connection) -> list[Profile]:
    """Return all readable profiles, newest first."""
    rows = connection.execute("SELECT name, record FROM profiles ORDER BY measured_at DESC, id DESC")
    return list(_readable(rows))


def fingerprint(connection: sqlite3.Connection) -> tuple[object, ...]:
    """Return a value that changes whenever profiles do; decodes none."""
    found: tuple[object, ...] = connection.execute(
        "SELECT COUNT(*), MAX(id), SUM(LENGTH(record)) FROM profiles"
    ).fetchone()
    return found


def fitting(connection: sqlite3.Connection, *, host: str, backend: str, place: str) -> list[Profile]:
    """Return the profiles of a backend on a host (its key), newest first. Dates in the future come from a
    wrong clock and sort last.
    """
    rows = connection.execute(
        "SELECT name, record FROM profiles "
        "WHERE host = ? AND backend = ? AND place = ? "
        "ORDER BY measured_at > ?, measured_at DESC, id DESC",
        (host, backend, place, time.time()),
    )
    return list(_readable(rows))


def named(connection: sqlite3.Connection, name: str) -> Profile:
    """Return a profile by name; ProfilesError if there is none."""
    row = connection.execute("SELECT record FROM profiles WHERE name = ?", (name,)).fetchone()
    if row is None:
        raise ProfilesError(_no_such(connection, name))
    return _profile(name, row[0])


def samples_of(connection: sqlite3.Connection, name: str) -> list[Sample]:
    """Return a profile's samples in order."""
    rows = connection.execute(
        "SELECT samples.record FROM samples JOIN profiles ON profiles.id = samples.profile "
        "WHERE profiles.name = ? ORDER BY samples.number",
        (name,),
    )
    try:
        return [_decoded(record, Sample) for (record,) in rows]
    except ValueError as error:
        raise ProfilesError(
            f"a sample of profile {name!r} is unreadable ({error}); measure again: clairvoyant calibrate"
        ) from None


def remove(connection: sqlite3.Connection, name: str) -> None:
    """Remove a profile and its samples; ProfilesError if there is none."""
    if not connection.execute("DELETE FROM profiles WHERE name = ?", (name,)).rowcount:
        raise ProfilesError(_no_such(connection, name))


def _readable(rows: Iterable[tuple[str, str]]) -> Iterator[Profile]:
    """Decode profiles (name, record); log and skip unreadable ones."""
    for name, record in rows:
        try:
            yield _profile(name, record)
        except ProfilesError as error:
            log.warning("%s", error)


def _profile(name: str, record: object) -> Profile:
    try:
        return _checked(_decoded(record, Profile))
    except ValueError as error:
        raise ProfilesError(
            f"the stored profile {name!r} is unreadable ({error}); "
            "update, or remove it with: clairvoyant profiles rm"
        ) from None


def _decoded(data: Any, kind: type[Record]) -> Record:
    """Decode untrusted JSON; ValueError, in one line, if it is invalid."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (RecursionError, UnicodeDecodeError) as error:
        what = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else "nested too deeply"
        raise ValueError(what) from None
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        raise ValueError(str(error)) from None


def _checked(profile: Profile) -> Profile:
    """Return the profile; ValueError if a value is invalid."""
    mu_short_s = profile.mu_short_s.mean if profile.mu_short_s is not None else None
    measured = (mu_short_s, profile.tau_s, profile.decode_tokens_per_s, profile.prefill_tokens_per_s)
    if not profile.name or not profile.name.isprintable():
        raise ValueError("the name is empty or not printable")
    if not 1 <= profile.slots <= MAX_SLOTS:
        raise ValueError(f"the slots are not 1 to {MAX_SLOTS}")
    if not abs(profile.measured_at) <= LATEST:
        raise ValueError("the date is out of range")
    if any(value is not None and value < 0.0 for value in measured):
        raise ValueError("a time or speed is negative")
    for way in profile.continuations:
        if not 0 <= way.exact_repeats <= way.repeats <= way.trials:
            raise ValueError(f"the repeated trials of {way.way!r} are inconsistent")
        if not 0 <= way.rounded <= way.trials - way.exact <= way.trials or way.resume_s < 0.0:
            raise ValueError(f"the trials of {way.way!r} are inconsistent")
    return profile


def _free_name(connection: sqlite3.Connection, wanted: str) -> str:
    taken = {name for (name,) in connection.execute("SELECT name FROM profiles")}
    name, number = wanted, 2
    while name in taken:
        name, number = f"{wanted}-{number}", number + 1
    return name


def _no_such(connection: sqlite3.Connection, name: str) -> str:
    known = [known for (known,) in connection.execute("SELECT name FROM profiles ORDER BY id DESC LIMIT 5")]
    there = f"there are {', '.join(known)}" if known else "there are none; run: clairvoyant calibrate"
    return f"no profile {name!r}; {there}"
