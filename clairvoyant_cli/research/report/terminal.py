"""Prints a report on a terminal."""

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from clairvoyant_cli.research.report.model import Report


def print_report(report: Report, console: Console) -> None:
    """Print a report: conclusions, setting, tables, notes."""
    for conclusion in report.conclusions:
        console.print(conclusion, style="bold", highlight=False)
    if report.setting:
        console.print(Text.assemble((report.name, "bold"), f": {report.setting}"))
    for table in report.tables:
        title = f"{table.section}: {table.heading}" if table.section else table.heading
        drawn = RichTable("", title=title, title_justify="left")
        drawn.columns[0].no_wrap = bool(table.cells)
        for column in table.header:
            drawn.add_column(column, justify="right")
        for row in table.rows:
            drawn.add_row(*row)
        console.print(drawn)
    if any(cell.paper is not None for table in report.tables for cell in table.cells):
        console.print("In brackets: the paper's figure.", highlight=False)
    for note in report.notes:
        console.print(f"- {note}", style="dim", highlight=False)
