"""With two models and a slow load, the queue does not go back and forth between them."""

from dataclasses import replace
from itertools import pairwise
from typing import cast

from clairvoyant_cli.proxy.exchange import Exchange, Phase
from clairvoyant_cli.proxy.protocols.answer import Totals
from clairvoyant_cli.proxy.protocols.facts import RequestFacts
from clairvoyant_cli.proxy.residents import ASSUMED_LOAD_S, Residents
from clairvoyant_cli.scheduler.job import Job
from clairvoyant_cli.scheduler.policy import DEFAULT_POLICY, POLICIES
from clairvoyant_cli.scheduler.queue import Scheduler


class Asked:
    """As much of an exchange as residency looks at."""

    def __init__(self, model: str, affinity: str = "", number: int = 0) -> None:
        self.facts = RequestFacts(model=model)
        self.job = Job(f"{model}-{number}", float(number), cost_s=1.0, affinity=affinity or model)
        self.totals = Totals()
        self.phase = Phase.QUEUED


def asked(model: str, affinity: str = "", number: int = 0) -> Exchange:
    return cast(Exchange, Asked(model, affinity, number))


def scheduler() -> Scheduler:
    return Scheduler(POLICIES[DEFAULT_POLICY], workers={"ollama": 1})


def test_a_loaded_model_is_served_before_another_is_loaded() -> None:
    queue = scheduler()
    residents = Residents(queue, "ollama")
    waiting = [asked("a" if number % 2 else "b", number=number) for number in range(8)]
    for each in waiting:
        residents.arrived(each)
        queue.submit(each.job, each.job.arrival_s)
    order = []
    for now in range(10, 18):
        dispatch = queue.next(float(now))
        assert dispatch is not None
        order.append(dispatch.job.affinity)
        queue.finish(dispatch.job.id, float(now))
    assert sum(one != other for one, other in pairwise(order)) == 1


def test_what_a_load_took_is_learned_and_a_warm_answer_teaches_nothing() -> None:
    queue = scheduler()
    residents = Residents(queue, "ollama")
    exchange = asked("a")
    residents.arrived(exchange)
    assert queue.residency.load_s["a"] == ASSUMED_LOAD_S
    exchange.totals = replace(exchange.totals, load_s=0.02)
    residents.answered(exchange)
    assert queue.residency.load_s["a"] == ASSUMED_LOAD_S
    exchange.totals = replace(exchange.totals, load_s=14.0)
    residents.answered(exchange)
    assert queue.residency.load_s["a"] == 14.0
    exchange.totals = replace(exchange.totals, load_s=400_000.0)
    residents.answered(exchange)
    assert queue.residency.load_s["a"] == 14.0


def test_the_servers_list_is_believed_unless_a_model_may_be_loading() -> None:
    queue = scheduler()
    residents = Residents(queue, "ollama")
    first, second = asked("llama3", "llama3 num_ctx=8192"), asked("qwen")
    for each in (first, second):
        residents.arrived(each)
        residents.answered(each)
    second.phase = Phase.PREFILL
    residents.listed(["llama3:latest"], [second])
    assert queue.residency.price_s("ollama", first.job.affinity) > 0
    second.phase = Phase.DECODING
    residents.listed(["llama3:latest"], [second])
    assert queue.residency.price_s("ollama", first.job.affinity) == 0
    assert queue.residency.price_s("ollama", second.job.affinity) > 0
