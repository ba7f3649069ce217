"""Several workers behind one queue, without a socket: their states change, the queue follows."""

import pytest

from clairvoyant_cli.proxy.exchange import AttemptEnd, OutageError
from clairvoyant_cli.proxy.serving_rules import Answered, NotTaken, WaitAgain
from tests.fakes.rooms import rooms


async def test_work_goes_where_a_slot_is_free() -> None:
    house = rooms("mac", "rtx", slots=2)
    workers = [house.on(house.queued(f"0.5 number {n}")) for n in range(5)]
    assert sorted(workers) == ["", "mac", "mac", "rtx", "rtx"]


async def test_two_servers_of_a_kind_stand_side_by_side() -> None:
    house = rooms("upstairs", "downstairs")
    assert [worker.name for worker in house.pool] == ["upstairs", "downstairs"]
    assert (house.pool.slots, len(house.pool)) == (2, 2)
    first = house.queued("x")
    assert house.pool.worker_of(first).name == house.on(first)


async def test_a_worker_that_is_down_takes_no_work() -> None:
    house = rooms("mac", "rtx")
    house.becomes("mac", "down")
    exchanges = [house.queued(f"0.5 number {n}") for n in range(2)]
    assert [house.on(each) for each in exchanges] == ["rtx", ""]
    house.becomes("mac", "up")
    assert house.on(exchanges[1]) == "mac"


async def test_a_worker_that_was_never_there_takes_none_while_another_is() -> None:
    house = rooms("mac", "rtx")
    house.pool["rtx"].backend.seen = False
    house.becomes("mac", "up")
    house.pool["rtx"].backend.state = "down"
    house.becomes("mac", "up")
    exchanges = [house.queued(f"0.5 number {n}") for n in range(2)]
    assert [house.on(each) for each in exchanges] == ["mac", ""]
    house.becomes("mac", "down")
    assert house.after(exchanges[0], NotTaken(AttemptEnd.UNREACHABLE)) == WaitAgain(AttemptEnd.UNREACHABLE)
    assert [house.on(each) for each in exchanges] == ["", ""]


async def test_slots_are_numbered_a_worker() -> None:
    house = rooms("mac", "rtx", slots=2)
    slots: dict[str, list[int]] = {}
    for number in range(4):
        attempt = house.queued(f"0.5 number {number}").attempt
        assert attempt is not None
        slots.setdefault(attempt.worker, []).append(attempt.slot)
    assert {name: sorted(taken) for name, taken in slots.items()} == {"mac": [0, 1], "rtx": [0, 1]}


async def test_what_waits_is_given_up_only_when_every_worker_is() -> None:
    house = rooms("mac", "rtx")
    for name in ("mac", "rtx"):
        house.becomes(name, "down")
    waiting = house.queued("patient")
    house.pool["mac"].outage._expire()
    assert not waiting.granted.done()
    house.pool["rtx"].outage._expire()
    with pytest.raises(OutageError):
        waiting.granted.result()


async def test_one_that_was_never_there_keeps_nobody_waiting() -> None:
    house = rooms("mac", "rtx")
    house.pool["rtx"].backend.seen = False
    house.becomes("mac", "down")
    house.pool["rtx"].backend.state = "down"
    house.pool.changed(house.pool["rtx"])
    waiting = house.queued("patient")
    assert house.on(waiting) == ""
    house.pool["mac"].outage._expire()
    with pytest.raises(OutageError):
        waiting.granted.result()


async def test_a_worker_that_comes_back_ends_the_outage() -> None:
    house = rooms("mac")
    house.becomes("mac", "down")
    house.pool["mac"].outage._expire()
    assert house.pool.given_up
    house.becomes("mac", "up")
    assert not house.pool.given_up


async def test_one_is_sent_to_a_worker_that_says_it_is_loading_to_see() -> None:
    house = rooms("mac")
    house.becomes("mac", "loading")
    first, second = house.queued("0.1 first"), house.queued("0.2 second")
    assert (house.on(first), house.on(second)) == ("", "")
    house.pool.try_one(house.pool["mac"])
    assert (house.on(first), house.on(second)) == ("mac", "")


async def test_speeds_are_learned_of_the_worker_that_answered() -> None:
    house = rooms("mac", "rtx")
    exchange = house.queued("x")
    attempt = exchange.attempt
    assert attempt is not None
    attempt.totals = type(attempt.totals)(tokens=100, decode_s=1.0, complete=True)
    house.after(exchange, Answered(200))
    speeds = {worker.name: worker.backend.speeds.decode_tokens_per_s for worker in house.pool}
    other = next(name for name in speeds if name != attempt.worker)
    assert (speeds[attempt.worker], speeds[other]) == (100.0, None)
