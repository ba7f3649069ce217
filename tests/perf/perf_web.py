"""The page of `top --web` in a real browser: on a desk and on a phone, with hostile names, and its cost.

Needs Chromium: python -m tests.perf.perf_web [FOLDER for pictures]
"""

import asyncio
import json
import sys
import tempfile
from pathlib import Path

import psutil

from clairvoyant_cli.commands.web import serving_pages
from clairvoyant_cli.demo.simulated_daemon import asked_daemon
from clairvoyant_cli.state.client import ControlClient
from tests.fakes.raw_http import post, raw_client
from tests.fakes.serving import until
from tests.perf.chromium import PROGRAM, Tab, tab
from tui.formatting import count, duration

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>alert(1)</script>"
SIZES = {"desk": (1440, 900, False), "phone": (390, 844, True)}
WATCHED_S = 20.0


async def _page(page: Tab, address: str, folder: Path) -> None:
    """Open it at each size: it draws, keeps its width and moves."""
    for name, (width, height, phone) in SIZES.items():
        await page.open(address, width, height, phone=phone)
        await page.until(
            "typeof state === 'object' && state && document.querySelectorAll('#queue tbody tr').length > 0"
        )
        at = await page.run("state.taken_at")
        await page.until(f"state.taken_at > {at} + 1")
        wide = await page.run("document.documentElement.scrollWidth")
        assert wide <= width, f"{name}: {wide} px wide on a screen of {width}"
        picture = await page.picture()
        (folder / f"{name}.png").write_bytes(picture)
        print(f"{name}: live, {wide} px wide, title {await page.run('document.title')!r}")


async def _figures(page: Tab) -> None:
    """Numbers are written as in the terminal."""
    values = [
        None,
        *(scale * digits for scale in (1e-3, 1e-2, 0.1, 1, 10, 100, 1e4, 1e6) for digits in (1, 3.37, 5.96)),
    ]
    for name, form in (("duration", duration), ("count", count)):
        written = await page.run(f"{json.dumps(values)}.map({name})")
        assert written == [form(value) for value in values], (name, values, written)
    shown = await page.run(
        "document.getElementById('verdict').textContent + document.getElementById('facts').textContent"
    )
    state = await page.run("[state.verdict.text, state.policy, state.waiting.total]")
    assert all(str(each) in shown for each in state), (shown, state)
    print("figures: as in the terminal")


async def _hands(page: Tab, control: ControlClient) -> None:
    """Enter never cancels; a second press of Cancel does; the queue moves under an open page."""
    row = "document.querySelector('#queue tbody tr:last-child')"
    await control.act("pause")
    await page.until("state.mode === 'paused' && state.queue.length > 2")
    ident = await page.run(f"{row}.click(), shown")
    assert await page.run("document.activeElement.className") == "close"
    await page.run("document.querySelector('[data-verb=promote]').click()")
    await page.until(f"state.queue[0].id === '{ident}'")
    await page.run("document.querySelector('[data-verb=hold]').click()")
    await page.until(f"state.queue.find((each) => each.id === '{ident}').held")
    assert not await page.run("document.querySelector('[data-verb=release]').hidden")
    await page.run("document.querySelector('[data-verb=cancel]').click()")
    assert await page.run("document.querySelector('[data-verb=cancel]').textContent.includes('?')")
    assert any(each.id == ident for each in (await control.snapshot()).queue)
    await page.run("document.querySelector('[data-verb=cancel]').click()")
    await page.until(f"!state.queue.some((each) => each.id === '{ident}')")
    await page.run("document.querySelector('.close').click()")
    await page.run("document.querySelector('#pause').click()")
    await page.until("state.mode === 'serving'")
    print("hands: promote, hold, cancel after two presses, resume")


async def main(folder: Path) -> None:
    """Check all of it."""
    async with asked_daemon() as daemon, tab() as page:
        async with (
            serving_pages("127.0.0.1:0", daemon.base_url, "a token") as address,
            ControlClient(daemon.base_url) as control,
            raw_client(daemon.base_url) as client,
        ):
            body = {"model": HOSTILE[:60], "messages": [{"role": "user", "content": HOSTILE}]}
            await control.act("pause")
            client.send(post("/api/chat", json.dumps(body).encode(), f"X-Clairvoyant-Client: {HOSTILE[:60]}"))
            await until(daemon, lambda s: any(HOSTILE[:20] in row.client for row in s.queue))
            await _page(page, address, folder)
            assert await page.run("document.cookie") == "", "a script can read the cookie"
            assert await page.run("document.querySelectorAll('img, script').length") == 1, (
                "a name became HTML"
            )
            assert "owned" not in await page.run("document.title")
            await _figures(page)
            await _hands(page, control)
            mine = psutil.Process()
            before = sum(mine.cpu_times()[:2])
            states = await page.run(
                "let seen = 0; const draws = draw; draw = () => { seen += 1; draws(); }; 0"
            )
            await asyncio.sleep(WATCHED_S)
            states = await page.run("seen")
            spent = sum(mine.cpu_times()[:2]) - before
            bytes_ = await page.run("JSON.stringify(state).length")
            print(
                f"cost: {states / WATCHED_S:.1f} drawings/s, {bytes_ / 1e3:.0f} kB a state,"
                f" {spent / WATCHED_S:.1%} of a core for daemon, its load and the relay"
            )
        await page.until("lost.includes('no connection')")
        assert "stale" in await page.run("document.getElementById('main').className")
        print("lost: said")
        assert all("net::ERR_" in each for each in page.complaints), page.complaints
        print("console: nothing but the lost connection")


if __name__ == "__main__":
    if PROGRAM is None:
        sys.exit("no Chromium: apt-get install chromium")
    pictures = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    pictures.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(pictures))
