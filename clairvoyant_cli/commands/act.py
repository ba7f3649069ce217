"""`clairvoyant act`: one action on a running daemon, from a shell."""

import json
from pathlib import Path
from typing import Any

import click

from clairvoyant_cli.commands.options import token_file_option, url_option
from clairvoyant_cli.commands.plain_output import say_json
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.state.actions import COMMANDS
from clairvoyant_cli.state.client import ask_daemon


def _listed() -> str:
    return "\b\n" + "\n".join(f"{verb.value:9} {of.help}" for verb, of in COMMANDS.items())


@click.command(help=f"Run an operator's action on a running daemon.\n\n{_listed()}")
@click.argument("action", type=click.Choice([verb.value for verb in COMMANDS]))
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]...")
@url_option
@token_file_option
def command(action: str, arguments: tuple[str, ...], url: str | None, token_file: Path | None) -> None:
    """Run an action and print the daemon's answer."""
    given = dict(_argument(each) for each in arguments)
    say_json(ask_daemon(url, token_file, lambda client: client.act(action, given)))


def _argument(given: str) -> tuple[str, Any]:
    key, is_one, value = given.partition("=")
    if not is_one:
        raise ClairvoyantError(f"{given!r}: give KEY=VALUE, as in id=33579-3 level=0", ExitCode.USAGE)
    try:
        read = json.loads(value)
    except ValueError:
        return key, value
    return key, value if key == "id" or not isinstance(read, int | float) else read
