"""Summarises the cells of a bench: percentiles by class, fairness, ranking and changes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np

from clairvoyant_lab.bench.asker import Call
from clairvoyant_lab.confidence import Estimate, jain, mean_of
from predictor.ranking import pairs_in_order
from predictor.record import LengthClass
from profiles.percentiles import percentile

ALL = "all"

Key = tuple[str, str]  # a length class, or `ALL`, and the name of a figure
PERCENTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Cell:
    """One arm's answers to one run of one load.

    `counts` are what the daemon counted: "tau firings", "busy" (seconds that slots were held), and where the
    policy cuts answers "cuts", "resumes" and "tokens read again".
    """

    load: str
    run: int
    arm: str
    calls: tuple[Call, ...]
    counts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Summary:
    """An arm under a load: the mean of every figure over the runs, and its change against the baseline.
    Changes are fractions: -0.5 is half. Without a baseline there are none.
    """

    load: str
    arm: str
    figures: dict[Key, Estimate]
    changes: dict[Key, Estimate]
    baseline: str | None


def figures_of(cell: Cell) -> dict[Key, float]:
    """Return the figures of a cell; times in seconds.

    `sojourn` is from sending to the last byte, `ttft` to the first token, `per token` is sojourn over answer
    length (PARS, section 4.1), `jain` the fairness index of the latter, and `ranking` the share of (short,
    long) pairs that were predicted in the right order.
    """
    figures: dict[Key, float] = {}
    calls = cell.calls
    kinds = [each.value for each in LengthClass if any(call.question.length_class is each for call in calls)]
    for kind in (*kinds, ALL):
        of_kind = [call for call in calls if kind in (call.question.length_class, ALL)]
        figures |= {(kind, name): value for name, value in _of_class(of_kind).items()}
    figures |= {(ALL, name): value for name, value in cell.counts.items()}
    if "cuts" in cell.counts:
        figures[ALL, "cuts a request"] = cell.counts["cuts"] / len(calls)
    figures[ALL, "failed"] = sum(call.error is not None for call in calls)
    accuracy = ranking_accuracy(calls)
    if accuracy is not None:
        figures[ALL, "ranking"] = accuracy
    return figures


def _of_class(calls: Sequence[Call]) -> dict[str, float]:
    figures: dict[str, float] = {}
    done = [(call.sojourn_s, call.tokens) for call in calls if call.sojourn_s is not None]
    sojourns = sorted(sojourn_s for sojourn_s, _ in done)
    firsts = sorted(call.ttft_s for call in calls if call.ttft_s is not None)
    rates = sorted(sojourn_s / tokens for sojourn_s, tokens in done if tokens)
    if sojourns:
        figures |= {"answered": len(sojourns), "sojourn mean": fmean(sojourns)}
    for name, values in (("sojourn", sojourns), ("ttft", firsts)):
        if values:
            figures |= {f"{name} {p}": percentile(values, share) for p, share in PERCENTILES.items()}
    if rates:
        figures["per token mean"] = fmean(rates)
        figures["per token p90"] = percentile(rates, 0.9)
        figures["jain"] = jain(np.array(rates))
        figures["tokens mean"] = fmean(tokens for _, tokens in done)
    return figures


def ranking_accuracy(calls: Iterable[Call]) -> float | None:
    """Return the share of (short, long) pairs in which the long one was predicted longer; ties count half."""
    predicted: dict[LengthClass, list[float]] = {each: [] for each in LengthClass}
    for call in calls:
        if call.predicted_tokens is not None:
            predicted[call.question.length_class].append(call.predicted_tokens)
    return pairs_in_order(predicted[LengthClass.SHORT], predicted[LengthClass.LONG])


def summarise(cells: Iterable[Cell], baseline: str | None) -> list[Summary]:
    """Summarise the cells by load and arm; changes are against the baseline in the same run."""
    table: dict[tuple[str, str], dict[int, dict[Key, float]]] = {}
    for cell in cells:
        table.setdefault((cell.load, cell.arm), {})[cell.run] = figures_of(cell)
    return compare(table, baseline)


def compare(
    table: Mapping[tuple[str, str], Mapping[int, dict[Key, float]]], baseline: str | None
) -> list[Summary]:
    """Summarise figures by load and arm, then run; changes are against the baseline in the same run."""
    summaries = []
    for (load, arm), runs in table.items():
        before = table.get((load, baseline), {}) if baseline else {}
        changes = [
            {key: value / before[run][key] - 1 for key, value in found.items() if before[run].get(key)}
            for run, found in runs.items()
            if run in before
        ]
        means, changed = _means(runs.values()), _means(changes)
        summaries.append(Summary(load, arm, means, changed, baseline if before else None))
    return summaries


def _means(runs: Iterable[dict[Key, float]]) -> dict[Key, Estimate]:
    values: dict[Key, list[float]] = {}
    for figures in runs:
        for key, value in figures.items():
            values.setdefault(key, []).append(value)
    return {key: mean_of(of_key) for key, of_key in values.items()}
