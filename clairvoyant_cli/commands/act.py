"""`clairvoyant act`: one action on a running daemon, from a shell."""

from pathlib import Path

import click

from clairvoyant_cli.commands.options import token_file_option, url_option
from clairvoyant_cli.commands.plain_output import say_json
from clairvoyant_cli.state.actions import COMMANDS, Verb, arguments_of
from clairvoyant_cli.state.client import ask_daemon

_LISTED = "\n".join(
    f"{' '.join((verb, *map(str.upper, of.fields))):24} {of.help}" for verb, of in COMMANDS.items()
)
_HELP = f"""Run an operator's action on a running daemon. A value may be written as KEY=VALUE.

To add a server: act backend add url=http://192.168.1.30:11434 name=attic key_file=FILE

\b
{_LISTED}"""


@click.command(help=_HELP, context_settings={"ignore_unknown_options": True})  # a priority may be -5
@click.argument("action", type=click.Choice([verb.value for verb in COMMANDS]))
@click.argument("arguments", nargs=-1, metavar="[VALUE]...")
@url_option
@token_file_option
def command(action: str, arguments: tuple[str, ...], url: str | None, token_file: Path | None) -> None:
    """Run an action and print the daemon's answer."""
    given = arguments_of(Verb(action), arguments)
    if key_file := given.pop("key_file", None):  # the daemon reads no file for a client
        from clairvoyant_cli.proxy.access.keys import read_backend_key  # slow to load

        given["key"] = read_backend_key(Path(str(key_file)))
    say_json(ask_daemon(url, token_file, lambda client: client.act(action, given)))
