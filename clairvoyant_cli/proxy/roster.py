"""The file that says who the clients are, while the daemon runs: read at its start, and again when asked.

Rule 1: a file that is wrong changes nothing: it stops a start, and a running daemon keeps what it has.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clairvoyant_cli.config import ServeConfig
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.proxy.access import read_clients, read_keys
from clairvoyant_cli.proxy.books import Books, plural
from clairvoyant_cli.proxy.clients import GOOD_KEY_CHARS, Clients

log = logging.getLogger("clairvoyant")


@dataclass(frozen=True, slots=True)
class Roster:
    """Where the clients are written down, None if nowhere; `exposed` says that others reach the daemon."""

    path: Path | None
    reader: Callable[[Path], Clients]
    exposed: bool

    def read(self) -> Clients:
        """Return the clients; ClairvoyantError if the file is wrong, or lets others in without keys."""
        clients = Clients() if self.path is None else self.reader(self.path)
        if self.exposed and not clients.keys:
            raise ClairvoyantError(
                f"{self.path} holds no API keys, and others reach this daemon; give each client a key",
                ExitCode.USAGE,
            )
        if self.exposed and clients.weak:
            log.warning(
                "keys of fewer than %d characters can be guessed over a network, so make longer ones for: %s",
                GOOD_KEY_CHARS,
                ", ".join(clients.weak),
            )
        return clients

    def read_again(self, take: Callable[[Clients], None], books: Books) -> str:
        """Read the file again and hand the clients to `take`; return what is said of it.

        ClairvoyantError, with everything left as it was, if that cannot be.
        """
        try:
            clients = self._read_again()
        except ClairvoyantError as error:
            books.event(logging.WARNING, f"the clients stay as they were: {error}")
            raise
        take(clients)
        known = len(clients.rules.keys() | set(clients.keys.values()))
        note = f"read {self.path} again: {plural(known, 'client')}, {plural(len(clients.keys), 'key')}"
        books.event(logging.INFO, note)
        return note

    def _read_again(self) -> Clients:
        if self.path is None:
            raise ClairvoyantError("there is no file to read again; start with --clients or --api-key-file")
        return self.read()


def roster_of(config: ServeConfig, *, exposed: bool) -> Roster:
    """Return where a configuration says that the clients are."""
    if config.clients is not None:
        return Roster(Path(config.clients), read_clients, exposed)
    path = None if config.api_key_file is None else Path(config.api_key_file)
    return Roster(path, read_keys, exposed)
