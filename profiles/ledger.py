"""What a daemon remembers with: profiles to start from, a writer to record through."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from profiles.clocks import Clocks, system_clocks
from profiles.database import reading
from profiles.errors import ProfilesError
from profiles.history import tokens_since
from profiles.host import this_host
from profiles.records import Finished, Profile, place_of
from profiles.states import client_hash, load_state, salt
from profiles.store import fitting, named
from profiles.writer import Bounds, Writer

log = logging.getLogger("clairvoyant")

OLD_DAYS = 180.0


class Ledger:
    """The database as a daemon uses it, until `close`. Raises ProfilesError if it cannot be used."""

    def __init__(
        self,
        path: Path,
        *,
        profile: str | None = None,
        bounds: Bounds | None = None,
        clocks: Clocks | None = None,
    ) -> None:
        """Open it. `profile` names the profile to use rather than the newest that fits."""
        self.path = path
        self._clocks = clocks or system_clocks()
        self._host = this_host()
        self._records = bounds is None or bounds.rows > 0
        self._writer = Writer(path, bounds, self._clocks)
        self._generation = self._writer.generation
        self._profiles = self._writer.profiles
        self._named: Profile | None = None
        if profile is not None:
            with reading(path) as connection:
                self._named = named(connection, profile)

    def profiles(self, backend: str, url: str) -> list[Profile]:
        """Return what was measured of a server on this machine: the one to use first."""
        found: list[Profile] = []
        with self._surviving(), reading(self.path) as connection:
            now_s = self._clocks.wall()
            found = fitting(
                connection, host=self._host.key, backend=backend, place=place_of(url), now_s=now_s
            )
        return found if self._named is None else [self._named, *found]

    def stale(self, profile: Profile, version: str) -> str:
        """Say why a profile may no longer hold, "" if it does."""
        host, served = profile.host, profile.served
        if host.key != self._host.key:
            return "it was measured on another machine"
        if host.gpu_driver != self._host.gpu_driver:
            return f"GPU driver {host.gpu_driver} then, {self._host.gpu_driver} now"
        if version and served.version and version != served.version:
            return f"{served.backend} {served.version} then, {version} now"
        days = (self._clocks.wall() - profile.measured_at) / 86_400
        if days < -1:
            return "it bears a date that is still to come: this machine's clock was wrong then, or is now"
        return f"it is {days:.0f} days old" if days > OLD_DAYS else ""

    def finished(self, record: Finished) -> None:
        """Record a request that has ended; returns at once."""
        if self._records:
            self._writer.put(record)

    def answered_since(self, at: float) -> Callable[[str], int]:
        """Return what tells of a client how many answer tokens it had from a moment on, epoch seconds."""
        had: dict[bytes, int] = {}
        key = b""
        with self._surviving(), reading(self.path) as connection:
            had, key = tokens_since(connection, at), salt(connection)
        return lambda client: had.get(client_hash(key, client), 0) if had else 0

    def load(self, name: str) -> bytes | None:
        """Return a state kept under a name."""
        with self._surviving(), reading(self.path) as connection:
            return load_state(connection, name)
        return None

    def save(self, name: str, state: bytes) -> None:
        """Keep a state under a name; returns at once."""
        self._writer.save(name, state, self._generation)

    def forgotten(self) -> bool:
        """Say whether what was learned has been erased by another process since the last time this was
        asked, some seconds late at most; what is saved is then to be learned afresh. Returns at once.
        """
        self._writer.look()
        before, self._generation = self._generation, self._writer.generation
        return self._generation != before

    def measured_anew(self) -> bool:
        """Say whether another process has measured, chosen or removed profiles since the last time this was
        asked; some seconds late at most, if `forgotten` is asked as well. Returns at once.
        """
        before, self._profiles = self._profiles, self._writer.profiles
        return self._profiles != before

    @contextmanager
    def _surviving(self) -> Iterator[None]:
        # What cannot be read costs what was remembered, not the service.
        try:
            yield
        except ProfilesError as error:
            log.warning("%s", error)

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()
