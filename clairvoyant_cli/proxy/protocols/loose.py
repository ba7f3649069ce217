"""Types for what others write: any JSON fits, and what is not of the expected type costs next to nothing.

msgspec skips what no type asks for; an object or a list where a number is expected must be skipped as well,
and may be a megabyte of empty objects.
"""

from typing import TypedDict

import msgspec


class Skipped(TypedDict, total=False):
    """An object of which nothing is read."""


class SkippedList(msgspec.Struct, array_like=True, gc=False):
    """A list of which nothing is read."""


# Numbers are read as floats: to read an integer takes time that grows with the square of its length.
Other = str | float | bool | SkippedList | None
"""Anything but an object."""

Loose = Other | Skipped
"""Anything."""


def number(value: object, most: float) -> int | None:
    """Return a whole number from 0 to `most`, as which no bool counts; None for anything else."""
    if isinstance(value, float) and value.is_integer() and 0 <= value <= most:
        return int(value)
    return None
