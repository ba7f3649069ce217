"""Makes the report of a bench: tables, charts and JSON."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from clairvoyant_cli.scheduler.policy import DEFAULT_POLICY
from clairvoyant_lab.bench.arms import ORACLE, Arm
from clairvoyant_lab.bench.setup import REPLAY, Settings
from clairvoyant_lab.bench.summary import ALL, Cell, Key, Summary
from clairvoyant_lab.confidence import Estimate
from clairvoyant_lab.report import Cell as Figure
from clairvoyant_lab.report import Report, Table, figures
from clairvoyant_lab.svg import Curve, Plot, Point
from predictor.record import LengthClass

KINDS = tuple(each.value for each in LengthClass)
SHORT_P50 = ("short", "sojourn p50")
MEDIAN = "sojourn p50"
COUNTS = ("tau firings", "answered", "failed", "cuts", "resumes", "tokens read again")
CURVE_POINTS = 200
UNPROVEN = (
    "Nothing proves that this server can continue a preempted answer, so none is preempted; prove it first: "
    "clairvoyant calibrate"
)


@dataclass(frozen=True, slots=True)
class Findings:
    """The results of a bench."""

    title: str
    command: str
    about: Mapping[str, str]
    settings: Mapping[str, Any]
    notes: tuple[str, ...]
    summaries: Sequence[Summary]
    cells: Sequence[Cell]

    @property
    def loads(self) -> list[str]:
        return list(dict.fromkeys(summary.load for summary in self.summaries))


def report_of(findings: Findings) -> Report:
    about = Table("Measured on", ("",), tuple(findings.about.items()))
    tables = [
        replace(table, section=load)
        for load in findings.loads
        for table in tables_of([each for each in findings.summaries if each.load == load])
    ]
    return Report(
        findings.title,
        tables=(about, *tables),
        notes=findings.notes,
        plots=plots_of(findings),
        conclusions=tuple(conclusions(findings)),
        command=findings.command,
    )


def notes_of(
    settings: Settings, cells: Sequence[Cell], arms: Sequence[Arm], resume_s: float | None
) -> Iterator[str]:
    """Yield what a reader must know to read the figures correctly."""
    runs = "1 run" if settings.runs == 1 else f"{settings.runs} runs"
    yield (
        f"Mean over {runs} of {settings.requests} questions, ± its 95 % confidence interval. All"
        " arms got the same questions at the same times, and took turns: each run began with another arm."
    )
    if settings.backend == REPLAY:
        yield (
            "The backend is simulated: one answer at a time unless slots are given, service times N(3.5, 0.8)"
            " s for short and N(8.9, 2.0) s for long answers (Clairvoyant, section 5.5)."
        )
        yield (
            "The clock is virtual: it jumps to the next event when no socket is ready. Daemon and clients are"
            " real, over real sockets; their computations take no time."
            if settings.virtual_time
            else f"It runs {settings.speedup:g} times as fast; all times are multiplied by this factor, and"
            " so is the cost of the proxy."
        )
    if settings.set_lengths:
        yield (
            "The bench sets each answer's length by the request's limit. The predictor does not see"
            " that limit and learns nothing from the answers."
        )
    else:
        yield (
            "Answers end where the model ends them, or at the limit of their prompt, which no prediction"
            " sees. The oracle orders by lengths measured earlier in the same bench; the predictor"
            " learns nothing."
        )
    if settings.sampled:
        yield "Answers are sampled, without a seed, so that the arms get different ones."
    if any(arm.accuracy < 1.0 for arm in arms):
        yield "@N% knows short from long, right N times in a hundred, and nothing else."
    if any(arm.interrupts for arm in arms):
        yield (
            UNPROVEN
            if resume_s is None
            else f"Answers are cut at a word's end and resumed later, which takes {resume_s * 1000:.3g} ms."
            " Throughput lost is the time that slots were held, against the uncut baseline. Tokens read again"
            " are as the server counts them; the simulated one, as Ollama, includes those in its cache."
        )
    if settings.prompts is None:
        yield "The prompts are the project's own; no predictor was trained on them."
    failed = Counter(call.error for cell in cells for call in cell.calls if call.error is not None)
    if failed:
        reasons = ", ".join(f"{reason} ({count})" for reason, count in failed.most_common())
        yield f"Requests failed: {reasons}. They are counted as failed and are in no other figure."


def conclusions(findings: Findings) -> Iterator[str]:
    """Yield a sentence per load: the change of the median under the default policy, or the first arm."""
    for load in findings.loads:
        rivals = [s for s in findings.summaries if s.load == load and s.baseline and s.arm != s.baseline]
        if rivals:
            by_default = (each for each in rivals if each.arm.partition(":")[0] == DEFAULT_POLICY)
            arm = next(by_default, rivals[0])
            parts = [
                f"{kind} answers {_sooner(arm.changes[kind, MEDIAN])}"
                for kind in ("short", "long")
                if (kind, MEDIAN) in arm.changes
            ]
            if parts:
                yield f"{load}, {arm.arm} against {arm.baseline}, at the median: {', '.join(parts)}."


def _sooner(change: Estimate) -> str:
    if isfinite(change.half_width) and abs(change.mean) <= change.half_width:
        return "not significantly changed"
    return f"{abs(change.mean):.0%} {'sooner' if change.mean < 0 else 'later'}"


def tables_of(summaries: Sequence[Summary]) -> list[Table]:
    """Return the tables of a load: sojourn, change, time to first token, per token, cuts and counts."""
    kinds = [kind for kind in KINDS if any((kind, "answered") in s.figures for s in summaries)]

    def table(title: str, unit: str, names: Sequence[str], classes: Sequence[str] = kinds) -> Table:
        keys = [(kind, name) for kind in classes for name in names]
        return figures(title, (cell for s in summaries for cell in _cells(s.arm, s.figures, keys, unit)))

    tables = [
        table("Sojourn", "s", [f"sojourn {p}" for p in ("p50", "p95", "p99")]),
        _changes(summaries, kinds),
        table("First token", "s", [f"ttft {p}" for p in ("p50", "p95", "p99")]),
        table("Per token", "s", ["per token mean", "per token p90"], [*kinds, ALL]),
        _cuts(summaries),
        table("Other figures", "1", ["jain", "tau firings", "ranking", "answered", "failed"], [ALL]),
    ]
    return [each for each in tables if each.cells]


def _cells(arm: str, found: Mapping[Key, Estimate], keys: Sequence[Key], unit: str) -> Iterator[Figure]:
    for kind, name in keys:
        if (kind, name) in found:
            label = name
            for prefix in ("sojourn ", "ttft ", "per token "):
                label = label.removeprefix(prefix)
            column = label if kind == ALL and label == name else f"{kind} {label}"
            yield Figure(arm, column, found[kind, name], "count" if name in COUNTS else unit)


def _changes(summaries: Sequence[Summary], kinds: Sequence[str]) -> Table:
    """Return the changes against the baseline, and each arm's share of the oracle's gain at short P50."""
    keys = [(kind, f"sojourn {p}") for kind in kinds for p in ("p50", "p95")] + [(ALL, "sojourn mean")]
    medians = {s.arm: s.figures[SHORT_P50].mean for s in summaries if SHORT_P50 in s.figures}
    baseline = next((s.baseline for s in summaries if s.baseline), "")
    before, best = medians.get(baseline), medians.get(ORACLE)
    cells: list[Figure] = []
    for each in summaries:
        if each.baseline is None or each.arm == baseline:
            continue
        cells += _cells(each.arm, each.changes, keys, "%")
        if before is not None and best is not None and before > best and each.arm in medians:
            share = (before - medians[each.arm]) / (before - best)
            cells.append(Figure(each.arm, "of oracle's short gain", Estimate(share), "% of gain"))
    return figures(f"Change against {baseline}", cells)


def _cuts(summaries: Sequence[Summary]) -> Table:
    """Return what was cut and its cost: the time that slots were held, against the uncut baseline."""
    keys = [(ALL, name) for name in ("cuts", "cuts a request", "resumes", "tokens read again")]
    cells: list[Figure] = []
    for each in summaries:
        if keys[0] in each.figures:
            cells += _cells(each.arm, each.figures, keys, "1")
            if (ALL, "busy") in each.changes:
                cells.append(Figure(each.arm, "throughput lost", each.changes[ALL, "busy"], "%"))
    return figures("Cuts", cells)


def plots_of(findings: Findings) -> tuple[Plot, ...]:
    """Return the charts: gain over load, then sojourn and first-token distributions by load and class."""
    gains = _gains(findings)
    plots = [] if gains is None else [gains]
    for load in findings.loads:
        for kind in KINDS:
            for figure, label in (("sojourn_s", "sojourn time (s)"), ("ttft_s", "time to first token (s)")):
                curves = tuple(_distributions(findings, load, kind, figure))
                if curves:
                    plots.append(Plot(f"{load}: {kind} answers", label, "answers (%)", curves))
    return tuple(plots)


def _distributions(findings: Findings, load: str, kind: str, figure: str) -> Iterator[Curve]:
    """Yield each arm's cumulative distribution, in percent of the answers."""
    for arm in dict.fromkeys(summary.arm for summary in findings.summaries if summary.load == load):
        cells = [cell for cell in findings.cells if (cell.load, cell.arm) == (load, arm)]
        calls = (call for cell in cells for call in cell.calls if call.question.length_class == kind)
        values = sorted(value for call in calls if (value := getattr(call, figure)) is not None)
        if values:
            kept = sorted({*range(0, len(values), max(1, len(values) // CURVE_POINTS)), len(values) - 1})
            points = tuple(Point(values[i], 100 * (i + 1) / len(values)) for i in kept)
            yield Curve(arm, points, marked=False)


def _gains(findings: Findings) -> Plot | None:
    """Return the gain over load as in the paper's Figure 3; None for fewer than two utilisations."""
    points: dict[str, tuple[Point, ...]] = {}
    for summary in findings.summaries:
        _, found, rho = summary.load.rpartition("rho ")
        if SHORT_P50 in summary.changes and found and summary.arm != summary.baseline:
            change = summary.changes[SHORT_P50]
            point = Point(float(rho), -100 * change.mean, 100 * change.half_width)
            points[summary.arm] = (*points.get(summary.arm, ()), point)
    if not any(len(of_arm) > 1 for of_arm in points.values()):
        return None
    curves = tuple(Curve(arm, of_arm) for arm, of_arm in points.items())
    return Plot("Gain over load: short answers, P50", "utilisation rho", "less than fcfs (%)", curves)


def to_json(findings: Findings) -> dict[str, Any]:
    """Return everything but the single answers as plain JSON types."""
    return {
        "title": findings.title,
        "command": findings.command,
        "about": dict(findings.about),
        "settings": dict(findings.settings),
        "notes": list(findings.notes),
        "arms": [
            {
                "load": summary.load,
                "arm": summary.arm,
                "baseline": summary.baseline,
                "figures": _nested(summary.figures),
                "changes": _nested(summary.changes),
            }
            for summary in findings.summaries
        ],
    }


def _nested(estimates: Mapping[Key, Estimate]) -> dict[str, dict[str, Any]]:
    nested: dict[str, dict[str, Any]] = {}
    for (kind, name), each in estimates.items():
        half_width = each.half_width if isfinite(each.half_width) else None
        nested.setdefault(kind, {})[name] = {"mean": each.mean, "half_width": half_width, "runs": each.n}
    return nested
