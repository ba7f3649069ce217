"""What follows from what happens to a request, without a socket: an event goes in, a command comes out."""

from dataclasses import replace

import pytest

from clairvoyant_cli.protocols.can_continue import Continuable
from clairvoyant_cli.protocols.model_settings import ModelSettings
from clairvoyant_cli.protocols.routes import Shape
from clairvoyant_cli.protocols.splice import Splice
from clairvoyant_cli.proxy.queue.ended import Outcome
from clairvoyant_cli.proxy.queue.exchange import (
    AttemptEnd,
    DisplacedError,
    DrainingError,
    OperatorCancelledError,
    OutageError,
)
from clairvoyant_cli.proxy.requests.refusals import SHUTTING_DOWN, STOPPED
from clairvoyant_cli.proxy.requests.serving_rules import (
    MAX_REPEATS,
    Answered,
    ClientLeft,
    Failed,
    Finish,
    NotGranted,
    WaitAgain,
)
from profiles.records import Continuation, Served
from tests.fakes.daemon_parts import daemon_parts, named
from tests.fakes.remembered import PROFILE

PROOF = Continuation("raw", trials=24, exact=24, resume_s=0.001, fingerprint="f")

UNREACHABLE = Failed(AttemptEnd.UNREACHABLE, "connection refused")
NOT_READY = Failed(AttemptEnd.NOT_READY)


@pytest.mark.parametrize(
    ("event", "outcome"),
    [
        (Answered(200), Outcome.COMPLETED),
        (Answered(404), Outcome.UPSTREAM_ERROR),
        (Answered(500), Outcome.UPSTREAM_ERROR),
        (Answered(200, failed=True), Outcome.UPSTREAM_ERROR),
    ],
)
async def test_an_answer_ends_it_and_frees_the_slot(event: Answered, outcome: Outcome) -> None:
    parts = daemon_parts()
    first, second = parts.queued("first"), parts.queued("second")
    assert parts.after(first, event) == Finish(outcome, event.status)
    assert parts.on(second) == "mac"


async def test_what_no_worker_took_up_goes_back_and_is_granted_again() -> None:
    parts = daemon_parts()
    exchange = parts.queued("patient")
    parts.becomes("mac", "down", "connection refused")
    assert parts.after(exchange, UNREACHABLE) == WaitAgain(AttemptEnd.UNREACHABLE)
    assert parts.on(exchange) == ""
    parts.becomes("mac", "up")
    assert parts.on(exchange) == "mac"
    assert [each.end for each in exchange.attempts] == [AttemptEnd.UNREACHABLE, None]
    assert exchange.waited_s(parts.now[0]) == 0.0


@pytest.mark.parametrize("event", [UNREACHABLE, NOT_READY])
async def test_who_comes_back_from_a_worker_while_all_goes_down_is_sent_away(event: Failed) -> None:
    parts = daemon_parts()
    exchange = parts.queued("x")
    parts.operation.draining = parts.operation.stopping = True
    assert parts.after(exchange, event) == Finish(Outcome.REJECTED, 503, SHUTTING_DOWN)


async def test_an_answer_that_broke_off_unnoticed_is_asked_for_twice_more() -> None:
    parts = daemon_parts()
    exchange, lost = parts.queued("x"), Failed(AttemptEnd.BROKEN, "the connection ended", repeatable=True)
    for _ in range(MAX_REPEATS):
        assert isinstance(parts.after(exchange, lost), WaitAgain)
        assert parts.on(exchange) == "mac"
    assert isinstance(parts.after(exchange, lost), Finish)
    assert exchange.repeats == MAX_REPEATS


async def test_an_answer_that_broke_off_is_asked_for_elsewhere_first() -> None:
    parts = daemon_parts("mac", "rtx", "pi", "off", slots=4)
    parts.becomes("off", "down")
    exchange, lost = parts.queued("x"), Failed(AttemptEnd.BROKEN, "the connection ended", repeatable=True)
    asked = [parts.on(exchange)]
    while isinstance(parts.after(exchange, lost), WaitAgain):
        parts.becomes("off", "down", "still")  # the queue is matched with the servers again
        asked.append(parts.on(exchange))
    assert sorted(asked) == ["mac", "pi", "rtx"]


async def test_a_request_with_which_two_servers_went_down_is_not_sent_again() -> None:
    parts = daemon_parts("mac", "rtx", "pi")
    exchange, lost = parts.queued("x"), Failed(AttemptEnd.BROKEN, "the connection ended", repeatable=True)
    commands = []
    for _ in range(2):
        assert exchange.attempt is not None
        exchange.attempt.server_gone = True
        parts.becomes(parts.on(exchange), "down")
        commands.append(parts.after(exchange, lost))
    assert [type(command) for command in commands] == [WaitAgain, Finish]


async def test_an_answer_that_streams_goes_on_where_the_same_model_is_proved_to() -> None:
    parts = daemon_parts("mac", "rtx", "pi")
    for name in ("mac", "pi"):
        named(parts.pool, name).profiles = (
            replace(PROFILE, served=Served("ollama", "m"), continuations=(PROOF,)),
        )
        named(parts.pool, name).settings = {"m:latest": ModelSettings("f")}
    parts.becomes("rtx", "down")
    parts.becomes("pi", "down")
    exchange = parts.queued("x")
    parts.becomes("rtx", "up")
    parts.becomes("pi", "up")
    exchange.splice = Splice(Continuable(Shape.OLLAMA_CHAT, {}, streamed=True))
    exchange.splice.pieces.append("One")
    parts.becomes("mac", "down")
    parts.after(exchange, Failed(AttemptEnd.BROKEN, "the connection ended", 200, repeatable=True))
    assert parts.on(exchange) == "pi"


async def test_what_its_client_would_notice_is_not_sent_again() -> None:
    parts = daemon_parts()
    command = parts.after(parts.queued("x"), Failed(AttemptEnd.BROKEN, "the connection ended"))
    assert isinstance(command, Finish)
    assert (command.outcome, command.status) == (Outcome.UPSTREAM_ERROR, 502)
    begun = parts.after(parts.queued("y"), Failed(AttemptEnd.BROKEN, "the connection ended", status=200))
    assert isinstance(begun, Finish)
    assert begun.status == 200


async def test_a_client_that_leaves_before_it_is_sent_costs_no_slot() -> None:
    parts = daemon_parts()
    first, second = parts.queued("first"), parts.queued("second")
    assert parts.after(first, ClientLeft()) == Finish(Outcome.CLIENT_CANCELLED, 499)
    assert parts.on(second) == "mac"


async def test_a_client_that_leaves_in_mid_answer_leaves_the_slot_at_work() -> None:
    parts = daemon_parts()
    first, second = parts.queued("first"), parts.queued("second")
    assert parts.after(first, ClientLeft(at_work=True)) == Finish(Outcome.CLIENT_CANCELLED, 499, at_work=True)
    assert parts.on(second) == ""
    await parts.tasks[0]
    assert parts.on(second) == "mac"


async def test_a_client_that_leaves_with_the_last_event_had_its_answer() -> None:
    parts = daemon_parts()
    command = parts.after(parts.queued("x"), ClientLeft(at_work=True, heard_all=True, status=200))
    assert command == Finish(Outcome.COMPLETED, 200, at_work=True)
    await parts.tasks[0]


async def test_what_we_end_as_we_go_down_is_not_its_clients_doing() -> None:
    parts = daemon_parts()
    exchange = parts.queued("x")
    parts.operation.draining = parts.operation.stopping = True
    parts.operation.stopped = True
    command = parts.after(exchange, ClientLeft(at_work=True, status=200))
    assert command == Finish(Outcome.REJECTED, 200, at_work=True)
    await parts.tasks[0]


@pytest.mark.parametrize(("status", "failures"), [(404, 0), (400, 0), (500, 2)])
async def test_an_answer_that_refuses_is_no_success_and_only_a_servers_error_counts_against_it(
    status: int, failures: int
) -> None:
    parts = daemon_parts()
    for number in range(2):
        exchange = parts.queued(f"x{number}")
        command = parts.after(exchange, Answered(status))
        assert command == Finish(Outcome.UPSTREAM_ERROR, status)
    assert named(parts.pool, "mac").health.failures == failures
    counts = parts.journal.counts
    assert (counts["completed"], counts["upstream_error"]) == (0, 2)


async def test_what_the_operator_stops_is_told_so() -> None:
    parts = daemon_parts()
    exchange = parts.queued("x")
    exchange.stopped_by_operator = True
    command = parts.after(exchange, ClientLeft(at_work=True))
    assert command == Finish(Outcome.OPERATOR_CANCELLED, 499, STOPPED, at_work=True)
    await parts.tasks[0]


@pytest.mark.parametrize(
    ("why", "outcome", "words"),
    [
        (TimeoutError(), Outcome.TIMEOUT, "no slot became free within 3 s"),
        (DisplacedError(), Outcome.REJECTED, "the queue is full"),
        (DrainingError(), Outcome.REJECTED, "shutting down"),
        (OutageError(), Outcome.REJECTED, "is not reachable"),
        (OperatorCancelledError(), Outcome.OPERATOR_CANCELLED, "canceled by the operator"),
    ],
)
async def test_who_gets_no_slot_is_told_why(why: Exception, outcome: Outcome, words: str) -> None:
    parts = daemon_parts(max_wait_s=3.0)
    parts.queued("runs")
    command = parts.after(parts.queued("waits"), NotGranted(why))
    assert isinstance(command, Finish)
    assert command.outcome is outcome
    assert command.refusal is not None
    assert words in command.refusal.message
    assert words in parts.stats.recent[-1].remark
    assert len(parts.dispatcher.scheduler) == 0


async def test_nothing_ends_twice() -> None:
    parts = daemon_parts()
    exchange = parts.queued("x")
    parts.after(exchange, Answered(200))
    parts.after(exchange, Failed(AttemptEnd.BROKEN, "late news"))
    counts = parts.journal.counts
    assert (counts["completed"], counts["upstream_error"]) == (1, 0)
