"""The same traffic by several ways to the same servers, in turns: sojourn times and throughput of each way.

    clairvoyant serve --listen 127.0.0.1:8081 --backend http://127.0.0.1:9001 --backend http://127.0.0.1:9002
    python tests/perf/perf_several_servers.py --prompts questions.jsonl.gz --rate 1.2 \\
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
import gzip
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from clairvoyant_lab.asgi_server import serve_app  # noqa: E402

from clairvoyant_cli.demo.prompts import SHIPPED  # noqa: E402
from profiles.percentiles import percentile  # noqa: E402
from tests.fakes.replay_backend import Engine, Replay, Speed, tabled  # noqa: E402

FIGURES = ("mean", "P50", "P95", "ttft50", "ttft95", "req/s", "tok/s", "failed")


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, for how many tokens at most, and when: seconds after the first."""

    prompt: str
    most: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Served:
    """What came of a question: seconds to its first piece and to its end, and its pieces; 0 if it failed."""

    first_s: float
    whole_s: float
    pieces: int


@dataclass(frozen=True, slots=True)
class Turn:
    """One way's turn: what came of each question, and the seconds from the first to the last answer's end."""

    served: Sequence[Served]
    took_s: float

    @property
    def good(self) -> list[Served]:
        return [each for each in self.served if each.pieces]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A line of the prompts' file: its text, its answer's tokens, 0 where it does not say, and the limit."""

    text: str
    tokens: int
    most: int


def read(path: Path, most: int) -> list[Prompt]:
    """Return the prompts of a file; `most` is the limit of those that set none."""
    data = path.read_bytes()
    lines = (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines()
    asked = (json.loads(line) for line in lines if line.strip())
    found = (Prompt(e["prompt"], e.get("tokens", 0), e.get("max_tokens", most)) for e in asked)
    return sorted(found, key=lambda prompt: prompt.text)


def traffic(prompts: Sequence[Prompt], count: int, rate: float, seed: int) -> list[Question]:
    """Draw questions, none twice, with their arrivals."""
    rng = random.Random(seed)
    at_s, questions = 0.0, []
    for prompt in rng.sample(prompts, count):
        questions.append(Question(prompt.text, prompt.most, at_s))
        at_s += rng.expovariate(rate)
    return questions


async def ask(client: httpx.AsyncClient, model: str, question: Question) -> Served:
    """Ask and read the whole answer."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question.prompt}],
        "stream": True,
        "temperature": 0,
        "max_tokens": question.most,
    }
    begun_s, first_s, pieces = time.monotonic(), 0.0, 0
    try:
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                if answer.status_code == 200 and line.startswith("data: {"):
                    first_s = first_s or time.monotonic() - begun_s
                    pieces += 1
    except httpx.HTTPError as error:
        print(f"  failed: {error!r}")
        pieces = 0
    return Served(first_s, time.monotonic() - begun_s, pieces)


async def turn(url: str, model: str, questions: Sequence[Question]) -> Turn:
    """Let all questions come to one way at their times."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits, trust_env=False) as client:  # noqa: S113
        begun_s = time.monotonic()

        async def one(question: Question) -> Served:
            await asyncio.sleep(max(0.0, begun_s + question.at_s - time.monotonic()))
            return await ask(client, model, question)

        served = await asyncio.gather(*(one(each) for each in questions))
        return Turn(served, time.monotonic() - begun_s)


def told(name: str, turns: Sequence[Turn]) -> str:
    good = [each for turn in turns for each in turn.good]
    whole_s = sorted(each.whole_s for each in good)
    first_s = sorted(each.first_s for each in good)
    took_s = sum(turn.took_s for turn in turns)
    pieces = sum(each.pieces for each in good)
    failed = sum(len(turn.served) for turn in turns) - len(good)
    times_s = [statistics.fmean(whole_s)]
    times_s += [percentile(each, share) for each in (whole_s, first_s) for share in (0.5, 0.95)]
    told_s = "".join(f"{each:8.2f}" for each in times_s)
    return f"{name:24}{told_s}{len(good) / took_s:8.3f}{pieces / took_s:8.1f}{failed:8d}"


async def run(ways: dict[str, str], args: argparse.Namespace) -> None:
    """Compare, with simulated servers if there are to be any."""
    lengths = tabled({each.text: each.tokens for each in read(args.prompts, args.most)})
    async with AsyncExitStack() as stack:
        for port, _, speed in (each.partition("=") for each in args.simulated):
            engine = Engine(speed=Speed(10_000.0, float(speed)), answer_tokens=lengths)
            await stack.enter_async_context(serve_app(Replay(engine).app, int(port)))
        while args.simulated and not await reached(ways):  # noqa: ASYNC110 - others say so
            await asyncio.sleep(1.0)
        await compare(ways, args)


async def reached(ways: dict[str, str]) -> bool:
    """Whether every way leads to a server by now."""
    try:
        async with httpx.AsyncClient(trust_env=False) as client:
            answers = [await client.get(f"{url}/v1/models") for url in ways.values()]
            return all(answer.status_code == 200 for answer in answers)
    except httpx.HTTPError:
        return False


async def compare(ways: dict[str, str], args: argparse.Namespace) -> None:
    prompts = read(args.prompts, args.most)
    warm = traffic(prompts, args.warm, args.rate, args.seed + 1000)
    for name, url in ways.items():
        await turn(url, args.model, warm)
        print(f"warmed up: {name}", flush=True)
    turns: dict[str, list[Turn]] = {name: [] for name in ways}
    heading = "".join(f"{each:>8}" for each in FIGURES)
    for number in range(args.rounds):
        questions = traffic(prompts, args.requests, args.rate, args.seed + number)
        order = list(ways)[number % len(ways) :] + list(ways)[: number % len(ways)]
        print(f"round {number + 1}, seconds of sojourn:\n{'':24}{heading}", flush=True)
        for name in order:
            done = await turn(ways[name], args.model, questions)
            turns[name].append(done)
            print(told(name, [done]), flush=True)
    print(f"all rounds:\n{'':24}{heading}")
    for name in ways:
        print(told(name, turns[name]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ways", nargs="+", metavar="NAME=URL")
    parser.add_argument("--prompts", type=Path, default=SHIPPED)
    parser.add_argument("--simulated", action="append", default=[], metavar="PORT=TOKENS_PER_S")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--rate", type=float, default=1.0)
    parser.add_argument("--most", type=int, default=400)
    parser.add_argument("--warm", type=int, default=20)
    parser.add_argument("--model", default="any")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    ways = {name: url for name, _, url in (each.partition("=") for each in args.ways)}
    asyncio.run(run(ways, args))


if __name__ == "__main__":
    main()
