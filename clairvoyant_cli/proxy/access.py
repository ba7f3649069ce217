"""Who may do what: API keys for requests, an admin token for the daemon, and walls against browsers.

Rule 1: a secret is compared in constant time and never logged.
Rule 2: a web page must not reach the daemon's actions: the Host must be ours (DNS rebinding), a browser's
Origin must be ours, and a change needs a JSON content type, which a page cannot send across sites unasked.
"""

import hashlib
import hmac
import ipaddress
import stat
from dataclasses import dataclass, field
from pathlib import Path

from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.http.framing import RequestHead
from clairvoyant_cli.http.listener import Request

PRIORITY_HEADER = b"x-clairvoyant-priority"
CLIENT_HEADER = b"x-clairvoyant-client"
PRIORITIES = range(-100, 101)


@dataclass(frozen=True, slots=True)
class Access:
    """The daemon's keys. `keys` maps the SHA-256 of an API key to its client's name; empty means open."""

    keys: dict[str, str] = field(default_factory=dict)
    admin_token: str | None = None
    hosts: frozenset[str] = frozenset()

    @property
    def consumed_headers(self) -> tuple[bytes, ...]:
        """Headers that were meant for us and do not go on to the backend."""
        own = (PRIORITY_HEADER, CLIENT_HEADER)
        return (*own, b"authorization", b"x-api-key") if self.keys else own

    def client_of(self, request: Request) -> str | None:
        """Return the name of who asks; None if keys are required and this is none of them."""
        if not self.keys:
            named = request.head.get(CLIENT_HEADER)
            return named.decode("latin-1")[:64] if named else request.connection.peer
        given = bearer(request.head) or (request.head.get(b"x-api-key") or b"").decode("latin-1")
        return self.keys.get(hashlib.sha256(given.encode()).hexdigest())

    def priority_of(self, request: Request, default: int) -> int:
        """Return the priority that the client asked for; what is no number is not heard."""
        given = request.head.get(PRIORITY_HEADER)
        if given is None:
            return default
        try:
            return max(PRIORITIES.start, min(PRIORITIES.stop - 1, int(given)))
        except ValueError:
            return default

    def admin(self, head: RequestHead) -> bool:
        """Whether the request carries the admin token, or none is needed."""
        if self.admin_token is None:
            return True
        return hmac.compare_digest(bearer(head).encode(), self.admin_token.encode())

    def our_host(self, host: str) -> bool:
        """Whether a Host header names this daemon, not some name that was made to point here."""
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        name = name.strip("[]").lower()
        if name in self.hosts or name == "localhost":
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def our_origin(self, origin: str | None, host: str) -> bool:
        """Whether a request came from our own pages, or from no page at all."""
        return origin is None or origin.split("://", 1)[-1] == host


def bearer(head: RequestHead) -> str:
    """Return the bearer token of a request, "" if it has none."""
    scheme, _, token = (head.get(b"authorization") or b"").decode("latin-1").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def is_loopback(host: str) -> bool:
    """Whether a listening address can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_secret(path: Path, what: str) -> str:
    """Return the contents of a file that holds a secret; it must be the owner's alone."""
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ClairvoyantError(f"cannot read the {what} file {path}: {error}", ExitCode.USAGE) from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ClairvoyantError(
            f"the {what} file {path} is open to others; run: chmod 600 {path}", ExitCode.USAGE
        )
    if not text:
        raise ClairvoyantError(f"the {what} file {path} is empty", ExitCode.USAGE)
    return text


def read_keys(path: Path) -> dict[str, str]:
    """Read API keys, one a line as `name:key` or just `key`; only their hashes are kept."""
    keys: dict[str, str] = {}
    for number, line in enumerate(read_secret(path, "API key").splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, colon, key = line.partition(":")
        if not colon:
            name, key = f"key-{number}", line
        keys[hashlib.sha256(key.strip().encode()).hexdigest()] = name.strip()
    if not keys:
        raise ClairvoyantError(
            f"the API key file {path} holds no key; write one a line, as name:key", ExitCode.USAGE
        )
    return keys
