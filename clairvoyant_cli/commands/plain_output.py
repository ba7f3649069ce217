"""What commands print without tables: lines and JSON, with nothing in them that a terminal would obey."""

import json
import sys
from typing import Any

import click

from clairvoyant_cli.errors import printable


def say(line: str, *, err: bool = False) -> None:
    """Print a line; a dot stands for each character that cannot be printed."""
    click.echo(printable(line), err=err)


def say_json(held: Any, *, indent: int = 0) -> None:
    """Print a value as JSON, indented by `indent` spaces; in one line for 0."""
    import msgspec

    data = held if isinstance(held, bytes) else msgspec.json.encode(held)
    text = (msgspec.json.format(data, indent=indent) if indent else data).decode()
    sys.stdout.write(text if text.isprintable() else "".join(map(_escaped, text)))
    sys.stdout.write("\n")


def _escaped(letter: str) -> str:
    if letter.isprintable() or letter == "\n":
        return letter
    return "\\u007f" if letter == "\x7f" else json.dumps(letter)[1:-1]
