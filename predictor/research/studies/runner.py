"""Runs the studies of the predictor by name: each turns files of prompts and answers into one table."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from predictor.research.studies.study_table import Progress, StudyTable

if TYPE_CHECKING:
    from predictor.research.training.dataset import Dataset

STUDIES = {
    "starvation": "answers of each class in a file (Clairvoyant, Table 2)",
    "classes": "ranking and classification accuracy, in distribution (Table 5)",
    "cross": "the model of each file on each other file (Table 6)",
    "baselines": "chance, prompt length and keywords (Table 7)",
    "ablation": "the paper's features without each group (Table 4)",
    "unseen": "files ranked by models trained without their family, by kind of traffic",
    "pars": "Kendall's tau_b within each file beside the tables of PARS (IV-A to IV-C)",
    "ceiling": "repeated answers of one model ranked by each other",
}


def run_study(name: str, datasets: "list[Dataset]", progress: Progress = lambda line: None) -> StudyTable:
    """Run one of `STUDIES`; ModelError if the files hold too little for it, or the train extra is missing."""
    from predictor.research.studies import paper, pars, unseen

    run: dict[str, Callable[[], StudyTable]] = {
        "starvation": lambda: paper.starvation(datasets),
        "classes": lambda: paper.in_distribution(datasets),
        "cross": lambda: paper.cross_distribution(datasets),
        "baselines": lambda: paper.baselines(datasets),
        "ablation": lambda: paper.ablation(datasets),
        "unseen": lambda: unseen.unseen(unseen.Corpus.of(datasets), progress),
        "pars": lambda: pars.pars(datasets),
        "ceiling": lambda: pars.ceiling(datasets),
    }
    return run[name]()
