"""`clairvoyant history`: shows served requests, and compares them with the profile."""

import csv
import sys
from collections.abc import Iterator
from dataclasses import astuple, fields
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from clairvoyant_cli.commands.console import PlainConsole
from clairvoyant_cli.commands.number_format import figure, seconds, share
from clairvoyant_cli.commands.options import db_option, json_option
from clairvoyant_cli.commands.plain_output import say_json
from clairvoyant_cli.commands.setup import database_path, told_plainly
from clairvoyant_cli.commands.time_spans import date, when
from clairvoyant_cli.errors import printable
from predictor.record import LengthClass

if TYPE_CHECKING:
    import sqlite3

    from profiles.history import Span
    from profiles.records import Finished, Profile


LISTED = 10


@click.command()
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=0),
    help=f"Requests to list.  [default: {LISTED}; all with --json, --csv, --trace]",
)
@click.option("--since", type=when, metavar="WHEN", help="Only since 90m, 12h, 7d or a date.")
@click.option("--until", type=when, metavar="WHEN", help="Only before WHEN.")
@click.option("--client", help="Only this client (address or key name).")
@click.option("--model", help="Only this model.")
@db_option
@json_option("Print the requests as JSON Lines.")
@click.option("--csv", "as_csv", is_flag=True, help="Print the requests as CSV.")
@click.option(
    "--trace", is_flag=True, help="Print completed requests as JSON Lines for `simulate --workload FILE`."
)
def command(
    limit: int | None,
    since: float | None,
    until: float | None,
    client: str | None,
    model: str | None,
    db_file: Path | None,
    as_json: bool,
    as_csv: bool,
    trace: bool,
) -> None:
    """Show served requests: totals, percentiles, drift, and the latest ones.

    Clients are shown as hashes. Prompts are included only if `serve --record-prompts` recorded them.
    """
    from profiles.database import reading
    from profiles.history import ALWAYS, FOREVER, Span

    span = Span(ALWAYS if since is None else since, FOREVER if until is None else until, client, model)
    with told_plainly(), reading(database_path(db_file)) as connection:
        if trace:
            _trace(_rows(connection, span, limit))
        elif as_json or as_csv:
            _dump(_rows(connection, span, limit), as_csv=as_csv)
        else:
            _show(PlainConsole(), connection, span, LISTED if limit is None else limit)


def _rows(connection: "sqlite3.Connection", span: "Span", limit: int | None) -> "Iterator[Finished]":
    from profiles.history import each, newest

    return each(connection, span) if limit is None else iter(newest(connection, span, limit)[::-1])


def _trace(rows: "Iterator[Finished]") -> None:
    """Print the fields that a simulation needs: arrival, service time, prediction."""
    for finished in rows:
        if finished.outcome != "completed" or finished.tokens is None:
            continue
        line = {
            "arrival_s": finished.finished_at - finished.sojourn_s,
            "service_s": finished.sojourn_s - finished.waited_s,
            "output_tokens": finished.tokens,
            "prompt_tokens": finished.prompt_tokens or 0,
            "p_long": finished.p_long,
            "predicted_tokens": finished.expected_tokens,
            "client": finished.client,
        }
        if finished.prompt is not None:
            line["prompt"] = finished.prompt
        say_json(line)


def _dump(rows: "Iterator[Finished]", *, as_csv: bool) -> None:
    from profiles.records import Finished

    names = ["output_tokens" if field.name == "tokens" else field.name for field in fields(Finished)]
    if not as_csv:
        for finished in rows:
            record = dict(zip(names, astuple(finished), strict=True))
            say_json(record)
        return
    writer = csv.writer(sys.stdout)
    writer.writerow(names)
    for finished in rows:
        writer.writerow(printable(each) if isinstance(each, str) else each for each in astuple(finished))


def _show(console: PlainConsole, connection: "sqlite3.Connection", span: "Span", limit: int) -> None:
    from profiles.history import newest, spread, totals

    # Read everything before printing, so that an error is the only output.
    counted, rows = totals(connection, span), newest(connection, span, limit)
    if not counted and not rows:
        console.print("no requests yet; clairvoyant serve records them")
        return
    table = Table("model", "outcome", "class", "requests", "tokens", "mean wait", "mean total", box=None)
    for total in counted[:20]:
        table.add_row(
            total.model or "-",
            total.outcome,
            total.length_class or "-",
            f"{total.requests:,}",
            f"{total.tokens:,}",
            seconds(total.mean_wait_s),
            seconds(total.mean_sojourn_s),
        )
    console.print(table)
    table = Table("class", "of newest", "P50", "P95", "P99", "wait P50", "wait P99", box=None)
    for length_class in LengthClass:
        of_class = spread(connection, length_class.value, span)
        if of_class is not None:
            table.add_row(
                of_class.length_class,
                f"{of_class.n:,}",
                seconds(of_class.sojourn_p50_s),
                seconds(of_class.sojourn_p95_s),
                seconds(of_class.sojourn_p99_s),
                seconds(of_class.wait_p50_s),
                seconds(of_class.wait_p99_s),
            )
    console.print()
    console.print(table)
    _show_drift(console, connection, span)
    if rows:
        console.print()
        console.print(_listed(rows))


def _show_drift(console: PlainConsole, connection: "sqlite3.Connection", span: "Span") -> None:
    from predictor.ranking import pairs_in_order
    from profiles.history import p_long_by_class, spread
    from profiles.store import newest_profile

    profile = newest_profile(connection, span.model)
    short = spread(connection, LengthClass.SHORT.value, span)
    accuracy = pairs_in_order(*p_long_by_class(connection, span))
    console.print()
    p99 = seconds(short.sojourn_p99_s if short is not None else None)
    then = seconds(profile.short_p99_s if profile else None)
    console.print(f"short answers' P99 {p99}{_then(profile, then)}")
    then = share(profile.ranking_accuracy if profile else None)
    console.print(f"ranking accuracy {share(accuracy)}{_then(profile, then)}")


def _then(profile: "Profile | None", value: str) -> str:
    return "" if profile is None else f", {value} in profile {profile.name}"


def _listed(rows: "list[Finished]") -> Table:
    table = Table(
        "finished", "model", "client", "outcome", "predicted", "tokens", "waited", "total", box=None
    )
    for finished in rows:
        table.add_row(
            date(finished.finished_at, "%m-%d %H:%M:%S"),
            finished.model or "-",
            finished.client,
            finished.outcome,
            f"{finished.expected_tokens:.0f}",
            figure(finished.tokens, "d"),
            seconds(finished.waited_s),
            seconds(finished.sojourn_s),
        )
    return table
