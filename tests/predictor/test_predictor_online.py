"""Learning from answers, and judging predictions by them."""

import json
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
from clairvoyant_lab.ranking import ranking_accuracy

import predictor
from predictor.errors import ModelError
from predictor.judged import WINDOW, Judged
from predictor.lexical.heads import MAX_HEADS
from predictor.lexical.online import MAX_MODELS, Correction, Features, ModelEdges
from predictor.record import Prediction, Predictor, PromptView, Quality, Step

TOPICS = [f"topic{number}" for number in range(40)]


def _teach(loaded: Predictor, answers: int, seed: int = 0) -> None:
    """Serve a stream on which "essay" means short and "tweet" long, against what words usually mean."""
    generator = np.random.default_rng(seed)
    for _ in range(answers):
        kind = generator.choice(["essay", "tweet"])
        view = PromptView(f"Write a {kind} about {generator.choice(TOPICS)}", model="m")
        loaded.learn(loaded.predict(view), 60 if kind == "essay" else 1500)


def _score(loaded: Predictor, kind: str) -> float:
    return loaded.predict(PromptView(f"Write a {kind} about whales", model="m")).score


def test_it_learns_what_words_mean_here() -> None:
    loaded = predictor.load()
    assert _score(loaded, "essay") > _score(loaded, "tweet")
    _teach(loaded, 200)
    assert _score(loaded, "essay") < _score(loaded, "tweet")


def test_a_clients_random_answers_leave_the_order_of_others() -> None:
    loaded, generator = predictor.load(), np.random.default_rng(1)
    _teach(loaded, 200)
    before = _score(loaded, "tweet") - _score(loaded, "essay")
    for _ in range(400):
        kind, topic = generator.choice(["essay", "tweet"]), generator.choice(TOPICS)
        view = PromptView(f"Write a {kind} about {topic}", model="m", client="eve")
        loaded.learn(loaded.predict(view), int(generator.choice([3, 8, 900, 1900])))
    assert _score(loaded, "tweet") - _score(loaded, "essay") > 0.5 * before


def _share_in_order(loaded: Predictor, principal: str) -> float:
    """Return the share of pairs, an essay and a tweet, that are in the order that `_teach` teaches."""
    views = {kind: [_view(kind, topic, principal) for topic in TOPICS] for kind in ("essay", "tweet")}
    scores = {kind: [loaded.predict(view).score for view in each] for kind, each in views.items()}
    pairs = [short < long for short in scores["essay"] for long in scores["tweet"]]
    return sum(pairs) / len(pairs)


def _view(kind: str, topic: str, principal: str) -> PromptView:
    return PromptView(f"Write a {kind} about {topic}", model="m", client=principal, principal=principal)


def _teach_as(loaded: Predictor, principal: str, answers: int, *, lie: bool = False) -> None:
    generator = np.random.default_rng(len(principal))
    for _ in range(answers):
        kind = generator.choice(["essay", "tweet"])
        prediction = loaded.predict(_view(kind, generator.choice(TOPICS), principal))
        loaded.learn(prediction, 60 if (kind == "essay") is not lie else 1500)


@pytest.mark.parametrize("taught_before", ["alice", ""])
def test_no_principals_answers_turn_what_another_has_taught(taught_before: str) -> None:
    loaded = predictor.load()
    _teach_as(loaded, taught_before, 200)  # "": before there were keys
    before = [loaded.predict(_view(kind, "whales", "alice")).p_long for kind in ("essay", "tweet")]
    _teach_as(loaded, "eve", 600, lie=True)
    assert _share_in_order(loaded, "alice") == 1.0
    assert [loaded.predict(_view(kind, "whales", "alice")).p_long for kind in ("essay", "tweet")] == before


def test_a_new_principal_is_predicted_by_what_two_others_agree_on() -> None:
    loaded = predictor.load()
    untaught = loaded.predict(_view("essay", "whales", "carol")).score
    _teach_as(loaded, "alice", 200)
    assert loaded.predict(_view("essay", "whales", "carol")).score == untaught
    _teach_as(loaded, "bob", 200)
    assert _share_in_order(loaded, "carol") > 0.95
    _teach_as(loaded, "eve", 600, lie=True)
    assert _share_in_order(loaded, "carol") > 0.95


def test_what_principals_taught_survives_in_a_state_and_their_number_is_bounded() -> None:
    loaded, fresh = predictor.load(), predictor.load()
    _teach_as(loaded, "alice", 200)
    for number in range(2 * MAX_HEADS):
        _teach_as(loaded, f"tenant {number}", 2, lie=True)
    fresh.import_state(loaded.export_state())
    assert _share_in_order(fresh, "alice") == _share_in_order(loaded, "alice") == 1.0
    assert len(json.loads(loaded.export_state().partition(b"\n")[0])["heads"]) == 1 + MAX_HEADS


def test_what_was_learnt_survives_in_a_state_without_text() -> None:
    taught, fresh = predictor.load(), predictor.load()
    _teach(taught, 200)
    state = taught.export_state()
    assert b"essay" not in state
    assert b"topic" not in state
    fresh.import_state(state)
    for kind in ("essay", "tweet"):
        assert _score(fresh, kind) == pytest.approx(_score(taught, kind), abs=1e-4)
    _teach(fresh, 50)
    assert _score(fresh, "essay") < _score(fresh, "tweet")


@pytest.mark.parametrize("state", [b"", b"{}", b"garbage\nmore", b'{"model": {}, "spreads": []}\n'])
def test_a_foreign_state_is_refused(state: bytes) -> None:
    with pytest.raises(ModelError):
        predictor.load().import_state(state)


@pytest.mark.parametrize("keep", [-40, -3, 300])
def test_a_damaged_state_changes_nothing(keep: int) -> None:
    taught, fresh = predictor.load(), predictor.load()
    _teach(taught, 60)
    before = _score(fresh, "tweet")
    with pytest.raises(ModelError):
        fresh.import_state(taught.export_state()[:keep])
    assert _score(fresh, "tweet") == before


def test_a_state_that_holds_no_numbers_is_refused() -> None:
    loaded = predictor.load()
    _teach(loaded, 60)
    with pytest.raises(ModelError, match="damaged"):
        predictor.load().import_state(loaded.export_state()[:-4] + np.float32(np.nan).tobytes())


def test_the_state_of_an_earlier_version_is_learnt_anew() -> None:
    loaded = predictor.load()
    head, _, _ = loaded.export_state().partition(b"\n")
    weights = BytesIO()
    np.savez_compressed(weights, version=np.array(1), buckets=np.array([1]), weights=np.array([0.5]))
    old = json.dumps({**json.loads(head), "spreads": [[1, 2, 1.0, 0.0]]}).encode()
    for state in (old, head):
        with pytest.raises(ModelError, match="learning starts over"):
            loaded.import_state(state + b"\n" + weights.getvalue())


def test_where_there_is_nothing_to_learn_it_orders_hardly_worse() -> None:
    generator = np.random.default_rng(4)
    correction = Correction(4)
    predicted: list[tuple[float, float, float]] = []
    for _ in range(900):
        hashes = generator.integers(0, 300, 30).astype(np.uint32)
        features = Features.of(hashes, 0, generator.normal(0, 0.3, 4).astype(np.float32))
        static = generator.normal(5.5, 0.8)
        real = static + generator.normal(0, 0.7)
        predicted.append((static, static + correction.shift(features), real))
        correction.learn(features, static, real)
    static_scores, scores, reals = np.array(predicted[300:]).T
    fixed, learnt = (ranking_accuracy(each, np.exp(reals) - 10).accuracy for each in (static_scores, scores))
    assert learnt > fixed - 0.02


def test_an_answer_cut_off_at_the_cap_teaches_no_shorter_length() -> None:
    loaded = predictor.load()
    view = PromptView("Write a novel about whales", max_tokens=10)
    plain = PromptView(view.prompt)
    before = loaded.predict(plain).expected_tokens
    for _ in range(20):
        loaded.learn(loaded.predict(view), 10)
    assert loaded.predict(plain).expected_tokens == before


_THINGS = ("a whale", "ten whales", "the moon", "bread", "winter", "the sea", "a proof", "rain")


def test_answers_cut_off_at_a_cap_teach_what_they_would_have_come_to() -> None:
    loaded, generator = predictor.load(), np.random.default_rng(1)
    capped, plain = PromptView("Tell me about whales", max_tokens=300), PromptView("Tell me about whales")
    for tokens in np.exp(generator.normal(6, 1, 400)):  # half of them are longer than 393
        loaded.learn(loaded.predict(capped), int(min(tokens, 300)))
    middle = loaded.predict(plain).memo.mean  # type: ignore[attr-defined]
    assert middle == pytest.approx(6, abs=0.25)


def test_expected_tokens_order_as_the_means_do() -> None:
    """A spread that the static mean alone decided ordered what was learnt by what was known before."""
    loaded, generator = predictor.load(), np.random.default_rng(1)
    asked = [f"{verb} {what}" for verb in ("Name", "Translate:", "Write an essay about") for what in _THINGS]
    for _ in range(4):
        for prompt in asked:
            loaded.learn(loaded.predict(PromptView(prompt)), int(generator.integers(20, 900)))
    predicted = [loaded.predict(PromptView(prompt)) for prompt in asked]
    means = [each.memo.mean for each in predicted]  # type: ignore[attr-defined]
    assert np.array_equal(np.argsort([each.expected_tokens for each in predicted]), np.argsort(means))


def test_each_effort_of_thinking_is_learned_for_itself() -> None:
    loaded, generator = predictor.load(), np.random.default_rng(0)
    efforts = {"off": 40, "low": 300, "high": 3000}
    for _ in range(150):
        thinking = str(generator.choice(list(efforts)))
        view = PromptView(f"Tell me about {generator.choice(TOPICS)}", model="m", thinking=thinking)
        loaded.learn(loaded.predict(view), efforts[thinking])
    views = [PromptView("Tell me about whales", model="m", thinking=thinking) for thinking in efforts]
    off, low, high = [loaded.predict(view).expected_tokens for view in views]
    assert off < low / 2
    assert low < high / 2


def _after_thinking(loaded: Predictor, view: PromptView, thought: int = 500) -> Prediction:
    predicted = loaded.after_thinking(view, thought)
    assert predicted is not None
    return predicted


def test_the_answer_after_thinking_is_predicted_from_earlier_ones() -> None:
    loaded, view = predictor.load(), PromptView("Why?", model="m", max_tokens=1000)
    for _ in range(20):
        loaded.learn(_after_thinking(loaded, view), 400)
    assert 300 < _after_thinking(loaded, view).expected_tokens < 500
    assert _after_thinking(loaded, view, 900).q90_tokens <= 100  # what the client's limit leaves
    assert _after_thinking(loaded, replace(view, model="other")).expected_tokens < 200
    heir = predictor.load()
    heir.import_state(loaded.export_state())
    assert _after_thinking(heir, view) == _after_thinking(loaded, view)
    loaded.frozen = True
    state = loaded.export_state()
    loaded.learn(_after_thinking(loaded, view), 4000)
    assert loaded.export_state() == state


def test_q90_comes_to_cover_nine_in_ten() -> None:
    loaded, generator = predictor.load(), np.random.default_rng(1)
    view, covered = PromptView("Tell me about whales", model="m"), []
    for _ in range(400):
        prediction, tokens = loaded.predict(view), int(np.exp(generator.normal(7, 1.2)))
        covered.append(tokens <= prediction.q90_tokens)
        loaded.learn(prediction, tokens)
    assert 0.85 <= np.mean(covered[100:]) <= 0.95


def test_classes_come_to_be_as_frequent_as_predicted() -> None:
    loaded, generator = predictor.load(), np.random.default_rng(3)
    view, chances = PromptView("Tell me about whales", model="m"), []
    for short in generator.random(400) < 0.3:
        prediction = loaded.predict(view)
        chances.append((prediction.p_short, prediction.p_medium, prediction.p_long))
        loaded.learn(prediction, 150 if short else 2000)
    assert np.mean(chances[200:], axis=0) == pytest.approx([0.3, 0.0, 0.7], abs=0.08)
    heir = predictor.load()
    heir.import_state(loaded.export_state())
    assert heir.predict(view).p_short == pytest.approx(loaded.predict(view).p_short, abs=1e-3)


def test_the_latest_answers_are_judged() -> None:
    judged = Judged()
    for number in range(WINDOW):
        judged.judge(-number, 1, number * 10)
    for number in range(WINDOW):
        judged.judge(number, 5000, number * 10)
    assert judged.quality() == Quality(2 * WINDOW, 1.0, 1.0)


@pytest.mark.parametrize("cap", [0, 1, 16])
def test_an_answer_that_a_cap_ended_is_not_judged(cap: int) -> None:
    loaded = predictor.load()
    loaded.learn(loaded.predict(PromptView("Write a story", max_tokens=cap)), cap)
    assert loaded.quality().judged == 0


def test_nothing_judged_is_nothing_counted() -> None:
    quality = predictor.load().quality()
    assert (quality.judged, quality.ranking_accuracy, quality.q90_coverage) == (0, None, None)


def _step(tool: str, generator: np.random.Generator) -> PromptView:
    step = Step(new_characters=int(generator.integers(10, 900)), is_result=True, tools=(tool,), answered=3)
    return PromptView(f"line {generator.integers(99)}", model="m", step=step)


def test_it_learns_what_follows_a_tools_result() -> None:
    loaded, generator = predictor.load(), np.random.default_rng(1)
    for _ in range(60):
        tool = str(generator.choice(["read", "search"]))
        loaded.learn(loaded.predict(_step(tool, generator)), 900 if tool == "read" else 60)
    after = {tool: loaded.predict(_step(tool, generator)).expected_tokens for tool in ("read", "search")}
    assert after["read"] > 2 * after["search"]


def test_many_answers_leave_the_regression_sound() -> None:
    correction, generator = Correction(12), np.random.default_rng(1)
    weights = generator.normal(0, 0.5, 12)
    for _ in range(2_000):
        dense = generator.normal(0, 1, 12).astype(np.float32)
        features = Features.of(generator.integers(0, 90, 20).astype(np.uint32), 0, dense)
        correction.learn(features, 5.0, 5.0 + float(dense @ weights) + generator.normal(0, 0.5))
    spread = np.linalg.eigvalsh(correction._covariance)
    assert spread.min() > 0
    assert spread.max() < 1
    assert correction._dense == pytest.approx(weights, abs=0.1)


def test_invented_models_leave_what_was_learned_of_real_ones() -> None:
    edges = ModelEdges()
    for _ in range(3):
        edges.to_teach(1).learn(2.0, exceeded=True)
    for model in range(10, 10 + 2 * MAX_MODELS):
        edges.to_teach(model).learn(2.0, exceeded=True)
    assert edges.of(1).answers == 3
    assert len(edges.export_state()) == MAX_MODELS
