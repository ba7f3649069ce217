"""Runs the studies of the predictor by name: each turns files of prompts and answers into one table."""

from typing import TYPE_CHECKING

from predictor.research.studies.study_table import Progress, StudyTable

if TYPE_CHECKING:
    from predictor.research.training.dataset import Dataset

STUDIES = {
    "unseen": "files ranked by models trained without their family, by kind of traffic",
    "ceiling": "repeated answers of one model ranked by each other",
}


def run_study(name: str, datasets: "list[Dataset]", progress: Progress = lambda line: None) -> StudyTable:
    """Run one of `STUDIES`; ModelError if the files hold too little for it, or the train extra is missing."""
    from predictor.research.studies import unseen

    if name == "ceiling":
        return unseen.ceiling(datasets)
    return unseen.unseen(unseen.Corpus.of(datasets), progress)
