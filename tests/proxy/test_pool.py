"""Several workers behind one queue, without a socket: their states change, the queue follows."""

import pytest

from clairvoyant_cli.protocols.can_continue import Continuable
from clairvoyant_cli.protocols.routes import Shape
from clairvoyant_cli.protocols.splice import Splice
from clairvoyant_cli.proxy.queue.exchange import AttemptEnd, OutageError
from clairvoyant_cli.proxy.requests.admission_rules import Refused
from clairvoyant_cli.proxy.requests.serving_rules import Answered, BrokenOff, CutOff, NotTaken, WaitAgain
from clairvoyant_cli.proxy.servers.health import TROUBLE_AFTER
from clairvoyant_cli.proxy.servers.matching import given_up
from tests.fakes.rooms import Rooms, rooms


async def test_work_goes_where_a_slot_is_free() -> None:
    house = rooms("mac", "rtx", slots=2)
    workers = [house.on(house.queued(f"0.5 number {n}")) for n in range(5)]
    assert sorted(workers) == ["", "mac", "mac", "rtx", "rtx"]


async def test_two_servers_of_a_kind_stand_side_by_side() -> None:
    house = rooms("upstairs", "downstairs")
    assert [worker.name for worker in house.pool] == ["upstairs", "downstairs"]
    assert (house.pool.slots, len(house.pool)) == (2, 2)
    first = house.queued("x")
    assert house.pool.server_of(first).name == house.on(first)


async def test_a_worker_that_is_down_takes_no_work() -> None:
    house = rooms("mac", "rtx")
    house.becomes("mac", "down")
    exchanges = [house.queued(f"0.5 number {n}") for n in range(2)]
    assert [house.on(each) for each in exchanges] == ["rtx", ""]
    house.becomes("mac", "up")
    assert house.on(exchanges[1]) == "mac"


async def test_a_worker_that_was_never_there_takes_none_while_another_is() -> None:
    house = rooms("mac", "rtx")
    house.pool["rtx"].seen = False
    house.becomes("mac", "up")
    house.pool["rtx"].state = "down"
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
    house.pool["rtx"].seen = False
    house.becomes("mac", "down")
    house.pool["rtx"].state = "down"
    house.lifecycle.changed(house.pool["rtx"])
    waiting = house.queued("patient")
    assert house.on(waiting) == ""
    house.pool["mac"].outage._expire()
    with pytest.raises(OutageError):
        waiting.granted.result()


async def test_a_worker_that_comes_back_ends_the_outage() -> None:
    house = rooms("mac")
    house.becomes("mac", "down")
    house.pool["mac"].outage._expire()
    assert given_up(house.pool)
    house.becomes("mac", "up")
    assert not given_up(house.pool)


async def test_one_is_sent_to_a_worker_that_says_it_is_loading_to_see() -> None:
    house = rooms("mac")
    house.becomes("mac", "loading")
    first, second = house.queued("0.1 first"), house.queued("0.2 second")
    assert (house.on(first), house.on(second)) == ("", "")
    house.lifecycle.try_one(house.pool["mac"])
    assert (house.on(first), house.on(second)) == ("mac", "")


async def test_speeds_are_learned_of_the_worker_that_answered() -> None:
    house = rooms("mac", "rtx")
    exchange = house.queued("x")
    attempt = exchange.attempt
    assert attempt is not None
    attempt.totals = type(attempt.totals)(tokens=100, decode_s=1.0, complete=True)
    house.after(exchange, Answered(200))
    speeds = {worker.name: worker.speeds.decode_tokens_per_s for worker in house.pool}
    other = next(name for name in speeds if name != attempt.worker)
    assert (speeds[attempt.worker], speeds[other]) == (100.0, None)


def offers(house: Rooms, **models: set[str]) -> None:
    """Let workers say which models they have."""
    for name, offered in models.items():
        backend = house.pool[name]
        backend.offered = frozenset(map(backend.adapter.known_as, offered))
        house.lifecycle.changed(house.pool[name])


async def test_a_request_goes_to_who_has_its_model_and_waits_for_it() -> None:
    house = rooms("mac", "rtx")
    offers(house, mac={"small"}, rtx={"small", "large:70b"})
    first, second = house.queued("0.5 a", model="large:70b"), house.queued("0.5 b", model="LARGE:70b")
    assert (house.on(first), house.on(second)) == ("rtx", "")
    assert house.on(house.queued("0.9 c", model="small")) == "mac"
    house.after(first, Answered(200))
    assert house.on(second) == "rtx"


async def test_what_nobody_has_is_sent_on_for_its_404() -> None:
    house = rooms("mac", "rtx")
    offers(house, mac={"small"}, rtx={"large"})
    assert [house.on(house.queued(f"0.5 {n}", model="none")) for n in range(2)] == ["mac", "rtx"]


async def test_a_model_that_comes_while_it_is_waited_for_is_found() -> None:
    house = rooms("mac", "rtx")
    offers(house, mac={"small"}, rtx={"large"})
    house.queued("0.5 a", model="large")
    waits = house.queued("0.5 b", model="large")
    assert house.on(waits) == ""
    offers(house, mac={"small", "large"})
    assert house.on(waits) == "mac"


async def test_what_one_alone_could_serve_is_refused_when_that_is_given_up() -> None:
    house = rooms("mac", "rtx")
    offers(house, mac={"small"}, rtx={"large"})
    house.becomes("rtx", "down")
    waits = house.queued("0.5 a", model="large")
    house.pool["rtx"].outage._expire()
    with pytest.raises(OutageError):
        waits.granted.result()
    refused = house.ask("0.5 b", model="large")
    assert isinstance(refused, Refused)
    assert "9001 is not reachable" in refused.refusal.message
    assert house.on(house.queued("0.5 c", model="small")) == "mac"


async def test_one_that_drains_ends_what_it_has_and_what_waits_for_it_alone() -> None:
    house = rooms("mac", "rtx")
    offers(house, mac={"small"}, rtx={"small", "large"})
    runs, waits = house.queued("0.5 a", model="large"), house.queued("0.5 b", model="large")
    house.lifecycle.drain("rtx")
    refused = house.ask("0.5 c", model="large")
    assert isinstance(refused, Refused)
    assert (refused.refusal.status, "only rtx can" in refused.refusal.message) == (503, True)
    house.after(runs, Answered(200))
    assert house.on(waits) == "rtx"
    house.after(waits, Answered(200))
    others = [house.queued(f"0.5 {n}", model="small") for n in range(2)]
    assert [house.on(each) for each in others] == ["mac", ""]
    house.lifecycle.bring_up("rtx")
    assert house.on(others[1]) == "rtx"


async def test_what_was_cut_on_one_that_drains_goes_on_there() -> None:
    house = rooms("mac", "rtx")
    occupied, cut = house.queued("0.1 a"), house.queued("0.9 b")
    on = house.on(cut)
    house.after(cut, CutOff())
    house.lifecycle.remove(on)
    assert house.on(cut) == on
    assert house.pool[on].standing == "leaving"
    house.after(cut, Answered(200))
    assert [worker.name for worker in house.pool] == [house.on(occupied)]


async def test_one_that_is_removed_while_it_is_away_holds_up_nobody() -> None:
    house = rooms("mac", "rtx")
    offers(house, mac={"small"}, rtx={"large"})
    cut = house.queued("0.9 a", model="large")
    cut.splice = Splice(Continuable(Shape.OLLAMA_CHAT, {}, streamed=True))
    cut.splice.pieces.append("One")
    house.after(cut, CutOff())
    house.becomes("rtx", "down")
    house.after(cut, NotTaken(AttemptEnd.UNREACHABLE))
    waits = house.queued("0.5 b", model="large")
    house.lifecycle.remove("rtx")
    assert [worker.name for worker in house.pool] == ["mac"]
    assert house.on(waits) == "mac"  # which answers that it has no such model
    with pytest.raises(OutageError):
        cut.granted.result()


async def test_the_last_one_stays() -> None:
    house = rooms("mac", "rtx")
    house.queued("0.5 a", model="m")
    house.lifecycle.remove("mac")
    with pytest.raises(ValueError, match="rtx"):
        house.lifecycle.remove("rtx")


async def test_one_that_fails_at_once_does_not_draw_all_the_work() -> None:
    house = rooms("mac", "rtx")
    well = house.queued("0.5 long")
    on_mac = house.on(well)
    other = next(worker.name for worker in house.pool if worker.name != on_mac)
    failed = 0
    while failed < 10 and house.on(bad := house.queued(f"0.5 {failed}")) == other:
        house.after(bad, BrokenOff("it broke", 500))
        failed += 1
    assert failed == TROUBLE_AFTER
    assert house.pool[other].standing == "resting"
    house.pool[other].health._rested()
    assert house.on(bad) == other, "it is tried with one"
    house.after(bad, Answered(200))
    assert house.pool[other].standing != "resting"


async def test_one_that_is_alone_is_trusted_whatever_it_does() -> None:
    house = rooms("mac")
    for number in range(2 * TROUBLE_AFTER):
        failing = house.queued(f"0.5 {number}")
        assert house.on(failing) == "mac"
        house.after(failing, Answered(500))


async def test_one_that_comes_back_is_given_one_and_then_twice_as_many() -> None:
    house = rooms("mac", "rtx", slots=4)
    house.becomes("rtx", "down")
    house.becomes("rtx", "up")
    exchanges = [house.queued(f"0.5 {number}") for number in range(8)]

    def at_work() -> int:
        return sum(house.on(each) == "rtx" for each in exchanges)

    assert at_work() == 1
    house.pool["rtx"].health.began()
    assert at_work() == 2
    house.pool["rtx"].health.began()
    assert at_work() == 4
