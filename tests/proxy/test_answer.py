"""What is read of answers, dialect by dialect."""

import json

import pytest

from clairvoyant_cli.http.framing import ResponseHead
from clairvoyant_cli.proxy.protocols.answer import AnswerWatch, Totals

SSE, NDJSON, JSON = "text/event-stream", "application/x-ndjson", "application/json; charset=utf-8"


def totals(kind: str, body: bytes, *, status: int = 200, piece: int = 7) -> Totals:
    watch = AnswerWatch(ResponseHead(status, b"OK", [(b"Content-Type", kind.encode())]))
    for start in range(0, len(body), piece):
        watch.feed(body[start : start + piece])
    return watch.totals()


def events(*each: object, named: bool = False) -> bytes:
    name = "event: x\n" if named else ""
    return b"".join(f"{name}data: {e if isinstance(e, str) else json.dumps(e)}\n\n".encode() for e in each)


DELTA = {"choices": [{"delta": {"content": "river"}}]}
OLLAMA_END = {"done": True, "eval_count": 9, "eval_duration": 3_000_000_000, "prompt_eval_count": 5}
TIMINGS = {"timings": {"predicted_n": 9, "predicted_ms": 3000.0, "prompt_n": 5, "prompt_ms": 500.0}}


@pytest.mark.parametrize(
    ("kind", "body", "tokens", "complete"),
    [
        (NDJSON, b'{"done": false}\n' + json.dumps(OLLAMA_END).encode() + b"\n", 9, True),
        (JSON, json.dumps(OLLAMA_END).encode(), 9, True),
        (NDJSON, b'{"done": false}\n{"error": "out of memory"}\n', None, False),
        (NDJSON, b'{"done": false}\n{"done": fal', None, False),
        (SSE, events(DELTA, DELTA | {"usage": {"completion_tokens": 9}}, "[DONE]"), 9, True),
        (SSE, events(*[DELTA] * 12, "[DONE]"), None, True),
        (SSE, events(DELTA, DELTA), None, False),
        (SSE, events(DELTA, {"error": {"message": "no"}}), None, False),
        (
            SSE,
            events({"type": "message_delta", "usage": {"output_tokens": 9}}, {"type": "message_stop"}),
            9,
            True,
        ),
        (SSE, events({"type": "response.completed", "response": {"usage": {"output_tokens": 9}}}), 9, True),
        (SSE, events({"type": "response.failed"}), None, False),
        (SSE, events({"stop": True, "tokens_predicted": 9} | TIMINGS), 9, True),
        (JSON, json.dumps({"usage": {"completion_tokens": 9}}).encode(), 9, True),
        (JSON, json.dumps({"stats": {"total_output_tokens": 9}}).encode(), 9, True),
        (JSON, b'{"result": "text"}', None, True),
        (JSON, b"not json", None, True),
    ],
)
def test_totals(kind: str, body: bytes, tokens: int | None, complete: bool) -> None:
    for piece in (1, 7, 10_000):
        got = totals(kind, body, piece=piece)
        assert got.complete is complete
        if tokens is not None:
            assert got.tokens == tokens


def test_speeds_are_in_seconds() -> None:
    got = totals(NDJSON, json.dumps(OLLAMA_END).encode() + b"\n")
    assert (got.decode_s, got.prefilled_tokens) == (3.0, 5)
    got = totals(SSE, events({"stop": True} | TIMINGS, "[DONE]"))
    assert (got.decode_s, got.prefill_s, got.tokens) == (3.0, 0.5, 9)


def test_an_error_status_says_nothing_of_length() -> None:
    assert totals(JSON, json.dumps(OLLAMA_END).encode(), status=500) == Totals()


def test_a_compressed_answer_is_left_alone() -> None:
    headers = [(b"Content-Type", JSON.encode()), (b"Content-Encoding", b"gzip")]
    watch = AnswerWatch(ResponseHead(200, b"OK", headers))
    watch.feed(b"\x1f\x8b")
    assert watch.totals() == Totals()
