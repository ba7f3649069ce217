"""Two servers of different kinds: which gets what, by the path's family, the model and their state."""

import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from clairvoyant_lab.asgi_server import serve_app
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from clairvoyant_cli.config import BackendConfig
from clairvoyant_cli.protocols.named_model import named_model
from clairvoyant_cli.proxy.daemon import Daemon
from tests.fakes.raw_http import Message, get, post, raw_client
from tests.fakes.serving import serving, until

METHODS = ["GET", "POST", "PUT", "DELETE", "HEAD"]
OWN: dict[str, dict[str, object]] = {
    "ollama": {
        "/api/version": {"version": "0.20.0"},
        "/api/tags": {"models": [{"name": "o:latest", "model": "o:latest"}]},
        "/api/ps": {"models": []},
    },
    "vllm": {
        "/version": {"version": "0.11.0"},
        "/v1/models": {"object": "list", "data": [{"id": "v", "object": "model", "owned_by": "vllm"}]},
    },
    "llamacpp": {
        "/health": {"status": "ok"},
        "/props": {"build_info": "b1-1", "total_slots": 1, "default_generation_settings": {"n_ctx": 512}},
        "/v1/models": {"object": "list", "data": [{"id": "l", "object": "model", "owned_by": "llamacpp"}]},
    },
}


class Kind:
    """A server of a kind, which names itself in each answer that only a client can have asked for."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.stored: list[str] = []
        self.app = Starlette(routes=[Route("/{path:path}", self._serve, methods=METHODS)])

    async def _serve(self, request: Request) -> JSONResponse:
        path = request.url.path
        if path == "/v1/responses":
            self.stored.append(f"resp_{self.kind}{len(self.stored)}")
            return JSONResponse(
                {"object": "response", "id": self.stored[-1], "status": "completed", "output": []}
            )
        told = OWN[self.kind].get(path)
        known = told is not None or not path.startswith(("/api/", "/version", "/props", "/v1/models"))
        return JSONResponse(told or {"by": self.kind}, 200 if known or request.method != "GET" else 404)


@asynccontextmanager
async def both(first: str, second: str) -> AsyncIterator[tuple[Daemon, dict[str, Kind]]]:
    kinds = {name: Kind(name) for name in (first, second)}
    async with (
        serve_app(kinds[first].app) as one,
        serve_app(kinds[second].app) as two,
        serving(None, backends=(BackendConfig(first, one), BackendConfig(second, two))) as daemon,
    ):
        await until(daemon, lambda _: all(each.status.state == "up" for each in daemon.pool))
        yield daemon, kinds


async def ask(daemon: Daemon, request: bytes) -> Message:
    async with raw_client(daemon.base_url) as client:
        return await client.ask(request)


def by(answer: Message) -> str:
    return (answer.value("x-clairvoyant-backend") or b"").decode()


OF_OLLAMA = [
    get("/", method="HEAD"),
    get("/api/version"),
    get("/api/blobs/sha256:1", method="HEAD"),
    post("/api/pull", b'{"model":"new"}'),
    post("/api/copy", b'{"source":"o","destination":"p"}'),
    post("/api/delete", b'{"model":"o"}').replace(b"POST", b"DELETE", 1),
]


@pytest.mark.parametrize("first", ["ollama", "vllm"])
@pytest.mark.parametrize("request_", OF_OLLAMA, ids=lambda raw: raw.split(b"\r\n")[0].decode())
async def test_what_ollama_alone_knows_goes_there_whatever_the_order(request_: bytes, first: str) -> None:
    async with both(first, "vllm" if first == "ollama" else "ollama") as (daemon, _):
        answer = await ask(daemon, request_)
        assert (answer.status, by(answer)) == (200, "ollama")


@pytest.mark.parametrize("path", ["/props", "/slots", "/lora-adapters"])
async def test_what_llamacpp_alone_knows_goes_there(path: str) -> None:
    async with both("vllm", "llamacpp") as (daemon, _):
        assert by(await ask(daemon, get(path))) == "llamacpp"


@pytest.mark.parametrize("path", ["/version", "/v1/files", "/nothing"])
async def test_what_any_may_know_goes_to_the_first_that_is_there(path: str) -> None:
    async with both("vllm", "ollama") as (daemon, _):
        assert by(await ask(daemon, get(path))) == "vllm"
        daemon.pool.named("vllm").status.state = "down"
        assert by(await ask(daemon, get(path))) == "ollama"


async def test_a_family_whose_only_server_is_down_is_not_answered_by_another() -> None:
    async with both("vllm", "ollama") as (daemon, _):
        daemon.pool.named("ollama").status.state = "down"
        assert by(await ask(daemon, get("/api/version"))) == "ollama", "its own refusal"


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b'{"Model":"o","messages":[{"role":"user","content":"x"}]}', ()),
        (b'\xef\xbb\xbf{"model":"o","messages":[]}', ()),
        (gzip.compress(b'{"model":"o","messages":[]}'), ("Content-Encoding: gzip",)),
    ],
    ids=["capital", "byte order mark", "gzip"],
)
async def test_a_body_that_is_not_read_goes_where_its_model_is(body: bytes, headers: tuple[str, ...]) -> None:
    async with both("vllm", "ollama") as (daemon, _):
        assert by(await ask(daemon, post("/v1/chat/completions", body, *headers))) == "ollama"


def test_a_model_is_found_in_bounded_bodies() -> None:
    assert named_model([b'{"mo', b'del":"a"}']) == "a"
    assert named_model([b'{"name":"a"}']) == "a"
    assert named_model([b"\x1f\x8b"], b"gzip") == ""
    assert named_model([gzip.compress(b'{"x":"' + b" " * 2**21 + b'","model":"a"}')], b"gzip") == ""
    assert named_model([b"[]"]) == named_model([]) == ""


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stored_response_is_asked_for_where_it_is_stored(stream: bool) -> None:
    async with both("vllm", "llamacpp") as (daemon, kinds):
        for model, holder in (("l", "llamacpp"), ("v", "vllm")):
            await ask(daemon, post("/v1/responses", json.dumps({"model": model, "input": "x"}).encode()))
            (stored,) = kinds[holder].stored[-1:]
            # The model is one of the other server's: the id decides.
            other = {"model": "v", "input": "x", "previous_response_id": stored, "stream": stream}
            assert by(await ask(daemon, post("/v1/responses", json.dumps(other).encode()))) == holder
            for method in ("GET", "DELETE"):
                assert by(await ask(daemon, get(f"/v1/responses/{stored}", method=method))) == holder
            assert by(await ask(daemon, post(f"/v1/responses/{stored}/cancel", b""))) == holder


async def test_a_response_whose_server_is_away_is_not_asked_for_elsewhere() -> None:
    async with both("vllm", "llamacpp") as (daemon, kinds):
        await ask(daemon, post("/v1/responses", b'{"model":"l","input":"x"}'))
        daemon.pool.named("llamacpp").status.state = "down"
        answer = await ask(daemon, get(f"/v1/responses/{kinds['llamacpp'].stored[0]}"))
        assert by(answer) == "llamacpp"
