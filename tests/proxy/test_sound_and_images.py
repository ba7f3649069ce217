"""Requests for sound and images are ordered by what earlier ones took."""

import asyncio
import io
import random
import statistics
import wave
from itertools import pairwise

import pytest
from clairvoyant_lab.virtual_time import run_virtually

from clairvoyant_cli.backends.adapters import OTHER
from clairvoyant_cli.protocols.request_parsing import parse_request
from clairvoyant_cli.protocols.routes import ROUTES
from tests.fakes.raw_http import RawClient, post, read_message
from tests.fakes.scripted_upstream import Conversation, answer, scripted
from tests.fakes.serving import asked, serving

SOUND, IMAGE = "/v1/audio/transcriptions", "/v1/images/generations"


def form(sound: bytes) -> bytes:
    """Return a form as clients send it: fields of text, and a file."""
    return b"\r\n".join(
        (
            b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper-1\r\n--b',
            b'Content-Disposition: form-data; name="file"; filename="a"\r\n',
            sound,
            b"--b--\r\n",
        )
    )


def wav(seconds: float, hz: int = 16_000) -> bytes:
    written = io.BytesIO()
    with wave.open(written, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(hz)
        file.writeframes(bytes(2 * round(seconds * hz)))
    return written.getvalue()


@pytest.mark.parametrize("sound", [wav(10.0), wav(10.0, 44_100)], ids=["wav", "wav-44"])
@pytest.mark.parametrize("pieces", [1, 3])
async def test_the_length_of_a_recording_is_read_from_its_header(sound: bytes, pieces: int) -> None:
    body = form(sound)
    ends = [len(body) * n // pieces for n in range(pieces + 1)]
    parsed = await parse_request([body[a:b] for a, b in pairwise(ends)], ROUTES[SOUND], OTHER)
    assert parsed.amount_kind == f"{SOUND} seconds"
    assert parsed.amount == pytest.approx(10.0, rel=0.01)


FAST_WAV = wav(1.0)[:28] + b"\xff" * 4 + wav(1.0)[32:]  # 4 GB a second


@pytest.mark.parametrize(
    "sound",
    [
        b"ID3\4\0\0\0\4\0\0",
        FAST_WAV,
        b"RIFF....WAVE",
        b"fLaC",
        b"OggS",
        b"ID3",
        b"\xff\xfb",
        b"",
    ],
)
async def test_of_a_recording_without_a_whole_header_the_bytes_count(sound: bytes) -> None:
    body = form(sound)
    parsed = await parse_request([body], ROUTES[SOUND], OTHER)
    assert (parsed.amount_kind != f"{SOUND} seconds", parsed.amount) == (True, len(body))


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


def test_transcriptions_in_order_of_their_length_wait_far_less_than_in_order_of_arrival() -> None:
    """Before a server with the times of whisper.cpp, which works on windows of 30 s, whole or not."""
    luck = random.Random(7)
    lengths = [luck.lognormvariate(4.0, 1.2) for _ in range(40)]  # from voice notes to meetings, in seconds
    bodies = [form(wav(seconds, luck.choice((100, 200, 400)))) for seconds in lengths]
    takes_s = {len(body): 2.0 * -(-seconds // 30) for body, seconds in zip(bodies, lengths, strict=True)}
    assert len(takes_s) == len(bodies)

    async def script(it: Conversation) -> None:
        await asyncio.sleep(takes_s[len((await it.request()).body)])
        it.send(answer())

    async def median_s(policy: str) -> float:
        now = asyncio.get_running_loop().time
        sojourns = list[float]()

        async def ask(client: RawClient, begun_s: float) -> None:
            assert (await read_message(client.reader, method=b"POST")).status == 200
            sojourns.append(now() - begun_s)

        async with (
            scripted(script) as upstream,
            serving(upstream.base_url, policy=policy, clock=now) as daemon,
        ):
            async with asked(daemon, post(SOUND, bodies[0])) as (first,):
                await ask(first, now())
            sojourns.clear()
            async with asked(daemon, *(post(SOUND, body) for body in bodies)) as clients:
                await asyncio.gather(*(ask(client, now()) for client in clients))
        return statistics.median(sojourns)

    in_order, shortest_first = (run_virtually(median_s(policy)) for policy in ("fcfs", "boost"))
    assert shortest_first <= 0.4 * in_order
