"""A client that gives up waiting and sends its request again keeps its place."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from clairvoyant_cli.proxy.daemon import Daemon
from clairvoyant_cli.proxy.requests import resubmission
from clairvoyant_cli.research.bench.asgi_server import serve_app
from tests.fakes.raw_http import RawClient, post, raw_client
from tests.fakes.replay_backend import Engine, Replay, tabled
from tests.fakes.serving import serving, until

LENGTHS = tabled({"endless": 100_000})


def chat(content: str, **more: Any) -> bytes:
    asked = {"model": "replay", "messages": [{"role": "user", "content": content}]} | more
    return post("/v1/chat/completions", json.dumps(asked).encode())


@asynccontextmanager
async def occupied(**settings: Any) -> AsyncIterator[tuple[Daemon, RawClient]]:
    """A daemon under arrival order whose one slot is taken, and a client that waits."""
    backend = Replay(Engine(answer_tokens=LENGTHS))
    backend.engine.freeze()
    async with (
        serve_app(backend.app) as url,
        serving(url, policy="fcfs", **settings) as daemon,
        raw_client(daemon.base_url) as holder,
        raw_client(daemon.base_url) as other,
    ):
        holder.send(chat("endless"))
        await backend.engine.wait_until(lambda c: c.started == 1)
        yield daemon, other


async def leave_and_return(daemon: Daemon, other: RawClient, first: bytes, again: bytes) -> list[str]:
    """Send a request, then another client's; leave, send again. Return the ids in the queue's order."""
    async with raw_client(daemon.base_url) as client:
        client.send(first)
        await until(daemon, lambda s: len(s.queue) == 1)
        other.send(chat("another"))
        await until(daemon, lambda s: len(s.queue) == 2)
    await until(daemon, lambda s: len(s.queue) == 1)
    async with raw_client(daemon.base_url) as client:
        client.send(again)
        state = await until(daemon, lambda s: len(s.queue) == 2)
        return [each.id.partition("-")[2] for each in state.queue]


async def test_it_stands_where_it_stood_however_it_is_written() -> None:
    messages = [{"role": "user", "content": "patience"}]
    again = {"stream": True, "client_metadata": {"b": 1}, "messages": messages, "model": "replay"}
    async with occupied() as (daemon, other):
        body = post("/v1/chat/completions", json.dumps(again).encode())
        order = await leave_and_return(daemon, other, chat("patience"), body)
        assert order == ["2.2", "3"]
        assert any("2 was sent again and keeps its age" in each.text for each in daemon.snapshot().log)


async def test_it_is_new_once_the_place_is_gone_for_another_prompt_or_where_that_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with occupied() as (daemon, other):
        assert await leave_and_return(daemon, other, chat("patience"), chat("patience!")) == ["3", "4"]
    async with occupied(no_keep_place=True) as (daemon, other):
        assert await leave_and_return(daemon, other, chat("patience"), chat("patience")) == ["3", "4"]
    monkeypatch.setattr(resubmission, "KEPT_S", 0.0)
    async with occupied() as (daemon, other):
        assert await leave_and_return(daemon, other, chat("patience"), chat("patience")) == ["3", "4"]


async def test_it_keeps_its_age_from_time_to_time() -> None:
    async with occupied() as (daemon, other):
        first = (await leave_and_return(daemon, other, chat("patience"), chat("patience")))[0]
        age_s = daemon.snapshot().queue[0].age_s
        await until(daemon, lambda s: len(s.queue) == 1)
        async with raw_client(daemon.base_url) as client:
            client.send(chat("patience"))
            state = await until(daemon, lambda s: len(s.queue) == 2)
        assert (first, state.queue[0].id.partition("-")[2]) == ("2.2", "2.3")
        assert state.queue[0].age_s > age_s


async def test_another_principal_does_not_get_it(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("ann:a-key-of-ann\nben:a-key-of-ben\n")
    keys.chmod(0o600)

    def asked_by(name: bytes, content: str) -> bytes:
        return chat(content).replace(b"\r\n\r\n", b"\r\nAuthorization: Bearer a-key-of-%b\r\n\r\n" % name, 1)

    backend = Replay(Engine(answer_tokens=LENGTHS))
    backend.engine.freeze()
    async with (
        serve_app(backend.app) as url,
        serving(url, api_key_file=str(keys)) as daemon,
        raw_client(daemon.base_url) as holder,
        raw_client(daemon.base_url) as ben,
    ):
        holder.send(asked_by(b"ann", "endless"))
        await backend.engine.wait_until(lambda c: c.started == 1)
        async with raw_client(daemon.base_url) as ann:
            ann.send(asked_by(b"ann", "patience"))
            await until(daemon, lambda s: len(s.queue) == 1)
        await until(daemon, lambda s: not s.queue)
        ben.send(asked_by(b"ben", "patience"))
        state = await until(daemon, lambda s: len(s.queue) == 1)
        assert "." not in state.queue[0].id
