"""Builds access control from the configuration: the clients file, which can be reloaded, and the origins.

Rule 1: a wrong file changes nothing: it stops a start, and a running daemon keeps its clients.
Rule 2: a running daemon never stops requiring keys: a file without keys is more often an emptied file than
an intention.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clairvoyant_cli.config import ServeConfig
from clairvoyant_cli.errors import ClairvoyantError, InputError
from clairvoyant_cli.protocols.printable import plural
from clairvoyant_cli.proxy.access.clients import GOOD_KEY_CHARS, Clients
from clairvoyant_cli.proxy.access.keys import Access, read_clients, read_keys, read_secret
from clairvoyant_cli.proxy.access.origins import AllowedOrigins, host_name, origin_patterns, own_names
from clairvoyant_cli.proxy.journal import Journal

log = logging.getLogger("clairvoyant")


@dataclass(frozen=True, slots=True)
class ClientsFile:
    """The file of the clients, None if there is none. `exposed`: other machines can reach the daemon."""

    path: Path | None
    reader: Callable[[Path], Clients]
    exposed: bool

    def read(self) -> Clients:
        """Read the clients; ClairvoyantError if the file is wrong, or has no keys while `exposed`."""
        clients = Clients() if self.path is None else self.reader(self.path)
        if self.exposed and not clients.keys:
            raise InputError(
                f"{self.path} has no API keys, and other machines can reach this daemon; give each client "
                "a key"
            )
        if clients.unproven:
            news = (
                "without keys clients are known by program or address; in %s, give a key or a program to: %s"
            )
            log.warning(news, self.path, ", ".join(clients.unproven))
        if self.exposed and clients.weak:
            news = "keys of fewer than %d characters can be guessed over a network; make longer ones for: %s"
            log.warning(news, GOOD_KEY_CHARS, ", ".join(clients.weak))
        return clients

    async def read_again(self, before: Clients, take: Callable[[Clients], None], journal: Journal) -> str:
        """Reload the file, pass the clients to `take` and return a message. `before` are the clients in
        force. ClairvoyantError if the file cannot be used; nothing changes then.
        """
        try:
            clients = await asyncio.to_thread(
                self._read_again, before
            )  # ten thousand keys take half a second
        except ClairvoyantError as error:
            journal.event(logging.WARNING, f"the clients are unchanged: {error}")
            raise
        take(clients)
        known = len(clients.rules.keys() | set(clients.keys.values()))
        note = f"reloaded {self.path}: {plural(known, 'client')}, {plural(len(clients.keys), 'key')}"
        journal.event(logging.INFO, note)
        return note

    def _read_again(self, before: Clients) -> Clients:
        if self.path is None:
            raise ClairvoyantError("there is no file to reload; start with --clients or --api-key-file")
        clients = self.read()
        if before.keys and not clients.keys:
            why = "which would accept every request; restart to do that"
            raise ClairvoyantError(f"{self.path} has no API keys, {why}")
        return clients


def clients_file_of(config: ServeConfig, *, exposed: bool) -> ClientsFile:
    if config.clients is not None:
        return ClientsFile(Path(config.clients), read_clients, exposed)
    path = None if config.api_key_file is None else Path(config.api_key_file)
    return ClientsFile(path, read_keys, exposed)


def access_of(config: ServeConfig, clients_file: ClientsFile) -> Access:
    """Return the access rules at the start; ClairvoyantError if a setting or file is wrong or unsafe."""
    if clients_file.exposed and (clients_file.path is None or config.admin_token_file is None):
        raise InputError(
            f"listening on {config.listen} is reachable from other machines; give --admin-token-file, and "
            "--api-key-file or --clients with keys, or listen on 127.0.0.1"
        )
    clients = clients_file.read()
    token = None
    if config.admin_token_file is not None:
        token = read_secret(Path(config.admin_token_file), "admin token").encode()
    return Access(clients, token, origins_of(config, asks_for_secret=bool(clients.keys)))


def origins_of(config: ServeConfig, *, asks_for_secret: bool) -> AllowedOrigins:
    """Return what the operator allows; ClairvoyantError if a name or an origin is invalid."""
    hosts = [name.lower() for name in _listed(config.allow_host)]
    for host in hosts:
        if host_name(host) != host:
            wanted = "names without port or scheme, separated by commas"
            raise InputError(f"allow_host takes {wanted}; {host!r} is not one")
    try:
        patterns = origin_patterns(_listed(config.allow_origin))
    except ValueError as error:
        wanted = "origins such as https://chat.example or app-scheme://*, separated by commas"
        raise InputError(f"allow_origin takes {wanted}; {str(error)!r} is not one") from None
    return AllowedOrigins(own_names(asks_for_secret=asks_for_secret).union(hosts), patterns)


def _listed(given: str | None) -> list[str]:
    return [each.strip() for each in (given or "").split(",") if each.strip()]
