"""Parses and formats times on the command line."""

import re
import time
from datetime import datetime

import click

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
