"""Learned speeds: what a server says of itself is believed within what a machine can do."""

import pytest

from clairvoyant_cli.backends.speeds import MAX_AT_ONCE, Speeds
from clairvoyant_cli.http.heads import ResponseHead
from clairvoyant_cli.protocols.usage import UsageReader


def learned(*answers: tuple[float, float], measured: float | None = None) -> Speeds:
    """Return the speeds learned from answers, each given by its tokens and seconds."""
    speeds = Speeds(measured=(measured, measured))
    for tokens, seconds in answers:
        speeds.learn(tokens, seconds, tokens, seconds)
    return speeds


def test_the_first_answer_says_how_fast_a_server_is() -> None:
    speeds = learned((100, 4.0))
    assert (speeds.decode_tokens_per_s, speeds.prefill_tokens_per_s) == (25.0, 25.0)
    assert learned((7, 1.0)).decode_tokens_per_s is None  # too few


@pytest.mark.parametrize("absurd", [(2.0**31, 1e-9), (100, 1e-9), (100, 1e6), (8, 6e5), (100, 0.0)])
def test_what_no_machine_can_do_is_not_learned(absurd: tuple[float, float]) -> None:
    assert learned(absurd) == Speeds()
    assert learned((100, 4.0), absurd, (100, 4.0)) == learned((100, 4.0))


@pytest.mark.parametrize("odd", [(1000, 0.011), (1000, 90_000.0)])
def test_one_odd_answer_moves_a_speed_a_little(odd: tuple[float, float]) -> None:
    once = learned((100, 4.0), odd).decode_tokens_per_s
    assert once is not None
    assert 25.0 / MAX_AT_ONCE < once < 25.0 * MAX_AT_ONCE
    again = learned((100, 4.0), odd, *[(100, 4.0)] * 10).decode_tokens_per_s
    assert again == pytest.approx(25.0, rel=0.1)


def test_a_server_that_has_become_faster_is_found_out() -> None:
    assert learned((100, 4.0), *[(1000, 1.0)] * 40).decode_tokens_per_s == pytest.approx(1000.0, rel=0.1)


def test_a_profile_bounds_what_is_learned() -> None:
    speeds = learned(*[(1000, 1.0)] * 40, measured=25.0)
    assert (speeds.decode_tokens_per_s, speeds.prefill_tokens_per_s) == (100.0, 100.0)


def test_tokens_are_counted_by_events_as_learned() -> None:
    """With speculative decoding an event brings several tokens."""
    speeds = Speeds()
    for _ in range(10):
        speeds.learn(160, None, None, None, events=40)
    speeds.learn(4, None, None, None, events=1)
    watch = UsageReader(
        ResponseHead(200, b"", [(b"content-type", b"text/event-stream")]), None, speeds.tokens_an_event
    )
    watch.feed(b'data: {"choices":[{"delta":{"content":"four of them"}}]}\n\n' * 25)
    assert 80 < watch.tokens <= 100
