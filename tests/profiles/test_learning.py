"""tau follows the traffic within bounds."""

import logging
from dataclasses import replace

import pytest
from msgspec.structs import replace as replace_struct

from clairvoyant_cli.proxy.learning.tau_learning import (
    MIN_QUEUED,
    Learned,
    Learner,
    learned_of,
)
from clairvoyant_cli.scheduler.arrival_order import Compared
from tests.fakes.daemon_parts import daemon_parts
from tests.fakes.ended import USE, ended
from tests.fakes.remembered import PROFILE, Kept

MODEL = PROFILE.served.model
MEASURED = replace(PROFILE, queued_decode_tokens_per_s=20.0)


def learner(*profiles: object, learned: Learned | None = None) -> Learner:
    return Learner([p for p in profiles if p], learned or Learned())  # type: ignore[misc]


def test_without_a_profile_the_default_holds_until_enough_queued() -> None:
    found = learner()
    assert found.tau_of(MODEL) == (120.0, "default")
    for _ in range(MIN_QUEUED - 1):
        found.learn_short(MODEL, 5.0, 8.0)
    assert found.tau_of(MODEL)[0] == pytest.approx(120.0)
    found.learn_short(MODEL, 5.0, 8.0)
    tau_s, source = found.tau_of(MODEL)
    assert 15.0 < tau_s < 120.0
    assert source == "learned"


def test_a_profile_is_where_tau_starts_and_what_it_stays_near() -> None:
    found = learner(PROFILE)
    assert found.tau_of(MODEL) == (120.0, "profile gemma@ollama")
    for _ in range(1000):
        found.learn_short(MODEL, 400.0, 500.0)
    assert found.mu_short_of(MODEL) == pytest.approx(80.0)
    for _ in range(2000):
        found.learn_short(MODEL, 0.1, 0.5)
    assert found.mu_short_of(MODEL) == pytest.approx(20.0)


def test_answers_that_did_not_queue_teach_nothing() -> None:
    found = learner(PROFILE)
    for _ in range(100):
        found.learn_short(MODEL, 0.0, 2.0)
    assert found.tau_of(MODEL) == (120.0, "profile gemma@ollama")


def test_a_slower_machine_moves_mu_short_and_a_fuller_one_does_not() -> None:
    found = learner(MEASURED)
    found.learn_speed(MODEL, 100, 25.0)  # between the speed alone, 30, and in a full queue, 20
    assert found.mu_short_of(MODEL) == pytest.approx(40.0)
    slower = learner(MEASURED)
    slower.learn_speed(MODEL, 100, 10.0)
    assert slower.mu_short_of(MODEL) == pytest.approx(80.0)
    faster = learner(MEASURED)
    faster.learn_speed(MODEL, 100, 3000.0)
    assert faster.mu_short_of(MODEL) == pytest.approx(10.0)  # no further than a factor of four


def test_what_was_learned_before_a_profile_was_measured_changes_nothing_of_it() -> None:
    before = learner()
    for _ in range(MIN_QUEUED):
        before.learn_speed(MODEL, 100, 7.0)
        before.learn_short(MODEL, 5.0, 8.0)
    found = learner(PROFILE, learned=before.learned)
    assert found.tau_of(MODEL) == (120.0, "profile gemma@ollama")
    found.learn_speed(MODEL, 100, 15.0)
    assert found.tau_of(MODEL) == (240.0, "profile gemma@ollama, decoding slower since")


def test_one_absurd_answer_does_not_make_a_machine_fast() -> None:
    found = learner(PROFILE)
    for _ in range(10):
        found.learn_speed(MODEL, 100, 25.0)
    found.learn_speed(MODEL, 100, 99_999.0)
    assert found.learned.models[MODEL].decode_tokens_per_s == pytest.approx(25.0, rel=0.1)


def test_each_model_has_its_own_tau_and_an_unknown_one_the_first() -> None:
    other = replace(PROFILE, name="big", served=replace(PROFILE.served, model="big:latest"))
    mu_short = PROFILE.mu_short_s
    assert mu_short is not None
    other = replace(other, mu_short_s=replace(mu_short, mean=100.0))
    found = learner(PROFILE, other)
    assert found.mu_short_of("big") == 100.0
    assert found.mu_short_of(MODEL) == found.mu_short_of("never seen") == 40.0


def test_what_was_learned_outlives_the_learner() -> None:
    first = learner(PROFILE)
    for _ in range(200):
        first.learn_short(MODEL, 50.0, 60.0)
    assert learner(PROFILE, learned=first.learned).tau_of(MODEL) == first.tau_of(MODEL)


def test_clients_cannot_make_it_remember_without_end() -> None:
    found = learner(PROFILE)
    for number in range(1000):
        found.learn_short(f"model-{number}", 5.0, 8.0)
    assert len(found.learned.models) <= 50


async def test_tau_is_logged_when_it_has_changed_by_a_tenth_at_most_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    daemon = daemon_parts("mac")
    daemon.remember(Kept())
    saver = daemon.state_saver
    assert saver is not None

    def logged(wait_s: float, after_s: float) -> int:
        daemon.now[0] += after_s
        here = replace_struct(USE, server_id=daemon.pool.first.id)
        for _ in range(200):
            daemon.compared(Compared(ended(model=MODEL, last=here, service_s=1.0), 0.0, wait_s))
        saver.follow()
        return sum("tau is" in record.message for record in caplog.records)

    with caplog.at_level(logging.INFO, "clairvoyant"):
        assert logged(20.0, 100.0) == 1
        assert logged(20.0, 100.0) == 1, "it is the same"
        assert logged(0.1, 1.0) == 2
        assert logged(20.0, 30.0) == 2, "too soon"
        assert logged(20.0, 60.0) == 3


@pytest.mark.parametrize(
    ("state", "models", "cache", "said"),
    [
        (b'{"models":{"m":{"queued":3},"n":{"queued":"x"}},"cache_tokens":[5,null]}', ["m"], 5.0, "a model"),
        (b'{"models":[],"cache_tokens":[5,null]}', [], 5.0, "models"),
        (b'{"models":{"m":{"queued":3}},"cache_tokens":7}', ["m"], 0.0, "cache_tokens"),
        (b"\x00", [], 0.0, "all of it"),
    ],
)
def test_a_part_of_a_state_that_cannot_be_read_is_left_out_alone(
    state: bytes, models: list[str], cache: float, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "clairvoyant"):
        learned = learned_of(state)
    assert (list(learned.models), learned.cache_tokens[0]) == (models, cache)
    assert [line.partition(" cannot")[0] for line in caplog.messages] == [f"learned state: {said}"]
