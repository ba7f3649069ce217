"""What clients choose is learned for each of them, and bounded."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from clairvoyant_cli.protocols.request_parsing import ParsedRequest, parse_request
from clairvoyant_cli.protocols.usage import Totals
from clairvoyant_cli.proxy.queue.ended import Outcome
from clairvoyant_cli.proxy.queue.exchange import Exchange
from clairvoyant_cli.proxy.requests.admission import ReadBody
from clairvoyant_cli.proxy.servers.service_times import MOST_CLIENTS, MOST_KEYS, ClientMeans
from tests.fakes.daemon_parts import DaemonParts, asking, daemon_parts

PATH = "/v1/chat/completions"


def request(model: str, words: int, *pictures: int) -> dict[str, Any]:
    urls = (f"data:image/png;base64,{'A' * size}" for size in pictures)
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    content = [{"type": "text", "text": "word " * words}, *parts]
    return {"model": model, "messages": [{"role": "user", "content": content}]}


class Asker:
    """Asks, and has the answers come at once."""

    def __init__(self) -> None:
        self.parts: DaemonParts = daemon_parts()

    async def parsed(self, client: str, body: dict[str, Any]) -> ParsedRequest:
        adapter = self.parts.pool.first.adapter
        route = adapter.route_of(b"POST", PATH)
        return await parse_request([msgspec.json.encode(body)], route, adapter, client)

    async def told(self, client: str, body: dict[str, Any], tokens: int) -> None:
        """Have the server say how many tokens a prompt had."""
        door = self.parts.admission.judge_head(asking(PATH))
        assert isinstance(door, ReadBody)
        exchange = self.parts.admission.enqueue(asking(PATH), door, await self.parsed(client, body))
        assert isinstance(exchange, Exchange)
        assert exchange.attempt is not None
        exchange.attempt.totals = Totals(
            prompt_tokens=tokens,
            read_tokens=tokens,
            prefill_s=9.0,
            tokens=20,
            decode_s=0.5,
            complete=True,
        )
        self.parts.dispatcher.end(exchange, Outcome.COMPLETED, 200)

    async def expected(self, client: str, body: dict[str, Any]) -> float:
        return self.parts.times.prompt_tokens(await self.parsed(client, body))


async def test_pictures_are_learned_by_size_and_leave_texts_alone() -> None:
    asker, text = Asker(), request("m", 400)
    await asker.told("ann", text, 410)
    speed = asker.parts.pool.first.speeds.prefill_tokens_per_s
    for _ in range(5):
        await asker.told("ann", request("m", 10, 4_000), 320)
        await asker.told("ann", request("m", 10, 900_000, 900_000), 3020)
    assert await asker.expected("ann", text) == pytest.approx(410, rel=0.01)
    assert await asker.expected("ann", request("m", 10, 4_000)) == pytest.approx(320, rel=0.02)
    assert await asker.expected("ann", request("m", 10, 900_000)) == pytest.approx(1520, rel=0.02)
    assert asker.parts.pool.first.speeds.prefill_tokens_per_s == speed


async def test_a_prompt_of_a_picture_alone_is_learned() -> None:
    asker, picture = Asker(), request("m", 0, 4000)
    await asker.told("ann", picture, 300)
    await asker.told("ann", picture, 300)
    assert await asker.expected("ann", picture) == pytest.approx(300, rel=0.1)


async def test_base64_in_the_text_of_a_tool_counts_as_text_before_anything_is_learned() -> None:
    text = json.dumps({"image": "data:image/png;base64," + "iVBORw0KGgo" * 10_000})
    messages = [{"role": "user", "content": "see"}, {"role": "tool", "tool_call_id": "1", "content": text}]
    expected = await Asker().expected("ann", {"model": "m", "messages": messages})
    assert expected == pytest.approx(len(text) / 4, rel=0.01)


async def test_a_lie_is_believed_of_its_client_alone() -> None:
    asker, text, picture = Asker(), request("m", 400), request("m", 10, 4000)
    for client in ("ann", "bob"):
        await asker.told(client, text, 410)
        await asker.told(client, picture, 320)
    for _ in range(3):
        await asker.told("eve", text, 400_000)
        await asker.told("eve", picture, 400_000)
    for client in ("ann", "bob", "someone new"):
        assert await asker.expected(client, text) == pytest.approx(410, rel=0.01)
        assert await asker.expected(client, picture) == pytest.approx(320, rel=0.1)


async def test_invented_names_of_models_take_nobody_s_place() -> None:
    asker = Asker()
    for _ in range(2):
        await asker.told("ann", request("real", 400), 2000)
    await asyncio.gather(
        *(asker.told(client, request(f"m{n}", 400), 1) for client in ("ann", "eve") for n in range(300))
    )
    assert await asker.expected("ann", request("real", 400)) == pytest.approx(2000, rel=0.01)
    await asker.told("bob", request("new", 400), 1000)
    assert await asker.expected("bob", request("new", 400)) == pytest.approx(1000, rel=0.01)


def test_means_are_bounded() -> None:
    means = ClientMeans()
    for client in range(MOST_CLIENTS + 9):
        for key in range(MOST_KEYS + 9 if client % 50 == 0 else 2):
            means.learn(key, f"client {client}", 1.0)
    assert len(means._known) == MOST_CLIENTS
    assert max(map(len, means._known.values())) == MOST_KEYS
    means.learn("a", "ann", 1.0)
    means.learn("a", "ann", 1e9)
    assert means.get("a", "ann") == pytest.approx(1.9)
