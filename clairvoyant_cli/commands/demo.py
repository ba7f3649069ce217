"""`clairvoyant demo`: race the same burst first-come-first-served and shortest-first."""

import asyncio
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from shutil import which

import click
from rich.live import Live
from rich.text import Text

from clairvoyant_cli.commands.console import PlainConsole
from clairvoyant_cli.commands.options import Range, option_with_default
from clairvoyant_cli.commands.service import own_program
from clairvoyant_cli.demo.questions import Call, Question
from clairvoyant_cli.demo.race import (
    MOST_QUESTIONS,
    Lane,
    Narrator,
    draw,
    frame,
    race,
    result_table,
)
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.system import for_shell

LANES = {"fcfs": "First come, first served", "sjf": "Shortest first"}


@click.command()
@option_with_default(
    "--speed",
    Range(1, 20_000),
    250.0,
    "Tokens per second of the simulated backend.",
    "tokens_per_s",
)
@option_with_default(
    "--requests",
    click.IntRange(2, MOST_QUESTIONS),
    12,
    "Questions in the burst: half are short, the others medium and long.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the questions and their order.")
def command(tokens_per_s: float, requests: int, seed: int) -> None:
    """Watch shortest-first beat first-come-first-served.

    Starts two simulated LLM servers that answer one question at a time, with a proxy before each, and sends
    both the same burst at the same time. Nothing leaves this machine, and no model is needed.
    """
    lanes = asyncio.run(raced(tokens_per_s, draw(requests, seed)))
    console = PlainConsole()
    before, after = lanes
    console.print(result_table(before, after, f"{requests} questions to a simulated backend"))
    # As it was called: a new environment need not be on PATH.
    program = "clairvoyant" if which("clairvoyant") else for_shell(*own_program())
    console.print(Text.assemble("Before your own server: ", (f"{program} serve", "bold")))
    _refuse_failures(lanes)


async def raced(tokens_per_s: float, questions: Sequence[Question]) -> list[Lane]:
    """Race the questions through both orders, and show the race."""
    from clairvoyant_cli.demo.simulated_daemon import simulated_daemon

    async with AsyncExitStack() as stack:
        lanes = []
        for policy, title in LANES.items():
            opened = simulated_daemon(questions, tokens_per_s, policy=policy)
            daemon = await stack.enter_async_context(opened)
            lanes.append(Lane(policy, title, daemon, [Call(each) for each in questions]))
        await _race(lanes, tokens_per_s)
        return lanes


async def _race(lanes: Sequence[Lane], tokens_per_s: float) -> None:
    """Run the race, drawn on a terminal or printed in lines."""
    headline = f"Simulated backend: {tokens_per_s:g} tokens/s, one answer at a time"
    console = PlainConsole(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal or "NO_COLOR" in os.environ:
        console.print(headline, highlight=False)
        await race(lanes, Narrator(console))
        return
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:

        def draw_frame(lanes: Sequence[Lane], elapsed_s: float) -> None:
            live.update(frame(lanes, elapsed_s, headline, live.console.height), refresh=True)

        await race(lanes, draw_frame)


def _refuse_failures(lanes: Sequence[Lane]) -> None:
    calls = [call for lane in lanes for call in lane.calls]
    failed = [call for call in calls if call.error is not None]
    if failed:
        why = failed[0].error
        raise ClairvoyantError(f"{len(failed)} of {len(calls)} requests failed, the first with: {why}")
