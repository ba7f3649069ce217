"""Reports of experiments: text, tables and charts, printed on a terminal or saved as Markdown."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from clairvoyant_lab.confidence import Estimate
from clairvoyant_lab.svg import Plot, svg


@dataclass(frozen=True, slots=True)
class Cell:
    """A measured figure, and the paper's where it states one. Unit "%" is a change and "% of requests" a
    share; both are stored as fractions and shown times 100. Unit "count" is a number of things.
    """

    row: str
    column: str
    ours: Estimate
    unit: str = "s"
    paper: float | None = None

    @property
    def scale(self) -> float:
        """The factor from the stored value to the unit."""
        return 100.0 if self.unit.startswith("%") else 1.0

    @property
    def text(self) -> str:
        """The mean, ± its 95 % confidence interval, and the paper's figure in brackets."""
        if not isfinite(self.ours.mean):
            return "-"
        sign = "+" if self.unit == "%" else ""
        whole = self.unit == "count" and self.ours.mean == int(self.ours.mean)
        size = abs(self.ours.mean)
        decimals = 0 if size >= 100.0 else 1 if size >= 10.0 else 2 if size >= 0.1 else 4
        digits = 1 if self.scale != 1.0 else 0 if whole else decimals
        text = f"{self.ours.mean * self.scale:{sign}.{digits}f}"
        if isfinite(self.ours.half_width) and not (whole and self.ours.half_width == 0.0):
            text += f" ± {self.ours.half_width * self.scale:.{digits}f}"
        if self.paper is not None:
            text += f"  [{self.paper * self.scale:{sign}.{digits}f}]"
        return text


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text. The first column names the rows; `cells` are the figures that a row was made from."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    section: str = ""
    cells: tuple[Cell, ...] = ()

    @property
    def heading(self) -> str:
        units = ", ".join(sorted({cell.unit for cell in self.cells} - {"1", "count"}))
        return f"{self.title} ({units})" if units else self.title


def figures(title: str, cells: Iterable[Cell]) -> Table:
    """Return a table of figures; rows and columns are in order of appearance."""
    cells = tuple(cells)
    found = {(cell.row, cell.column): cell.text for cell in cells}
    columns = tuple(dict.fromkeys(cell.column for cell in cells))
    rows = dict.fromkeys(cell.row for cell in cells)
    texts = tuple((row, *(found.get((row, column), "") for column in columns)) for row in rows)
    return Table(title, columns, texts, cells=cells)


@dataclass(frozen=True, slots=True)
class Report:
    """A report in reading order: conclusions, setting, command, tables, charts, notes."""

    name: str
    setting: str = ""
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    plots: tuple[Plot, ...] = ()
    conclusions: tuple[str, ...] = ()
    command: str = ""


def paragraphs(text: str) -> tuple[str, ...]:
    """Return the paragraphs of a text, which are separated by blank lines, each as one line."""
    return tuple(" ".join(part.split()) for part in text.strip().split("\n\n"))


# -- output ----------------------------------------------------------------------------------------


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
    ours, half_width = (value * cell.scale for value in (cell.ours.mean, cell.ours.half_width))
    return {
        "row": cell.row,
        "column": cell.column,
        "unit": cell.unit,
        "ours": ours if isfinite(ours) else None,
        "half_width": half_width if isfinite(half_width) else None,
        "runs": cell.ours.n,
        "paper": None if cell.paper is None else cell.paper * cell.scale,
    }


def print_report(report: Report, console: Console) -> None:
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
