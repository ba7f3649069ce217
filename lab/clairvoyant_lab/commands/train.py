"""`clairvoyant train`: a user's own logs to a model in one command."""

from pathlib import Path

import click

from clairvoyant_cli.commands.options import FILE, db_option, option_with_default
from clairvoyant_cli.commands.setup import told_plainly
from clairvoyant_cli.errors import InputError
from clairvoyant_lab.commands.output import Output
from clairvoyant_lab.commands.study import table_text


@click.command()
@click.argument("files", nargs=-1, metavar="[FILE]...", type=FILE)
@click.option("--from-history", is_flag=True, help="Train on what `serve --record-prompts` recorded, too.")
@db_option
@click.option("--out", required=True, type=Output(folder=True), help="Model directory.")
@click.option(
    "--urgency",
    is_flag=True,
    help="Train on levels of urgency, for `serve --urgency OUT`: FILEs (.jsonl, .jsonl.gz, .csv) with"
    " `prompt` and `urgency`, 0 to 4, or `acuity`, 1 to 5.",
)
@option_with_default("--min-long", click.IntRange(min=1), 200, "Fail with fewer Long answers.")
@option_with_default("--seed", int, 42, "Seed of the split and of the training.")
def command(
    files: tuple[Path, ...],
    from_history: bool,
    db_file: Path | None,
    out: Path,
    urgency: bool,
    min_long: int,
    seed: int,
) -> None:
    """Train a model on FILEs (.jsonl or .jsonl.gz), for `clairvoyant serve --predictor OUT`.

    Each line has `output_tokens`, and a request as `body`, `messages` or `prompt`.
    """
    from clairvoyant_lab.commands.request_lines import read_files, read_recorded
    from clairvoyant_lab.studies.evaluation import table
    from clairvoyant_lab.training.dataset import join

    if not files and not from_history:
        raise InputError("name a FILE to train on, or give --from-history")
    if urgency:
        if from_history:
            raise InputError("the history knows no true levels of urgency; name a FILE")
        _train_urgency(files, out)
        return
    with told_plainly():
        data = join([*read_files(files), *([read_recorded(db_file)] if from_history else [])])
        from clairvoyant_lab.training.own_logs import train_own  # takes seconds

        evaluations = train_own(data, out, min_long, seed, lambda line: click.echo(line, err=True))
    click.echo(table_text(table(evaluations)))
    click.echo(f"model written to {out}", err=True)


def _train_urgency(files: tuple[Path, ...], out: Path) -> None:
    """Train an urgency model on files of cases, and print how it does on cases that it had not seen."""
    from clairvoyant_lab.studies.urgency import table
    from clairvoyant_lab.training.dataset import read_cases

    with told_plainly():
        cases = [case for path in files for case in read_cases(path)]
        from clairvoyant_lab.training.urgency_model import train_urgency  # takes seconds

        name = ", ".join(path.name for path in files)
        licence = "your own data: yours to decide"
        verdicts = train_urgency(cases, out, licence, name, lambda line: click.echo(line, err=True))
    click.echo(table_text(table(verdicts)))
    click.echo(f"model written to {out}", err=True)
