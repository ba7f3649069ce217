"""Figures of a cell and of an arm: percentiles by class, fairness, ranking accuracy, change against FCFS."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import nan
from statistics import fmean, stdev

import numpy as np

from clairvoyant_cli.confidence import half_width, jain
from clairvoyant_cli.research.bench.results import Answer, Cell
from predictor.ranking import pairs_in_order
from predictor.record import LengthClass
from profiles.percentiles import percentile

ALL = "all"

Key = tuple[str, str]
"""A length class, or `ALL`, and the name of a figure."""

PERCENTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and standard deviation over the runs; the deviation of one run is not a number."""

    mean: float
    sd: float
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Sum up one figure of each run."""
        return cls(fmean(values), stdev(values) if len(values) > 1 else nan, len(values))

    @property
    def half_width(self) -> float:
        """Half the width of the mean's 95 % confidence interval (Student's t); of one run not a number."""
        return half_width(self.sd, self.runs)


def figures_of(cell: Cell) -> dict[Key, float]:
    """Return the figures of a cell; times in seconds.

    `sojourn` is from sending to the last byte, `ttft` to the first token, `per token` is sojourn divided by
    answer length (PARS, section 4.1). `jain` is Jain's index of the per-token latencies: 1 if every client
    pays the same for a token. `busy` is how long slots were held. `ranking` is the share of (short, long)
    pairs predicted in the right order.
    """
    figures: dict[Key, float] = {}
    kinds = [each.value for each in LengthClass if any(a.kind == each for a in cell.answers)]
    for kind in (*kinds, ALL):
        of_kind = [a for a in cell.answers if kind in (a.kind, ALL)]
        figures |= {(kind, name): value for name, value in _of_class(of_kind).items()}
    figures[ALL, "tau firings"] = cell.tau_firings
    if cell.busy_s is not None:
        figures[ALL, "busy"] = cell.busy_s
    if cell.cuts is not None:
        figures[ALL, "cuts"] = cell.cuts
        figures[ALL, "cuts a request"] = cell.cuts / len(cell.answers)
        figures[ALL, "resumes"] = cell.resumes or 0
    if cell.recomputed_tokens is not None:
        figures[ALL, "tokens read again"] = cell.recomputed_tokens
    figures[ALL, "failed"] = sum(a.error is not None for a in cell.answers)
    accuracy = ranking_accuracy(cell.answers)
    if accuracy is not None:
        figures[ALL, "ranking"] = accuracy
    return figures


def _of_class(answers: Sequence[Answer]) -> dict[str, float]:
    figures: dict[str, float] = {}
    sojourns = sorted(a.sojourn_s for a in answers if a.sojourn_s is not None)
    firsts = sorted(a.ttft_s for a in answers if a.ttft_s is not None)
    rates = sorted(a.sojourn_s / a.tokens for a in answers if a.sojourn_s is not None and a.tokens)
    if sojourns:
        figures["answered"] = len(sojourns)
        figures["sojourn mean"] = fmean(sojourns)
    for name, values in (("sojourn", sojourns), ("ttft", firsts)):
        if values:
            figures |= {f"{name} {p}": percentile(values, share) for p, share in PERCENTILES.items()}
    if rates:
        figures["per token mean"] = fmean(rates)
        figures["per token p90"] = percentile(rates, 0.9)
        figures["jain"] = jain(np.array(rates))
        figures["tokens mean"] = fmean(a.tokens for a in answers if a.sojourn_s is not None)
    return figures


def ranking_accuracy(answers: Iterable[Answer]) -> float | None:
    """Return the share of (short, long) pairs in which the long one was predicted longer; ties count half."""
    predicted: dict[str, list[float]] = {LengthClass.SHORT: [], LengthClass.LONG: []}
    for answer in answers:
        if answer.predicted_tokens is not None and answer.kind in predicted:
            predicted[answer.kind].append(answer.predicted_tokens)
    return pairs_in_order(*predicted.values())


@dataclass(frozen=True, slots=True)
class Summary:
    """One arm under one load: every figure over the runs, and its change against another arm's."""

    load: str
    arm: str
    figures: dict[Key, Spread]
    changes: dict[Key, Spread]
    baseline: str | None
    share_of_bound: float | None = None


def summarise(cells: Iterable[Cell], baseline: str | None, bound: str | None) -> list[Summary]:
    """Sum up the cells by load and arm.

    `changes` are relative to `baseline` in the same run, -0.5 for half. `share_of_bound` is how much of the
    fall in short P50 from `baseline` to `bound` an arm achieves.
    """
    table: dict[tuple[str, str], dict[int, dict[Key, float]]] = {}
    for cell in cells:
        table.setdefault((cell.load, cell.arm), {})[cell.run] = figures_of(cell)
    summaries = []
    for (load, arm), runs in table.items():
        before = table.get((load, baseline), {}) if baseline else {}
        share = _share_of_bound(table, load, arm, baseline, bound)
        figures = {key: Spread.of(values) for key, values in _by_key(runs.values()).items()}
        changes = _by_key(_change(before[run], runs[run]) for run in runs if run in before)
        spreads = {key: Spread.of(values) for key, values in changes.items()}
        summaries.append(Summary(load, arm, figures, spreads, baseline if before else None, share))
    return summaries


def _by_key(runs: Iterable[dict[Key, float]]) -> dict[Key, list[float]]:
    values: dict[Key, list[float]] = {}
    for figures in runs:
        for key, value in figures.items():
            values.setdefault(key, []).append(value)
    return values


def _change(before: dict[Key, float], after: dict[Key, float]) -> dict[Key, float]:
    return {key: after[key] / before[key] - 1 for key in after if before.get(key)}


def _share_of_bound(
    table: dict[tuple[str, str], dict[int, dict[Key, float]]],
    load: str,
    arm: str,
    baseline: str | None,
    bound: str | None,
) -> float | None:
    key = (LengthClass.SHORT.value, "sojourn p50")
    p50s = []
    for name in (baseline, arm, bound):
        runs = table.get((load, name or ""), {})
        values = [figures[key] for figures in runs.values() if key in figures]
        if not values:
            return None
        p50s.append(fmean(values))
    before, ours, best = p50s
    return (before - ours) / (before - best) if before > best else None
