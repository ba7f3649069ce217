"""Who is let in, as a configuration says: the file of the clients, read at the start and again when asked,
and the walls against web pages.

Rule 1: a file that is wrong changes nothing: it stops a start, and a running daemon keeps what it has.
Rule 2: a daemon that asks for keys does not stop asking while it runs: a file without any would let in
everybody whom it kept out a moment ago, and is far more often an emptied file than a wish.
"""

import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clairvoyant_cli.config import ServeConfig
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.protocols.printable import plural
from clairvoyant_cli.proxy.access.clients import GOOD_KEY_CHARS, Clients
from clairvoyant_cli.proxy.access.keys import Access, read_clients, read_keys, read_secret
from clairvoyant_cli.proxy.access.origins import Walls, host_name, origin_patterns
from clairvoyant_cli.proxy.journal import Journal

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
        if clients.unproven:
            log.warning(
                "without keys clients are known by their addresses, so rules in %s never apply to: %s; give "
                "each a key",
                self.path,
                ", ".join(clients.unproven),
            )
        if self.exposed and clients.weak:
            log.warning(
                "keys of fewer than %d characters can be guessed over a network, so make longer ones for: %s",
                GOOD_KEY_CHARS,
                ", ".join(clients.weak),
            )
        return clients

    def read_again(self, before: Clients, take: Callable[[Clients], None], journal: Journal) -> str:
        """Read the file again and hand the clients to `take`; return what is said of it.

        `before` are those in force. ClairvoyantError, with everything left as it was, if that cannot be.
        """
        try:
            clients = self._read_again(before)
        except ClairvoyantError as error:
            journal.event(logging.WARNING, f"the clients stay as they were: {error}")
            raise
        take(clients)
        known = len(clients.rules.keys() | set(clients.keys.values()))
        note = f"read {self.path} again: {plural(known, 'client')}, {plural(len(clients.keys), 'key')}"
        journal.event(logging.INFO, note)
        return note

    def _read_again(self, before: Clients) -> Clients:
        if self.path is None:
            raise ClairvoyantError("there is no file to read again; start with --clients or --api-key-file")
        clients = self.read()
        if before.keys and not clients.keys:
            raise ClairvoyantError(
                f"{self.path} holds no API keys any more, which would let everybody in; restart to do so"
            )
        return clients


def roster_of(config: ServeConfig, *, exposed: bool) -> Roster:
    """Return where a configuration says that the clients are."""
    if config.clients is not None:
        return Roster(Path(config.clients), read_clients, exposed)
    path = None if config.api_key_file is None else Path(config.api_key_file)
    return Roster(path, read_keys, exposed)


def access_of(config: ServeConfig, roster: Roster) -> Access:
    """Return who is let in at the start; ClairvoyantError if a setting or a file is wrong, or unsafe."""
    if roster.exposed and (roster.path is None or config.admin_token_file is None):
        raise ClairvoyantError(
            f"listening on {config.listen} lets others in; give --admin-token-file, and --api-key-file or "
            "--clients with keys; or listen on 127.0.0.1",
            ExitCode.USAGE,
        )
    clients = roster.read()
    token = None
    if config.admin_token_file is not None:
        token = read_secret(Path(config.admin_token_file), "admin token").encode()
    return Access(clients, token, _walls(config))


def _walls(config: ServeConfig) -> Walls:
    hosts = [name.lower() for name in _listed(config.allow_host)]
    for host in hosts:
        if host_name(host) != host:
            raise ClairvoyantError(
                f"allow_host takes names without port or scheme, by commas; {host!r} is none", ExitCode.USAGE
            )
    try:
        patterns = origin_patterns(_listed(config.allow_origin))
    except ValueError as error:
        raise ClairvoyantError(
            f"allow_origin takes origins such as https://chat.example or app-scheme://*, by commas; "
            f"{str(error)!r} is none",
            ExitCode.USAGE,
        ) from None
    return Walls(frozenset((*hosts, socket.gethostname().lower())), patterns)


def _listed(given: str | None) -> list[str]:
    return [each.strip() for each in (given or "").split(",") if each.strip()]
