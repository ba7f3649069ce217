"""Who is let in, without a socket: a request comes to the door, a verdict comes back."""

import pytest

from clairvoyant_cli.protocols.request_parsing import ParsedRequest
from clairvoyant_cli.proxy.access.clients import Clients
from clairvoyant_cli.proxy.queue.exchange import Exchange
from clairvoyant_cli.proxy.requests.admission import EMBEDDING, PassOn, ReadBody, Refused
from predictor.record import UNKNOWN, PromptView, Task
from tests.fakes.daemon_parts import asking, daemon_parts, named


def refused(verdict: object) -> tuple[int, str]:
    assert isinstance(verdict, Refused)
    return verdict.refusal.status, verdict.refusal.message


async def test_a_chat_is_read_a_list_is_passed_on_and_a_tunnel_refused() -> None:
    door = daemon_parts().admission.judge_head
    assert isinstance(door(asking("/api/chat")), ReadBody)
    assert isinstance(door(asking("/api/tags", b"GET")), PassOn)
    assert refused(door(asking("127.0.0.1:443", b"CONNECT"))) == (
        405,
        "clairvoyant: CONNECT is not supported",
    )


async def test_a_title_lets_the_question_pass_that_it_comes_along_with() -> None:
    parts = daemon_parts()
    title = parts.queued("### Task:\nGenerate a concise title for the chat.")
    question = parts.queued("0.9 essay")
    assert (parts.on(title), parts.on(question)) == ("", "mac")
    tags = daemon_parts().queued("### Task:\nGenerate 1-3 broad tags for the chat.")
    assert tags.attempt is not None, "it comes after the answer, and need not wait"


async def test_the_operators_word_holds_for_a_client_whoever_else_comes() -> None:
    parts = daemon_parts()
    parts.queued("0.9 runs", client="x")
    waits = parts.queued("0.9 essay", client="curl")
    assert not parts.say_of("curl", background=True)
    for number in range(2_000):
        parts.stats.tokens.add(f"n{number}")
    parts._take_clients(Clients())  # the file is read again
    again = parts.queued("0.1 short", client="curl")
    assert [each.job.background_levels for each in (waits, again)] == [10, 10]
    assert not parts.say_of("curl", background=False)
    title = parts.queued("### Task:\nGenerate a concise title", client="curl")
    assert [each.job.background_levels for each in (waits, again, title)] == [0, 0, 0]
    assert "no client 'nobody' has sent anything" in parts.say_of("nobody", background=True)


async def test_its_cost_is_the_time_that_the_fastest_worker_needs() -> None:
    parts = daemon_parts("slow", "fast")
    named(parts.pool, "slow").speeds.decode_tokens_per_s = 10.0
    named(parts.pool, "fast").speeds.decode_tokens_per_s = 100.0
    exchange = parts.queued("0.0 fifty tokens")
    assert exchange.job.cost_s == pytest.approx(50 / 100 + 4 / 500)
    assert exchange.attempt is not None
    expected_s = parts.pool.by_id[exchange.attempt.run.server_id].speeds.seconds(4.0, 50.0)
    assert exchange.attempt.expected_s == pytest.approx(expected_s)


async def test_what_cannot_be_read_or_only_embeds_is_not_predicted() -> None:
    parts = daemon_parts()
    door = parts.admission.judge_head(asking())
    assert isinstance(door, ReadBody)
    unread = parts.admission.enqueue(asking(), door, ParsedRequest())
    embeds = parts.admission.enqueue(asking(), door, ParsedRequest(view=PromptView("x", task=Task.EMBEDDING)))
    assert isinstance(unread, Exchange)
    assert isinstance(embeds, Exchange)
    assert (unread.asked.prediction, embeds.asked.prediction) == (UNKNOWN, EMBEDDING)


async def test_what_asks_for_nothing_needs_no_slot() -> None:
    parts = daemon_parts()
    door = parts.admission.judge_head(asking())
    assert isinstance(door, ReadBody)
    request = asking()
    assert isinstance(parts.admission.enqueue(request, door, ParsedRequest(bypass="load")), PassOn)
    assert not request.scheduled
    assert parts.journal.counts["submitted"] == 0


async def test_more_than_can_wait_are_not_even_read() -> None:
    parts = daemon_parts(capacity=1)
    asks = ReadBody(parts.admission.judge_head(asking()).route, "ann")
    with parts.admission.entering(asks) as first, parts.admission.entering(asks) as second:
        assert (first, second) == (None, None)
        with parts.admission.entering(asks) as third:
            assert refused(third) == (503, "clairvoyant: the queue is full")
    with parts.admission.entering(asks) as again:
        assert again is None
