"""Two servers of different kinds: which gets what, by the path's family, the model and their state."""

import gzip
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import permutations, product
from types import MappingProxyType

import pytest
from clairvoyant_lab.asgi_server import serve_app
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from clairvoyant_cli.config import BackendConfig
from clairvoyant_cli.http.fields import Fields
from clairvoyant_cli.http.heads import RequestHead
from clairvoyant_cli.protocols.outer_members import named_model
from clairvoyant_cli.proxy.composition import Daemon
from clairvoyant_cli.proxy.servers.lifecycle import ServerLifecycle
from tests.fakes.daemon_parts import named
from tests.fakes.raw_http import Message, get, post
from tests.fakes.serving import ask, asked, serving, until

METHODS = ["GET", "POST", "PUT", "DELETE", "HEAD"]
OWN: dict[str, dict[str, object]] = {
    "ollama": {
        "/api/version": {"version": "0.20.0"},
        "/api/tags": {
            "models": [
                {"name": "o:latest", "model": "o:latest", "digest": "0123456789abcdef"},
                {"name": "far:cloud", "model": "far:cloud", "remote_host": "https://ollama.com:443"},
            ]
        },
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
    "other": {"/v1/models": {"object": "list", "data": [{"id": "x", "object": "model", "owned_by": "me"}]}},
}


EMPTY: Mapping[str, str] = MappingProxyType({})


class Kind:
    """A server of a kind, which names itself in each answer that only a client can have asked for.

    `paths` are those it was asked for, `prefix` is in front of all that it knows.
    """

    def __init__(self, kind: str, prefix: str = "") -> None:
        self.kind = kind
        self.prefix = prefix
        self.stored: list[str] = []
        self.paths: list[str] = []
        self.app = Starlette(routes=[Route("/{path:path}", self._serve, methods=METHODS)])

    async def _serve(self, request: Request) -> JSONResponse:
        self.paths.append(request.url.path)
        path = request.url.path.removeprefix(self.prefix)
        if self.prefix and path == request.url.path:
            return JSONResponse({"error": "not found"}, 404)
        if path == "/v1/responses":
            self.stored.append(f"resp_{self.kind}{len(self.stored)}")
            return JSONResponse(
                {"object": "response", "id": self.stored[-1], "status": "completed", "output": []}
            )
        if path.startswith("/v1/responses/resp_") and self.kind not in path:
            return JSONResponse({"error": {"message": "not found"}}, 404)
        told = OWN[self.kind].get(path)
        known = told is not None or not path.startswith(("/api/", "/version", "/props", "/v1/models"))
        return JSONResponse(told or {"by": self.kind}, 200 if known or request.method != "GET" else 404)


@asynccontextmanager
async def both(
    first: str, second: str, prefixes: Mapping[str, str] = EMPTY
) -> AsyncIterator[tuple[Daemon, dict[str, Kind]]]:
    kinds = {name: Kind(name, prefixes.get(name, "")) for name in (first, second)}
    async with AsyncExitStack() as stack:
        urls = {name: await stack.enter_async_context(serve_app(kind.app)) for name, kind in kinds.items()}
        backends = tuple(BackendConfig(name, url + kinds[name].prefix) for name, url in urls.items())
        daemon = await stack.enter_async_context(serving(None, backends=backends))
        await until(daemon, lambda _: all(each.status.state == "up" for each in daemon.pool))
        yield daemon, kinds


def by(answer: Message) -> str:
    return (answer.value("x-clairvoyant-backend") or b"").decode()


OF_OLLAMA = [
    get("/", method="HEAD"),
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


@pytest.mark.parametrize("path", ["/v1/rerank", "/tokenize"])
@pytest.mark.parametrize(("model", "server"), [("x", "other"), ("l", "llamacpp"), ("y", "llamacpp")])
async def test_a_server_of_an_unknown_kind_may_have_any_route(path: str, model: str, server: str) -> None:
    async with both("llamacpp", "other") as (daemon, _):
        body = {"model": model, "query": "x", "documents": ["y"]}
        assert by(await ask(daemon, post(path, json.dumps(body).encode()))) == server


def chat(path: str, model: str) -> bytes:
    body = {"model": model, "messages": [{"role": "user", "content": "x"}], "stream": False}
    return post(path, json.dumps(body).encode())


ANY = ("ollama", "llamacpp", "vllm")
PASSED_ON: list[tuple[bytes, tuple[str, ...]]] = [
    (get("/api/version"), ("ollama",)),
    (get("/api/tags/x"), ("ollama",)),
    (get("/props"), ("llamacpp",)),
    (get("/slots"), ("llamacpp",)),
    (get("/lora-adapters"), ("llamacpp",)),
    (post("/tokenize", b'{"content":"x"}'), ("llamacpp", "vllm")),
    (post("/detokenize", b'{"model":"v","tokens":[1]}'), ("vllm", "llamacpp")),
    (get("/v1/files"), ANY),
]
QUEUED: list[tuple[bytes, tuple[str, ...]]] = [
    (chat("/api/chat", "o"), ("ollama",)),
    (chat("/v1/chat/completions", "o"), ("ollama",)),
    (chat("/v1/messages", "v"), ("vllm",)),
    (post("/infill", b'{"input_prefix":"x","input_suffix":""}'), ("llamacpp",)),
    (post("/v1/rerank", b'{"query":"x","documents":["y"]}'), ("llamacpp", "vllm")),
    (chat("/v1/chat/completions", ""), ANY),
]
"""What is asked, and which kinds can answer it; of two that name the model, the first alone."""

STATES = ("up", "loading", "down")


@pytest.mark.parametrize(("first", "second"), [*permutations(ANY, 2)])
async def test_families_and_states_decide_not_positions(
    first: str, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with both(first, second) as (daemon, _):

        async def unchanged(*_: object) -> None:
            """A look that finds what the test has set."""

        monkeypatch.setattr(ServerLifecycle, "_probe", unchanged)
        monkeypatch.setattr(ServerLifecycle, "try_one", lambda *_: None)

        def become(*states: str) -> None:
            for server, state in zip(daemon.pool, states, strict=True):
                server.status.state = state
                server.announce()

        def able(request: bytes, kinds: tuple[str, ...]) -> list[str]:
            found = [name for name in (first, second) if name in kinds]
            return ["vllm"] if b'"v"' in request and "vllm" in found else found or [first, second]

        for states in product(STATES, STATES):
            up = [name for name, state in zip((first, second), states, strict=True) if state == "up"]
            for request, kinds in PASSED_ON:
                become(*states)
                can = able(request, kinds)
                wanted = next((name for name in can if name in up), can[0])
                answer = await ask(daemon, request)
                # What the first of them does not have is asked for at the others, too.
                assert by(answer) == wanted or (answer.status == 404 and by(answer) in can), (request, states)
            for request, kinds in QUEUED:
                if not {first, second} & {*kinds}:
                    continue  # any may have the model, as far as is known
                become(*states)
                can = [name for name in able(request, kinds) if name in up]
                if can:
                    assert by(await ask(daemon, request)) in can, (request, states)
                    continue
                async with asked(daemon, request):
                    assert len(daemon.snapshot().queue) == 1, (request, states)
                await until(daemon, lambda s: not s.queue)


@pytest.mark.parametrize("order", [*permutations(("vllm", "ollama"))])
@pytest.mark.parametrize("prefix", ["/a", "/api"])
async def test_each_server_is_asked_under_its_own_prefix(prefix: str, order: tuple[str, str]) -> None:
    """Clients may ask with the path of a server's URL, or without."""
    async with both(*order, prefixes={"vllm": prefix}) as (daemon, kinds):
        for path, (name, model) in product(
            ("/v1/chat/completions", f"{prefix}/v1/chat/completions"), (("vllm", "v"), ("ollama", "o"))
        ):
            assert by(await ask(daemon, chat(path, model))) == name
            assert kinds[name].paths[-1] == kinds[name].prefix + "/v1/chat/completions"
        named = chat(f"{prefix}/v1/chat/completions", "v").replace(
            b"\r\n", b"\r\nX-Clairvoyant-Backend: vllm\r\n", 1
        )
        assert by(await ask(daemon, named)) == "vllm"
        assert daemon.snapshot().counters.submitted == 5, "none bypasses the queue"
        for path in ("/v1/models", f"{prefix}/v1/models"):
            assert b'"v"' in (await ask(daemon, get(path))).body
        assert by(await ask(daemon, get("/api/version"))) == "ollama"
        assert by(await ask(daemon, get(f"{prefix}/v1/files?x={prefix}"))) == order[0]
        assert kinds[order[0]].paths[-1] == kinds[order[0]].prefix + "/v1/files"


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


@pytest.mark.parametrize(
    ("body", "server", "queued"),
    [
        (b'{"model":"far:cloud","messages":[{"role":"user","content":"x"}]}', "ollama", 0),
        (b'{"model":"far:cloud","Model":"o","messages":[{"role":"user","content":"x"}]}', "ollama", 1),
        (b'{"model":"near-cloud","messages":[{"role":"user","content":"x"}]}', "llamacpp", 1),
        (b'{"model":"0123456789ab","messages":[{"role":"user","content":"x"}]}', "ollama", 1),
    ],
)
async def test_only_what_its_server_says_to_run_elsewhere_passes_the_queue(
    body: bytes, server: str, queued: int
) -> None:
    async with both("llamacpp", "ollama") as (daemon, _):
        assert by(await ask(daemon, post("/v1/chat/completions", body))) == server
        assert daemon.journal.counts["submitted"] == queued


TOO_LONG = (400, "the request exceeds the available context size")
REFUSALS = [
    TOO_LONG,
    (404, "model not found"),
    (501, "not implemented"),
    (500, "image input is not supported - hint: you may need to provide the mmproj"),
]


async def refusing(refusal: tuple[int, str], paths: list[str]) -> Starlette:
    async def answer(request: Request) -> JSONResponse:
        told = OWN["vllm"].get(request.url.path)
        if request.method == "POST":
            paths.append(request.url.path)
        return JSONResponse(told or {"error": {"message": refusal[1]}}, 200 if told else refusal[0])

    return Starlette(routes=[Route("/{path:path}", answer, methods=METHODS)])


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages/count_tokens"])
@pytest.mark.parametrize(
    ("first", "second", "status", "tried"),
    [
        *((refusal, (200, ""), 200, 2) for refusal in REFUSALS),
        (TOO_LONG, TOO_LONG, 400, 2),
        ((400, "temperature must be positive"), (200, ""), 400, 1),
        ((429, "slow down"), (200, ""), 429, 1),
    ],
)
async def test_what_one_server_alone_refuses_is_tried_at_the_next(
    path: str, first: tuple[int, str], second: tuple[int, str], status: int, tried: int
) -> None:
    paths: list[str] = []
    async with AsyncExitStack() as stack:
        apps = [await refusing(each, paths) for each in (first, second)]
        urls = [await stack.enter_async_context(serve_app(app)) for app in apps]
        backends = tuple(BackendConfig(f"b{n}", url) for n, url in enumerate(urls))
        daemon = await stack.enter_async_context(serving(None, backends=backends))
        await until(daemon, lambda _: all(each.status.state == "up" for each in daemon.pool))
        answer = await ask(daemon, chat(path, "v"))
        assert (answer.status, len(paths)) == (status, tried)


FORM = (
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="model"\r\n\r\n%b\r\n'
    b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\na\r\n--x--\r\n' % bytes(9000)
)


@pytest.mark.parametrize(
    ("pieces", "fields", "model"),
    [
        ([b'{"mo', b'del":"a"}'], {}, "a"),
        ([b'{"name":"a"}'], {}, "a"),
        ([rb'{"input":"half \ud83d an emoji","model":"a"}'], {}, "a"),
        ([b'{"messages":[{"model":"b"}],"x":"' + b"y" * 9000, b'","model" : "\\u0061"}'], {}, "a"),
        ([b"\x1f\x8b"], {b"Content-Encoding": b"gzip"}, ""),
        ([gzip.compress(b'{"x":"' + b" " * 2**21 + b'","model":"a"}')], {b"Content-Encoding": b"gzip"}, ""),
        ([b"[]"], {}, ""),
        ([], {}, ""),
        ([FORM[:9100], FORM[9100:]], {b"Content-Type": b"multipart/form-data; boundary=x"}, "a"),
    ],
)
async def test_a_model_is_found_in_bounded_bodies(
    pieces: list[bytes], fields: dict[bytes, bytes], model: str
) -> None:
    head = RequestHead(b"POST", b"/", Fields([(b"Host", b"x"), *fields.items()]))
    assert await named_model(pieces, head) == model


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stored_response_is_asked_for_where_it_is_stored(stream: bool) -> None:
    async with both("vllm", "llamacpp") as (daemon, kinds):
        for model, holder in (("l", "llamacpp"), ("v", "vllm")):
            await ask(daemon, post("/v1/responses", json.dumps({"model": model, "input": "x"}).encode()))
            (stored,) = kinds[holder].stored[-1:]
            # The model is one of the other server's: the id decides.
            other = {"model": "v", "input": "x", "previous_response_id": stored, "stream": stream}
            assert by(await ask(daemon, post("/v1/responses", json.dumps(other).encode()))) == holder
            for under in ("/v1/responses", "/responses"):
                for method in ("GET", "DELETE"):
                    assert by(await ask(daemon, get(f"{under}/{stored}", method=method))) == holder
                assert by(await ask(daemon, post(f"{under}/{stored}/cancel", b""))) == holder


async def test_a_stored_response_whose_server_is_unknown_is_asked_for_at_each() -> None:
    async with both("vllm", "llamacpp") as (daemon, kinds):
        await ask(daemon, post("/v1/responses", b'{"model":"l","input":"x"}'))
        (stored,) = kinds["llamacpp"].stored
        daemon.pool.stored.clear()  # as after more responses than are remembered
        assert by(await ask(daemon, get(f"/v1/responses/{stored}"))) == "llamacpp"


async def test_a_response_whose_server_is_away_is_not_asked_for_elsewhere() -> None:
    async with both("vllm", "llamacpp") as (daemon, kinds):
        await ask(daemon, post("/v1/responses", b'{"model":"l","input":"x"}'))
        named(daemon.pool, "llamacpp").status.state = "down"
        answer = await ask(daemon, get(f"/v1/responses/{kinds['llamacpp'].stored[0]}"))
        assert by(answer) == "llamacpp"
