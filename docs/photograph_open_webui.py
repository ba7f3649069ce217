"""Two users of Open WebUI in a browser, one with many requests: times the other's answers, and takes pictures.

Open WebUI must run at URL, behind the proxy, as docs/how-to/open-webui.md sets it up. Accounts are made where there are
none, and a model must be open to all of them. Needs `pip install httpx playwright`, and a Chromium.

    python docs/photograph_open_webui.py URL [--dashboard URL] [--rounds 3] [--out docs/screenshots]
"""

import argparse
import asyncio
import statistics
import time
from pathlib import Path

import httpx
from playwright.async_api import Browser, Page, async_playwright

PASSWORD = "only-for-a-picture"
ADMIN, ANN, BEN = (f"{name}@example.org" for name in ("admin", "ann", "ben"))
FLOOD = (
    "Write a detailed history of the city of Rome.",
    "Explain how a car engine works, step by step.",
    "Write a long story about a dragon and a baker.",
)
QUESTIONS = ("Why is the sky blue?", "How do I boil an egg?", "What does a carburettor do?")
PATIENCE_MS = 180_000
STILL = """addEventListener("DOMContentLoaded", () => {
    const style = document.createElement("style");
    style.textContent = "*, *::before, *::after { animation: none !important; transition: none !important }";
    document.head.append(style);
})"""
"""What keeps a page from drawing what moves, which would take the machine from the model."""


def make_accounts(url: str) -> None:
    """The first account is the administrator's, who makes the others."""
    with httpx.Client(base_url=f"{url}/api/v1/auths", timeout=120) as client:
        known = {"email": ADMIN, "password": PASSWORD}
        answer = client.post("/signup", json={"name": "Admin", **known})
        if answer.is_error:
            answer = client.post("/signin", json=known).raise_for_status()
        headers = {"Authorization": f"Bearer {answer.json()['token']}"}
        for email in (ANN, BEN):
            account = {
                "name": email.partition("@")[0].title(),
                "email": email,
                "password": PASSWORD,
                "role": "user",
            }
            client.post("/add", json=account, headers=headers)
        # Ben's answers are the same each time, so that what differs is the waiting; Ann's have an end.
        for email, params in ((BEN, {"temperature": 0, "max_tokens": 90}), (ANN, {"max_tokens": 1000})):
            theirs = client.post("/signin", json={"email": email, "password": PASSWORD}).raise_for_status()
            headers = {"Authorization": f"Bearer {theirs.json()['token']}"}
            settings = {"ui": {"params": params}}
            where = f"{url}/api/v1/users/user/settings/update"
            client.post(where, json=settings, headers=headers).raise_for_status()


async def signed_in(browser: Browser, url: str, email: str) -> Page:
    context = await browser.new_context(viewport={"width": 1000, "height": 640})
    await context.add_init_script(STILL)
    context.set_default_timeout(PATIENCE_MS)
    page = await context.new_page()
    await page.goto(f"{url}/auth")
    await page.fill("input[type=email]", email)
    await page.fill("input[type=password]", PASSWORD)
    await page.click("button[type=submit]")
    await page.wait_for_selector("#chat-input")
    return page


async def fresh_chat(page: Page, url: str, text: str) -> None:
    await page.goto(url)
    await page.click("#chat-input")
    await page.keyboard.insert_text(text)


async def asked(page: Page) -> float:
    """Send what was typed; return the seconds until the answer is whole."""
    began = time.perf_counter()
    await page.keyboard.press("Enter")
    await page.wait_for_selector(".copy-response-button", state="attached")
    return time.perf_counter() - began


async def typed(page: Page, url: str) -> list[Page]:
    """Have one user type as many questions as there are, each in a tab: what is sent is a key away."""
    tabs = [await page.context.new_page() for _ in FLOOD]
    for tab, text in zip(tabs, FLOOD, strict=True):
        await fresh_chat(tab, url, text)
    return tabs


async def end(tabs: list[Page]) -> None:
    """Stop what is being answered, and close."""
    for tab in tabs:
        stop = tab.locator("button[aria-label=Stop]")
        if await stop.count():
            await stop.first.evaluate("button => button.click()")  # at once, however busy the machine is
    await asyncio.sleep(1)
    for tab in tabs:
        await tab.close()


async def main(url: str, dashboard: str | None, rounds: int, out: Path, chromium: str) -> None:
    make_accounts(url)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        ann, ben = [await signed_in(browser, url, email) for email in (ANN, BEN)]
        ratios = []
        for number in range(rounds):
            question = QUESTIONS[number % len(QUESTIONS)]
            tabs = await typed(ann, url)
            await fresh_chat(ben, url, question)
            await asyncio.sleep(3)
            alone_s = await asked(ben)
            await fresh_chat(ben, url, question)
            await asyncio.sleep(8)  # its title and follow-ups
            for tab in tabs:
                await tab.keyboard.press("Enter")
            await asyncio.sleep(3)
            flooded = asyncio.create_task(asked(ben))
            if number == 0 and dashboard is not None:
                watcher = await browser.new_page(viewport={"width": 1280, "height": 720})
                await watcher.goto(dashboard)
            flooded_s = await flooded
            if number == 0:
                await ben.screenshot(path=out / "open-webui-ben.png")
                if dashboard is not None:
                    await asyncio.sleep(3)
                    upper = {"x": 0, "y": 0, "width": 1280, "height": 590}
                    await watcher.screenshot(path=out / "open-webui-top.png", clip=upper)
            await end(tabs)
            ratios.append(flooded_s / alone_s)
            print(
                f"{question} alone {alone_s:.2f} s, in the flood {flooded_s:.2f} s: {ratios[-1]:.2f} times",
                flush=True,
            )
        print(f"median of {rounds}: {statistics.median(ratios):.2f} times, worst {max(ratios):.2f}")
        await browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("url")
    parser.add_argument("--dashboard", help="`clairvoyant top --web` at this address, for a picture of it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "screenshots")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    given = parser.parse_args()
    asyncio.run(main(given.url.rstrip("/"), given.dashboard, given.rounds, given.out, given.chromium))
