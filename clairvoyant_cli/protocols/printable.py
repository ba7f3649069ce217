"""Makes text from outside fit for logs, labels and dashboards."""

import re
from hashlib import sha256

from clairvoyant_cli import errors

_AMBIGUOUS = re.compile(r'["=\s]')

NAME_CHARS = 64  # the longest name of a client that is shown or counted
MAX_NAME_CHARS = 200  # the longest name, of a model say, that is known whole


def printable(text: str, most_chars: int = NAME_CHARS) -> str:
    """Return the beginning of a text; what cannot be printed becomes a question mark."""
    return errors.printable(text[:most_chars], "?")


def shortened(name: str, most_chars: int = NAME_CHARS) -> str:
    """Return a name as `printable` does; a hash keeps one that had to be changed unique."""
    shown = printable(name, most_chars)
    if shown == name:
        return name
    return f"{shown[: most_chars - 9]}~{sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def decoded(value: bytes) -> str:
    """Decode a header's value: UTF-8, or else Latin-1 (RFC 9110, section 5.5)."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def field(text: str) -> str:
    """Return a text as one field of a log line, in quotes where it could be taken for more than one."""
    if not text:
        return "-"
    if _AMBIGUOUS.search(text) is None:
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def plural(count: int, noun: str) -> str:
    """Return `1 slot`, `2 slots`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
