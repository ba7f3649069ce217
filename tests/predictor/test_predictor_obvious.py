"""What any engineer would predict of a request, the shipped model predicts too, style by style."""

import pytest

import predictor
from tests.predictor.obvious_lengths import Request, read_requests

STYLES: dict[str, list[tuple[Request, float]]] = {}


def setup_module() -> None:
    loaded = predictor.load()
    for request in read_requests():
        STYLES.setdefault(request.style, []).append((request, loaded.predict(request.view).score))


NAMES = sorted({request.style for request in read_requests()})


@pytest.mark.parametrize("style", NAMES)
def test_a_long_answer_is_ranked_above_a_short_one(style: str) -> None:
    pairs = _pairs(style)
    assert len(pairs) >= 36
    assert sum(long > short for (_, short), (_, long) in pairs) >= 0.9 * len(pairs)


@pytest.mark.parametrize("style", NAMES)
def test_who_asks_for_more_is_never_predicted_less(style: str) -> None:
    turned = [
        (shorter.view.prompt[-80:], longer.view.prompt[-80:])
        for (shorter, short), (longer, long) in _pairs(style)
        if shorter.says_so and longer.says_so and long <= short
    ]
    assert not turned


def _pairs(style: str) -> list[tuple[tuple[Request, float], tuple[Request, float]]]:
    scored = STYLES[style]
    return [(s, el) for s in scored if s[0].size == "S" for el in scored if el[0].size == "L"]
