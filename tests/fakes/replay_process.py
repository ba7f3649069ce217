"""The replay backend as a process: `python -m tests.fakes.replay_process` prints its address.

It listens where OLLAMA_HOST says, as Ollama does, unless a port is given.
"""

import asyncio
import os

import click
from clairvoyant_lab.asgi_server import serve_app

import tests.fakes.replay_dialects  # noqa: F401 - adds routes
from clairvoyant_cli.system import heed_signals
from tests.fakes.replay_backend import Engine, Replay, Speed


@click.command()
@click.option("--port", default=int(os.environ.get("OLLAMA_HOST", ":0").rpartition(":")[2]))
@click.option("--host", default="127.0.0.1")
@click.option("--slots", default=1)
@click.option("--decode", default=100.0)
@click.option("--prefill", default=2000.0)
def command(port: int, host: str, slots: int, decode: float, prefill: float) -> None:
    """Serve simulated answers until a signal, and print the address once it listens."""
    asyncio.run(_serve(Replay(Engine(slots=slots, speed=Speed(prefill, decode))), host, port))


async def _serve(replay: Replay, host: str, port: int) -> None:
    stopped = asyncio.Event()
    heed_signals(lambda _: stopped.set(), stopped.set)
    async with serve_app(replay.app, port, host) as base_url:
        click.echo(base_url)
        await stopped.wait()


if __name__ == "__main__":
    command()
