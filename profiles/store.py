"""Profiles in the database: kept, found, chosen, handed on."""

import logging
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec

from profiles.errors import ProfilesError
from profiles.records import MAX_SLOTS, Profile, Sample

log = logging.getLogger("clairvoyant")

EXPORT_FORMAT = 1

LATEST = 1e12
"""No profile bears a date farther from 1970, epoch seconds."""

UNREADABLE = (msgspec.DecodeError, ValueError, TypeError)
"""What decoding raises, beside RecursionError: for JSON of another kind, and for no text at all."""

Record = TypeVar("Record")


MAX_DOUBT = 0.5
"""A mu_short that may be half as long again, or half as long, is hardly known."""


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


def amend(connection: sqlite3.Connection, profile: Profile) -> None:
    """Keep more of what was found out under a profile's name; its date, samples and choice stay.

    ProfilesError if there is none of this name.
    """
    record = msgspec.json.encode(profile).decode()
    if not connection.execute(
        "UPDATE profiles SET record = ? WHERE name = ?", (record, profile.name)
    ).rowcount:
        raise ProfilesError(_no_such(connection, profile.name))


def every(connection: sqlite3.Connection) -> list[Kept]:
    """Return all profiles that can be read, the newest first."""
    rows = connection.execute(
        "SELECT name, record, chosen_at FROM profiles ORDER BY measured_at DESC, id DESC"
    ).fetchall()
    chosen = {name: chosen_at for name, _, chosen_at in rows}
    return [
        Kept(profile, at if isinstance(at := chosen[name], float) else None)
        for name, profile in _readable((name, record) for name, record, _ in rows)
    ]


def fingerprint(connection: sqlite3.Connection) -> tuple[object, ...]:
    """Return what differs once profiles have come, gone, been amended or been chosen; costs no decoding."""
    found: tuple[object, ...] = connection.execute(
        "SELECT COUNT(*), MAX(id), SUM(LENGTH(record)), COUNT(chosen_at), MAX(chosen_at) FROM profiles"
    ).fetchone()
    return found


def newest_profile(
    connection: sqlite3.Connection, model: str | None = None, *, now_s: float | None = None
) -> Profile | None:
    """Return the newest profile that can be read, of a model if one is named; None if there is none.

    A date after `now_s`, epoch seconds, is that of a wrong clock, and counts as the oldest.
    """
    rows = connection.execute(
        "SELECT name, record FROM profiles WHERE ? IS NULL OR model = ? "
        "ORDER BY measured_at > ?, measured_at DESC",
        (model, model, time.time() if now_s is None else now_s),
    )
    return next((profile for _, profile in _readable(rows)), None)


def fitting(
    connection: sqlite3.Connection,
    *,
    host: str,
    backend: str,
    place: str | None = None,
    now_s: float | None = None,
) -> list[Profile]:
    """Return the profiles of a backend on a host (by its key): the one chosen by hand, then the newest; but
    a newer one whose mu_short is hardly known does not go before one of its model that is surer.

    Without a `place`, those of all its places. For `now_s` see `newest_profile`.
    """
    rows = connection.execute(
        "SELECT name, record, chosen_at FROM profiles "
        "WHERE host = ? AND backend = ? AND (? IS NULL OR place = ?) "
        "ORDER BY chosen_at IS NULL, chosen_at DESC, measured_at > ?, measured_at DESC, id DESC",
        (host, backend, place, place, time.time() if now_s is None else now_s),
    ).fetchall()
    chosen = {name for name, _, chosen_at in rows if chosen_at is not None}
    found = [profile for _, profile in _readable((name, record) for name, record, _ in rows)]
    by_hand = [profile for profile in found if profile.name in chosen]
    return by_hand + _surer_first([profile for profile in found if profile.name not in chosen])


def _surer_first(newest_first: list[Profile]) -> list[Profile]:
    """Put each profile that is in doubt behind the newest of its model that is at least twice as sure."""
    ordered = list(newest_first)
    for number, doubtful in reversed(list(enumerate(newest_first))):
        doubt = _doubt(doubtful)
        surer = [
            each
            for each in newest_first[number + 1 :]
            if each.served.model == doubtful.served.model and each.served.place == doubtful.served.place
            if _doubt(each) <= doubt / 2
        ]
        if doubt > MAX_DOUBT and surer:
            ordered.remove(doubtful)
            ordered.insert(ordered.index(surer[0]) + 1, doubtful)
    return ordered


def _doubt(profile: Profile) -> float:
    return float("inf") if profile.mu_short_s is None else profile.mu_short_s.doubt


def named(connection: sqlite3.Connection, name: str) -> Profile:
    """Return a profile by its name; ProfilesError if there is none."""
    row = connection.execute("SELECT record FROM profiles WHERE name = ?", (name,)).fetchone()
    if row is None:
        raise ProfilesError(_no_such(connection, name))
    return _profile(name, row[0])


def samples_of(connection: sqlite3.Connection, name: str) -> list[Sample]:
    """Return a profile's samples in the order they were taken."""
    rows = connection.execute(
        "SELECT samples.record FROM samples JOIN profiles ON profiles.id = samples.profile "
        "WHERE profiles.name = ? ORDER BY samples.number",
        (name,),
    )
    try:
        return [_decoded(record, Sample) for (record,) in rows]
    except ValueError as error:
        raise ProfilesError(
            f"a sample of profile {name!r} cannot be read ({error}); measure anew: clairvoyant calibrate"
        ) from None


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
        parcel = _decoded(data, Parcel)
    except ValueError as error:
        raise ProfilesError(f"this is no exported profile: {error}") from None
    if parcel.format > EXPORT_FORMAT:
        raise ProfilesError(f"the profile was exported by a newer clairvoyant (format {parcel.format})")
    if fault := _fault(parcel.profile):
        raise ProfilesError(f"this is no exported profile: {fault}")
    return parcel


def _readable(rows: Iterable[tuple[str, str]]) -> Iterator[tuple[str, Profile]]:
    """Yield the profiles of rows with their names; one that cannot be read costs itself, and a warning."""
    for name, record in rows:
        try:
            yield name, _profile(name, record)
        except ProfilesError as error:
            log.warning("%s", error)


def _profile(name: str, record: object) -> Profile:
    try:
        profile = _decoded(record, Profile)
    except ValueError as error:
        fault = str(error)
    else:
        fault = _fault(profile)
    if fault:
        raise ProfilesError(
            f"the stored profile {name!r} cannot be read ({fault}); "
            "update, or remove it with: clairvoyant profiles rm"
        )
    return profile


def _decoded(data: Any, kind: type[Record]) -> Record:
    """Decode JSON from outside; ValueError, in one line, if it is something else."""
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    except UNREADABLE as error:
        raise ValueError(str(error)) from None


def _fault(profile: Profile) -> str:
    """Say why a profile cannot be one that was measured, "" if it can."""
    if not profile.name or not profile.name.isprintable():
        return "its name is empty, or cannot be printed"
    if not 1 <= profile.slots <= MAX_SLOTS:
        return f"its slots are not 1 to {MAX_SLOTS}"
    if not abs(profile.measured_at) <= LATEST:
        return "its date is none"
    mu_short_s = profile.mu_short_s.mean if profile.mu_short_s is not None else None
    for value in (mu_short_s, profile.tau_s, profile.decode_tokens_per_s, profile.prefill_tokens_per_s):
        if value is not None and value < 0.0:
            return "a time or a speed of it is below 0"
    for way in profile.continuations:
        if not 0 <= way.exact_repeats <= way.repeats <= way.trials:
            return f"its repeated trials of {way.way!r} cannot be"
        if not 0 <= way.exact <= way.trials or min(way.resume_s, way.warm_s) < 0.0:
            return f"its trials of {way.way!r} cannot be"
    return ""


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
