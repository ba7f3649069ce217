"""Saves, finds, selects and removes profiles."""

import logging
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec

from profiles.database import ProfilesError
from profiles.records import MAX_SLOTS, Profile, Sample

log = logging.getLogger("clairvoyant")

LATEST = 1e12  # latest valid date of a profile, epoch seconds
Record = TypeVar("Record")
MAX_DOUBT = 0.5  # a mu_short with a wider relative confidence interval counts as uncertain


@dataclass(frozen=True, slots=True)
class Kept:
    """A stored profile. `chosen_at` is when the user selected it, None if not."""

    profile: Profile
    chosen_at: float | None


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
    """Replace the record of a profile; date, samples and selection stay. ProfilesError if there is none."""
    record = msgspec.json.encode(profile).decode()
    if not connection.execute(
        "UPDATE profiles SET record = ? WHERE name = ?", (record, profile.name)
    ).rowcount:
        raise ProfilesError(_no_such(connection, profile.name))


def every(connection: sqlite3.Connection) -> list[Kept]:
    """Return all readable profiles, newest first."""
    rows = connection.execute(
        "SELECT name, record, chosen_at FROM profiles ORDER BY measured_at DESC, id DESC"
    )
    return list(_readable(rows))


def fingerprint(connection: sqlite3.Connection) -> tuple[object, ...]:
    """Return a value that changes whenever profiles do; decodes none."""
    found: tuple[object, ...] = connection.execute(
        "SELECT COUNT(*), MAX(id), SUM(LENGTH(record)), COUNT(chosen_at), MAX(chosen_at) FROM profiles"
    ).fetchone()
    return found


def fitting(connection: sqlite3.Connection, *, host: str, backend: str, place: str) -> list[Profile]:
    """Return the profiles of a backend on a host (its key): selected ones first, then newest first.

    An uncertain mu_short (see `MAX_DOUBT`) sorts behind an older, surer one of the same model.
    """
    rows = connection.execute(
        "SELECT name, record, chosen_at FROM profiles "
        "WHERE host = ? AND backend = ? AND place = ? "
        "ORDER BY chosen_at IS NULL, chosen_at DESC, measured_at > ?, measured_at DESC, id DESC",
        (host, backend, place, time.time()),
    )
    found = list(_readable(rows))
    by_hand = [kept.profile for kept in found if kept.chosen_at is not None]
    return by_hand + _surer_first([kept.profile for kept in found if kept.chosen_at is None])


def _surer_first(newest_first: list[Profile]) -> list[Profile]:
    """Move each uncertain profile behind the newest of its model that is at least twice as certain."""
    ordered = list(newest_first)
    for number, doubtful in reversed(list(enumerate(newest_first))):
        doubt, place = _doubt(doubtful), (doubtful.served.model, doubtful.served.place)
        older = (
            each for each in newest_first[number + 1 :] if (each.served.model, each.served.place) == place
        )
        surer = next((each for each in older if _doubt(each) <= doubt / 2), None)
        if doubt > MAX_DOUBT and surer is not None:
            ordered.remove(doubtful)
            ordered.insert(ordered.index(surer) + 1, doubtful)
    return ordered


def _doubt(profile: Profile) -> float:
    return float("inf") if profile.mu_short_s is None else profile.mu_short_s.doubt


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


def choose(connection: sqlite3.Connection, name: str) -> None:
    """Select a profile over the newest for its backend, model and host."""
    unchoose(connection, named(connection, name))
    connection.execute("UPDATE profiles SET chosen_at = ? WHERE name = ?", (time.time(), name))


def unchoose(connection: sqlite3.Connection, profile: Profile) -> None:
    """Undo the selection for the backend, model and host of a profile."""
    served = profile.served
    connection.execute(
        "UPDATE profiles SET chosen_at = NULL WHERE host = ? AND backend = ? AND place = ? AND model = ?",
        (profile.host.key, served.backend, served.place, served.model),
    )


def remove(connection: sqlite3.Connection, name: str) -> None:
    """Remove a profile and its samples; ProfilesError if there is none."""
    if not connection.execute("DELETE FROM profiles WHERE name = ?", (name,)).rowcount:
        raise ProfilesError(_no_such(connection, name))


def _readable(rows: Iterable[tuple[str, str, object]]) -> Iterator[Kept]:
    """Decode profiles (name, record, chosen_at); log and skip unreadable ones."""
    for name, record, chosen_at in rows:
        try:
            yield Kept(_profile(name, record), chosen_at if isinstance(chosen_at, float) else None)
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
        if (
            not 0 <= way.rounded <= way.trials - way.exact <= way.trials
            or min(way.resume_s, way.warm_s) < 0.0
        ):
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
