"""A simulation's report on a terminal, as JSON, as CSV, as a plot."""

import csv
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from clairvoyant_cli.errors import ClairvoyantError, ExitCode

if TYPE_CHECKING:
    from clairvoyant_cli.research.simulator.report import Report


def print_tables(report: "Report") -> None:
    """Print a report for a reader."""
    from rich.table import Table
    from rich.text import Text

    from clairvoyant_cli.commands.console import PlainConsole
    from clairvoyant_cli.research.simulator.report import shown

    console = PlainConsole()
    console.print(Text.assemble((report.name, "bold"), f": {report.setting}"))
    for table in report.tables:
        cells = {(cell.row, cell.column): cell for cell in table.cells}
        units = sorted({cell.unit for cell in table.cells})
        drawn = Table(title=f"{table.title} ({', '.join(units)})", title_justify="left")
        drawn.add_column("", no_wrap=True)
        for column in table.columns:
            drawn.add_column(column, justify="right")
        for row in table.rows:
            found = (cells.get((row, column)) for column in table.columns)
            drawn.add_row(row, *(shown(cell) if cell else "" for cell in found))
        console.print(drawn)
    if any(cell.paper is not None for table in report.tables for cell in table.cells):
        console.print("In brackets: the paper's figure.", highlight=False)
    for note in report.notes:
        console.print(f"- {note}", highlight=False)


def save_plot(report: "Report", path: Path) -> None:
    """Write a report's plots as SVG."""
    from clairvoyant_cli.research.simulator.plot import svg

    if path.suffix != ".svg":
        raise ClairvoyantError(f"--plot writes .svg, not {path.name!r}", ExitCode.USAGE)
    try:
        path.write_text(svg(report.drawn()), encoding="utf-8")
    except OSError as error:
        raise ClairvoyantError(f"cannot write {path}: {error.strerror}") from error
    click.echo(f"wrote {path}", err=True)


def publish(report: "Report", as_json: bool, as_csv: bool, plot: Path | None) -> None:
    """Print a report in the form asked for."""
    if as_json:
        click.echo(json.dumps(report.to_json(), indent=2))
    elif as_csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows(report.to_csv())
    else:
        print_tables(report)
    if plot is not None:
        save_plot(report, plot)
