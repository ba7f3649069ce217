"""The database as a daemon uses it: profiles to start from, a writer for history and learned state."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from profiles.database import ProfilesError, reading, writing
from profiles.history import Span, incidents_since, newest, served_since
from profiles.host import this_host
from profiles.records import Finished, Incident, Profile, ServedRequest, place_of
from profiles.states import client_hash, load_state, salt
from profiles.store import amend, every, fitting, save
from profiles.writer import Bounds, Writer

log = logging.getLogger("clairvoyant")

OLD_DAYS = 180.0


class Ledger(Writer):
    """A daemon's database, until `close`. Only the constructor raises ProfilesError."""

    def __init__(
        self,
        path: Path,
        *,
        bounds: Bounds | None = None,
        started: Callable[[int], float] = lambda pid: 0.0,
    ) -> None:
        """Open the database. `started` returns when a process started, 0 if it does not run."""
        self._host = this_host()
        super().__init__(path, bounds, started)
        self._seen_profiles = self.stored_profiles

    def profiles(self, backend: str, url: str) -> list[Profile]:
        """Return the profiles of a server on this machine, the one to use first."""
        with self._surviving(), reading(self.path) as connection:
            return fitting(connection, host=self._host.key, backend=backend, place=place_of(url))
        return []

    def stale(self, profile: Profile, version: str) -> str:
        """Return why a profile may be out of date, "" if it is not."""
        host, served = profile.host, profile.served
        if host.key != self._host.key:
            return "it was measured on another machine"
        if host.gpu_driver != self._host.gpu_driver:
            return f"GPU driver {host.gpu_driver} then, {self._host.gpu_driver} now"
        if version and served.version and version != served.version:
            return f"{served.backend} {served.version} then, {version} now"
        days = (time.time() - profile.measured_at) / 86_400
        if days < -1:
            return "its date is in the future: the clock was wrong then, or is now"
        return f"it is {days:.0f} days old" if days > OLD_DAYS else ""

    def served_since(self, at: float) -> list[ServedRequest]:
        """Return the requests that have ended since a time, epoch seconds."""
        with self._surviving(), reading(self.path) as connection:
            return served_since(connection, at)
        return []

    def newest(self, since: float, limit: int, names: Iterable[str]) -> list[Finished]:
        """Return the newest requests since a time, in order. A client is a hash, unless it has one of the
        `names`, or that of a program.
        """
        with self._surviving(), reading(self.path) as connection:
            rows, key = newest(connection, Span(since), limit)[::-1], salt(connection)
            known = {*names, *(row.program for row in rows)}
            by_hash = {client_hash(key, name).hex()[: len(rows[0].client)]: name for name in known if rows}
            return [replace(row, client=by_hash.get(row.client, row.client)) for row in rows]
        return []

    def incidents_since(self, at: float) -> list[Incident]:
        """Return the incidents that lasted until a time, epoch seconds, or began later."""
        with self._surviving(), reading(self.path) as connection:
            return incidents_since(connection, at)
        return []

    def load(self, name: str) -> bytes | None:
        """Return the state stored under a name; None if there is none."""
        with self._surviving(), reading(self.path) as connection:
            return load_state(connection, name)
        return None

    def keep(self, profile: Profile) -> None:
        """Store a profile of this machine, or replace one of the same name and date; waits for the disk."""
        with self._surviving(), writing(self.path) as connection:
            if any(kept.measured_at == profile.measured_at for kept in every(connection)):
                amend(connection, profile)
            else:
                save(connection, replace(profile, host=self._host))

    def forgotten(self) -> bool:
        """Return whether another process has erased learned state since the last call, seconds late at
        most. If so, the caller must start learning from scratch.
        """
        self.look()
        before, self.known_generation = self.known_generation, self.generation
        return self.known_generation != before

    def profiles_changed(self) -> bool:
        """Return whether another process has changed profiles since the last call. Call `forgotten` too: it
        updates the answer.
        """
        before, self._seen_profiles = self._seen_profiles, self.stored_profiles
        return self._seen_profiles != before

    @contextmanager
    def _surviving(self) -> Iterator[None]:
        # A read error loses what was stored, but does not stop the service.
        try:
            yield
        except ProfilesError as error:
            log.warning("%s", error)
