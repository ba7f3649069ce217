"""`serve --replace`: one daemon takes the place of another, and no request is lost."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from clairvoyant_lab.asgi_server import serve_app

from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.proxy import place
from clairvoyant_cli.proxy.access.programs import Program, Programs
from clairvoyant_cli.proxy.composition import Daemon
from clairvoyant_cli.proxy.learning.persistence import Persistence
from clairvoyant_cli.scheduler.job import FIRST
from clairvoyant_cli.scheduler.urgency import UrgencySource
from clairvoyant_cli.state.client import ControlClient
from profiles.records import ServedRequest
from tests.fakes.raw_http import RawClient, chat, get, post, raw_client
from tests.fakes.remembered import Kept
from tests.fakes.replay_backend import Engine, Replay, tabled
from tests.fakes.serving import secret, serving, until

NOWHERE = "http://127.0.0.1:9"
HEALTH = get("/_clairvoyant/health", host="127.0.0.1")


@dataclass
class Old:
    """A daemon whose one slot is taken, and its client."""

    daemon: Daemon
    engine: Engine
    backend: str
    holder: RawClient
    settings: dict[str, Any]

    @asynccontextmanager
    async def replaced(self, **settings: Any) -> AsyncIterator[Daemon]:
        listen = self.daemon.base_url.removeprefix("http://")
        given = self.settings | {"listen": listen} | settings
        async with serving(self.backend, replace=True, announced=True, **given) as new:
            yield new


@asynccontextmanager
async def old(persistence: Persistence | None = None, **settings: Any) -> AsyncIterator[Old]:
    """A daemon with one slot, which answers `long` until the engine is thawed."""
    engine = Engine(answer_tokens=tabled({"long": 50, "short": 3}))
    engine.freeze()
    async with AsyncExitStack() as stack:
        backend = await stack.enter_async_context(serve_app(Replay(engine).app))
        daemon = await stack.enter_async_context(
            serving(backend, announced=True, persistence=persistence, **settings)
        )
        holder = await stack.enter_async_context(raw_client(daemon.base_url))
        holder.send(chat("long"))
        await engine.wait_until(lambda counts: counts.started == 1)
        yield Old(daemon, engine, backend, holder, settings)


def wanted(daemon: Daemon, host: str = "127.0.0.1") -> bytes:
    """Return what a new daemon sends that listens at a host and the port of this one."""
    return json.dumps({"addresses": [[host, int(daemon.base_url.rpartition(":")[2])]]}).encode()


def listens(daemon: Daemon) -> bool:
    with suppress(ConnectionError), socket.create_connection(("127.0.0.1", int(daemon.base_url[-5:]))):
        return True
    return False


async def ended(daemon: Daemon) -> None:
    async with asyncio.timeout(10):
        await daemon.run_until_stopped()


@pytest.mark.posix
async def test_nothing_is_lost_and_the_server_never_works_on_more_than_its_slots() -> None:
    async with (
        old() as before,
        raw_client(before.daemon.base_url) as idle,
        raw_client(before.daemon.base_url) as queued,
    ):
        assert (await idle.ask(HEALTH)).status == 200
        queued.send(chat("short"))
        await until(before.daemon, lambda state: state.waits == 1)
        async with before.replaced() as new:
            await until(new, lambda state: state.waits == 1)
            await until(before.daemon, lambda state: not state.waits)
            assert (await idle.ask(HEALTH)).status == 200
            await until(new, lambda _: len(new.connections.every) == 2)  # both were passed on
            (server,) = new.pool
            assert (server.room, server.standing) == (0, "shared")
            state = new.snapshot()
            assert (state.backends[0].slots, state.backends[0].busy, state.queue[0].cause) == (1, 1, "size")
            assert state.verdict.text == f"The daemon before this one still uses slots of {server.name}"
            assert before.engine.counts.started == 1
            before.engine.thaw()
            assert (await before.holder.response(b"POST")).whole
            assert (await queued.response(b"POST")).whole
            await ended(before.daemon)
            await until(new, lambda _: server.room == 1)
            assert before.engine.counts.started == 2
            assert (await idle.ask(chat("short"))).status == 200


def chunked(raw: bytes) -> bytes:
    """Return a request with its body in one chunk."""
    head, _, body = raw.partition(b"\r\n\r\n")
    head = head.replace(b"Content-Length: %d" % len(body), b"Transfer-Encoding: chunked")
    return head + b"\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


@pytest.mark.posix
@pytest.mark.parametrize("raw", [chat("short"), chat("short", "Connection: close"), chunked(chat("short"))])
async def test_a_request_that_is_passed_on_keeps_its_age(raw: bytes) -> None:
    async with old() as before, raw_client(before.daemon.base_url) as client:
        client.send(raw)
        await until(before.daemon, lambda state: state.waits == 1)
        (job,) = before.daemon.dispatcher.scheduler
        async with before.replaced() as new:
            await until(new, lambda state: state.waits == 1)
            (same,) = new.dispatcher.scheduler
            assert same.id == f"{job.id}.2"
            assert same.arrival_s == pytest.approx(job.arrival_s, abs=0.5)
            before.engine.thaw()
            assert (await client.response(b"POST")).status == 200


@pytest.mark.posix
@pytest.mark.parametrize("promoted", [False, True])
async def test_what_is_known_of_a_request_is_passed_on(promoted: bool) -> None:
    known = Programs(lambda ends: dict.fromkeys(ends, Program("ann")))
    async with old(programs=known) as before, raw_client(before.daemon.base_url) as client:
        client.send(chat("short"))
        scheduler, dispatcher = before.daemon.dispatcher.scheduler, before.daemon.dispatcher
        await until(before.daemon, lambda _: [job.client for job in scheduler] == ["ann"])
        (job,) = scheduler
        scheduler.reprioritise(job.id, 7, 0.0)
        dispatcher.set_urgency(dispatcher.live[job.id], 0, UrgencySource.OPERATOR)
        if promoted:
            scheduler.promote(job.id, 0.0)
        async with before.replaced(programs=known) as new:
            state = await until(new, lambda state: state.waits == 1)
            assert state.queue[0].cause == ("promoted" if promoted else "urgent")
            (same,) = new.dispatcher.scheduler
            assert (same.client, same.program) == ("ann", "ann")
            assert (same.rank, same.promoted) == (FIRST if promoted else 7.0, promoted)
            assert (same.urgency, same.urgency_by) == (0, UrgencySource.OPERATOR)
            before.engine.thaw()
            assert (await client.response(b"POST")).status == 200


@pytest.mark.posix
async def test_a_limit_of_a_client_holds_for_both_daemons_together(tmp_path: Path) -> None:
    limits = secret(tmp_path / "clients.toml", "[defaults]\nmax_running = 1\n")
    async with (
        old(clients=limits, slots=2) as before,
        before.replaced() as new,
        raw_client(new.base_url) as client,
    ):
        client.send(chat("short"))
        state = await until(new, lambda state: state.waits == 1)
        assert (new.pool.first.room, state.queue[0].cause) == (1, "limit")
        before.engine.thaw()
        assert (await client.response(b"POST")).whole
        assert (await before.holder.response(b"POST")).whole


class Saving(Kept):
    """Counts the states that are saved."""

    saved: int = 0

    def save(self, name: str, state: bytes) -> None:
        self.saved += 1


@pytest.mark.posix
async def test_a_replaced_daemon_saves_what_it_learned_once_and_never_again() -> None:
    kept = Saving()
    async with old(kept) as before:
        async with before.replaced():
            saved = kept.saved
            assert saved
            before.engine.thaw()
            assert (await before.holder.response(b"POST")).whole
            await ended(before.daemon)
            assert before.daemon.state_saver is not None
            before.daemon.state_saver.save()
            assert kept.saved == saved
        assert len(kept.finished_ones) == 1


@pytest.mark.posix
async def test_the_last_requests_of_a_replaced_daemon_are_in_the_sums() -> None:
    kept, served = Kept(), list[ServedRequest]()
    kept.served_since = lambda at: served  # type: ignore[method-assign]
    async with old() as before, before.replaced(persistence=kept) as new:
        assert not new.snapshot().gain.answers_today
        served.append(ServedRequest(time.time(), "short", "curl", 1.0, 2.0, 5.0, 0.0, "completed"))
        before.engine.thaw()
        assert (await before.holder.response(b"POST")).whole
        await ended(before.daemon)
        state = await until(new, lambda state: bool(state.gain.answers_today))
        assert (state.gain.answers_today, state.gain.saved_today_s) == (1, 5.0)


async def test_requests_wait_for_a_server_that_was_up_before_the_new_daemon_started() -> None:
    async with serving(NOWHERE, announced=True) as before:
        before.pool.first.status.seen = True
        listen = before.base_url.removeprefix("http://")
        async with (
            serving(NOWHERE, announced=True, replace=True, listen=listen) as new,
            raw_client(new.base_url) as client,
        ):
            client.send(chat("short"))
            await until(new, lambda state: state.waits == 1 and new.pool.first.away)


@pytest.mark.posix
async def test_the_old_daemon_goes_on_if_the_new_one_dies() -> None:
    async with old() as before:
        for _ in range(2):
            async with ControlClient(before.daemon.base_url) as control:
                lines = control.replace(wanted(before.daemon))
                assert not await anext(lines)
                assert list(json.loads(await anext(lines))["needs"].values()) == [1]
                await lines.aclose()
            await until(before.daemon, lambda _: not before.daemon.replaced and listens(before.daemon))
        before.engine.thaw()
        assert (await before.holder.response(b"POST")).whole
        async with raw_client(before.daemon.base_url) as client:
            assert (await client.ask(chat("short"))).status == 200


@pytest.mark.posix
async def test_clients_are_refused_once_the_new_daemon_has_stopped() -> None:
    async with old() as before:
        async with before.replaced() as new:
            assert listens(new)
        await until(before.daemon, lambda _: not listens(before.daemon))
        before.engine.thaw()
        assert (await before.holder.response(b"POST")).whole
        await ended(before.daemon)


async def test_what_waits_in_the_old_socket_is_served_where_sockets_cannot_be_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on Windows."""
    monkeypatch.setattr(place, "unix_listener", lambda folder: None)
    async with old() as before, raw_client(before.daemon.base_url) as queued:
        queued.send(chat("short"))
        await until(before.daemon, lambda state: state.waits == 1)
        async with before.replaced() as new:
            await until(new, lambda _: listens(new))
            async with raw_client(new.base_url) as client:
                assert (await client.ask(HEALTH)).status == 200
                await until(new, lambda _: len(new.connections.every) == 1)
            before.engine.thaw()
            assert (await before.holder.response(b"POST")).whole
            assert (await queued.response(b"POST")).status == 200
            await ended(before.daemon)


@pytest.mark.parametrize("name", [None, "api_key_file"])
async def test_only_the_operator_may_replace_a_daemon(tmp_path: Path, name: str | None) -> None:
    keys = secret(tmp_path / "keys", "ann:key-of-ann-that-is-long\n")
    settings: dict[str, Any] = {name: keys} if name else {}
    async with (
        serving(NOWHERE, announced=True, **settings) as daemon,
        raw_client(daemon.base_url) as client,
    ):
        answer = await client.ask(post("/_clairvoyant/replace", wanted(daemon), host="127.0.0.1"))
        assert answer.status == 401
        assert not daemon.replaced


@pytest.mark.parametrize(
    ("obstacle", "why"),
    [
        ("paused", "it is paused"),
        ("draining", "first run: clairvoyant act resume"),
        ("replaced", "another daemon is taking its place already"),
        ("elsewhere", "it listens on 127.0.0.1"),
        ("start", "would end with"),
    ],
)
async def test_a_daemon_that_cannot_be_replaced_goes_on(obstacle: str, why: str) -> None:
    async with serving(NOWHERE, announced=True) as daemon:
        daemon.dispatcher.scheduler.paused = obstacle == "paused"
        daemon.operation.draining = obstacle == "draining"
        daemon.replaced = obstacle == "replaced"
        daemon.config = replace(daemon.config, start="sleep 9" if obstacle == "start" else None)
        async with ControlClient(daemon.base_url) as control:
            with pytest.raises(ClairvoyantError, match=why):
                await anext(
                    control.replace(wanted(daemon, "::1" if obstacle == "elsewhere" else "127.0.0.1"))
                )
        async with raw_client(daemon.base_url) as client:
            assert (await client.ask(HEALTH)).status == 200


async def test_another_program_at_the_address_is_not_replaced() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ClairvoyantError, match="not by a daemon of this account"):
            async with serving(NOWHERE, replace=True, listen=listen):
                pass
