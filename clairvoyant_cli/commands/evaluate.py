"""`clairvoyant evaluate`: how well a predictor orders prompts whose answers are known."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from clairvoyant_cli.commands.number_format import share
from clairvoyant_cli.commands.options import FILE, json_option, predictor_option
from clairvoyant_cli.errors import ClairvoyantError

if TYPE_CHECKING:
    from predictor.research.studies.evaluation import Report


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=FILE)
@predictor_option
@click.option(
    "--delta",
    default=0.2,
    show_default=True,
    type=click.FloatRange(0, 1),
    help="Least relative difference of length of the pairs that count for pair accuracy.",
)
@click.option("--semantic", is_flag=True, help="With the shipped encoder's opinion of each prompt, at once.")
@click.option(
    "--urgency",
    is_flag=True,
    help="Judge levels of urgency, on FILEs (.jsonl, .jsonl.gz, .csv) with `prompt` and `urgency`, 0 to 4, or"
    " `acuity`, 1 to 5.",
)
@json_option("Print one JSON list, an object a file.")
def command(
    files: tuple[Path, ...], directory: str, delta: float, semantic: bool, urgency: bool, as_json: bool
) -> None:
    """Judge a predictor on FILEs (.jsonl or .jsonl.gz) with `prompt` and `output_tokens` on each line."""
    if urgency:
        from clairvoyant_cli.commands.urgency_report import report_urgency

        report_urgency(files, directory, as_json=as_json)
        return
    import predictor
    from predictor.errors import ModelError
    from predictor.research.studies.evaluation import evaluate
    from predictor.research.training.dataset import read_dataset

    try:
        loaded, encoder = predictor.load(directory), predictor.load_encoder() if semantic else None
        reports = [evaluate(loaded, read_dataset(path), path, delta, encoder) for path in files]
    except ModelError as error:
        raise ClairvoyantError(str(error)) from None
    if as_json:
        click.echo(json.dumps([asdict(report) for report in reports], indent=2, allow_nan=False))
    else:
        _print_table(reports)


def _print_table(reports: "list[Report]") -> None:
    heads = ["n", "short", "long", "ranking", "tied", "tau_b", "pairs", "class", "error", "q90"]
    click.echo(f"{'file':40}" + "".join(f"{head:>9}" for head in heads))
    for report in reports:
        name = report.file if len(report.file) < 40 else "..." + report.file[-36:]
        shares = [
            report.ranking_accuracy,
            report.tied_share,
            report.kendall_tau_b,
            report.pair_accuracy,
            report.class_accuracy,
            report.calibration_error,
            report.q90_coverage,
        ]
        cells = [str(report.n), str(report.n_short), str(report.n_long), *map(share, shares)]
        click.echo(f"{name:40}" + "".join(f"{cell:>9}" for cell in cells))
