"""With two models and a slow load, the queue does not go back and forth between them."""

import json
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from clairvoyant_cli.backends.adapters import adapter_of
from clairvoyant_cli.backends.kinds.ollama import full_name
from clairvoyant_cli.protocols.request_parsing import ParsedRequest
from clairvoyant_cli.protocols.usage import Totals
from clairvoyant_cli.proxy.queue.exchange import Asked, Attempt, Phase
from clairvoyant_cli.proxy.servers.loaded_models import ASSUMED_LOAD_S, MAX_AFFINITIES, LoadedModels
from clairvoyant_cli.proxy.servers.pool import ServerPool
from clairvoyant_cli.proxy.servers.server import Server
from clairvoyant_cli.scheduler.job import Job
from clairvoyant_cli.scheduler.policy import DEFAULT_POLICY, POLICIES
from clairvoyant_cli.scheduler.queue import Scheduler
from predictor.record import UNKNOWN
from tests.fakes.raw_http import post, raw_client
from tests.fakes.replay_backend import Engine, Replay, tabled
from tests.fakes.serving import replaying


class Record:
    """As much of an attempt as residency looks at."""

    def __init__(self, model: str, affinity: str = "", number: int = 0) -> None:
        self.run = SimpleNamespace()
        self.run.job = Job(f"{model}-{number}", float(number), cost_s=1.0, affinity=affinity or model)
        route = adapter_of("ollama").route_of(b"POST", "/api/chat")
        self.asked = Asked(route, ParsedRequest(model=model), UNKNOWN)
        self.totals = Totals()
        self.phase = Phase.CONNECTING
        self.first_byte_s = None


def asked(model: str, affinity: str = "", number: int = 0) -> Attempt:
    return cast(Attempt, Record(model, affinity, number))


def scheduler() -> Scheduler:
    return Scheduler(POLICIES[DEFAULT_POLICY], servers={"ollama": 1})


def learned_s(queue: Scheduler, *answers: tuple[float | None, int]) -> float:
    """Return the price of "a" after answers that said so long a load, with such a status."""
    residents = LoadedModels(queue, "ollama")
    exchange = asked("a")
    for load_s, status in answers:
        cast(Any, exchange).totals = replace(exchange.totals, load_s=load_s)
        residents.answered(exchange, status)
    return queue.fleet.residency.price_s("another server", "a")


def test_what_a_load_took_is_learned_and_a_warm_answer_teaches_nothing() -> None:
    assert learned_s(scheduler()) == ASSUMED_LOAD_S
    assert learned_s(scheduler(), (0.02, 200)) == ASSUMED_LOAD_S
    assert learned_s(scheduler(), (14.0, 200), (None, 200), (0.02, 200)) == 14.0
    assert learned_s(scheduler(), (14.0, 200), (400_000.0, 200)) == 14.0


def test_an_error_teaches_nothing() -> None:
    assert learned_s(scheduler(), (14.0, 404), (14.0, 500)) == ASSUMED_LOAD_S
    queue = scheduler()
    residents = LoadedModels(queue, "ollama")
    exchange = asked("a")
    cast(Any, exchange).totals = replace(exchange.totals, load_s=14.0, error=True)
    residents.answered(exchange, 200)
    assert queue.fleet.residency.load_s == {}


def test_the_servers_list_is_believed_unless_a_model_may_be_loading() -> None:
    queue = scheduler()
    residents = LoadedModels(queue, "ollama")
    first, second = asked("llama3", "llama3:latest num_ctx=8192"), asked("qwen")
    for each in (first, second):
        residents.answered(each, 200)
    second.phase = Phase.PREFILL
    residents.listed(["llama3:latest"], [second])
    assert queue.fleet.residency.price_s("ollama", first.run.job.affinity) > 0
    second.phase = Phase.DECODING
    residents.listed(["llama3:latest"], [second])
    assert queue.fleet.residency.price_s("ollama", first.run.job.affinity) == 0
    assert queue.fleet.residency.price_s("ollama", second.run.job.affinity) > 0


def test_what_the_server_lists_is_loaded_before_anybody_has_asked_for_it() -> None:
    queue = scheduler()
    residents = LoadedModels(queue, "ollama")
    residents.listed(["llama3:latest"], [])
    assert (
        queue.fleet.residency.price_s(
            "ollama", residents.affinity_of(ParsedRequest("llama3", affinity="llama3"))
        )
        == 0
    )
    assert queue.fleet.residency.load_s == {"llama3:latest": ASSUMED_LOAD_S}


@pytest.mark.parametrize(
    "name", ["m", "m:latest", "M:Latest", "library/m", "registry.ollama.ai/library/m", "Library/M:latest"]
)
def test_a_model_is_one_however_it_is_written(name: str) -> None:
    affinity = LoadedModels(scheduler(), "ollama").affinity_of
    assert affinity(ParsedRequest(name, affinity=name)) == "m:latest"
    assert affinity(ParsedRequest(name, affinity=f"{name} num_ctx=9")) == "m:latest num_ctx=9"
    assert affinity(ParsedRequest("", affinity="")) == ""
    assert full_name("host:5000/me/m") == "host:5000/me/m:latest"


@pytest.mark.parametrize("first", ["ollama", "router"])
def test_ollama_and_a_router_have_one_name_for_a_model(first: str) -> None:
    queue = Scheduler(POLICIES[DEFAULT_POLICY], servers={"ollama": 1, "router": 1})
    names: dict[str, dict[str, str]] = {"ollama": {}, "router": {"fast": "Qwen"}}
    pool = ServerPool(queue)
    for each in sorted(names, key=lambda name: name != first):
        known_as = partial(lambda of, model: of.get(model, model), names[each])
        loaded = LoadedModels(queue, each, known_as)
        loaded.listed({"ollama": ["llama3:latest"], "router": ["Qwen", "gpt"]}[each], [])
        lists = {"ollama": ["llama3"], "router": ["Qwen", "gpt", "fast"]}[each].__contains__
        pool.append(cast(Server, SimpleNamespace(loaded=loaded, has=lists)))
    for model, holder in (("llama3", "ollama"), ("Qwen", "router"), ("fast", "router"), ("gpt", "router")):
        affinity = pool.affinity_of(ParsedRequest(model, affinity=model))
        assert queue.fleet.residency.price_s(holder, affinity) == 0
        other = "ollama" if holder == "router" else "router"
        assert queue.fleet.residency.price_s(other, affinity) == ASSUMED_LOAD_S


def test_the_price_used_longest_ago_is_forgotten_when_there_are_too_many() -> None:
    queue = scheduler()
    residents = LoadedModels(queue, "ollama")
    mine = asked("mine")
    cast(Any, mine).totals = replace(mine.totals, load_s=14.0)
    residents.answered(mine, 200)
    for number in range(3 * MAX_AFFINITIES):
        residents.answered(asked(f"real-{number}"), 200)
        residents.answered(asked(f"junk-{number}"), 404)
        residents.answered(mine, 200)
    prices = queue.fleet.residency.load_s
    assert len(prices) == MAX_AFFINITIES == len(residents._affinity_of)
    assert prices["mine"] == 14.0
    assert {f"real-{3 * MAX_AFFINITIES - n}" for n in range(1, MAX_AFFINITIES)} == prices.keys() - {"mine"}


async def test_models_that_do_not_exist_keep_nobody_waiting() -> None:
    """Each 404 leaves what is loaded as it was, and the others' requests where they were."""
    backend = Replay(Engine(answer_tokens=tabled({"short": 3})), ("real:latest", "other:latest"))
    backend.engine.thaw()

    def body(model: str) -> bytes:
        asks = {"model": model, "messages": [{"role": "user", "content": "short"}], "stream": False}
        return post("/api/chat", json.dumps(asks).encode())

    async with replaying(backend) as daemon, raw_client(daemon.base_url) as client:
        residency = daemon.dispatcher.scheduler.fleet.residency

        def prices() -> list[float]:
            return [
                residency.price_s(daemon.pool.first.id, f"{name}:latest")
                for name in ("real", "other", "junk")
            ]

        assert (await client.ask(body("real"))).status == 200
        before = prices()
        assert before == [0.0, ASSUMED_LOAD_S, ASSUMED_LOAD_S]
        for number in range(5):
            assert (await client.ask(body("junk"))).status == 404
            assert (await client.ask(body(f"junk-{number}"))).status == 404
        assert prices() == before
        assert set(residency.load_s) == {"real:latest"}
        assert (await client.ask(body("other"))).status == 200
        assert prices()[1] == 0.0


def test_options_other_than_the_context_are_remembered() -> None:
    residents = LoadedModels(scheduler(), "ollama")
    assert residents.is_plain("a")
    for affinity, plain in (("a:latest num_ctx=8192", True), ("a:latest num_ctx=8192 num_gpu=9", False)):
        residents.answered(asked("a", affinity), 200)
        assert residents.is_plain("a") is plain
