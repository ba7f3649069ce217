"""Authorization: API keys for requests, an admin token for the control API, and checks of web origins.

Rule 1: a secret is never logged. It is compared as received: by its hash, or in constant time.
Rule 2: without keys, requests are accepted by their origin only: see `origins`.
Rule 3: a web page must not reach the control API. The Host must name this daemon (DNS rebinding), a browser's
Origin must be this daemon's, nothing may come from another page without one, and a change needs a JSON
content type, which a page cannot send across sites unasked.
Rule 4: where requests need a key, the control API needs a token: without an admin token, one is generated per
run for the account that runs the daemon.
"""

import hmac
import logging
import os
import secrets
from base64 import b64decode
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from clairvoyant_cli.addresses import THIS_MACHINE, is_loopback
from clairvoyant_cli.backends.priority import Barred, Priority
from clairvoyant_cli.errors import InputError
from clairvoyant_cli.files import opened, read_all, text_of
from clairvoyant_cli.http.heads import RequestHead
from clairvoyant_cli.http.request import Request
from clairvoyant_cli.protocols.chores import CHORE_HEADER
from clairvoyant_cli.protocols.errors import Refusal
from clairvoyant_cli.proxy.access.clients import Clients, find_key, parse_clients, parse_key_file
from clairvoyant_cli.proxy.access.origins import AllowedOrigins
from clairvoyant_cli.proxy.access.page_fields import is_preflight
from clairvoyant_cli.proxy.access.programs import Programs
from clairvoyant_cli.system import command_to_close, is_open_to_others

log = logging.getLogger("clairvoyant")

PRIORITY_HEADER = b"x-clairvoyant-priority"
URGENCY_HEADER = b"x-clairvoyant-urgency"
CLIENT_HEADER = b"x-clairvoyant-client"
BACKEND_HEADER = b"x-clairvoyant-backend"
OWN_HEADERS = (PRIORITY_HEADER, URGENCY_HEADER, CLIENT_HEADER, BACKEND_HEADER, CHORE_HEADER)

NO_ADMIN_TOKEN = "the admin token is missing or wrong; pass it with --token-file"  # noqa: S105 - a message
NO_RUN_TOKEN = "only the account that runs this daemon may do this, unless it has --admin-token-file"  # noqa: S105 - a message
UNKNOWN = "unknown"  # the client of a request that needs no key
MOST_LOGGED = 100
NO_KEY = Refusal(401, "clairvoyant: missing or unknown API key", kind="no_key")


@dataclass(slots=True)
class Access:
    """The daemon's keys and allowed origins. `clients` is replaced as a whole when their file is reloaded.
    `admin_token` is set by the operator. Without one, `run_token` is required as long as there are keys.
    Without keys, `programs` names the clients of this machine, None if all are one.
    """

    clients: Clients = field(default_factory=Clients)
    admin_token: bytes | None = field(default=None, repr=False)
    origins: AllowedOrigins = field(default_factory=AllowedOrigins)
    run_token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    programs: Programs | None = None
    _logged: set[str] = field(default_factory=set, repr=False)

    def barred(self, client: str, priority: Priority | None) -> Barred:
        """Return what of a client's request does not pass to a server, which orders its queue by `priority`
        if there is one: the headers for this proxy, and what would set that priority.
        """
        names = (*OWN_HEADERS, b"authorization", b"x-api-key") if self.clients.keys else OWN_HEADERS
        if priority is None or self.clients.rules_of(client).engine_priority:
            return Barred(names)
        return Barred(names, priority.orders, field=True)

    def admit(self, request: Request) -> str | Refusal:
        """Return the client of a request, the owner of its key or its address, or its refusal."""
        head = request.head
        if self.clients.keys:
            key = bearer(head) or head.get(b"x-api-key")
            if not key and (key := password_of(head.get(b"authorization") or b"")):
                # Browsers add it to requests of any page, as no page could add a key.
                host = head.authority.decode("latin-1").lower()
                if (objection := self.origins.page_objection(head, host, to_models=True)) is not None:
                    return self._refused(objection)
            client = self.clients.owner_of(key) if key else None
            if client is None and is_preflight(head):
                return UNKNOWN  # browsers send no key with it
            return NO_KEY if client is None else self.clients.user_of(client, head)
        if (objection := self.origins.objection(head, to_models=True)) is not None:
            return self._refused(objection)
        peer = request.connection.peer
        return THIS_MACHINE if is_loopback(peer) else peer

    def _refused(self, objection: str) -> Refusal:
        """Return a refusal. Each is logged once; any page can cause any number of different ones."""
        if objection not in self._logged and len(self._logged) < MOST_LOGGED:
            self._logged.add(objection)
            log.warning(objection)
        return Refusal(403, f"clairvoyant: {objection}", kind="origin")

    def admin_objection(self, head: RequestHead) -> str | None:
        """Return why a request may not use the control API; None if it may."""
        if self.admin_token is None and not self.clients.keys:
            return None
        return self.operator_objection(bearer(head))

    def operator_objection(self, token: bytes) -> str | None:
        """Return why a token is not the operator's; None if it is. Some actions need it even without keys."""
        wanted, why = self.run_token.encode(), NO_RUN_TOKEN
        if self.admin_token is not None:
            wanted, why = self.admin_token, NO_ADMIN_TOKEN
        return None if hmac.compare_digest(token, wanted) else why


def bearer(head: RequestHead) -> bytes:
    """Return the bearer token of a request, empty if its first Authorization has none."""
    return bearer_of(head.get(b"authorization") or b"")


def bearer_of(authorization: bytes) -> bytes:
    """Return the bearer token of an Authorization value, empty for other schemes."""
    scheme, _, token = authorization.partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""


def password_of(authorization: bytes) -> bytes:
    """Return the password of Basic authentication (RFC 7617), empty if it has none; any user name will do."""
    scheme, _, coded = authorization.partition(b" ")
    with suppress(ValueError):
        return (
            b64decode(coded.strip(), validate=True).partition(b":")[2] if scheme.lower() == b"basic" else b""
        )
    return b""


def read_secret(path: Path, what: str) -> str:
    """Read a secret from a file, which must be one line and private to its owner."""
    text, mode = _read(path, what)
    _demand_owner_alone(path, what, mode)
    text = text.strip()
    if not text:
        raise InputError(f"the {what} file {path} is empty")
    if not text.isprintable():
        raise InputError(f"the {what} file {path} must hold one line without control characters")
    return text


def read_backend_key(path: Path | str | None) -> str | None:
    return None if path is None else read_secret(Path(path), "backend key")


def read_keys(path: Path) -> Clients:
    text, mode = _read(path, "API key")
    _demand_owner_alone(path, "API key", mode)
    return parse_key_file(text, f"the API key file {path}")


def read_clients(path: Path) -> Clients:
    """Read a clients file; one with keys must be private to its owner."""
    text, mode = _read(path, "clients")
    clients = parse_clients(text, str(path))
    if clients.keys:
        _demand_owner_alone(path, "clients", mode)
    return clients


def read_key_of(path: Path, client: str) -> str:
    """Return the key of a client from a clients file or an API key file."""
    text, _ = _read(path, "clients")
    if (key := find_key(text, client)) is None:
        raise InputError(f"{path} has no key of a client {client!r}")
    return key


def _read(path: Path, what: str) -> tuple[str, int]:
    what = f"the {what} file"
    with opened(path, what) as file:
        mode = os.fstat(file.fileno()).st_mode
        return text_of(read_all(file, path, what), path, what), mode


def _demand_owner_alone(path: Path, what: str, mode: int) -> None:
    if is_open_to_others(path, mode):
        close = command_to_close(path)
        raise InputError(f"the {what} file {path} is open to others; run: {close}")
