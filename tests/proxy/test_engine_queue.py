"""The queue inside an engine: when what is inside it ends."""

from dataclasses import replace

from clairvoyant_cli.proxy.queue.exchange import Attempt, Exchange
from clairvoyant_cli.proxy.servers.engine_queue import EngineQueues
from tests.fakes.daemon_parts import DaemonParts, daemon_parts, named


class House:
    """An engine without a socket, to which requests are sent and which begins to answer them."""

    def __init__(self) -> None:
        self.daemon: DaemonParts = daemon_parts("engine", slots=200, kind="vllm")
        self.server = named(self.daemon.pool, "engine")
        self.server.annotate = "on"
        self.queues = EngineQueues(self.daemon.dispatcher, self.daemon.pool)

    def sent(self, at_s: float, number: int) -> tuple[Exchange, Attempt]:
        self.daemon.now[0] = at_s
        exchange = self.daemon.queued("0.5 a page")
        exchange.asked = replace(exchange.asked, parsed=replace(exchange.asked.parsed, stream=True))
        attempt = exchange.attempt
        assert attempt is not None
        attempt.priority = number
        return exchange, attempt

    def begins(self, sent: tuple[Exchange, Attempt], at_s: float) -> None:
        sent[1].first_byte_s = at_s
        self.daemon.dispatcher.scheduler.began(sent[0].id, at_s)


async def test_queued_request_inside_the_engine_ends_after_those_before_it() -> None:
    parts = House()
    parts.server.status.slots = 1
    runs, late, soon = parts.sent(0.0, 5), parts.sent(1.0, 9), parts.sent(2.0, 1)
    parts.begins(runs, 2.5)
    took = {each[0].id: each[1].expected_s for each in (runs, late, soon)}
    ends = parts.queues.ends_in_s(3.5)
    left_s = ends[runs[0].id]
    assert took[runs[0].id] - 1.0 <= left_s < took[runs[0].id]
    assert ends[soon[0].id] == left_s + took[soon[0].id]
    assert ends[late[0].id] == left_s + took[soon[0].id] + took[late[0].id]


async def test_answer_inside_the_engine_that_has_stopped_thinking_ends_sooner() -> None:
    parts = House()
    runs, _ = sent = parts.sent(0.0, 5)
    parts.begins(sent, 2.5)
    scheduler = parts.daemon.dispatcher.scheduler
    before_s = parts.queues.ends_in_s(3.0)[runs.id]
    scheduler.thought(runs.id, 20.0, 1.0, 1.0, 3.0)
    assert parts.queues.ends_in_s(3.0)[runs.id] == scheduler.running[runs.id].left_s(3.0) < before_s / 10.0
