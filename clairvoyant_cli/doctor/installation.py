"""Checks the installation: version and files."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from clairvoyant_cli import __version__
from clairvoyant_cli.config import ServeConfig
from clairvoyant_cli.doctor.finding import Finding, broken, ok, warning
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.proxy.access.keys import read_clients, read_keys
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
