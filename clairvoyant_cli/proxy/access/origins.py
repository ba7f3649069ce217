"""Checks against requests from web pages, which any site can have its visitor's browser send to this machine.

Rule 1: a Host must be a name that no public site can have; otherwise DNS rebinding would give a page of that
site our origin (RFC 6761: .localhost, .test; RFC 6762: .local; RFC 8375: .home.arpa; ICANN 2024: .internal).
Rule 2: a page must be of this daemon, this machine, an app with its own pages (Ollama's default schemes), or
an origin that the operator allowed.
Rule 3: requests that do not come from a page are not checked.
"""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from clairvoyant_cli.http.heads import RequestHead
from clairvoyant_cli.protocols.printable import printable

HOST = re.compile(r"(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[a-z0-9_.-]+))(?::[0-9]*)?", re.IGNORECASE)
ORIGIN = re.compile(r"\*|null|[a-z*][a-z0-9+.*-]*://[^/\s]+", re.IGNORECASE)
LOCAL_SUFFIXES = (".localhost", ".test", ".local", ".internal", ".home.arpa")
APP_SCHEMES = ("app://", "file://", "tauri://", "vscode-webview://", "vscode-file://")
"""As Ollama's own (envconfig/config.go, AllowedOrigins)."""
LONGEST_ADDRESS = 100  # characters; an IPv6 address has 45, and a zone


@dataclass(frozen=True, slots=True)
class AllowedOrigins:
    """Accepted names and origins: `hosts` besides addresses and localhost, `origins` besides our own."""

    hosts: frozenset[str] = frozenset()
    origins: tuple[re.Pattern[str], ...] = ()

    def objection(self, head: RequestHead) -> str | None:
        """Return why a request without a key is refused, with the flag that allows it; None if accepted."""
        host = head.authority.decode("latin-1").lower()
        if not self.answers_to(host):
            shown = printable(host)
            return f"requests for Host {shown!r} are refused; allow them with --allow-host {shown}"
        pages = [origin for origin in _origins(head) if origin == "null" or "://" in origin]
        for origin in pages:
            if not self._trusts(origin, host):
                shown = printable(origin)
                return f"web pages of {shown} are refused; allow them with --allow-origin {shown}"
        if not pages and _sent_by_page(head, ("cross-site",)) and not self._is_allowed(""):
            return "web pages of other sites are refused; allow an origin with --allow-origin"
        return None

    def answers_to(self, host: str) -> bool:
        """Whether a Host header names this daemon, or is a name that no public site can have."""
        name = host_name(host)
        if not host or name is None:
            return not host
        return self.is_ours(host) or "." not in name or name.endswith(LOCAL_SUFFIXES)

    def is_ours(self, host: str) -> bool:
        """Whether a Host header names this daemon: an address, localhost, or a configured name."""
        name = host_name(host)
        return name is not None and (
            name in self.hosts or name == "localhost" or address_of(name) is not None
        )

    def _trusts(self, origin: str, host: str) -> bool:
        scheme, _, authority = origin.partition("://")
        if scheme in ("http", "https") and authority:
            name = host_name(authority)
            address = None if name is None else address_of(name)
            is_local = address is not None and (address.is_loopback or name == "0.0.0.0")  # noqa: S104 - compared
            if authority == host or _is_localhost(name) or is_local:
                return True
        return origin.startswith(APP_SCHEMES) or self._is_allowed(origin)

    def _is_allowed(self, origin: str) -> bool:
        return any(pattern.fullmatch(origin) for pattern in self.origins)


def _is_localhost(name: str | None) -> bool:
    """Whether a name means this machine to every browser (RFC 6761, 6.3)."""
    return name == "localhost" or (name is not None and name.endswith(".localhost"))


def from_our_own_page(head: RequestHead) -> bool:
    """Whether a request comes from a page of this daemon, by its only Origin, or from no page at all.
    Images and scripts of another page have no Origin, but in all but the oldest browsers a Sec-Fetch-Site.
    """
    origins = _origins(head)
    if origins:
        scheme, _, authority = origins[0].partition("://")
        ours = scheme in ("http", "https") and authority == head.authority.decode("latin-1").lower()
        if len(origins) > 1 or not ours:
            return False
    return not _sent_by_page(head, ("cross-site", "same-site"))


def origin_patterns(given: Iterable[str]) -> tuple[re.Pattern[str], ...]:
    """Return patterns of the allowed origins; `*` matches any text. ValueError for an impossible origin."""
    patterns = []
    for text in given:
        if not ORIGIN.fullmatch(text):
            raise ValueError(text)
        patterns.append(re.compile(".*".join(map(re.escape, text.lower().split("*")))))
    return tuple(patterns)


def host_name(host: str) -> str | None:
    """Return the name or address in a Host header, in lower case; None if it is malformed."""
    found = HOST.fullmatch(host)
    if found is None:
        return None
    if found["v6"] is not None:
        return found["v6"].lower() if isinstance(address_of(found["v6"]), ipaddress.IPv6Address) else None
    return found["name"].lower()


def address_of(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return a name as an address, None if it is not one."""
    return _address_of(name) if len(name) <= LONGEST_ADDRESS else None


@lru_cache(maxsize=256)
def _address_of(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _sent_by_page(head: RequestHead, sites: tuple[str, ...]) -> bool:
    """Whether a page of such a site sent it (Fetch Metadata); a followed link's answer it cannot read."""
    if _text(head, b"sec-fetch-site") not in sites:
        return False
    follows = (_text(head, b"sec-fetch-mode"), _text(head, b"sec-fetch-dest")) == ("navigate", "document")
    return not (follows and head.method in (b"GET", b"HEAD"))


def _origins(head: RequestHead) -> list[str]:
    if head.get(b"origin") is None:
        return []
    fields = zip(head.fields.keys, head.fields.items, strict=True)
    return [value.decode("latin-1").lower() for key, (_, value) in fields if key == b"origin"]


def _text(head: RequestHead, name: bytes) -> str:
    return (head.get(name) or b"").decode("latin-1").lower()
