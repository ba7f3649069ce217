"""What a scenario found: figures beside the paper's, curves, and why they differ. No drawing here."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from math import isfinite

from clairvoyant_cli.confidence import Estimate


@dataclass(frozen=True, slots=True)
class Cell:
    """One figure of ours, and the paper's where its text gives one.

    Unit "%" is a change and "% of requests" a share, both kept as fractions and shown times 100.
    """

    row: str
    column: str
    ours: Estimate
    unit: str = "s"
    paper: float | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a curve with the half width of its confidence interval."""

    x: float
    y: float
    half_width: float = 0.0


@dataclass(frozen=True, slots=True)
class Curve:
    """A named line of a plot; `marked` draws its points too. A dashed one keeps the colour before it."""

    name: str
    points: tuple[Point, ...]
    marked: bool = True
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Plot:
    """Curves over one pair of axes, whose labels carry the units.

    With `x_names` the points stand over names, at 0, 1, 2 and so on, and are not joined.
    """

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    x_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """Figures that belong together."""

    title: str
    cells: tuple[Cell, ...]

    @property
    def rows(self) -> list[str]:
        """The row names, in order of appearance."""
        return list(dict.fromkeys(cell.row for cell in self.cells))

    @property
    def columns(self) -> list[str]:
        """The column names, in order of appearance."""
        return list(dict.fromkeys(cell.column for cell in self.cells))


def scale_of(unit: str) -> float:
    """Return what turns a figure into its unit: 100 for fractions."""
    return 100.0 if unit.startswith("%") else 1.0


def plot_of(table: Table) -> Plot:
    """Return a table as a plot: a point with its interval for each figure, over the names of the rows."""
    rows = table.rows
    scale = {cell.unit: scale_of(cell.unit) for cell in table.cells}
    curves = tuple(
        Curve(
            column,
            tuple(
                Point(rows.index(c.row), c.ours.mean * scale[c.unit], c.ours.half_width * scale[c.unit])
                for c in table.cells
                if c.column == column and isfinite(c.ours.mean)
            ),
        )
        for column in table.columns
    )
    units = ", ".join(dict.fromkeys(cell.unit for cell in table.cells))
    return Plot(table.title, "", f"({units})", curves, tuple(rows))


@dataclass(frozen=True, slots=True)
class Report:
    """All that a scenario says: what was simulated, what came out, and how it differs from the paper.

    `facts` are what a script may want of it, by name.
    """

    name: str
    setting: str
    tables: tuple[Table, ...]
    notes: tuple[str, ...] = ()
    plots: tuple[Plot, ...] = ()
    facts: dict[str, str | float | None] = field(default_factory=dict)

    def drawn(self) -> tuple[Plot, ...]:
        """Return the report's plots, or its last table as one."""
        return self.plots or (plot_of(self.tables[-1]),)

    def to_json(self) -> dict[str, object]:
        """Return the report as plain JSON types; an interval that cannot be had is null."""
        plain = asdict(self)
        plain["tables"] = [
            {"title": table.title, "cells": [cell_record(cell) for cell in table.cells]}
            for table in self.tables
        ]
        plain["plots"] = [
            {**plot, "curves": [{**curve, "points": _finite(curve["points"])} for curve in plot["curves"]]}
            for plot in plain["plots"]
        ]
        return plain

    def to_csv(self) -> Iterator[list[str]]:
        """Yield a header and one row a figure."""
        yield ["table", "row", "column", "unit", "ours", "half_width", "runs", "paper"]
        for table in self.tables:
            for cell in table.cells:
                record = cell_record(cell)
                figures = (record["ours"], record["half_width"], record["runs"], record["paper"])
                texts = ["" if figure is None else f"{figure:.6g}" for figure in figures]
                yield [table.title, cell.row, cell.column, cell.unit, *texts]


def _finite(points: list[dict[str, float]]) -> list[dict[str, float | None]]:
    return [{name: value if isfinite(value) else None for name, value in point.items()} for point in points]


def cell_record(cell: Cell) -> dict[str, str | float | None]:
    """Return a figure as plain JSON types, in its unit."""
    scale = scale_of(cell.unit)
    ours, half_width = cell.ours.mean, cell.ours.half_width
    return {
        "row": cell.row,
        "column": cell.column,
        "unit": cell.unit,
        "ours": ours * scale if isfinite(ours) else None,
        "half_width": half_width * scale if isfinite(half_width) else None,
        "runs": cell.ours.n,
        "paper": None if cell.paper is None else cell.paper * scale,
    }


def shown(cell: Cell) -> str:
    """Return a figure as a reader wants it: the mean, its interval, and the paper's figure in brackets."""
    scale, sign = scale_of(cell.unit), "+" if cell.unit == "%" else ""
    digits = 1 if scale != 1.0 else digits_for(cell.ours.mean)
    if not isfinite(cell.ours.mean):
        return "-"
    text = f"{cell.ours.mean * scale:{sign}.{digits}f}"
    if isfinite(cell.ours.half_width):
        text += f" ± {cell.ours.half_width * scale:.{digits}f}"
    if cell.paper is not None:
        text += f"  [{cell.paper * scale:{sign}.{digits}f}]"
    return text


def digits_for(value: float) -> int:
    """Return how many decimals show about three significant digits."""
    size = abs(value)
    if not isfinite(size):
        return 0
    if size >= 100.0:
        return 0
    return 1 if size >= 10.0 else 2 if size >= 0.1 else 4
