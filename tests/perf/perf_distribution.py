"""Whether sampled answers that are cut and continued are distributed as uncut ones, on a real server.

    python -m tests.perf.perf_distribution --backend URL --model NAME [--route /v1/chat/completions]
        [--prompts FILE] [--questions N] [--each N] [--tokens N] [--db FILE]

No two sampled answers are equal, so that only their distribution can be compared. A daemon serves each
question `--each` times uncut and as often cut, in turns: a short question arrives at a random moment of the
answer. Two statistics are compared with those of 2,000 permutations of the labels within each question: the
difference of the mean lengths, and the squared distance of the mean word counts. As a control, uncut answers
at a temperature of 0.2 in place of 0.8 go through the same test, which shows how it sees a distortion.
"""

import argparse
import asyncio
import random
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

import httpx
import numpy as np

from clairvoyant_cli.demo.questions import QUESTIONS
from tests.perf.harness import CHAT, clairvoyant, options, serving
from tests.perf.perf_exactness import SHORTS, body, short_prompts, told

PERMUTATIONS = 2000
TEMPERATURE, OTHER_TEMPERATURE = 0.8, 0.2
UNCUT, CUT, CONTROL = "uncut", "cut", "control"
Answers = dict[str, list[list[str]]]  # by arm: the words of each answer


def sampled(given: argparse.Namespace, prompt: str, temperature: float) -> dict[str, object]:
    asked = body(given, prompt, given.tokens)
    asked.get("options", asked)["temperature"] = temperature
    return asked


async def collect(given: argparse.Namespace, proxy: str) -> list[Answers]:
    """Return the answers to each question; one that should have been cut and was not is asked again."""
    rng, found = random.Random(given.seed), []
    async with httpx.AsyncClient(timeout=600, trust_env=False) as client:

        async def ask(asked: dict[str, object], who: str) -> str:
            headers = {"X-Clairvoyant-Client": who}
            return (
                (await client.post(proxy + given.route, json=asked, headers=headers)).raise_for_status().text
            )

        async def interrupt(after_s: float) -> None:
            await asyncio.sleep(after_s)
            await ask(body(given, rng.choice(SHORTS), 3), "short")

        async def cuts() -> int:
            text = (await client.get(f"{proxy}/_clairvoyant/metrics")).text
            return int(float(re.findall(r"^clairvoyant_cuts_total (\S+)", text, re.MULTILINE)[0]))

        async def answer(arm: str, prompt: str, took_s: float) -> list[str] | None:
            asked = sampled(given, prompt, OTHER_TEMPERATURE if arm == CONTROL else TEMPERATURE)
            before = await cuts()
            async with asyncio.TaskGroup() as group:
                told_by = group.create_task(ask(asked, "judged"))
                if arm == CUT:
                    group.create_task(interrupt(took_s * rng.uniform(0.1, 0.6)))
            was_cut = await cuts() > before
            return told(told_by.result()).text.split() if was_cut == (arm == CUT) else None

        for prompt in rng.sample(short_prompts(given.prompts), given.questions):
            answers: Answers = {UNCUT: [], CUT: [], CONTROL: []}
            began_s = asyncio.get_running_loop().time()
            await answer(UNCUT, prompt, 0)
            took_s = asyncio.get_running_loop().time() - began_s
            for _ in range(3 * given.each):
                for arm, said in answers.items():
                    if len(said) < given.each and (words := await answer(arm, prompt, took_s)) is not None:
                        said.append(words)
            if len(answers[CUT]) < given.each:  # too short to be cut
                print(f"  left out: {len(answers[CUT])} of {given.each} were cut", flush=True)
                continue
            found.append(answers)
            print(f"  {len(found)} questions", flush=True)
    return found


def p_values(
    samples: Sequence[tuple[list[list[str]], list[list[str]]]], seed: int
) -> tuple[float, float, float]:
    """Return the difference of the mean lengths in words, its p value, and that of the word counts."""
    rng = np.random.default_rng(seed)
    lengths = [np.array([len(words) for words in (*one, *two)], float) for one, two in samples]
    counts, halves = [], [len(one) for one, _ in samples]
    for one, two in samples:
        known = {word: at for at, word in enumerate({word for words in (*one, *two) for word in words})}
        table = np.zeros((len(one) + len(two), len(known)))
        for row, words in enumerate((*one, *two)):
            for word in words:
                table[row, known[word]] += 1
        counts.append(table)

    def statistics(orders: list[np.ndarray]) -> tuple[float, float]:
        moved = distance = 0.0
        for order, length, table, half in zip(orders, lengths, counts, halves, strict=True):
            moved += length[order[half:]].mean() - length[order[:half]].mean()
            apart = table[order[half:]].mean(axis=0) - table[order[:half]].mean(axis=0)
            distance += float(apart @ apart)
        return moved / len(lengths), distance

    seen = statistics([np.arange(len(length)) for length in lengths])
    drawn = [statistics([rng.permutation(len(length)) for length in lengths]) for _ in range(PERMUTATIONS)]
    as_far = sum(abs(moved) >= abs(seen[0]) for moved, _ in drawn)
    as_apart = sum(distance >= seen[1] for _, distance in drawn)
    return seen[0], (as_far + 1) / (PERMUTATIONS + 1), (as_apart + 1) / (PERMUTATIONS + 1)


def main() -> None:
    strings = {"backend": str, "model": str, "route": CHAT, "prompts": Path(QUESTIONS), "db": str}
    given = options(__doc__, **strings, questions=8, each=25, tokens=150, unstreamed=False, seed=1)
    with tempfile.TemporaryDirectory() as home:
        db = given.db or f"{home}/c.db"
        if not given.db:
            server = ("--backend", given.backend, "--model", given.model)
            print(clairvoyant("calibrate", *server, "--db", db), flush=True)
        with serving(given.backend, "--db", db) as daemon:
            daemon.await_line("preemption enabled for")
            found = asyncio.run(collect(given, daemon.base_url))
    words = np.mean([len(said) for each in found for said in each[UNCUT]])
    print(f"{len(found)} questions, {given.each} answers each; uncut ones have {words:.1f} words on average")
    for arm in (CUT, CONTROL):
        moved, of_length, of_words = p_values([(each[UNCUT], each[arm]) for each in found], given.seed)
        print(f"{arm}: {moved:+.1f} words, p {of_length:.3f}; word counts p {of_words:.3f}")


if __name__ == "__main__":
    main()
