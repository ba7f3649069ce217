"""What is kept and learned of an ended request follows from its record alone."""

import msgspec
import pytest

from clairvoyant_cli.protocols.usage import Totals
from clairvoyant_cli.proxy.journal import Journal
from clairvoyant_cli.proxy.observing.metrics import Metrics, genai_attributes
from clairvoyant_cli.proxy.observing.queue_rows import STREAMED_ROWS
from clairvoyant_cli.proxy.observing.request_stats import RequestStats
from clairvoyant_cli.proxy.observing.request_views import finished_request, history_row
from clairvoyant_cli.proxy.queue.ended import NOWHERE, Ended, Outcome, PromptUse
from clairvoyant_cli.state.encoding import decode
from clairvoyant_cli.state.snapshot import AnswerPart
from tests.fakes.daemon_parts import daemon_parts
from tests.fakes.ended import ENDED, USE, ended

LEFT = ended(
    outcome=Outcome.CLIENT_CANCELLED,
    status=499,
    last=NOWHERE,
    uses=(),
    totals=Totals(),
    tokens=None,
    length_class="",
    counts=False,
    ttft_s=None,
    generated=0,
)


def test_statistics_count_times_of_whole_answers_and_slots_of_all_that_had_one() -> None:
    stats = RequestStats(Journal(lambda: 110.0, lambda: 1010.0))
    for of in (ENDED, LEFT):
        stats.ended(of)
    assert stats.journal.counts == {"completed": 1, "client_cancelled": 1}
    assert next((each.wait.n, each.wait.p50, each.sojourn.p50) for each in stats.stats()) == (1, 2.0, 7.0)
    assert stats.tokens["ann"] == 100
    assert stats.levels((), ())[2].wait.n == 1
    assert [row.outcome for row in stats.recent] == ["completed", "client_cancelled"]


def test_the_published_row_has_the_parts_of_an_answer_that_was_cut() -> None:
    assert finished_request(ENDED).parts == ()
    row = finished_request(ended(cuts=1))
    assert row.parts == (AnswerPart(1002.0, 1007.0, 9, "mac", 0),)
    assert (row.real_class, row.predicted.expected_tokens, row.expected_s) == ("short", 50.0, 3.0)
    assert (finished_request(LEFT).backend, finished_request(LEFT).slot) == ("", None)


@pytest.mark.parametrize(
    ("of", "kept"),
    [
        (ENDED, ("completed", "mac", 100, "short", "policy", "")),
        (LEFT, ("client_cancelled", "first", None, "", "", "")),
        (ended(tokens=None, length_class="", generated=40), ("completed", "mac", 40, "", "policy", "")),
        (ended(session="s"), ("completed", "mac", 100, "short", "policy", "abc-s")),
    ],
)
def test_the_history_has_tokens_as_far_as_they_came(of: Ended, kept: tuple[object, ...]) -> None:
    row = history_row(of, "sjf", "first")
    assert (row.outcome, row.backend, row.tokens, row.length_class, row.dispatched_by, row.session) == kept
    assert (row.request, row.policy, row.predicted_class, row.saved_s) == ("abc-1", "sjf", "short", None)


@pytest.mark.parametrize(("cached", "kept"), [(15, (5, 15)), (None, (None, None))])
def test_the_history_has_what_was_read_beside_what_was_cached_or_neither(
    cached: int | None, kept: tuple[int | None, int | None]
) -> None:
    row = history_row(ended(prompt=PromptUse(10.0, cached, 5)), "sjf", "first")
    assert (row.read_tokens, row.cached_tokens) == kept


def test_metrics_have_an_error_without_a_server() -> None:
    metrics, told = Metrics({}), genai_attributes(LEFT)
    assert told["error.type"] == "client_cancelled"
    assert (told["gen_ai.provider.name"], told["server.address"]) == ("clairvoyant", "")
    for of in (ENDED, LEFT, ENDED):
        metrics.ended(of)
    text = b"".join(metrics.render(daemon_parts().snapshot())).decode()
    assert (
        'clairvoyant_requests_total{code="499",endpoint="/api/chat",outcome="client_cancelled"} 1.0' in text
    )
    assert 'clairvoyant_backend_requests_total{backend="mac",outcome="completed"} 2.0' in text


async def test_speeds_are_learned_of_the_server_that_answered() -> None:
    parts = daemon_parts()
    speeds = parts.pool.first.speeds
    here = msgspec.structs.replace(USE, server_id=parts.pool.first.id)
    parts.times.ended(LEFT)
    assert speeds.decode_tokens_per_s is None
    whole = Totals(tokens=100, complete=True)  # the first byte tells how long it took
    parts.times.ended(ended(last=here, totals=whole))
    assert speeds.decode_tokens_per_s == pytest.approx(100 / 4.0)


async def test_a_full_queue_is_tried_again_by_the_time_that_requests_took() -> None:
    parts = daemon_parts(capacity=100)
    parts.dispatcher.scheduler.pause()
    for _ in range(100):
        parts.queued("0.1")
    assert parts.refusals.full().retry_after_s == 20.0
    parts.dispatcher.scheduler.tail.served_s.append(5.0)
    assert parts.refusals.full().retry_after_s == 50.0


async def test_a_dashboard_gets_the_first_rows_of_a_long_queue_and_the_totals_of_all() -> None:
    parts = daemon_parts(capacity=400)
    for number in range(STREAMED_ROWS + 44):
        parts.queued(f"0.{number % 10} x")
    streamed, whole = [
        decode(await each.next()) for each in (parts.control.streamed, parts.control.shared["state"])
    ]
    assert (len(streamed.queue), streamed.waits) == (STREAMED_ROWS, STREAMED_ROWS + 43)
    assert len(whole.queue) == whole.waits == streamed.waits
    assert [row.id for row in streamed.queue[:100]] == [row.id for row in whole.queue[:100]]
