"""The encoder's opinion, and what the predictor makes of it."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import predictor
from predictor.card import Calibration
from predictor.errors import ModelError
from predictor.loading import MODELS, SEMANTIC
from predictor.record import PromptView, Task
from predictor.semantic.model import ENCODER, Encoder
from predictor.semantic.opinion import EMBEDDED, EncoderEstimate
from tests.predictor.obvious_lengths import read_requests

SHORT = "Is Paris the capital of France? Answer yes or no."
LONG = "Write a comprehensive guide to container gardening for beginners, with a chapter for each season."
HOSTILE = ["", "\x00", "\ud800 half", "a" * 100_000, "\n" * 5000, "😀" * 3000, "字" * 5000]


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return predictor.load_encoder()


def _opinion(
    score: float, embedding: "np.ndarray[tuple[int], np.dtype[np.float32]] | None" = None
) -> EncoderEstimate:
    nothing = np.zeros(EMBEDDED, np.float32)
    return EncoderEstimate(
        score, nothing if embedding is None else embedding, 0.5, Calibration(0.0, 1.0, 0.8)
    )


def test_the_longer_answer_scores_higher(encoder: Encoder) -> None:
    assert encoder.encode(LONG).score > encoder.encode(SHORT).score


@pytest.mark.parametrize("text", HOSTILE)
def test_an_opinion_is_had_of_any_text(encoder: Encoder, text: str) -> None:
    opinion = encoder.encode(text, cut=7)
    assert np.isfinite(opinion.score)
    assert opinion.embedding.shape == (EMBEDDED,)
    assert np.isfinite(opinion.embedding).all()


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("Explain monads, for example with 字 in a string.", 1.0),
        ("Erkläre mir die Größe der Straße, bitte ausführlich.", 1.0),
        ("```\n1 + 1\n```", 1.0),
        ("请写一篇关于夏天的文章，分点明确。", 0.25),
        ("Расскажи подробно о Волге.", 0.25),
        ("", 1.0),
    ],
)
def test_of_scripts_it_cannot_read_it_says_less(encoder: Encoder, text: str, part: float) -> None:
    assert encoder.encode(text).share == pytest.approx(part * encoder.card.share)


def test_threads_do_not_disturb_each_other(encoder: Encoder) -> None:
    texts = [f"{text} {number}" for number in range(8) for text in (SHORT, LONG)]
    alone = [encoder.encode(text).score for text in texts]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda text: encoder.encode(text).score, texts)) == alone


def test_a_long_prompt_costs_no_more_than_its_two_ends(encoder: Encoder) -> None:
    def cost(text: str) -> float:
        times = []
        for _ in range(9):
            start = time.thread_time()
            encoder.encode(text)
            times.append(time.thread_time() - start)
        return min(times)

    assert cost("tell me more " * 100_000) < 3 * cost("tell me more " * 60)


def test_a_prediction_moves_towards_the_opinion() -> None:
    loaded, view = predictor.load(), PromptView(LONG)
    scores = [loaded.predict(view, _opinion(score)).score for score in (3.0, 5.0, 8.0)]
    assert scores == sorted(scores)
    assert scores[2] - scores[0] > 1


def test_a_length_that_is_told_outweighs_the_opinion() -> None:
    loaded = predictor.load()
    told, untold = PromptView("Write 1000 words on rain"), PromptView("Write something on rain")
    moved = [
        loaded.predict(view, _opinion(8.0)).score - loaded.predict(view, _opinion(3.0)).score
        for view in (told, untold)
    ]
    assert 0 <= moved[0] < moved[1] / 2


def test_what_is_obvious_stays_so_with_opinions(encoder: Encoder) -> None:
    loaded = predictor.load()
    styles: dict[str, dict[str, list[float]]] = {}
    for request in read_requests():
        opinion = encoder.encode(request.view.prompt, request.view.cut)
        sizes = styles.setdefault(request.style, {})
        sizes.setdefault(request.size, []).append(loaded.predict(request.view, opinion).score)
    for style, sizes in styles.items():
        right = [long > short for long in sizes["L"] for short in sizes["S"]]
        assert sum(right) >= 0.95 * len(right), style


def test_no_opinion_makes_an_embedding_generate() -> None:
    view = PromptView("text", task=Task.EMBEDDING)
    assert predictor.load().predict(view, _opinion(8.0)).expected_tokens == 0


def test_what_only_the_embedding_tells_is_learnt() -> None:
    loaded, generator = predictor.load(), np.random.default_rng(1)
    directions = np.eye(EMBEDDED, dtype=np.float32)[:2]
    for number in range(200):
        long = bool(generator.integers(2))
        view = PromptView(f"Tell me about item {number} of group {generator.integers(10**6)}", model="m")
        prediction = loaded.predict(view, _opinion(5.0, directions[int(long)]))
        loaded.learn(prediction, 1500 if long else 60)
    view = PromptView("Tell me about item 7 of group 9", model="m")
    short, long_ = (loaded.predict(view, _opinion(5.0, direction)).score for direction in directions)
    assert long_ - short > 1


def test_what_was_learnt_with_opinions_outlives_the_daemon() -> None:
    loaded, again = predictor.load(), predictor.load()
    embedding = np.eye(EMBEDDED, dtype=np.float32)[5]
    for number in range(30):
        view = PromptView(f"Question {number}", model="m")
        loaded.learn(loaded.predict(view, _opinion(5.0, embedding)), 900)
    again.import_state(loaded.export_state())
    view = PromptView("Question 99", model="m")
    expected = loaded.predict(view, _opinion(5.0, embedding)).score
    assert again.predict(view, _opinion(5.0, embedding)).score == pytest.approx(expected, abs=0.05)


def test_an_encoder_is_no_predictor_of_its_own() -> None:
    with pytest.raises(ModelError, match="not 'lexical'"):
        predictor.load(MODELS / SEMANTIC)
    with pytest.raises(ModelError, match="not an encoder"):
        predictor.load_encoder("default")


def test_a_damaged_encoder_is_refused(tmp_path: Path) -> None:
    for file in (MODELS / SEMANTIC).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / ENCODER).write_bytes(b"no model")
    with pytest.raises(ModelError, match="cannot be loaded"):
        Encoder(tmp_path)
