"""Several `--listen` addresses, of which all but the first may still be in use."""

import asyncio
import logging
import socket

import pytest

from clairvoyant_cli.config import ServeConfig
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.proxy import listening_socket
from tests.fakes.llamacpp_server import free_port
from tests.fakes.raw_http import raw_client
from tests.fakes.scripted_upstream import always, scripted
from tests.fakes.serving import serving, until
from tests.proxy.test_outage import Server, asks


def test_addresses_are_separated_by_commas() -> None:
    config = ServeConfig(listen="127.0.0.1:1,[::1]:2,:3")
    assert config.addresses() == [("127.0.0.1", 1), ("::1", 2), ("0.0.0.0", 3)]  # noqa: S104 - compared
    with pytest.raises(ClairvoyantError, match="listen must be HOST:PORT, not 'here'"):
        ServeConfig(listen="127.0.0.1:1,here")


def test_each_address_beyond_loopback_needs_keys() -> None:
    async def serve() -> None:
        async with serving("http://127.0.0.1:9", listen="127.0.0.1:0,0.0.0.0:0"):
            pass

    with pytest.raises(ClairvoyantError, match="reachable from other machines"):
        asyncio.run(serve())


async def test_clients_are_served_at_every_address() -> None:
    other = free_port()
    listen = f"127.0.0.1:0,127.0.0.1:{other}"
    async with scripted(always()) as upstream, serving(upstream.base_url, listen=listen) as daemon:
        for url in (daemon.base_url, f"http://127.0.0.1:{other}"):
            async with raw_client(url) as client:
                client.send(asks("river"))
                assert (await client.response()).status == 200


async def test_the_proxys_other_addresses_are_no_servers() -> None:
    other = free_port()
    with pytest.raises(ClairvoyantError, match="own address"):
        async with serving(f"http://127.0.0.1:{other}", listen=f"127.0.0.1:0,127.0.0.1:{other}"):
            pass


async def test_the_first_address_must_be_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ClairvoyantError, match="the port is taken"):
            async with serving("http://127.0.0.1:9", listen=listen):
                pass


async def test_an_address_in_use_is_taken_when_it_is_free_and_requests_wait_for_the_moved_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    server = Server()  # starts at its new address after the old one is free
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    async with serving(server.base_url, listen=f"127.0.0.1:0,127.0.0.1:{port}") as daemon:
        assert f"127.0.0.1:{port} is in use" in caplog.text
        async with raw_client(daemon.base_url) as client:
            client.send(asks("early"))
            assert (await client.response()).status == 503  # no server was ever here
        taken.close()
        await until(daemon, lambda _: f"listening on 127.0.0.1:{port} as well" in caplog.text)
        async with raw_client(f"http://127.0.0.1:{port}") as client:
            client.send(asks("river"))
            await until(daemon, lambda state: len(state.queue) == 1)
            await server.start()
            assert (await client.response()).status == 200
    assert server.seen == ["river"]
    await server.stop()


async def test_an_address_that_disappears_while_it_is_in_use_is_taken_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other, listen, calls = free_port(), listening_socket.listen_if_free, list[int]()

    def sometimes(host: str, port: int, flag: str = "--listen") -> socket.socket | None:
        if port != other:
            return listen(host, port, flag)
        calls.append(port)
        if len(calls) == 2:
            raise ClairvoyantError("cannot assign requested address")
        return listen(host, port, flag) if len(calls) > 2 else None

    monkeypatch.setattr(listening_socket, "listen_if_free", sometimes)
    listens = f"127.0.0.1:0,127.0.0.1:{other}"
    async with scripted(always()) as upstream, serving(upstream.base_url, listen=listens) as daemon:
        await until(daemon, lambda s: any("listening on" in each.text for each in s.log))
        async with raw_client(f"http://127.0.0.1:{other}") as client:
            client.send(asks("river"))
            assert (await client.response()).status == 200
