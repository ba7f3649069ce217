"""`clairvoyant study`: the tables behind the predictor's figures, on data of one's own."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from clairvoyant_cli.commands.options import FILE, json_option
from clairvoyant_cli.errors import ClairvoyantError

if TYPE_CHECKING:
    from predictor.research.studies.paper import Table
    from predictor.research.training.dataset import Dataset

STUDIES = {
    "starvation": "how many answers of each class a file holds (Table 2)",
    "classes": "ranking against classification accuracy, in distribution (Table 5)",
    "cross": "each file's model on each other file (Table 6)",
    "baselines": "chance, prompt length, keywords (Table 7)",
    "ablation": "without each feature group (Table 4)",
    "unseen": "ours, the paper's features and prompt length on files held out of training",
    "nested": "the same by kind of traffic, with the recipe chosen on other files than it is judged on",
    "online": "streams of one held-out file and one model, learnt while served",
    "shipped": "the shipped models on FILEs that trained neither, learning, without the encoder and with it",
    "pars": "Kendall's tau_b within each file, trained on its model's answers or another's; PARS's beside",
    "ceiling": "one model's repeated answers against each other",
    "answers": "a server's own answers to the files' prompts, of which only lengths were kept (--lengths)",
}


@click.command(epilog="Studies: " + "; ".join(f"{name}: {what}" for name, what in STUDIES.items()) + ".")
@click.argument("study", type=click.Choice(list(STUDIES)))
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=FILE)
@click.option("--never-train", multiple=True, metavar="NAME", help="A FILE that is only ever tested on.")
@click.option(
    "--judge",
    multiple=True,
    metavar="NAME",
    help="A FILE to judge, for `unseen` and `online`; the others then only train.",
)
@click.option("--streams", default=2, show_default=True, help="Streams a file, for `online` and `shipped`.")
@click.option("--lengths", type=FILE, help="Answer lengths (predictor.research.training.answer_lengths).")
@json_option("Print one JSON object.")
def command(
    study: str,
    files: tuple[Path, ...],
    never_train: tuple[str, ...],
    judge: tuple[str, ...],
    streams: int,
    lengths: Path | None,
    as_json: bool,
) -> None:
    """Print the table of a STUDY over FILEs (.jsonl or .jsonl.gz). Needs the train extra."""
    from predictor.errors import ModelError
    from predictor.research.training.dataset import read_dataset

    if (study == "answers") is (lengths is None):
        raise ClairvoyantError("--lengths FILE and the study `answers` go together")
    try:
        datasets = [read_dataset(path) for path in files]
        if lengths is not None:
            from predictor.research.studies.answers import answers, read_lengths

            table = answers(datasets, read_lengths(lengths))
        else:
            _check_names({*never_train, *judge}, datasets)
            table = _study(study, datasets, set(never_train), judge, streams)
    except ModelError as error:
        raise ClairvoyantError(str(error)) from None
    click.echo(_json(table) if as_json else _text(table))


def _check_names(names: set[str], datasets: "list[Dataset]") -> None:
    for name in sorted(names - {data.name for data in datasets}):
        raise ClairvoyantError(f"no FILE is called {name}: it is named by what stands before its first dot")


def _study(
    study: str,
    datasets: "list[Dataset]",
    never_train: set[str],
    judge: tuple[str, ...],
    streams: int,
) -> "Table":
    from predictor.research.studies import paper

    simple: dict[str, Callable[[], Table]] = {
        "starvation": lambda: paper.starvation(datasets),
        "classes": lambda: paper.in_distribution(paper.train_each(datasets)),
        "cross": lambda: paper.cross_distribution(paper.train_each(datasets)),
        "baselines": lambda: paper.baselines(paper.train_each(datasets)),
        "ablation": lambda: paper.ablation(paper.train_each(datasets)),
    }
    if study in simple:
        return simple[study]()
    from predictor.research.studies import traffic as studies

    if study == "ceiling":
        return studies.ceiling(datasets)
    if study == "pars":
        from predictor.research.studies.pars import pars

        return pars(datasets)
    if study == "shipped":
        from predictor.research.studies.shipped_models import shipped

        return shipped(datasets, streams, _narrate)
    corpus = studies.Corpus.of(datasets, {data.name for data in datasets} - never_train)
    if study == "unseen":
        return studies.unseen(corpus, _narrate, judge)
    if study == "nested":
        from predictor.research.studies.nested import nested

        return nested(corpus, _narrate).table
    return studies.online(corpus, streams, _narrate, judge)


def _narrate(line: str) -> None:
    click.echo(line, err=True)


def _json(table: "Table") -> str:
    rows = [[None if value != value else value for value in row] for row in table.rows]  # NaN is no JSON
    return json.dumps({**asdict(table), "rows": rows}, indent=2, allow_nan=False)


def _text(table: "Table") -> str:
    cells = [table.columns, *([_cell(value) for value in row] for row in table.rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(table.columns))]
    lines = [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    ]
    return "\n".join([table.title, *lines])


def _cell(value: str | int | float | None) -> str:
    if value is None or value != value:  # NaN differs from itself
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
