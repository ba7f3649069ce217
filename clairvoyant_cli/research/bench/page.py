"""A page of paragraphs, tables, code and charts, written as Markdown or as one HTML file."""

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;margin:1rem 0}td,th{padding:.25rem .7rem;border-bottom:1px solid #8884;"
    "text-align:right}td:first-child,th:first-child{text-align:left}pre{overflow:auto;padding:.6rem;"
    "background:#8881}svg{max-width:100%;height:auto}:root{color-scheme:light dark}"
)


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading below the title."""

    text: str


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Plain text."""

    text: str


@dataclass(frozen=True, slots=True)
class Code:
    """Commands, word for word."""

    text: str


@dataclass(frozen=True, slots=True)
class Grid:
    """A table; the first column is text, the others figures."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart as SVG, with what it shows in words."""

    svg: str
    caption: str


Block = Heading | Paragraph | Code | Grid | Chart


@dataclass(frozen=True, slots=True)
class Page:
    """A title and what follows it."""

    title: str
    blocks: tuple[Block, ...]


def write_page(page: Page, path: Path) -> None:
    """Write HTML for .html or .htm, else Markdown, whose charts become SVG files beside it."""
    if path.suffix in (".html", ".htm"):
        path.write_text(html(page), encoding="utf-8")
        return
    charts = [block for block in page.blocks if isinstance(block, Chart)]
    names = [path.with_suffix(f".{i}.svg" if len(charts) > 1 else ".svg").name for i in range(len(charts))]
    for name, chart in zip(names, charts, strict=True):
        path.with_name(name).write_text(chart.svg, encoding="utf-8")
    path.write_text(markdown(page, names), encoding="utf-8")


def markdown(page: Page, chart_files: list[str]) -> str:
    """Return the page as Markdown; each chart is a link to its file."""
    files = iter(chart_files)
    parts = [f"# {page.title}"]
    for block in page.blocks:
        match block:
            case Heading(text):
                parts.append(f"## {text}")
            case Paragraph(text):
                parts.append(text)
            case Code(text):
                parts.append(f"```sh\n{text}\n```")
            case Grid(header, rows):
                rule = ("---", *("---:" for _ in header[1:]))
                parts.append("\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows)))
            case Chart(_, caption):
                parts.append(f"![{caption}]({next(files)})")
    return "\n\n".join(parts) + "\n"


def html(page: Page) -> str:
    """Return the page as one HTML document that needs no other file."""
    head = (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(page.title)}</title><style>{STYLE}</style><h1>{escape(page.title)}</h1>"
    )
    return "\n".join([head, *(part for block in page.blocks for part in _html(block))]) + "\n"


def _html(block: Block) -> Iterator[str]:
    match block:
        case Heading(text):
            yield f"<h2>{escape(text)}</h2>"
        case Paragraph(text):
            yield f"<p>{escape(text)}</p>"
        case Code(text):
            yield f"<pre>{escape(text)}</pre>"
        case Grid(header, rows):
            yield "<table>" + _row("th", header)
            yield from (_row("td", row) for row in rows)
            yield "</table>"
        case Chart(svg, caption):
            yield f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"


def _row(cell: str, values: tuple[str, ...]) -> str:
    return "<tr>" + "".join(f"<{cell}>{escape(value)}</{cell}>" for value in values) + "</tr>"
