"""A headless Chromium, driven over its debugging pipe: no other package is needed."""

import asyncio
import base64
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE_S = 30.0


class Tab:
    """One page. `complaints` are what it wrote to the console, and its exceptions."""

    def __init__(self, reader: asyncio.StreamReader, send: Any) -> None:
        self.complaints: list[str] = []
        self._send = send
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._session = ""
        self._reading = asyncio.create_task(self._read(reader))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while True:
            message = json.loads((await reader.readuntil(b"\0"))[:-1])
            if "id" in message:
                self._answers.pop(message["id"]).set_result(message)
            elif message["method"] in (
                "Runtime.consoleAPICalled",
                "Runtime.exceptionThrown",
                "Log.entryAdded",
            ):
                self.complaints.append(json.dumps(message["params"]))

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol."""
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": params}
        self._send(
            json.dumps(message | ({"sessionId": self._session} if self._session else {})).encode() + b"\0"
        )
        async with asyncio.timeout(PATIENCE_S):
            told = await answer
        assert "error" not in told, (method, told)
        return dict(told["result"])

    async def attach(self) -> None:
        """Open the tab."""
        target = (await self.call("Target.createTarget", url="about:blank"))["targetId"]
        self._session = (await self.call("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        for domain in ("Runtime", "Log", "Page"):
            await self.call(f"{domain}.enable")

    async def open(self, url: str, width: int, height: int, *, phone: bool = False) -> None:
        """Load a page at a size."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2,
            mobile=phone,
        )
        await self.call("Page.navigate", url=url)

    async def run(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        told = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    async def until(self, script: str) -> Any:
        """Return the value of an expression once it is true."""
        async with asyncio.timeout(PATIENCE_S):
            while not (value := await self.run(script)):  # noqa: ASYNC110 - a page has no events for this side
                await asyncio.sleep(0.05)
        return value

    async def picture(self) -> bytes:
        """Return a screenshot."""
        return base64.b64decode((await self.call("Page.captureScreenshot", format="png"))["data"])


@asynccontextmanager
async def tab() -> AsyncIterator[Tab]:
    """Start a browser with one tab."""
    assert PROGRAM is not None
    (hear, told), (asked, tell) = os.pipe(), os.pipe()
    os.set_inheritable(asked, True)
    os.set_inheritable(told, True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        flags = f"--headless=new --no-sandbox --disable-gpu --remote-debugging-pipe --user-data-dir={folder}"
        line = f'exec "{PROGRAM}" {flags} 3<&{asked} 4>&{told} 2>/dev/null'  # dash knows ten descriptors
        browser = await asyncio.create_subprocess_exec("bash", "-c", line, pass_fds=(asked, told))
        os.close(asked)
        os.close(told)
        reader = asyncio.StreamReader(limit=1 << 26)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(hear, "rb")
        )
        page = Tab(reader, lambda data: os.write(tell, data))
        try:
            await page.attach()
            yield page
        finally:
            page._reading.cancel()
            transport.close()
            os.close(tell)
            browser.terminate()
            await browser.wait()
