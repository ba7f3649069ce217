"""Urgency rules of the clients file."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from clairvoyant_cli.http.heads import RequestHead
from clairvoyant_cli.protocols.printable import decoded
from clairvoyant_cli.scheduler.urgency import LEVELS
from clairvoyant_cli.settings import Check, setting

MAX_RULES = 1000  # each request is compared with each rule


def is_level(value: Any) -> bool:
    return type(value) is int and 0 <= value < LEVELS


def is_level_range(value: Any) -> bool:
    """Whether a value is a range of levels, [most, least] urgent."""
    return isinstance(value, list) and len(value) == 2 and all(map(is_level, value)) and value[0] <= value[1]


def _is_header(value: Any) -> bool:
    name, colon, wanted = value.partition(":") if isinstance(value, str) else ("", "", "")
    return bool(name.strip() and colon and wanted.strip()) and name.isascii()


_PATTERN: Check = (lambda value: isinstance(value, str) and value != "", "be text; * matches anything")


@dataclass(frozen=True, slots=True)
class UrgencyRule:
    """The level of all requests that match; omitted fields match everything."""

    level: int | None = setting(
        None, "0..4", "The level, 0 the most urgent.", (is_level, "be a whole number from 0 to 4")
    )
    client: str = setting("*", "NAME", "The client's name.", _PATTERN)
    model: str = setting("*", "NAME", "The model asked for.", _PATTERN)
    route: str = setting("*", "PATH", "The path, such as `/api/chat`.", _PATTERN)
    header: str = setting(
        "",
        "NAME: VALUE",
        "A header of the request. Any client can send it, so name the client too.",
        (_is_header, "be NAME: VALUE; * matches any value"),
    )

    def fits(self, client: str, model: str, head: RequestHead) -> bool:
        named = fnmatchcase(client, self.client) and fnmatchcase(model, self.model)
        return named and fnmatchcase(head.path, self.route) and self._header_fits(head)

    def _header_fits(self, head: RequestHead) -> bool:
        if not self.header:
            return True
        name, _, wanted = self.header.partition(":")
        given = head.get(name.strip().lower().encode())
        return given is not None and fnmatchcase(decoded(given).strip(), wanted.strip())
