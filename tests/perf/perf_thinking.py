"""Serves the steps of recorded agents that think: what the effort asked for and the phase of the stream tell.

python -m tests.perf.perf_thinking FILE...

A line of a FILE is a step as `perf_agent_steps` reads it, with `answer_tokens` and `reasoning_tokens` among
them, or `reasoning_chars` and `answer_chars`. A model's name may end in an effort: `gpt-5-mini:low`.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from clairvoyant_cli.scheduler.residual_life import mean_residual
from predictor.loading import load_model
from predictor.ranking import pair_ranking
from predictor.record import Prediction, Predictor, PromptView
from tests.perf.perf_agent_steps import FIRST, steps, view_of
from tests.perf.perf_online_learning import SOON

DRAWN = 3  # moments of each answer
CHARACTERS_A_TOKEN = 4
MAX_PAIRED = 3000


def lengths(row: dict[str, Any]) -> tuple[int, int] | None:
    """Return the tokens of a step's thinking and of the rest of its answer; None if they are not known."""
    whole, thought, chars = (
        row.get(name) for name in ("answer_tokens", "reasoning_tokens", "reasoning_chars")
    )
    if chars and not thought:
        thought = chars / CHARACTERS_A_TOKEN
        whole = thought + row["answer_chars"] / CHARACTERS_A_TOKEN
    if whole is None or thought is None or whole - thought < 1:
        return None
    return int(thought), int(whole - thought)


def view_with_effort(row: dict[str, Any], *, tells: bool) -> PromptView:
    """Return what a proxy sees of a step, the effort as one of its options."""
    view = view_of(row)
    model, _, effort = view.model.partition(":")
    thinking = {"": None, "minimal": "off"}.get(effort, effort)
    return replace(view, model=model, thinking=thinking if tells else None)


def ranking(path: Path, *, tells: bool) -> list[float]:
    """Return the pairs ranked rightly that differ by a fifth: of the first 100 requests, of 100 to 200, and
    of the second half.
    """
    loaded, rows = load_model(), []
    for row in steps(path):
        if (known := lengths(row)) is not None:
            told = loaded.predict(view_with_effort(row, tells=tells))
            rows.append((sum(known), told.score))
            loaded.learn(told, sum(known))
    tokens, scores = np.array(rows).T
    parts = FIRST, SOON, slice(len(tokens) // 2, None)
    return [pair_ranking(scores[part], tokens[part]).accuracy for part in parts]


def moments(path: Path) -> Iterator[tuple[bool, float, float, float]]:
    """Yield of moments of running answers whether they think no more, the tokens left, and those expected to
    be left: by the prediction of the whole, and by the phase.
    """
    loaded, drawn = load_model(), np.random.default_rng(0)
    for row in steps(path):
        known, view = lengths(row), view_with_effort(row, tells=True)
        if known is None:
            continue
        (thought, answer), told = known, loaded.predict(view)
        if thought:
            after = _after_thinking(loaded, view, thought)
            for done in drawn.uniform(0, thought + answer, DRAWN):
                whole = mean_residual(done, told.expected_tokens, told.q90_tokens)
                by_phase = whole
                if done > thought:
                    by_phase = mean_residual(done - thought, after.expected_tokens, after.q90_tokens)
                yield done > thought, thought + answer - done, whole, by_phase
            loaded.learn(after, answer)
        loaded.learn(told, thought + answer)


def _after_thinking(loaded: Predictor, view: PromptView, thought: int) -> Prediction:
    after = loaded.after_thinking(view, thought)
    assert after is not None
    return after


def remaining(path: Path) -> None:
    """Print the median factor by which the expected tokens left are off, and the share of pairs of answers in
    the right order by what is left: by the prediction of the whole, and by the phase.
    """
    rows = np.array(list(moments(path)))
    answers = rows[:, 0] == 1
    for name, some in (("all", rows), ("thinking", rows[~answers]), ("answering", rows[answers])):
        real, *expected = some.T[1:]
        off = [np.exp(np.median(np.abs(np.log((each + 1) / (real + 1))))) for each in expected]
        right = [pair_ranking(each[:MAX_PAIRED], real[:MAX_PAIRED]).accuracy for each in expected]
        print(f"{path.name:32} {name:10} {len(some):6}", *(f"{figure:.3f}" for figure in off + right))


if __name__ == "__main__":
    for each in map(Path, sys.argv[1:]):
        for tells in (False, True):
            figures = ranking(each, tells=tells)
            print(
                f"{each.name:32} effort {'known' if tells else 'unknown':8}",
                *(f"{one:.3f}" for one in figures),
            )
        remaining(each)
