"""The same traffic by several ways to the same servers, in turns: sojourn times and throughput of each way.

    clairvoyant serve --listen 127.0.0.1:8081 --backend http://127.0.0.1:9001 --backend http://127.0.0.1:9002
    python -m tests.perf.perf_several_servers --prompts questions.jsonl.gz --rate 1.2 \\
        clairvoyant=http://127.0.0.1:8081 nginx=http://127.0.0.1:8082 ...

Start what is to be compared yourself, each before the same servers: this daemon; nginx with
`upstream { least_conn; server 127.0.0.1:9001; server 127.0.0.1:9002; }` and `proxy_buffering off`, or without
`least_conn`, which is round robin; LiteLLM with `router_settings: {routing_strategy: least-busy}` and each
server as a deployment of one model name.

Prompts are JSON lines with a `prompt`, gzipped or not. With `--simulated 9001=200 --simulated 9002=80`
simulated servers of so many tokens a second listen at these ports meanwhile, and answer with as many `tokens`
as a line says.
Arrivals are a Poisson stream of `--rate` a second, and are the same, of the same questions, for each way in
each round; answers are greedy, and so the same by each way, and at most `--most` tokens long, or as a line's
`max_tokens` says. What a way has to learn it may learn from `--warm` requests before it is first measured. At
a good rate the servers together are busy for some eight tenths of the time.
"""

import argparse
import asyncio
import json
import random
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from statistics import fmean

import httpx
from clairvoyant_lab.asgi_server import serve_app
from clairvoyant_lab.training.text_lines import lines_of

from clairvoyant_cli.demo.questions import QUESTIONS
from tests.fakes.replay_backend import Engine, Replay, Speed, tabled
from tests.perf.harness import Answer, ask, at_times, chat_body, many_connections, options, quantiles, turned

FIGURES = ("mean", "P50", "P95", "ttft50", "ttft95", "req/s", "tok/s", "failed")
Question = dict[str, str | int]


@dataclass(frozen=True, slots=True)
class Turn:
    """One way's turn: what came of each question, None where it failed, and the seconds of them all."""

    served: Sequence[Answer | None]
    took_s: float


def traffic(questions: Sequence[Question], count: int, rate: float, seed: int) -> dict[float, Question]:
    rng = random.Random(seed)
    at_s, arrivals = 0.0, {}
    for question in rng.sample(questions, count):
        arrivals[at_s] = question
        at_s += rng.expovariate(rate)
    return arrivals


async def turn(url: str, given: argparse.Namespace, arrivals: dict[float, Question]) -> Turn:
    questions = list(arrivals.values())
    async with many_connections(url) as client:

        async def one(number: int) -> Answer | None:
            prompt, most = str(questions[number]["prompt"]), questions[number].get("max_tokens", given.most)
            try:
                return await ask(client, chat_body(prompt, int(most), given.model))
            except httpx.HTTPError as error:
                print(f"  failed: {error!r}")
                return None

        begun_s = time.monotonic()
        return Turn(await at_times(list(arrivals), one), time.monotonic() - begun_s)


def told(name: str, turns: Sequence[Turn]) -> str:
    served = [each for turn in turns for each in turn.served]
    good = [each for each in served if each]
    whole_s, first_s = [each.whole_s for each in good], [each.first_s for each in good]
    times_s = [fmean(whole_s), *quantiles(whole_s, 0.5, 0.95), *quantiles(first_s, 0.5, 0.95)]
    took_s = sum(turn.took_s for turn in turns)
    rates = f"{len(good) / took_s:8.3f}{sum(each.pieces for each in good) / took_s:8.1f}"
    return f"{name:24}{''.join(f'{each:8.2f}' for each in times_s)}{rates}{len(served) - len(good):8d}"


async def reached(ways: dict[str, str]) -> bool:
    try:
        async with httpx.AsyncClient(trust_env=False) as client:
            answers = [await client.get(f"{url}/v1/models") for url in ways.values()]
            return all(answer.status_code == 200 for answer in answers)
    except httpx.HTTPError:
        return False


async def compare(ways: dict[str, str], given: argparse.Namespace) -> None:
    questions = sorted(map(json.loads, lines_of(given.prompts)), key=lambda each: str(each["prompt"]))
    lengths = tabled({each["prompt"]: each.get("tokens", 0) for each in questions})
    async with AsyncExitStack() as stack:
        for port, _, speed in (each.partition("=") for each in given.simulated):
            engine = Engine(speed=Speed(10_000.0, float(speed)), answer_tokens=lengths)
            await stack.enter_async_context(serve_app(Replay(engine).app, int(port)))
        while given.simulated and not await reached(ways):  # noqa: ASYNC110 - others say so
            await asyncio.sleep(1.0)
        for name, url in ways.items():
            await turn(url, given, traffic(questions, given.warm, given.rate, given.seed + 1000))
            print(f"warmed up: {name}", flush=True)
        turns: dict[str, list[Turn]] = {name: [] for name in ways}
        heading = f"{'':24}" + "".join(f"{each:>8}" for each in FIGURES)
        for number in range(given.rounds):
            arrivals = traffic(questions, given.requests, given.rate, given.seed + number)
            print(f"round {number + 1}, seconds of sojourn:\n{heading}", flush=True)
            for name in turned(list(ways), number):
                turns[name].append(await turn(ways[name], given, arrivals))
                print(told(name, turns[name][-1:]), flush=True)
        print(f"all rounds:\n{heading}", *(told(name, turns[name]) for name in ways), sep="\n")


def main() -> None:
    given = options(
        __doc__, "ways+", prompts=QUESTIONS, simulated=list[str](), requests=200, rounds=1, rate=1.0,
        most=400, warm=20, model="any", seed=1,
    )  # fmt: skip
    asyncio.run(compare(dict(each.split("=", 1) for each in given.ways), given))


if __name__ == "__main__":
    main()
