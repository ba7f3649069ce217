"""Click options shared by several commands, and those generated from the settings of `serve`."""

import os
from collections.abc import Callable
from math import isnan
from pathlib import Path
from typing import Any

import click

from clairvoyant_cli.config import FORMER, BackendConfig, ServeConfig
from clairvoyant_cli.files import LARGE_BYTES, opened
from clairvoyant_cli.settings import Former, Setting, settings_of

Function = Callable[..., Any]
Option = Callable[[Function], Function]

SERVE = settings_of(ServeConfig)
SERVER = settings_of(BackendConfig)
ANY_PATH = click.Path(path_type=Path)


class Input(click.Path):
    """An input file, checked before the command starts."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, dir_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; ClairvoyantError if it is unreadable or not a regular file."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        with opened(path, "the file", LARGE_BYTES):
            return path


FILE = Input()


url_option = click.option("--url", help="URL of the daemon. Unset: the last one started on this machine.")
token_file_option = click.option("--token-file", type=ANY_PATH, help="File with the daemon's admin token.")
config_option = click.option("--config", "config_file", type=ANY_PATH, help="TOML configuration file.")
db_option = click.option("--db", "db_file", type=ANY_PATH, metavar="FILE", help=SERVE["db"].about)
backend_key_file_option = click.option(
    "--backend-key-file", type=ANY_PATH, metavar="FILE", help=SERVE["backend_key_file"].about
)
predictor_option = click.option(
    "--predictor", "directory", metavar="DIR", default="default", help=SERVE["predictor"].about
)
backend_option = click.option("--backend", metavar="NAME|URL", help=SERVER["url"].about)


def json_option(about: str) -> Option:
    return click.option("--json", "as_json", is_flag=True, help=about)


class Range(click.FloatRange):
    """A range of numbers; click's own accepts `nan`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        return self.fail(f"{value} is not a number.", param, ctx) if isnan(number) else number


def option_with_default(
    name: str, kind: Any, default: Any, about: str, parameter: str | None = None
) -> Option:
    """Return an option whose help shows its default; `parameter` is its name in Python, if another."""
    names = (name,) if parameter is None else (name, parameter)
    return click.option(*names, type=kind, default=default, show_default=True, help=about)


def serve_option(name: str, about: str = "") -> Option:
    """Return the option of one setting of `serve`; `about` overrides its help."""
    known = SERVE[name]
    about = about or known.about + _default(known)
    flag = f"--{name.replace('_', '-')}"
    if known.kind is bool:
        return click.option(flag, is_flag=True, default=None, help=about, hidden=known.expert)
    return click.option(
        flag,
        type=known.kind,
        metavar=known.metavar,
        multiple=known.repeatable,
        callback=(lambda _, __, given: ",".join(given) if given else None) if known.repeatable else None,
        help=about,
        hidden=known.expert,
    )


def serve_options(**about: str) -> Option:
    """Return a decorator with the options of all settings of `serve`; `about` overrides their help. Former
    ones are hidden.
    """
    former = (_former_option(name, each) for name, each in FORMER.items())
    return together(*(serve_option(name, about.get(name, "")) for name in SERVE), *former)


def _former_option(name: str, known: Former) -> Option:
    flag, is_flag = f"--{name.replace('_', '-')}", known.kind is bool
    return click.option(
        flag, type=known.kind, is_flag=is_flag, default=None, help=known.named(name), hidden=True
    )


def together(*options: Option) -> Option:
    """Return a decorator that adds several options in this order."""

    def add(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def _default(known: Setting) -> str:
    if known.default is None or known.kind is bool:
        return ""
    return f"  [default: {known.default:g}]" if known.kind is float else f"  [default: {known.default}]"
