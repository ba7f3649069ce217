"""`clairvoyant forget`: erases recorded requests from the database and from the disk."""

from pathlib import Path

import click

from clairvoyant_cli.commands.options import db_option
from clairvoyant_cli.commands.plain_output import say
from clairvoyant_cli.commands.setup import database_path, told_plainly
from clairvoyant_cli.commands.time_spans import date, when
from clairvoyant_cli.errors import InputError
from clairvoyant_cli.protocols.printable import plural
from profiles.history import ALWAYS, FOREVER, Span, forget


@click.command()
@click.option("--client", help="Erase requests of this client (address or key name).")
@click.option("--since", type=when, metavar="WHEN", help="Erase requests since 90m, 12h, 7d or a date.")
@click.option("--until", type=when, metavar="WHEN", help="Erase requests before WHEN.")
@click.option("--all", "everything", is_flag=True, help="Erase all requests.")
@click.option("--keep-learned", is_flag=True, help="Keep what was learned from them (tau, predictor state).")
@db_option
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def command(
    client: str | None,
    since: float | None,
    until: float | None,
    everything: bool,
    keep_learned: bool,
    db_file: Path | None,
    yes: bool,
) -> None:
    """Erase recorded requests, and what was learned from them, permanently. Profiles stay.

    Freed space is overwritten. A running daemon forgets within seconds too; only its dashboards
    show the last requests until it stops. --since and --until go by the recorded time.
    """
    chosen = client is not None or since is not None or until is not None
    if chosen == everything:
        raise InputError("name what to erase: --client, --since, --until, or --all")
    span = Span(ALWAYS if since is None else since, FOREVER if until is None else until, client)
    asked = "all requests" if client is None else f"the requests of {client}"
    asked += "" if since is None else f" since {date(since)}"
    asked += "" if until is None else f" until {date(until)}"
    if not yes:
        click.confirm(f"Permanently erase {asked}?", abort=True, err=True)
    with told_plainly():
        erased = forget(database_path(db_file), span, states=not keep_learned)
    ends = (date(at) for at in (erased.first_at, erased.last_at))
    finished = f", finished {' to '.join(dict.fromkeys(ends))}" if erased.requests else ""
    say(f"{plural(erased.requests, 'request')} erased{finished}", err=True)
