"""Clients and their limits: the records, and the parsers of the clients file and the API key file.

Rule 1: a file is accepted as a whole or not at all. An error is one line that names the file, the table and
the key (or the line), and what to do.
Rule 2: an API key is never stored or printed; only the SHA-256 of its UTF-8 bytes is kept.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from heapq import nsmallest
from typing import Any, NamedTuple
from urllib.parse import unquote

from clairvoyant_cli.addresses import is_address
from clairvoyant_cli.config import parse_toml
from clairvoyant_cli.errors import InputError
from clairvoyant_cli.http.heads import RequestHead
from clairvoyant_cli.protocols.printable import NAME_CHARS, decoded, printable, shortened
from clairvoyant_cli.proxy.access.programs import Program
from clairvoyant_cli.scheduler.fairness import Tenant, rules_for
from clairvoyant_cli.scheduler.urgency import LEVELS, UNSAID_URGENCY
from clairvoyant_cli.settings import Check, did_you_mean, one_word, setting, settings_of

PRIORITIES = range(-100, 101)  # valid priorities; lower is sooner
OWN_PRIORITIES = (0, 100)  # default range of a client: it may yield to others, not go before them
OWN_LEVELS = (UNSAID_URGENCY, LEVELS - 1)  # default range of a client: no more urgent than an unset level
HEADER = re.compile(r"[A-Za-z0-9-]+")
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
UUID_CHARS = 8
MAX_USER_CHARS = 320  # the longest e-mail address (RFC 3696, erratum 1690)
MIN_KEY_CHARS = 6
GOOD_KEY_CHARS = 16  # of 62 letters and digits have 95 bits; six could be guessed in days over a fast network
LONGEST_TAU_S = 86_400.0
BACKGROUND_LEVELS = 10
CLIENTS_SHOWN = 50
MAX_CLIENTS = 2000
MAX_RULES = 1000  # each request is compared with each rule


def _is_level(value: Any) -> bool:
    return type(value) is int and 0 <= value < LEVELS


def _is_header(value: Any) -> bool:
    name, colon, wanted = value.partition(":") if isinstance(value, str) else ("", "", "")
    return bool(name.strip() and colon and wanted.strip()) and name.isascii()


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_range(value: Any, valid: range) -> bool:
    is_pair = isinstance(value, list) and len(value) == 2
    return is_pair and all(type(n) is int and n in valid for n in value) and value[0] <= value[1]


_LEVELS: Check = (
    partial(_is_range, valid=range(LEVELS)),
    "be [MOST, LEAST], two whole numbers from 0 to 4, the lower first",
)

_COUNT: Check = (
    lambda value: type(value) is int and 1 <= value < 1 << 53,
    "be a whole number of at least 1; leave it out for no limit",
)


_PATTERN: Check = (lambda value: isinstance(value, str) and value != "", "be text; * matches anything")


@dataclass(frozen=True, slots=True)
class UrgencyRule:
    """The level of all requests that match; omitted fields match everything."""

    level: int | None = setting(
        None, "0..4", "The level, 0 the most urgent.", (_is_level, "be a whole number from 0 to 4")
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
        fits = fnmatchcase(client, self.client) and fnmatchcase(model, self.model)
        fits = fits and fnmatchcase(head.path, self.route)
        if not (fits and self.header):
            return fits
        name, _, wanted = self.header.partition(":")
        given = head.get(name.strip().lower().encode())
        return given is not None and fnmatchcase(decoded(given).strip(), wanted.strip())


@dataclass(frozen=True, slots=True)
class ClientRules:
    """The limits of one client."""

    weight: float = setting(
        1.0,
        "NUMBER",
        "Share of the slots under `boost`, and of urgent requests, from 0.01 to 100.",
        (lambda value: _is_number(value) and 0.01 <= value <= 100, "be a number from 0.01 to 100"),
    )
    max_waiting: int | None = setting(None, "N", "Maximum queued requests. Unset: no limit.", _COUNT)
    max_running: int | None = setting(None, "N", "Maximum running requests. Unset: no limit.", _COUNT)
    tau_s: float | None = setting(
        None,
        "SECONDS",
        "Starvation timeout of its requests. 0: none. Unset: as for all clients.",
        (lambda value: _is_number(value) and 0 <= value <= LONGEST_TAU_S, "be seconds up to a day, 0: none"),
    )
    priority: tuple[int, int] = setting(
        OWN_PRIORITIES,
        "[SOONEST, LATEST]",
        "Range of the priorities that it may set, from -100 to 100.",
        (
            partial(_is_range, valid=PRIORITIES),
            "be [SOONEST, LATEST], two whole numbers from -100 to 100, the lower first",
        ),
    )
    urgency: tuple[int, int] = setting(
        OWN_LEVELS,
        "[MOST, LEAST]",
        "Range of the urgency levels that it may set with `X-Clairvoyant-Urgency`, from 0 (immediate) to 4.",
        _LEVELS,
    )
    predicted_urgency: tuple[int, int] = setting(
        (0, LEVELS - 1), "[MOST, LEAST]", "Range of the levels that the urgency predictor may set.", _LEVELS
    )
    program: str = setting(
        "",
        "NAME",
        "Without keys: the programs of this machine that are this client, such as `nightly.py` or "
        "`opencode (site)`; * matches any text.",
        _PATTERN,
    )
    users: str = setting(
        "",
        "HEADER",
        "Header in which this front end names its users, such as `X-OpenWebUI-User-Email`. Each user becomes "
        "a client `NAME/user`, with these limits or its own table.",
        (lambda value: isinstance(value, str) and bool(HEADER.fullmatch(value)), "be the name of a header"),
    )
    background: int = setting(
        BACKGROUND_LEVELS,
        "N|true|false",
        "Priority levels that background requests, such as titles, wait behind others. true: all of its "
        "requests are background requests. false or 0: none are.",
        (lambda value: isinstance(value, int) and 0 <= value <= 100, "be true, false, or 0 to 100"),
    )
    max_answer_s: float | None = setting(
        None,
        "SECONDS",
        "End an answer that takes longer, as `max_answer_s` of serve. 0: none. Unset: as for all.",
        (lambda value: _is_number(value) and 0 <= value < 1 << 31, "be seconds, 0: none"),
    )
    engine_priority: bool = setting(
        False,
        None,
        "Let it set the `priority` of vLLM and SGLang, and the priority headers of routers. Other clients "
        "get 400 for the field, and their headers are replaced.",
        (lambda value: isinstance(value, bool), "be true or false"),
    )

    def levels_of(self, *, chore: bool) -> int:
        """Return the priority levels that a request, or a chore, waits behind others."""
        if self.background is True:
            return BACKGROUND_LEVELS
        return int(self.background) if chore else 0

    @property
    def tenant(self) -> Tenant:
        """The limits that the scheduler enforces. Infinity stands for no tau."""
        tau_s = float("inf") if self.tau_s == 0 else self.tau_s
        return Tenant(tau_s, self.weight, self.max_running, self.max_waiting)

    def clamped(self, priority: int) -> int:
        soonest, latest = self.priority
        return max(soonest, min(latest, priority))


EVERYBODY = ClientRules()  # the limits of clients without rules


@dataclass(frozen=True, slots=True)
class Clients:
    """The clients of a daemon. `keys` maps the SHA-256 of an API key to its client's name; without keys every
    request is accepted. `rules` are those of named clients, `defaults` those of all others; `weak` names
    clients with short keys. The first matching rule of `urgency` counts. `said` is what the operator has said
    since the start: whether all requests of a client are in the background, or none. The others follow:
    `tenants`, the limits that the scheduler enforces; `listed`, the first names, which are shown; `owners` of
    keys; patterns of the `programs` that are clients; `taken`, the names that no program has by itself.
    """

    keys: Mapping[bytes, str] = field(default_factory=dict)
    rules: Mapping[str, ClientRules] = field(default_factory=dict)
    defaults: ClientRules = EVERYBODY
    weak: tuple[str, ...] = ()
    urgency: tuple[UrgencyRule, ...] = ()
    said: Mapping[str, bool] = field(default_factory=dict)
    tenants: Mapping[str, Tenant] = field(init=False, repr=False, compare=False)
    listed: tuple[str, ...] = field(init=False, repr=False, compare=False)
    owners: frozenset[str] = field(init=False, repr=False, compare=False)
    programs: Mapping[str, str] = field(init=False, repr=False, compare=False)
    taken: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Here, so that a reload does it outside the event loop: there may be ten thousands.
        object.__setattr__(self, "tenants", {name: rules.tenant for name, rules in self.rules.items()})
        object.__setattr__(self, "owners", frozenset(self.keys.values()))
        object.__setattr__(self, "listed", tuple(nsmallest(CLIENTS_SHOWN, self.rules)))
        programs = {name: rules.program for name, rules in self.rules.items() if rules.program}
        object.__setattr__(self, "programs", programs)
        taken = frozenset((*self.rules, *(rule.client for rule in self.urgency)))
        object.__setattr__(self, "taken", taken)

    def rules_of(self, client: str) -> ClientRules:
        if not self.rules and not self.said:
            return self.defaults
        rules, background = rules_for(client, self.rules, self.defaults), None
        if self.said:
            background = rules_for(client, self.said, None)
        return rules if background is None else replace(rules, background=background)

    def user_of(self, client: str, head: RequestHead) -> str:
        """Return the client that a request counts for: a user named in its header, or this client itself."""
        header = self.rules_of(client).users
        named = head.get(header.lower().encode()) if header else None
        user = user_name(decoded(named)) if named is not None else ""
        return shortened(f"{client}/{user}") if user else client

    def client_of(self, program: Program) -> str:
        """Return the client that a program is: of the first table that names it, or else itself, under a name
        that neither a table nor an address has.
        """
        for name, pattern in self.programs.items():
            if fnmatchcase(program.name, pattern) or fnmatchcase(program.client, pattern):
                return name
        own = program.client
        return f"program {own}" if own in self.taken or is_address(own) else own

    @property
    def unproven(self) -> tuple[str, ...]:
        """Names with rules that do not apply: without keys, clients are known by program or address."""
        named = () if self.keys else self.taken - {"*"}
        return tuple(sorted(name for name in named - self.programs.keys() if not is_address(name)))

    def principal_of(self, client: str) -> str:
        """Return the owner of the key that a client used, "" without keys."""
        if not self.keys:
            return ""
        return client if client in self.owners else client.partition("/")[0]

    def owner_of(self, key: bytes) -> str | None:
        return self.keys.get(digest(key))


class ClientCounts(Counter[str]):
    """A count per client, of at most MAX_CLIENTS, as clients may choose any number of names; those with the
    fewest, then the oldest, are dropped.
    """

    def add(self, client: str, number: int = 1) -> None:
        self[client] += number
        if len(self) > MAX_CLIENTS:
            newest_first = list(reversed(self.items()))
            most = sorted(newest_first, key=lambda item: item[1], reverse=True)[: MAX_CLIENTS // 2]
            self.clear()
            self.update(dict(reversed(most)))


def user_name(given: str) -> str:
    """Return a user's name from a header as one word: unquoted, a UUID shortened."""
    name = "_".join(printable(unquote(given), MAX_USER_CHARS).split())
    return name[:UUID_CHARS] if UUID.fullmatch(name) else name


def digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


class _Key(NamedTuple):
    client: str
    key: str
    where: str


def parse_key_file(text: str, source: str) -> Clients:
    """Parse API keys, one per line as `name:key` or `key`. ClairvoyantError names the line."""
    found: list[_Key] = []
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip(" \t\r")
        if not line or line.startswith("#"):
            continue
        name, colon, key = line.partition(":")
        if not colon:
            name, key = f"key-{number}", line
        found.append(_Key(name.rstrip(" \t"), key.lstrip(" \t"), f"line {number}"))
    if not found:
        raise InputError(f"{source} has no key; write one per line, as name:key")
    return _keyed(found, source, Clients(), again="write one line per client, as name:key")


def find_key(text: str, client: str) -> str | None:
    """Return a client's key from either kind of file, None if it has none."""
    try:
        found = parse_toml(text).get("clients", {})[client]["key"]
    except ValueError:
        pairs = (line.partition(":") for line in text.split("\n"))
        return next((key.strip() for name, _, key in pairs if name.strip() == client), None)
    except (KeyError, TypeError, AttributeError):
        return None
    return found if isinstance(found, str) else None


def parse_clients(text: str, source: str) -> Clients:
    """Parse a clients file: [defaults], [clients.NAME], [[urgency]]. ClairvoyantError names table and key."""
    try:
        data = parse_toml(text)
    except ValueError as error:
        raise InputError(f"{source} cannot be read as TOML: {error}") from None
    _known(data, ("defaults", "clients", "urgency"), source, "section")
    urgency = tuple(_urgency(data.get("urgency", []), source))
    defaults = _rules(_table(data, "defaults", source), f"{source}: [defaults]", EVERYBODY)
    if defaults.program:
        raise InputError(f"{source}: [defaults] has a program; give it a table of its own")
    rules: dict[str, ClientRules] = {}
    found: list[_Key] = []
    users: set[str] = set()
    clients = _table(data, "clients", source)
    for name in sorted(clients, key=lambda name: "/" in name):  # a client before its users
        where = f"[clients.{name}]"
        _check_name(name, f"{source}: [clients.{name!r}]")
        owner = rules.get(name.partition("/")[0])
        is_user = owner is not None and bool(owner.users)
        table = dict(_table(clients, name, f"{source}: [clients]"))
        if "key" in table:
            key = table.pop("key")
            if not isinstance(key, str):
                raise InputError(f"{source}: {where} key must be text, in quotes")
            if is_user:
                raise InputError(f"{source}: {where} uses the key of its front end; remove its own")
            found.append(_Key(name, key, where))
        inherited = owner if owner is not None and is_user else defaults
        rules[name] = _rules(table, f"{source}: {where}", inherited, more=("key",))
        users |= {name} if is_user else set()
    keyed = {each.client for each in found}
    for name in rules.keys() - keyed - users:
        if found or rules[name].users:
            why = "although others have one" if found else "to prove the users that it names"
            raise InputError(f"{source}: [clients.{name}] has no key {why}; give it one")
    said = Clients(rules=rules, defaults=defaults, urgency=urgency)
    return _keyed(found, source, said, again="give each its own")


def _keyed(found: Iterable[_Key], source: str, clients: Clients, *, again: str) -> Clients:
    """Check each key and name, and return the clients with their keys."""
    owners: dict[bytes, _Key] = {}
    places: dict[str, str] = {}
    weak: list[str] = []
    for each in found:
        where = f"{source}: {each.where}"
        _check_name(each.client, where)
        _check_word(each.key, "key", where, "make one with: head -c 24 /dev/urandom | base64")
        if len(each.key) < MIN_KEY_CHARS:
            raise InputError(f"{where} has a key of fewer than {MIN_KEY_CHARS} characters; make it longer")
        hashed = digest(each.key.encode())
        if hashed in owners:
            raise InputError(f"{where} has the same key as {owners[hashed].where}; {again}")
        if each.client in places:
            raise InputError(f"{where} has the same name as {places[each.client]}; {again}")
        owners[hashed], places[each.client] = each, each.where
        if len(each.key) < GOOD_KEY_CHARS:
            weak.append(each.client)
    return replace(clients, keys={hashed: each.client for hashed, each in owners.items()}, weak=tuple(weak))


def _check_name(name: str, where: str) -> None:
    _check_word(name, "name", where, "name the client")
    if len(name) > NAME_CHARS:
        raise InputError(f"{where} has a name of more than {NAME_CHARS} characters; shorten it")


def _check_word(word: str, what: str, where: str, remedy: str) -> None:
    if not word:
        raise InputError(f"{where} has an empty {what}; {remedy}")
    if not one_word(word):
        raise InputError(f"{where} has a {what} with blanks or control characters; remove them")


def _rules(
    table: Mapping[str, Any], where: str, defaults: ClientRules, more: tuple[str, ...] = ()
) -> ClientRules:
    _checked(table, ClientRules, where, more)
    return replace(defaults, **{key: _kept(key, value) for key, value in table.items()})


def _urgency(tables: Any, source: str) -> Iterator[UrgencyRule]:
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InputError(f"{source}: urgency must be tables, as in [[urgency]]")
    if len(tables) > MAX_RULES:
        raise InputError(f"{source}: there are more than {MAX_RULES} tables [[urgency]]; use fewer, with *")
    for number, table in enumerate(tables, 1):
        where = f"{source}: [[urgency]] table {number}"
        if "level" not in table:
            raise InputError(f"{where} has no level; give it one from 0 (immediate) to 4")
        _checked(table, UrgencyRule, where)
        yield UrgencyRule(**table)


def _checked(table: Mapping[str, Any], record: type, where: str, more: tuple[str, ...] = ()) -> None:
    known = settings_of(record)
    _known(table, (*known, *more), where, "key")
    for key, value in table.items():
        for holds, wanted in known[key].checks:
            if not holds(value):
                raise InputError(f"{where} {key} must {wanted}; it is {str(value)[:40]!r}")


def _kept(key: str, value: Any) -> Any:
    if key in ("priority", "urgency", "predicted_urgency"):
        return tuple(value)
    return float(value) if key in ("weight", "tau_s") else value


def _table(data: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    table = data.get(name, {})
    if not isinstance(table, dict):
        raise InputError(f"{where}: {name} must be a table, as in [{name}]")
    return table


def _known(table: Mapping[str, Any], known: Iterable[str], where: str, what: str) -> None:
    known = tuple(known)
    for name in table:
        if name not in known:
            choices = did_you_mean(name, known) or f"; there are {', '.join(known)}"
            raise InputError(f"{where}{':' if what == 'section' else ''} unknown {what} {name!r}{choices}")
