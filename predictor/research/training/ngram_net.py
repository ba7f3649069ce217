"""Train the net beside the trees to order prompts by the length of their answers.

It learns from pairs within a file whose log lengths differ by more than `DELTA` (PARS, section III; Burges
et al., ICML 2005), and by a Huber loss on log tokens. Words are dropped at random.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from predictor.lexical.ngram_net import LIMIT, MAX_GRAMS, Bag, Layers
from predictor.research.training.material import Material, Numbers, Rows

NUMBERS = 4
HIDDEN = 48
MIN_FAMILIES = 4  # families of files in which a gram must occur to have numbers, if there are that many
MIN_PROMPTS = 3

STEPS = 600
MIN_STEPS = 40
ROWS_A_STEP = 40  # training rows per step
FILES_A_STEP = 12
PROMPTS_A_STEP = 576
RATE, NUMBERS_RATE = 2e-3, 5e-3
DECAY, NUMBERS_DECAY = 0.01, 0.02
WORDS_DROPPED, NUMBERS_DROPPED, HIDDEN_DROPPED = 0.4, 0.1, 0.2
FIRST_SPREAD = 0.02

DELTA = 0.3
LARGEST_DIFFERENCE = 2.0
STEEPNESS = 1.5
LENGTH_SHARE = 0.5  # how much the loss on lengths weighs beside the one on pairs
Floats = npt.NDArray[np.float32]


class _Adam:
    """AdamW (Loshchilov and Hutter, ICLR 2019) for one array, which is changed in place."""

    def __init__(self, value: Floats, rate: float, decay: float) -> None:
        self._value, self._rate, self._decay = value, rate, decay
        self._first, self._second = np.zeros_like(value), np.zeros_like(value)
        self._steps = 0

    def step(self, gradient: Floats, slowed: float) -> None:
        self._steps += 1
        self._first += np.float32(0.1) * (gradient - self._first)
        self._second += np.float32(0.001) * (gradient * gradient - self._second)
        root = np.sqrt(self._second)
        root *= np.float32((1 - 0.999**self._steps) ** -0.5)
        root += np.float32(1e-8)
        rate = self._rate * slowed
        self._value *= np.float32(1 - rate * self._decay)
        self._value -= self._first / root * np.float32(rate / (1 - 0.9**self._steps))


def fit_bag(material: Material, targets: Numbers, means: Numbers, spreads: Numbers, seed: int) -> Bag:
    """Train a net on targets in log tokens; means and spreads are of the cues."""
    kept = _shared(material)
    grams = material.grams[:, kept].tocsr()
    centre, spread = means.astype(np.float32), spreads.astype(np.float32)
    standard = np.clip((material.cues.astype(np.float32) - centre) / spread, -LIMIT, LIMIT)
    sample = material._replace(grams=grams, cues=standard)
    numbers, inner, bias, outer, direct, middle = _train(sample, targets.astype(np.float32), seed)
    weights = np.column_stack((inner, direct, -direct))
    by_cues = weights[NUMBERS:] / spread[:, None]
    layers = Layers(
        low=centre - LIMIT * spread,
        high=centre + LIMIT * spread,
        by_cues=by_cues,
        by_sum=weights[:NUMBERS],
        bias=np.concatenate((bias, middle, -middle)) - centre @ by_cues,
        outer=np.append(outer, np.array([1, -1], np.float32)),
        ordinary=np.asarray(grams.mean(axis=0), np.float32).ravel() @ numbers,
    )
    return Bag(material.hashes[kept], numbers, layers)


def _shared(sample: Material) -> Rows:
    """Return the columns of the grams that enough prompts and families share, at most `MAX_GRAMS` of them."""
    grams = sample.grams
    prompts = np.bincount(grams.indices, minlength=grams.shape[1])
    of_family = np.repeat(sample.families, np.diff(grams.indptr))
    pairs = np.unique(grams.indices * np.int64(sample.families.max() + 1) + of_family)
    families = np.bincount(pairs // (sample.families.max() + 1), minlength=grams.shape[1])
    enough = min(MIN_FAMILIES, len(np.unique(sample.families)))
    kept = np.flatnonzero((prompts >= MIN_PROMPTS) & (families >= enough))
    most = np.argsort(-prompts[kept], kind="stable")[:MAX_GRAMS]
    columns: Rows = np.sort(kept[most])
    return columns


def _train(sample: Material, targets: Floats, seed: int) -> list[Floats]:
    """Return a net's arrays: numbers, inner, bias, outer, direct, and the middle, of shape (1,)."""
    generator = np.random.default_rng(seed)
    width = NUMBERS + sample.cues.shape[1]
    arrays: list[Floats] = [
        _normal(generator, (sample.grams.shape[1], NUMBERS), FIRST_SPREAD),
        _normal(generator, (width, HIDDEN), (3 * width) ** -0.5),
        np.zeros(HIDDEN, np.float32),
        np.zeros(HIDDEN, np.float32),
        _normal(generator, (width,), 0.01),
        np.full(1, targets.mean(), np.float32),
    ]
    rates = [(NUMBERS_RATE, NUMBERS_DECAY), *[(RATE, DECAY)] * 4, (RATE, 0.0)]
    optimisers = [_Adam(array, *each) for array, each in zip(arrays, rates, strict=True)]
    rows_of = [np.flatnonzero(sample.files == file) for file in np.unique(sample.files)]
    families = [sample.families[rows[0]] for rows in rows_of]
    chances = chances_of(families, [len(rows) for rows in rows_of], 1.0)
    steps = min(STEPS, max(MIN_STEPS, len(targets) // ROWS_A_STEP))
    at_once = min(FILES_A_STEP, len(rows_of))
    for step in range(steps):
        files = generator.choice(len(rows_of), at_once, p=chances, replace=False)
        drawn = [_some(generator, rows_of[file], PROMPTS_A_STEP // at_once) for file in files]
        gradients = _gradients(sample, targets, arrays, drawn, generator)
        slowed = min((step + 1) * 12 / steps, max(0.02, 1.03 * (1 - (step + 1) / steps)))
        for optimiser, gradient in zip(optimisers, gradients, strict=True):
            optimiser.step(gradient, slowed)
    return arrays


def _normal(generator: np.random.Generator, shape: tuple[int, ...], spread: float) -> Floats:
    return generator.standard_normal(shape, np.float32) * np.float32(spread)


def _some(generator: np.random.Generator, rows: Rows, count: int) -> Rows:
    chosen: Rows = generator.choice(rows, min(count, len(rows)), replace=False)
    return chosen


def chances_of(families: Sequence[object], sizes: Sequence[int], power: float) -> Numbers:
    """Return the chance of drawing each file: a family by a power of its size, its files by their roots."""
    rows, places = np.array(sizes, float), np.unique(np.array(families), return_inverse=True)[1]
    roots, totals = np.sqrt(rows), np.bincount(places, rows)
    sums = np.maximum(np.bincount(places, roots), 1e-9)
    chances: Numbers = roots * (totals**power / sums)[places]
    chances /= chances.sum()
    return chances


def _gradients(
    sample: Material, targets: Floats, arrays: list[Floats], drawn: list[Rows], generator: np.random.Generator
) -> list[Floats]:
    """Return the loss's gradient by each array, over some rows of some files."""
    numbers, inner, bias, outer, direct, middle = arrays
    rows = np.concatenate(drawn)
    words = sample.grams[rows]
    words.data = words.data * _mask(generator, words.data.shape, WORDS_DROPPED, 0.5)
    kept = _mask(generator, (len(rows), NUMBERS), NUMBERS_DROPPED)
    inputs = np.concatenate(((words @ numbers) * kept, sample.cues[rows]), axis=1)
    before = inputs @ inner + bias
    gate = _mask(generator, before.shape, HIDDEN_DROPPED) * (before > 0)
    hidden = before * gate
    scores = (inputs @ direct + hidden @ outer + middle).astype(np.float32)
    by_score = _by_score(scores, targets[rows], [len(part) for part in drawn])
    by_hidden = np.outer(by_score, outer) * gate
    by_numbers = (by_hidden @ inner[:NUMBERS].T + np.outer(by_score, direct[:NUMBERS])) * kept
    return [
        words.T @ by_numbers,
        inputs.T @ by_hidden,
        by_hidden.sum(axis=0),
        hidden.T @ by_score,
        inputs.T @ by_score,
        by_score.sum(keepdims=True),
    ]


def _mask(
    generator: np.random.Generator, shape: tuple[int, ...], dropped: float, power: float = 1.0
) -> Floats:
    """Return zeros for what is dropped, and for the rest what makes up for it."""
    kept: Floats = (generator.random(shape, np.float32) >= dropped) * np.float32((1 - dropped) ** -power)
    return kept


def _by_score(scores: Floats, targets: Floats, sizes: list[int]) -> Floats:
    """Return the loss's gradient by the scores of rows of several files, one after the other."""
    by_score: Floats = np.clip(scores - targets, -1, 1) * np.float32(LENGTH_SHARE / len(scores))
    start = 0
    for size in sizes:
        part = slice(start, start + size)
        start += size
        apart = targets[part, None] - targets[None, part]
        weights = np.where(apart > DELTA, np.minimum(apart, LARGEST_DIFFERENCE), np.float32(0))
        total = weights.sum()
        if total:
            ahead = np.clip(scores[part, None] - scores[None, part], -20, 20)
            wrong = weights / (1 + np.exp(STEEPNESS * ahead)) * (STEEPNESS / total / len(sizes))
            by_score[part] += wrong.sum(axis=0) - wrong.sum(axis=1)
    return by_score
