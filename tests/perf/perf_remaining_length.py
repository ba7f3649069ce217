"""Does the text of a running answer tell how much of it is left?

Usage: `python -m tests.perf.perf_remaining_length DIR [--model MODEL] [--on choose|judge]`.

DIR holds the folders train, choose and judge of `*.jsonl.gz`: `{"model", "prompt", "answer"}`, one a line.
An answer is looked at each 32 tokens, of four characters each. Today's estimate is the mean residual life of
what the predictor says, which learns from the answers that ended before. The candidates are fitted to the
answers in `train`; prompts that are judged train nothing.
"""

import argparse
import gzip
import json
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from math import log
from pathlib import Path

import numpy as np
import numpy.typing as npt
import scipy.sparse as sparse
import xgboost
from scipy.stats import kendalltau
from sklearn.linear_model import Ridge

from clairvoyant_cli.scheduler.job import Z90, mean_residual, residual_quantile
from predictor.loading import load_model
from predictor.lognormal import SHIFT_TOKENS
from predictor.record import Prediction, PromptView
from tests.perf.remaining_cues import (
    AGE_ONLY,
    BUCKETS,
    LOOK_TOKENS,
    WORD_VALUE,
    AnswerSoFar,
    bent,
)

CHARACTERS_A_TOKEN = 4
FOREIGN_CHARACTERS_A_TOKEN = 1.5  # Japanese
LOOKS_PER_ANSWER = 8
SPREADS = 5  # intervals are learned apart for as many classes of spread
ANSWERS_PER_STREAM = 250
PER_STREAM = 1500  # looks that are compared in pairs
PENALTY = 30.0
MEAN_DEVIATION = 1.2533  # standard deviation of a normal distribution over its mean absolute deviation
SEED = 50

Numbers = npt.NDArray[np.floating]
Look = tuple[list[float], list[int], tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Looks:
    """Looks at running answers: one row each."""

    cues: Numbers
    words: sparse.csr_matrix
    left: Numbers  # tokens still to come
    mean: Numbers  # today's estimate
    middle: Numbers  # today's median
    spread: Numbers  # today's
    streams: npt.NDArray[np.int64]
    answers: npt.NDArray[np.int64]


def read(directory: Path) -> dict[str, list[dict[str, str]]]:
    """Return the answers of each file."""
    files = {}
    for path in sorted(directory.glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            files[path.name.removesuffix(".jsonl.gz")] = [json.loads(line) for line in lines]
    return files


def looks(files: dict[str, list[dict[str, str]]], model: Path | None, without: set[str]) -> dict[str, Looks]:
    """Look at all answers; each stream, of one model and file, has a predictor of its own that learns."""
    draw, found = np.random.default_rng(SEED), {}
    for name, lines in files.items():
        streams = defaultdict(list)
        for line in lines:
            if line["prompt"] not in without:
                streams[line["model"]].append(line)
        rows = list[Look]()
        for number, (server, stream) in enumerate(sorted(streams.items())):
            predictor = load_model(model)
            for answer in map(int, draw.permutation(len(stream))[:ANSWERS_PER_STREAM]):
                prompt, text = stream[answer]["prompt"], stream[answer]["answer"].strip()
                said = predictor.predict(PromptView(prompt, model=server))
                whose = number, answer
                rows += looks_at(text, AnswerSoFar(prompt), said, whose, draw)
                predictor.learn(said, int(len(text) / characters_a_token(text)))
        found[name] = looks_of(rows)
    return found


def characters_a_token(text: str) -> float:
    foreign = sum(ord(each) > 0x2E80 for each in text)
    return FOREIGN_CHARACTERS_A_TOKEN if foreign > 0.3 * len(text) else CHARACTERS_A_TOKEN


def looks_at(
    text: str, so_far: AnswerSoFar, said: Prediction, whose: tuple[int, int], draw: np.random.Generator
) -> Iterator[Look]:
    """Yield some looks at an answer: cues, words, and what there is to compare."""
    per_token, mean, q90 = characters_a_token(text), said.expected_tokens, said.q90_tokens
    ages = np.arange(LOOK_TOKENS, len(text) / per_token, LOOK_TOKENS, dtype=int)
    drawn = (
        set(draw.choice(ages, min(len(ages), LOOKS_PER_ANSWER), replace=False).tolist()) if len(ages) else ()
    )
    for age in map(int, ages):
        so_far.add(text[int((age - LOOK_TOKENS) * per_token) : int(age * per_token)])
        if age in drawn:
            low, middle, high = (residual_quantile(age, mean, q90, share) for share in (0.1, 0.5, 0.9))
            spread = log((high + 1e-3) / (low + 1e-3)) / (2.0 * Z90)
            left = len(text) / per_token - age
            facts = left, mean_residual(age, mean, q90), middle, spread, *whose
            yield so_far.cues(age, mean, q90), so_far.words(), facts


def looks_of(rows: list[Look]) -> Looks:
    """Return rows as matrices."""
    ends = np.cumsum([0, *(len(words) for _, words, _ in rows)])
    columns = np.fromiter((bucket for _, words, _ in rows for bucket in words), np.int32, int(ends[-1]))
    words = sparse.csr_matrix(
        (np.full(len(columns), WORD_VALUE, np.float32), columns, ends), (len(rows), BUCKETS)
    )
    facts = np.array([facts for _, _, facts in rows])
    left, mean, middle, spread = facts[:, :4].T
    streams, answers = facts[:, 4:].T.astype(np.int64)
    return Looks(
        np.array([each for each, _, _ in rows], np.float32),
        words,
        left,
        mean,
        middle,
        spread,
        streams,
        answers,
    )


def together(files: dict[str, Looks]) -> Looks:
    """Return the looks at several files as one."""
    parts = list(files.values())
    stacked = [
        np.concatenate([getattr(part, name) for part in parts]) for name in Looks.__slots__ if name != "words"
    ]
    return Looks(stacked[0], sparse.csr_matrix(sparse.vstack([part.words for part in parts])), *stacked[1:])


def place(tokens: Numbers) -> Numbers:
    """Return tokens on the predictor's scale."""
    placed: Numbers = np.log(tokens + SHIFT_TOKENS)
    return placed


class Fitted:
    """A model of the log tokens left, and of how far it is off: by age or by all cues, of trees or linear."""

    def __init__(self, kind: str, train: Looks) -> None:
        self._kind = kind
        self.centre, self.scale = train.cues.mean(axis=0), np.maximum(train.cues.std(axis=0), 0.05)
        inputs, targets, off = self._inputs(train), place(train.left), np.empty(len(train.left))
        for half in (0, 1):
            known = train.answers % 2 == half
            off[~known] = np.abs(
                targets[~known] - self._fit(inputs[known], targets[known]).predict(inputs[~known])
            )
        self.at, self.off = self._fit(inputs, targets), self._fit(inputs, np.log(off + 0.05))

    def left(self, looks: Looks) -> tuple[Numbers, Numbers]:
        """Return the log tokens left, and the log of how far that is off."""
        inputs = self._inputs(looks)
        return self.at.predict(inputs), self.off.predict(inputs)

    def _inputs(self, looks: Looks) -> sparse.csr_matrix | Numbers:
        cues = (looks.cues - self.centre) / self.scale
        if "age" in self._kind:
            cues = cues[:, :AGE_ONLY]
        if "trees" in self._kind:
            return cues
        dense = bent(cues)
        return sparse.csr_matrix(sparse.hstack([dense, looks.words])) if "words" in self._kind else dense

    def _fit(self, inputs: sparse.csr_matrix | Numbers, targets: Numbers) -> xgboost.XGBRegressor | Ridge:
        if "trees" in self._kind:
            model = xgboost.XGBRegressor(
                n_estimators=100, max_depth=5, learning_rate=0.1, subsample=0.6, colsample_bytree=0.5,
                min_child_weight=40, tree_method="hist", n_jobs=2, random_state=SEED,
            )  # fmt: skip
        else:
            model = Ridge(alpha=PENALTY, solver="lsqr" if sparse.issparse(inputs) else "auto", max_iter=60)
        return model.fit(inputs, targets)


def judged(looks: Looks, rank_by: Numbers, at: Numbers, spread: Numbers) -> dict[str, float]:
    """Return how well estimates do: pairs within a stream, intervals of 80 % in each class of spread."""
    draw, right, taus = np.random.default_rng(SEED), [], []
    for stream in np.unique(looks.streams):
        rows = np.flatnonzero(looks.streams == stream)
        rows = draw.choice(rows, min(len(rows), PER_STREAM), replace=False)
        left, by, whose = looks.left[rows], rank_by[rows], looks.answers[rows]
        apart = np.sign(left[:, None] - left[None]) * (whose[:, None] != whose[None])
        agree = apart * np.sign(by[:, None] - by[None])
        right.append(0.5 + 0.5 * agree.sum() / np.abs(apart).sum())
        taus.append(kendalltau(left, by).statistic)
    off = place(looks.left) - at
    classes = np.searchsorted(np.quantile(spread, np.arange(1, SPREADS) / SPREADS), spread)
    low, high = np.empty(len(off)), np.empty(len(off))
    for each in range(SPREADS):
        low[classes == each], high[classes == each] = np.quantile(off[classes == each], (0.1, 0.9))
    least, most = (np.maximum(np.exp(at + edge) - SHIFT_TOKENS, 1.0) for edge in (low, high))
    return {
        "pairs": float(np.mean(right)),
        "tau_b": float(np.mean(taus)),
        "error": float(np.abs(off).mean()),
        "width": float(np.median(most - least)),
        "high/low": float(np.median(most / least)),
        "covered": float(((looks.left >= least) & (looks.left <= most)).mean()),
    }


def compare(train: Looks, files: dict[str, Looks]) -> Iterator[tuple[str, str, dict[str, float]]]:
    """Yield file, model and figures."""
    for name, looks in files.items():
        yield name, "today", judged(looks, looks.mean, place(looks.middle), looks.spread)
    for kind in ("age linear", "cues linear", "cues and words linear", "age trees", "cues trees"):
        fitted = Fitted(kind, train)
        for name, looks in files.items():
            at, off = fitted.left(looks)
            spread = np.minimum(MEAN_DEVIATION * np.exp(off), 2.0)
            yield name, kind, judged(looks, at + spread**2 / 2.0, at, off)


def cost_us() -> float:
    """Return the microseconds that a look at 32 more tokens takes, without the sums."""
    so_far, text = (
        AnswerSoFar("List ten rivers."),
        "The river flows through *three* countries, it says.\n" * 3,
    )
    begun = time.perf_counter()
    for _ in range(1000):
        so_far.add(text[: LOOK_TOKENS * CHARACTERS_A_TOKEN])
        so_far.cues(500.0, 400.0, 800.0)
        so_far.words()
    return (time.perf_counter() - begun) * 1e3


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", type=Path, help="a model directory: one not trained on these prompts")
    parser.add_argument("--on", choices=("choose", "judge"), default="choose")
    options = parser.parse_args()
    judge = read(options.data / "judge")
    known = {line["prompt"] for lines in judge.values() for line in lines}
    train = looks(read(options.data / "train"), options.model, known)
    is_judged = options.on == "judge"
    files = looks(
        judge if is_judged else read(options.data / "choose"), options.model, set() if is_judged else known
    )
    sums = defaultdict(list)
    print(f"a look: {cost_us():.0f} us")
    for name, kind, row in compare(together(train), files):
        sums[kind].append(row)
        print(
            f"| {name} | {kind} | " + " | ".join(f"{value:.3f}" for value in row.values()) + " |", flush=True
        )
    for kind, rows in sums.items():
        means = [np.mean([row[key] for row in rows]) for key in rows[0]]
        print(f"| mean | {kind} | " + " | ".join(f"{value:.3f}" for value in means) + " |")


if __name__ == "__main__":
    main()
