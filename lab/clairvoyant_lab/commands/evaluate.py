"""`clairvoyant evaluate`: how well a predictor orders prompts whose answers are known."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from clairvoyant_cli.commands.options import FILE, json_option, option_with_default, predictor_option
from clairvoyant_cli.commands.setup import told_plainly
from clairvoyant_lab.commands.study import table_text


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=FILE)
@predictor_option
@option_with_default(
    "--delta",
    click.FloatRange(0, 1),
    0.2,
    "Least relative difference of length of the pairs that count for pair accuracy.",
)
@click.option(
    "--learn/--no-learn",
    help="Learn from each answer before the next line, as `serve` does; also judge the second half of FILE.",
)
@click.option("--semantic", is_flag=True, help="Also read each prompt with the shipped encoder.")
@click.option(
    "--urgency",
    is_flag=True,
    help="Evaluate levels of urgency: FILEs (.jsonl, .jsonl.gz, .csv) have `prompt` and `urgency`, 0 to 4, or"
    " `acuity`, 1 to 5.",
)
@json_option("Print one JSON list, an object a file.")
def command(
    files: tuple[Path, ...],
    directory: str,
    delta: float,
    learn: bool,
    semantic: bool,
    urgency: bool,
    as_json: bool,
) -> None:
    """Evaluate a predictor on FILEs (.jsonl or .jsonl.gz).

    Each line has `output_tokens`, and a request as `body`, `messages` or `prompt`.
    """
    import predictor
    from clairvoyant_lab.commands.request_lines import read_files
    from clairvoyant_lab.studies.evaluation import evaluate, table

    if urgency:
        _judge_urgency(files, directory, as_json=as_json)
        return
    with told_plainly():
        encoder = predictor.load_encoder() if semantic else None
        evaluations = [
            each
            for path, data in zip(files, read_files(files), strict=True)
            for each in evaluate(predictor.load(directory), data, path, delta, encoder, learn=learn)
        ]
    if as_json:
        click.echo(json.dumps([asdict(each) for each in evaluations], indent=2, allow_nan=False))
    else:
        click.echo(table_text(table(evaluations)))


def _judge_urgency(files: tuple[Path, ...], model: str | None, *, as_json: bool) -> None:
    import predictor
    from clairvoyant_lab.studies.urgency import confusion_table, evaluate_urgency, table
    from clairvoyant_lab.training.dataset import read_cases
    from predictor.loading import DEFAULT

    with told_plainly():
        loaded = predictor.load_urgency(None if model in (None, DEFAULT) else model)
        encoder = predictor.load_encoder() if loaded.hears else None
        embed = None if encoder is None else lambda text: encoder.encode(text).embedding
        verdicts = {str(path): evaluate_urgency(loaded, read_cases(path), embed) for path in files}
    if as_json:
        rows = [{"file": path, **asdict(each)} for path, found in verdicts.items() for each in found]
        click.echo(json.dumps(rows, indent=2, allow_nan=False))
        return
    for path, found in verdicts.items():
        click.echo(table_text(table(found, title=path)))
        click.echo(table_text(confusion_table(found[0])))
