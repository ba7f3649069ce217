"""What a browser reads of the heads that the proxy makes itself, and where redirects lead."""

import json
import logging
from pathlib import Path

import pytest

from clairvoyant_cli.http.fields import Fields
from clairvoyant_cli.http.heads import RequestHead, ResponseHead
from clairvoyant_cli.proxy.access.page_fields import MOST_ORIGINS, PageFields
from clairvoyant_cli.proxy.requests import heartbeat
from tests.fakes.raw_http import Message, get, post, raw_client
from tests.fakes.scripted_upstream import always, answer, scripted, silent
from tests.fakes.serving import between, secret, serving

PAGE = "Origin: http://localhost:3000"
CHAT = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}]}).encode()
PREFLIGHT = ("Access-Control-Request-Method: POST", "Access-Control-Request-Headers: authorization")
OK = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nAccess-Control-Allow-Origin: *\r\n"
    b"Vary: X-Served\r\nCache-Control: no-store\r\nContent-Length: 2\r\n\r\n{}"
)


def asked(origin: str, method: bytes = b"POST") -> RequestHead:
    fields = [(b"Host", b"localhost"), *([(b"Origin", origin.encode())] if origin else [])]
    return RequestHead(method, b"/v1/chat/completions", Fields(fields))


def allows(*fields: tuple[bytes, bytes], status: int = 200) -> ResponseHead:
    return ResponseHead(status, b"", list(fields))


def test_fields_are_lent_to_the_origin_that_got_them_alone() -> None:
    pages = PageFields()
    pages.learn(asked("http://a"), allows((b"Access-Control-Allow-Origin", b"*"), (b"Cache-Control", b"x")))
    assert dict(pages.of_early_head(asked("http://a"))) == {
        b"Access-Control-Allow-Origin": b"*",
        b"Cache-Control": b"x",
        b"X-Accel-Buffering": b"no",
    }
    assert dict(pages.of_early_head(asked("http://b")))[b"Access-Control-Allow-Origin"] == b"http://b"
    assert not [name for name, _ in pages.of_early_head(asked("")) if name.startswith(b"Access")]


def test_a_server_that_allows_no_page_is_not_overruled() -> None:
    pages = PageFields()
    pages.learn(asked("http://a", b"OPTIONS"), allows(status=404))
    assert b"Access-Control-Allow-Origin" not in dict(pages.of_early_head(asked("http://a")))
    pages.learn(asked("http://a"), allows((b"Access-Control-Allow-Origin", b"http://a"), status=500))
    assert dict(pages.of_early_head(asked("http://a")))[b"Access-Control-Allow-Origin"] == b"http://a"


def test_origins_are_bounded() -> None:
    pages = PageFields()
    for number in range(2 * MOST_ORIGINS):
        pages.learn(asked(f"http://{number}"), allows((b"Access-Control-Allow-Origin", b"*")))
    assert len(pages._lent) == MOST_ORIGINS
    assert dict(pages.of_early_head(asked("http://0")))[b"Access-Control-Allow-Origin"] == b"http://0"


async def test_a_page_can_read_an_early_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "EVERY_S", 0.02)
    async with between(silent, keep_alive="0.01") as (_, client):
        client.send(post("/v1/chat/completions", CHAT, PAGE))
        early = await client.receive(b"\r\n\r\n")
    assert b"\r\nAccess-Control-Allow-Origin: http://localhost:3000\r\nVary: Origin\r\n" in early
    assert b"\r\nX-Accel-Buffering: no\r\n" in early


async def test_a_page_reads_its_refusal_and_the_log_names_the_flag(caplog: pytest.LogCaptureFixture) -> None:
    evil = "Origin: http://evil.example"
    async with between(always(OK)) as (_, client):
        with caplog.at_level(logging.WARNING, "clairvoyant"):
            preflight = await client.ask(get("/v1/chat/completions", evil, *PREFLIGHT, method="OPTIONS"))
            refused = [await client.ask(post("/v1/chat/completions", CHAT, evil)) for _ in range(2)]
    assert preflight.status == 204
    assert preflight.value("access-control-allow-headers") == b"authorization"
    assert [each.status for each in refused] == [403, 403]
    assert refused[0].value("access-control-allow-origin") == b"http://evil.example"
    assert refused[0].value("access-control-expose-headers") == b"Retry-After"
    assert b"--allow-origin" in refused[0].body
    assert caplog.text.count("--allow-origin http://evil.example") == 1


async def test_a_preflight_needs_no_key_and_is_given_none_of_ours(tmp_path: Path) -> None:
    keys = secret(tmp_path / "keys", "ann: key-of-ann")
    own = secret(tmp_path / "own", "secret-of-the-server")
    seen = list[Message]()
    page = "Origin: https://chat.example"
    async with between(always(OK, seen), api_key_file=keys, backend_key_file=own) as (_, client):
        preflight = await client.ask(get("/v1/models", page, *PREFLIGHT, method="OPTIONS"))
        other = await client.ask(get("/v1/models", page, method="OPTIONS"))
        refused = await client.ask(post("/v1/chat/completions", CHAT, page))
    assert (preflight.status, preflight.value("access-control-allow-origin")) == (200, b"*")
    assert [each.value("authorization") for each in seen] == [None]
    assert (other.status, refused.status) == (401, 401)
    assert refused.value("access-control-allow-origin") == b"https://chat.example"


@pytest.mark.parametrize(
    ("location", "here"),
    [
        ("http://{host}/v1/files/1?x=2", "/v1/files/1?x=2"),
        ("http://{host}", "/"),
        ("http://localhost:{port}/v1", "/v1"),
        ("http://{host}/llm/v1/x", "/v1/x"),
        ("/llm/v1/x", "/v1/x"),
        ("/llmother", "/llmother"),
        ("x", "x"),
        ("http://elsewhere.example/v1", "http://elsewhere.example/v1"),
        ("http://{host}//elsewhere.example", "http://{host}//elsewhere.example"),
        ("/llm//elsewhere.example", "/llm//elsewhere.example"),
    ],
)
async def test_a_redirect_does_not_lead_past_the_proxy(location: str, here: str) -> None:
    to = ""
    seen = list[Message]()

    def moved(request: Message) -> bytes:
        return answer(b"", f"Location: {to}", status="307 Temporary Redirect")

    async with scripted(always(moved, seen)) as up, serving(f"{up.base_url}/llm/v1") as daemon:
        host = up.base_url.removeprefix("http://")
        names = {"host": host, "port": host.rpartition(":")[2]}
        to = location.format(**names)
        async with raw_client(daemon.base_url) as client:
            got = await client.ask(get("/files/1"))
            await client.ask(get("/llm/files/1"))
    assert got.value("location") == here.format(**names).encode()
    assert [each for each in (request.target for request in seen) if each.endswith(b"/files/1")] == [
        b"/llm/files/1"
    ] * 2
