"""Prints a report on a terminal, or writes it as Markdown or JSON."""

from math import isfinite
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from clairvoyant_cli.research.report.model import Cell, Report
from clairvoyant_cli.research.report.svg import svg


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


def save(report: Report, path: Path) -> None:
    """Write a report as Markdown, its charts as an SVG file beside it; OSError if that fails."""
    drawing = path.with_suffix(".svg")
    if report.plots:
        drawing.write_text(svg(report.plots), encoding="utf-8")
    path.write_text(markdown(report, drawing.name), encoding="utf-8")


def markdown(report: Report, chart_file: str) -> str:
    """Return the report as Markdown; `chart_file` is the name of the SVG file it links to."""
    parts = [f"# {report.name}", *report.conclusions]
    parts += [report.setting] if report.setting else []
    parts += [f"```sh\n{report.command}\n```"] if report.command else []
    section = ""
    for table in report.tables:
        parts += [f"## {table.section}"] if table.section not in ("", section) else []
        section = table.section
        header = (table.heading, *table.header)
        lines = (header, ("---", *("---:" for _ in table.header)), *table.rows)
        parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    if report.plots:
        titles = "; ".join(plot.title for plot in report.plots)
        parts += ["## Charts", f"![{titles}]({chart_file})"]
    return "\n\n".join([*parts, *report.notes]) + "\n"


def to_json(report: Report) -> dict[str, Any]:
    """Return the figures as plain JSON types; null where an interval is not known."""
    return {
        "name": report.name,
        "setting": report.setting,
        "tables": [{"title": table.title, "cells": [*map(_record, table.cells)]} for table in report.tables],
        "notes": list(report.notes),
    }


def _record(cell: Cell) -> dict[str, Any]:
    return {
        "row": cell.row,
        "column": cell.column,
        "unit": cell.unit,
        "ours": _finite(cell.ours.mean * cell.scale),
        "half_width": _finite(cell.ours.half_width * cell.scale),
        "runs": cell.ours.n,
        "paper": None if cell.paper is None else cell.paper * cell.scale,
    }


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None
