"""`top --web`: a page of the daemon's state, for clients with access only and for no page of another site."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from click.testing import CliRunner

from clairvoyant_cli.commands import web, web_panels
from clairvoyant_cli.commands.top import command as top
from clairvoyant_cli.commands.web import COOKIE, VERBS, serving_pages
from clairvoyant_cli.config import ServeConfig
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.proxy.composition import Daemon
from clairvoyant_cli.state.actions import COMMANDS
from clairvoyant_cli.state.encoding import decode
from tests.e2e.test_browser import CHROMIUM
from tests.fakes.raw_http import chat, raw_client
from tests.fakes.replay_backend import Engine, Replay
from tests.fakes.serving import asked, replaying, secret, until
from tui.board_panels import BY_NAME
from tui.palette import THEMES
from tui.panels import clients
from tui.view_state import ViewState

TOKEN = "the-admin-token"  # noqa: S105 - of the test


@dataclass
class Browser:
    """A client of the page, and the daemon behind it."""

    client: httpx.AsyncClient
    daemon: Daemon
    address: str

    @property
    def known(self) -> dict[str, str]:
        return {"Cookie": f"{COOKIE}={self.address.partition('token=')[2]}"}

    async def events(self, looks: str = "") -> AsyncGenerator[tuple[str, str], None]:
        """Yield what the page is sent: the kind of each event, and its data."""
        kind = "message"
        async with self.client.stream("GET", f"/events{looks}", headers=self.known) as answer:
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                if line.startswith("event: "):
                    kind = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    yield kind, line.removeprefix("data: ")
                    kind = "message"

    async def act(self, verb: str, body: Any = None, **headers: str) -> httpx.Response:
        sent = {"Content-Type": "application/json"} | self.known | headers
        return await self.client.post(f"/actions/{verb}", content=json.dumps(body or {}), headers=sent)


@asynccontextmanager
async def browser(
    tmp_path: Path | None,
    *,
    token: str | None = TOKEN,
    readonly: bool = False,
    waiting: int = 1,
    **settings: Any,
) -> AsyncIterator[Browser]:
    """A daemon with one request running and some waiting, and its page, with an admin token or without."""
    if token is not None and tmp_path is not None:
        settings["admin_token_file"] = secret(tmp_path / "token", token)
    backend = Replay(Engine())
    backend.engine.freeze()
    async with (
        replaying(backend, slots=1, **settings) as daemon,
        asked(daemon, *(chat(f"{number} <img src=x onerror=alert(1)>") for number in range(waiting + 1))),
        serving_pages("127.0.0.1:0", daemon.base_url, token, ServeConfig(), readonly=readonly) as address,
        httpx.AsyncClient(base_url=address.partition("?")[0]) as client,
    ):
        yield Browser(client, daemon, address)


# -- access -----------------------------------------------------------------------------------------------


async def test_the_token_is_asked_for_once_and_kept_in_a_cookie_that_scripts_cannot_read(
    tmp_path: Path,
) -> None:
    async with browser(tmp_path) as it:
        for wrong in ("/", "/?token=no", f"/?token={TOKEN}", "/events"):
            assert (await it.client.get(wrong)).status_code == 401, wrong
            bad = await it.client.get(wrong, headers={"Cookie": f"{COOKIE}=no"})
            assert bad.status_code == 401, wrong
        for verb in COMMANDS:
            assert (await it.act(verb, Cookie="")).status_code == 401
        welcome = await it.client.get("/" + it.address.partition("/?")[2].join(("?", "")))
        assert (welcome.status_code, welcome.headers["location"]) == (303, "/")
        cookie = welcome.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        it.client.cookies.clear()
        page = await it.client.get("/", headers=it.known)
        assert page.status_code == 200
        assert page.headers["cache-control"] == "no-store"
        assert TOKEN not in it.address + cookie + page.text, "the daemon's token stays at home"


async def test_cookies_of_other_programs_on_the_host_may_have_any_form(tmp_path: Path) -> None:
    others = 'prefs={"a": 1}; a[b]=1; x@y'
    async with browser(tmp_path) as it:
        known = {"Cookie": f"{others}; {it.known['Cookie']}; _xsrf=2|a|b"}
        assert (await it.client.get("/", headers=known)).status_code == 200
        assert (await it.client.get("/", headers={"Cookie": others})).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example:7118"},
        {"Host": "evil.local"},
        {"Host": "wpad"},
        {"Host": "host.docker.internal"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
@pytest.mark.parametrize("token", [TOKEN, None])
async def test_other_sites_see_nothing_and_do_nothing_even_with_the_cookie(
    headers: dict[str, str], token: str | None, tmp_path: Path
) -> None:
    async with browser(tmp_path, token=token) as it:
        assert (await it.client.get("/", headers=it.known)).status_code == 200
        for path in ("/", "/events"):
            assert (await it.client.get(path, headers=it.known | headers)).status_code == 403
        assert (await it.act("pause", **headers)).status_code == 403
        assert it.daemon.snapshot().mode == "serving"


async def test_a_secret_lets_into_the_page_that_it_was_printed_for_and_into_no_other(tmp_path: Path) -> None:
    async with browser(tmp_path, readonly=True) as it:
        address = str(it.client.base_url).removeprefix("http://").rstrip("/")
        for readonly in (True, False):
            other = serving_pages("127.0.0.1:0", it.daemon.base_url, TOKEN, ServeConfig(), readonly=readonly)
            async with other as url:
                assert (await it.client.get(url.partition("?")[0], headers=it.known)).status_code == 401
        secrets = {web.secret_of(TOKEN, address, readonly=readonly) for readonly in (True, False)}
        assert len(secrets) == 2
        assert it.known["Cookie"].partition("=")[2] in secrets


async def test_a_request_without_a_host_is_refused() -> None:
    async with browser(None, token=None) as it, raw_client(str(it.client.base_url).rstrip("/")) as client:
        assert (await client.ask(b"GET / HTTP/1.0\r\n\r\n")).status == 403


async def test_not_more_pages_than_there_is_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "MAX_PAGES", 1)
    async with browser(tmp_path) as it:
        events = it.events()
        await anext(events)
        assert (await it.client.get("/events", headers=it.known)).status_code == 503
        assert (await it.client.head("/events", headers=it.known)).status_code == 503
        await events.aclose()


# -- what the page is -------------------------------------------------------------------------------------


def test_the_page_loads_and_runs_nothing_but_itself() -> None:
    page = Path(web.__file__).with_name("web.html").read_text(encoding="utf-8")
    assert page.count("\n") < 600
    assert not re.findall(r"""(?:src|href)\s*=\s*["']?(?!data:,)[^"'>\s]+|@import|url\(""", page)
    for unsafe in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
        assert unsafe not in page
    assert not re.search(r"<[^>]*\s(?:on\w+|style)\s*=", page), "an attribute that the policy forbids"


async def test_the_policy_allows_the_page_s_own_script_and_nothing_else(tmp_path: Path) -> None:
    for readonly in (False, True):
        async with browser(tmp_path, readonly=readonly) as it:
            page = await it.client.get("/", headers=it.known)
        policy = page.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'sha256-")
        assert "unsafe" not in policy
        assert ('<body class="readonly">' in page.text) is readonly


# -- what it is sent --------------------------------------------------------------------------------------


async def test_the_page_is_sent_the_daemon_s_own_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "ROWS", 2)
    async with browser(tmp_path, waiting=3) as it:
        events = it.events()
        kind, _ = await anext(events)
        assert kind == "past"
        kind, data = await anext(events)
        assert kind == "message"
        state, own = decode(data.encode()), it.daemon.snapshot()
        assert [row.id for row in state.queue] == [row.id for row in own.queue[:2]]
        assert state.waits == own.waits == 3
        assert (state.verdict, state.gain, state.policy) == (own.verdict, own.gain, own.policy)
        await it.act("pause")
        while decode(data.encode()).mode != "paused":
            _, data = await anext(events)
        await events.aclose()


async def test_the_graph_begins_with_the_daemon_s_history_and_goes_on(tmp_path: Path) -> None:
    async with browser(tmp_path, waiting=2) as it:
        state = it.daemon.snapshot()
        it.daemon.recorder.history.record(replace(state, taken_at=state.taken_at - 60.0))
        async with (
            serving_pages("127.0.0.1:0", it.daemon.base_url, TOKEN, ServeConfig()) as address,
            httpx.AsyncClient(base_url=address.partition("?")[0]) as client,
        ):
            again = replace(it, client=client, address=address)
            events = again.events()
            while (await anext(events))[0] != "message":
                pass
            await events.aclose()
            events = again.events()
            _, past = await anext(events)
            await events.aclose()
    (then, *drawn), (now, *drawn_now) = msgspec.json.decode(past)
    assert now - then == pytest.approx(60.0, abs=5.0)
    assert drawn == drawn_now == [2, 0.0]


async def test_a_page_is_told_that_the_daemon_is_lost() -> None:
    async with (
        serving_pages("127.0.0.1:0", "http://127.0.0.1:9", None, ServeConfig()) as address,
        httpx.AsyncClient(base_url=address) as client,
        client.stream("GET", "/events") as answer,
    ):
        lines = answer.aiter_lines()
        while (line := await anext(lines)) != "event: lost":
            assert not line.startswith("data: {")
        assert "no daemon answers at http://127.0.0.1:9" in await anext(lines)


def test_the_page_has_the_colours_of_the_terminal() -> None:
    night, day = (theme for theme in THEMES if theme.name in ("night", "day"))
    dark, light, _ = web_panels.style().split("@media")
    for theme, css in ((night, dark), (day, light)):
        for name, colour in (("ground", theme.background), ("accent", theme.accent), ("alert", theme.error)):
            assert f"--{name}: {colour};" in css


@pytest.mark.parametrize("left", [46, 104])
async def test_the_panels_are_those_of_the_terminal_at_the_page_s_width(left: int, tmp_path: Path) -> None:
    async with browser(tmp_path, waiting=25) as it:
        wanted = it.daemon.snapshot().queue[3].id
        events = it.events(f"?left={left}&right=60&shown={wanted}")
        told = {}
        while "panels" not in told:
            kind, data = await anext(events)
            told[kind] = data
        await events.aclose()
    state, told = decode(told["message"].encode()), json.loads(told["panels"])
    panels = {panel["name"]: panel for panel in told["panels"]}
    assert {name: panel["key"] for name, panel in panels.items() if name in BY_NAME} == {
        name: record.key for name, record in BY_NAME.items()
    }
    queue = panels["queue"]
    shown = 20 if left < web_panels.NARROW else 25
    assert [row[0] for row in queue["rows"]] == [row.id for row in state.queue][:shown]
    assert queue["more"] == 25 - shown
    cells = [sum(len(text) for text, _ in cell) for cell in queue["rows"][0][2]]
    assert sum(cells) + len(cells) - 1 <= left
    assert panels["clients"]["lines"] == [
        [list(each) for each in line] for line in clients.body(ViewState("", snapshot=state), 60, 40)
    ]
    assert "waiting" in json.dumps(told["detail"])
    assert panels["sessions"]["none"], "it has no rows, and is not shown"


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium: neither CHROMIUM nor PATH names one")
async def test_a_browser_draws_names_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = web.Relay.events

    async def ended(relay: web.Relay, looks: web.Looks | None) -> AsyncIterator[bytes]:
        async for event in whole(relay, looks):
            yield event
            if event.startswith(b"event: panels"):
                return  # the browser waits for the end of what it loads

    monkeypatch.setattr(web.Relay, "events", ended)
    async with browser(tmp_path, waiting=3, show_prompts=True) as it:
        flags = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}")
        asks = ("--virtual-time-budget=900", "--dump-dom", it.address)
        pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        chromium = await asyncio.create_subprocess_exec(CHROMIUM, *flags, *asks, stdout=pipe, stderr=null)
        page = (await chromium.communicate())[0].decode()
        rows = [row.id for row in it.daemon.snapshot().queue]
    assert "<img" not in page
    assert "&lt;img src=x on" in page, "as text, of which as much as fits"
    assert [page.index(f'data-id="{each}"') for each in rows] == sorted(
        page.index(f'data-id="{each}"') for each in rows
    )
    for name in BY_NAME:
        assert f'<section id="{name}"' in page, name


# -- what it may do ---------------------------------------------------------------------------------------


async def test_the_page_moves_and_cancels_requests_and_pauses(tmp_path: Path) -> None:
    async with browser(tmp_path, waiting=2) as it:
        last = it.daemon.snapshot().queue[-1].id
        for verb, holds in (
            ("hold", lambda s: any(row.held for row in s.queue)),
            ("release", lambda s: not any(row.held for row in s.queue)),
            ("promote", lambda s: s.queue[0].id == last and s.queue[0].promoted),
            ("cancel", lambda s: len(s.queue) == 1),
        ):
            assert (await it.act(verb, {"id": last})).json() == {"done": verb}
            await until(it.daemon, holds)
        for verb, mode in (("pause", "paused"), ("drain", "draining"), ("resume", "serving")):
            assert (await it.act(verb)).status_code == 200
            assert it.daemon.snapshot().mode == mode
        for verb, body in (("policy", {"policy": "fcfs"}), ("tau", {"tau_s": "40"})):
            assert (await it.act(verb, body)).status_code == 200
        await until(it.daemon, lambda s: (s.policy, s.tau.tau_s) == ("fcfs", 40.0))
        assert (await it.act("tau", {"tau_s": "soon"})).json() == {
            "error": "the daemon refused it: tau_s must be a number"
        }
        gone = await it.act("promote", {"id": last})
        assert gone.status_code == 409
        assert "has started or ended" in gone.json()["error"]


async def test_the_page_does_nothing_else(tmp_path: Path) -> None:
    async with browser(tmp_path) as it:
        for verb in (*(each for each in COMMANDS if each not in VERBS), "nonsense"):
            assert (await it.act(verb, {"policy": "fcfs"})).status_code == 403
        assert (await it.act("pause", **{"Content-Type": "text/plain"})).status_code == 400
        for body in ([1], {"id": 7}, {"id": {"a": 1}}):
            assert (await it.act("cancel", body)).status_code == 400
        state = it.daemon.snapshot()
        assert (state.mode, len(state.queue)) == ("serving", 1)


async def test_a_page_that_is_readonly_does_nothing(tmp_path: Path) -> None:
    async with browser(tmp_path, readonly=True) as it:
        for verb in COMMANDS:
            assert (await it.act(verb, {"id": it.daemon.snapshot().queue[0].id})).status_code == 403
        assert it.daemon.snapshot().mode == "serving"


# -- the command ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--web", "0.0.0.0:0"), "beyond loopback --web wants the daemon's admin token"),
        (("--web", "7118"), "--web must be HOST:PORT"),
        (("--web", "127.0.0.1:70000"), "--web must be HOST:PORT"),
        (("--web", "--demo"), "it excludes the other modes"),
    ],
)
def test_what_is_refused_is_said_in_one_line(words: tuple[str, ...], why: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(top, [*words, "--url", "http://127.0.0.1:1"], env={"HOME": str(tmp_path)})
    assert isinstance(done.exception, ClairvoyantError)
    assert why in str(done.exception)


async def test_a_taken_port_names_the_option() -> None:
    async with serving_pages("127.0.0.1:0", "http://127.0.0.1:9", None, ServeConfig()) as address:
        with pytest.raises(ClairvoyantError, match="choose another with --web"):
            async with serving_pages(
                address.removeprefix("http://").rstrip("/"), "http://127.0.0.1:9", None, ServeConfig()
            ):
                pass
