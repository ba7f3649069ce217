"""Profiles in the database: kept, found, chosen, handed on."""

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from profiles.errors import ProfilesError
from profiles.records import Profile, Sample

EXPORT_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Kept:
    """A profile as it is kept. `chosen_at` is when it was chosen by hand, None if it was not."""

    profile: Profile
    chosen_at: float | None


@dataclass(frozen=True, slots=True)
class Parcel:
    """A profile with its samples, as it travels from machine to machine."""

    profile: Profile
    samples: tuple[Sample, ...]
    format: int = EXPORT_FORMAT


def save(connection: sqlite3.Connection, profile: Profile, samples: Sequence[Sample] = ()) -> Profile:
    """Keep a profile and its samples; one of a name that is taken gets a number behind it."""
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


def every(connection: sqlite3.Connection) -> list[Kept]:
    """Return all profiles, the newest first."""
    rows = connection.execute("SELECT record, chosen_at FROM profiles ORDER BY measured_at DESC, id DESC")
    return [Kept(_profile(record), chosen_at) for record, chosen_at in rows]


def newest_profile(
    connection: sqlite3.Connection, model: str | None = None, *, now_s: float | None = None
) -> Profile | None:
    """Return the newest profile, of a model if one is named; None if there is none.

    A date after `now_s`, epoch seconds, is that of a wrong clock, and counts as the oldest.
    """
    row = connection.execute(
        "SELECT record FROM profiles WHERE ? IS NULL OR model = ? "
        "ORDER BY measured_at > ?, measured_at DESC LIMIT 1",
        (model, model, time.time() if now_s is None else now_s),
    ).fetchone()
    return None if row is None else _profile(row[0])


def fitting(
    connection: sqlite3.Connection,
    *,
    host: str,
    backend: str,
    place: str | None = None,
    now_s: float | None = None,
) -> list[Profile]:
    """Return the profiles of a backend on a host (by its key): the one chosen by hand, then the newest.

    Without a `place`, those of all its places. For `now_s` see `newest_profile`.
    """
    rows = connection.execute(
        "SELECT record FROM profiles WHERE host = ? AND backend = ? AND (? IS NULL OR place = ?) "
        "ORDER BY chosen_at IS NULL, chosen_at DESC, measured_at > ?, measured_at DESC, id DESC",
        (host, backend, place, place, time.time() if now_s is None else now_s),
    )
    return [_profile(record) for (record,) in rows]


def named(connection: sqlite3.Connection, name: str) -> Profile:
    """Return a profile by its name; ProfilesError if there is none."""
    row = connection.execute("SELECT record FROM profiles WHERE name = ?", (name,)).fetchone()
    if row is None:
        raise ProfilesError(_no_such(connection, name))
    return _profile(row[0])


def samples_of(connection: sqlite3.Connection, name: str) -> list[Sample]:
    """Return a profile's samples in the order they were taken."""
    rows = connection.execute(
        "SELECT samples.record FROM samples JOIN profiles ON profiles.id = samples.profile "
        "WHERE profiles.name = ? ORDER BY samples.number",
        (name,),
    )
    return [msgspec.json.decode(record, type=Sample) for (record,) in rows]


def choose(connection: sqlite3.Connection, name: str) -> Profile:
    """Let `serve` take this profile rather than the newest for its backend, model and host."""
    profile = named(connection, name)
    unchoose(connection, profile)
    connection.execute("UPDATE profiles SET chosen_at = ? WHERE name = ?", (time.time(), name))
    return profile


def unchoose(connection: sqlite3.Connection, profile: Profile) -> None:
    """Let `serve` take the newest profile again for the backend, model and host of this one."""
    served = profile.served
    connection.execute(
        "UPDATE profiles SET chosen_at = NULL WHERE host = ? AND backend = ? AND place = ? AND model = ?",
        (profile.host.key, served.backend, served.place, served.model),
    )


def remove(connection: sqlite3.Connection, name: str) -> None:
    """Remove a profile and its samples; ProfilesError if there is none of this name."""
    if not connection.execute("DELETE FROM profiles WHERE name = ?", (name,)).rowcount:
        raise ProfilesError(_no_such(connection, name))


def export(connection: sqlite3.Connection, name: str) -> bytes:
    """Return a profile and its samples as JSON."""
    parcel = Parcel(named(connection, name), tuple(samples_of(connection, name)))
    return msgspec.json.format(msgspec.json.encode(parcel), indent=2)


def unpack(data: bytes) -> Parcel:
    """Read what `export` wrote; ProfilesError if it is something else."""
    try:
        parcel = msgspec.json.decode(data, type=Parcel)
    except msgspec.DecodeError as error:
        raise ProfilesError(f"this is no exported profile: {error}") from None
    if parcel.format > EXPORT_FORMAT:
        raise ProfilesError(f"the profile was exported by a newer clairvoyant (format {parcel.format})")
    if not parcel.profile.name or parcel.profile.slots < 1:
        raise ProfilesError("this is no exported profile: it lacks a name or has no slots")
    return parcel


def _profile(record: str) -> Profile:
    try:
        return msgspec.json.decode(record, type=Profile)
    except msgspec.DecodeError as error:
        raise ProfilesError(f"a stored profile cannot be read ({error}); remove it or update") from None


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
