"""`clairvoyant backends`: lists and changes the servers behind a running daemon."""

from pathlib import Path
from typing import Any

import click
from rich.table import Table

from clairvoyant_cli.addresses import BACKEND_KINDS, check_backend
from clairvoyant_cli.commands.options import (
    ANY_PATH,
    SERVER,
    json_option,
    together,
    token_file_option,
    url_option,
)
from clairvoyant_cli.commands.plain_output import say, say_json
from clairvoyant_cli.state.client import ControlClient, ask_daemon
from clairvoyant_cli.state.snapshot import BackendState

daemon_options = together(url_option, token_file_option)


@click.group()
def command() -> None:
    """List, add, drain and remove the servers behind a running daemon.

    Changes are lost when the daemon stops; write them into config.toml
    to keep them.
    """


@command.command("list")
@daemon_options
@json_option("Print JSON.")
def list_(url: str | None, token_file: Path | None, as_json: bool) -> None:
    """List the servers: state, slots, models, requests that only it can serve."""
    backends = ask_daemon(url, token_file, ControlClient.snapshot).backends
    if as_json:
        say_json(backends)
    else:
        _print(backends)


@command.command()
@click.argument("address", metavar="URL")
@click.option("--name", metavar="NAME", help="Its name. Unset: its host and port.")
@click.option("--kind", type=click.Choice(BACKEND_KINDS), help="Unset: it is detected.")
@click.option("--slots", type=int, metavar="N", help=SERVER["slots"].about)
@click.option("--weight", type=float, metavar="FACTOR", help=SERVER["weight"].about)
@click.option("--key-file", type=ANY_PATH, help=SERVER["key_file"].about)
@daemon_options
def add(
    address: str, key_file: Path | None, url: str | None, token_file: Path | None, **given: str | float | None
) -> None:
    """Add a server; it takes requests at once."""
    from clairvoyant_cli.proxy.access.keys import read_backend_key

    check_backend(address)
    key = read_backend_key(key_file)
    body = {name: value for name, value in given.items() if value is not None} | {"url": address}
    done = _act(url, token_file, "add", body | ({} if key is None else {"key": key}))
    say(f"{done.get('name')} is {done.get('kind')}, {done.get('slots')} at once", err=True)


@command.command()
@click.argument("name")
@daemon_options
def drain(name: str, url: str | None, token_file: Path | None) -> None:
    """Send a server no new requests; running ones finish."""
    _act(url, token_file, "drain", {"name": name})


@command.command()
@click.argument("name")
@daemon_options
def up(name: str, url: str | None, token_file: Path | None) -> None:
    """Use a server again that was drained or has failed."""
    _act(url, token_file, "up", {"name": name})


@command.command()
@click.argument("name")
@daemon_options
def rm(name: str, url: str | None, token_file: Path | None) -> None:
    """Drain a server, and remove it once it is idle."""
    done = _act(url, token_file, "remove", {"name": name})
    if done.get("standing") != "gone":
        click.echo(f"{name} is removed once its requests are done", err=True)


def _act(url: str | None, token_file: Path | None, deed: str, body: dict[str, Any]) -> dict[str, Any]:
    return ask_daemon(url, token_file, lambda client: client.act("backend", {"do": deed, **body}))


def _print(backends: tuple[BackendState, ...]) -> None:
    from clairvoyant_cli.commands.console import PlainConsole
    from tui.print_tables import output_width

    table = Table("name", "kind", "url", "state", "busy", "alone", "weight", "loaded", "offers", box=None)
    for each in backends:
        table.add_row(
            each.name,
            each.kind,
            each.url,
            ", ".join(word for word in (each.state, each.standing, each.detail) if word),
            f"{each.busy}/{each.slots}",
            str(each.waiting),
            f"{each.weight:g}",
            " ".join(model.name for model in each.models) or "-",
            "-" if each.offered is None else str(each.offered),
        )
    PlainConsole(width=output_width()).print(table)
