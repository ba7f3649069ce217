"""Requests for sound and images are ordered by what earlier ones took."""

import asyncio

import pytest

from clairvoyant_cli.backends.adapters import OTHER
from clairvoyant_cli.protocols.request_parsing import parse_request
from clairvoyant_cli.protocols.routes import ROUTES
from tests.fakes.raw_http import post
from tests.fakes.scripted_upstream import Conversation, answer, scripted
from tests.fakes.serving import asked, serving

SOUND, IMAGE = "/v1/audio/transcriptions", "/v1/images/generations"


@pytest.mark.parametrize(
    ("path", "body", "kind", "amount"),
    [
        (SOUND, b"--b\r\n\r\nRIFF....WAVE", "wav", 19),
        (SOUND, b"--b\r\n\r\nID3....", "mp3", 14),
        (SOUND, b"--b", "", 3),
        ("/v1/audio/speech", b'{"input": "river"}', "", 18),
        (IMAGE, b'{"prompt": "a river", "size": "512x256", "n": 2}', "pixels", 2 * 512 * 256),
        (IMAGE, b'{"prompt": "a river"}', "images", 1),
        (IMAGE, b'{"prompt": "a river", "n": 3}', "images", 3),
    ],
)
async def test_what_is_asked_for_is_counted(path: str, body: bytes, kind: str, amount: float) -> None:
    parsed = await parse_request([body], ROUTES[path], OTHER)
    assert (parsed.amount_kind, parsed.amount) == (f"{path} {kind}", amount)


async def test_the_shorter_recording_goes_first_once_one_was_timed() -> None:
    order, free = list[int](), asyncio.Event()

    async def script(it: Conversation) -> None:
        while True:
            size = len((await it.request()).body)
            order.append(size)
            if size == 5000:
                await free.wait()
            it.send(answer())

    timed, held, long, short = (post(SOUND, b"x" * size) for size in (1000, 5000, 8000, 800))
    async with scripted(script) as upstream, serving(upstream.base_url, policy="urgency") as daemon:
        async with asked(daemon, timed) as (client,):
            assert (await client.response(b"POST")).status == 200
        async with asked(daemon, held, long, short) as clients:
            free.set()
            for client in clients:
                assert (await client.response(b"POST")).status == 200
    assert order == [1000, 5000, 800, 8000]
