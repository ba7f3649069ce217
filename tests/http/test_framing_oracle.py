"""Our reading of HTTP/1.1 beside h11's, over generated messages cut into random packets."""

from random import Random

import pytest

from tests.http.oracle import Messages, our_requests, requests_agree, responses_agree

MESSAGES = 2000


@pytest.mark.parametrize("seed", range(4))
def test_requests(seed: int) -> None:
    random = Random(seed)
    messages = Messages(random)
    for _ in range(MESSAGES // 4):
        requests_agree(random, messages)


@pytest.mark.parametrize("seed", range(4))
def test_responses(seed: int) -> None:
    random = Random(seed)
    messages = Messages(random)
    for _ in range(MESSAGES // 4):
        responses_agree(random, messages)


def test_what_is_made_is_mostly_right_and_often_wrong() -> None:
    """The two tests above say something only if both kinds are there."""
    random = Random(1)
    messages = Messages(random)
    readings = [our_requests([messages.request()]) for _ in range(500)]
    assert 100 < sum(reading.refused is not None for reading in readings) < 350
    assert sum(message.whole for reading in readings for message in reading.messages) > 300
