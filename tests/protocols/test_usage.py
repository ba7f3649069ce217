"""What is read of answers, dialect by dialect."""

import json
from types import NoneType
from typing import Any

import pytest

from clairvoyant_cli.http.heads import ResponseHead
from clairvoyant_cli.protocols.usage import (
    LAST_LINES,
    LONGEST_S,
    TAIL_BYTES,
    WHOLE_BYTES,
    Totals,
    UsageReader,
    totals_in_event,
)

SSE, NDJSON, JSON = "text/event-stream", "application/x-ndjson", "application/json; charset=utf-8"


def totals(kind: str, body: bytes, *, status: int = 200, piece: int = 7) -> Totals:
    watch = UsageReader(ResponseHead(status, b"OK", [(b"Content-Type", kind.encode())]))
    for start in range(0, len(body), piece):
        watch.feed(body[start : start + piece])
    return watch.totals()


def events(*each: object, named: bool = False) -> bytes:
    name = "event: x\n" if named else ""
    return b"".join(f"{name}data: {e if isinstance(e, str) else json.dumps(e)}\n\n".encode() for e in each)


DELTA = {"choices": [{"delta": {"content": "river"}}]}
ROLE = {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
FINISH = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
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
        (SSE, events(*[DELTA] * 12, "[DONE]"), 12, True),
        (SSE, events(ROLE, *[DELTA] * 12, FINISH, "[DONE]"), 12, True),
        (SSE, events(*[DELTA] * 12, FINISH, "[DONE]"), 12, True),
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


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 50, 10_000])
@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (
            SSE,
            events(ROLE, *[DELTA] * 5, FINISH, {"choices": [], "usage": {"completion_tokens": 5}}, "[DONE]"),
        ),
        (SSE, events(ROLE, *[DELTA] * 4, DELTA | {"x": '"content":"a"'}, "[DONE]").replace(b"\n", b"\r\n")),
        (SSE, b": still reading\n\n" + events(*[{"choices": [{"text": "\n"}]}] * 5, FINISH)),
        (
            SSE,
            events(
                {"type": "message_start", "message": {"role": "assistant", "content": []}},
                {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
                {"type": "ping"},
                {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "hm"}},
                *[{"type": "content_block_delta", "delta": {"type": "text_delta", "text": "river"}}] * 4,
                {"type": "content_block_stop", "index": 0},
                {
                    "type": "message_delta",
                    "delta": {"stop_reason": "end_turn"},
                    "usage": {"output_tokens": 5},
                },
                {"type": "message_stop"},
                named=True,
            ),
        ),
        (NDJSON, b'{"message":{"role":"assistant","content":"a"},"done":false}\n' * 5 + b'{"done":true}\n'),
        (NDJSON, b'{"response":"a","done":false}\n' * 5 + b'{"response":"","done":true}\n'),
    ],
)
def test_the_tokens_so_far_are_the_events_that_bring_text(kind: str, body: bytes, piece: int) -> None:
    watch = UsageReader(ResponseHead(200, b"OK", [(b"Content-Type", kind.encode())]))
    for start in range(0, len(body), piece):
        watch.feed(body[start : start + piece])
    assert watch.events == 5


def _ollama(**message: str) -> bytes:
    return json.dumps({"message": {"role": "assistant", "content": ""} | message}).encode() + b"\n"


def _anthropic(kind: str) -> bytes:
    return events({"type": "content_block_delta", "delta": {"type": f"{kind}_delta", kind: "hm"}}, named=True)


def _responses(kind: str) -> bytes:
    event = json.dumps({"type": f"response.{kind}.delta", "delta": "hm"}, separators=(",", ":"))
    return f"event: response.{kind}.delta\ndata: {event}\n\n".encode()


def _chat(name: str, text: str = "hm") -> bytes:
    return events({"choices": [{"delta": {name: text}}]})


@pytest.mark.parametrize("piece", [1, 7, 60])
@pytest.mark.parametrize(
    ("kind", "thinks", "ends", "answers"),
    [
        (NDJSON, _ollama(thinking="hm"), b"", _ollama(content="river")),
        (NDJSON, _ollama(content="hm"), b'{"response":"\\u003c/think\\u003e"}\n', _ollama(content="river")),
        (SSE, _chat("content"), _chat("content", "</think>"), _chat("content")),
        (SSE, _chat("reasoning_content"), b"", _chat("content")),
        (SSE, _chat("reasoning"), b"", _chat("content")),
        (SSE, _anthropic("thinking"), b"", _anthropic("text")),
        (SSE, _responses("reasoning_summary_text"), b"", _responses("output_text")),
    ],
)
def test_the_thinking_is_counted_and_its_end_reported(
    kind: str, thinks: bytes, ends: bytes, answers: bytes, piece: int
) -> None:
    watch, at = UsageReader(ResponseHead(200, b"OK", [(b"Content-Type", kind.encode())])), []
    watch.on_answer = lambda: at.append(watch.thought)
    body = thinks * 5 + ends + answers * 3
    for start in range(0, len(body), piece):
        watch.feed(body[start : start + piece])
    thought = 5 + bool(ends)
    assert (watch.thought, watch.events, at) == (thought, thought + 3, [thought])


@pytest.mark.parametrize(
    ("piece", "idle"),
    [
        (b": still reading\n\n", True),
        (b'event: ping\ndata: {"type": "ping"}\n\n:\n\n', True),
        (b'data: {"type":"ping"}\r\n\r\n', True),
        (b'data: {"cost": 0, "type": "ping"}\n\n', True),
        (events({"type": "content_block_start", "content_block": {"type": "ping"}}), False),
        (b'data: {"choices":[{"delta":{"content":null}}],"prompt_progress":{"total":9}}\n\n', True),
        (b": still reading\n\n" + events(ROLE), False),
        (events({"type": "ping"}, DELTA), False),
        (events({"choices": [{"delta": {"content": '{"type":"ping"} "prompt_progress":{'}}]}), False),
        (b'{"response":"a"}\n', False),
    ],
)
def test_what_a_server_sends_while_it_reads_is_no_part_of_an_answer(piece: bytes, idle: bool) -> None:
    watch = UsageReader(ResponseHead(200, b"OK", [(b"Content-Type", SSE.encode())]))
    assert watch.feed(piece) is not idle


def test_what_a_responses_stream_repeats_is_not_counted_again() -> None:
    done = ({"type": f"response.{kind}", "text": "hmhm"} for kind in ("output_text.done", "completed"))
    repeated = b"".join(b"event: x\n" + events(event) for event in done)
    watch = UsageReader(ResponseHead(200, b"OK", [(b"Content-Type", SSE.encode())]))
    last = b'data: {"delta":"hm","item_id":"i","type":"response.output_text.delta"}\n\n'
    watch.feed(_responses("output_text") + last + repeated)
    assert watch.events == 2


def test_answer_without_thinking_reports_no_end_of_thinking() -> None:
    watch, at = UsageReader(ResponseHead(200, b"OK", [(b"Content-Type", SSE.encode())])), []
    watch.on_answer = lambda: at.append(watch.events)
    watch.feed(events(ROLE, *[DELTA] * 5, FINISH))
    assert (watch.thought, at) == (0, [])


def test_what_stands_far_before_the_end_of_a_stream_is_not_read() -> None:
    body = events(*[DELTA] * 10, {"usage": {"completion_tokens": 9}}, *[DELTA] * (LAST_LINES // 2), "[DONE]")
    assert totals(SSE, body, piece=100_000).tokens == 10 + LAST_LINES // 2


ABSURD = [10**30, 1 << 32, -5, True, 1.5, "x", "9", [], [1], {}, None, 1e300]


@pytest.mark.parametrize("value", ABSURD)
def test_a_number_that_no_server_means_is_none_and_costs_no_other(value: object) -> None:
    for name in ("eval_count", "prompt_eval_count", "eval_duration", "prompt_eval_duration", "load_duration"):
        got = totals(JSON, json.dumps(OLLAMA_END | {name: value}).encode())
        known = {
            "eval_count": got.tokens,
            "prompt_eval_count": got.prompt_tokens,
            "eval_duration": got.decode_s,
        }
        expected = {"eval_count": 9, "prompt_eval_count": 5, "eval_duration": 3.0}
        assert {k: v for k, v in known.items() if k != name} == {
            k: v for k, v in expected.items() if k != name
        }
        if name.endswith("_count"):
            assert known[name] is None
        assert all(type(number) in (int, NoneType) for number in (got.tokens, got.prompt_tokens))
        assert all(s is None or 0 < s <= LONGEST_S for s in (got.decode_s, got.prefill_s, got.load_s))
        assert got.complete


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("usage", {"completion_tokens": 10**30, "prompt_tokens": -1}),
        ("timings", {"predicted_n": True, "predicted_ms": 10**30, "prompt_n": "5", "prompt_ms": -0.5}),
        ("stats", {"total_output_tokens": 1e300, "predicted_tokens_count": []}),
        ("usage", [5]),
        ("timings", "text"),
        ("tokens_predicted", {"a": 1}),
    ],
)
def test_no_dialect_tells_absurd_numbers(field: str, value: object) -> None:
    for body in ({field: value}, {"response": {field: value}}, {"result": {field: value}}):
        assert totals(JSON, json.dumps(body).encode()) == Totals(complete=True)


def test_a_number_that_cannot_be_read_costs_no_other() -> None:
    for number in ("1e400", "9" * 5000, "NaN", "-"):
        body = b'{"done": true, "eval_count": 9, "eval_duration": %b}' % number.encode()
        told = {totals(JSON, body), totals(NDJSON, body + b"\n")}
        # What is no JSON may be known for that, or not.
        assert told <= {Totals(complete=True), Totals(), Totals(tokens=9, complete=True)}


def test_of_an_answer_that_is_too_long_nothing_is_held() -> None:
    watch = UsageReader(ResponseHead(200, b"OK", [(b"Content-Type", JSON.encode())]))
    watch.feed(b'{"usage": {"completion_tokens": 9}, "data": [')
    for _ in range(2 * WHOLE_BYTES // 65_536):
        watch.feed(b"0.5, " * 13_107)
        assert len(watch._tail) <= WHOLE_BYTES
    watch.feed(b"0]}")
    assert len(watch._tail) == 0
    assert watch.totals() == Totals()


def test_a_long_answer_that_is_read_may_hold_anything() -> None:
    body = b'{"x": [' + b"{}," * 600_000 + b'[]], "usage": {"completion_tokens": 9}}'
    assert totals(JSON, body, piece=65_536).tokens == 9


def test_of_an_endless_stream_the_end_is_held() -> None:
    watch = UsageReader(ResponseHead(200, b"OK", [(b"Content-Type", NDJSON.encode())]))
    for _ in range(100):
        watch.feed(b'{"response":"a"}\n' * 20_000)
        assert len(watch._tail) <= 3 * TAIL_BYTES
    watch.feed(json.dumps(OLLAMA_END).encode() + b"\n")
    assert (watch.totals().tokens, watch.events) == (9, 2_000_000)


def test_speeds_are_in_seconds() -> None:
    got = totals(NDJSON, json.dumps(OLLAMA_END).encode() + b"\n")
    assert (got.decode_s, got.read_tokens) == (3.0, 5)
    got = totals(SSE, events({"stop": True} | TIMINGS, "[DONE]"))
    assert (got.decode_s, got.prefill_s, got.tokens) == (3.0, 0.5, 9)


def test_an_error_status_says_nothing_of_length() -> None:
    assert totals(JSON, json.dumps(OLLAMA_END).encode(), status=500) == Totals()


def test_a_compressed_answer_is_left_alone() -> None:
    headers = [(b"Content-Type", JSON.encode()), (b"Content-Encoding", b"gzip")]
    watch = UsageReader(ResponseHead(200, b"OK", headers))
    watch.feed(b"\x1f\x8b")
    assert watch.totals() == Totals()


@pytest.mark.parametrize(
    ("answer", "prompt", "cached", "read"),
    [
        ({"timings": {"cache_n": 90, "prompt_n": 10}, "usage": {"prompt_tokens": 100}}, 100, 90, 10),
        ({"timings": {"cache_n": 90, "prompt_n": 10}}, 100, 90, 10),
        ({"usage": {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 0}}}, 100, 0, 100),
        ({"usage": {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 64}}}, 100, 64, 36),
        ({"usage": {"input_tokens": 10, "cache_read_input_tokens": 90}}, 100, 90, 10),
        (
            {"usage": {"input_tokens": 5, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 95}},
            100,
            0,
            100,
        ),
        (
            {
                "type": "message_start",
                "message": {"usage": {"input_tokens": 10, "cache_read_input_tokens": 90}},
            },
            100,
            90,
            10,
        ),
        ({"prompt_eval_count": 100, "prompt_eval_cached_count": 60}, 100, 60, 40),
        ({"usage": {"prompt_tokens": 100}}, 100, None, None),
        (
            {"usage": {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": "x"}}},
            100,
            None,
            None,
        ),
    ],
)
def test_what_came_from_the_cache_is_read(
    answer: dict[str, Any], prompt: int, cached: int | None, read: int | None
) -> None:
    totals = totals_in_event(json.dumps(answer).encode())
    assert (totals.prompt_tokens, totals.cached_tokens, totals.read_tokens) == (prompt, cached, read)
