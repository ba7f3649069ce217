"""`clairvoyant history`: shows served requests, compares them with arrival order, and erases them."""

from collections.abc import Iterator, Mapping
from dataclasses import astuple, fields
from pathlib import Path
from sqlite3 import Connection
from typing import Any

import click

from clairvoyant_cli.commands import last_night, report
from clairvoyant_cli.commands.console import PlainConsole
from clairvoyant_cli.commands.number_format import figure, seconds
from clairvoyant_cli.commands.options import db_option
from clairvoyant_cli.commands.plain_output import say, say_json
from clairvoyant_cli.commands.setup import database_path, opened_database, told_plainly
from clairvoyant_cli.commands.time_spans import date, span_options
from clairvoyant_cli.errors import InputError, printable
from clairvoyant_cli.protocols.printable import plural
from profiles.database import set_aside_files
from profiles.history import (
    ALWAYS,
    FOREVER,
    Span,
    each,
    forget,
    newest,
)
from profiles.records import Finished

LISTED = 10


# The options that each view takes, besides those of the span and the database.
TAKEN = {
    "": {"limit", "json"},
    "report": {"json"},
    "last_night": {"json"},
    "trace": {"limit"},
    "forget": {"all", "keep_learned", "yes"},
}


@click.command()
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=0),
    help=f"Requests to list.  [default: {LISTED}; all with --json, --trace]",
)
@span_options
@click.option(
    "--report",
    is_flag=True,
    help="Report what each program used, and how much less requests waited than in order of arrival.",
)
@click.option(
    "--last-night", is_flag=True, help="Show the last 24 hours: what went wrong, load, waiting and gain."
)
@db_option
@click.option("--json", is_flag=True, help="Print JSON Lines; with --report and --last-night, JSON.")
@click.option(
    "--trace",
    is_flag=True,
    help="Print completed requests as JSON Lines for `evaluate`, `train` and `simulate --workload`.",
)
@click.option(
    "--forget",
    is_flag=True,
    help="Erase these requests permanently, and what was learned from them. Profiles stay.",
)
@click.option("--all", is_flag=True, help="With --forget: erase all requests.")
@click.option(
    "--keep-learned",
    is_flag=True,
    help="With --forget: keep what was learned from them (tau, predictor state).",
)
@click.option("--yes", is_flag=True, help="With --forget: do not ask for confirmation.")
def command(span: Span, db_file: Path | None, **given: Any) -> None:
    """Show the latest requests; --report sums them up.

    Clients are shown as hashes. Bodies are included only if `serve --record-prompts` recorded them.
    --forget overwrites the freed space. A running daemon forgets within seconds too; only its
    dashboards show the last requests, and the sums and outages of 24 hours, until it stops. --since
    and --until go by the recorded time.
    """
    view = _view(given)
    if view == "last_night" and span != Span():
        flags = "--since, --until, --client and --model"
        raise click.UsageError(f"{flags} do not go with --last-night", click.get_current_context())
    if view == "forget":
        _forget(database_path(db_file), span, given)
        return
    limit = given["limit"]
    with opened_database(db_file) as connection:
        if view == "last_night":
            last_night.show(connection, as_json=given["json"])
        elif view == "report":
            report.show(connection, span, as_json=given["json"])
        elif view == "trace":
            _trace(_rows(connection, span, limit))
        elif given["json"]:
            _dump(_rows(connection, span, limit))
        else:
            _show(PlainConsole(), connection, span, LISTED if limit is None else limit)


def _view(given: Mapping[str, Any]) -> str:
    """Return the view that was asked for, "" if none was; a usage error for options of another."""
    wanted = [name for name, value in given.items() if value not in (None, False)]
    view = next((name for name in wanted if name in TAKEN), "")
    stray = next((name for name in wanted if name != view and name not in TAKEN[view]), None)
    if stray is not None:
        flag = f"--{stray.replace('_', '-')}"
        with_ = f"does not go with --{view.replace('_', '-')}" if view else "goes with --forget"
        raise click.UsageError(f"{flag} {with_}", click.get_current_context())
    return view


def _forget(path: Path, span: Span, given: Mapping[str, Any]) -> None:
    if (span != Span()) == given["all"]:
        raise InputError("name what to erase: --client, --model, --since, --until, or --all")
    asked = "all requests" if span.client is None else f"the requests of {span.client}"
    asked += "" if span.model is None else f" to {span.model}"
    asked += "" if span.since == ALWAYS else f" since {date(span.since)}"
    asked += "" if span.until == FOREVER else f" until {date(span.until)}"
    if not given["yes"]:
        click.confirm(f"Permanently erase {asked}?", abort=True, err=True)
    with told_plainly():
        erased = forget(path, span, states=not given["keep_learned"])
    ends = (date(at) for at in (erased.first_at, erased.last_at))
    finished = f", finished {' to '.join(dict.fromkeys(ends))}" if erased.requests else ""
    say(f"{plural(erased.requests, 'request')} erased{finished}", err=True)
    if erased.copy is not None:
        news = "it was used after the upgrade; remove it, or erase there with --db"
        say(f"not erased: requests in {erased.copy}: {news}", err=True)
    if left := set_aside_files(path):
        names = ", ".join(map(str, left))
        say(f"not erased: requests in damaged databases, which --all removes: {names}", err=True)


def _rows(connection: Connection, span: Span, limit: int | None) -> Iterator[Finished]:
    return each(connection, span) if limit is None else iter(newest(connection, span, limit)[::-1])


def _trace(rows: Iterator[Finished]) -> None:
    """Print what a simulation needs (arrival, service time, prediction), and the request if recorded."""
    for row in rows:
        if row.outcome != "completed" or row.tokens is None:
            continue
        say_json(
            {
                "arrival_s": row.finished_at - row.sojourn_s,
                "service_s": row.sojourn_s - row.waited_s,
                "output_tokens": row.tokens,
                "prompt_tokens": row.prompt_tokens or 0,
                "p_long": row.p_long,
                "predicted_tokens": row.expected_tokens,
                "client": row.client,
                "backend": row.backend,
                "endpoint": row.endpoint,
                "body": row.body,
            }
        )


def _dump(rows: Iterator[Finished]) -> None:
    names = ["output_tokens" if field.name == "tokens" else field.name for field in fields(Finished)]
    for row in rows:
        say_json(dict(zip(names, astuple(row), strict=True)))


def _show(console: PlainConsole, connection: Connection, span: Span, limit: int) -> None:
    rows = newest(connection, span, limit)
    if not rows:
        none = "no requests yet; clairvoyant serve records them"
        console.print(none if span == Span() else "no such requests")
        return
    console.print_table(
        ("finished", "model", "client", "outcome", "read", "predicted", "tokens", "waited", "total"),
        (
            (
                date(finished.finished_at, "%m-%d %H:%M:%S"),
                finished.model or "-",
                finished.client,
                finished.outcome,
                figure(finished.read_tokens, "d"),
                f"{finished.expected_tokens:.0f}",
                figure(finished.tokens, "d"),
                seconds(finished.waited_s),
                seconds(finished.sojourn_s),
            )
            for finished in rows
        ),
    )
    for finished in rows:
        if finished.remark:
            console.print(f"{date(finished.finished_at, '%m-%d %H:%M:%S')} {printable(finished.remark)}")
