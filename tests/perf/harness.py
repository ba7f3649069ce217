"""What the measurements share: options, requests, daemons and upstreams."""

import argparse
import asyncio
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httptools
import httpx

from profiles.percentiles import percentile
from tests.fakes.daemon_process import DaemonProcess, daemon_process

ROOT = Path(__file__).resolve().parents[2]
CHAT = "/v1/chat/completions"


def options(about: str | None, *positional: str, **defaults: Any) -> argparse.Namespace:
    """Read the command line: an option for each default, of its type.

    False is a switch, a list may be given again and again, and a type is that of an option without default.
    A positional argument that ends in `+` takes several words.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in positional:
        parser.add_argument(name.rstrip("+"), nargs="+" if name.endswith("+") else None)
    for name, default in defaults.items():
        how: dict[str, Any] = {"type": type(default), "default": default}
        if default is False:
            how = {"action": "store_true"}
        elif isinstance(default, list):
            how = {"action": "append", "default": default}
        elif isinstance(default, type):
            how = {"type": default}
        parser.add_argument(f"--{name.replace('_', '-')}", **how)
    return parser.parse_args()


def quantiles(values: Sequence[float], *shares: float) -> list[float]:
    found = sorted(values)
    return [percentile(found, share) for share in shares]


# -- clients ------------------------------------------------------------------------------------------------


def chat_body(messages: str | list[dict[str, str]], tokens: int, model: str = "any") -> dict[str, Any]:
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    limits = {"max_tokens": tokens, "temperature": 0, "stream": True}
    return {"model": model, "messages": messages} | limits


# -- our commands -------------------------------------------------------------------------------------------


@contextmanager
def serving(backend: str, *flags: str, checkout: Path | None = None) -> Iterator[DaemonProcess]:
    with (
        tempfile.TemporaryDirectory() as home,
        daemon_process(backend, *flags, home=Path(home), checkout=checkout) as daemon,
    ):
        yield daemon


@contextmanager
def answering(command: Sequence[str], url: str, **variables: str) -> Iterator[int]:
    """Run another server until the block ends; yield its process id once it answers at a URL."""
    given = {"PATH": os.environ["PATH"]} | variables
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=given
    ) as process:
        try:
            for _ in range(600):
                try:
                    httpx.get(url, trust_env=False)
                    break
                except httpx.TransportError:
                    if process.poll() is not None:
                        raise RuntimeError(f"{command[0]} ended with {process.returncode}") from None
                    time.sleep(0.2)
            yield process.pid
        finally:
            process.kill()


# -- upstreams that cost next to nothing --------------------------------------------------------------------


class Upstream(asyncio.Protocol):
    """A hand-made server, so that what is measured is the proxy. `requested` answers each request."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.url, self.body = b"", bytearray()

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.requested(self.url.decode())

    def requested(self, url: str) -> None:
        raise NotImplementedError

    def answer(self, body: bytes, kind: str = "application/json", status: str = "200 OK") -> None:
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        self.transport.write(head.encode() + body)

    @classmethod
    def run(cls) -> None:
        """Serve on a free port, whose address is printed first, until killed."""

        async def serve() -> None:
            loop = asyncio.get_running_loop()
            server = await loop.create_server(cls, "127.0.0.1", 0, backlog=2048)
            print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
            await server.serve_forever()

        import uvloop  # there is none for Windows, where tests import this module

        uvloop.run(serve())
