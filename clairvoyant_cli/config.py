"""What can be configured, from where: defaults < TOML file < environment < flags. Read once; frozen.

A key that is not known refuses, wherever it stands: a typo must not silently mean the default.
"""

import os
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints

from clairvoyant_cli.addresses import SHOWN_CHARS, check_backend, is_host, is_port
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from profiles.records import MAX_SLOTS

ENV_PREFIX = "CLAIRVOYANT_"
KIND_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}

DEEPEST = 20
"""Levels of tables and lists that a file may have; ours have three."""

MAX_DAYS = 36_500
"""A hundred years: for ever."""


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """How `clairvoyant serve` runs. The comment behind each field is its help text in the reference."""

    backend: str | None = None  # ollama, llamacpp, lmstudio, jan, or a URL; unset: look at their ports
    listen: str = "127.0.0.1:8080"  # address and port for clients
    policy: str | None = None  # how waiting requests are ordered; unset: the default policy
    tau: float | None = None  # starvation timeout in seconds; 0 turns the guard off
    slots: int | None = None  # requests in flight at once; unset: asked of llama.cpp, 1 elsewhere
    queue_capacity: int = 1024  # requests that may wait; beyond that, who has most waiting gets a 503
    max_wait: float | None = None  # seconds a request may wait before it gets a 503; unset: no limit
    overload_status: int = 503  # status of those refusals: 503 or 429
    model: str | None = None  # directory of a predictor of one's own
    profile: str | None = None  # name of a measured profile
    api_key_file: str | None = None  # API keys, one name:key a line; needed to listen beyond loopback
    clients: str | None = None  # clients, their API keys and limits, as TOML; in place of api_key_file
    admin_token_file: str | None = None  # token for the control API, needed beyond loopback (see Control API)
    backend_key_file: str | None = None  # the backend's own API key, sent with every request
    allow_host: str | None = None  # further Host names that are answered to, by commas
    allow_origin: str | None = None  # further origins of web pages that are answered; * is any text
    body_limit_mib: int = 64  # longest request body that is read for a prediction
    body_budget_mib: int = 256  # what the bodies of all waiting requests may take together
    connect_timeout: float = 5.0  # seconds to connect to the backend; an answer may take as long as it takes
    client_timeout: float = 30.0  # seconds without progress before a client that stalls is given up
    drain_timeout: float = 300.0  # seconds that a drain waits for what runs
    outage_grace: float = 60.0  # seconds that requests wait for a backend that has gone; 0: refuse at once
    max_connections: int | None = None  # client connections at once; unset: what the open-file limit allows
    db: str | None = None  # database of profiles and history; unset: $CLAIRVOYANT_DB, or the user's own
    freeze: bool = False  # learn nothing from traffic: tau, speeds and predictions stay as they are
    history_days: int = 90  # how long finished requests are remembered
    history_rows: int = 1_000_000  # how many finished requests are remembered; 0 records none
    record_prompts: bool = False  # record prompt text too, of bodies up to 256 KiB, to train on it
    show_prompts: bool = False  # let dashboards show prompt text (it is not logged, nor recorded by this)
    log_level: str = "info"  # debug, info, warning or error

    def __post_init__(self) -> None:
        _check(self.overload_status in (429, 503), "overload_status must be 503 or 429")
        for name, value in asdict(self).items():
            _check(not isinstance(value, str) or "\0" not in value, f"{name} must not hold a NUL character")
        check_backend(self.backend)
        _check(self.slots is None or self.slots >= 1, "slots must be at least 1")
        _check(self.slots is None or self.slots <= MAX_SLOTS, f"slots must be at most {MAX_SLOTS}")
        _check(
            self.queue_capacity >= 1,
            "queue_capacity must be at least 1: every request stands in the queue, if only for a moment",
        )
        _check(self.tau is None or self.tau >= 0, "tau must not be negative; 0 turns the guard off")
        _check(self.max_wait is None or self.max_wait > 0, "max_wait must be above 0 seconds")
        _check(1 <= self.history_days <= MAX_DAYS, f"history_days must be 1 to {MAX_DAYS}")
        _check(
            self.api_key_file is None or self.clients is None,
            "api_key_file and clients exclude each other; move the keys into the clients' file",
        )
        _check(self.history_rows >= 0, "history_rows must not be negative; 0 records none")
        _check(self.body_limit_mib >= 1, "body_limit_mib must be at least 1")
        _check(self.body_budget_mib >= 1, "body_budget_mib must be at least 1")
        _check(self.connect_timeout > 0, "connect_timeout must be above 0 seconds")
        _check(self.client_timeout > 0, "client_timeout must be above 0 seconds")
        _check(self.drain_timeout >= 0, "drain_timeout must not be negative")
        _check(self.outage_grace >= 0, "outage_grace must not be negative")
        least_one = self.max_connections is None or self.max_connections >= 1
        _check(least_one, "max_connections must be at least 1")
        levels = ("debug", "info", "warning", "error")
        _check(self.log_level in levels, f"log_level must be one of {', '.join(levels)}")
        self.address()

    def address(self) -> tuple[str, int]:
        """Return the listening host and port."""
        host, colon, port = self.listen.rpartition(":")
        host = host.strip("[]")
        _check(
            bool(colon) and is_port(port) and (not host or is_host(host)),
            f"listen must be HOST:PORT, not {_quoted(self.listen)}",
        )
        return host or "0.0.0.0", int(port)  # noqa: S104 - ":8080" says so; keys are demanded


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise ClairvoyantError(message, ExitCode.USAGE)


def load_serve_config(
    flags: Mapping[str, Any], *, file: Path | None = None, env: Mapping[str, str] = os.environ
) -> ServeConfig:
    """Put the configuration together. `flags` holds only what was given; `file` must exist if named."""
    settings: dict[str, Any] = {}
    path = file or default_config_file()
    if path is not None and (file is not None or path.exists()):
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


def _from_file(path: Path) -> dict[str, Any]:
    try:
        data = parse_toml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = error.strerror or error if isinstance(error, OSError) else error
        raise ClairvoyantError(f"cannot read the configuration {path}: {why}", ExitCode.USAGE) from None
    unknown = set(data) - {"serve"}
    if unknown:
        raise ClairvoyantError(f"{path}: unknown section [{min(unknown)}]; there is [serve]", ExitCode.USAGE)
    section = data.get("serve", {})
    if not isinstance(section, dict):
        raise ClairvoyantError(f"{path}: serve must be a table, as in [serve]", ExitCode.USAGE)
    known = _kinds()
    for key, value in section.items():
        if key not in known:
            raise ClairvoyantError(
                f"{path}: unknown key {_quoted(key)} in [serve]{did_you_mean(key, known)}", ExitCode.USAGE
            )
        section[key] = _typed(key, value, known[key], str(path))
    return dict(section)


def _from_env(env: Mapping[str, str]) -> dict[str, Any]:
    known = _kinds()
    settings: dict[str, Any] = {}
    for name, text in env.items():
        if not name.startswith(f"{ENV_PREFIX}SERVE_"):
            continue
        key = name.removeprefix(f"{ENV_PREFIX}SERVE_").lower()
        if key not in known:
            raise ClairvoyantError(
                f"unknown environment variable {name}{did_you_mean(key, known)}", ExitCode.USAGE
            )
        settings[key] = _parsed(text, known[key], name)
    return settings


def _kinds() -> dict[str, type]:
    """Each key's type, without its `| None`."""
    kinds: dict[str, type] = {}
    hints = get_type_hints(ServeConfig)
    for each in fields(ServeConfig):
        hint = hints[each.name]
        kinds[each.name] = (
            next(a for a in get_args(hint) if a is not type(None)) if isinstance(hint, UnionType) else hint
        )
    return kinds


def _typed(key: str, value: Any, kind: type, where: str) -> Any:
    with suppress(OverflowError):
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
    if type(value) is not kind:
        raise ClairvoyantError(
            f"{where}: {key} must be {KIND_NAMES[kind]}, not {_quoted(value)}", ExitCode.USAGE
        )
    return value


def _parsed(text: str, kind: type, where: str) -> Any:
    if kind is bool:
        if text.lower() in ("1", "true", "yes", "on"):
            return True
        if text.lower() in ("0", "false", "no", "off", ""):
            return False
        raise ClairvoyantError(f"{where} must be true or false, not {_quoted(text)}", ExitCode.USAGE)
    try:
        return kind(text)
    except ValueError:
        raise ClairvoyantError(
            f"{where} must be {KIND_NAMES[kind]}, not {_quoted(text)}", ExitCode.USAGE
        ) from None


def _quoted(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"


def did_you_mean(key: str, known: Iterable[str]) -> str:
    """Return a hint at the known name that was probably meant, "" if none is near."""
    from difflib import get_close_matches

    near = get_close_matches(key, tuple(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""
