"""Answers of a real server that are cut and continued, against uncut ones: text, totals and every field.

    python tests/perf/perf_exactness.py --backend URL --reference URL --model NAME
        [--route /v1/chat/completions] [--answers N] [--unstreamed] [--prompts FILE] [--uncut] [--seed N]

`--reference` is a second instance of the same server with the same model: asked directly, it answers
uncut, and its cache is not the one that the cut answers go on from. `calibrate` proves the backend
first, as a user would; a daemon with that profile then serves greedy answers while one to four
short questions arrive at random moments of each, until N were cut. Both servers are asked the same short
question before each: what llama.cpp holds of a prompt already decides how the rest is batched, and so how
it rounds.

`--uncut` is the control: the short questions come before the judged one instead of in the midst of it, so
that what the caches hold differs as it does with cuts, and nothing is cut. Where texts differ, both are asked
again, uncut, after other questions: a cut answer that one of these gives too is one of several that the
server itself gives.
"""

import argparse
import asyncio
import gzip
import itertools
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.fakes.daemon_process import daemon_process  # noqa: E402

PROMPTS = ROOT / "clairvoyant_cli/demo/prompts.jsonl"
ROUTES = ("/v1/chat/completions", "/v1/completions", "/api/chat", "/api/generate")
SHORTS = ("Say hi.", "What is 2+2?", "Name a colour.", "Hello!", "Is water wet?")
MAX_PROMPT_CHARS = 400
MAX_REREAD = 2
"""Tokens: where it reads no more, the server went on from its cache."""

# What two uncut runs of one request do not share either.
VOLATILE = {
    *("id", "created", "created_at", "timings", "prompt_tokens_details", "prompt_eval_cached_count"),
    *("total_duration", "load_duration", "prompt_eval_duration", "eval_duration"),
}


@dataclass(frozen=True, slots=True)
class Question:
    """One request to be answered: greedy, with a limit of tokens."""

    route: str
    model: str
    streamed: bool

    def body(self, prompt: str, tokens: int) -> dict[str, Any]:
        """Return the body in the route's dialect."""
        body: dict[str, Any] = {"model": self.model, "stream": self.streamed}
        if self.route.startswith("/api/"):
            body["options"] = {"temperature": 0, "num_predict": tokens}
        else:
            body |= {"temperature": 0, "max_tokens": tokens}
            if self.streamed:
                body["stream_options"] = {"include_usage": True}
        if self.route.endswith("/chat") or "/chat/" in self.route:
            return body | {"messages": [{"role": "user", "content": prompt}]}
        if self.route == "/api/generate":
            turns = f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
            return body | {"raw": True, "prompt": turns}
        return body | {"prompt": prompt}


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
    """Return the keys of an object, and those of the objects in it."""
    if isinstance(value, dict):
        return tuple((key, shape(inner)) for key, inner in value.items())
    return tuple(shape(inner) for inner in value) if isinstance(value, list) else None


def take_text(event: dict[str, Any]) -> str:
    """Take the text out of an object of any of the routes, and return it."""
    choices = event.get("choices") or [{}]
    for holder, key in (
        (event, "response"),
        (event.get("message") or {}, "content"),
        (choices[0], "text"),
        (choices[0].get("delta") or {}, "content"),
        (choices[0].get("message") or {}, "content"),
    ):
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


def prompts(path: Path) -> Iterator[str]:
    """Yield the prompts of a file of JSON lines that are short enough for a small context."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        for line in lines:
            prompt = str(json.loads(line)["prompt"])
            if len(prompt) <= MAX_PROMPT_CHARS:
                yield prompt


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
        self.all += same and len(uncut.identities) == len(cut.identities)
        if self.answers % 20 == 0:
            print(f"  {self.text} of {self.answers} so far", flush=True)
        if uncut.text != cut.text:
            pairs = zip(uncut.text, cut.text, strict=False)
            shorter = min(len(uncut.text), len(cut.text))
            at = next((index for index, (one, two) in enumerate(pairs) if one != two), shorter)
            around = slice(max(0, at - 20), at + 20)
            parted = f"{uncut.text[around]!r} | {cut.text[around]!r}"
            print(f"  {cuts} cuts, {reread} tokens read again, differs at {at}: {parted}", flush=True)
        elif not same:
            parted = f"{uncut.rest} {uncut.shapes} | {cut.rest} {cut.shapes}"
            print(f"  {cuts} cuts, {reread} tokens read again, differs: {parted}", flush=True)


async def judge(args: argparse.Namespace, proxy: str) -> Tally:
    """Ask every question twice, and return how many answers were the same."""
    rng, tally = random.Random(args.seed), Tally()
    asked = list(prompts(args.prompts))
    rng.shuffle(asked)
    question = Question(args.route, args.model, streamed=not args.unstreamed)
    async with httpx.AsyncClient(timeout=600) as client:

        async def ask(url: str, prompt: str, tokens: int, name: str) -> str:
            answer = await client.post(
                url + args.route,
                json=question.body(prompt, tokens),
                headers={"X-Clairvoyant-Client": name} if url == proxy else {},
            )
            answer.raise_for_status()
            return answer.text

        async def ask_again(url: str, prompt: str, tokens: int) -> str:
            await ask(url, rng.choice(SHORTS), 8, "")
            return told(await ask(url, prompt, tokens, "")).text

        async def interrupt(after_s: float) -> None:
            await asyncio.sleep(after_s)
            await ask(proxy, rng.choice(SHORTS), rng.choice((3, 8)), "short")

        async def so_far() -> tuple[int, int]:
            counted = (await client.get(f"{proxy}/_clairvoyant/metrics")).text
            names = ("cuts", "recomputed_tokens")
            found = [re.findall(rf"^clairvoyant_{name}_total (\S+)", counted, re.MULTILINE) for name in names]
            cuts, reread = (int(float(values[0])) for values in found)
            return cuts, reread

        for prompt in itertools.cycle(asked):
            if tally.answers == args.answers:
                break
            tokens, before = rng.choice((120, 200, 300)), await so_far()
            for url in (args.reference, args.backend):
                await ask(url, SHORTS[0], 1, "")
            began = time.perf_counter()
            uncut = told(await ask(args.reference, prompt, tokens, ""))
            took_s = time.perf_counter() - began
            moments = [took_s * rng.random() for _ in range(rng.randint(1, 4))]
            before_it = len(moments) if args.uncut else 0
            for _ in moments[:before_it]:
                await interrupt(0)
            async with asyncio.TaskGroup() as group:
                cut = group.create_task(ask(proxy, prompt, tokens, "judged"))
                for moment in moments[before_it:]:
                    group.create_task(interrupt(moment))
            cuts, reread = (now - then for now, then in zip(await so_far(), before, strict=True))
            if cuts or args.uncut:
                ours = told(cut.result())
                tally.add(uncut, ours, cuts, reread)
                if ours.text != uncut.text:
                    again = [await ask_again(url, prompt, tokens) for url in (args.reference, args.backend)]
                    tally.given_uncut += ours.text in again
    return tally


def clairvoyant(*words: str) -> str:
    """Run a command of ours to its end, and return what it printed."""
    command = [sys.executable, "-m", "clairvoyant_cli", *words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", required=True)
    parser.add_argument("--reference", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--route", choices=ROUTES, default=ROUTES[0])
    parser.add_argument("--answers", type=int, default=200)
    parser.add_argument("--unstreamed", action="store_true")
    parser.add_argument("--uncut", action="store_true")
    parser.add_argument("--prompts", type=Path, default=PROMPTS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--db", help="has a profile that proves the backend; unset: it is calibrated first")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        db = args.db
        if db is None:
            db = f"{home}/c.db"
            server = ("--backend", args.backend, "--model", args.model)
            print(clairvoyant("calibrate", *server, "--db", db), flush=True)
        with daemon_process(args.backend, "--db", db, home=Path(home)) as daemon:
            daemon.await_line("after a cut")
            tally = asyncio.run(judge(args, daemon.base_url))
    kind = "unstreamed" if args.unstreamed else "streamed"
    print(f"{args.route} {kind}: of {tally.answers} answers {tally.text} have the same text,", end=" ")
    print(f"{tally.totals} the same totals and ends, {tally.all} every field")
    differ = tally.answers - tally.text
    print(f"of the {differ} that differ the server itself gives {tally.given_uncut} when asked again, uncut")
    print(f"more than {MAX_REREAD} tokens a cut were read again in {tally.reread}")
    print("by cuts:", ", ".join(f"{count} cut {cuts}x" for cuts, count in sorted(tally.by_cuts.items())))


if __name__ == "__main__":
    main()
