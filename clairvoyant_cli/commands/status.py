"""`clairvoyant status`: the state of a running daemon, once."""

from pathlib import Path

import click

from clairvoyant_cli.commands.options import json_option, token_file_option, url_option
from clairvoyant_cli.commands.plain_output import say, say_json
from clairvoyant_cli.state.client import ControlClient, ask_daemon
from clairvoyant_cli.state.snapshot import Snapshot


@click.command()
@url_option
@token_file_option
@json_option("Print the whole state as JSON.")
def command(url: str | None, token_file: Path | None, as_json: bool) -> None:
    """Print the state of a running daemon once: requests, slots, servers."""
    snapshot = ask_daemon(url, token_file, ControlClient.snapshot)
    if as_json:
        say_json(snapshot)
    else:
        _print(snapshot)


def _print(snapshot: Snapshot) -> None:
    from clairvoyant_cli.commands.status_tables import output_width, state  # slow to load

    for line in state(snapshot, output_width()):
        say(line)
