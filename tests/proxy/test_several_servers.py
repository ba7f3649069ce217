"""Several servers behind one address, over real sockets: lists of all, who answers, who comes and goes."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from clairvoyant_lab.asgi_server import serve_app
from click.testing import CliRunner
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from clairvoyant_cli.config import BackendConfig
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.main import cli
from clairvoyant_cli.proxy.composition import Daemon
from clairvoyant_cli.state.client import ControlClient
from tests.fakes.daemon_parts import named
from tests.fakes.raw_http import chat, get, post
from tests.fakes.serving import ask, asked, secret, serving, until


class Ollama:
    """An Ollama that has these models, has the first of them loaded, and signs what it answers."""

    def __init__(self, name: str, *models: str) -> None:
        self.keys: list[str] = []
        self._told: dict[str, object] = {
            "/api/version": {"version": "0.20.0"},
            "/api/tags": {"models": [{"name": each, "by": name} for each in models]},
            "/api/ps": {"models": [{"name": each, "by": name} for each in models[:1]]},
        }
        self._answer = {"by": name, "done": True, "eval_count": 1}
        self.app = Starlette(routes=[Route("/api/{path}", self._serve, methods=["GET", "POST"])])

    async def _serve(self, request: Request) -> JSONResponse:
        self.keys.append(request.headers.get("authorization", ""))
        return JSONResponse(self._told.get(request.url.path, self._answer))


@asynccontextmanager
async def two() -> AsyncIterator[Daemon]:
    """A daemon before a Mac with `small` and `both`, and an RTX box with `both` and `large`."""
    async with (
        serve_app(Ollama("mac", "small:latest", "both:latest").app) as mac,
        serve_app(Ollama("rtx", "both:latest", "large:latest").app) as rtx,
        serving(None, backends=(BackendConfig("mac", mac), BackendConfig("rtx", rtx))) as daemon,
    ):
        yield daemon


def asking(model: str) -> bytes:
    return chat("0.5 hi", model=model, stream=False, path="/api/chat")


async def test_each_server_gets_its_own_key(tmp_path: Path) -> None:
    servers = {name: Ollama(name, name) for name in ("one", "two")}
    async with serve_app(servers["one"].app) as one, serve_app(servers["two"].app) as two:
        backends = []
        for name, url in (("one", one), ("two", two)):
            key = secret(tmp_path / name, f"key-of-{name}")
            backends.append(BackendConfig(name, url, key_file=key))
        async with serving(None, backends=tuple(backends)) as daemon:
            for name in servers:
                assert json.loads((await ask(daemon, asking(name))).body)["by"] == name
    assert [each.keys[-1] for each in servers.values()] == ["Bearer key-of-one", "Bearer key-of-two"]


async def test_of_two_servers_one_is_down_that_alone_has_the_model() -> None:
    async with (
        serve_app(Ollama("here", "here:latest").app) as here,
        AsyncExitStack() as away,
        AsyncExitStack() as stack,
    ):
        gone = await away.enter_async_context(serve_app(Ollama("there", "there:latest").app))
        backends = (BackendConfig("here", here), BackendConfig("there", gone))
        daemon = await stack.enter_async_context(serving(None, backends=backends))
        await until(daemon, lambda s: all(each.offered for each in s.backends))
        await away.aclose()
        named(daemon.pool, "there").probe_due.set()
        state = await until(daemon, lambda s: s.backends[1].state == "down")
        assert state.verdict.text == "there is down: other servers take what they can"
        assert state.slots == (0, state.backends[0].slots)
        async with asked(daemon, asking("there"), asking("there")):
            state = daemon.snapshot()
            assert state.verdict.text.startswith("there is down: 2 requests need it and fail in ")
            assert (state.waiting.stranded, state.backends[1].waiting, state.running) == (2, 2, ())


async def test_lists_are_those_of_all() -> None:
    async with two() as daemon:
        tags, loaded = await ask(daemon, get("/api/tags")), await ask(daemon, get("/api/ps"))
        models = [(each["name"], each["by"]) for each in json.loads(tags.body)["models"]]
        assert models == [("small:latest", "mac"), ("both:latest", "mac"), ("large:latest", "rtx")]
        assert len(json.loads(loaded.body)["models"]) == 2
        assert tags.value("x-clairvoyant-backend") == b"mac, rtx"
        named(daemon.pool, "mac").status.state = "down"
        tags = await ask(daemon, get("/api/tags"))
        assert [each["by"] for each in json.loads(tags.body)["models"]] == ["rtx", "rtx"]


async def test_each_answer_names_its_server_which_is_one_that_has_the_model() -> None:
    async with two() as daemon:
        for model, name in (("large", "rtx"), ("small", "mac")):
            told = await ask(daemon, asking(model))
            assert (json.loads(told.body)["by"], told.value("x-clairvoyant-backend")) == (name, name.encode())
        shown = await ask(daemon, post("/api/show", b'{"model": "large"}'))
        asked = await ask(daemon, get("/v1/models/large:latest"))
        assert [each.value("x-clairvoyant-backend") for each in (shown, asked)] == [b"rtx", b"rtx"]
        state = await until(daemon, lambda s: s.counters.completed == 2)
        assert [each.backend for each in state.recent] == ["rtx", "mac"]


async def test_what_is_not_queued_goes_to_the_first_or_to_the_one_that_is_named() -> None:
    async with two() as daemon:
        pull = b'{"model": "new", "stream": false}'
        first = await ask(daemon, post("/api/pull", pull))
        named = await ask(daemon, post("/api/pull", pull, "X-Clairvoyant-Backend: rtx"))
        unknown = await ask(daemon, post("/api/pull", pull, "X-Clairvoyant-Backend: attic"))
        assert [json.loads(each.body)["by"] for each in (first, named)] == ["mac", "rtx"]
        assert [each.value("x-clairvoyant-backend") for each in (first, named)] == [b"mac", b"rtx"]
        assert unknown.status == 400
        assert b"no server is called attic" in unknown.body


async def test_a_server_that_cannot_be_one_keeps_nobody_from_starting() -> None:
    async with serve_app(Ollama("mac", "small:latest").app) as mac, serving(mac) as other:
        backends = (BackendConfig("us", other.base_url), BackendConfig("mac", mac))
        async with serving(None, backends=backends) as daemon:
            assert [server.name for server in daemon.pool] == ["mac"]
            assert (await ask(daemon, asking("small"))).status == 200


def operator(daemon: Daemon) -> ControlClient:
    """Return a client that has the token which the daemon's own account finds."""
    return ControlClient(daemon.base_url, daemon.access.run_token)


async def test_who_has_no_token_sends_requests_nowhere_else() -> None:
    async with two() as daemon, ControlClient(daemon.base_url) as stranger:
        with pytest.raises(ClairvoyantError, match="only the account that runs this daemon may"):
            await stranger.act("backend", {"do": "drain", "name": "mac"})
        assert {each.standing for each in (await stranger.snapshot()).backends} == {""}


async def test_servers_come_and_go_while_it_runs() -> None:
    server = Ollama("attic", "tiny:latest")
    async with two() as daemon, serve_app(server.app) as attic, operator(daemon) as control:
        added = await control.act("backend", {"do": "add", "url": attic, "key": "s3cret"})
        name = attic.removeprefix("http://")
        assert added == {"done": "backend", "name": name, "kind": "ollama", "slots": 1}
        assert json.loads((await ask(daemon, asking("tiny"))).body)["by"] == "attic"
        assert server.keys[-1] == "Bearer s3cret"
        other = attic.replace("127.0.0.1", "LOCALHOST")
        for again in (
            {"url": attic, "name": "x"},
            {"url": other, "name": "x"},
            {"url": "http://127.0.0.1:1", "name": "mac"},
        ):
            with pytest.raises(ClairvoyantError, match=r"already"):
                await control.act("backend", {"do": "add", **again})
        await control.act("backend", {"do": "drain", "name": "rtx"})
        states = {each.name: each.standing for each in (await control.snapshot()).backends}
        assert states == {"mac": "", "rtx": "draining", name: ""}
        assert (await ask(daemon, asking("large"))).status == 503
        await control.act("backend", {"do": "up", "name": "rtx"})
        assert (await ask(daemon, asking("large"))).status == 200
        gone = await control.act("backend", {"do": "remove", "name": "mac"})
        assert gone["standing"] == "gone"
        state = await control.snapshot()
        assert [each.name for each in state.backends] == ["rtx", name]
        assert not any("s3cret" in event.text for event in state.log)


@pytest.mark.parametrize("spelled", ["localhost", "[::1]", "127.1", "0.0.0.0", "[::ffff:127.0.0.1]"])  # noqa: S104 - asked, not bound
async def test_one_server_under_two_spellings_of_its_address_is_refused(spelled: str) -> None:
    async with serve_app(Ollama("mac", "tiny:latest").app) as mac:
        other = mac.replace("127.0.0.1", spelled)
        twins = (BackendConfig("a", mac), BackendConfig("b", other))
        with pytest.raises(ClairvoyantError, match="are the same server; give it once"):
            async with serving(None, backends=twins):
                pass


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "do must be one of add, drain, up, remove"),
        ({"do": "drain", "name": "attic"}, "no backend is called attic; there are mac, rtx"),
        ({"do": "add"}, "add needs the server's url"),
        ({"do": "add", "url": "olama"}, "url must be ollama"),
        ({"do": "add", "url": "http://a", "slot": 1}, "unknown key 'slot'; did you mean slots?"),
        ({"do": "add", "url": "http://a", "key_file": "/etc/passwd"}, "no file is read for this"),
        ({"do": "add", "url": "http://a", "key": "a\nb"}, "key must be a line of text"),
    ],
)
async def test_what_cannot_be_done_is_said(arguments: dict[str, object], words: str) -> None:
    async with two() as daemon, operator(daemon) as control:
        with pytest.raises(ClairvoyantError) as refused:
            await control.act("backend", arguments)
        assert words in str(refused.value)


async def test_the_commands_do_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async with two() as daemon, serve_app(Ollama("attic", "tiny:latest").app) as attic:
        monkeypatch.setenv("CLAIRVOYANT_ADMIN_TOKEN", daemon.access.run_token)
        monkeypatch.delenv("COLUMNS", raising=False)

        async def run(*words: str) -> str:
            arguments = [*words, "--url", daemon.base_url]
            done = await asyncio.to_thread(CliRunner().invoke, cli, arguments, catch_exceptions=False)
            assert done.exit_code == 0, done.output
            return done.output

        key = secret(tmp_path / "key", "secret")
        added = ("add", f"url={attic}", "name=attic", f"key_file={key}", "slots=1", "weight=2")
        assert json.loads(await run("act", "backend", *added))["slots"] == 1
        await run("act", "backend", "drain", "rtx")
        rows = {line.split()[1]: line for line in (await run("status")).splitlines() if "http" in line}
        assert [*rows] == ["mac", "rtx", "attic"]
        assert "up, draining" in rows["rtx"]
        await run("act", "backend", "up", "rtx")
        await run("act", "backend", "remove", "mac")
        servers = json.loads(await run("status", "--json"))["backends"]
        assert [(each["name"], each["weight"]) for each in servers] == [("rtx", 1.0), ("attic", 2.0)]
