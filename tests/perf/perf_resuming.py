"""What going on with a context costs a llama.cpp server: kept in its slot, kept on the host, or lost.

    python -m tests.perf.perf_resuming URL [--tokens 128 --tokens 512]

One slot. Greedy completions of random words: each is begun, others have the slot, it goes on by one token.
Start the server with `--cache-ram 512`, and with `--cache-ram 0`.
"""

import random
import time
from statistics import median
from typing import Any

import httpx

from tests.perf.harness import options

WORDS = "river stone lamp garden window paper music engine cloud bridge winter market silver letter".split()
TRIALS = 3


def complete(client: httpx.Client, prompt: str, tokens: int, **more: Any) -> tuple[dict[str, Any], float]:
    """Return the answer, and the milliseconds until its first token."""
    body = {"prompt": prompt, "n_predict": tokens, "temperature": 0, "ignore_eos": True} | more
    begun_s = time.perf_counter()
    answer = client.post("/completion", json=body).raise_for_status().json()
    taken_ms = (time.perf_counter() - begun_s) * 1000
    return answer, taken_ms - answer["timings"]["predicted_ms"] * (1 - 1 / tokens)


def main() -> None:
    given = options(__doc__, "url", tokens=list[int]())
    limits = httpx.Limits(max_keepalive_connections=0)
    client, rng = httpx.Client(base_url=given.url, timeout=600, limits=limits), random.Random(7)
    for wanted in map(int, given.tokens or (128, 512, 1500)):
        rows: list[tuple[float, ...]] = []
        for _ in range(TRIALS):
            prompt = " ".join(rng.choices(WORDS, k=round(wanted / 1.25)))
            answer, first_ms = complete(client, prompt, 16)
            said, tokens = prompt + answer["content"], answer["tokens_evaluated"] + 16
            at_once_ms = complete(client, said, 1)[1]
            complete(client, " ".join(rng.choices(WORDS, k=60)), 8)
            complete(client, "x", 1, cache_prompt=False)
            answer, again_ms = complete(client, said, 1)
            rows.append((tokens, first_ms, at_once_ms, again_ms, answer["timings"]["prompt_n"]))
        names = (
            "tokens",
            "read for the first time, ms",
            "at once, ms",
            "after others, ms",
            "tokens read then",
        )
        columns = zip(names, zip(*rows, strict=True), strict=True)
        print(", ".join(f"{name} {median(values):.0f}" for name, values in columns), flush=True)


if __name__ == "__main__":
    main()
