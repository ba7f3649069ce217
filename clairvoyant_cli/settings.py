"""What people may set, each said once: a dataclass field that knows its help, its bounds and its type.

Of such a field are made a flag of a command, a key of a file, an environment variable and a row of the
reference.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cache
from types import UnionType
from typing import Any, get_args, get_type_hints

from clairvoyant_cli.addresses import SHOWN_CHARS
from clairvoyant_cli.errors import ClairvoyantError, ExitCode

KIND_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}

Check = tuple[Callable[[Any], bool], str]
"""Whether a value will do, and what goes on behind "NAME must" where it will not."""


AT_LEAST_1: Check = (lambda number: number >= 1, "be at least 1")
NOT_NEGATIVE: Check = (lambda number: number >= 0, "not be negative")
ABOVE_0_S: Check = (lambda number: number > 0, "be above 0 seconds")
_NO_NUL: Check = (lambda text: "\0" not in text, "not hold a NUL character")


def one_of(choices: Iterable[str]) -> Check:
    """Demand one of a few words."""
    return lambda value: value in choices, f"be one of {', '.join(choices)}"


@dataclass(frozen=True, slots=True)
class Setting:
    """What is known of a field that people may set. `about` is its help, in sentences; `metavar` stands for
    its value there; the flag of a `repeatable` one may be given again; `formerly` is a name that it had, and
    that is still understood; `kind` is its type, without `| None`: None is "unset" and passes every check.
    """

    default: Any
    metavar: str | None
    about: str
    checks: tuple[Check, ...]
    repeatable: bool
    formerly: str = ""
    kind: type = str


def setting(
    default: Any,
    metavar: str | None,
    about: str,
    *checks: Check,
    repeatable: bool = False,
    formerly: str = "",
) -> Any:
    """Make a dataclass field of a setting."""
    known = Setting(default, metavar, about, checks, repeatable, formerly)
    return field(default=default, metadata={"setting": known})


@cache
def settings_of(record: type) -> Mapping[str, Setting]:
    """Return the settings of a dataclass, by name and in their order."""
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
    """Raise ClairvoyantError for the first setting of a record that will not do."""
    kind: type = type(record)
    for name, each in settings_of(kind).items():
        value = getattr(record, name)
        for holds, wanted in (_NO_NUL, *each.checks) if each.kind is str else each.checks:
            if value is not None and not holds(value):
                raise ClairvoyantError(f"{name} must {wanted}", ExitCode.USAGE)


def read_table(record: type, table: Mapping[str, Any], where: str, within: str = "") -> dict[str, Any]:
    """Return what a table of a TOML file sets of a record; ClairvoyantError, which begins with `where`, for a
    key that is not known or has another type. `within` names the table where `where` does not.
    """
    known = settings_of(record)
    given: dict[str, Any] = {}
    for key, value in table.items():
        name = current_name(key, record)
        if name not in known:
            hint = did_you_mean(key, known)
            raise ClairvoyantError(f"{where}: unknown key {quoted(key)}{within}{hint}", ExitCode.USAGE)
        given[name] = _typed(key, value, known[name].kind, where)
    return given


def current_name(key: str, record: type) -> str:
    """Return what a setting is called that had another name, any other key as it is."""
    return next((name for name, each in settings_of(record).items() if each.formerly == key), key)


def _typed(key: str, value: Any, kind: type, where: str) -> Any:
    with suppress(OverflowError):
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
    if type(value) is not kind:
        wanted = KIND_NAMES[kind]
        raise ClairvoyantError(f"{where}: {key} must be {wanted}, not {quoted(value)}", ExitCode.USAGE)
    return value


def parse_value(text: str, kind: type, where: str) -> Any:
    """Return the value that a text stands for; ClairvoyantError, which begins with `where`, if for none."""
    if kind is bool:
        if text.lower() in ("1", "true", "yes", "on"):
            return True
        if text.lower() in ("0", "false", "no", "off", ""):
            return False
    else:
        with suppress(ValueError):
            return kind(text)
    raise ClairvoyantError(f"{where} must be {KIND_NAMES[kind]}, not {quoted(text)}", ExitCode.USAGE)


def one_word(text: str) -> bool:
    """Whether a text can be printed and has no blanks; "" has none."""
    return text.isprintable() and not any(each.isspace() for each in text)


def quoted(value: object) -> str:
    """Return the beginning of what was given, as it is shown in an error."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"


def did_you_mean(key: str, known: Iterable[str]) -> str:
    """Return a hint at the known name that was probably meant, "" if none is near."""
    from difflib import get_close_matches

    near = get_close_matches(key, tuple(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""
