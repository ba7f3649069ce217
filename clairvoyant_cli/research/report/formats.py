"""Writes a report as Markdown or JSON."""

from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

from clairvoyant_cli.research.report.model import Cell, Report
from clairvoyant_cli.research.report.svg import svg


def save(report: Report, path: Path) -> None:
    """Write a report: its charts for .svg, else Markdown with an SVG file beside it.

    OSError if a file cannot be written.
    """
    if path.suffix == ".svg":
        path.write_text(svg(report.charts), encoding="utf-8")
    else:
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
    """Return the figures and plots as plain JSON types; null where an interval is not known."""
    plots = [asdict(plot) for plot in report.plots]
    for point in (p for plot in plots for curve in plot["curves"] for p in curve["points"]):
        point["half_width"] = _finite(point["half_width"])
    return {
        "name": report.name,
        "setting": report.setting,
        "tables": [{"title": table.title, "cells": [*map(_record, table.cells)]} for table in report.tables],
        "notes": list(report.notes),
        "plots": plots,
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
