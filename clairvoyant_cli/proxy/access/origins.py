"""Judges Host and Origin of each request to what listens here: any site can have its visitor's browser send
requests to this machine.

Rule 1: a Host must be a name that nobody else can give a meaning: an address, localhost, or one that the
operator configured. Otherwise DNS rebinding would give a foreign page our origin. Names without a dot and
those of `PRIVATE_SUFFIXES` are no exception: any neighbour on the network may answer for them (mDNS, LLMNR).
Rule 2: a program may reach the models by such a name, as containers do by host.docker.internal. It resolves
names for itself, so rebinding does not concern it. A browser is not accepted as one, nor is such a name as
the origin of our own pages. Firefox and Safari let a page disguise a GET, which generates nothing.
Rule 3: a page must be of the listener itself. Those of this machine, of an app with its own pages (Ollama's
default schemes) and of origins that the operator allowed may use the models, but nothing else.
"""

import ipaddress
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from clairvoyant_cli.http.heads import RequestHead
from clairvoyant_cli.protocols.printable import printable

# The longest IPv6 address has 45 characters, the longest name 253 (RFC 1035, 2.3.4).
HOST = re.compile(r"(?:\[(?P<v6>[0-9a-f:.]{2,45})\]|(?P<name>[a-z0-9_.-]{1,253}))(?::[0-9]*)?", re.IGNORECASE)
ORIGIN = re.compile(r"\*|null|[a-z*][a-z0-9+.*-]*://[^/\s]+", re.IGNORECASE)
PRIVATE_SUFFIXES = (".localhost", ".test", ".local", ".internal", ".home.arpa")
"""Domains that no public site can have (RFC 6761, 6762 and 8375; ICANN 2024 for .internal)."""

APP_SCHEMES = ("app://", "file://", "tauri://", "vscode-webview://", "vscode-file://")
"""As Ollama's own (envconfig/config.go, AllowedOrigins)."""


@dataclass(frozen=True, slots=True)
class AllowedOrigins:
    """Accepted names and origins: `hosts` besides addresses and localhost, `origins` besides our own."""

    hosts: frozenset[str] = frozenset()
    origins: tuple[re.Pattern[str], ...] = ()

    def objection(self, head: RequestHead, *, to_models: bool = False) -> str | None:
        """Return why a request is refused, None if it is accepted. Requests `to_models` have what Rules 2 and
        3 allow, too.
        """
        host = head.authority.decode("latin-1").lower()
        ours = self.is_ours(host)
        if not (ours or (to_models and _is_private(host) and not _from_browser(head))):
            name = printable(host_name(host) or "NAME")  # the flag takes no port
            return f"requests for Host {printable(host)!r} are refused; allow them with --allow-host {name}"
        if head.get(b"origin") is None and head.get(b"sec-fetch-site") is None:
            return None  # no page sent it
        return self.page_objection(head, host if ours else "", to_models=to_models)

    def page_objection(self, head: RequestHead, host: str, *, to_models: bool = False) -> str | None:
        """Return why the page that sent a request is refused; None if it is accepted, or there is none. The
        pages at `host` are our own.
        """
        origins = _origins(head)
        if not to_models:
            of_others = len(origins) > 1 or not all(_is_of(origin, host) for origin in origins)
            if of_others or _sent_by_page(head, ("cross-site", "same-site")):
                return "requests from other sites' pages are refused"
            return None
        pages = list(filter(_is_page, origins))
        for origin in pages:
            if not (_is_of(origin, host) or self._trusts(origin)):
                shown = printable(origin)
                return f"web pages of {shown} are refused; allow them with --allow-origin {shown}"
        if not pages and _sent_by_page(head, ("cross-site",)) and not self._is_allowed(""):
            return "web pages of other sites are refused; allow an origin with --allow-origin"
        return None

    def is_ours(self, host: str) -> bool:
        """Whether a Host header is an address, localhost, or a configured name."""
        name = host_name(host)
        return name is not None and (
            name in self.hosts or name == "localhost" or address_of(name) is not None
        )

    def _trusts(self, origin: str) -> bool:
        scheme, _, authority = origin.partition("://")
        if scheme in ("http", "https") and authority:
            name = host_name(authority)
            address = None if name is None else address_of(name)
            is_local = address is not None and (address.is_loopback or name == "0.0.0.0")  # noqa: S104 - compared
            if _is_localhost(name) or is_local:
                return True
        return origin.startswith(APP_SCHEMES) or self._is_allowed(origin)

    def _is_allowed(self, origin: str) -> bool:
        return any(pattern.fullmatch(origin) for pattern in self.origins)


def _is_localhost(name: str | None) -> bool:
    """Whether a name means this machine to every browser (RFC 6761, 6.3)."""
    return name == "localhost" or (name is not None and name.endswith(".localhost"))


def own_names(*, asks_for_secret: bool) -> frozenset[str]:
    """Return this machine's names. One that a neighbour may claim is left out, unless the listener asks for a
    secret, which no foreign page has.
    """
    name = socket.gethostname().lower()
    if asks_for_secret:
        return frozenset({name, f"{name.partition('.')[0]}.local"})
    return frozenset() if _is_private(name) else frozenset({name})


def origin_patterns(given: Iterable[str]) -> tuple[re.Pattern[str], ...]:
    """Return patterns of the allowed origins; `*` matches any text. ValueError for an impossible origin."""
    patterns = []
    for text in given:
        if not ORIGIN.fullmatch(text):
            raise ValueError(text)
        patterns.append(re.compile(".*".join(map(re.escape, text.lower().split("*")))))
    return tuple(patterns)


@lru_cache(maxsize=256)
def host_name(host: str) -> str | None:
    """Return the name or address in a Host header, in lower case; None if it is malformed."""
    found = HOST.fullmatch(host)
    if found is None:
        return None
    if found["v6"] is not None:
        return found["v6"].lower() if isinstance(address_of(found["v6"]), ipaddress.IPv6Address) else None
    return found["name"].lower()


@lru_cache(maxsize=256)
def address_of(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return a name as an address, None if it is not one."""
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _is_private(host: str) -> bool:
    """Whether no public site can have a Host, lower case; a request of HTTP/1.0 may have none."""
    name = host_name(host)
    if name is None:
        return not host
    return "." not in name or name.endswith(PRIVATE_SUFFIXES)


def _is_of(origin: str, host: str) -> bool:
    """Whether an Origin is that of the pages at a Host, both in lower case."""
    scheme, _, authority = origin.partition("://")
    return scheme in ("http", "https") and authority != "" and authority == host


def _is_page(origin: str) -> bool:
    return origin == "null" or "://" in origin


def _from_browser(head: RequestHead) -> bool:
    """Whether a browser sent a request without an Origin: to its page's own site, and not a POST. That at
    .localhost is of this machine.
    """
    name = host_name(head.authority.decode("latin-1"))
    if any(map(_is_page, _origins(head))) or _is_localhost(name):
        return False
    return bool(_text(head, b"sec-fetch-site")) or _text(head, b"user-agent").startswith("mozilla/")


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
