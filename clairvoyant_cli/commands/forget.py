"""`clairvoyant forget`: erase what is remembered of requests, so that it is gone from the disk."""

from pathlib import Path

import click

from clairvoyant_cli.commands.composition import database_path, db_option, told_plainly
from clairvoyant_cli.commands.spans import when
from clairvoyant_cli.errors import ClairvoyantError, ExitCode


@click.command()
@click.option("--client", help="Requests of this client, as its address or key name.")
@click.option("--since", type=when, metavar="WHEN", help="Requests since then: 90m, 12h, 7d ago, or a date.")
@click.option("--until", type=when, metavar="WHEN", help="Requests before then.")
@click.option("--all", "everything", is_flag=True, help="All requests.")
@click.option("--keep-learned", is_flag=True, help="Keep what was learned from them: tau, predictor state.")
@db_option
@click.option("--yes", is_flag=True, help="Do not ask.")
def command(
    client: str | None,
    since: float | None,
    until: float | None,
    everything: bool,
    keep_learned: bool,
    db_file: Path | None,
    yes: bool,
) -> None:
    """Erase requests, and what was learned from them, for good. Profiles stay.

    The freed space is overwritten and the file written anew. A running daemon forgets too, within seconds,
    and writes nothing of it again; only its dashboards go on showing the last requests until it stops.
    """
    from profiles.history import FOREVER, Span, forget

    chosen = client is not None or since is not None or until is not None
    if chosen == everything:
        raise ClairvoyantError("say what to forget: --client, --since, --until, or --all", ExitCode.USAGE)
    span = Span(since or 0.0, FOREVER if until is None else until, client)
    if not yes:
        click.confirm("Erase for good?", abort=True, err=True)
    with told_plainly():
        gone = forget(database_path(db_file), span, states=not keep_learned)
    click.echo(f"{gone} request{'' if gone == 1 else 's'} erased", err=True)
