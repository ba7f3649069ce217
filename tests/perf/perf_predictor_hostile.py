"""100,000 random, hostile and multilingual requests: no exception, no NaN, bounded time.

Run it as `python -m pytest tests/perf/perf_predictor_hostile.py -o addopts=`; it takes minutes.
"""

import math
from time import perf_counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import predictor
from predictor.record import PromptView

LEXICAL, PAPER = predictor.load(), predictor.load("paper")
TEXT = st.one_of(
    st.text(st.characters(), max_size=200),
    st.text("abc ABC,.?!'\n\t0123456789", max_size=400),
    st.text("çßИاہन中あ한🙂\u200d\u202e \ud800\udfff", max_size=200),
    st.builds(lambda text, times: text * times, st.text(max_size=8), st.integers(0, 5000)),
)


@pytest.mark.timeout(0)
@given(TEXT)
@settings(max_examples=100_000, deadline=None, database=None, suppress_health_check=list(HealthCheck))
def test_no_prompt_breaks_it(prompt: str) -> None:
    start = perf_counter()
    for loaded in (LEXICAL, PAPER):
        made = loaded.predict(PromptView(prompt))
        values = (made.p_short, made.p_medium, made.p_long, made.score, made.expected_tokens, made.q90_tokens)
        assert all(math.isfinite(value) for value in values)
        assert abs(made.p_short + made.p_medium + made.p_long - 1) < 1e-5
    assert perf_counter() - start < 1.0  # hundreds of times the usual: only a blow-up takes that long
