"""Declares settings as dataclass fields with help, checks and type.

Each becomes a flag, a key of the configuration file, an environment variable and a row of the reference.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import cache
from types import UnionType
from typing import Any, get_args, get_type_hints

from clairvoyant_cli.addresses import SHOWN_CHARS
from clairvoyant_cli.errors import InputError

log = logging.getLogger("clairvoyant")

KIND_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}

Check = tuple[Callable[[Any], bool], str]
"""A test of a value, and the end of its error message after "NAME must"."""

AT_LEAST_1: Check = (lambda number: number >= 1, "be at least 1")
NOT_NEGATIVE: Check = (lambda number: number >= 0, "not be negative")
ABOVE_0_S: Check = (lambda number: number > 0, "be above 0 seconds")
_NO_NUL: Check = (lambda text: "\0" not in text, "not hold a NUL character")


def one_of(choices: Iterable[str]) -> Check:
    """Return a check that a value is one of `choices`."""
    return lambda value: value in choices, f"be one of {', '.join(choices)}"


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting. `about` is its help, `metavar` the placeholder of its value (None for a boolean).

    The flag of a `repeatable` setting may be repeated; that of an `expert` one is not in `--help`. `kind` is
    the type without `| None`; None means unset and passes every check.
    """

    default: Any
    metavar: str | None
    about: str
    checks: tuple[Check, ...]
    repeatable: bool
    expert: bool
    kind: type = str


@dataclass(frozen=True, slots=True)
class Former:
    """A setting that an earlier version had. It is understood until the version `until`."""

    until: str
    kind: type = str
    now: str = ""  # the name of the one that replaced it
    instead: str = ""  # without such a one: what to do, or what happens now
    worth: Mapping[Any, Any] = field(default_factory=dict)  # values of that one for its own, if they differ

    def named(self, name: str) -> str:
        """Return what to say of it under its former name."""
        if self.now:
            return f"{name} is now {self.now}"
        return f"{name} was removed and does nothing{f': {self.instead}' if self.instead else ''}"


def current(
    given: Mapping[str, Any], former: Mapping[str, Former], where: str, level: int = logging.WARNING
) -> dict[str, Any]:
    """Return settings under their current names. Each former name is logged with `where` it was found; if
    both are given, the current one counts.
    """
    found = {name: value for name, value in given.items() if name not in former}
    for name in [each for each in given if each in former]:
        known = former[name]
        log.log(level, "%s: %s", where, known.named(name))
        if known.now:
            value = _typed(name, given[name], known.kind, where)
            found.setdefault(known.now, known.worth.get(value, value))
    return found


def setting(
    default: Any,
    metavar: str | None,
    about: str,
    *checks: Check,
    repeatable: bool = False,
    expert: bool = False,
) -> Any:
    """Return a dataclass field of a setting."""
    known = Setting(default, metavar, about, checks, repeatable, expert)
    return field(default=default, metadata={"setting": known})


@cache
def settings_of(record: type) -> Mapping[str, Setting]:
    """Return the settings of a dataclass by name, in order."""
    hints = get_type_hints(record)
    found: dict[str, Setting] = {}
    for each in fields(record):
        if "setting" in each.metadata:
            hint = hints[each.name]
            optional = isinstance(hint, UnionType)
            kind = next(a for a in get_args(hint) if a is not type(None)) if optional else hint
            found[each.name] = replace(each.metadata["setting"], kind=kind)
    return found


def check_settings(record: Any) -> None:
    """Raise ClairvoyantError for the first invalid setting of a record."""
    kind: type = type(record)
    for name, each in settings_of(kind).items():
        value = getattr(record, name)
        for holds, wanted in (_NO_NUL, *each.checks) if each.kind is str else each.checks:
            if value is not None and not holds(value):
                raise InputError(f"{name} must {wanted}")


def read_table(record: type, table: Mapping[str, Any], where: str, within: str = "") -> dict[str, Any]:
    """Return the settings of a TOML table; ClairvoyantError for an unknown key or a wrong type.

    Errors begin with `where`; `within` names the table if `where` does not.
    """
    known = settings_of(record)
    for key in table:
        if key not in known:
            raise InputError(f"{where}: unknown key {quoted(key)}{within}{did_you_mean(key, known)}")
    return {key: _typed(key, value, known[key].kind, where) for key, value in table.items()}


def _typed(key: str, value: Any, kind: type, where: str) -> Any:
    with suppress(OverflowError):
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
    if type(value) is not kind:
        raise InputError(f"{where}: {key} must be {KIND_NAMES[kind]}, not {quoted(value)}")
    return value


def parse_value(text: str, kind: type, where: str) -> Any:
    """Parse the text of a value; ClairvoyantError, beginning with `where`, if it is invalid."""
    if kind is bool:
        if text.lower() in ("1", "true", "yes", "on"):
            return True
        if text.lower() in ("0", "false", "no", "off"):
            return False
    else:
        with suppress(ValueError):
            return kind(text)
    raise InputError(f"{where} must be {KIND_NAMES[kind]}, not {quoted(text)}")


def one_word(text: str) -> bool:
    """Return whether a text is printable and has no blanks."""
    return text.isprintable() and not any(each.isspace() for each in text)


def quoted(value: object) -> str:
    """Return a value's repr for an error message, truncated."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"


def did_you_mean(key: str, known: Iterable[str]) -> str:
    """Return a hint at the closest known name, "" if none is close."""
    near = get_close_matches(key, tuple(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""
