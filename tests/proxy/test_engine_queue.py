"""The queue inside an engine: whether it heeds the numbers shows in who begins before whom."""

from dataclasses import replace
from operator import itemgetter

from clairvoyant_cli.proxy.queue.exchange import Attempt, Exchange
from clairvoyant_cli.proxy.servers.engine_queue import JUDGED, EngineQueues
from tests.fakes.rooms import Rooms, rooms


class House:
    """An engine without a socket, to which requests are sent and which begins to answer them."""

    def __init__(self) -> None:
        self.rooms: Rooms = rooms("engine", slots=200, kind="vllm")
        self.worker = self.rooms.pool["engine"]
        self.worker.annotate = "on"
        self.said: list[str] = []
        self.queues = EngineQueues(
            self.rooms.dispatcher, self.rooms.pool, lambda _, news: self.said.append(news)
        )

    def sent(self, at_s: float, number: int) -> tuple[Exchange, Attempt]:
        self.rooms.now[0] = at_s
        exchange = self.rooms.queued("0.5 a page")
        exchange.asked = replace(exchange.asked, parsed=replace(exchange.asked.parsed, stream=True))
        attempt = exchange.attempt
        assert attempt is not None
        attempt.priority = number
        return exchange, attempt

    def race(self, at_s: float, *, first_begins_s: float, second_begins_s: float) -> None:
        """Send one of a worse number, then one of a better; they begin so long after the first came."""
        sent = (self.sent(at_s, 9), first_begins_s), (self.sent(at_s + 1.0, 1), second_begins_s)
        for each, after_s in sorted(sent, key=itemgetter(1)):
            self.begins(each, at_s + after_s)

    def begins(self, sent: tuple[Exchange, Attempt], at_s: float) -> None:
        sent[1].first_byte_s = at_s
        self.queues.begun(*sent, at_s)


async def test_an_engine_that_lets_the_better_number_pass_heeds_it() -> None:
    house = House()
    for turn in range(JUDGED):
        house.race(1000.0 * turn, first_begins_s=6.0, second_begins_s=5.0)
    assert house.queues.heeded(house.worker) == 1.0
    assert house.said == []


async def test_one_that_keeps_to_the_order_of_arrival_is_found_out_once() -> None:
    house = House()
    for turn in range(JUDGED + 5):
        house.race(1000.0 * turn, first_begins_s=60.0, second_begins_s=61.0)
    assert house.queues.heeded(house.worker) == 0.0
    assert len(house.said) == 1
    assert "--scheduling-policy priority" in house.said[0]


async def test_who_came_while_another_was_being_started_proves_nothing() -> None:
    house = House()
    for turn in range(JUDGED):
        house.race(1000.0 * turn, first_begins_s=1.2, second_begins_s=2.0)
    assert house.queues.heeded(house.worker) is None


async def test_what_waits_inside_ends_after_what_goes_before_it() -> None:
    house = House()
    house.worker.slots = 1
    runs, late, soon = house.sent(0.0, 5), house.sent(1.0, 9), house.sent(2.0, 1)
    house.begins(runs, 2.5)
    took = {each[0].id: each[1].expected_s for each in (runs, late, soon)}
    ends = house.queues.ends_in_s(3.5)
    left_s = took[runs[0].id] - 1.0
    assert ends[runs[0].id] == left_s
    assert ends[soon[0].id] == left_s + took[soon[0].id]
    assert ends[late[0].id] == left_s + took[soon[0].id] + took[late[0].id]
