"""`history --last-night`: shows the last 24 hours, as `N` does in `top`."""

import time
from itertools import groupby
from sqlite3 import Connection

import click
import msgspec

from clairvoyant_cli.commands.console import PlainConsole
from clairvoyant_cli.commands.number_format import span as time_span
from clairvoyant_cli.commands.time_spans import date
from clairvoyant_cli.errors import printable
from clairvoyant_cli.protocols.printable import plural
from clairvoyant_cli.proxy.observing.tally import begins_at, last_day
from clairvoyant_cli.state.last_day import DayStep, LastDay
from profiles.history import incidents_since, served_since

HEADER = ("hour", "requests", "failed", "busy slots", "waiting", "less waiting")


def show(connection: Connection, *, as_json: bool) -> None:
    """Print what went wrong, and the figures of each hour; with `as_json` those of each five minutes."""
    now = time.time()
    since = begins_at(now)
    found = last_day(served_since(connection, since), incidents_since(connection, since), now)
    if as_json:
        click.echo(msgspec.json.encode(found))
        return
    console = PlainConsole()
    console.print(_sentence(found), highlight=False)
    for outage in found.outages:
        console.print(printable(outage.sentence(now)), highlight=False)
    hours = [[*steps] for _, steps in groupby(found.steps, lambda step: date(step.at, "%m-%d %H:00"))]
    rows = [
        _row(steps) for steps in hours if any(step.busy or step.waiting or step.requests for step in steps)
    ]
    if rows:
        console.print()
        console.print_table(HEADER, rows, right=True)


def _sentence(found: LastDay) -> str:
    requests, failed = (sum(getattr(each, name) for each in found.steps) for name in ("requests", "failed"))
    saved_s = sum(each.saved_s for each in found.steps)
    if not requests:
        return "Last 24 hours: no requests."
    went = f"{failed:,} of them failed" if failed else "none failed"
    less = f"{time_span(abs(saved_s))} {'less' if saved_s >= 0 else 'more'} waiting than in order of arrival"
    return f"Last 24 hours: {plural(requests, 'request')}, {went}; {less}."


def _row(steps: list[DayStep]) -> tuple[str, ...]:
    """Return the figures of an hour: sums of numbers and times, means of what lasts."""
    saved_s = sum(each.saved_s for each in steps)
    return (
        date(steps[0].at, "%m-%d %H:00"),
        f"{sum(each.requests for each in steps):,}",
        f"{sum(each.failed for each in steps):,}",
        f"{sum(each.busy for each in steps) / len(steps):.1f}",
        f"{sum(each.waiting for each in steps) / len(steps):.1f}",
        f"{'-' * (saved_s < -0.05)}{time_span(abs(saved_s))}",
    )
