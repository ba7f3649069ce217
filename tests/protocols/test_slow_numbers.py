"""Numbers that take a hundred times as long to decode as others cost nobody anything.

What a float does not hold exactly near its least (6e-317) takes msgspec 7 us; a body may hold 40,000 of them.
"""

from collections.abc import Callable
from time import perf_counter

import pytest

from clairvoyant_cli.backends.adapters import adapter_of
from clairvoyant_cli.http.heads import ResponseHead
from clairvoyant_cli.protocols import probes
from clairvoyant_cli.protocols.request_parsing import parse_body
from clairvoyant_cli.protocols.routes import ROUTES
from clairvoyant_cli.protocols.usage import UsageReader

QUICK, SLOW = b"602317", b"6e-317"
MANY = 10_000


def _request(path: str, before: bytes, each: bytes, after: bytes) -> Callable[[bytes], object]:
    def read(number: bytes) -> object:
        body = before + each.replace(b"N", number) * MANY + after
        return parse_body(body, ROUTES[path], adapter_of("llamacpp"))

    return read


def _answer(content_type: str, before: bytes, each: bytes, after: bytes) -> Callable[[bytes], object]:
    head = ResponseHead(200, b"OK", [(b"Content-Type", content_type.encode())])

    def read(number: bytes) -> object:
        watch = UsageReader(head)
        watch.feed(before + each.replace(b"N", number) * MANY + after)
        return watch.totals()

    return read


def _probe(
    ask: Callable[[bytes], object], before: bytes, each: bytes, after: bytes
) -> Callable[[bytes], object]:
    return lambda number: ask(before + each.replace(b"N", number) * MANY + after)


READERS = {
    "prompt": _request("/v1/completions", b'{"prompt":[', b"N,", b"1]}"),
    "prompt of both": _request("/v1/completions", b'{"prompt":["a",', b"N,", b"1]}"),
    "prompt in lists": _request("/v1/completions", b'{"prompt":["a",[', b"N,", b'"a"]]}'),
    "texts": _request("/v1/embeddings", b'{"input":["a",', b"N,", b"1]}"),
    "messages": _request("/v1/chat/completions", b'{"messages":[', b"N,", b"{}]}"),
    "parts": _request("/v1/chat/completions", b'{"messages":[{"content":[', b"N,", b'"a"]}]}'),
    "pictures": _request("/api/chat", b'{"messages":[{"images":[', b"N,", b"1]}]}"),
    "tools": _request("/v1/messages", b'{"messages":["a"],"tools":[', b"N,", b"1]}"),
    "a name again": _request("/api/chat", b'{"messages":["a"],', b'"stream":N,', b'"n":1}'),
    "a role again": _request("/api/chat", b'{"messages":[{', b'"role":N,', b'"content":"a"}]}'),
    "an option again": _request("/api/chat", b'{"messages":["a"],"options":{', b'"num_ctx":N,', b'"a":1}}'),
    "answer": _answer("application/json", b"{", b'"done":N,', b'"eval_count":5}'),
    "answer's usage": _answer("application/json", b'{"usage":{', b'"output_tokens":N,', b'"a":1}}'),
    "loaded models": _probe(probes.loaded_models, b'{"models":[', b"N,", b"{}]}"),
    "a model's size": _probe(probes.loaded_models, b'{"models":[{', b'"size":N,', b'"a":1}]}'),
    "slots": _probe(probes.busy_slots, b"[", b"N,", b"{}]"),
    "properties": _probe(probes.props_of, b"{", b'"total_slots":N,', b'"a":1}'),
}


@pytest.mark.parametrize("name", READERS)
def test_a_slow_number_costs_no_more_than_another(name: str) -> None:
    read = READERS[name]

    def seconds(number: bytes) -> float:
        begun = perf_counter()
        read(number)
        return perf_counter() - begun

    taken = [(seconds(SLOW), seconds(QUICK)) for _ in range(5)]
    slow, quick = (min(column) for column in zip(*taken, strict=True))
    assert slow < 5 * quick + 0.001
