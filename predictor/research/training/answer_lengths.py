"""Measure the lengths of a server's answers.

Usage: `python -m predictor.research.training.answer_lengths URL FILE... --out L`.

Asks a server of the OpenAI kind the prompts of FILEs, those of each file in turn and drawn at random, and
writes a line an answer: the digest of its prompt, its tokens, and whether the model itself ended it. No text
is kept, so that the lengths of prompts that may not be passed on may be. What L holds already is not
asked again. `clairvoyant study answers FILE... --lengths L` ranks them.
"""

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, islice, zip_longest
from pathlib import Path
from urllib.request import Request, urlopen

import numpy as np

from predictor.research.studies.answers import digest, read_lengths
from predictor.research.training.dataset import Dataset, read_dataset

SEED = 42
PATIENCE_S = 1800.0


def drawn(datasets: list[Dataset], count: int, seed: int = SEED) -> list[str]:
    """Return `count` different prompts, one of each dataset in turn."""
    generator = np.random.default_rng(seed)
    orders = [[data.prompts[row] for row in generator.permutation(len(data.prompts))] for data in datasets]
    turns = chain.from_iterable(zip_longest(*orders))
    return list(islice(dict.fromkeys(prompt for prompt in turns if prompt), count))


def ask(url: str, cap: int, temperature: float, prompt: str) -> dict[str, object]:
    """Return what is kept of an answer of at most `cap` tokens; OSError or KeyError if there is none."""
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": cap,
        "temperature": temperature,
        "seed": SEED,
    }
    request = Request(  # noqa: S310 - the address is the caller's own
        f"{url.rstrip('/')}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urlopen(request, timeout=PATIENCE_S) as answer:  # noqa: S310
        told = json.load(answer)
    return {
        "digest": digest(prompt),
        "output_tokens": told["usage"]["completion_tokens"],
        "ended": told["choices"][0]["finish_reason"] == "stop",
    }


def main() -> None:
    """Ask until enough answers are known; each is written as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--cap", type=int, default=1024, help="tokens at which an answer is cut off")
    parser.add_argument("--temperature", type=float, default=0.2)
    parser.add_argument("--together", type=int, default=1, help="questions at a time")
    options = parser.parse_args()
    known = read_lengths(options.out) if options.out.exists() else {}
    prompts = [
        p for p in drawn([read_dataset(f) for f in options.files], options.count) if digest(p) not in known
    ]
    with options.out.open("a", encoding="utf-8") as out, ThreadPoolExecutor(options.together) as pool:
        asked = partial(ask, options.url, options.cap, options.temperature)
        for answer in pool.map(asked, prompts):
            out.write(json.dumps(answer) + "\n")
            out.flush()


if __name__ == "__main__":
    main()
