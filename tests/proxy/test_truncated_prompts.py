"""Prompts that exceed the context of an Ollama that answers like the real one, and the reports about them."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from clairvoyant_lab.asgi_server import serve_app

from clairvoyant_cli.doctor.proxy import check_daemon
from clairvoyant_cli.proxy.composition import Daemon
from clairvoyant_cli.proxy.requests.truncations import Length, is_truncated
from clairvoyant_cli.state.encoding import decode, encode
from tests.fakes.raw_http import Message, RawClient, post, raw_client
from tests.fakes.serving import serving

CONTEXT, MODEL = 4096, "m:latest"
WORD = "word "  # five characters and, here as in English, about a token


class TruncatingOllama:
    """One token a word; drops the oldest messages, then halves (server/prompt.go, llm/llama_server.go)."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            event = await receive()
            body, more = body + event.get("body", b""), event.get("more_body", False)
        told: dict[str, Any] = {"version": "0.40.0"}
        if scope["path"] in ("/api/ps", "/api/tags"):
            loaded = ((MODEL, CONTEXT), ("embed:latest", 512))
            told = {"models": [{"name": name, "model": name, "context_length": n} for name, n in loaded]}
        elif scope["method"] == "POST":
            self.asked.append(scope["path"])
            told = self.answer(json.loads(body), scope["path"])
        answer = json.dumps(told).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    def answer(self, asked: dict[str, Any], path: str) -> dict[str, Any]:
        context = asked.get("options", {}).get("num_ctx", CONTEXT)
        contents = (each["content"] for each in asked["messages"])
        sizes = [len(each.split()) if isinstance(each, str) else 300 for each in contents]
        while sum(sizes) > context and len(sizes) > 1:
            sizes.pop(0)
        read = sum(sizes) if sum(sizes) < context else context - (context - 4) // 2
        if path.startswith("/v1"):
            return {"choices": [{"finish_reason": "stop"}], "usage": {"prompt_tokens": read}}
        return {"message": {"content": "x"}, "done": True, "prompt_eval_count": read, "eval_count": 1}


@asynccontextmanager
async def ollama(**settings: Any) -> AsyncIterator[tuple[Daemon, RawClient, TruncatingOllama]]:
    fake = TruncatingOllama()
    async with (
        serve_app(fake) as url,
        serving(url, **settings) as daemon,
        raw_client(daemon.base_url) as client,
    ):
        for _ in range(500):
            if MODEL in daemon.pool.queue.fleet.residency.load_s:  # the first probe has ended
                break
            daemon.pool.first.probe_due.set()
            await asyncio.sleep(0.01)
        yield daemon, client, fake


async def ask(client: RawClient, *contents: str, path: str = "/api/chat", **options: int) -> Message:
    messages = [{"role": "user", "content": content} for content in contents]
    asked = {"model": "m", "messages": messages, "stream": False, "options": options}
    return await client.ask(post(path, json.dumps(asked).encode()))


def warnings(daemon: Daemon) -> list[str]:
    return [each.text for each in daemon.snapshot().log if "to the context of" in each.text]


async def test_a_halved_prompt_is_reported_everywhere() -> None:
    async with ollama() as (daemon, client, _):
        await ask(client, WORD * 3000)
        assert warnings(daemon) == []
        await ask(client, WORD * 5000)
        (line,) = warnings(daemon)
        assert line.startswith("ollama read 2,050 tokens of ")
        assert "cut to the context of 4,096; set OLLAMA_CONTEXT_LENGTH=8192" in line
        snapshot = decode(encode(daemon.snapshot()))
        whole, cut = snapshot.recent[-2:]
        assert whole.remark == "" or cut.remark == ""
        assert {each.remark for each in snapshot.recent} == {"", line.partition(": ")[2].partition(";")[0]}
        (found,) = [each for each in check_daemon(snapshot) if each.topic == "context"]
        assert "cut 1 prompt to its context" in found.text
        assert found.fix.startswith("OLLAMA_CONTEXT_LENGTH=8192")


async def test_a_conversation_that_outgrows_the_context_is_reported_from_its_first_lost_message() -> None:
    async with ollama() as (daemon, client, _):
        said: list[str] = []
        for number in range(8):
            said.append(f"{number} " + WORD * 600)
            answer = await ask(client, *said)
            assert len(warnings(daemon)) == max(0, number - 5)  # 6 x 601 fit, 7 x 601 do not
        assert answer.value("x-clairvoyant-truncated") is None  # it is long, but not certainly too long


async def test_what_does_not_fit_in_any_case_is_refused_with_both_numbers() -> None:
    async with ollama(refuse_truncated=True) as (_, client, fake):
        refused = await ask(client, WORD * 5000, num_ctx=2048)
        assert refused.status == 400
        words = json.loads(refused.body)["error"]
        assert words.startswith("prompt is too long: 3125 tokens > 2048 maximum.")
        assert "OLLAMA_CONTEXT_LENGTH=4096" in words
        assert fake.asked == []
        assert (await ask(client, WORD * 2500, num_ctx=2048)).status == 200  # too long, but it might fit
        assert (await ask(client, WORD * 9000)).status == 200  # its context is not known yet
        assert (await ask(client, WORD * 9000, num_ctx=8192)).status == 200
        assert (await ask(client, WORD * 10**6)).status == 200  # too long to be read


async def test_a_long_prompt_is_announced_in_a_header() -> None:
    async with ollama() as (_, client, _):
        answer = await ask(client, WORD * 5000, num_ctx=2048)
        assert answer.value("x-clairvoyant-truncated") == b"tokens=3125, context=2048"


@pytest.mark.parametrize(
    ("least", "about", "read", "counts_cached", "expected"),
    [
        (5000, 9000, 2050, False, True),  # cannot fit
        (2000, 3700, 2050, False, True),  # half of the context, to the token
        (2000, 3000, 2050, False, False),  # a prompt of that length
        (2000, 8000, 1000, False, False),  # many characters a token: blanks, or a table
        (3950, 4300, 3900, False, True),  # shorter than with the prompt before
        (3950, 4300, 200, False, False),  # an old version, that does not count what was cached
        (3950, 4300, 200, True, True),
        (3950, 4000, 3900, False, False),  # it still fits: its beginning has changed
        (5000, 9000, 6000, False, False),  # the context is another by now
    ],
)
def test_only_what_is_certain_is_reported(
    least: float, about: float, read: int, counts_cached: bool, expected: bool
) -> None:
    length = Length(least, about, about)
    assert is_truncated(length, read, CONTEXT, counts_cached=counts_cached) is expected


async def test_lines_move_unless_the_context_of_the_requested_model_is_nearly_full() -> None:
    async with ollama(stable_prefix="known") as (_, client, _):
        system = f"Current time is 12:00:00. Today's date is 2026-11-27.\n{WORD * 2000}"
        for words, moved in ((500, b"1 line moved"), (2000, None)):
            asked = [{"role": "system", "content": system}, {"role": "user", "content": WORD * words}]
            answer = await client.ask(
                post("/api/chat", json.dumps({"model": "m", "messages": asked}).encode())
            )
            assert answer.value("x-clairvoyant-stable-prefix") == moved


async def test_a_conversation_that_begins_with_a_picture_alone_goes_on() -> None:
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{'A' * 3000}"}}
    messages: list[Any] = [{"role": "user", "content": [picture]}]
    async with ollama() as (daemon, client, _):
        for _ in range(2):
            body = json.dumps({"model": "m", "messages": messages}).encode()
            assert (await client.ask(post("/v1/chat/completions", body))).status == 200
            messages += [
                {"role": "assistant", "content": "a cat"},
                {"role": "user", "content": "what colour?"},
            ]
        assert daemon.snapshot().counters.completed == 2
