"""Each server: how it is known, what it can do, how it refuses, and the slots that only its process shows."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import permutations, product
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from clairvoyant_cli.addresses import BACKEND_NAMES
from clairvoyant_cli.backends import process_inspection
from clairvoyant_cli.backends.adapter import Adapter, Found, Status
from clairvoyant_cli.backends.adapters import ADAPTERS, ADVISED, OTHER, PREFERRED, adapter_of
from clairvoyant_cli.backends.discovery import identify, recognise
from clairvoyant_cli.backends.kinds.llamacpp import ROUTER
from clairvoyant_cli.backends.prober import Prober
from clairvoyant_cli.protocols.can_continue import Continuable
from clairvoyant_cli.protocols.errors import Refusal
from clairvoyant_cli.protocols.probes import ProbeAnswer
from clairvoyant_cli.protocols.routes import Family, Route, Shape, Work
from tests.fakes.scripted_upstream import answer, answering
from tests.fakes.serving import serving, until

SERVERS = [*ADAPTERS, OTHER]
NAMED = pytest.mark.parametrize("adapter", SERVERS, ids=lambda adapter: adapter.name)

Pages = dict[str, tuple[str, object]]

LOADING = {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}
INFO = {"model_path": "m", "version": "0.5.4"}
VERSION = ("200 OK", {"version": "0.11.0"})
WANTS_A_KEY = ("401 Unauthorized", {"error": "Unauthorized"})
DYNAMOS = {"info": {"title": "NVIDIA Dynamo OpenAI Frontend", "version": "1.6.1"}}
SMGS = ("200 OK", {"version": "smg-1.13.0", "loads": []})
PYTHONS = {"title": "🦙 llama.cpp Python API", "version": "0.3.36"}
OMNIS = {"title": "MLX Omni Server", "version": "0.1.0"}
WEBUIS: Any = {"model_name": "m", "lora_names": [], "loader": "llama.cpp"}
LOCALAI_PAGE: Any = {"version": "v4.1.0", "endpoint_groups": {}}


def ok(body: object) -> tuple[str, object]:
    return "200 OK", body


MINE = ok({"data": [{"id": "m", "object": "model", "owned_by": "me"}]})
OLLAMAS: Pages = {"/api/version": ok({"version": "0.16.1"}), "/api/tags": ok({"models": []})}
KOBOLDS: Pages = {"/api/extra/version": ok({"result": "KoboldCpp", "version": "1.102"})}
TABBYS: Pages = {"/.well-known/serviceinfo": ok({"version": 0.1, "software": {"name": "TabbyAPI"}})}
LEMONADES: Pages = {"/api/v1/health": ok({"version": "11.7.0", "all_models_loaded": []})}
NO_MODELS: Pages = {"/v1/models": ("200 OK", {"data": []})}
VLLMS: Pages = {"/v1/models": ("200 OK", {"data": [{"id": "m", "object": "model", "owned_by": "vllm"}]})}
LOCALAIS: Pages = {"/v1/models": ("200 OK", {"data": [{"id": "m", "object": "model"}]})}

ANSWERS: list[tuple[str, str, int | None, Pages]] = [
    ("ollama", "0.40.1", None, {"/api/version": ("200 OK", {"version": "0.40.1"})}),
    ("llamacpp", "b1", 4, {"/props": ("200 OK", {"total_slots": 4, "build_info": "b1"})}),
    ("llamacpp", "", None, {"/props": ("503 Service Unavailable", LOADING)}),
    ("lmstudio", "", None, {"/api/v0/models": ("200 OK", {"data": []})}),
    ("jan", "", None, {"/v1/models": ("401 Unauthorized", "Invalid or missing authorization token")}),
    ("vllm", "0.11.0", None, VLLMS | {"/version": VERSION}),
    ("vllm", "0.11.0", None, {"/v1/models": WANTS_A_KEY, "/version": VERSION}),
    ("other", "", None, LOCALAIS | {"/version": VERSION}),
    ("dynamo", "1.6.1", None, NO_MODELS | {"/openapi.json": ("200 OK", DYNAMOS)}),
    ("other", "", None, LOCALAIS | {"/openapi.json": ("200 OK", DYNAMOS)}),
    ("smg", "1.13.0", None, NO_MODELS | {"/get_loads": SMGS, "/get_server_info": ("200 OK", INFO)}),
    ("sglang", "0.5.4", None, NO_MODELS | {"/get_server_info": ("200 OK", INFO)}),
    ("sglang", "0.5.4", None, NO_MODELS | {"/server_info": ("200 OK", INFO)}),
    ("mlx-lm", "", 4, LOCALAIS | {"/props": ("404 Not Found", "Not Found")}),
    ("mlx-lm", "", 4, {"/v1/models": ("200 OK", ""), "/props": ("404 Not Found", "Not Found")}),
    ("other", "", None, {"/v1/models": ("200 OK", "")}),
    ("vllm-mlx", "", None, {"/v1/models": ("200 OK", {"data": [{"id": "m", "owned_by": "vllm-mlx"}]})}),
    ("other", "", None, NO_MODELS),
    ("other", "", None, {"/version": VERSION, "/server_info": ("200 OK", INFO)}),
    ("other", "", None, {}),
    ("llama-cpp-python", "0.3.36", None, {"/openapi.json": ok({"info": PYTHONS}), "/v1/models": MINE}),
    ("koboldcpp", "1.102", 1, KOBOLDS),
    ("koboldcpp", "1.102", 1, KOBOLDS | OLLAMAS | {"/props": ok({"total_slots": 1})}),
    ("tabbyapi", "", 4, TABBYS | {"/props": ok({"total_slots": 4}), "/health": ok({"status": "healthy"})}),
    ("tabbyapi", "", None, TABBYS | {"/props": WANTS_A_KEY, "/v1/models": WANTS_A_KEY}),
    ("text-generation-webui", "", None, {"/v1/internal/model/info": ok(WEBUIS), "/v1/models": MINE}),
    ("mlx-omni-server", "", None, {"/openapi.json": ok({"info": OMNIS}), "/v1/models": MINE}),
    ("docker-model-runner", "", None, OLLAMAS | {"/v1/models": ok({"data": [{"owned_by": "docker"}]})}),
    (
        "docker-model-runner",
        "",
        None,
        OLLAMAS | NO_MODELS | {"/engines/status": ok({"llama.cpp": "running"})},
    ),
    ("lemonade", "11.7.0", None, OLLAMAS | LEMONADES | {"/api/v0/models": ok({"data": []})}),
    ("localai", "v4.1.0", None, OLLAMAS | LOCALAIS | {"/.well-known/localai.json": ok(LOCALAI_PAGE)}),
]


@pytest.mark.parametrize(
    ("name", "path", "answered", "busy"),
    [
        ("koboldcpp", "/api/extra/perf", {"idle": 0, "queue": 2}, {(0, None)}),
        ("koboldcpp", "/api/extra/perf", {"idle": 1, "queue": 0}, set()),
        ("koboldcpp", "/api/extra/perf", {}, None),
        (
            "llamacpp",
            "/slots",
            [{"state": 0, "task_id": 1}, {"state": 1, "task_id": 7}],
            {(1, 7)},
        ),  # llamafile
    ],
)
async def test_a_kind_reports_which_slots_are_busy_in_its_own_way(
    name: str, path: str, answered: object, busy: object
) -> None:
    async with Prober() as prober, pages_of({path: ok(answered)}) as url:
        assert await adapter_of(name).busy_slots(prober.asking(url)) == busy


async def test_a_server_that_questions_disturb_is_never_asked_for_its_models() -> None:
    pages = {"/openapi.json": ok({"info": PYTHONS}), "/v1/models": MINE}
    asked: list[str] = []

    def said(path: str) -> list[bytes]:
        asked.append(path)
        status, body = pages.get(path, ("404 Not Found", {}))
        return [answer(json.dumps(body).encode(), status=status)]

    async with answering(said) as url, serving(f"python={url},other={url}/below") as daemon:
        server = daemon.pool.copy()[0]
        await until(daemon, lambda _: server.confirmed)
        looks = asked.count("/openapi.json")
        server.probe_due.set()
        await until(daemon, lambda _: asked.count("/openapi.json") > looks)
        assert (server.adapter.name, server.status.state) == ("llama-cpp-python", "up")
    assert "/v1/models" not in asked


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("docker-model-runner", "/anthropic/v1/messages"),
        ("lemonade", "/v0/chat/completions"),
        ("lemonade", "/api/v0/completions"),
        ("llama-cpp-python", "/v1/engines/copilot-codex/completions"),
    ],
)
def test_a_servers_other_paths_to_a_route_are_queued_as_well(name: str, path: str) -> None:
    assert adapter_of(name).route_of(b"POST", path).work is Work.GENERATE


async def test_a_model_that_an_imitator_of_ollama_has_loaded_is_known() -> None:
    loaded = {"models": [{"name": "ai/smollm2:latest"}]}
    slots = [{"id": number} for number in range(4)]
    pages = LEMONADES | {"/api/ps": ok(loaded), "/api/v1/slots": ok(slots)}
    async with Prober() as prober, pages_of(pages) as url:
        status = Status()
        await adapter_of("lemonade").refresh(prober.asking(url), status)
    assert ([model.name for model in status.models], status.slots) == (["ai/smollm2:latest"], 4)


def test_who_is_asked_first_preferred_and_advised_are_three_facts() -> None:
    assert tuple(adapter.name for adapter in PREFERRED if adapter.usual_ports) == BACKEND_NAMES
    assert [adapter.TURN for adapter in ADAPTERS] == sorted(adapter.TURN for adapter in PREFERRED)
    assert set(ADAPTERS) == set(PREFERRED)
    assert ADVISED is adapter_of("ollama")


def pages_of(pages: Pages) -> AbstractAsyncContextManager[str]:
    """Run a server that answers with these pages, and 404 elsewhere."""

    def said(path: str) -> list[bytes]:
        status, body = pages.get(path, ("404 Not Found", {}))
        text = body if isinstance(body, str) else json.dumps(body)
        return [answer(text.encode(), "Content-Type: application/json", status=status)]

    return answering(said)


@pytest.mark.parametrize(("name", "version", "slots", "pages"), ANSWERS)
async def test_a_server_is_known_by_what_it_answers(
    name: str, version: str, slots: int | None, pages: Pages
) -> None:
    prober = Prober()
    async with pages_of(pages) as url:
        assert await identify(prober, url) == Found(adapter_of(name), url, "", version, slots)
    await prober.close()


async def test_what_answers_in_plain_text_that_it_has_no_such_path_is_not_mlx() -> None:
    def said(path: str) -> list[bytes]:
        listed = json.dumps({"data": [{"id": "m", "object": "model"}]}).encode()
        plain = answer(b"Not Found", "Content-Type: text/plain; charset=utf-8", status="404 Not Found")
        return [answer(listed) if path == "/v1/models" else plain]

    async with Prober() as prober, answering(said) as url:
        assert await identify(prober, url) == Found(OTHER, url)


@pytest.mark.parametrize(
    ("name", "pages"), [("vllm", {"/version": VERSION}), ("sglang", {"/server_info": ("200 OK", INFO)})]
)
async def test_a_version_is_learnt_once_a_server_is_up(name: str, pages: Pages) -> None:
    prober = Prober()
    async with pages_of(pages) as url:
        status = Status()
        await adapter_of(name).refresh(prober.asking(url), status)
    await prober.close()
    assert (status.state, status.version) == ("up", pages.popitem()[1][1]["version"])  # type: ignore[index]


@pytest.mark.parametrize(
    ("pages", "name", "version"),
    [
        (VLLMS | {"/version": VERSION}, "vllm", "0.11.0"),
        (NO_MODELS, "other", ""),
        ({"/v1/models": ("502 Bad Gateway", {})}, None, ""),
    ],
)
async def test_a_server_that_comes_up_late_is_known_then(
    pages: Pages, name: str | None, version: str
) -> None:
    prober = Prober()
    async with pages_of(pages) as url:
        found = await recognise(prober, url)
    await prober.close()
    assert found == (None if name is None else Found(adapter_of(name), url, version=version))


async def test_who_answers_anything_is_not_taken_for_one_of_us() -> None:
    # LM Studio does, with 200 (lmstudio-ai/lmstudio-bug-tracker, 1323).
    models, unexpected = b'{"object":"list","data":[]}', b'{"error":"Unexpected endpoint or method."}'
    prober = Prober()
    async with answering(lambda path: [answer(models if path == "/api/v0/models" else unexpected)]) as url:
        found = await identify(prober, url)
    await prober.close()
    assert found == Found(adapter_of("lmstudio"), url)


async def test_who_never_answers_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def silent(
        self: Prober, upstream: object, prefix: str, path: str, timeout_s: float = 2.0, **_: Any
    ) -> Any:
        asked.append(path)
        await asyncio.sleep(0)
        return SimpleNamespace(status=0, text=None, body=None, why="no answer in time")

    monkeypatch.setattr(Prober, "_ask", silent)
    assert await identify(Prober(), "http://127.0.0.1:9") is None
    assert asked == ["/_clairvoyant/health", "/v1/models"]


async def test_questions_of_a_turn_are_asked_at_once_and_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    in_flight = most = 0

    async def slow(
        self: Prober, upstream: object, prefix: str, path: str, *rest: Any, **options: Any
    ) -> ProbeAnswer:
        nonlocal in_flight, most
        asked.append(path)
        in_flight += 1
        most = max(most, in_flight)
        for _ in range(5):
            await asyncio.sleep(0)
        in_flight -= 1
        return ProbeAnswer(404 if path.startswith("/_clairvoyant") else 0, why="no answer in time")

    monkeypatch.setattr(Prober, "_ask", slow)
    assert await identify(Prober(), "http://127.0.0.1:9") is None
    assert most > 1
    assert len(asked) == len(set(asked))


def body_of(adapter: Adapter, refusal: Refusal, family: Family) -> bytes:
    return adapter.render(refusal, Route(family, Work.PASS, Shape.OPAQUE))[1]


@NAMED
def test_every_refusal_has_the_shape_of_its_dialect(adapter: Adapter) -> None:
    for family, status in product(Family, (400, 401, 403, 413, 429, 499, 500, 502, 503)):
        head, body = adapter.render(Refusal(status, "why", 0.2), Route(family, Work.PASS, Shape.OPAQUE))
        assert head.status == status
        assert head.reason
        assert (b"Retry-After", b"1") in head.headers
        if adapter.name == "jan":
            assert (dict(head.headers)[b"Content-Type"], body) == (b"text/plain; charset=utf-8", b"why")
            continue
        data = json.loads(body)
        if family is Family.OLLAMA:
            assert data == {"error": "why"}
        elif family is Family.ANTHROPIC:
            assert (data["type"], data["error"]["message"]) == ("error", "why")
        elif family is Family.LLAMACPP or adapter.name == "llamacpp":
            assert data["error"].keys() == {"code", "message", "type"}
            assert (data["error"]["code"], data["error"]["message"]) == (status, "why")
        else:
            assert data["error"].keys() == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("status", "family", "name", "expected"),
    [
        (503, Family.ANTHROPIC, "ollama", "overloaded_error"),
        (429, Family.ANTHROPIC, "ollama", "rate_limit_error"),
        (502, Family.ANTHROPIC, "ollama", "api_error"),
        (401, Family.ANTHROPIC, "ollama", "authentication_error"),
        (503, Family.LLAMACPP, "llamacpp", "unavailable_error"),
        (503, Family.OPENAI, "llamacpp", "unavailable_error"),
        (401, Family.OPENAI, "llamacpp", "authentication_error"),
        (429, Family.OPENAI, "ollama", "rate_limit_error"),
        (503, Family.OPENAI, "lmstudio", "api_error"),
        (400, Family.OPENAI, "other", "invalid_request_error"),
    ],
)
def test_error_types(status: int, family: Family, name: str, expected: str) -> None:
    body = body_of(adapter_of(name), Refusal(status, "why"), family)
    assert json.loads(body)["error"]["type"] == expected


# -- slots that the server's process shows ---------------------------------------------------------------


class Process:
    """A process that listens on a port, as psutil has it."""

    def __init__(
        self, name: str, port: int, environment: Mapping[str, str] | None, runner: Sequence[str] = ()
    ) -> None:
        self.info = {"name": name}
        self._port, self._environment, self._runner = port, environment, runner

    def net_connections(self, kind: str) -> list[Any]:
        return [SimpleNamespace(status=psutil.CONN_LISTEN, laddr=SimpleNamespace(port=self._port))]

    def environ(self) -> Mapping[str, str]:
        if self._environment is None:
            raise psutil.AccessDenied
        return self._environment

    def children(self) -> list[Any]:
        return [SimpleNamespace(cmdline=lambda: list(self._runner))]


@pytest.mark.parametrize(
    ("process", "slots"),
    [
        (Process("ollama", 11434, {"OLLAMA_NUM_PARALLEL": "4"}), 4),
        (Process("ollama", 11434, {"OLLAMA_NUM_PARALLEL": "0"}), None),
        (Process("ollama", 11434, {"OLLAMA_NUM_PARALLEL": "4000"}), None),
        (Process("ollama", 11434, {"OLLAMA_NUM_PARALLEL": "many"}), None),
        (Process("ollama", 11434, {}, ["ollama", "runner", "--model", "m", "--parallel", "3"]), 3),
        (Process("ollama", 11434, {}, ["llama-server", "-np", "2", "--port", "5"]), 2),
        (Process("ollama", 11434, {}, ["llama-server", "--parallel=2"]), 2),
        (Process("ollama", 11434, {}, ["llama-server", "-np"]), None),
        (Process("ollama", 11434, {}), None),
        (Process("ollama", 11434, None), None),
        (Process("ollama.exe", 11434, {"OLLAMA_NUM_PARALLEL": "4"}), 4),
        (Process("ollama.exe", 11434, {}, ["C:\\ollama.exe", "runner", "--parallel", "3"]), 3),
        (Process("ollama", 11435, {"OLLAMA_NUM_PARALLEL": "4"}), None),
        (Process("python", 11434, {"OLLAMA_NUM_PARALLEL": "4"}), None),
    ],
)
def test_ollamas_slots_are_read_from_its_process(
    process: Process, slots: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{process_inspection.__name__}.psutil.process_iter", lambda names: [process])
    assert adapter_of("ollama").local_slots(11434) == slots
    assert adapter_of("llamacpp").local_slots(11434) is None


@pytest.mark.parametrize(
    ("name", "words", "slots"),
    [
        ("mlx-lm", [], None),
        ("mlx-lm", ["--decode-concurrency", "32"], 32),
        ("mlx-lm", ["--decode-concurrency=1"], 1),
        ("mlx-lm", ["--decode-concurrency", "many"], None),
        ("vllm-mlx", ["--max-num-seqs", "8"], None),
        ("vllm-mlx", ["--continuous-batching"], None),
        ("vllm-mlx", ["--continuous-batching", "--max-num-seqs", "8"], 8),
    ],
)
def test_the_slots_of_servers_of_mlx_are_read_from_their_process(
    name: str, words: list[str], slots: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clairvoyant_cli.backends.adapter.words_of", lambda names, port: words)
    assert adapter_of(name).local_slots(8080) == slots


async def test_the_slots_of_its_process_are_found_on_this_machine_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(type(adapter_of("ollama")), "local_slots", lambda self, port: 4)
    version = json.dumps({"version": "1"}).encode()
    prober = Prober()
    async with answering(lambda path: [answer(version)]) as url:
        found = await identify(prober, url)
        assert found is not None
        assert found.slots == 4
        monkeypatch.setattr("clairvoyant_cli.backends.discovery.is_loopback", lambda host: False)
        found = await identify(prober, url)
        assert found is not None
        assert found.slots is None
    await prober.close()


@pytest.mark.parametrize(
    ("said", "options", "tokens"),
    [
        ("Plain words.", {}, None),
        ("Žluťoučký", {}, 9),
        ("if a < b", {}, 8),
        ("Q: why", {"stop": ["Q:"]}, 6),
    ],
)
async def test_ollamas_events_may_bring_several_tokens(
    said: str, options: dict[str, Any], tokens: int | None
) -> None:
    """A server whose every character is a token, and which begins each text with one of its own."""

    async def ask(path: str, timeout_s: float = 0.0, body: Mapping[str, Any] | None = None) -> ProbeAnswer:
        assert body is not None
        assert (path, body["raw"]) == ("/api/generate", True)
        counted = {"response": "", "done": True, "prompt_eval_count": len(body["prompt"]) + 1}
        return ProbeAnswer(200, json.dumps(counted).encode())

    asked = Continuable(Shape.OLLAMA_CHAT, {"model": "m", "messages": [], "options": options}, streamed=True)
    assert await adapter_of("ollama").said_tokens(ask, asked, said) == tokens


@pytest.mark.parametrize(
    ("pieces", "alike"),
    [
        (["Ret", "inoid", " is"], True),
        (["Ret", "in", "oid", " is"], False),
        (["Retinoid", " is"], True),
        (["Ret", "inoid", " is", " \N{SPIDER WEB}"], True),
        (["Ret", "inoid", " is", " ", "\N{SPIDER WEB}"], False),
    ],
)
async def test_what_llama_cpp_wrote_is_compared_with_what_it_would_read(
    pieces: list[str], alike: bool
) -> None:
    web = "\N{SPIDER WEB}".encode()
    reads = ["<s>", "Hello: ", "Ret", "inoid", " is", [*b" ", *web[:2]], [*web[2:]]]

    async def ask(path: str, timeout_s: float = 0.0, body: Mapping[str, Any] | None = None) -> ProbeAnswer:
        assert body is not None
        assert (path, body["with_pieces"]) == ("/tokenize", True)
        there = reads if body["content"].endswith("\N{SPIDER WEB}") else reads[:5]
        return ProbeAnswer(200, json.dumps({"tokens": [{"id": 1, "piece": each} for each in there]}).encode())

    asked = Continuable(Shape.COMPLETION, {"prompt": "Hello: "}, streamed=True)
    assert await adapter_of("llamacpp").reads_as_written(ask, asked, pieces) is alike


async def test_a_server_that_does_not_tell_its_tokens_says_nothing_of_them() -> None:
    async def ask(path: str, timeout_s: float = 0.0, body: Mapping[str, Any] | None = None) -> ProbeAnswer:
        return ProbeAnswer(404, b"{}")

    asked = Continuable(Shape.CHAT, {"messages": []}, streamed=True)
    assert await adapter_of("llamacpp").reads_as_written(ask, asked, ["x"]) is None
    assert await adapter_of("ollama").reads_as_written(ask, asked, ["x"]) is None


EMPTY = NO_MODELS["/v1/models"]
KINDS: dict[str, Pages] = {
    "ollama": {"/api/version": VERSION, "/api/tags": ("200 OK", {"models": []}), "/v1/models": EMPTY},
    "llamacpp": {"/props": ("200 OK", {"total_slots": 2}), "/health": ("200 OK", {}), "/v1/models": EMPTY},
    "router": {"/props": ("200 OK", {"role": "router"}), "/health": ("200 OK", {}), "/v1/models": EMPTY},
    "lmstudio": {"/api/v0/models": EMPTY, "/v1/models": EMPTY},
    "vllm": VLLMS | {"/version": VERSION},
    "other": {"/v1/models": ("200 OK", {"data": [{"id": "m", "object": "model", "owned_by": "me"}]})},
}


@pytest.mark.parametrize(("before", "after"), [*permutations(KINDS, 2)])
async def test_a_server_in_another_ones_place_is_seen_at_the_next_look(before: str, after: str) -> None:
    pages = dict(KINDS[before])
    async with pages_of(pages) as url, serving(url) as daemon:
        server = daemon.pool.first
        await until(daemon, lambda _: server.confirmed)
        pages.clear()
        pages.update(KINDS[after])
        server.probe_due.set()
        kind = ROUTER if after == "router" else adapter_of(after)
        await until(daemon, lambda state: server.adapter is kind and server.status.state == "up")
        assert daemon.snapshot().backends[0].kind == kind.name
