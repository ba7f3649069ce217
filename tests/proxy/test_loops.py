"""A proxy that leads to itself: refused where that can be seen, cut off at once where it cannot."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from clairvoyant_lab.asgi_server import serve_app

from clairvoyant_cli.backends.adapters import adapter_of
from clairvoyant_cli.backends.discovery import locate_server
from clairvoyant_cli.backends.kinds.llamacpp import LlamaCpp
from clairvoyant_cli.backends.prober import Prober
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.state.snapshot import Snapshot
from tests.fakes.llamacpp_server import free_port
from tests.fakes.raw_http import get, post, raw_client
from tests.fakes.replay_backend import Replay
from tests.fakes.serving import secret, serving, until

CHAT = post("/v1/chat/completions", b'{"messages": [{"role": "user", "content": "hi"}]}')


@dataclass(slots=True)
class Hop:
    """A second proxy of whatever kind: it passes bytes on to a port, once it is told which."""

    base_url: str
    target: int | None = None
    passed: int = 0
    _playing: dict["asyncio.Task[Any]", list[asyncio.StreamWriter]] = field(default_factory=dict)

    async def play(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        ends = self._playing[task] = [writer]
        try:
            if self.target is not None:
                self.passed += 1
                there, back = await asyncio.open_connection("127.0.0.1", self.target)
                ends.append(back)
                await asyncio.gather(_pour(reader, back), _pour(there, writer))
        except OSError:
            pass  # who goes first when the test is over does not matter
        finally:
            for end in ends:
                end.transport.abort()
            del self._playing[task]

    async def part(self) -> None:
        """End what is still open; returns when it has ended."""
        while self._playing:
            for ends in list(self._playing.values()):
                for end in ends:
                    end.transport.abort()
            await asyncio.sleep(0)


async def _pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
    writer.close()


@asynccontextmanager
async def hop() -> AsyncIterator[Hop]:
    """Run it until the block ends."""
    between = Hop("")
    server = await asyncio.start_server(between.play, "127.0.0.1", 0)
    between.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield between
    finally:
        server.close()
        await between.part()


def leads_back(state: Snapshot) -> bool:
    return "leads back" in state.backends[0].detail


@pytest.mark.parametrize("raw", [CHAT, get("/v1/models"), get("/api/tags")])
async def test_a_loop_through_another_proxy_is_noticed_and_not_entered(raw: bytes) -> None:
    async with hop() as between, serving(between.base_url) as daemon, raw_client(daemon.base_url) as client:
        between.target = int(daemon.base_url.rpartition(":")[2])
        daemon.pool.first.probe_due.set()
        await until(daemon, leads_back)
        looks = between.passed
        got = await client.ask(raw)
        assert got.status == 508
        assert b"leads back to this proxy" in got.body
        assert between.passed - looks < 10, "its own looks at the backend; the request stays here"


async def test_what_came_into_a_loop_before_it_was_noticed_ends() -> None:
    async with hop() as between, serving(between.base_url) as daemon, raw_client(daemon.base_url) as client:
        between.target = int(daemon.base_url.rpartition(":")[2])
        got = await client.ask(get("/api/tags"))
        assert got.status == 508


async def test_an_address_that_led_back_and_is_set_right_serves() -> None:
    async with (
        serve_app(Replay().app) as model,
        hop() as between,
        serving(between.base_url) as daemon,
        raw_client(daemon.base_url) as client,
    ):
        between.target = int(daemon.base_url.rpartition(":")[2])
        daemon.pool.first.probe_due.set()
        await until(daemon, leads_back)
        between.target = int(model.rpartition(":")[2])
        await between.part()
        daemon.pool.first.probe_due.set()
        backend = daemon.pool.first
        await until(daemon, lambda state: state.backends[0].state == "up" and not backend.leads_back)
        assert (await client.ask(get("/v1/models"))).status == 200


async def test_a_question_of_another_of_us_is_passed_on() -> None:
    async with (
        serve_app(Replay().app) as model,
        serving(model) as daemon,
        raw_client(daemon.base_url) as client,
    ):
        got = await client.ask(get("/v1/models", "X-Clairvoyant-Asker: 0123456789abcdef"))
        assert got.status == 200


@pytest.mark.parametrize("listen", ["127.0.0.1", "0.0.0.0", "localhost"])  # noqa: S104 - not listened on
@pytest.mark.parametrize("named", ["127.0.0.1", "localhost"])
async def test_its_own_address_is_no_backend(tmp_path: Path, listen: str, named: str) -> None:
    key = secret(tmp_path / "secret", "a-long-key")
    keys: dict[str, Any] = {"api_key_file": key, "admin_token_file": key}
    port = free_port()
    with pytest.raises(ClairvoyantError, match="own address"):
        async with serving(f"http://{named}:{port}", listen=f"{listen}:{port}", **keys):
            pass


async def test_a_server_is_looked_for_past_one_of_us(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve_app(Replay().app) as model, serving(model) as daemon:
        ours, theirs = (int(url.rpartition(":")[2]) for url in (daemon.base_url, model))
        monkeypatch.setattr(LlamaCpp, "usual_ports", (ours, theirs))
        prober = Prober()
        found, answering = await locate_server("llamacpp", prober, own_ports=(1,))
        later = free_port()
        monkeypatch.setattr(LlamaCpp, "usual_ports", (ours, later))
        awaited, none = await locate_server("llamacpp", prober, own_ports=(1,))
        await prober.close()
    assert (found.url, found.adapter, len(answering)) == (model, adapter_of("llamacpp"), 1)
    assert (awaited.url, none) == (f"http://127.0.0.1:{later}", []), "it is waited for where it can come"
