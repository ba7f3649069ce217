"""What cannot be served in time is refused at the door; what is promised is counted."""

import pytest

from clairvoyant_cli.config import ServeConfig
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.proxy.queue.ended import Outcome
from clairvoyant_cli.proxy.queue.exchange import Exchange
from clairvoyant_cli.proxy.queue.service_level import MIN_RECENT, ServiceLevel, objective_of
from clairvoyant_cli.proxy.requests.admission import Refused
from tests.fakes.daemon_parts import DaemonParts, daemon_parts


@pytest.mark.parametrize(
    ("text", "share", "ttft_s"),
    [("ttft-p95=2s", 0.95, 2.0), ("ttft-p99=500ms", 0.99, 0.5), ("ttft-p99.9=1.5s", 0.999, 1.5)],
)
def test_a_service_level_is_read(text: str, share: float, ttft_s: float) -> None:
    found = objective_of(text)
    assert found == pytest.approx((share, ttft_s))
    assert ServeConfig(slo=text).slo == text


@pytest.mark.parametrize("text", ["", "ttft-p95", "ttft-p95=2", "p95=2s", "ttft-p5=2s", "ttft-p95=2 s"])
def test_what_is_no_service_level_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ClairvoyantError, match="ttft-p95=2s"):
        ServeConfig(slo=text)


def promising(text: str, *servers: str) -> tuple[DaemonParts, ServiceLevel]:
    parts = daemon_parts(*servers, capacity=100, slo=text)
    assert parts.service_level is not None
    return parts, parts.service_level


async def test_what_the_forecast_says_comes_too_late_is_told_when_to_come_back() -> None:
    parts, level = promising("ttft-p95=5s")
    running = parts.queued("0.5")  # 400 tokens at 30 a second
    refused = parts.ask("0.5")
    assert isinstance(refused, Refused)
    assert refused.refusal.status == 503
    assert "ttft-p95=5s" in refused.refusal.message
    assert running.attempt is not None
    ends_s = running.attempt.expected_s
    retry_s = refused.refusal.retry_after_s
    assert retry_s is not None
    assert (ends_s - 5.0) / 2.0 <= retry_s <= ends_s - 5.0 + 1.2  # the median of the forecast
    parts.now[0] += ends_s
    parts.dispatcher.end(running, Outcome.COMPLETED, 200)
    parts.queued("0.5")
    assert level.refused == 1


async def test_a_free_server_refuses_nobody_and_a_second_one_halves_the_wait() -> None:
    parts, level = promising("ttft-p95=5s", "mac", "rtx")
    for _ in range(2):
        parts.queued("0.5")
    assert isinstance(parts.ask("0.5"), Refused)
    assert level.refused == 1


async def test_what_never_could_be_in_time_is_let_in() -> None:
    parts, level = promising("ttft-p95=50ms")
    parts.queued("0.5")
    parts.queued("0.5")
    assert level.refused == 0


def served(parts: DaemonParts, after_s: float, client: str = "ann") -> Exchange:
    exchange = parts.queued("0.1", client=client)
    parts.now[0] += after_s
    parts.dispatcher.end(exchange, Outcome.CLIENT_CANCELLED, 499)
    return exchange


async def test_violations_are_counted_by_class_and_client_and_an_alert_comes_and_goes() -> None:
    parts, level = promising("ttft-p90=5s")
    for number in range(MIN_RECENT):
        served(parts, 6.0 if number % 2 else 1.0)
    state = parts.snapshot().service_level
    assert state is not None
    assert state.alert
    [short] = state.classes
    assert (short.judged, short.missed) == (MIN_RECENT, MIN_RECENT // 2)
    assert level.missed_by_client["ann"] == MIN_RECENT // 2
    [said] = [each for each in parts.journal.events if "objective" in each.text]
    assert "is not met" in said.text
    assert said.level == "warning"
    for _ in range(5 * MIN_RECENT):
        served(parts, 1.0)
    assert not level.alerting
    said = parts.journal.events[-1]
    assert "met again" in said.text


async def test_names_that_somebody_makes_up_keep_nobody_from_being_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("clairvoyant_cli.proxy.access.clients.MAX_CLIENTS", 50)
    parts, level = promising("ttft-p90=5s")
    for number in range(60):
        served(parts, 6.0, f"made up {number}")
    for _ in range(3):
        served(parts, 6.0)
    assert level.missed_by_client["ann"] == 3
    assert len(level.missed_by_client) <= 50


async def test_forecasts_are_corrected_by_what_became_of_them() -> None:
    parts, level = promising("ttft-p95=5s")
    for _ in range(40):
        served(parts, 3.0)  # an idle server, and yet nobody has a token in 3 s
    parts.queued("0.1 runs")
    parts.now[0] += 0.01
    assert level.refused == 0
    assert isinstance(parts.ask("0.1"), Refused)


async def test_while_no_server_is_there_nothing_is_forecast() -> None:
    parts, level = promising("ttft-p95=5s")
    parts.becomes("mac", "down")
    parts.queued("0.5")
    assert level.refused == 0
