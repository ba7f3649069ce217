"""Two users behind one key: one floods as Open WebUI does, the other asks; what the other's answers take.

    python tests/perf/perf_two_users.py URL KEY [--rounds 6] [--tabs 6]

URL is the proxy's, KEY that of a client whose `users` is X-OpenWebUI-User-Email. Each of the flooder's tabs
sends what Open WebUI 0.12 does for a message: a title and the answer at once, then follow-ups. The other asks
greedily, up to 90 tokens, alone and 4 to 6 seconds into the flood, by turns; the text must be the same.
"""

import argparse
import asyncio
import json
import statistics
import time

import httpx

from clairvoyant_cli.protocols.chores import OPENINGS

ASKED = (
    "What is the capital of Italy, and what is it known for?",
    "How do I boil an egg?",
    "Why is the sky blue?",
    "What is a prime number?",
    "What does a carburettor do?",
    "What is the difference between a violin and a viola?",
)
FLOOD = (
    "Write a detailed history of the city of Rome.",
    "Explain how a car engine works, step by step.",
    "Write a long story about a dragon and a baker.",
    "Describe the water cycle in detail.",
    "List twenty ideas for a birthday party.",
    "Explain the rules of chess.",
)
GUIDELINES = "\n- Answer in JSON, without any text before or after it, in the language of the chat." * 14
OPENS = {chore.name: opening for opening, chore in reversed(OPENINGS)}


class User:
    """Sends what a user's browser has Open WebUI send."""

    def __init__(self, client: httpx.AsyncClient, model: str, name: str) -> None:
        self.client, self.model = client, model
        self.headers = {"X-OpenWebUI-User-Email": f"{name}@example.org"}

    async def ask(self, text: str, **more: object) -> tuple[float, str]:
        """Return the seconds that an answer took, and its text."""
        began, said = time.perf_counter(), list[str]()
        messages = [{"role": "user", "content": text}]
        body = {"model": self.model, "messages": messages, "stream": True, **more}
        async with self.client.stream(
            "POST", "/v1/chat/completions", json=body, headers=self.headers
        ) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if line.startswith("data: {") and (choices := json.loads(line[6:]).get("choices")):
                    said.append(choices[0]["delta"].get("content") or "")
        return time.perf_counter() - began, "".join(said)

    async def chore(self, name: str, chat: str) -> None:
        """Ask for a title or follow-ups."""
        text = f"{OPENS[name]}\n### Guidelines:{GUIDELINES}\n<chat_history>\n{chat}\n</chat_history>"
        body = {"model": self.model, "messages": [{"role": "user", "content": text}], "stream": False}
        answer = await self.client.post("/v1/chat/completions", json=body, headers=self.headers)
        answer.raise_for_status()

    async def tab(self, text: str) -> None:
        """Send all that a message brings."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.chore("title_generation", f"USER: {text}"))
            answer = group.create_task(self.ask(text))
        said = answer.result()[1][:1000]
        await self.chore("follow_up_generation", f"USER: {text}\nASSISTANT: {said}")


async def measure(url: str, key: str, rounds: int, tabs: int) -> None:
    headers, limits = {"Authorization": f"Bearer {key}"}, httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=900, limits=limits) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        ann, ben = User(client, model, "ann"), User(client, model, "ben")
        ratios, more_s = list[float](), list[float]()
        for number in range(rounds):
            question = ASKED[number % len(ASKED)]
            alone_s, expected = await ben.ask(question, max_tokens=90, temperature=0)
            flood = [asyncio.create_task(ann.tab(text)) for text in FLOOD[:tabs]]
            await asyncio.sleep(4 + number % 3)
            flooded_s, said = await ben.ask(question, max_tokens=90, temperature=0)
            ended = sum(each.done() for each in flood)
            for each in flood:
                each.cancel()
            await asyncio.gather(*flood, return_exceptions=True)
            await asyncio.sleep(2)
            ratios.append(flooded_s / alone_s)
            more_s.append(flooded_s - alone_s)
            same = "the same text" if said == expected else "ANOTHER TEXT"
            print(
                f"{question:55} alone {alone_s:5.2f} s, in the flood {flooded_s:5.2f} s: "
                f"{ratios[-1]:.2f} times, {same}, {tabs - ended} of {tabs} tabs unanswered",
                flush=True,
            )
        print(
            f"median {statistics.median(ratios):.2f} times, worst {max(ratios):.2f}; "
            f"median {statistics.median(more_s):+.2f} s, worst {max(more_s):+.2f} s"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("url")
    parser.add_argument("key")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--tabs", type=int, default=6)
    given = parser.parse_args()
    asyncio.run(measure(given.url, given.key, given.rounds, given.tabs))
