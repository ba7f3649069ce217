"""Writes a report as Markdown, HTML, JSON or CSV."""

from collections.abc import Iterator
from dataclasses import asdict
from html import escape
from math import isfinite
from pathlib import Path
from typing import Any

from clairvoyant_cli.research.report.model import Cell, Report, Table
from clairvoyant_cli.research.report.svg import svg

STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;margin:1rem 0}td,th{padding:.25rem .7rem;border-bottom:1px solid #8884;"
    "text-align:right}td:first-child,th:first-child{text-align:left}pre{overflow:auto;padding:.6rem;"
    "background:#8881}svg{max-width:100%;height:auto}:root{color-scheme:light dark}"
)


def save(report: Report, path: Path) -> None:
    """Write a report: HTML for .html and .htm, its charts for .svg, else Markdown with an SVG file beside it.

    OSError if a file cannot be written.
    """
    if path.suffix == ".svg":
        path.write_text(svg(report.charts), encoding="utf-8")
    elif path.suffix in (".html", ".htm"):
        path.write_text(html(report), encoding="utf-8")
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
    for heading, table in _with_headings(report):
        parts += [f"## {heading}"] if heading else []
        header = (table.heading, *table.header)
        lines = (header, ("---", *("---:" for _ in table.header)), *table.rows)
        parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    if report.plots:
        parts += ["## Charts", f"![{_caption(report)}]({chart_file})"]
    return "\n\n".join([*parts, *report.notes]) + "\n"


def html(report: Report) -> str:
    """Return the report as one HTML document that needs no other file."""
    title = escape(report.name)
    head = (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{STYLE}</style><h1>{title}</h1>"
    )
    paragraphs = [*report.conclusions, *([report.setting] if report.setting else [])]
    parts = [head, *(f"<p>{escape(text)}</p>" for text in paragraphs)]
    parts += [f"<pre>{escape(report.command)}</pre>"] if report.command else []
    for heading, table in _with_headings(report):
        parts += [f"<h2>{escape(heading)}</h2>"] if heading else []
        rows = [_row("th", (table.heading, *table.header)), *(_row("td", row) for row in table.rows)]
        parts.append(f"<table>{''.join(rows)}</table>")
    if report.plots:
        caption = escape(_caption(report))
        parts.append(f"<figure>{svg(report.plots)}<figcaption>{caption}</figcaption></figure>")
    parts += [f"<p>{escape(note)}</p>" for note in report.notes]
    return "\n".join(parts) + "\n"


def _with_headings(report: Report) -> Iterator[tuple[str, Table]]:
    """Yield the tables, each with its section's heading if it is the first of the section."""
    section = ""
    for table in report.tables:
        yield (table.section if table.section != section else ""), table
        section = table.section


def _row(tag: str, values: tuple[str, ...]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(value)}</{tag}>" for value in values) + "</tr>"


def _caption(report: Report) -> str:
    return "; ".join(plot.title for plot in report.plots)


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


def to_csv(report: Report) -> Iterator[list[str]]:
    """Yield a header and one row a figure."""
    yield ["table", "row", "column", "unit", "ours", "half_width", "runs", "paper"]
    for table in report.tables:
        for cell in table.cells:
            record = _record(cell)
            numbers = (record[name] for name in ("ours", "half_width", "runs", "paper"))
            texts = ["" if number is None else f"{number:.6g}" for number in numbers]
            yield [table.title, cell.row, cell.column, cell.unit, *texts]


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
