"""Whatever a client sends to a scheduled route: no error of our own, and not one byte changed on its way."""

import asyncio
import json
from dataclasses import dataclass, field

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clairvoyant_cli.backends.adapter import Adapter
from clairvoyant_cli.backends.adapters import ADAPTERS, OTHER
from clairvoyant_cli.protocols.request_parsing import parse_body
from clairvoyant_cli.protocols.routes import ROUTES
from predictor import load
from predictor.record import Predictor
from tests.fakes.raw_http import Message, read_message
from tests.fakes.scripted_upstream import Conversation, answer
from tests.fakes.serving import between

PREDICTOR: Predictor = load()


def keys() -> st.SearchStrategy[str]:
    known = (
        "model messages prompt input system stream max_tokens n best_of n_predict options num_predict tools "
        "role content text type image_url images format think keep_alive service_tier instructions thinking "
        "response_format reasoning effort suffix input_prefix max_output_tokens num_ctx"
    )
    return st.sampled_from(known.split()) | st.text(max_size=6)


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys(), inner))


huge = st.integers(min_value=10**300, max_value=10**400)
objects = st.dictionaries(keys(), values | huge, max_size=8)
bodies = (
    objects.map(lambda value: json.dumps(value).encode())
    | objects.map(lambda value: json.dumps(value, ensure_ascii=False, indent=1).encode("utf-8", "replace"))
    | st.binary(max_size=200)
    | st.sampled_from([b"", b"null", b"[]", b"{", b'{"a":' * 5000, b"\xff\xfe{}", b'{"model": "\\ud800x"}'])
)
names = st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_0123456789", min_size=1, max_size=12)
contents = st.binary(max_size=30).map(
    lambda raw: bytes(byte for byte in raw if byte >= 32 and byte != 127).strip()
)
headers = st.lists(
    st.tuples(names.map(lambda name: b"X-F-" + name.encode()), contents)
    | st.tuples(
        st.sampled_from([b"Authorization", b"Cookie", b"Accept-Encoding", b"X-Clairvoyant-Priority"]),
        contents,
    ),
    max_size=6,
)
paths = st.sampled_from([path for path in ROUTES if "/audio/" not in path and "/images/" not in path])
queries = st.text("abc=&%20+/?", max_size=10)


@dataclass
class Echo:
    """An upstream that keeps what it got."""

    seen: list[Message] = field(default_factory=list)

    async def __call__(self, it: Conversation) -> None:
        while True:
            self.seen.append(await it.request())
            it.send(answer(b'{"result": "text", "stats": 5}', "Content-Type: application/json"))


OURS = (b"host", b"accept-encoding", b"x-clairvoyant-priority", b"x-clairvoyant-client")


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(paths, queries, headers, bodies), min_size=1, max_size=5))
def test_no_request_is_changed_and_none_fails_by_our_fault(
    requests: list[tuple[str, str, list[tuple[bytes, bytes]], bytes]],
) -> None:
    asyncio.run(_exchange(requests))


async def _exchange(requests: list[tuple[str, str, list[tuple[bytes, bytes]], bytes]]) -> None:
    echo = Echo()
    async with between(echo, PREDICTOR) as (daemon, client):
        for path, query, extra, body in requests:
            target = f"{path}?{query}".encode()
            sent = [(b"Content-Length", b"%d" % len(body)), *extra]
            lines = [b"POST " + target + b" HTTP/1.1", b"Host: t", *(k + b": " + v for k, v in sent)]
            client.send(b"\r\n".join(lines) + b"\r\n\r\n" + body)
            async with asyncio.timeout(10):
                got = await read_message(client.reader, method=b"POST")
            assert got.status == 200, got
            seen = echo.seen[-1]
            assert (seen.line, seen.body) == (b"POST " + target + b" HTTP/1.1", body)
            arrived = [header for header in seen.headers if header[0].lower() not in OURS]
            assert arrived == [header for header in sent if header[0].lower() not in OURS]
        assert len(echo.seen) == len(requests)
        daemon.snapshot()
        assert not daemon.dispatcher.live


@given(paths, bodies, st.sampled_from([*ADAPTERS, OTHER]))
def test_reading_a_body_never_raises_and_what_is_read_is_usable(
    path: str, body: bytes, adapter: Adapter
) -> None:
    parsed = parse_body(body, ROUTES[path], adapter, "client")
    assert parsed.choices >= 1
    assert parsed.prompt_tokens >= 0
    assert len(parsed.model) <= 200
    assert parsed.model.isprintable()
    if parsed.view is not None:
        prediction = PREDICTOR.predict(parsed.view)
        assert prediction.expected_tokens >= 0
        assert float(prediction.expected_tokens * parsed.choices) >= 0
