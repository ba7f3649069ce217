"""llama.cpp's router: its models, their slots, and that no question loads a model."""

import json
from typing import Any

import pytest

from clairvoyant_cli.backends.adapter import Status
from clairvoyant_cli.backends.adapters import adapter_of
from clairvoyant_cli.backends.discovery import identify, locate_server
from clairvoyant_cli.backends.kinds.llamacpp import ROUTER
from clairvoyant_cli.backends.prober import Prober
from clairvoyant_cli.protocols.request_parsing import ParsedRequest
from clairvoyant_cli.protocols.usage import Totals
from clairvoyant_cli.proxy.servers.loaded_models import LoadedModels
from clairvoyant_cli.scheduler.job import Job
from clairvoyant_cli.scheduler.policy import POLICIES
from clairvoyant_cli.scheduler.queue import Scheduler
from tests.fakes.scripted_upstream import answer, answering

LOADED = {"a": "loaded", "b": "unloaded", "c": "loading"}


class FakeRouter:
    """The answers of llama-server b11549 with `--models-dir`; `loads` has what was loaded by a question."""

    def __init__(self, slots: int = 2, most: int = 1) -> None:
        self.slots, self.most, self.states = slots, most, dict(LOADED)
        self.asked: list[str] = []

    def __call__(self, target: str) -> list[bytes]:
        path, _, query = target.partition("?")
        self.asked.append(target)
        if path == "/health":
            return [answer(b'{"status": "ok"}')]
        if path == "/v1/models":
            data: list[Any] = [
                {"id": name, "aliases": [f"{name}-alias"], "status": {"value": state}}
                for name, state in self.states.items()
            ]
            return [answer(json.dumps({"data": data}).encode())]
        if path == "/props" and not query:
            told = {"role": "router", "max_instances": self.most, "build_info": "b1", "model_alias": "llama"}
            return [answer(json.dumps(told).encode())]
        name, *rest = query.removeprefix("model=").split("&")
        if query and rest != ["autoload=false"]:
            self.states[name] = "loaded"
        if path not in ("/props", "/slots") or self.states.get(name) != "loaded":
            return [answer(b"{}", status="400 Bad Request")]
        busy = [{"id": n, "is_processing": n == 1, "id_task": 7} for n in range(self.slots)]
        told = {
            "total_slots": self.slots,
            "model_alias": name,
            "default_generation_settings": {"n_ctx": 2048},
        }
        return [answer(json.dumps(told if path == "/props" else busy).encode())]


async def test_a_router_is_llamacpp_and_tells_its_models_and_slots_without_loading_any() -> None:
    router, status = FakeRouter(), Status()
    async with answering(router) as url, Prober() as prober:
        found = await identify(prober, url)
        assert found is not None
        assert (found.adapter.name, found.version) == ("llamacpp", "b1")
        assert found.adapter is ROUTER
        ask = prober.asking(url)
        await found.adapter.refresh(ask, status)
        assert (status.state, status.detail, status.slots, status.model_slots) == ("up", "", 2, 2)
        assert [(each.name, each.context) for each in status.models] == [("a", 2048)]
        assert await found.adapter.busy_slots(ask) == frozenset({(1, 7)})
        assert await found.adapter.settings(ask, "b", "b1") is None
        assert await found.adapter.settings(ask, "a", "b1") is not None
        await found.adapter.list_models(ask, status)
        assert set(status.offered or ()) == set("abc")
        assert status.aliases == {"a-alias": "a", "b-alias": "b", "c-alias": "c"}
    assert router.states == LOADED


async def test_a_router_that_loads_several_models_has_slots_for_each() -> None:
    router, status = FakeRouter(slots=2, most=0), Status()
    async with answering(router) as url, Prober() as prober:
        found, _ = await locate_server(url, prober)
        await found.adapter.refresh(prober.asking(url), status)
        assert (status.slots, status.model_slots, status.most_models) == (6, 2, 3)
        router.states |= {"a": "unloaded", "b": "loaded"}
        await found.adapter.refresh(prober.asking(url), status)
        assert (status.swaps, [each.name for each in status.models]) == (1, ["b"])


def queue_of(slots: int, model_slots: int, room: int, *affinities: str) -> Scheduler:
    queue = Scheduler(POLICIES["sjf"], servers={"r": slots}, load_s={"a": 5.0, "b": 5.0, "c": 5.0})
    queue.fleet.servers["r"].model_slots = model_slots
    queue.fleet.residency.set_room("r", room)
    queue.fleet.residency.set("r", frozenset("a"))
    for number, affinity in enumerate(affinities):
        queue.submit(Job(f"{affinity}{number}", 0.0, cost_s=1.0 + number / 10, affinity=affinity), 0.0)
    return queue


def starts(queue: Scheduler, now: float = 1.0) -> list[str]:
    begun = []
    while (dispatch := queue.next(now)) is not None:
        begun.append(dispatch.job.id)
    return begun


def test_a_model_gets_no_more_slots_than_it_has() -> None:
    assert starts(queue_of(4, 2, 2, "a", "a", "a", "b")) == ["a0", "a1", "b3"]
    assert starts(queue_of(4, 0, 2, "a", "a", "a", "b")) == ["a0", "a1", "a2", "b3"]


def test_nothing_for_the_loaded_model_starts_while_the_server_waits_to_swap() -> None:
    queue = queue_of(3, 3, 1, "a", "b")
    assert starts(queue) == ["a0", "b1"]  # b waits in the server for a's end
    queue.submit(Job("a2", 1.0, cost_s=0.1, affinity="a"), 1.0)
    assert starts(queue) == []
    queue.submit(Job("b3", 1.0, cost_s=9.0, affinity="b"), 1.0)
    assert starts(queue) == ["b3"]
    for each in ("a0", "b1", "b3"):
        queue.finish(each, 9.0)
    assert starts(queue, 60.0) == ["a2"]


def test_another_model_waits_while_a_fresh_one_answers_the_burst_that_it_was_loaded_for() -> None:
    queue = queue_of(2, 2, 1, "b", "c")
    assert starts(queue, 0.0) == ["b0"]  # c would wait in the server, and keep out the next b
    queue.submit(Job("b2", 1.0, cost_s=9.0, affinity="b"), 1.0)
    assert starts(queue, 1.0) == ["b2"]
    queue.finish("b0", 7.0)
    assert starts(queue, 7.0) == []
    queue.finish("b2", 8.0)
    assert starts(queue, 8.0) == ["c1"]  # nothing needs b now


def test_another_model_waits_until_the_first_one_on_an_empty_server_is_loaded() -> None:
    queue = queue_of(2, 2, 1, "new", "a")
    queue.fleet.residency.set("r", frozenset())
    queue.fleet.residency.unknown_s = 8.0
    assert starts(queue) == ["new0"]
    queue.fleet.residency.loaded("r", "new0")
    assert starts(queue) == []  # while it stays


def test_another_model_starts_beside_one_that_has_stayed_its_time() -> None:
    queue = queue_of(2, 2, 1, "b", "c")
    assert starts(queue, 0.0) == ["b0"]
    queue.fleet.residency.loaded("r", "b0")
    assert starts(queue, 19.0) == []
    assert queue.deferring  # nothing that happens at the server tells that its time is over
    assert starts(queue, 21.0) == ["c1"]  # 5 s to load, and three times that


def test_nothing_for_the_loaded_model_starts_while_a_model_is_loaded_for_the_first_time() -> None:
    """The router ends the loaded model between two requests; one that comes then fails."""
    queue = queue_of(2, 2, 1, "a", "new")
    queue.fleet.residency.unknown_s = 8.0
    assert starts(queue) == ["a0", "new1"]
    queue.submit(Job("a2", 1.0, cost_s=0.1, affinity="a"), 1.0)
    queue.finish("a0", 2.0)
    assert starts(queue, 2.0) == []
    queue.fleet.residency.not_loaded("r", "new1")  # there is no such model
    queue.finish("new1", 3.0)
    assert starts(queue, 3.0) == ["a2"]


def test_a_model_that_is_loaded_beside_another_leaves_it_loaded() -> None:
    queue = queue_of(2, 1, 2, "b")
    assert starts(queue) == ["b0"]
    assert (queue.fleet.residency.price_s("r", "a"), queue.fleet.residency.price_s("r", "b")) == (0.0, 0.0)


@pytest.mark.parametrize(("streaming", "load_s"), [(True, 6.0), (False, 4.0)])
def test_a_load_is_seen_by_the_time_before_the_answer(streaming: bool, load_s: float) -> None:
    queue = queue_of(1, 1, 1, "b")
    models = LoadedModels(queue, "r", adapter_of("other").known_as)
    assert starts(queue) == ["b0"]
    attempt: Any = type("Attempt", (), {"first_byte_s": 8.0})
    attempt.usage = type("Usage", (), {"streaming": streaming})
    attempt.run = type("Run", (), {"started_s": 1.0, "job": queue.running["b0"].job})
    attempt.totals = Totals(prefill_s=1.0, decode_s=2.0)
    attempt.asked = type("Asked", (), {"parsed": ParsedRequest("b")})
    models.answered(attempt, 200)
    assert queue.fleet.residency.load_s["b"] == load_s


def test_of_two_routers_with_the_same_model_the_idle_one_swaps() -> None:
    queue = queue_of(2, 0, 1, "b")
    assert starts(queue, 0.0) == ["b0"]
    queue.fleet.residency.loaded("r", "b0")
    queue.fleet.set_slots("s", 1)
    queue.fleet.residency.set_room("s", 1)
    queue.fleet.residency.dispatched("s", "before", "b", 0.0)
    queue.fleet.residency.loaded("s", "before")  # it must stay, too, but nothing runs there
    queue.submit(Job("c1", 1.0, cost_s=0.1, affinity="c"), 1.0)
    dispatch = queue.next(1.0)
    assert dispatch is not None
    assert (dispatch.job.id, dispatch.server_id) == ("c1", "s")


def test_of_two_routers_only_the_one_that_waits_to_swap_refuses_its_loaded_model() -> None:
    queue = queue_of(3, 3, 1, "a", "b")
    assert starts(queue) == ["a0", "b1"]
    queue.fleet.set_slots("s", 1)
    queue.fleet.residency.set_room("s", 1)
    queue.fleet.residency.set("s", frozenset("b"))
    queue.submit(Job("a2", 1.0, cost_s=0.1, affinity="a"), 1.0)
    dispatch = queue.next(60.0)
    assert dispatch is not None
    assert (dispatch.job.id, dispatch.server_id) == ("a2", "s")
