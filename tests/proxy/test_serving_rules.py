"""What follows from what happens to a request, without a socket: an event goes in, a command comes out."""

from dataclasses import replace

import pytest

from clairvoyant_cli.protocols.can_continue import Continuable
from clairvoyant_cli.protocols.model_settings import ModelSettings
from clairvoyant_cli.protocols.routes import Shape
from clairvoyant_cli.protocols.splice import Splice
from clairvoyant_cli.proxy.queue.exchange import (
    AttemptEnd,
    DisplacedError,
    DrainingError,
    OperatorCancelledError,
    OutageError,
    Outcome,
)
from clairvoyant_cli.proxy.requests.refusals import GOING_DOWN, STOPPED
from clairvoyant_cli.proxy.requests.serving_rules import (
    MAX_REPEATS,
    Abandon,
    Answered,
    BrokenOff,
    ClientLeft,
    Finish,
    NotGranted,
    NotTaken,
    WaitAgain,
)
from profiles.records import Continuation, Served
from tests.fakes.remembered import PROFILE
from tests.fakes.rooms import rooms

PROOF = Continuation("raw", trials=24, exact=24, resume_s=0.001, warm_s=0.001, fingerprint="f")

UNREACHABLE = NotTaken(AttemptEnd.UNREACHABLE, "connection refused")
NOT_READY = NotTaken(AttemptEnd.NOT_READY)


@pytest.mark.parametrize(
    ("event", "outcome"),
    [
        (Answered(200), Outcome.COMPLETED),
        (Answered(404), Outcome.COMPLETED),
        (Answered(500), Outcome.UPSTREAM_ERROR),
        (Answered(200, failed=True), Outcome.UPSTREAM_ERROR),
    ],
)
async def test_an_answer_ends_it_and_frees_the_slot(event: Answered, outcome: Outcome) -> None:
    house = rooms()
    first, second = house.queued("first"), house.queued("second")
    assert house.after(first, event) == Finish(outcome, event.status)
    assert house.on(second) == "mac"


async def test_what_no_worker_took_up_goes_back_and_is_granted_again() -> None:
    house = rooms()
    exchange = house.queued("patient")
    house.becomes("mac", "down", "connection refused")
    assert house.after(exchange, UNREACHABLE) == WaitAgain(AttemptEnd.UNREACHABLE)
    assert house.on(exchange) == ""
    house.becomes("mac", "up")
    assert house.on(exchange) == "mac"
    assert [each.end for each in exchange.attempts] == [AttemptEnd.UNREACHABLE, None]
    assert exchange.waited_s(house.now[0]) == 0.0


async def test_another_worker_takes_what_the_first_one_could_not() -> None:
    house = rooms("mac", "rtx")
    first, second = house.queued("0.2 a"), house.queued("0.2 b")
    assert {house.on(first), house.on(second)} == {"mac", "rtx"}
    lost, other = (first, second) if house.on(first) == "mac" else (second, first)
    house.becomes("mac", "down")
    assert house.after(lost, UNREACHABLE) == WaitAgain(AttemptEnd.UNREACHABLE)
    assert house.on(lost) == ""
    house.after(other, Answered(200))
    assert house.on(lost) == "rtx"


async def test_a_server_that_was_never_there_keeps_nobody() -> None:
    house = rooms()
    house.pool.first.seen = False
    command = house.after(house.queued("x"), UNREACHABLE)
    assert isinstance(command, Finish)
    assert (command.outcome, command.status) == (Outcome.UPSTREAM_ERROR, 503)
    assert command.refusal is not None
    assert "is not reachable (connection refused)" in command.refusal.message


@pytest.mark.parametrize("event", [UNREACHABLE, NOT_READY])
async def test_who_comes_back_from_a_worker_while_all_goes_down_is_sent_away(event: NotTaken) -> None:
    house = rooms()
    exchange = house.queued("x")
    house.operation.go_down()
    assert house.after(exchange, event) == Finish(Outcome.REJECTED, 503, GOING_DOWN)


async def test_who_comes_back_after_the_grace_is_told_that_the_server_is_away() -> None:
    house = rooms()
    exchange = house.queued("x")
    house.becomes("mac", "loading", "loading its model")
    house.pool.first.outage._expire()
    command = house.after(exchange, NOT_READY)
    assert isinstance(command, Finish)
    assert command.outcome is Outcome.UPSTREAM_ERROR
    assert command.refusal is not None
    assert "(loading its model)" in command.refusal.message


async def test_an_answer_that_broke_off_unnoticed_is_asked_for_twice_more() -> None:
    house = rooms()
    exchange, lost = house.queued("x"), BrokenOff("the connection ended", repeatable=True)
    for _ in range(MAX_REPEATS):
        assert isinstance(house.after(exchange, lost), WaitAgain)
        assert house.on(exchange) == "mac"
    assert isinstance(house.after(exchange, lost), Finish)
    assert exchange.repeats == MAX_REPEATS


async def test_a_request_with_which_two_servers_went_down_is_not_sent_again() -> None:
    house = rooms("mac", "rtx", "pi")
    exchange, lost = house.queued("x"), BrokenOff("the connection ended", repeatable=True)
    commands = []
    for _ in range(2):
        assert exchange.attempt is not None
        exchange.attempt.server_gone = True
        house.becomes(house.on(exchange), "down")
        commands.append(house.after(exchange, lost))
    assert [type(command) for command in commands] == [WaitAgain, Finish]


async def test_an_answer_that_streams_goes_on_where_the_same_model_is_proved_to() -> None:
    house = rooms("mac", "rtx", "pi")
    for name in ("mac", "pi"):
        house.pool[name].profiles = (replace(PROFILE, served=Served("ollama", "m"), continuations=(PROOF,)),)
        house.pool[name].settings = {"m:latest": ModelSettings("f")}
    house.becomes("rtx", "down")
    house.becomes("pi", "down")
    exchange = house.queued("x")
    house.becomes("rtx", "up")
    house.becomes("pi", "up")
    exchange.splice = Splice(Continuable(Shape.OLLAMA_CHAT, {}, streamed=True))
    exchange.splice.pieces.append("One")
    house.becomes("mac", "down")
    house.after(exchange, BrokenOff("the connection ended", 200, repeatable=True))
    assert house.on(exchange) == "pi"


async def test_what_its_client_would_notice_is_not_sent_again() -> None:
    house = rooms()
    command = house.after(house.queued("x"), BrokenOff("the connection ended"))
    assert isinstance(command, Finish)
    assert (command.outcome, command.status) == (Outcome.UPSTREAM_ERROR, 502)
    begun = house.after(house.queued("y"), BrokenOff("the connection ended", status=200))
    assert isinstance(begun, Finish)
    assert begun.status == 200


async def test_a_client_that_leaves_before_it_is_sent_costs_no_slot() -> None:
    house = rooms()
    first, second = house.queued("first"), house.queued("second")
    assert house.after(first, ClientLeft()) == Finish(Outcome.CLIENT_CANCELLED, 499)
    assert house.on(second) == "mac"


async def test_a_client_that_leaves_in_mid_answer_leaves_the_slot_at_work() -> None:
    house = rooms()
    first, second = house.queued("first"), house.queued("second")
    assert house.after(first, ClientLeft(at_work=True)) == Abandon(Outcome.CLIENT_CANCELLED, 499)
    assert house.on(second) == ""
    await house.tasks[0]
    assert house.on(second) == "mac"


async def test_a_client_that_leaves_with_the_last_event_had_its_answer() -> None:
    house = rooms()
    command = house.after(house.queued("x"), ClientLeft(at_work=True, heard_all=True, status=200))
    assert command == Abandon(Outcome.COMPLETED, 200)
    await house.tasks[0]


async def test_what_we_end_as_we_go_down_is_not_its_clients_doing() -> None:
    house = rooms()
    exchange = house.queued("x")
    house.operation.go_down()
    house.operation.stopped = True
    command = house.after(exchange, ClientLeft(at_work=True, status=200))
    assert command == Abandon(Outcome.REJECTED, 200)
    await house.tasks[0]


async def test_what_the_operator_stops_is_told_so() -> None:
    house = rooms()
    exchange = house.queued("x")
    exchange.stopped_by_operator = True
    command = house.after(exchange, ClientLeft(at_work=True))
    assert command == Abandon(Outcome.CLIENT_CANCELLED, 499, STOPPED)
    await house.tasks[0]


@pytest.mark.parametrize(
    ("why", "outcome", "words"),
    [
        (TimeoutError(), Outcome.TIMEOUT, "no slot became free within 3 s"),
        (DisplacedError(), Outcome.REJECTED, "the queue is full"),
        (DrainingError(), Outcome.REJECTED, "shutting down"),
        (OutageError(), Outcome.UPSTREAM_ERROR, "is not reachable"),
        (OperatorCancelledError(), Outcome.CLIENT_CANCELLED, "canceled by the operator"),
    ],
)
async def test_who_gets_no_slot_is_told_why(why: Exception, outcome: Outcome, words: str) -> None:
    house = rooms(max_wait_s=3.0)
    house.queued("runs")
    command = house.after(house.queued("waits"), NotGranted(why))
    assert isinstance(command, Finish)
    assert command.outcome is outcome
    assert command.refusal is not None
    assert words in command.refusal.message
    assert len(house.dispatcher.scheduler) == 0


async def test_nothing_ends_twice() -> None:
    house = rooms()
    exchange = house.queued("x")
    house.after(exchange, Answered(200))
    house.after(exchange, BrokenOff("late news"))
    counts = house.stats.counters()
    assert (counts.completed, counts.upstream_error) == (1, 0)
