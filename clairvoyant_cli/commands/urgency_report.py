"""`train --urgency` and `evaluate --urgency`: levels of urgency, learned and judged."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from clairvoyant_cli.commands.number_format import share
from clairvoyant_cli.errors import ClairvoyantError

if TYPE_CHECKING:
    from predictor.research.studies.urgency import Verdict

HEADS = ("n", "exact", "within 1", "kappa", "under 0,1", "missed", "over")


def train_on(files: tuple[Path, ...], out: Path) -> None:
    """Train an urgency model on files of cases, and say how it does on what it had not seen."""
    from predictor.errors import ModelError
    from predictor.research.training.urgency_data import read_cases

    try:
        cases = [case for path in files for case in read_cases(path)]
        from predictor.research.training.urgency_model import train_urgency  # takes seconds

        name = ", ".join(path.name for path in files)
        licence = "your own data: yours to decide"
        verdicts = train_urgency(cases, out, licence, name, lambda line: click.echo(line, err=True))
    except ModelError as error:
        raise ClairvoyantError(str(error)) from None
    print_table(verdicts)
    click.echo(f"model written to {out}", err=True)


def report_urgency(files: tuple[Path, ...], model: str | None, *, as_json: bool) -> None:
    """Judge an urgency model on files of cases."""
    import predictor
    from predictor.errors import ModelError
    from predictor.loading import DEFAULT
    from predictor.research.studies.urgency import evaluate_urgency
    from predictor.research.training.urgency_data import read_cases

    try:
        loaded = predictor.load_urgency(None if model in (None, DEFAULT) else model)
        encoder = predictor.load_encoder() if loaded.hears else None
        embed = None if encoder is None else lambda text: encoder.encode(text).embedding
        verdicts = {str(path): evaluate_urgency(loaded, read_cases(path), embed) for path in files}
    except ModelError as error:
        raise ClairvoyantError(str(error)) from None
    if as_json:
        rows = [{"file": path, **asdict(each)} for path, found in verdicts.items() for each in found]
        click.echo(json.dumps(rows, indent=2, allow_nan=False))
        return
    for path, found in verdicts.items():
        click.echo(path)
        print_table(found)
        print_confusion(found[0])


def print_table(verdicts: "tuple[Verdict, ...] | list[Verdict]") -> None:
    """Print how each did. Under-triage is of levels 0 and 1; missed are those called 2 or more."""
    click.echo(f"{'':30}" + "".join(f"{head:>11}" for head in HEADS))
    for each in verdicts:
        shares = (each.exact, each.within_one, each.kappa, each.under, each.missed, each.over)
        click.echo(f"{each.name:30}{each.n:>11}" + "".join(f"{share(value):>11}" for value in shares))


def print_confusion(verdict: "Verdict") -> None:
    """Print what level was said of cases of each level."""
    click.echo(f"\n{verdict.name}: real level, and what was said")
    click.echo(" " * 6 + "".join(f"{level:>6}" for level in range(len(verdict.confusion))))
    for level, row in enumerate(verdict.confusion):
        click.echo(f"{level:>6}" + "".join(f"{count:>6}" for count in row))
    click.echo()
