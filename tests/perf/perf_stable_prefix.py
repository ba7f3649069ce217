"""How soon a turn's answer begins whose system text begins with the time: direct, and through `serve`.

    python -m tests.perf.perf_stable_prefix URL [--tokens 3000] [--turns 10]

A llama.cpp server with one slot; a chat like Home Assistant's. Each way has a system text of its own.
"""

import asyncio
import random
from contextlib import nullcontext
from statistics import median

from tests.perf.harness import ask, chat_body, many_connections, options, serving

WORDS = "lamp kitchen bedroom cover sensor door light switch garden heating window fan office hall".split()
WAYS = {"direct": None, "off": ("--stable-prefix", "off"), "known": ("--stable-prefix", "known")}


def system_text(turn: int, rules: str) -> str:
    return f"Current time is 12:{turn:02}:07. Today's date is 2026-11-27.\n{rules}"


async def first_tokens_s(url: str, rules: str, turns: int) -> list[float]:
    """Return each turn's time to its first token, in seconds."""
    said: list[dict[str, str]] = []
    first_s = []
    async with many_connections(url) as client:
        for turn in range(turns):
            said.append({"role": "user", "content": f"Turn on the {WORDS[turn % len(WORDS)]} in the office."})
            system = {"role": "system", "content": system_text(turn, rules)}
            answer = await ask(client, chat_body([system, *said], 16))
            said.append({"role": "assistant", "content": answer.text})
            first_s.append(answer.first_s)
    return first_s


def main() -> None:
    given = options(__doc__, "url", tokens=3000, turns=10)
    direct_s = 0.0
    for way, flags in WAYS.items():
        rng = random.Random(way)
        rules = " ".join(rng.choices(WORDS, k=round(given.tokens / 1.1)))
        with nullcontext() if flags is None else serving(given.url, "--no-self-test", *flags) as daemon:
            url = given.url if daemon is None else daemon.base_url
            first_s = asyncio.run(first_tokens_s(url, rules, given.turns))
        usual_s = median(first_s[1:])
        direct_s = direct_s or usual_s
        share, worst_s = usual_s / direct_s, max(first_s[1:])
        print(
            f"{way}: {first_s[0]:.2f} s, then {usual_s:.3f} s, {share:.3f} of direct, worst {worst_s:.2f} s"
        )


if __name__ == "__main__":
    main()
