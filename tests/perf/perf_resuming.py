"""What going on with a context costs a llama.cpp server: kept in its slot, on the host, or lost.

usage: perf_resuming.py URL [--tokens 128 512 1500]

One slot. Greedy completions of random words: each is begun, others have the slot, it goes on by one token.
"""

import argparse
import random
import time
from statistics import median
from typing import Any

import httpx

WORDS = "river stone lamp garden window paper music engine cloud bridge winter market silver letter".split()
TRIALS = 3


class Server:
    """Asks one server for completions."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=600, limits=httpx.Limits(max_keepalive_connections=0))

    def complete(self, prompt: str, tokens: int, **more: Any) -> tuple[dict[str, Any], float]:
        """Return the answer, and the milliseconds until its first token."""
        body = {"prompt": prompt, "n_predict": tokens, "temperature": 0, "ignore_eos": True} | more
        begun_s = time.perf_counter()
        answer = self._http.post("/completion", json=body).raise_for_status().json()
        taken_ms = (time.perf_counter() - begun_s) * 1000
        later_ms = answer["timings"]["predicted_ms"] * (1 - 1 / tokens)
        return answer, taken_ms - later_ms


def main() -> None:
    """Measure, and print a row for each length."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("url")
    parser.add_argument("--tokens", type=int, nargs="+", default=[128, 512, 1500])
    args = parser.parse_args()
    server, rng = Server(args.url), random.Random(7)
    for wanted in args.tokens:
        rows: dict[str, list[float]] = {}
        for _ in range(TRIALS):
            prompt = " ".join(rng.choices(WORDS, k=round(wanted / 1.25)))
            answer, first_ms = server.complete(prompt, 16)
            said = prompt + answer["content"]
            rows.setdefault("tokens", []).append(answer["tokens_evaluated"] + 16)
            rows.setdefault("read for the first time, ms", []).append(first_ms)
            rows.setdefault("at once, ms", []).append(server.complete(said, 1)[1])
            server.complete(" ".join(rng.choices(WORDS, k=60)), 8)
            server.complete("x", 1, cache_prompt=False)
            answer, again_ms = server.complete(said, 1)
            rows.setdefault("after others, ms", []).append(again_ms)
            rows.setdefault("tokens read then", []).append(answer["timings"]["prompt_n"])
        print(", ".join(f"{name} {median(values):.0f}" for name, values in rows.items()), flush=True)


if __name__ == "__main__":
    main()
