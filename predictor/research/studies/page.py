"""What is known of the predictor on traffic never seen, as a page: each file, its kind, and its ceiling."""

from predictor.errors import ModelError
from predictor.research.studies.families import family, kinds
from predictor.research.studies.nested import Nested
from predictor.research.studies.paper import Cell
from predictor.research.studies.traffic import ceiling
from predictor.research.training.dataset import Dataset

HEAD = """# The predictor on traffic it never saw

The share of (Short, Long) pairs ranked rightly, below 200 tokens and from 800 on; 0.5 is chance. Who ranks a
file was trained without its family, and by a recipe that was chosen on other families (a nested study); only
how much the net counts beside the trees was decided with all of them in view, which flatters it by tenths
of a point. The ceiling is what other answers to the same prompts tell of one model's, by their mean: of other
models, or of the same model where a file holds several.

    {command}
"""

COMMAND = "python -m predictor.research.training.shipped_models --data DIR --page docs/bench/predictor.md"
COLUMNS = ("", "prompts", "lexical", "paper's features", "prompt length", "ceiling")


def page(judged: Nested, datasets: list[Dataset]) -> str:
    """Return the page in Markdown: the means, then each kind, then each file by its family."""
    by_name = {data.name: data for data in datasets}
    figures = {str(row[0]): row[2:] for row in judged.table.rows}
    means = [
        _line(name, None, row, None) for name, row in figures.items() if name.startswith(("mean", "least"))
    ]
    of_kinds = [
        _line(name.removeprefix("kind: "), None, row, None)
        for name, row in figures.items()
        if name.startswith("kind: ")
    ]
    files = [
        _line(
            f"{name} ({', '.join(kinds(name)) or 'other'})", len(data.prompts), figures[name], _ceiling(data)
        )
        for name, data in sorted(by_name.items(), key=lambda item: (family(item[0]), item[0]))
        if name in figures
    ]
    parts = [HEAD.format(command=COMMAND)]
    for title, lines in {"On average": means, "By kind": of_kinds, "By file": files}.items():
        parts += [f"## {title}\n", _row(COLUMNS), _row(("---", *["---:"] * 5)), *lines, ""]
    return "\n".join(parts)


def _ceiling(data: Dataset) -> float | None:
    try:
        _, _, _, by_others, _, _ = ceiling([data]).rows[0]
    except ModelError:  # one answer a prompt
        return None
    return float(by_others or 0)


def _line(name: str, prompts: int | None, figures: list[Cell], best: float | None) -> str:
    return _row((name, _cell(prompts), *map(_cell, figures), _cell(best)))


def _cell(value: Cell) -> str:
    if value is None or value != value:  # NaN differs from itself
        return ""
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"
