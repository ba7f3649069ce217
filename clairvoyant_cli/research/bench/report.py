"""What a bench found: as tables, charts, JSON and CSV, all from the same summaries."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from clairvoyant_cli.research.bench.measures import ALL, Key, Spread, Summary
from clairvoyant_cli.research.bench.page import Block, Chart, Code, Grid, Heading, Page, Paragraph
from clairvoyant_cli.research.bench.results import Cell
from clairvoyant_cli.research.report import Curve, Plot, Point
from clairvoyant_cli.research.report.svg import svg
from clairvoyant_cli.scheduler.policy import DEFAULT_POLICY
from predictor.record import LengthClass

KINDS = tuple(each.value for each in LengthClass)


MEDIAN = "sojourn p50"


@dataclass(frozen=True, slots=True)
class Findings:
    """All that a report is made of. `notes` say what a reader must know to read the figures right.

    `simulated` is what the simulator says of the same questions. `sweep` shows what changes with the load
    instead of every load's own tables.
    """

    title: str
    command: str
    about: Mapping[str, str]
    settings: Mapping[str, Any]
    notes: tuple[str, ...]
    summaries: Sequence[Summary]
    cells: Sequence[Cell]
    simulated: Sequence[Summary] = ()
    sweep: bool = False

    @property
    def loads(self) -> list[str]:
        """The loads, in the order they were measured."""
        return list(dict.fromkeys(summary.load for summary in self.summaries))

    def of_load(self, load: str) -> list[Summary]:
        """Return the summaries of a load."""
        return [summary for summary in self.summaries if summary.load == load]


def page_of(findings: Findings) -> Page:
    """Return the report: what ran where, how, and what came out."""
    facts = tuple((name, value) for name, value in findings.about.items())
    blocks: list[Block] = [Paragraph(verdict) for verdict in verdicts_of(findings)]
    blocks += [Grid(("Measured on", ""), facts), Code(findings.command)]
    blocks += [Paragraph(note) for note in findings.notes]
    for heading, tables in sections_of(findings):
        blocks.append(Heading(heading))
        blocks += tables
    plots = plots_of(findings)
    if plots:
        blocks += [Heading("Charts"), Chart(svg(plots), "; ".join(plot.title for plot in plots))]
    return Page(findings.title, tuple(blocks))


def verdicts_of(findings: Findings) -> Iterator[str]:
    """Yield a sentence a load: what came out at the median of the default policy, or of the first arm."""
    for load in findings.loads:
        rivals = [each for each in findings.of_load(load) if each.baseline and each.arm != each.baseline]
        if rivals:
            arm = next((each for each in rivals if each.arm == DEFAULT_POLICY), rivals[0])
            parts = [
                f"{kind} answers {_sooner(arm.changes[kind, MEDIAN])}"
                for kind in ("short", "long")
                if (kind, MEDIAN) in arm.changes
            ]
            if parts:
                yield f"{load}, {arm.arm} against {arm.baseline}, at the median: {', '.join(parts)}."


def _sooner(change: Spread) -> str:
    if isfinite(change.half_width) and abs(change.mean) <= change.half_width:
        return "neither sooner nor later, as far as these runs tell"
    word = "sooner" if change.mean < 0 else "later"
    return f"{abs(change.mean):.0%} {word}"


def sections_of(findings: Findings) -> Iterator[tuple[str, list[Grid]]]:
    """Yield the tables under their headings: one section a load, or one for a sweep."""
    if findings.sweep:
        yield "Change over load", sweep_tables(findings)
        return
    for load in findings.loads:
        tables = tables_of(findings.of_load(load))
        simulated = [summary for summary in findings.simulated if summary.load == load]
        if simulated:
            # Twice no tables: sojourn and change are enough to lay beside what was measured.
            tables += [replace(table, header=_simulated(table.header)) for table in tables_of(simulated)[:2]]
        yield load, tables


def _simulated(header: tuple[str, ...]) -> tuple[str, ...]:
    return (f"Simulated: {header[0][0].lower()}{header[0][1:]}", *header[1:])


SWEPT = (("short", "sojourn p50"), ("short", "sojourn p95"), ("long", "sojourn p95"))
"""What a sweep shows: what shortest-first gains, in the middle and at the end, and what it costs."""


def sweep_tables(findings: Findings) -> list[Grid]:
    """Return a table for each swept figure: a row a load, each arm measured and simulated."""
    tables = []
    for key in SWEPT:
        changed = [s for s in findings.summaries if key in s.changes and s.arm != s.baseline]
        if not changed:
            continue
        simulated = {(s.load, s.arm): s.changes[key] for s in findings.simulated if key in s.changes}
        found = {(s.load, s.arm): s.changes[key] for s in changed}
        arms = list(dict.fromkeys(s.arm for s in changed))
        rows = []
        for load in findings.loads:
            row = [load]
            for arm in arms:
                expected = simulated.get((load, arm))
                row.append(_interval(found[load, arm]) if (load, arm) in found else "")
                row.append("" if expected is None else f"{100 * expected.mean:+.1f} %")
            rows.append(tuple(row))
        title = f"{key[0]} {key[1].removeprefix('sojourn ')}, change against {changed[0].baseline}"
        tables.append(Grid((title, *(n for arm in arms for n in (arm, f"{arm}, simulated"))), tuple(rows)))
    return tables


def _interval(spread: Spread) -> str:
    text = f"{100 * spread.mean:+.1f} %"
    return f"{text} ± {100 * spread.half_width:.1f}" if isfinite(spread.half_width) else text


def tables_of(summaries: Sequence[Summary]) -> list[Grid]:
    """Return the tables of one load: sojourn, change, time to first token, per token, and the rest."""
    kinds = [kind for kind in KINDS if any((kind, "answered") in s.figures for s in summaries)]
    tables = [
        _grid("Sojourn (s)", summaries, [(k, f"sojourn {p}") for k in kinds for p in ("p50", "p95", "p99")]),
        _changes(summaries, kinds),
        _grid("First token (s)", summaries, [(k, f"ttft {p}") for k in kinds for p in ("p50", "p95", "p99")]),
        _grid(
            "Per token (s)",
            summaries,
            [(k, f"per token {p}") for k in (*kinds, ALL) for p in ("mean", "p90")],
        ),
        _cuts(summaries),
        _grid(
            "Besides",
            summaries,
            [(ALL, "jain"), (ALL, "tau firings"), (ALL, "ranking"), (ALL, "answered"), (ALL, "failed")],
        ),
    ]
    return [table for table in tables if len(table.header) > 1 and table.rows]


def _grid(title: str, summaries: Sequence[Summary], keys: Sequence[Key]) -> Grid:
    known = [key for key in keys if any(key in summary.figures for summary in summaries)]
    rows = [
        (summary.arm, *(shown(summary.figures[key]) if key in summary.figures else "" for key in known))
        for summary in summaries
    ]
    return Grid((title, *(_label(key) for key in known)), tuple(rows))


def _changes(summaries: Sequence[Summary], kinds: Sequence[str]) -> Grid:
    keys = [(kind, f"sojourn {p}") for kind in kinds for p in ("p50", "p95")] + [(ALL, "sojourn mean")]
    bounded = any(summary.share_of_bound is not None for summary in summaries)
    baseline = next((summary.baseline for summary in summaries if summary.baseline), None)
    rows = []
    for summary in summaries:
        if summary.baseline is None or summary.arm == baseline:
            continue
        row = [summary.arm, *(percent(summary.changes[k]) if k in summary.changes else "" for k in keys)]
        if bounded:
            share = summary.share_of_bound
            row.append("" if share is None else f"{share:.0%}")
        rows.append(tuple(row))
    header = [f"Change against {baseline}", *(_label(key) for key in keys)]
    return Grid(tuple([*header, "of oracle's short gain"] if bounded else header), tuple(rows))


def _cuts(summaries: Sequence[Summary]) -> Grid:
    """Draw what was cut and what it cost: the time that slots were held, against the uncut baseline."""
    keys = [(ALL, name) for name in ("cuts", "cuts a request", "resumes", "tokens read again")]
    cutting = [summary for summary in summaries if keys[0] in summary.figures]
    grid = _grid("Cuts", cutting, keys)
    if not all((ALL, "busy") in summary.changes for summary in cutting):
        return grid
    lost = [_interval(summary.changes[ALL, "busy"]) for summary in cutting]
    rows = tuple((*row, text) for row, text in zip(grid.rows, lost, strict=True))
    return Grid((*grid.header, "throughput lost"), rows)


def _label(key: Key) -> str:
    kind, figure = key
    for prefix in ("sojourn ", "ttft ", "per token "):
        figure = figure.removeprefix(prefix)
    return figure if kind == ALL and figure not in ("mean", "p90") else f"{kind} {figure}"


def shown(spread: Spread) -> str:
    """Return mean ± standard deviation with about three digits."""
    size = abs(spread.mean)
    digits = 0 if size >= 100 or size == int(size) else 1 if size >= 10 else 2 if size >= 0.1 else 4
    text = f"{spread.mean:.{digits}f}"
    return f"{text} ± {spread.sd:.{digits}f}" if isfinite(spread.sd) and spread.sd else text


def percent(spread: Spread) -> str:
    """Return a change in percent, ± its standard deviation over the runs."""
    text = f"{100 * spread.mean:+.1f} %"
    return f"{text} ± {100 * spread.sd:.1f}" if isfinite(spread.sd) else text


def plots_of(findings: Findings) -> list[Plot]:
    """Return the charts: sojourn and first-token distributions by class, and gain over load."""
    plots: list[Plot] = []
    for load in [] if findings.sweep else findings.loads:
        for kind in KINDS:
            for figure, label in (("sojourn_s", "sojourn time (s)"), ("ttft_s", "time to first token (s)")):
                lines = tuple(_distributions(findings, load, kind, figure))
                if lines:
                    plots.append(Plot(f"{load}: {kind} answers", label, "answers (%)", lines))
    gains = _gains(findings)
    return plots if gains is None else [gains, *plots]


def _distributions(findings: Findings, load: str, kind: str, figure: str) -> Iterator[Curve]:
    for summary in findings.of_load(load):
        cells = [cell for cell in findings.cells if (cell.load, cell.arm) == (load, summary.arm)]
        values = [getattr(answer, figure) for cell in cells for answer in cell.answers if answer.kind == kind]
        values = [value for value in values if value is not None]
        if values:
            yield distribution(summary.arm, values)


def _gains(findings: Findings) -> Plot | None:
    """Draw the paper's Figure 3 from this machine's figures; None with fewer than two utilisations.

    Bars are 95 % confidence intervals of the mean over the runs.
    """
    points, simulated = _gain_points(findings.summaries), _gain_points(findings.simulated)
    if not any(len(of_arm) > 1 for of_arm in points.values()):
        return None
    lines: list[Curve] = []
    for arm, of_arm in points.items():
        lines.append(Curve(arm, of_arm))
        if arm in simulated:
            bare = tuple(replace(point, half_width=0.0) for point in simulated[arm])
            lines.append(Curve(f"{arm}, simulated", bare, marked=False, dashed=True))
    title = "Gain over load: short answers, P50"
    return Plot(title, "utilisation rho", "less than fcfs (%)", tuple(lines))


def _gain_points(summaries: Sequence[Summary]) -> dict[str, tuple[Point, ...]]:
    points: dict[str, tuple[Point, ...]] = {}
    for summary in summaries:
        change = summary.changes.get((LengthClass.SHORT.value, "sojourn p50"))
        _, found, rho = summary.load.rpartition("rho ")
        if change is not None and found and summary.arm != summary.baseline:
            point = Point(float(rho), -100 * change.mean, 100 * change.half_width)
            points[summary.arm] = (*points.get(summary.arm, ()), point)
    return points


def distribution(name: str, values: Sequence[float], points: int = 200) -> Curve:
    """Return the cumulative distribution of values as a curve of percent over value."""
    ordered = sorted(values)
    kept = sorted({*range(0, len(ordered), max(1, len(ordered) // points)), len(ordered) - 1})
    return Curve(name, tuple(Point(ordered[i], 100 * (i + 1) / len(ordered)) for i in kept), marked=False)


def to_json(findings: Findings) -> dict[str, Any]:
    """Return everything but the single answers as plain JSON types."""
    return {
        "title": findings.title,
        "command": findings.command,
        "about": dict(findings.about),
        "settings": dict(findings.settings),
        "notes": list(findings.notes),
        "arms": [_plain(summary) for summary in findings.summaries],
        "simulated": [_plain(summary) for summary in findings.simulated],
    }


def _plain(summary: Summary) -> dict[str, Any]:
    return {
        "load": summary.load,
        "arm": summary.arm,
        "baseline": summary.baseline,
        "share_of_oracle_gain": summary.share_of_bound,
        "figures": _nested(summary.figures),
        "changes": _nested(summary.changes),
    }


def _nested(figures: Mapping[Key, Spread]) -> dict[str, dict[str, Any]]:
    nested: dict[str, dict[str, Any]] = {}
    for (kind, name), spread in figures.items():
        sd = spread.sd if isfinite(spread.sd) else None
        nested.setdefault(kind, {})[name] = {"mean": spread.mean, "sd": sd, "runs": spread.runs}
    return nested


def to_csv(cells: Iterable[Cell]) -> Iterator[tuple[object, ...]]:
    """Yield a header and one row an answer."""
    yield "load", "run", "arm", "class", "at_s", "tokens", "predicted_tokens", "ttft_s", "sojourn_s", "error"
    for cell in cells:
        for a in cell.answers:
            times = (a.predicted_tokens, a.ttft_s, a.sojourn_s, a.error)
            yield (cell.load, cell.run, cell.arm, a.kind, a.at_s, a.tokens, *times)
