"""Loads the configuration: defaults < TOML file < environment < flags.

Unknown keys are errors, so that a typo never silently means the default.
"""

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from clairvoyant_cli.addresses import (
    BACKEND_KINDS,
    BACKEND_NAMES,
    DEFAULT_PORT,
    check_backend,
    is_backend,
    is_url,
    parse_address,
)
from clairvoyant_cli.errors import ClairvoyantError, InputError
from clairvoyant_cli.files import read_file, text_of
from clairvoyant_cli.settings import (
    ABOVE_0_S,
    AT_LEAST_1,
    NOT_NEGATIVE,
    Former,
    check_settings,
    current,
    did_you_mean,
    one_of,
    one_word,
    parse_value,
    read_table,
    setting,
    settings_of,
)
from clairvoyant_cli.system import split_command

ENV_PREFIX = "CLAIRVOYANT_"

DEEPEST = 20  # deepest nesting of tables and lists in a file; a valid file has three levels
MAX_DAYS = 36_500  # a hundred years
MAX_NAME_CHARS = 64  # longest name of a backend; the same as for a client

MIN_WEIGHT, MAX_WEIGHT = 0.01, 100.0  # bounds of a backend's weight; the same as for a client
MAX_SLOTS = 1024  # above any server's concurrency: llama.cpp has at most 256 sequences (LLAMA_MAX_SEQ)
NAMES = ", ".join(BACKEND_NAMES)
SILENT_S = 45.0
"""How long a waiting client gets nothing by default: the shortest time-out of a common one is 60 s."""

STABLE_PREFIX = ("off", "known")
PREEMPT = ("off", "proven", "all")
LOG_LEVELS = ("debug", "info", "warning", "error")
SLOTS = (AT_LEAST_1, (lambda slots: slots <= MAX_SLOTS, f"be at most {MAX_SLOTS}"))
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=", re.ASCII)
SLO = re.compile(r"ttft-p([5-9]\d(?:\.\d+)?)=(\d{1,6}(?:\.\d+)?)(ms|s)")
"""A service-level objective: a percentile of TTFT and its limit, such as `ttft-p95=2s`."""


def command_of(text: str) -> tuple[dict[str, str], list[str]]:
    """Return the variables before a command and its words; ValueError for a quote that does not end."""
    words = split_command(text)
    count = next((at for at, word in enumerate(words) if not ASSIGNMENT.match(word)), len(words))
    return dict(word.split("=", 1) for word in words[:count]), words[count:]


def _is_command(text: str) -> bool:
    with suppress(ValueError):
        words = command_of(text)[1]
        return bool(words) and not {"&&", "||", ";", "|"}.intersection(words)
    return False


def _is_regex(text: str) -> bool:
    re2 = import_module("re2")  # takes 50 ms
    options = re2.Options()
    options.log_errors = False
    with suppress(re2.error):
        return re2.compile(text, options) is not None
    return False


IS_REGEX = (_is_regex, "be a regular expression (RE2: no lookaround, no back-references)")


def _is_keep_alive(text: str) -> bool:
    return text in ("auto", "off") or (re.fullmatch(r"\d{1,6}(\.\d+)?", text) is not None and float(text) > 0)


@dataclass(frozen=True, slots=True)
class BackendConfig:
    """One LLM server: a `[[backends]]` table, or one `--backend`.

    A single `--backend` has no name; without `--backend` it has no URL either, and is searched for.
    """

    name: str | None = setting(
        None,
        "NAME",
        "Name in logs and dashboards.",
        (
            lambda name: 0 < len(name) <= MAX_NAME_CHARS and one_word(name),
            f"be one word of at most {MAX_NAME_CHARS} characters",
        ),
    )
    url: str | None = setting(
        None, "NAME|URL", f"Server address: a URL, or one of {NAMES}.", (is_backend, f"be {NAMES}, or a URL")
    )
    kind: str | None = setting(
        None, "KIND", f"Server kind: {', '.join(BACKEND_KINDS)}. Unset: detected.", one_of(BACKEND_KINDS)
    )
    slots: int | None = setting(
        None, "N", "Maximum requests in flight on this server. Unset: `slots` of [serve].", *SLOTS
    )
    key_file: str | None = setting(None, "FILE", "File with the server's API key.")
    weight: float = setting(
        1.0,
        "FACTOR",
        "Share of the load relative to other servers: weight 2 counts as twice the slots.",
        (lambda weight: MIN_WEIGHT <= weight <= MAX_WEIGHT, f"be {MIN_WEIGHT:g} to {MAX_WEIGHT:g}"),
    )

    metrics_url: str | None = setting(
        None,
        "URL",
        "Address of the Prometheus metrics of an engine or a router, which tell its queue. Unset: its own "
        "address; for SMG port 29000 of its host, for llm-d port 9090.",
        (is_url, "be a URL"),
    )

    self_test: bool = setting(
        False, None, "Run the self-test even if the server is on another machine or has an API key."
    )

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True)
class PrefixRules:
    """Own rules for `stable_prefix`: the table [stable_prefix]."""

    move: str | None = setting(
        None, "REGEX", "Move the lines in which it matches to the end of the prompt.", IS_REGEX
    )

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """Settings of `clairvoyant serve`. Each except `backends` is also a flag."""

    backend: str | None = setting(
        None,
        "[NAME=]URL",
        f"LLM server: {NAMES}, or a URL, optionally named: gpu=http://192.168.1.20:11434. Repeat or "
        "separate by commas for several servers. Unset: search the default ports.",
        repeatable=True,
    )
    start: str | None = setting(
        None,
        "COMMAND",
        "Start the LLM server with this command, restart it if it dies, and stop it with the proxy. "
        "NAME=VALUE before the command sets a variable, and PWD the working directory.",
        (_is_command, "be a command, with all quotes closed; no shell reads &&, ; or |"),
    )
    listen: str = setting(
        f"127.0.0.1:{DEFAULT_PORT}",
        "HOST:PORT",
        "Address to listen on. Repeat it, or separate by commas, for several. If another program has one of "
        "those after the first, the proxy takes it as soon as it is free.",
        repeatable=True,
    )
    policy: str | None = setting(None, "NAME", "Order of queued requests. Unset: the default policy.")
    tau: float | None = setting(
        None,
        "SECONDS",
        "A request that has waited this long may start before shorter ones; 0: never. Unset: as measured, "
        "else 120 s.",
        NOT_NEGATIVE,
    )
    slots: int | None = setting(
        None,
        "N",
        "How many requests each server gets at once. Unset: the server's own limit if it reports one, else "
        "1; 1024 with --annotate.",
        *SLOTS,
    )
    queue_capacity: int = setting(
        1024,
        "N",
        "Maximum queued requests. When full, the newest of the client with the most is rejected.",
        AT_LEAST_1,
        expert=True,
    )
    refuse_truncated: bool = setting(
        False, None, "Reject a prompt with 400 that Ollama would answer without its beginning.", expert=True
    )
    max_wait: float | None = setting(
        None, "SECONDS", "Reject requests that have waited this long. Unset: no limit.", ABOVE_0_S
    )
    max_answer_s: float | None = setting(
        None,
        "SECONDS",
        "End an answer that takes longer. A stream breaks off, without a finish reason. An unstreamed one "
        "gets 504, which SDKs do not repeat, or breaks off after empty events. Unset: no limit.",
        ABOVE_0_S,
        expert=True,
    )
    keep_alive: str = setting(
        "auto",
        "auto|off|SECONDS",
        "Send empty events to a waiting client so that it does not give up: auto (after 45 s, or half of a "
        "shorter time-out that it announces), off, or after SECONDS.",
        (_is_keep_alive, "be auto, off, or a number of seconds above 0"),
        expert=True,
    )
    slo: str | None = setting(
        None,
        "OBJECTIVE",
        "Reject requests that would miss this TTFT objective, e.g. ttft-p95=2s. Unset: off.",
        (lambda text: SLO.fullmatch(text) is not None, "be written as ttft-p95=2s or ttft-p99=500ms"),
        expert=True,
    )
    predictor: str | None = setting(
        None, "DIR", "Predictor trained with `clairvoyant train`. Unset: the built-in one.", expert=True
    )
    semantic: str = setting(
        "auto",
        "MODE",
        "Refine predictions of queued requests with a text encoder: on, off, or auto (on with the built-in "
        "predictor).",
        one_of(("on", "off", "auto")),
        expert=True,
    )
    urgency: str | None = setting(
        None,
        "DIR|shipped",
        "Predict urgency from the text, with the built-in model (`shipped`) or one trained with `clairvoyant "
        "train --urgency`. Makes `urgency` the default policy. Unset: off.",
    )
    annotate: str = setting(
        "auto",
        "MODE",
        "Forward requests at once and set their priority, for servers that schedule by it (vLLM, SGLang, "
        "Dynamo, SMG, llm-d): on, off, or auto (on where the server is found to support it).",
        one_of(("on", "off", "auto")),
        expert=True,
    )
    api_key_file: str | None = setting(
        None, "FILE", "API keys, one name:key per line. Required to listen beyond this machine."
    )
    clients: str | None = setting(
        None, "FILE", "Clients with API keys and limits, as TOML; replaces --api-key-file. SIGHUP reloads it."
    )
    admin_token_file: str | None = setting(
        None,
        "FILE",
        "Token for the control API. Required to listen beyond this machine. Unset: if clients have keys, a "
        "random token for each run, which only your own account can read.",
    )
    backend_key_file: str | None = setting(None, "FILE", "File with the backend's API key.")
    allow_host: str | None = setting(
        None, "NAME", "Also accept this Host header. Repeat it, or separate by commas.", repeatable=True
    )
    allow_origin: str | None = setting(
        None,
        "ORIGIN",
        "Allow web pages of this origin (CORS); * matches any text. Repeat or separate by commas.",
        repeatable=True,
    )
    body_limit_mib: int = setting(
        64,
        "MIB",
        "Largest request body that is read for a prediction, with its pictures.",
        AT_LEAST_1,
        expert=True,
    )
    client_timeout: float = setting(
        30.0, "SECONDS", "Disconnect a client that makes no progress for this long.", ABOVE_0_S, expert=True
    )
    drain_timeout: float = setting(
        300.0, "SECONDS", "Maximum time a drain waits for running requests.", NOT_NEGATIVE, expert=True
    )
    outage_grace: float = setting(
        60.0,
        "SECONDS",
        "Keep queued requests this long while the backend is down; 0 rejects them at once.",
        NOT_NEGATIVE,
        expert=True,
    )
    max_connections: int | None = setting(
        None,
        "N",
        "Maximum client connections. Unset: what the open-file limit allows.",
        AT_LEAST_1,
        expert=True,
    )
    db: str | None = setting(
        None,
        "FILE",
        "Database of profiles and history. Unset: $CLAIRVOYANT_DB, else the user data directory.",
    )
    preempt: str = setting(
        "proven",
        "WHICH",
        "Which running answers to preempt. `off`: none. `proven`: those that continue as if they had not "
        "been preempted. `all`: also those at temperature 0 whose text may change by rounding.",
        one_of(PREEMPT),
    )
    stable_prefix: str = setting(
        "off",
        "off|known",
        "Move lines of the system prompt that change with each request to the end of the prompt, so that the "
        "server need not read all of it again. `known`: those of known programs, and those that match your "
        "rules in [stable_prefix]. `off`: forward every request unchanged.",
        one_of(STABLE_PREFIX),
    )
    no_self_test: bool = setting(
        False, None, "Do not test in idle time whether the server can continue preempted answers."
    )
    freeze: bool = setting(
        False, None, "Do not learn from traffic: keep tau, speeds and predictions fixed.", expert=True
    )
    history_days: int = setting(
        90,
        "DAYS",
        "Keep the history for this long.",
        (lambda days: 1 <= days <= MAX_DAYS, f"be 1 to {MAX_DAYS}"),
    )
    history_rows: int = setting(
        1_000_000, "N", "Maximum history rows; 0 records nothing.", NOT_NEGATIVE, expert=True
    )
    record_prompts: bool = setting(
        False,
        None,
        "Also record requests (up to 256 KiB each), to train a predictor. `history --forget` erases them.",
    )
    show_prompts: bool = setting(
        False, None, "Show prompts and answers in dashboards. They are neither logged nor recorded."
    )
    log_level: str = setting("info", "LEVEL", f"Log level: {', '.join(LOG_LEVELS)}.", one_of(LOG_LEVELS))
    log_file: str | None = setting(
        None,
        "FILE",
        "Log to this file (mode 0600), rotated at 5 MiB with three old files kept. Unset: standard error.",
    )
    otlp_endpoint: str | None = setting(
        None,
        "URL",
        "Send traces of requests here by OTLP over HTTP; needs the extra `otel`. Unset: "
        "$OTEL_EXPORTER_OTLP_ENDPOINT, else off.",
        (is_url, "be a URL such as http://127.0.0.1:4318"),
        expert=True,
    )
    backends: tuple[BackendConfig, ...] = ()
    prefix_rules: PrefixRules = PrefixRules()

    def __post_init__(self) -> None:
        check_settings(self)
        _check(
            self.api_key_file is None or self.clients is None,
            "api_key_file and clients exclude each other; move the keys into the clients file",
        )
        for name in ("backend", "slots", "backend_key_file"):
            _check(
                not self.backends or getattr(self, name) is None,
                f"{name} and [[backends]] exclude each other; set it in the tables, or remove them",
            )
        self.addresses()
        _check(
            len(self.servers()) == 1 or self.backend_key_file is None,
            "backend_key_file goes with one backend; give each its own key_file in [[backends]]",
        )

    def servers(self) -> tuple[BackendConfig, ...]:
        if self.backends:
            return self.backends
        wanted = [None] if self.backend is None else self.backend.split(",")
        servers = [_server(each, self.slots, self.backend_key_file) for each in wanted]
        if len(servers) > 1:
            servers = [replace(each, name=each.name or name_for(each.url or "")) for each in servers]
        for key in ("name", "url"):
            given = [getattr(each, key) for each in servers]
            twin = next((each for each in given if given.count(each) > 1), None)
            _check(twin is None, f"backend names {twin} twice; give each its own {key}")
        return tuple(servers)

    @property
    def silent_s(self) -> float | None:
        """How long a waiting client gets nothing, in seconds; None for `keep_alive` off."""
        if self.keep_alive == "off":
            return None
        return SILENT_S if self.keep_alive == "auto" else float(self.keep_alive)

    def addresses(self) -> list[tuple[str, int]]:
        """Return the listening hosts and ports, the one that commands use first."""
        return [parse_address(each, "listen") for each in self.listen.split(",")]


def _server(wanted: str | None, slots: int | None, key_file: str | None) -> BackendConfig:
    """Parse `URL` or `NAME=URL`."""
    if wanted is None:
        return BackendConfig(slots=slots, key_file=key_file)
    before, equals, after = wanted.partition("=")
    named = bool(equals) and not any(sign in before for sign in "/:?")  # else it is part of the URL
    name, url = (before, after) if named else (None, wanted)
    check_backend(url)
    return BackendConfig(name, url, slots=slots, key_file=key_file)


def name_for(url: str) -> str:
    """Return the default name of a server: its host and port."""
    return url.rpartition("://")[2].partition("/")[0][:MAX_NAME_CHARS]


FORMER = {
    "model": Former("0.3", now="predictor"),
    "no_preempt": Former("0.3", bool, now="preempt", worth={True: "off", False: "proven"}),
    "quantum": Former("0.3", int),
    "slot_save_path": Former("0.3"),
    "slot_budget": Former("0.3"),
    "runaway_tokens": Former("0.3", int),
    "repeats": Former("0.3", int),
    "hold_context": Former("0.4", bool, instead="set OLLAMA_CONTEXT_LENGTH for Ollama"),
    "no_keep_place": Former("0.4", bool, instead="a request that is sent again keeps its place"),
    "overload_status": Former("0.4", int, instead="a full queue answers 503"),
    "no_programs": Former("0.4", bool, instead='set program = "*" in a table of the clients file'),
    "body_budget_mib": Former("0.4", int, instead="queued bodies get 256 MiB together"),
    "tail_weight": Former("0.4", float, instead="set policy to fcfs or sjf"),
    "urgency_target": Former("0.4", float, instead="the warning comes after 10 s"),
    "profile": Former("0.4", instead="the newest that fits is used; remove others with profiles rm"),
    "connect_timeout": Former("0.4", float, instead="it is 5 s"),
}
"""The settings of `serve` in earlier versions."""

FORMER_OF_TOP = {"hidden": Former("0.3", instead="columns give way by themselves")}
FORMER_BY_TABLE = {"serve": FORMER, "top": FORMER_OF_TOP}


@dataclass(frozen=True, slots=True)
class TopConfig:
    """Start-up settings of `clairvoyant top`: the table [top]. Unset ones keep their last value."""

    theme: str | None = setting(None, "NAME", "Colour theme: night, day, contrast.")
    sort: str | None = setting(
        None, "COLUMN", "Sort column of the queue: `age`, or `-age` for descending order."
    )
    panel: str | None = setting(None, "NAME", "Panel below the queue on a small terminal, e.g. `stats`.")
    keys: str | None = setting(None, "KEYS", "Key bindings, e.g. `promote=Y hold=F`.")
    on_alert: str | None = setting(
        None, "COMMAND", "Command to run when `top` rings. The sentence is in its variable CLAIRVOYANT_ALERT."
    )

    def command(self) -> list[str]:
        """Return the words of `on_alert`; no shell reads them."""
        try:
            return split_command(self.on_alert or "")
        except ValueError as error:
            raise InputError(f"[top] on_alert: {error}; write it as a command line") from None

    def preferences(self) -> dict[str, str]:
        """Return the settings that are set, under the dashboard's names."""
        given = {
            "theme": self.theme,
            "queue.sort": self.sort,
            "deck": self.panel,
            "keys": self.keys,
        }
        return {name: value for name, value in given.items() if value is not None}


def load_top_config(file: Path | None = None) -> TopConfig:
    """Read the table [top] of the configuration file, if there is one; a named `file` must exist."""
    path = file or default_config_file()
    if file is None and not os.path.lexists(path):
        return TopConfig()
    return TopConfig(**_table(TopConfig, _parsed(path), "top", path))


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise InputError(message)


def load_serve_config(
    flags: Mapping[str, Any], *, file: Path | None = None, env: Mapping[str, str] = os.environ
) -> ServeConfig:
    """Merge all sources. `flags` holds only the flags that were given; a named `file` must exist."""
    path = file or default_config_file()
    found = _from_file(path) if file is not None or os.path.lexists(path) else {}
    flags = current(flags, FORMER, "flags")
    return ServeConfig(**{**found, **settings_from_env(env), **flags})


def default_config_file() -> Path:
    from platformdirs import user_config_path

    return user_config_path("clairvoyant", appauthor=False) / "config.toml"


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML; ValueError, in one line, if it is invalid, nested too deeply or has oversized integers.

    `tomllib` itself accepts integers of any length and any depth of nesting.
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
        tables = [list(each.values()) if isinstance(each, dict) else each for each in level]
        level = [value for each in tables if isinstance(each, list) for value in each]
        if not level:
            return data
    raise ValueError("it is nested too deeply")


def _parsed(path: Path) -> dict[str, Any]:
    text = text_of(read_file(path, "the configuration"), path, "the configuration")
    try:
        data = parse_toml(text)
    except ValueError as error:
        raise InputError(f"cannot read the configuration {path}: {error}") from None
    for name in data:
        known = name in ("serve", "backends", "stable_prefix", "top")
        _check(
            known,
            f"{path}: unknown section [{name}]; there are [serve], [[backends]], [stable_prefix] and [top]",
        )
    return data


def _from_file(path: Path) -> dict[str, Any]:
    data = _parsed(path)
    settings = with_absolute_paths(ServeConfig, _table(ServeConfig, data, "serve", path), path.parent)
    rules = PrefixRules(**_table(PrefixRules, data, "stable_prefix", path))
    tables = data.get("backends", [])
    _check(
        isinstance(tables, list) and all(isinstance(table, dict) for table in tables),
        f"{path}: backends must be tables, as in [[backends]]",
    )
    backends = tuple(_backends(tables, f"{path}: [[backends]]", path.parent))
    return settings | {"backends": backends, "prefix_rules": rules}


def _table(record: type, data: Mapping[str, Any], name: str, path: Path) -> dict[str, Any]:
    table = data.get(name, {})
    _check(isinstance(table, dict), f"{path}: {name} must be a table, as in [{name}]")
    table = current(table, FORMER_BY_TABLE.get(name, {}), str(path))
    return read_table(record, table, str(path), f" in [{name}]")


def with_absolute_paths(record: type, given: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return settings with their relative paths made absolute, from a folder."""
    known, found = settings_of(record), dict(given)
    for name, value in given.items():
        path, (kind, *words) = folder.absolute() / str(value), (known[name].metavar or "").split("|")
        if kind == "FILE" or (kind == "DIR" and value not in words and path.is_dir()):
            found[name] = str(path)
    return found


def _backends(tables: Iterable[Mapping[str, Any]], source: str, folder: Path) -> Iterator[BackendConfig]:
    """Parse the tables of a file in a folder; errors name them by number."""
    first: dict[tuple[str, str], int] = {}
    for number, table in enumerate(tables, 1):
        where = f"{source} table {number}"
        given = with_absolute_paths(BackendConfig, read_table(BackendConfig, table, where), folder)
        for key in ("name", "url"):
            _check(key in given, f"{where} has no {key}; give it one")
            twin = first.setdefault((key, given[key]), number)
            _check(twin == number, f"{where} has the same {key} as table {twin}; give each its own")
        try:
            yield BackendConfig(**given)
        except ClairvoyantError as error:
            raise InputError(f"{where}: {error}") from None


def settings_from_env(env: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of `serve` that variables give, without empty ones; ClairvoyantError if one is
    invalid.
    """
    known = settings_of(ServeConfig)
    settings: dict[str, Any] = {}
    for name, text in env.items():
        if not name.startswith(f"{ENV_PREFIX}SERVE_"):
            continue
        key = name.removeprefix(f"{ENV_PREFIX}SERVE_").lower()
        if key not in known and key not in FORMER:
            raise InputError(f"unknown environment variable {name}{did_you_mean(key, known)}")
        if text:
            settings[key] = parse_value(text, (known.get(key) or FORMER[key]).kind, name)
    return current(settings, FORMER, "environment")
