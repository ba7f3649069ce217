"""Prints lines and JSON without control characters."""

import json
import sys
from typing import Any

import click

from clairvoyant_cli.errors import printable


def say(line: str, *, err: bool = False) -> None:
    """Print a line, with a dot for each unprintable character."""
    click.echo(printable(line), err=err)


def say_json(held: Any, *, indent: int = 0) -> None:
    """Print a value, or JSON bytes, as JSON; `indent` 0 prints one line."""
    import msgspec

    data = held if isinstance(held, bytes) else msgspec.json.encode(held)
    text = (msgspec.json.format(data, indent=indent) if indent else data).decode()
    sys.stdout.write(text if text.isprintable() else "".join(map(_escaped, text)))
    sys.stdout.write("\n")


def _escaped(letter: str) -> str:
    if letter.isprintable() or letter == "\n":
        return letter
    return "\\u007f" if letter == "\x7f" else json.dumps(letter)[1:-1]
