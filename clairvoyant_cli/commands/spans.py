"""Points in time as people give them on a command line."""

import re
import time
from datetime import datetime

import click

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def when(text: str) -> float:
    """Return epoch seconds of `90m`, `12h`, `7d` or `2w` ago, or of a date as 2026-05-01T14:30."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text.strip())
    if found:
        return time.time() - float(found[1]) * UNITS_S[found[2]]
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except ValueError:
        raise click.BadParameter(f"{text!r} is no time; give 90m, 12h, 7d, or a date as 2026-05-01") from None
