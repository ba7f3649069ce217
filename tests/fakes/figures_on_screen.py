"""Reads the figures off a drawn screen, and compares each with the state that it was drawn from."""

import re
from collections.abc import Iterator

from clairvoyant_cli.state.snapshot import QueuedRequest, RunningRequest, Snapshot
from tui.formatting import brief, change, count, duration, duration_range, share

FIGURE = re.compile(r"(?<![\w.])[~−+]?\d[\d,.]*(?:[a-zA-Z%]+\d*)?(?:[–/]\d[\d,.]*[a-zA-Z%]*)?(?!\w)")
"""A number as it is written on screen, with its unit, or a range or a fraction of two."""


def wrong_figures(text: str, state: Snapshot) -> Iterator[str]:
    """Yield what stands on a screen and not in the state. The screen's clock stands."""
    lines = text.split("\n")
    head, body = lines[:3], lines[3:]
    if state.verdict.text not in head[0]:
        yield f"{state.verdict.text!r} is not in {head[0]!r}"
    yield from _labelled("\n".join(head), _of_header(state))
    yield from _labelled("\n".join(body), _of_panels(state))
    rows: dict[str, QueuedRequest | RunningRequest] = {row.id: row for row in state.queue}
    rows |= {row.id: row for row in state.running}
    left = next((line.find("─  ─") + 1 for line in body if "─  ─" in line), None)  # the column of requests
    for line in (each[:left] for each in body):
        row = next((row for ident, row in rows.items() if re.search(rf" {re.escape(ident)} ", line)), None)
        if row is not None:
            yield from _row(line, row, state)


def _labelled(text: str, known: dict[str, tuple[str, ...]]) -> Iterator[str]:
    """Look each pattern up; if it is there, its groups must be the known texts."""
    for pattern, wanted in known.items():
        for found in re.finditer(pattern, text):
            if found.groups() != wanted:
                yield f"{found[0]!r} should say {wanted}"


def _of_header(state: Snapshot) -> dict[str, tuple[str, ...]]:
    tau, gain = state.tau, state.gain
    busy, slots = state.slots
    known: dict[str, tuple[str, ...]] = {
        r"order (?!of )(\S+)": (state.policy,),
        r"τ (\S+)": (duration(tau.tau_s) if tau.tau_s and tau.guards else "off",),
        r" fired (\S+)": (count(tau.firings_total),),
        r"slots \S* ?(\d+)/(\d+)": (str(busy), str(slots)),
        r"waiting (\d\S*)  ": (count(state.waits),),
        r"load \d+ \w+ (\S+)": (share(state.utilisation),),
    }
    if gain.answers_today:
        saved_s, answers = abs(gain.saved_today_s), gain.answers_today
        word = "less" if gain.saved_today_s >= 0 else "more"
        each = duration(saved_s / answers)
        known[r"(\S+) (less|more) waiting today \((\S+) answers?, (\S+) each"] = (
            duration(saved_s),
            word,
            count(answers),
            each,
        )
    for ours, other in zip(state.stats_paired, state.stats_fcfs, strict=True):
        letter, number = ours.length_class[0].upper(), ours.wait.n
        for shown, ours_s, other_s in (
            (letter, ours.wait.p50, other.wait.p50),
            (f"{letter} p95", ours.wait.p95, other.wait.p95),
        ):
            if ours_s is not None and other_s is not None:
                known[rf"{shown} (\d\S*?)(?: this hour)?, by arrival (\S+)((?: [^( ]\S*)?) \((\S+)\)"] = (
                    duration(ours_s),
                    duration(other_s),
                    f" {change(ours_s, other_s, number)}".rstrip(),
                    count(number),
                )
    return known


def _of_panels(state: Snapshot) -> dict[str, tuple[str, ...]]:
    counters = state.counters
    known: dict[str, tuple[str, ...]] = {
        r"ended (\S+) done": (count(counters.completed),),
        r"by real length, (\S+) done": (count(counters.completed),),
    }
    compared = any(each.wait.n for each in state.stats_paired)
    for stats, paired in zip(state.stats, state.stats_paired, strict=True):
        wait, letter = (paired if compared else stats).wait, stats.length_class[0].upper()
        quantiles = "".join(rf"\s+{re.escape(duration(each))}" for each in (wait.p50, wait.p95, wait.p99))
        whole = (stats.sojourn.p50, stats.sojourn.p95, stats.sojourn.p99)
        sojourns = "".join(rf"\s+{re.escape(duration(each))}" for each in whole)
        rows = rf"(?:\s+{count(wait.n)}{quantiles}|\s+{count(stats.sojourn.n)}{sojourns})"
        known[rf"(?m)(?<=  {letter} )(?=\s+\d+\s+[–\d]\S*\s+[–\d]\S*\s+[–\d])(?!{rows})"] = ("never",)
    return known


def _row(line: str, row: QueuedRequest | RunningRequest, state: Snapshot) -> Iterator[str]:
    """Compare the figures of a request's line with those of the request."""
    after = line.split(f" {row.id} ", 1)
    names = (row.model, row.client, row.endpoint, *(each.name for each in state.backends))
    text = f"{after[0]} {after[1]}".split("─")[0]
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, " ")
    known = {duration(each) for each in _times(row)} | {f"~{duration(row.eta_s)}"}
    if row.eta_low_s is not None and row.eta_high_s is not None:
        known.add(duration_range(row.eta_low_s, row.eta_high_s))
    if isinstance(row, QueuedRequest):
        expected = row.predicted.expected_tokens
        known |= {str(row.rank), f"~{count(expected)}", brief(expected), brief(row.tokens)}
        known |= {f"{row.predicted.p_long:.2f}", count(row.predicted.q90_tokens), f"{row.priority:+d}"}
    else:
        so_far = f"{count(row.tokens)}/{brief(row.predicted.expected_tokens)}"
        rate = row.tokens_per_s or 0.0
        known |= {
            str(row.slot),
            so_far,
            f"~{brief(row.tokens)}/{brief(row.predicted.expected_tokens)}",
            f"{rate:.1f}",
            count(rate),
        }
    for figure in FIGURE.findall(text):
        if figure not in known:
            yield f"{figure} of {row.id} is none of {sorted(known)}: {line.strip()!r}"


def _times(row: QueuedRequest | RunningRequest) -> Iterator[float]:
    own: tuple[float | None, ...]
    if isinstance(row, QueuedRequest):
        own = row.refused_in_s, row.age_s
    else:
        own = row.elapsed_s, row.ttft_s, row.waited_s
    yield from (each for each in (row.eta_s, *own) if each is not None)
