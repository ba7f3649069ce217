"""Parses and formats times on the command line."""

import re
import time
from collections.abc import Callable
from datetime import datetime
from functools import wraps
from typing import Any

import click

from clairvoyant_cli.commands.options import together
from profiles.history import ALWAYS, FOREVER, Span

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}

FARTHEST_S = 1e12  # bound of times, in seconds from 1970


def when(text: str) -> float:
    """Return epoch seconds of `90m`, `12h`, `7d` or `2w` ago, or of a date such as 2026-05-01T14:30."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([smhdw])", text.strip())
    try:
        at = (
            time.time() - float(found[1]) * UNITS_S[found[2]]
            if found
            else datetime.fromisoformat(text.strip()).timestamp()
        )
    except (ValueError, OverflowError, OSError):
        raise click.BadParameter(
            f"{text[:40]!r} is not a time; use 90m, 12h, 7d, or a date such as 2026-05-01"
        ) from None
    if not abs(at) <= FARTHEST_S:
        raise click.BadParameter(f"{text[:40]!r} is too long ago; leave it out for all times")
    return at


def date(at: float, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Format epoch seconds as a local date."""
    try:
        return time.strftime(form, time.localtime(at))
    except (ValueError, OverflowError, OSError):
        return "an invalid date"


def span_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a span of history, passed as `span`."""

    @wraps(function)
    def with_span(
        since: float | None, until: float | None, client: str | None, model: str | None, **others: Any
    ) -> Any:
        first, last = ALWAYS if since is None else since, FOREVER if until is None else until
        return function(span=Span(first, last, client, model), **others)

    return together(
        click.option("--since", type=when, metavar="WHEN", help="Only since 90m, 12h, 7d or a date."),
        click.option("--until", type=when, metavar="WHEN", help="Only before WHEN."),
        click.option("--client", help="Only this client: key name, address, or program, as in `status`."),
        click.option("--model", help="Only this model."),
    )(with_span)
