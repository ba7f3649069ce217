"""Walls against web pages: which Host we answer to, and pages of which origins may send requests.

A page of any site can have its visitor's browser send requests to this machine. Ollama refuses those (its
OLLAMA_ORIGINS); llama.cpp, vLLM and others do not, and behind us none of them can tell.

Rule 1: a Host must be one that no public site can have, or DNS rebinding would make a page of that site one
of ours (RFC 6761: .localhost, .test; RFC 6762: .local; RFC 8375: .home.arpa; ICANN 2024: .internal).
Rule 2: a page must be one of ours, of this machine, of an app that brings its own pages (Ollama's default
schemes), or of an origin that the operator has let in.
Rule 3: what does not come from a page is not asked where it comes from.
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


LONGEST_ADDRESS = 100
"""Characters; an IPv6 address has 45, and a zone."""


@dataclass(frozen=True, slots=True)
class Walls:
    """What stands between web pages and us. `hosts` are names we answer to besides addresses and localhost;
    `origins` the pages' origins that are let in besides our own.
    """

    hosts: frozenset[str] = frozenset()
    origins: tuple[re.Pattern[str], ...] = ()

    def objection(self, head: RequestHead) -> str | None:
        """Say why a request without a key is refused, and which flag would let it in; None if it is not."""
        host = head.authority.decode("latin-1").lower()
        if not self.answers_to(host):
            shown = printable(host)
            return f"requests for Host {shown!r} are refused; let them in with --allow-host {shown}"
        pages = [origin for origin in _origins(head) if origin == "null" or "://" in origin]
        for origin in pages:
            if not self._trusts(origin, host):
                shown = printable(origin)
                return f"web pages of {shown} are refused; let them in with --allow-origin {shown}"
        if not pages and _sent_by_page(head, ("cross-site",)) and not self._let_in(""):
            return "web pages of other sites are refused; let an origin in with --allow-origin"
        return None

    def answers_to(self, host: str) -> bool:
        """Whether a Host header can be meant for us: one of ours, or one that no public site can have."""
        name = host_name(host)
        if not host or name is None:
            return not host
        return self.is_ours(host) or "." not in name or name.endswith(LOCAL_SUFFIXES)

    def is_ours(self, host: str) -> bool:
        """Whether a Host header surely names this daemon: an address, localhost, or a name we were given."""
        name = host_name(host)
        return name is not None and (
            name in self.hosts or name == "localhost" or address_of(name) is not None
        )

    def _trusts(self, origin: str, host: str) -> bool:
        scheme, _, authority = origin.partition("://")
        if scheme in ("http", "https") and authority and (authority == host or _is_this_machine(authority)):
            return True
        return origin.startswith(APP_SCHEMES) or self._let_in(origin)

    def _let_in(self, origin: str) -> bool:
        return any(pattern.fullmatch(origin) for pattern in self.origins)


def from_our_own_page(head: RequestHead) -> bool:
    """Whether a request comes from a page of this daemon, by its only Origin, or from no page at all.

    An image or a script of another page bears no Origin, and in all but the oldest browsers a Sec-Fetch-Site.
    """
    origins = _origins(head)
    if origins:
        scheme, _, authority = origins[0].partition("://")
        ours = scheme in ("http", "https") and authority == head.authority.decode("latin-1").lower()
        if len(origins) > 1 or not ours:
            return False
    return not _sent_by_page(head, ("cross-site", "same-site"))


def origin_patterns(given: Iterable[str]) -> tuple[re.Pattern[str], ...]:
    """Return what matches the origins that an operator lets in, where `*` stands for any text.

    ValueError for one that no page could have.
    """
    patterns = []
    for text in given:
        if not ORIGIN.fullmatch(text):
            raise ValueError(text)
        patterns.append(re.compile(".*".join(map(re.escape, text.lower().split("*")))))
    return tuple(patterns)


def host_name(host: str) -> str | None:
    """Return the name or the address in a Host header, in lower case; None if it is not a well-formed one."""
    found = HOST.fullmatch(host)
    if found is None:
        return None
    if found["v6"] is not None:
        return found["v6"].lower() if _is_v6(found["v6"]) else None
    return found["name"].lower()


def address_of(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address that a name is, None if it is none."""
    return _address_of(name) if len(name) <= LONGEST_ADDRESS else None


@lru_cache(maxsize=256)
def _address_of(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _is_v6(text: str) -> bool:
    return isinstance(address_of(text), ipaddress.IPv6Address)


def _is_this_machine(authority: str) -> bool:
    name = host_name(authority)
    if name is None:
        return False
    address = address_of(name)
    return name == "localhost" or (address is not None and (address.is_loopback or name == "0.0.0.0"))  # noqa: S104 - compared


def _sent_by_page(head: RequestHead, sites: tuple[str, ...]) -> bool:
    """Whether a page of such a site sent it (Fetch Metadata), and not a user who follows a link: an answer to
    that is shown to the user, not to the page.
    """
    if _text(head, b"sec-fetch-site") not in sites:
        return False
    follows = (_text(head, b"sec-fetch-mode"), _text(head, b"sec-fetch-dest")) == ("navigate", "document")
    return not (follows and head.method in (b"GET", b"HEAD"))


def _origins(head: RequestHead) -> list[str]:
    """Return what all its Origin fields say; a browser sends one."""
    if head.get(b"origin") is None:
        return []
    fields = zip(head.fields.keys, head.fields.items, strict=True)
    return [value.decode("latin-1").lower() for key, (_, value) in fields if key == b"origin"]


def _text(head: RequestHead, name: bytes) -> str:
    return (head.get(name) or b"").decode("latin-1").lower()
