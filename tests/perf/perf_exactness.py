"""Answers of a real server that are cut and continued, against uncut ones: text, totals and every field.

    python -m tests.perf.perf_exactness --backend URL --reference URL --model NAME
        [--route /v1/chat/completions] [--answers N] [--unstreamed] [--prompts FILE] [--db FILE] [--uncut]

`--reference` is a second instance of the same server with the same model: asked directly, it answers uncut,
and its cache is not the one that the cut answers go on from. `calibrate` proves the backend first, as a user
would (or FILE has the profile); a daemon then serves greedy answers while one to four short questions arrive
at random moments of each, until N were cut. Both servers are asked the same short question before each: what
llama.cpp holds of a prompt already decides how the rest is batched, and so how it rounds.

`--uncut` is the control: the short questions come before the judged one instead of in the midst of it, so
that what the caches hold differs as it does with cuts, and nothing is cut. Where texts differ, both are asked
again, uncut, after other questions: a cut answer that one of these gives too is one of several that the
server itself gives.
"""

import argparse
import asyncio
import itertools
import json
import random
import re
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from clairvoyant_lab.training.text_lines import lines_of

from clairvoyant_cli.demo.questions import QUESTIONS
from tests.perf.harness import CHAT, clairvoyant, options, serving

SHORTS = ("Say hi.", "What is 2+2?", "Name a colour.", "Hello!", "Is water wet?")
MAX_PROMPT_CHARS = 400
MAX_REREAD = 2
"""Tokens: where it reads no more, the server went on from its cache."""

# What two uncut runs of one request do not share either.
VOLATILE = {
    *("id", "created", "created_at", "timings", "prompt_tokens_details", "prompt_eval_cached_count"),
    *("total_duration", "load_duration", "prompt_eval_duration", "eval_duration"),
}


def body(given: argparse.Namespace, prompt: str, tokens: int) -> dict[str, Any]:
    """Return a greedy request in the route's dialect, with a limit of tokens."""
    asked: dict[str, Any] = {"model": given.model, "stream": not given.unstreamed}
    if given.route.startswith("/api/"):
        asked["options"] = {"temperature": 0, "num_predict": tokens}
    else:
        asked |= {"temperature": 0, "max_tokens": tokens}
        asked |= {} if given.unstreamed else {"stream_options": {"include_usage": True}}
    if "/chat" in given.route:
        return asked | {"messages": [{"role": "user", "content": prompt}]}
    if given.route == "/api/generate":
        turns = f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
        return asked | {"raw": True, "prompt": turns}
    return asked | {"prompt": prompt}


@dataclass(slots=True)
class Told:
    """What a client reads of an answer: the text, all other fields, and the shapes that its events had."""

    text: str = ""
    rest: list[Any] = field(default_factory=list)
    shapes: set[Any] = field(default_factory=set)
    identities: set[Any] = field(default_factory=set)


def steady(value: Any) -> Any:
    """Return an object without what differs between any two runs."""
    if isinstance(value, dict):
        return {key: steady(inner) for key, inner in value.items() if key not in VOLATILE}
    return [steady(inner) for inner in value] if isinstance(value, list) else value


def shape(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((key, shape(inner)) for key, inner in value.items())
    return tuple(shape(inner) for inner in value) if isinstance(value, list) else None


def take_text(event: dict[str, Any]) -> str:
    """Take the text out of an object of any of the routes, and return it."""
    choice = (event.get("choices") or [{}])[0]
    places = [(event, "response"), (event.get("message") or {}, "content"), (choice, "text")]
    places += [(choice.get(name) or {}, "content") for name in ("delta", "message")]
    for holder, key in places:
        if isinstance(holder.get(key), str):
            text, holder[key] = holder[key], ""
            return str(text)
    return ""


def told(answer: str) -> Told:
    """Return what an answer says, streamed (events, lines) or in one object."""
    found = Told()
    for line in answer.splitlines():
        line = line.removeprefix("data: ")
        if not line.strip() or line.startswith(":"):  # a comment keeps an idle stream alive
            continue
        if line == "[DONE]":
            found.rest.append(line)
            continue
        event = json.loads(line)
        found.identities.add((event.get("id"), event.get("model"), event.get("system_fingerprint")))
        final = event.get("done") is not False and (event.get("choices") or [{}])[0].get("finish_reason", 0)
        text = take_text(event)
        found.text += text
        if final is not None or not text:
            found.rest.append(steady(event))
        else:
            found.shapes.add(shape(event))
    return found


@dataclass(slots=True)
class Tally:
    """How many answers were the same, in what; `by_cuts` counts them by how often they were cut."""

    answers: int = 0
    text: int = 0
    totals: int = 0
    all: int = 0
    by_cuts: Counter[int] = field(default_factory=Counter)
    reread: int = 0
    given_uncut: int = 0

    def add(self, uncut: Told, cut: Told, cuts: int, reread: int) -> None:
        """Count one pair, for whose cuts so many tokens were read again, and print where its texts part."""
        self.by_cuts[cuts] += 1
        self.reread += reread > MAX_REREAD * cuts
        self.answers += 1
        self.text += uncut.text == cut.text
        self.totals += uncut.rest == cut.rest
        same = (uncut.text, uncut.rest, uncut.shapes) == (cut.text, cut.rest, cut.shapes)
        same = same and len(uncut.identities) == len(cut.identities)
        self.all += same
        if self.answers % 20 == 0:
            print(f"  {self.text} of {self.answers} so far", flush=True)
        if not same:
            pairs = zip(uncut.text, cut.text, strict=False)
            shorter = min(len(uncut.text), len(cut.text))
            at = next((index for index, (one, two) in enumerate(pairs) if one != two), shorter)
            around = slice(max(0, at - 20), at + 20)
            parted = f"at {at}: {uncut.text[around]!r} | {cut.text[around]!r}"
            if uncut.text == cut.text:
                parted = f": {uncut.rest} {uncut.shapes} | {cut.rest} {cut.shapes}"
            print(f"  {cuts} cuts, {reread} tokens read again, differs {parted}", flush=True)


def short_prompts(path: Path) -> list[str]:
    """Return the prompts of a file of JSON lines that are short enough for a small context."""
    prompts = (str(json.loads(line)["prompt"]) for line in lines_of(path))
    return [prompt for prompt in prompts if len(prompt) <= MAX_PROMPT_CHARS]


async def judge(given: argparse.Namespace, proxy: str) -> Tally:
    """Ask every question twice, and return how many answers were the same."""
    rng, tally = random.Random(given.seed), Tally()
    prompts = short_prompts(given.prompts)
    rng.shuffle(prompts)
    async with httpx.AsyncClient(timeout=600, trust_env=False) as client:

        async def ask(url: str, prompt: str, tokens: int, **headers: str) -> str:
            answer = await client.post(url + given.route, json=body(given, prompt, tokens), headers=headers)
            return answer.raise_for_status().text

        async def ask_again(url: str, prompt: str, tokens: int) -> str:
            await ask(url, rng.choice(SHORTS), 8)
            return told(await ask(url, prompt, tokens)).text

        async def interrupt(after_s: float) -> None:
            await asyncio.sleep(after_s)
            await ask(proxy, rng.choice(SHORTS), rng.choice((3, 8)), **{"X-Clairvoyant-Client": "short"})

        async def so_far() -> list[int]:
            counted = (await client.get(f"{proxy}/_clairvoyant/metrics")).text
            names = [rf"^clairvoyant_{name}_total (\S+)" for name in ("cuts", "recomputed_tokens")]
            return [int(float(re.findall(name, counted, re.MULTILINE)[0])) for name in names]

        coming = itertools.cycle(prompts)
        while tally.answers < given.answers:
            prompt, tokens, before = next(coming), rng.choice((120, 200, 300)), await so_far()
            for url in (given.reference, given.backend):
                await ask(url, SHORTS[0], 1)
            began_s = time.perf_counter()
            uncut = told(await ask(given.reference, prompt, tokens))
            took_s = time.perf_counter() - began_s
            moments_s = [took_s * rng.random() for _ in range(rng.randint(1, 4))]
            if given.uncut:
                for _ in moments_s:
                    await interrupt(0)
                moments_s = []
            async with asyncio.TaskGroup() as group:
                judged = {"X-Clairvoyant-Client": "judged"}
                cut = group.create_task(ask(proxy, prompt, tokens, **judged))
                for moment_s in moments_s:
                    group.create_task(interrupt(moment_s))
            cuts, reread = (now - then for now, then in zip(await so_far(), before, strict=True))
            if cuts or given.uncut:
                ours = told(cut.result())
                tally.add(uncut, ours, cuts, reread)
                if ours.text != uncut.text:
                    again = [await ask_again(url, prompt, tokens) for url in (given.reference, given.backend)]
                    tally.given_uncut += ours.text in again
    return tally


def main() -> None:
    urls = {"backend": str, "reference": str, "model": str, "route": CHAT, "prompts": QUESTIONS, "db": str}
    given = options(__doc__, **urls, answers=200, unstreamed=False, uncut=False, seed=1)
    with tempfile.TemporaryDirectory() as home:
        db = given.db or f"{home}/c.db"
        if not given.db:
            server = ("--backend", given.backend, "--model", given.model)
            print(clairvoyant("calibrate", *server, "--db", db), flush=True)
        with serving(given.backend, "--db", db) as daemon:
            daemon.await_line("preemption enabled for")
            tally = asyncio.run(judge(given, daemon.base_url))
    kind = "unstreamed" if given.unstreamed else "streamed"
    print(f"{given.route} {kind}: of {tally.answers} answers {tally.text} have the same text,", end=" ")
    print(f"{tally.totals} the same totals and ends, {tally.all} every field")
    differ = tally.answers - tally.text
    print(f"of the {differ} that differ the server itself gives {tally.given_uncut} when asked again, uncut")
    print(f"more than {MAX_REREAD} tokens a cut were read again in {tally.reread}")
    print("by cuts:", ", ".join(f"{count} cut {cuts}x" for cuts, count in sorted(tally.by_cuts.items())))


if __name__ == "__main__":
    main()
