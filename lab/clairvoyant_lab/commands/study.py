"""`clairvoyant study`: the tables behind the predictor's figures, on your own data."""

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from clairvoyant_cli.commands.number_format import figure
from clairvoyant_cli.commands.options import FILE, json_option
from clairvoyant_cli.commands.setup import told_plainly

if TYPE_CHECKING:
    from clairvoyant_lab.studies.study_table import Cell, StudyTable

STUDIES = {
    "unseen": "files ranked by models trained without their family, by kind of traffic",
    "ceiling": "repeated answers of one model ranked by each other",
}


@click.command(epilog="Studies: " + "; ".join(f"{name}: {what}" for name, what in STUDIES.items()) + ".")
@click.argument("study", type=click.Choice(list(STUDIES)))
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=FILE)
@json_option("Print one JSON object.")
def command(study: str, files: tuple[Path, ...], as_json: bool) -> None:
    """Print the table of a STUDY over FILEs (.jsonl or .jsonl.gz)."""
    from clairvoyant_lab.commands.request_lines import read_files

    with told_plainly():
        from clairvoyant_lab.studies.unseen import Corpus, ceiling, unseen

        data = read_files(files)
        table = (
            ceiling(data) if study == "ceiling" else unseen(Corpus.of(data), partial(click.echo, err=True))
        )
    if as_json:
        rows = [[None if value != value else value for value in row] for row in table.rows]  # NaN is no JSON
        click.echo(json.dumps({**asdict(table), "rows": rows}, indent=2, allow_nan=False))
    else:
        click.echo(table_text(table))


def table_text(table: "StudyTable") -> str:
    """Return a table as aligned text, its title above."""
    cells = [table.columns, *([_cell(value) for value in row] for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in cells
    ]
    return "\n".join([*filter(None, [table.title]), *lines])


def _cell(value: "Cell") -> str:
    if isinstance(value, float):
        return figure(None if value != value else value, ".3f")  # NaN differs from itself
    return "-" if value is None else str(value)
