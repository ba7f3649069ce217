"""The default predictor: the lexical model's score, the request's context, and what was learned."""

import json
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np

from predictor.chores import ChoreLengths, ChoreMemo
from predictor.errors import ModelError
from predictor.judged import Judged
from predictor.lexical.context import Context, consider, step_context
from predictor.lexical.cues import NAMES
from predictor.lexical.heads import Heads
from predictor.lexical.model import STATED_SPREAD, LexicalModel, Reading
from predictor.lexical.online import KEY_BUCKETS, Features, Floats
from predictor.lexical.steps import NUMBER_VALUE, NUMBERS, STEP_KEY_VALUE, step_keys, step_numbers
from predictor.lexical.words import gram_hashes, words_of
from predictor.lognormal import log_tokens, median_above, prediction_of
from predictor.record import LONG_FROM_TOKENS, Prediction, Predictor, PromptView, Quality, Task
from predictor.semantic.opinion import EMBEDDED, EncoderEstimate

NOTHING = Prediction(1.0, 0.0, 0.0, 0.0, 0.0, 0.0, "none")  # an embedding generates no tokens

TYPICAL_MEAN = 5.5
"""Log tokens; the static mean is learnt about as its distance from here, so that it carries no level."""

CUE_VALUE = 0.5  # how freely cues of unit spread may learn, all of them together
EMBEDDING_VALUE = 1.0  # how freely the weights of an embedding of unit length may change
KEY_VALUE = 1.0
MEAN_VALUE = 1.5
LENGTH_VALUE = 2.5
"""How freely two of the features may learn, each for itself: the static mean, in log tokens, and the length
of the prompt, in its spreads in the training data. Traffic differs in these two more than in all else: in how
far the static mean is to be stretched, and in whether long prompts have long answers. Fitted to streams held
out of training by their evidence (empirical Bayes: MacKay, 1992), the variances of these are above a tenth,
those of the other cues below a thirtieth."""

EXPECTED_ABOVE = 1.0
"""Spreads below the mean: that an answer did not end at a cap so low says too little to be learnt."""

USUAL_AFTER_THINKING = 110.0
"""Tokens, before a client's first answers of a model: the medians of six models lie between 40 and 400."""

_CHARACTERS = NAMES.index("characters")
_CUE_VALUE = CUE_VALUE / sqrt(len(NAMES))
_MEAN = len(NAMES)
_STEP = slice(_MEAN + 1, _MEAN + 1 + NUMBERS)
_FIRST_KEY = _STEP.stop
_EMBEDDING = slice(_FIRST_KEY + KEY_BUCKETS, _FIRST_KEY + KEY_BUCKETS + EMBEDDED)
_WIDTH = _EMBEDDING.stop

_WORDS_SHOWN = 3
_REASONS_SHOWN = 8
_MIN_EFFECT = 0.02
_SHOWN_AS = {"told": "stated length"}

_TEMPLATE_CHARACTERS = 400
"""System prompts are distinguished by their beginning: the rest is often filled in per request."""


class Memo(NamedTuple):
    """What is needed to learn from a request later, in log tokens; `spread` is the card's."""

    features: Features
    static: float
    mean: float
    spread: float
    q90: float
    model: int
    cap: int | None
    principal: int


class LexicalPredictor(Predictor):
    """Predicts with the model in one directory and learns from the answers."""

    def __init__(self, directory: Path, name: str) -> None:
        self.name = name
        self._model = LexicalModel(directory)
        self._calibration = self._model.card.calibration
        self._cue_scale = np.float32(_CUE_VALUE) / self._model.spreads
        self._heads = Heads(_WIDTH)
        self._judged = Judged()
        self._chores = ChoreLengths()

    def predict(self, view: PromptView, opinion: EncoderEstimate | None = None) -> Prediction:
        """Return the prediction for a request, with the encoder's opinion of its prompt if that is known."""
        if view.task is Task.EMBEDDING:
            return NOTHING
        if view.chore is not None:
            guess = view.chore.tokens or self.predict(replace(view, chore=None), opinion).expected_tokens
            return self._chores.predict(view, view.chore.name, guess)
        calibration = self._calibration if opinion is None else opinion.calibration
        context, reading = step_context(view), None
        if context is None:
            reading = self._model.read(view.prompt, view.cut)
            score = reading.score
            if opinion is not None:
                score += opinion.share * (opinion.score - score)
            context = consider(view, reading.drawn(calibration.mean_at(score)))
        hashes = gram_hashes(words_of(view.prompt)) if reading is None else reading.hashes
        client = crc32(view.client.encode("utf-8", "replace"))
        features = Features.of(hashes, client, self._dense(view, reading, context, opinion))
        principal = crc32(view.principal.encode("utf-8", "replace"))
        head = self._heads.of(principal)
        mean = context.mean + self._heads.shift(head, features)
        stated = reading is not None and reading.states_length
        spread = calibration.spread_at(mean) * (STATED_SPREAD if stated else 1.0)
        model = crc32(view.model.encode("utf-8", "replace"))
        seen = head.edges.of(model)
        scale, shifts = seen.scale, (seen.short_shift, seen.long_shift)
        q90 = mean + (calibration.q90_at + seen.q90_shift) * spread * scale
        memo = Memo(features, context.mean, mean, spread, q90, model, view.max_tokens, principal)
        return prediction_of(calibration, mean, spread, q90, view.max_tokens, self.name, memo, shifts, scale)

    def _dense(
        self, view: PromptView, reading: Reading | None, context: Context, opinion: EncoderEstimate | None
    ) -> Floats:
        """Return the dense features that learning uses; zeros for what is not known."""
        dense = np.zeros(_WIDTH, np.float32)
        if reading is not None:
            # Each of zero mean and a spread of `_CUE_VALUE` in the training data.
            dense[: len(NAMES)] = (reading.row - self._model.means) * self._cue_scale
            dense[_CHARACTERS] *= LENGTH_VALUE / _CUE_VALUE
        dense[_MEAN] = MEAN_VALUE * (context.mean - TYPICAL_MEAN)
        # The keys that a request shares with others; a level is learned for each.
        keys = dict.fromkeys((*context.keys, "", f"model {view.model}", f"client {view.client}"), KEY_VALUE)
        if view.system:
            keys[f"template {view.system[:_TEMPLATE_CHARACTERS]}"] = KEY_VALUE
        if view.thinking is not None:
            keys[f"thinking {view.model} {view.thinking}"] = KEY_VALUE
        if view.step is not None:
            dense[_STEP] = step_numbers(view.step)
            dense[_STEP] *= NUMBER_VALUE
            whose = f"{view.model} {view.step.harness}"
            keys |= dict.fromkeys(step_keys(view.step, whose), STEP_KEY_VALUE)
        for key, value in keys.items():  # collisions are rare and have random signs
            place = crc32(key.encode("utf-8", "replace"))
            dense[_FIRST_KEY + place % KEY_BUCKETS] += value if place >> 31 else -value
        if opinion is not None:
            dense[_EMBEDDING] = opinion.embedding
            dense[_EMBEDDING] *= EMBEDDING_VALUE
        return dense

    def learn(self, prediction: Prediction, tokens: int) -> None:
        """Learn from a real answer; one that was cut off at the client's cap was at least that long.

        Such an answer counts as the median of those that are (a censored regression: Tobin, 1958).
        """
        memo = prediction.memo
        if isinstance(memo, ChoreMemo) and not self.frozen:
            self._chores.learn(memo, tokens)
        if not isinstance(memo, Memo):
            return
        is_capped = memo.cap is not None and tokens >= memo.cap
        if not is_capped:  # where the client ends an answer says nothing of where the model would have
            self._judged.judge(prediction.score, prediction.q90_tokens, tokens)
        if self.frozen:
            return
        real, head = log_tokens(tokens), self._heads.to_teach(memo.principal)
        if is_capped:
            spread = memo.spread * head.edges.of(memo.model).scale
            if real < memo.mean - EXPECTED_ABOVE * spread:
                return
            real = median_above(memo.mean, spread, real)
        else:
            taught = head.edges.to_teach(memo.model)
            taught.learn((real - memo.mean) / memo.spread, real > memo.q90)
            if memo.cap is None or memo.cap >= LONG_FROM_TOKENS:
                taught.learn_class(real, prediction.p_short, prediction.p_long)
        head.correction.learn(memo.features, memo.static, real)

    def after_thinking(self, view: PromptView, thought_tokens: int) -> Prediction:
        """Return the prediction of what follows the thinking, by what followed it before."""
        cap = None if view.max_tokens is None else max(view.max_tokens - thought_tokens, 1)
        return self._chores.predict(replace(view, max_tokens=cap), "after thinking", USUAL_AFTER_THINKING)

    def quality(self) -> Quality:
        return self._judged.quality()

    def explain(self, view: PromptView) -> list[tuple[str, float]]:
        """Return what drove the prediction, in log tokens, strongest first."""
        if view.chore is not None:
            return []
        slope = self._calibration.slope
        context = step_context(view)
        if context is not None:
            return [(f"request: {', '.join(context.keys)}", context.mean - TYPICAL_MEAN)]
        reading = self._model.read(view.prompt, view.cut)
        static = reading.drawn(self._calibration.mean_at(reading.score))
        context = consider(view, static)
        effects = {
            _SHOWN_AS.get(name, name.replace("_", " ")): slope * effect
            for name, effect in self._model.effects(reading).items()
            if name != "told_share"  # says nothing but with the length itself
        }
        words = self._model.word_effects(view.prompt, view.cut)
        # Words of three letters or fewer tell a reader nothing: "of", "the", "und".
        told = [
            each for each in words if min((len(word.encode()) for word in each.split()), default=0) > 3
        ] or words
        telling = sorted(told, key=lambda word: (-round(abs(words[word]), 4), word))[:_WORDS_SHOWN]
        effects[f"words: {', '.join(telling)}"] = effects.pop("words")
        if context.keys:
            effects[f"request: {', '.join(context.keys)}"] = context.mean - static
        moved = [(name, effect) for name, effect in effects.items() if abs(effect) >= _MIN_EFFECT]
        return sorted(moved, key=lambda reason: -abs(reason[1]))[:_REASONS_SHOWN]

    def export_state(self) -> bytes:
        """Return a line of JSON with the chores and the models' edges, then the corrections."""
        heads, corrections = self._heads.export_state()
        line = {"model": self._model.card.sha256, "heads": heads, "chores": self._chores.export_state()}
        return b"".join((json.dumps(line).encode(), b"\n", corrections))

    def import_state(self, state: bytes) -> None:
        """Take up what `export_state` returned; ModelError if it was learnt on top of another model."""
        line, _, corrections = state.partition(b"\n")
        heads = Heads(_WIDTH)
        try:
            fields = json.loads(line)
            model, chores = fields["model"], ChoreLengths(fields.get("chores", {}))
            if model == self._model.card.sha256:
                heads.import_state(fields["heads"], corrections)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ModelError(f"the learnt state cannot be read ({error}): learning starts over") from None
        if model != self._model.card.sha256:
            raise ModelError("the learnt state belongs to another model: learning starts over")
        self._heads, self._chores = heads, chores
        self._judged = Judged()  # what was judged were other predictions
