"""Checks the installation: version, names in the configuration, and files."""

import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from clairvoyant_cli import __version__
from clairvoyant_cli.config import FORMER_BY_TABLE, ServeConfig, parse_toml
from clairvoyant_cli.doctor.finding import Finding, broken, ok, warning
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.files import read_file, text_of
from clairvoyant_cli.proxy.access.keys import read_clients, read_keys
from clairvoyant_cli.scheduler.policy import DEFAULT_POLICY, RETIRED, unknown_policy
from clairvoyant_cli.settings import current
from clairvoyant_cli.state.client import state_dir
from clairvoyant_cli.system import command_to_close, command_to_create, is_open_to_others

REINSTALL = "uv tool install --force .    # in the checkout"
PYTHONS = ((3, 11), (3, 14))
READERS = {"api_key_file": read_keys, "clients": read_clients}


def check_version() -> Finding:
    low, high = PYTHONS
    version = sys.version_info[:2]
    versions = f"clairvoyant {__version__}, Python {version[0]}.{version[1]}"
    if not low <= version <= high:
        return warning("version", f"{versions}: tested on 3.{low[1]} to 3.{high[1]}", REINSTALL)
    return ok("version", versions)


def check_names(path: Path) -> Iterator[Finding]:
    """Yield a finding for each former setting or policy in a configuration file."""
    try:
        text = text_of(read_file(path, "the configuration"), path, "the configuration")
        data = parse_toml(text)
        tables = {name: dict(data.get(name, {})) for name in FORMER_BY_TABLE}
        changes = [(table, *change) for name, table in tables.items() for change in _changes(name, table)]
    except (ClairvoyantError, TypeError, ValueError):  # loading it reports that
        return
    for table, why, old, new in changes:
        fix = f"remove {next(iter(old))} from {path}"
        if new and new.keys().isdisjoint(table.keys() - old.keys()):
            fix = f"change {_toml(old)} to {_toml(new)} in {path}"
        yield warning("configuration", f"{path}: {why}", fix)


def _changes(table: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield what became of each former setting, the setting, and the one to have instead, if any."""
    former = FORMER_BY_TABLE[table]
    for name, value in settings.items():
        if table == "serve" and name == "policy" and value in RETIRED:
            yield unknown_policy(value), {name: value}, {name: DEFAULT_POLICY}
        elif name in former:
            yield former[name].named(name), {name: value}, current({name: value}, former, "", logging.DEBUG)


def _toml(setting: Mapping[str, Any]) -> str:
    return "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in setting.items())


def check_files(config: ServeConfig) -> Iterator[Finding]:
    """Check that key files exist, are private and valid, and that the state directory is writable."""
    for name in ("api_key_file", "clients", "admin_token_file", "backend_key_file"):
        given = getattr(config, name)
        if given is None:
            continue
        path = Path(given)
        try:
            if not path.is_file():
                yield broken("files", f"{name} {path} does not exist", command_to_create(path))
            elif name != "clients" and is_open_to_others(path, path.stat().st_mode):
                yield warning("files", f"{name} {path} is readable by others", command_to_close(path))
            elif name in READERS:
                READERS[name](path)
        except (ClairvoyantError, OSError) as error:  # OSError: e.g. a name that is too long
            yield broken("files", str(error), f"correct {path}")
    home = state_dir()
    nearest = next(path for path in (home, *home.parents) if path.exists())
    if os.access(nearest, os.W_OK):
        yield ok("files", f"state in {home}")
    else:
        yield warning("files", f"{nearest} is not writable", f"give {nearest} to this account")
