"""`history --report`: reports what programs used, and how much less requests waited than in arrival order."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from sqlite3 import Connection

import click

from clairvoyant_cli.commands.console import PlainConsole
from clairvoyant_cli.commands.number_format import span as time_span
from clairvoyant_cli.commands.time_spans import date
from profiles.history import Span, newest
from profiles.records import Finished
from profiles.savings import Group, compared, group

MAX_ROWS = 200_000  # newest requests of a span that are compared, to bound the run time
SHOWN_GROUPS = 20

EXPLAINED = (
    "Each request was compared as it ended with the same requests in order of arrival, each with the slot "
    "time that it really took. Background requests, pauses and outages are left out."
)


@dataclass(frozen=True, slots=True)
class Findings:
    """The comparison for a span of history."""

    since: float
    until: float
    verdict: str
    answers: int
    others: int  # answers that were not compared
    by: dict[str, list[Group]]  # class, client and model
    programs: list["Use"]


@dataclass(slots=True)
class Use:
    """What a program has used: its slot time and waiting in seconds, and tokens of prompts and answers."""

    program: str
    requests: int = 0
    slot_s: float = 0.0
    prompt_tokens: int = 0
    tokens: int = 0
    waited_s: float = 0.0


def used(rows: Iterable[Finished]) -> list[Use]:
    """Return what each program has used, most slot time first."""
    uses: dict[str, Use] = {}
    for row in rows:
        use = uses.setdefault(row.program, Use(row.program or "-"))
        use.requests += 1
        use.slot_s += row.sojourn_s - row.waited_s
        use.prompt_tokens += row.prompt_tokens or 0
        use.tokens += row.tokens or 0
        use.waited_s += row.waited_s
    return sorted(uses.values(), key=lambda use: -use.slot_s)


def show(connection: Connection, span: Span, *, as_json: bool) -> None:
    """Print the comparison, or its figures as JSON."""
    every = newest(connection, span, MAX_ROWS)
    rows = compared(every)
    by = {
        "class": sorted(group(rows, lambda row: row.length_class), key=lambda g: g.name, reverse=True),
        "client": group(rows, lambda row: row.client),
        "model": group(rows, lambda row: row.model or "-"),
    }
    first = min((each.finished_at for each in rows), default=span.since)
    last = max((each.finished_at for each in rows), default=span.since)
    others = sum(bool(each.length_class) for each in every) - len(rows)
    found = Findings(first, last, verdict(rows, by["class"]), len(rows), others, by, used(every))
    if as_json:
        click.echo(json.dumps(asdict(found), indent=2))
        return
    _print(found, PlainConsole())
    if len(every) == MAX_ROWS:
        click.echo(f"Limited to the newest {MAX_ROWS:,} requests; narrow the span with --since.")


def verdict(rows: Sequence[Finished], classes: Sequence[Group]) -> str:
    """Return the result in one or two sentences."""
    if not rows:
        return "No answers to compare in that time; clairvoyant serve records them."
    parts = []
    for each in classes:
        took = f"{time_span(each.mean_s)} instead of {time_span(each.in_order_mean_s)}"
        if abs(each.change) < 0.005:
            parts.append(f"{each.name} answers unchanged ({time_span(each.mean_s)})")
        else:
            word = "lower" if each.change < 0 else "higher"
            parts.append(f"{each.name} answers {abs(each.change):.0%} {word} ({took})")
    saved_s = sum(each.saved_s for each in classes)
    total = "no change in waiting time"
    if abs(saved_s) >= NOTHING_S:
        each_s = f"({len(rows):,} answers, {time_span(abs(saved_s) / len(rows))} each)"
        total = f"{time_span(abs(saved_s))} {'less' if saved_s >= 0 else 'more'} waiting {each_s}"
    tokens = sum(each.spared_tokens for each in classes)
    if abs(tokens) >= 1:
        fewer = "fewer" if tokens > 0 else "more"
        total += f"; by estimate {abs(tokens):,.0f} prompt tokens {fewer} were read"
    return f"Mean sojourn time against order of arrival: {'; '.join(parts)}. In total {total}."


NOTHING_S = 0.05  # less than this is shown as 0.0 s
HEADER = ("requests", "mean", "in order", "P95", "in order", "less waiting")


def _row(each: Group) -> tuple[str, ...]:
    saved = f"{'-' if each.saved_s <= -NOTHING_S else ''}{time_span(abs(each.saved_s))}"
    times = (each.mean_s, each.in_order_mean_s, each.p95_s, each.in_order_p95_s)
    return (each.name, f"{each.requests:,}", *map(time_span, times), saved)


def _shown(groups: Sequence[Group]) -> list[Group]:
    """Return the groups that gained most and those that gained least."""
    half = SHOWN_GROUPS // 2
    return list(groups) if len(groups) <= SHOWN_GROUPS else [*groups[:half], *groups[-half:]]


def _print(found: Findings, console: PlainConsole) -> None:
    console.print(found.verdict, highlight=False)
    if found.programs:
        console.print()
        console.print_table(
            ("program", "requests", "slot time", "prompt tokens", "tokens", "waiting"),
            (
                (
                    use.program,
                    f"{use.requests:,}",
                    time_span(use.slot_s),
                    f"{use.prompt_tokens:,}",
                    f"{use.tokens:,}",
                    time_span(use.waited_s),
                )
                for use in found.programs[:SHOWN_GROUPS]
            ),
            right=True,
        )
    for name, groups in found.by.items():
        if groups:
            console.print()
            console.print_table((name, *HEADER), map(_row, _shown(groups)), right=True)
    if not found.answers + found.others:
        return
    were = "answer was" if found.others == 1 else "answers were"
    others = f" {found.others:,} other {were} not compared." if found.others else ""
    days = f"{date(found.since, '%Y-%m-%d')} to {date(found.until, '%Y-%m-%d')}"
    console.print()
    console.print(f"{found.answers:,} answers, {days}.{others}", highlight=False)
    console.print(EXPLAINED, highlight=False)
