"""A server's own answers, known by the digests of their prompts: ranked before and while they are learnt.

What a file of prompts says of other models' answers to the same prompts stands beside it, as a ceiling.
"""

import json
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np

from predictor.errors import ModelError
from predictor.loading import load_model
from predictor.ranking import pair_ranking
from predictor.research.studies.paper import Cell, Table
from predictor.research.studies.traffic import serve
from predictor.research.training.dataset import Dataset, numbered_lines
from predictor.research.training.fitting import Numbers
from predictor.research.training.labels import label

SEED = 42
MIN_ANSWERS = 20


class Answer(NamedTuple):
    """How long an answer was, and whether the model ended it; if not, a cap on its tokens did."""

    tokens: float
    ended: bool


def digest(prompt: str) -> str:
    """Return what a prompt is known by where it may not be kept."""
    return sha256(prompt.encode("utf-8", "replace")).hexdigest()[:16]


def read_lengths(path: Path) -> dict[str, Answer]:
    """Return answers by the digests of their prompts; ModelError where a line holds none."""
    lengths: dict[str, Answer] = {}
    for number, line in numbered_lines(path):
        try:
            row = json.loads(line)
            lengths[str(row["digest"])] = Answer(float(row["output_tokens"]), bool(row.get("ended", True)))
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ModelError(
                f"{path}, line {number}: expected an object with `digest` and `output_tokens`"
            ) from None
    return lengths


def answers(datasets: list[Dataset], lengths: dict[str, Answer]) -> Table:
    """Rank a server's answers by the default predictor, the prompt's length and other models' answers.

    The figures are shares of the pairs that PARS's filter keeps: a cap on tokens leaves few Long answers or
    none. The second column is of the second half of a stream in random order, learnt as it was served. The
    predictor knows the cap, as a proxy does.
    """
    others = label(datasets).levels
    prompts = [prompt for data in datasets for prompt in data.prompts]
    known = {digest(prompt): row for row, prompt in enumerate(prompts)}
    rows = np.array([known[each] for each in lengths if each in known], np.intp)
    if len(rows) < MIN_ANSWERS:
        raise ModelError(f"{len(rows)} of the answers are to prompts of these files, not {MIN_ANSWERS}")
    rows = np.random.default_rng(SEED).permutation(rows)
    known_answers = [lengths[digest(prompts[row])] for row in rows]
    tokens = np.array([answer.tokens for answer in known_answers])
    cap = max((int(answer.tokens) for answer in known_answers if not answer.ended), default=None)
    asked = [prompts[row] for row in rows]
    stream = serve(load_model(), asked, tokens, cap=cap)
    ranked = {
        "static": stream.static,
        "learning": stream.learnt,
        "prompt length": np.array([float(len(prompt)) for prompt in asked]),
        "other models": others[rows],
    }
    cut = np.mean([not answer.ended for answer in known_answers])
    return Table(
        f"A server's {len(rows)} answers, {cut:.0%} of them cut off at a cap",
        ["ranked by", "pairs", "pairs, second half", "tau_b"],
        [[name, *_figures(scores, tokens)] for name, scores in ranked.items()],
    )


def _figures(scores: Numbers, tokens: Numbers) -> list[Cell]:
    half = len(tokens) // 2
    whole = pair_ranking(scores, tokens)
    return [whole.accuracy, pair_ranking(scores[half:], tokens[half:]).accuracy, whole.tau_b]
