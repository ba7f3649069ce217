"""Reports of experiments: text, tables and charts, shown on a terminal or saved to a file.

Build a `Report` from `Table`s (text) or `figures` (numbers with confidence intervals) and `Plot`s, then:

    print_report(report, console)            # rich tables
    save(report, Path("r.md"))               # Markdown, charts beside it
    to_json(report)                          # the figures as data
"""

from clairvoyant_cli.research.report.formats import print_report, save, to_json
from clairvoyant_cli.research.report.model import Cell, Curve, Plot, Point, Report, Table, figures, paragraphs

__all__ = [
    "Cell",
    "Curve",
    "Plot",
    "Point",
    "Report",
    "Table",
    "figures",
    "paragraphs",
    "print_report",
    "save",
    "to_json",
]
