"""What returning to the cache it left is worth to a conversation: the time to first token of second turns.

Two real servers of a slot each, two conversations at a time, and their second turns in the other order, one
after the other; with and without what tells conversations, in turns:

python -m tests.perf.perf_affinity URL URL [--pairs 6]
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from random import Random

import httpx

from clairvoyant_cli.config import BackendConfig, ServeConfig
from clairvoyant_cli.http.request import Piece
from clairvoyant_cli.protocols import request_parsing
from clairvoyant_cli.protocols.conversation import NO_CONVERSATION, Conversation, read_conversation
from clairvoyant_cli.proxy.daemon import running_daemon
from predictor import load

WORDS = "stone river lamp winter garden letter bridge candle harbour orchard mirror thunder saddle".split()
OPENING_WORDS = 250
ANSWER_TOKENS = 12


async def read_nothing(pieces: Sequence[Piece], model: str) -> Conversation:
    """Return that nothing is known of a conversation."""
    return NO_CONVERSATION


async def said(client: httpx.AsyncClient, turns: list[dict[str, str]]) -> tuple[float, str]:
    """Ask the next turn; return the seconds to the first token, and the answer."""
    body = {"messages": turns, "max_tokens": ANSWER_TOKENS, "stream": True, "temperature": 0}
    begun_s, first_s, text = time.monotonic(), 0.0, ""
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                piece = httpx.Response(200, text=line[6:]).json()["choices"]
                word = piece[0]["delta"].get("content") if piece else None
                if word and not first_s:
                    first_s = time.monotonic() - begun_s
                text += word or ""
    return first_s, text


async def pair(client: httpx.AsyncClient, rng: Random) -> list[float]:
    """Hold two conversations; return the times to first token of their second turns."""
    talks = [[{"role": "user", "content": " ".join(rng.choices(WORDS, k=OPENING_WORDS))}] for _ in range(2)]
    answers = await asyncio.gather(*(said(client, talk) for talk in talks))
    taken_s = []
    for talk, (_, text) in reversed(list(zip(talks, answers, strict=True))):
        talk += [{"role": "assistant", "content": text}, {"role": "user", "content": "Go on, please."}]
        taken_s.append((await said(client, talk))[0])
    return taken_s


async def measure(urls: list[str], pairs: int) -> dict[str, list[float]]:
    """Return the times of second turns, with affinity and without."""
    servers = tuple(BackendConfig(name=f"s{n}", url=url) for n, url in enumerate(urls))
    found: dict[str, list[float]] = {"with": [], "without": []}
    rng = Random(1)
    config = ServeConfig(backends=servers, listen="127.0.0.1:0")
    async with (
        running_daemon(config, load(None)) as daemon,
        httpx.AsyncClient(base_url=daemon.base_url, timeout=600, trust_env=False) as client,
    ):
        await pair(client, rng)  # speeds are learnt
        for number in range(2 * pairs):
            arm = ("with", "without")[number % 2]
            read = read_conversation if arm == "with" else read_nothing
            setattr(request_parsing, "read_conversation", read)  # noqa: B010 - it is not exported
            found[arm] += await pair(client, rng)
    return found


def main() -> None:
    """Print the medians."""
    parser = argparse.ArgumentParser()
    parser.add_argument("urls", nargs=2)
    parser.add_argument("--pairs", type=int, default=6)
    given = parser.parse_args()
    found = asyncio.run(measure(given.urls, given.pairs))
    for arm, times in found.items():
        line = (
            f"{arm:8s} affinity: median {statistics.median(times):.3f} s, mean {statistics.mean(times):.3f} s"
        )
        sys.stdout.write(f"{line}, {len(times)} second turns\n")


if __name__ == "__main__":
    main()
