"""`clairvoyant demo`: race the same burst first-come-first-served and shortest-first."""

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
from rich.live import Live
from rich.text import Text

from clairvoyant_cli.backends.adapters import adapter_of
from clairvoyant_cli.commands.console import PlainConsole
from clairvoyant_cli.commands.options import Input, json_option
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.research.bench.client import Asker, Call
from clairvoyant_cli.research.bench.prompts import Question
from clairvoyant_cli.research.bench.race import (
    MOST_QUESTIONS,
    Lane,
    Narrator,
    change_of,
    draw,
    frame,
    race,
    result_table,
)
from clairvoyant_cli.research.bench.real_model import model_file, real_server
from clairvoyant_cli.research.bench.summary import by_class
from clairvoyant_cli.scheduler.policy import DEFAULT_POLICY
from predictor.record import LengthClass

MAX_REAL_TOKENS = 400
"""The limit of a real answer: on one core of a laptop the demo takes under two minutes."""

TITLES = ("First come, first served", "Shortest first")


@dataclass(frozen=True, slots=True)
class Settings:
    """What the demo shows; with `model` a real one."""

    tokens_per_s: float
    requests: int
    seed: int
    model: Path | None = None

    @property
    def policies(self) -> tuple[str, str]:
        """The policies that race.

        `sjf` orders by P(Long), and no answer cut at `MAX_REAL_TOKENS` can be Long.
        """
        return ("fcfs", "sjf") if self.model is None else ("fcfs", DEFAULT_POLICY)

    @property
    def backend(self) -> str:
        """The backend, in words."""
        return "simulated backend" if self.model is None else f"real llama.cpp server with {self.model.stem}"

    @property
    def headline(self) -> str:
        """The headline of the race."""
        if self.model is not None:
            return f"{self.backend}, one core and one answer at a time on each side"
        return f"Simulated backend: {self.tokens_per_s:g} tokens/s, one answer at a time"


@click.command()
@click.option(
    "--speed",
    "tokens_per_s",
    type=click.FloatRange(min=1.0, max=20_000.0),
    default=250.0,
    show_default=True,
    help="Tokens per second of the simulated backend.",
)
@click.option(
    "--requests",
    type=click.IntRange(2, MOST_QUESTIONS),
    default=12,
    show_default=True,
    help="Questions in the burst; half are short.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the questions and their order.")
@click.option(
    "--real",
    is_flag=True,
    help="Use a real llama.cpp server with SmolLM2 (93 MB, downloaded once), on one core per side.",
)
@click.option("--gguf", type=Input(most_bytes=None), metavar="FILE", help="With --real: your own model.")
@json_option("Print the result as JSON, and nothing else.")
def command(
    tokens_per_s: float, requests: int, seed: int, real: bool, gguf: Path | None, as_json: bool
) -> None:
    """Watch shortest-first beat first-come-first-served.

    Starts two simulated LLM servers that answer one question at a time, with a proxy before each, and sends
    both the same burst at the same time. Nothing leaves this machine, and no model is needed.
    """
    if gguf is not None and not real:
        raise ClairvoyantError("--gguf goes with --real", ExitCode.USAGE)
    settings = Settings(tokens_per_s, requests, seed, (gguf or model_file()) if real else None)
    lanes, took_s = asyncio.run(_run(settings, as_json=as_json))
    if as_json:
        click.echo(json.dumps(_result(settings, lanes, took_s), indent=2))
    else:
        console = PlainConsole()
        before, after = lanes
        console.print(result_table(before, after, f"{settings.requests} questions to a {settings.backend}"))
        console.print(Text.assemble("Before your own server: ", ("clairvoyant serve", "bold")))
    _refuse_failures(lanes)


async def _run(settings: Settings, *, as_json: bool) -> tuple[list[Lane], float]:
    questions = draw(settings.requests, settings.seed)
    asker = Asker("replay")
    if settings.model is not None:
        questions = [replace(question, max_tokens=MAX_REAL_TOKENS) for question in questions]
        asker = Asker(settings.model.stem, adapter_of("llamacpp"), keeps_words=True)
    async with AsyncExitStack() as stack:
        lanes = [
            await stack.enter_async_context(_lane(policy, title, questions, settings))
            for policy, title in zip(settings.policies, TITLES, strict=True)
        ]
        took_s = await _race(lanes, asker, settings, as_json=as_json)
    for call in (call for lane in lanes for call in lane.calls):
        call.question = replace(call.question, known_class=LengthClass.of(call.tokens))
    return lanes, took_s


async def _race(lanes: Sequence[Lane], asker: Asker, settings: Settings, *, as_json: bool) -> float:
    """Run the race, drawn on a terminal or printed in lines."""
    if as_json:
        return await race(lanes, asker, lambda lanes, elapsed_s: None)
    console = PlainConsole(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal or "NO_COLOR" in os.environ:
        console.print(settings.headline, highlight=False)
        return await race(lanes, asker, Narrator(console))
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:

        def draw_frame(lanes: Sequence[Lane], elapsed_s: float) -> None:
            live.update(frame(lanes, elapsed_s, settings.headline, live.console.height), refresh=True)

        return await race(lanes, asker, draw_frame)


@asynccontextmanager
async def _lane(
    policy: str, title: str, questions: Sequence[Question], settings: Settings
) -> AsyncIterator[Lane]:
    """Start a backend and a daemon before it."""
    import predictor
    from clairvoyant_cli.commands.embedded_daemon import speed_of
    from clairvoyant_cli.config import ServeConfig
    from clairvoyant_cli.proxy.daemon import running_daemon
    from clairvoyant_cli.research.bench.asgi_server import serve_app
    from clairvoyant_cli.research.replay import Engine, Replay, tabled

    logging.getLogger("clairvoyant").setLevel(logging.ERROR)
    lengths = tabled({question.prompt: question.tokens for question in questions})
    engine = Engine(speed=speed_of(settings.tokens_per_s), answer_tokens=lengths)
    server = serve_app(Replay(engine).app) if settings.model is None else real_server(settings.model)
    async with server as url:
        config = ServeConfig(policy=policy, backend=url, listen="127.0.0.1:0", show_prompts=True)
        async with running_daemon(config, predictor.load()) as daemon:
            yield Lane(policy, title, daemon, [Call(each) for each in questions])


def _result(settings: Settings, lanes: Sequence[Lane], took_s: float) -> dict[str, Any]:
    before, after = (by_class(lane.calls) for lane in lanes)
    return {
        "simulated_backend": settings.model is None,
        "settings": asdict(settings) | {"model": settings.model and settings.model.name},
        "took_s": took_s,
        "lanes": {
            lane.policy: {
                "sojourn": {name: asdict(sojourn) for name, sojourn in sojourns.items()},
                "requests": [
                    {
                        "title": call.question.title,
                        "class": call.question.length_class,
                        "tokens": call.tokens,
                        "sojourn_s": call.sojourn_s,
                        "error": call.error,
                        "words": call.words,
                    }
                    for call in lane.calls
                ],
            }
            for lane, sojourns in zip(lanes, (before, after), strict=True)
        },
        "change_of_mean": {
            name: change_of(before[name].mean_s, after[name].mean_s) for name in before if name in after
        },
    }


def _refuse_failures(lanes: Sequence[Lane]) -> None:
    calls = [call for lane in lanes for call in lane.calls]
    failed = [call for call in calls if call.error is not None]
    if failed:
        raise ClairvoyantError(
            f"{len(failed)} of {len(calls)} requests failed, the first with: {failed[0].error}"
        )
