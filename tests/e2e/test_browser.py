"""What a page in Chromium reads through the proxy: with and without a key, waiting and refused.

Skipped where there is no Chromium. `CHROMIUM` names one; otherwise it is looked for in PATH.
"""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from clairvoyant_lab.asgi_server import serve_app
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse
from starlette.routing import Route

from clairvoyant_cli.proxy.requests import heartbeat
from tests.fakes.scripted_upstream import Conversation, answer, scripted
from tests.fakes.serving import secret, serving, until

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FOUND = (os.environ.get("CHROMIUM"), *map(shutil.which, NAMES))
CHROMIUM = next((each for each in FOUND if each), "")
ELSEWHERE = "page.example"  # a name of this machine that Chromium alone knows
KEY = "key-of-ann"
SSE = b'data: {"choices":[{"index":0,"delta":{"content":"river"}}]}\n\ndata: [DONE]\n\n'
CORS = ("Access-Control-Allow-Origin: *", "Access-Control-Allow-Headers: authorization, content-type")

PAGE = """<!doctype html><script>
const tell = (what) => fetch("/told", {method: "POST", body: JSON.stringify(what)});
const given = JSON.parse(GIVEN);
async function ask(name, key, early) {
  const headers = {"Content-Type": "application/json"};
  if (key) headers.Authorization = "Bearer " + key;
  const body = {model: "m", stream: true, messages: [{role: "user", content: name}]};
  const told = {name};
  try {
    const answer = await fetch(given.url, {method: "POST", headers, body: JSON.stringify(body)});
    told.status = answer.status;
    told.again = answer.headers.get("Retry-After");
    told.text = "";
    const reader = answer.body.getReader(), decoder = new TextDecoder();
    for (let part; !(part = await reader.read()).done;) {
      if (!told.text && early) early();
      told.text += decoder.decode(part.value);
    }
  } catch (error) { told.failed = String(error); }
  await tell(told);
}
async function main() {
  if (!given.key && location.hostname === given.elsewhere) {
    await ask("not allowed");
    location.replace(`http://localhost:${location.port}/`);
    return;
  }
  if (given.key) await ask("wrong key", "x" + given.key);
  if (given.key) await ask("no key", "");
  const [kept, begun] = [[], []];
  for (const name of ["first", "second"]) {
    await new Promise((resolve) => kept.push(ask(name, given.key, resolve)));
  }
  await ask("one too many", given.key);
  await tell({name: "release"});
  await Promise.all(kept);
  await tell({name: "end"});
}
main();
</script>"""


@asynccontextmanager
async def browsing(url: str, profile: Path) -> AsyncIterator[None]:
    """Open a page in a browser that has no profile yet."""
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={profile}")
    rules = f"--host-resolver-rules=MAP {ELSEWHERE} 127.0.0.1"
    null = asyncio.subprocess.DEVNULL
    browser = await asyncio.create_subprocess_exec(CHROMIUM, *flags, rules, url, stdout=null, stderr=null)
    try:
        yield
    finally:
        browser.terminate()
        await browser.wait()


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium: neither CHROMIUM nor PATH names one")
@pytest.mark.parametrize("key", ["", KEY], ids=["without a key", "with a key"])
async def test_a_page_reads_its_answers_and_its_refusals(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "EVERY_S", 0.1)
    release, done = asyncio.Event(), asyncio.Event()
    told: dict[str, Any] = {}

    async def serve(talk: Conversation) -> None:
        while True:
            if (await talk.request()).line.startswith(b"OPTIONS"):
                talk.send(answer(b"", *CORS))
                continue
            await release.wait()
            talk.send(answer(SSE, "Content-Type: text/event-stream", *CORS[:1]))

    async def page(_: Request) -> HTMLResponse:
        return HTMLResponse(PAGE.replace("GIVEN", json.dumps(json.dumps(given))))

    async def tell(request: Request) -> JSONResponse:
        said = await request.json()
        told[said.pop("name")] = said
        release.set() if "release" in told else None
        done.set() if "end" in told else None
        return JSONResponse({})

    keys = secret(tmp_path / "keys", f"ann: {KEY}")
    app = Starlette(routes=[Route("/", page), Route("/told", tell, methods=["POST"])])
    async with (
        scripted(serve) as up,
        serve_app(app) as site,
        serving(
            up.base_url, keep_alive="0.01", queue_capacity=1, api_key_file=keys if key else None
        ) as daemon,
    ):
        given = {"url": f"{daemon.base_url}/v1/chat/completions", "key": key, "elsewhere": ELSEWHERE}
        async with browsing(f"http://{ELSEWHERE}:{urlsplit(site).port}/", tmp_path / "profile"):
            async with asyncio.timeout(60):
                await done.wait()
        await until(daemon, lambda s: s.counters.completed == 2)
    assert not [said for said in told.values() if "failed" in said], told
    for name in ("first", "second"):
        assert (told[name]["status"], told[name]["text"].count("river")) == (200, 1)
    assert told["one too many"]["status"] == 503
    assert int(told["one too many"]["again"]) >= 1
    if key:  # which any page may use
        assert [told[name]["status"] for name in ("wrong key", "no key")] == [401, 401]
    else:
        assert (told["not allowed"]["status"], "--allow-origin" in told["not allowed"]["text"]) == (403, True)
