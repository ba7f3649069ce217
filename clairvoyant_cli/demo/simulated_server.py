"""A simulated LLM server that speaks as Ollama does: it answers in random words, at a steady speed."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from random import Random
from typing import Any

import msgspec

from clairvoyant_cli.http.heads import RequestHead
from clairvoyant_cli.http.routes import Answer, Asked, Routes, as_json
from clairvoyant_cli.proxy.access.origins import AllowedOrigins

MODEL = "replay:latest"
PREFILL_PER_DECODE = 20.0  # prefill is about twenty times as fast as decode on the target machines
CHARACTERS_A_TOKEN = 4
WORDS = "amber river stone quiet lantern window garden letter morning harbour copper meadow violet".split()
LISTED = [{"name": MODEL, "model": MODEL, "digest": "0" * 64}]
TOLD: Mapping[str, Any] = {
    "/api/version": {"version": "0.40.0"},
    "/api/tags": {"models": LISTED},
    "/api/ps": {"models": LISTED},
}


class SimulatedServer:
    """Answers a prompt with as many tokens as `lengths` says; `routes` serve them.

    At most `slots` answers run at once, the others wait in order of arrival. After the first token, `stride`
    tokens are sent at a time.
    """

    def __init__(self, lengths: Mapping[str, int], tokens_per_s: float, slots: int, stride: int) -> None:
        self._lengths = lengths
        self._tokens_per_s = tokens_per_s
        self._stride = stride
        self._free = asyncio.Semaphore(slots)
        self.routes = Routes(_guard, dict.fromkeys(TOLD, _tell), {"/api/chat": self._chat})

    async def _chat(self, asked: Asked) -> Answer:
        lines = self._answer(msgspec.json.decode(asked.body)["messages"][-1]["content"])
        first = await anext(lines)  # as in Ollama, the head of the answer comes with its first token

        async def answer() -> AsyncIterator[bytes]:
            yield first
            async for line in lines:
                yield line

        return Answer(answer(), content_type=b"application/x-ndjson")

    async def _answer(self, prompt: str) -> AsyncIterator[bytes]:
        """Yield the lines of an answer when they are due."""
        read, tokens = len(prompt) // CHARACTERS_A_TOKEN + 1, self._lengths[prompt]
        words = Random(prompt).choices(WORDS, k=tokens)  # noqa: S311 - a demo, not a secret
        prefill_s, decode_s = read / (self._tokens_per_s * PREFILL_PER_DECODE), tokens / self._tokens_per_s
        clock = asyncio.get_running_loop().time
        async with self._free:
            begun_s, sent = clock() + prefill_s, 0
            while sent < tokens:
                until = min(tokens, sent + (self._stride if sent else 1))
                await asyncio.sleep(begun_s + until / self._tokens_per_s - clock())
                yield b"".join(_line(f"{word} ", done=False) for word in words[sent:until])
                sent = until
        counts = {"prompt_eval_count": read, "prompt_eval_duration": round(prefill_s * 1e9)}
        counts |= {"eval_count": tokens, "eval_duration": round(decode_s * 1e9)}
        yield _line("", done=True, done_reason="stop", **counts)


def _guard(head: RequestHead) -> Answer | None:
    objection = AllowedOrigins().objection(head, to_models=True)
    return None if objection is None else as_json({"error": objection}, 403)


async def _tell(asked: Asked) -> Answer:
    return as_json(TOLD[asked.head.path])


def _line(text: str, **more: Any) -> bytes:
    said = {"model": MODEL, "message": {"role": "assistant", "content": text}}
    return msgspec.json.encode(said | more) + b"\n"
