"""Authentication, client names and limits, through a running daemon."""

import asyncio
import json
import logging
import os
import re
import signal
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from clairvoyant_lab.asgi_server import serve_app

from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.proxy.composition import Daemon
from clairvoyant_cli.state.client import ControlClient
from clairvoyant_cli.state.snapshot import ClientState, Snapshot
from tests.fakes.daemon_process import daemon_process
from tests.fakes.raw_http import Message, RawClient, get, post, raw_client
from tests.fakes.replay_backend import Engine, Replay, Speed, tabled
from tests.fakes.scripted_upstream import Conversation, always, answer
from tests.fakes.serving import ByFirstWord, between, occupied, replaying, secret, serving, until

EVIL = "Origin: https://evil.example"
ANN, BEN = "key-of-ann", "key-of-ben"
HOLDER = '[clients.holder]\nkey = "key-of-holder"\n'
HOLDS = "X-Clairvoyant-Client: holder", "X-Api-Key: key-of-holder"
CHAT = "/v1/chat/completions"


def chat(*headers: str, content: str = "short", host: str = "tests", **more: object) -> bytes:
    body = {"model": "replay", "messages": [{"role": "user", "content": content}]} | more
    return post(CHAT, json.dumps(body).encode(), *headers, host=host)


@asynccontextmanager
async def heard(**settings: Any) -> AsyncIterator[tuple[list[Message], RawClient]]:
    """Yield what an upstream hears that answers everything, and a client."""
    seen: list[Message] = []
    async with heard_by(seen, **settings) as (_, client):
        yield seen, client


@asynccontextmanager
async def heard_by(
    seen: list[Message] | None = None, **settings: Any
) -> AsyncIterator[tuple[Daemon, RawClient]]:
    """Yield a daemon before an upstream that answers everything, and a client; `seen` takes what it hears."""
    seen = [] if seen is None else seen

    async with between(always(seen=seen), **settings) as (daemon, client):
        yield daemon, client


# -- pages ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/api/chat", "/v1/messages", CHAT, "/completion", "/api/pull", "/any"])
async def test_a_page_reaches_no_route(path: str) -> None:
    async with heard() as (seen, client):
        assert (await client.ask(post(path, b"{}"))).status == 200
        for raw in (
            post(path, b"{}", EVIL),
            post(path, b"{}", "Origin: null"),
            post(path, b"{}", host="a.b"),
        ):
            got = await client.ask(raw)
            assert got.status == 403
            error = json.loads(got.body)["error"]
            message = error if isinstance(error, str) else error["message"]
            assert message.startswith("clairvoyant: ")
            assert "--allow-" in message
        upgrade = get("/ws", EVIL, "Connection: Upgrade", "Upgrade: websocket")
        assert (await client.ask(upgrade)).status == 403
        assert len(seen) == 1


async def test_hosts_and_origins_that_were_allowed_are_let_in() -> None:
    async with heard(allow_host="a.b, c.d", allow_origin="https://evil.example,x://*") as (seen, client):
        for raw in (chat(EVIL), chat("Origin: x://y"), chat(host="a.b"), chat(host="c.d:80")):
            assert (await client.ask(raw)).status == 200
        assert (await client.ask(chat("Origin: y://y"))).status == 403
        assert len(seen) == 4


@pytest.mark.parametrize(
    ("setting", "given", "words"),
    [
        ("allow_host", "a.b:80", "'a.b:80' is not one"),
        ("allow_host", "*.b", "'*.b' is not one"),
        ("allow_origin", "https://a, chat.example", "'chat.example' is not one"),
    ],
)
async def test_what_could_never_match_does_not_start(setting: str, given: str, words: str) -> None:
    settings: dict[str, Any] = {setting: given}
    with pytest.raises(ClairvoyantError, match=re.escape(words)):
        async with serving("http://127.0.0.1:9", **settings):
            pass


async def test_who_brings_a_key_is_let_in_from_anywhere(tmp_path: Path) -> None:
    keys = secret(tmp_path / "keys", f"ann:{ANN}\nben:schlüssel\n")
    async with heard(api_key_file=keys) as (seen, client):
        foreign = chat(
            EVIL, "Sec-Fetch-Site: cross-site", f"Authorization: Bearer {ANN}", host="evil.example"
        )
        assert (await client.ask(foreign)).status == 200
        utf8 = chat("X-Api-Key: KEY").replace(b"KEY", "schlüssel".encode())
        assert (await client.ask(utf8)).status == 200
        assert (await client.ask(chat())).status == 401
        assert (await client.ask(chat("Authorization: Bearer", "X-Api-Key:"))).status == 401
        first_counts = chat("Authorization: Bearer wrong", f"Authorization: Bearer {ANN}")
        assert (await client.ask(first_counts)).status == 401
        assert len(seen) == 2
        assert not any(each.value("authorization") or each.value("x-api-key") for each in seen)


async def test_basic_authentication_has_the_key_as_its_password(tmp_path: Path) -> None:
    keys = secret(tmp_path / "keys", f"ann:{ANN}\nben:a:b:schlüssel\n")

    def basic(text: str, scheme: str = "Basic") -> str:
        return f"Authorization: {scheme} {b64encode(text.encode()).decode()}"

    async with heard(api_key_file=keys) as (seen, client):
        for right in (basic(f"anybody:{ANN}"), basic(f":{ANN}", "bAsIc "), basic("x:a:b:schlüssel")):
            assert (await client.ask(chat(right, host="box.example"))).status == 200
        wrong = (
            basic(f"ann:{ANN}x"),
            basic(ANN),
            basic(f"{ANN}:"),
            "Authorization: Basic é",
            basic(f"a:{ANN}", "X"),
        )
        for each in wrong:
            assert (await client.ask(chat(each))).status == 401, each
        for page in ((EVIL,), ("Sec-Fetch-Site: cross-site",)):  # browsers send it with any page's requests
            assert (await client.ask(chat(basic(f"ann:{ANN}"), *page))).status == 403
        assert len(seen) == 3
        assert not any(each.value("authorization") for each in seen)


async def test_the_backends_key_is_lent_to_no_page_and_put_on_no_trace(tmp_path: Path) -> None:
    key = secret(tmp_path / "backend", "backend-key")
    async with heard(backend_key_file=key) as (seen, client):
        assert (await client.ask(chat("Authorization: Bearer own"))).status == 200
        for method in ("TRACE", "trace"):  # a lenient backend takes either
            assert (await client.ask(get("/", "Authorization: Bearer own", method=method))).status == 200
        assert (await client.ask(chat(EVIL))).status == 403
    assert [each.value("authorization") for each in seen] == [b"Bearer backend-key", None, None]


# -- names ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "name", "logged"),
    [
        (b"ann", "ann", "client=ann"),
        ("zoë".encode(), "zoë", "client=zoë"),
        ("zoë".encode("latin-1"), "zoë", "client=zoë"),
        (b"a\x9bb", "a?b", "client=a?b"),
        ("a\x9bb".encode(), "a?b", "client=a?b"),
        ("a\u202eb".encode(), "a?b", "client=a?b"),
        (b"x" * 500, "x" * 64, "client=" + "x" * 64),
        (b"root outcome=done", "root outcome=done", 'client="root outcome=done"'),
        (b"a=b", "a=b", 'client="a=b"'),
        (b'a"b\\', 'a"b\\', 'client="a\\"b\\\\"'),
        (b"  ", "127.0.0.1", "client=127.0.0.1"),
    ],
)
async def test_a_name_is_shown_as_it_is_and_forges_nothing(
    given: bytes, name: str, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "clairvoyant")
    async with heard() as (_, client):
        raw = chat("X-Clairvoyant-Client: NAME", model="m 1=x").replace(b"NAME", given)
        assert (await client.ask(raw)).status == 200
        state = json.loads((await client.ask(get("/_clairvoyant/state", host="localhost"))).body)
    assert [each["client"] for each in state["recent"]] == [name]
    [line] = [record.getMessage() for record in caplog.records if CHAT in record.getMessage()]
    assert line.endswith(logged)
    assert ' model="m 1=x" class=' in line


# -- limits --------------------------------------------------------------------------------------------


async def waiting_priority(daemon: Daemon, *headers: str, **more: Any) -> int:
    async with raw_client(daemon.base_url) as client:
        client.send(chat(*headers, **more))
        state = await until(daemon, lambda s: len(s.queue) == 1)
    await until(daemon, lambda s: not s.queue)
    return state.queue[0].priority


async def test_a_client_may_only_step_back() -> None:
    async with occupied(*HOLDS) as (daemon, _):
        for wish, heeded in (("-100", 0), ("-1", 0), ("7", 7), ("9999", 100), ("high", 0), ("9" * 5000, 0)):
            assert await waiting_priority(daemon, f"X-Clairvoyant-Priority: {wish}") == heeded
        assert await waiting_priority(daemon, service_tier="priority") == 0
        assert await waiting_priority(daemon, service_tier="flex") == 1


CLIENTS = f"""
[defaults]
max_waiting = 1
priority = [5, 50]

[clients.ann]
key = "{ANN}"
priority = [-10, 10]
weight = 2

[clients.ben]
key = "{BEN}"
max_running = 1

{HOLDER}"""


async def test_each_client_has_its_limits(tmp_path: Path) -> None:
    async with occupied(*HOLDS, clients=secret(tmp_path / "clients.toml", CLIENTS)) as (daemon, _):
        ann, ben = f"X-Api-Key: {ANN}", f"X-Api-Key: {BEN}"
        assert await waiting_priority(daemon, ann, "X-Clairvoyant-Priority: -50") == -10
        assert await waiting_priority(daemon, ben) == 5
        async with raw_client(daemon.base_url) as one, raw_client(daemon.base_url) as two:
            one.send(chat(ann))
            await until(daemon, lambda s: len(s.queue) == 1)
            refused = await two.ask(chat(ann))
            assert (refused.status, refused.value("retry-after") is not None) == (503, True)
            assert json.loads(refused.body)["error"]["message"] == (
                "clairvoyant: ann has reached its queue limit; try again when a request is answered"
            )
            two.send(chat(ben))
            state = await until(daemon, lambda s: len(s.queue) == 2)
        assert {each.name: (each.waiting, each.running) for each in state.clients} == {
            "holder": (0, 1),
            "ann": (1, 0),
            "ben": (1, 0),
        }
        assert {each.name: each for each in state.clients}["ann"] == ClientState(
            "ann", 1, 0, 0, 2.0, 1, None, None, (-10, 10), ruled=True
        )


async def test_without_keys_a_name_is_shown_and_limits_hold_for_the_address(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = '[defaults]\nmax_waiting = 9\n[clients."127.0.0.1"]\nmax_waiting = 1\n[clients.ben]\n'
    file = secret(tmp_path / "clients.toml", text + '[[urgency]]\nclient = "boss"\nlevel = 0\n')
    async with (
        occupied(*HOLDS, clients=file) as (daemon, _),
        raw_client(daemon.base_url) as one,
        raw_client(daemon.base_url) as two,
    ):
        one.send(chat("X-Clairvoyant-Client: boss"))
        await until(daemon, lambda s: len(s.queue) == 1)
        refused = await two.ask(chat("X-Clairvoyant-Client: ben"))
        state = daemon.snapshot()
    assert (refused.status, b"127.0.0.1 has reached its queue limit" in refused.body) == (503, True)
    assert [(each.client, each.urgency) for each in state.queue] == [("boss", None)]
    assert [each.client for each in state.running] == ["holder"]
    assert {each.name: (each.waiting, each.running) for each in state.clients} == {
        "127.0.0.1": (1, 1),
        "ben": (0, 0),
    }
    [warned] = [record.getMessage() for record in caplog.records if "without keys" in record.getMessage()]
    assert warned.endswith("give a key or a program to: ben, boss")


@pytest.mark.skipif(sys.platform != "linux", reason="others have one loopback address unless more are added")
async def test_all_loopback_addresses_are_one_client(tmp_path: Path) -> None:
    file = secret(tmp_path / "clients.toml", "[defaults]\nmax_waiting = 1\n")
    async with occupied(*HOLDS, clients=file) as (daemon, _), raw_client(daemon.base_url) as one:
        one.send(chat())
        await until(daemon, lambda s: len(s.queue) == 1)
        place = urlsplit(daemon.base_url)
        reader, writer = await asyncio.open_connection(
            place.hostname, place.port, local_addr=("127.0.0.77", 0)
        )
        writer.write(chat())
        assert b" 503 " in await reader.readline()
        writer.close()


async def test_an_answer_that_was_given_up_counts_as_far_as_it_came(tmp_path: Path) -> None:
    engine = Engine(answer_tokens=tabled({"endless": 100_000}), speed=Speed(decode_tokens_per_s=1000))
    async with replaying(engine) as daemon, raw_client(daemon.base_url) as client:
        client.send(chat("X-Clairvoyant-Client: ann", content="endless", stream=True))
        await until(daemon, lambda s: bool(s.running) and s.running[0].tokens >= 20)
        client.leave()
        state = await until(daemon, lambda s: s.counters.client_cancelled == 1)
        assert state.clients[0].tokens >= 20
        client_left = daemon.stats.tokens["127.0.0.1"]
        async with raw_client(daemon.base_url) as unstreamed:
            unstreamed.send(chat("X-Clairvoyant-Client: ann", content="endless"))
            await until(daemon, lambda s: bool(s.running) and s.running[0].elapsed_s > 0.1)
        state = await until(daemon, lambda s: s.counters.client_cancelled == 2)
        assert client_left < state.clients[0].tokens < client_left + 550


UNREADABLE: dict[str, tuple[bytes, str]] = {
    "too long": (b"x" * 3 * 1024 * 1024, "Accept-Ranges: none"),
    "coded": (b"x" * 50, "Content-Encoding: gzip"),
    "silent": (b"{}", "Accept-Ranges: none"),
}
DELTA = b'data: {"type":"response.output_text.delta","delta":"w"}\n\n'
LONG_LAST = b'data: {"type":"response.completed","response":{"output":"' + b"w" * 200_000 + b'"}}\n\n'


async def tokens_counted(body: bytes, *headers: str, status: str = "200 OK") -> int:
    async def script(it: Conversation) -> None:
        await it.request()
        it.send(answer(body, *headers, status=status))

    async with between(script, ByFirstWord()) as (daemon, client):
        await client.ask(chat("X-Clairvoyant-Client: ann", content="1.0 of many words"))
        await until(daemon, lambda s: s.counters.completed + s.counters.upstream_error == 1)
        tokens: int = daemon.stats.tokens["127.0.0.1"]
        return tokens


@pytest.mark.parametrize("name", UNREADABLE)
async def test_an_answer_that_cannot_be_read_counts_by_its_time(name: str) -> None:
    body, header = UNREADABLE[name]
    assert await tokens_counted(body, "Content-Type: application/json", header) >= 1


async def test_a_stream_whose_end_cannot_be_read_counts_by_its_events() -> None:
    assert await tokens_counted(DELTA * 3000 + LONG_LAST, "Content-Type: text/event-stream") == 3000


async def test_a_refusal_of_the_backend_counts_for_nothing() -> None:
    body = UNREADABLE["too long"][0]
    assert await tokens_counted(body, "Content-Type: application/json", status="400 Bad Request") == 0


async def test_of_many_clients_the_busiest_are_shown(tmp_path: Path) -> None:
    file = secret(tmp_path / "clients.toml", "[clients.idle]\n")
    async with occupied(*HOLDS, clients=file) as (daemon, _):
        for number in range(100):
            daemon.stats.tokens.add(f"c{number}", 1 + number)
        shown = daemon.snapshot().clients
    assert [each.name for each in shown] == ["127.0.0.1", *(f"c{number}" for number in range(99, 50, -1))]


# -- the file is read again ----------------------------------------------------------------------------


async def test_a_file_that_is_read_again_holds_at_once(tmp_path: Path) -> None:
    path = tmp_path / "clients.toml"
    async with (
        occupied(*HOLDS, clients=secret(path, CLIENTS)) as (daemon, _),
        raw_client(daemon.base_url) as one,
        raw_client(daemon.base_url) as two,
        ControlClient(daemon.base_url, daemon.access.run_token) as control,
    ):
        one.send(chat(f"X-Api-Key: {ANN}"))
        await until(daemon, lambda s: len(s.queue) == 1)
        secret(path, '[clients.ann]\nkey = "another-key"\n[clients.cyd]\nkey = "key-of-cyd"\nweight = 3\n')
        told = await control.act("reload")
        assert told["note"] == f"reloaded {path}: 2 clients, 2 keys"
        assert (await two.ask(chat(f"X-Api-Key: {ANN}"))).status == 401
        assert (await two.ask(chat(f"X-Api-Key: {BEN}"))).status == 401
        two.send(chat("X-Api-Key: another-key"))
        state = await until(daemon, lambda s: len(s.queue) == 2)
        assert {each.name: (each.waiting, each.weight) for each in state.clients} == {
            "ann": (2, 1.0),
            "cyd": (0, 3.0),
            "holder": (0, 1.0),
        }
        secret(path, "[clients.ann]\nweight = 0\n")
        with pytest.raises(ClairvoyantError, match=r"\[clients.ann\] weight must be"):
            await control.act("reload")
        path.unlink()
        with pytest.raises(ClairvoyantError, match="cannot read the clients file"):
            await control.act("reload")
        state = daemon.snapshot()
        assert [each.name for each in state.clients if each.weight == 3.0] == ["cyd"]
        assert sum("the clients are unchanged: " in event.text for event in state.log) == 2


def _emptied(path: Path) -> None:
    path.write_text("")


def _keyless(path: Path) -> None:
    path.write_text("[clients.ann]\nweight = 2\n")


def _a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/null")


@pytest.mark.parametrize("setting", ["clients", "api_key_file"])
@pytest.mark.parametrize("become", [_emptied, _keyless, _a_directory, _nothing])
async def test_a_file_that_has_lost_its_keys_lets_nobody_in(
    tmp_path: Path, become: Callable[[Path], None], setting: str
) -> None:
    path = tmp_path / "clients"
    text = f"ann:{ANN}\n" if setting == "api_key_file" else f'[clients.ann]\nkey = "{ANN}"\n'
    settings: dict[str, Any] = {setting: secret(path, text)}
    async with heard_by(**settings) as (daemon, client):
        become(path)
        with pytest.raises(ClairvoyantError):
            await daemon.reload()
        assert (await client.ask(chat())).status == 401
        assert (await client.ask(chat(f"X-Api-Key: {ANN}"))).status == 200
        [line] = [each.text for each in daemon.snapshot().log if "clients are unchanged" in each.text]
        assert str(path) in line
        assert "\n" not in line


async def test_new_limits_apply_to_queued_requests(tmp_path: Path) -> None:
    path = tmp_path / "clients.toml"
    text = f'[clients.ann]\nkey = "{ANN}"\nmax_running = {{}}\n{HOLDER}'
    async with (
        occupied(*HOLDS, clients=secret(path, text.format(1)), slots=4) as (daemon, _),
        raw_client(daemon.base_url) as one,
        raw_client(daemon.base_url) as two,
    ):
        for client in (one, two):
            client.send(chat(f"X-Api-Key: {ANN}", content="endless"))
        await until(daemon, lambda s: (len(s.running), len(s.queue)) == (2, 1))
        secret(path, text.format(2))
        await daemon.reload()
        state = daemon.snapshot()
        assert (len(state.running), len(state.queue)) == (3, 0)


def waits(count: int, state: Snapshot) -> bool:
    return len(state.queue) == count


async def test_new_range_applies_to_queued_requests_but_not_to_the_operators_choice(tmp_path: Path) -> None:
    path = tmp_path / "clients.toml"
    text = f'[clients.ben]\nkey = "{BEN}"\n[clients.ann]\nkey = "{ANN}"\npriority = {{}}\n{HOLDER}'
    async with (
        occupied(*HOLDS, clients=secret(path, text.format("[-10, 100]"))) as (daemon, _),
        AsyncExitStack() as stack,
        ControlClient(daemon.base_url, daemon.access.run_token) as control,
    ):
        for number, key in enumerate((ANN, ANN, ANN, BEN), 1):
            client = await stack.enter_async_context(raw_client(daemon.base_url))
            client.send(chat(f"X-Api-Key: {key}", "X-Clairvoyant-Priority: -10"))
            await until(daemon, partial(waits, number))
        state = daemon.snapshot()
        anns = [each.id for each in state.queue if each.client == "ann"]
        await control.act("promote", {"id": anns[1]})
        await control.act("priority", {"id": anns[2], "priority": -5})
        secret(path, text.format("[50, 100]"))
        await control.act("reload")
        shown = [(each.client, each.priority, each.promoted) for each in daemon.snapshot().queue]
    assert shown == [("ann", -10, True), ("ann", -5, False), ("ben", 0, False), ("ann", 50, False)]


async def test_beyond_loopback_keys_are_demanded_and_short_ones_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "clairvoyant")
    path, token = tmp_path / "clients.toml", secret(tmp_path / "token", "token")
    settings: dict[str, Any] = {"listen": "0.0.0.0:0", "admin_token_file": token, "clients": str(path)}
    secret(path, "[clients.ann]\n")
    with pytest.raises(ClairvoyantError, match="has no API keys"):
        async with serving("http://127.0.0.1:9", **settings):
            pass
    secret(path, f'[clients.ann]\nkey = "{ANN}"\n[clients.ben]\nkey = "a-key-that-is-long-enough"\n')
    async with serving("http://127.0.0.1:9", **settings) as daemon:
        [warned] = [record.getMessage() for record in caplog.records if "guessed" in record.getMessage()]
        assert warned.endswith("for: ann")
        assert ANN not in warned
        secret(path, "[clients.ann]\n")
        with pytest.raises(ClairvoyantError, match="has no API keys"):
            await daemon.reload()
        assert daemon.access.clients.keys


@pytest.mark.posix
async def test_sighup_reads_the_file_again(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    secret(keys, f"ann:{ANN}\n")
    engine = Engine(answer_tokens=tabled({"short": 3}))
    async with serve_app(Replay(engine).app) as url, AsyncExitStack() as stack:
        started = daemon_process(url, "--api-key-file", str(keys), home=tmp_path)
        process = await asyncio.to_thread(stack.enter_context, started)
        client = await stack.enter_async_context(raw_client(process.base_url))
        assert (await client.ask(chat(f"X-Api-Key: {BEN}"))).status == 401
        secret(keys, f"ben:{BEN}\n")
        process.signal(signal.SIGHUP)
        await asyncio.to_thread(process.await_line, f"reloaded {keys}: 1 client, 1 key")
        assert (await client.ask(chat(f"X-Api-Key: {BEN}"))).status == 200
        secret(keys, "ben:\n")
        process.signal(signal.SIGHUP)
        await asyncio.to_thread(process.await_line, "the clients are unchanged")
        assert (await client.ask(chat(f"X-Api-Key: {BEN}"))).status == 200
    assert not any(BEN in line for line in process.lines)


@pytest.mark.posix
def test_a_terminal_that_is_closed_still_ends_the_daemon(tmp_path: Path) -> None:
    outside, inside = os.openpty()
    with daemon_process("http://127.0.0.1:9", home=tmp_path, stdin=inside) as process:
        os.close(inside)
        os.close(outside)
        process.signal(signal.SIGHUP)
        assert process.wait() == 0
