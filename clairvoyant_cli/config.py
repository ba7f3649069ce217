"""What can be configured, from where: defaults < TOML file < environment < flags. Read once; frozen.

A key that is not known refuses, wherever it stands: a typo must not silently mean the default.
"""

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clairvoyant_cli.addresses import (
    BACKEND_KINDS,
    BACKEND_NAMES,
    DEFAULT_PORT,
    check_backend,
    is_backend,
    is_host,
    is_port,
)
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.files import read_file, text_of
from clairvoyant_cli.settings import (
    ABOVE_0_S,
    AT_LEAST_1,
    NOT_NEGATIVE,
    check_settings,
    current_name,
    did_you_mean,
    one_of,
    one_word,
    parse_value,
    quoted,
    read_table,
    setting,
    settings_of,
)

ENV_PREFIX = "CLAIRVOYANT_"

DEEPEST = 20
"""Levels of tables and lists that a file may have; ours have three."""

MAX_DAYS = 36_500
"""A hundred years: for ever."""

MAX_NAME_CHARS = 64
"""Of a backend's name: as of a client's."""

MIN_WEIGHT, MAX_WEIGHT = 0.01, 100.0
"""Of a backend, as of a client."""

MAX_SLOTS = 1024
"""More requests at once no server of this kind answers: llama.cpp knows 256 sequences (LLAMA_MAX_SEQ)."""

NAMES = ", ".join(BACKEND_NAMES)
LOG_LEVELS = ("debug", "info", "warning", "error")
SLOTS = (AT_LEAST_1, (lambda slots: slots <= MAX_SLOTS, f"be at most {MAX_SLOTS}"))


SLO = re.compile(r"ttft-p([5-9]\d(?:\.\d+)?)=(\d{1,6}(?:\.\d+)?)(ms|s)")
"""A service level: a percentile of the time to the first token, and what it shall be."""


def _is_name(text: str) -> bool:
    return 0 < len(text) <= MAX_NAME_CHARS and one_word(text)


@dataclass(frozen=True, slots=True)
class BackendConfig:
    """One LLM server, as a table `[[backends]]` says it. Of a single `--backend` is made one without a name,
    and without a URL where it is to be looked for.
    """

    name: str | None = setting(
        None,
        "NAME",
        "In logs and dashboards.",
        (_is_name, f"be one word of at most {MAX_NAME_CHARS} characters"),
    )
    url: str | None = setting(
        None, "NAME|URL", f"Where it is: {NAMES}, or a URL.", (is_backend, f"be {NAMES}, or a URL")
    )
    kind: str | None = setting(
        None, "KIND", f"{', '.join(BACKEND_KINDS)}. Unset: it is asked.", one_of(BACKEND_KINDS)
    )
    slots: int | None = setting(
        None, "N", "Requests in flight there at once. Unset: as `slots` of [serve].", *SLOTS
    )
    key_file: str | None = setting(None, "FILE", "Its own API key, sent with every request.")
    weight: float = setting(
        1.0,
        "FACTOR",
        "Its share of the work where several could do it as well: one of weight 2 is taken as though it had "
        "twice its slots.",
        (lambda weight: MIN_WEIGHT <= weight <= MAX_WEIGHT, f"be {MIN_WEIGHT:g} to {MAX_WEIGHT:g}"),
    )

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """How `clairvoyant serve` runs. All but `backends` are flags as well."""

    backend: str | None = setting(
        None,
        "[NAME=]URL",
        f"{NAMES}, or a URL, with a name of yours before it if you like: gpu=http://192.168.1.20:11434. "
        "Repeatable, or by commas: several servers behind one queue. Unset: look at their usual ports.",
        repeatable=True,
    )
    listen: str = setting(f"127.0.0.1:{DEFAULT_PORT}", "HOST:PORT", "Where clients connect.")
    policy: str | None = setting(None, "NAME", "How waiting requests are ordered. Unset: the default policy.")
    tau: float | None = setting(
        None,
        "SECONDS",
        "Starvation timeout; 0 turns the guard off. Unset: the profile's, or 120 s.",
        (lambda tau: tau >= 0, "not be negative; 0 turns the guard off"),
    )
    slots: int | None = setting(
        None,
        "N",
        "Requests in flight at each server. Unset: as many as it answers at once, where that shows, else 1; "
        "with --annotate 1024.",
        *SLOTS,
    )
    queue_capacity: int = setting(
        1024,
        "N",
        "Requests that may wait; beyond that, whoever has most waiting is refused one.",
        (lambda n: n >= 1, "be at least 1: every request stands in the queue, if only for a moment"),
    )
    max_wait: float | None = setting(
        None, "SECONDS", "Longest wait before a request is refused. Unset: no limit.", ABOVE_0_S
    )
    slo: str | None = setting(
        None,
        "OBJECTIVE",
        "Refuse what cannot have its first token in time, as in ttft-p95=2s. Unset: refuse nobody for it.",
        (lambda text: SLO.fullmatch(text) is not None, "be written as ttft-p95=2s or ttft-p99=500ms"),
    )
    overload_status: int = setting(
        503,
        "STATUS",
        "Of those refusals, 503 or 429.",
        (lambda status: status in (429, 503), "be 503 or 429"),
    )
    predictor: str | None = setting(
        None,
        "DIR",
        "A predictor of your own, made by `clairvoyant train`. Unset: the shipped one.",
        formerly="model",
    )
    semantic: str = setting(
        "auto",
        "MODE",
        "An encoder's second opinion on what waits: on, off, or auto: with the shipped predictor.",
        one_of(("on", "off", "auto")),
    )
    urgency: str | None = setting(
        None,
        "DIR|shipped",
        "Read from its text how urgent a request is: by the shipped model, or one made by `clairvoyant train "
        "--urgency`. The policy is `urgency` then, unless you choose another. Unset: off.",
    )
    urgency_target: float = setting(
        10.0, "SECONDS", "Say so when a request of level 0 waits longer.", ABOVE_0_S
    )
    annotate: str = setting(
        "auto",
        "MODE",
        "Hold nothing back from vLLM and SGLang, but set each request's priority: on, off, or auto: where "
        "they are seen to order by it.",
        one_of(("on", "off", "auto")),
    )
    profile: str | None = setting(
        None, "NAME", "A measured profile, made by `clairvoyant calibrate`. Unset: the newest that fits."
    )
    api_key_file: str | None = setting(
        None, "FILE", "API keys, one name:key a line. Needed to listen beyond loopback."
    )
    clients: str | None = setting(
        None,
        "FILE",
        "Clients, their API keys and limits, as TOML; in place of --api-key-file. SIGHUP reads it again.",
    )
    admin_token_file: str | None = setting(
        None,
        "FILE",
        "Token for the control API. Needed to listen beyond loopback. Unset: where clients have keys, one "
        "is made for each run, which only commands of your own account find.",
    )
    backend_key_file: str | None = setting(
        None, "FILE", "The backend's own API key, sent with every request."
    )
    allow_host: str | None = setting(
        None, "NAME", "A further Host name that is answered to; repeatable, or by commas.", repeatable=True
    )
    allow_origin: str | None = setting(
        None,
        "ORIGIN",
        "Let web pages of this origin send requests; * stands for any text; repeatable, or by commas.",
        repeatable=True,
    )
    body_limit_mib: int = setting(64, "MIB", "Longest request body read for a prediction.", AT_LEAST_1)
    body_budget_mib: int = setting(256, "MIB", "What all waiting bodies may take together.", AT_LEAST_1)
    connect_timeout: float = setting(
        5.0, "SECONDS", "To connect to the backend; an answer may take as long as it takes.", ABOVE_0_S
    )
    client_timeout: float = setting(
        30.0, "SECONDS", "Without progress before a client that stalls is given up.", ABOVE_0_S
    )
    drain_timeout: float = setting(300.0, "SECONDS", "A drain waits so long for what runs.", NOT_NEGATIVE)
    outage_grace: float = setting(
        60.0,
        "SECONDS",
        "Requests wait so long for a backend that has gone; 0 refuses them at once.",
        NOT_NEGATIVE,
    )
    max_connections: int | None = setting(
        None, "N", "Client connections at once. Unset: what the open-file limit allows.", AT_LEAST_1
    )
    db: str | None = setting(
        None,
        "FILE",
        "Database of profiles and history. Unset: $CLAIRVOYANT_DB, or the user's data directory.",
    )
    no_preempt: bool = setting(
        False, None, "Cut no answer for another, even where `calibrate` found that it can be continued."
    )
    quantum: int = setting(
        100,
        "TOKENS",
        "What a turn brings under `rr` and `rr-sjf` before an answer makes way.",
        (lambda tokens: tokens >= 1, "be at least 1"),
    )
    freeze: bool = setting(
        False, None, "Learn nothing from traffic: tau, speeds and predictions stay as they are."
    )
    history_days: int = setting(
        90,
        "DAYS",
        "How long finished requests are remembered.",
        (lambda days: 1 <= days <= MAX_DAYS, f"be 1 to {MAX_DAYS}"),
    )
    history_rows: int = setting(
        1_000_000,
        "N",
        "Finished requests that are remembered; 0 records none.",
        (lambda n: n >= 0, "not be negative; 0 records none"),
    )
    record_prompts: bool = setting(
        False,
        None,
        "Record prompt text too, of bodies up to 256 KiB, to train a predictor on it. "
        "`clairvoyant forget` erases it.",
    )
    show_prompts: bool = setting(
        False, None, "Let dashboards show prompts. They are not logged, nor recorded by this."
    )
    log_level: str = setting("info", "LEVEL", f"{', '.join(LOG_LEVELS)}.", one_of(LOG_LEVELS))
    log_file: str | None = setting(
        None,
        "FILE",
        "Log into a file that only its owner can read. Beyond 5 MiB a new one is begun, and three old ones "
        "are kept. Unset: standard error.",
    )
    backends: tuple[BackendConfig, ...] = ()

    def __post_init__(self) -> None:
        check_settings(self)
        _check(
            self.api_key_file is None or self.clients is None,
            "api_key_file and clients exclude each other; move the keys into the clients' file",
        )
        for name in ("backend", "slots", "backend_key_file"):
            _check(
                not self.backends or getattr(self, name) is None,
                f"{name} and [[backends]] exclude each other; say it in the tables, or take them out",
            )
        self.address()
        _check(
            len(self.servers()) == 1 or self.backend_key_file is None,
            "backend_key_file goes with one backend; give each its own key_file in [[backends]]",
        )

    def servers(self) -> tuple[BackendConfig, ...]:
        """Return the LLM servers to use: those of the tables, or those that `backend` means."""
        if self.backends:
            return self.backends
        wanted = [None] if self.backend is None else self.backend.split(",")
        servers = [_server(each, self.slots, self.backend_key_file) for each in wanted]
        if len(servers) > 1:
            servers = [replace(each, name=each.name or name_for(each.url or "")) for each in servers]
        for key in ("name", "url"):
            given = [getattr(each, key) for each in servers]
            twin = next((each for each in given if given.count(each) > 1), None)
            _check(twin is None, f"backend says {twin} twice; give each its own {key}")
        return tuple(servers)

    def address(self) -> tuple[str, int]:
        """Return the listening host and port."""
        host, colon, port = self.listen.rpartition(":")
        host = host.strip("[]")
        _check(
            bool(colon) and is_port(port) and (not host or is_host(host)),
            f"listen must be HOST:PORT, not {quoted(self.listen)}",
        )
        return host or "0.0.0.0", int(port)  # noqa: S104 - ":8080" says so; keys are demanded


def _server(wanted: str | None, slots: int | None, key_file: str | None) -> BackendConfig:
    """Return the server that `URL` or `NAME=URL` means."""
    if wanted is None:
        return BackendConfig(slots=slots, key_file=key_file)
    before, equals, after = wanted.partition("=")
    named = bool(equals) and not any(sign in before for sign in "/:?")  # else it is part of the URL
    name, url = (before, after) if named else (None, wanted)
    check_backend(url)
    return BackendConfig(name, url, slots=slots, key_file=key_file)


def name_for(url: str) -> str:
    """Return what a server is called that nobody has named: by its place, which does not change."""
    return url.rpartition("://")[2].partition("/")[0][:MAX_NAME_CHARS]


@dataclass(frozen=True, slots=True)
class TopConfig:
    """How `clairvoyant top` begins: the table [top]. What is left out is as it was left the last time."""

    theme: str | None = setting(None, "NAME", "Its colours: night, day, contrast.")
    sort: str | None = setting(
        None, "COLUMN", "What the queue is sorted by, as in `age`, or `-age` for the other way."
    )
    hidden: str | None = setting(None, "COLUMNS", "Columns of the queue not to be shown, as in `q90 bar`.")
    panel: str | None = setting(None, "NAME", "What a small terminal shows below the queue, as in `stats`.")
    keys: str | None = setting(None, "KEYS", "Keys in place of others, as in `promote=Y drain=D`.")

    def likes(self) -> dict[str, str]:
        """Return what was set, as the dashboard calls it."""
        given = {
            "theme": self.theme,
            "queue.sort": self.sort,
            "queue.hidden": self.hidden,
            "deck": self.panel,
            "keys": self.keys,
        }
        return {name: value for name, value in given.items() if value is not None}


def load_top_config() -> TopConfig:
    """Read the table [top] of the configuration file, if there is one."""
    path = default_config_file()
    if path is None or not os.path.lexists(path):
        return TopConfig()
    table = _parsed(path).get("top", {})
    _check(isinstance(table, dict), f"{path}: top must be a table, as in [top]")
    return TopConfig(**read_table(TopConfig, table, str(path), " in [top]"))


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise ClairvoyantError(message, ExitCode.USAGE)


def load_serve_config(
    flags: Mapping[str, Any], *, file: Path | None = None, env: Mapping[str, str] = os.environ
) -> ServeConfig:
    """Put the configuration together. `flags` holds only what was given; `file` must exist if named."""
    settings: dict[str, Any] = {}
    path = file or default_config_file()
    if path is not None and (file is not None or os.path.lexists(path)):
        settings |= _from_file(path)
    settings |= _from_env(env)
    settings |= flags
    return replace(ServeConfig(), **settings)


def default_config_file() -> Path | None:
    """Where the configuration file is looked for when none is named."""
    from platformdirs import user_config_path

    return user_config_path("clairvoyant", appauthor=False) / "config.toml"


def parse_toml(text: str) -> dict[str, Any]:
    """Return what a TOML text says; ValueError, in one line, if it is none or holds what no setting can be.

    Whatever passes can be compared, converted and said without care for its size: `tomllib` takes numbers of
    any length, and tables as deep as a dotted key is long.
    """
    try:
        data = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:  # a decimal number of thousands of digits, which Python itself refuses to read
        raise ValueError("it holds a number beyond 64 bits") from None
    level: list[Any] = [data]
    for _ in range(DEEPEST):
        # TOML 1.0: integers have 64 bits.
        if any(type(value) is int and not -(1 << 63) <= value < 1 << 63 for value in level):
            raise ValueError("it holds a number beyond 64 bits")
        level = [value for each in level if isinstance(each, dict | list) for value in _values(each)]
        if not level:
            return data
    raise ValueError("it is nested too deeply")


def _values(each: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return each.values() if isinstance(each, dict) else each


def _parsed(path: Path) -> dict[str, Any]:
    text = text_of(read_file(path, "the configuration"), path, "the configuration")
    try:
        data = parse_toml(text)
    except ValueError as error:
        raise ClairvoyantError(f"cannot read the configuration {path}: {error}", ExitCode.USAGE) from None
    for name in data:
        known = name in ("serve", "backends", "top")
        _check(known, f"{path}: unknown section [{name}]; there are [serve], [[backends]] and [top]")
    return data


def _from_file(path: Path) -> dict[str, Any]:
    data = _parsed(path)
    section = data.get("serve", {})
    _check(isinstance(section, dict), f"{path}: serve must be a table, as in [serve]")
    settings = read_table(ServeConfig, section, str(path), " in [serve]")
    tables = data.get("backends", [])
    _check(
        isinstance(tables, list) and all(isinstance(table, dict) for table in tables),
        f"{path}: backends must be tables, as in [[backends]]",
    )
    return settings | {"backends": tuple(_backends(tables, f"{path}: [[backends]]"))}


def _backends(tables: Iterable[Mapping[str, Any]], source: str) -> Iterator[BackendConfig]:
    """Read the tables, which errors call by their number."""
    first: dict[tuple[str, str], int] = {}
    for number, table in enumerate(tables, 1):
        where = f"{source} table {number}"
        given = read_table(BackendConfig, table, where)
        for key in ("name", "url"):
            _check(key in given, f"{where} has no {key}; give it one")
            twin = first.setdefault((key, given[key]), number)
            _check(twin == number, f"{where} has the same {key} as table {twin}; give each its own")
        try:
            yield BackendConfig(**given)
        except ClairvoyantError as error:
            raise ClairvoyantError(f"{where}: {error}", ExitCode.USAGE) from None


def _from_env(env: Mapping[str, str]) -> dict[str, Any]:
    known = settings_of(ServeConfig)
    settings: dict[str, Any] = {}
    for name, text in env.items():
        if not name.startswith(f"{ENV_PREFIX}SERVE_"):
            continue
        key = current_name(name.removeprefix(f"{ENV_PREFIX}SERVE_").lower(), ServeConfig)
        if key not in known:
            hint = did_you_mean(key, known)
            raise ClairvoyantError(f"unknown environment variable {name}{hint}", ExitCode.USAGE)
        settings[key] = parse_value(text, known[key].kind, name)
    return settings
