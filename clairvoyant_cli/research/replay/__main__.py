"""`python -m clairvoyant_cli.research.replay`: the replay backend as a process of its own."""

import asyncio

import click

from clairvoyant_cli.research.bench.asgi_server import serve_app
from clairvoyant_cli.research.replay import DEFAULT_MODEL, Engine, Replay, Speed
from clairvoyant_cli.system import heed_signals


@click.command()
@click.option("--port", default=0, show_default=True, help="Port to listen on; 0 takes a free one.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--slots", type=click.IntRange(min=1), default=1, show_default=True, help="Answers at once.")
@click.option("--decode", type=float, default=100.0, show_default=True, help="Answer tokens per second.")
@click.option("--prefill", type=float, default=2000.0, show_default=True, help="Prompt tokens per second.")
@click.option("--model", "models", multiple=True, default=[DEFAULT_MODEL], show_default=True)
@click.option("--resume", type=float, help="Seconds to resume a cut answer.  [default: its prefill]")
@click.option("--seed", default=0, show_default=True, help="Seed of the answers' lengths and words.")
def command(
    port: int,
    host: str,
    slots: int,
    decode: float,
    prefill: float,
    models: tuple[str, ...],
    resume: float | None,
    seed: int,
) -> None:
    """Serve simulated answers, and print the address once it listens."""
    engine = Engine(slots=slots, speed=Speed(prefill, decode), seed=seed, resume_s=resume)
    asyncio.run(_serve(Replay(engine, models), host, port))


async def _serve(replay: Replay, host: str, port: int) -> None:
    stopped = asyncio.Event()
    heed_signals(lambda _: stopped.set(), stopped.set)
    async with serve_app(replay.app, port, host) as base_url:
        click.echo(base_url)
        await stopped.wait()


if __name__ == "__main__":
    command()
