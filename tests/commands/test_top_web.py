"""`top --web` lets in whom the daemon lets in, and no page of another site."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from clairvoyant_cli.commands.top import command as top
from clairvoyant_cli.errors import ClairvoyantError

pytest.importorskip("textual_serve", reason="the extra [web] is not installed")

from aiohttp import web

from clairvoyant_cli.commands.web import COOKIE, Pages

KNOWN = {"Cookie": f"{COOKIE}=let-me-in"}


@asynccontextmanager
async def pages(token: str | None) -> AsyncIterator[httpx.AsyncClient]:
    served = Pages(("true", "a b"), "127.0.0.1", 0, token)
    runner = web.AppRunner(await served._make_app())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as client:
            yield client
    finally:
        await runner.cleanup()


async def test_the_token_is_asked_for_once_and_kept_in_a_cookie_that_pages_cannot_read() -> None:
    async with pages("let-me-in") as client:
        for wrong in ("/", "/?token=no", "/static/js/textual.js", "/ws"):
            assert (await client.get(wrong)).status_code == 401, wrong
        welcome = await client.get("/?token=let-me-in")
        assert (welcome.status_code, welcome.headers["location"]) == (303, "/")
        assert "HttpOnly" in welcome.headers["set-cookie"]
        assert "SameSite=Strict" in welcome.headers["set-cookie"]
        page = await client.get("/")
        assert page.status_code == 200
        assert f"ws://{client.base_url.netloc.decode()}/ws" in page.text
        assert "default-src 'self'" in page.headers["content-security-policy"]


@pytest.mark.parametrize("headers", [{"Origin": "http://evil.example"}, {"Host": "evil.example"}])
@pytest.mark.parametrize("path", ["/", "/ws"])
async def test_other_sites_see_nothing_even_with_the_cookie(path: str, headers: dict[str, str]) -> None:
    async with pages("let-me-in") as client:
        assert (await client.get(path, headers=KNOWN | headers)).status_code == 403
    async with pages(None) as client:
        assert (await client.get(path, headers=headers)).status_code == 403
        assert (await client.get("/")).status_code == 200


async def test_the_command_is_one_and_fixed_and_no_shell_stays() -> None:
    served = Pages(("echo", "a b; echo $HOME", "`id`"), "127.0.0.1", 0, None)
    done = await asyncio.create_subprocess_shell(served.command, stdout=asyncio.subprocess.PIPE)
    printed, _ = await done.communicate()
    assert printed == b"a b; echo $HOME `id`\n"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--web", "0.0.0.0:0"), "beyond loopback --web wants the daemon's admin token"),
        (("--web", "7118"), "give HOST:PORT"),
        (("--web", "--once"), "it excludes the other modes"),
    ],
)
def test_what_is_refused_is_said_in_one_line(words: tuple[str, ...], why: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(top, [*words, "--url", "http://127.0.0.1:1"], env={"HOME": str(tmp_path)})
    assert isinstance(done.exception, ClairvoyantError)
    assert why in str(done.exception)
