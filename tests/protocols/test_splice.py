"""Two parts of an answer, one stream: scripts of what a server sends, and what its client reads."""

import json
from typing import Any

import pytest

from clairvoyant_cli.protocols.answer_events import Earlier, unstreamed
from clairvoyant_cli.protocols.can_continue import Continuable
from clairvoyant_cli.protocols.routes import Shape
from clairvoyant_cli.protocols.splice import (
    EVENTS_TO_A_SPACE,
    MAX_EVENT_BYTES,
    MAX_KEPT_BYTES,
    PartError,
    Splice,
)


def sse(event: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def chunk(text: str | None, reason: str | None = None) -> bytes:
    delta = {} if text is None else {"content": text}
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return sse({"id": "chatcmpl-1", "choices": [choice], "model": "m"})


def chat(*, streamed: bool = True, shape: Shape = Shape.CHAT) -> Splice:
    body = {"messages": [{"role": "user", "content": "?"}]}
    return Splice(Continuable(shape, body, streamed, wants_usage=True))


def fed(splice: Splice, *pieces: bytes) -> bytes:
    return b"".join(map(splice.feed, pieces))


def test_it_is_cut_after_a_word_and_what_follows_is_dropped() -> None:
    splice = chat()
    fed(splice, chunk("One"), chunk(" wo"))
    assert splice.want_cut()
    assert fed(splice, chunk("rd"), chunk(" and"), chunk(" more")) == chunk("rd")
    assert splice.is_cut
    assert (splice.said, splice.tokens) == ("One word", 3)


def test_not_before_there_is_anything_to_go_on_from() -> None:
    splice = chat()
    assert splice.want_cut()
    assert fed(splice, chunk(None), chunk(" One")) == chunk(None) + chunk(" One")
    assert not splice.is_cut


def test_a_script_without_spaces_is_cut_all_the_same() -> None:
    splice = chat()
    fed(splice, chunk("一"), chunk("一"))
    assert splice.want_cut()
    for _ in range(EVENTS_TO_A_SPACE + 1):
        splice.feed(chunk("二"))
    assert splice.is_cut
    assert splice.said == "一一" + "二" * EVENTS_TO_A_SPACE


@pytest.mark.parametrize(
    "strange",
    [
        sse({"choices": [{"index": 0, "delta": {"reasoning_content": "hm"}, "finish_reason": None}]}),
        sse({"choices": [{"index": 0, "delta": {"tool_calls": [{}]}, "finish_reason": None}]}),
        sse({"choices": [{"index": 1, "delta": {"content": "b"}, "finish_reason": None}]}),
        sse({"choices": [{"index": 0, "delta": {"content": "b"}, "logprobs": {}}]}),
        sse({"error": {"message": "out of memory"}}),
        b"event: x\ndata: {}\n\n",
    ],
)
def test_an_answer_that_is_more_than_text_is_not_cut(strange: bytes) -> None:
    splice = chat()
    fed(splice, chunk("One"), strange)
    assert not splice.want_cut()
    why = "an error" if b'"error"' in strange else "more than text"
    assert splice.why_not == f"the answer contains {why}"
    assert splice.feed(chunk(" two")) == chunk(" two")


def test_a_very_long_answer_is_no_longer_kept() -> None:
    splice = chat()
    piece = chunk("x" * 100_000)
    for _ in range(MAX_KEPT_BYTES // len(piece) + 1):
        splice.feed(piece)
    assert not splice.want_cut()
    assert splice.why_not == "the answer is too long"


def cut_once(then: Shape = Shape.CHAT) -> Splice:
    splice = chat()
    fed(splice, chunk("One"), chunk(" two"))
    assert splice.want_cut()
    assert splice.feed(chunk(" next")) == b""
    splice.continue_in(then, Earlier(2, 0.1, 0.5, 2))
    return splice


@pytest.mark.parametrize(
    "strange",
    [
        sse({"error": {"message": "out of memory"}}),
        sse({"choices": [{"index": 0, "delta": {"reasoning_content": "hm"}, "finish_reason": None}]}),
        b"event: x\ndata: {}\n\n",
        b"data: [DONE]\n\n",
        b"\x1f\x8b\n\n",
        b"x" * (MAX_EVENT_BYTES + 1),
    ],
)
def test_what_is_no_part_of_the_answer_is_not_passed_on(strange: bytes) -> None:
    splice = cut_once()
    assert b" next" in splice.feed(chunk(" next"))
    with pytest.raises(PartError):
        splice.feed(strange)
    assert splice.can_go_on


def test_a_later_part_that_ends_before_the_answer_is_none() -> None:
    splice = cut_once()
    splice.feed(chunk(" next"))
    with pytest.raises(PartError):
        splice.end()


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_comments_and_line_ends_of_every_kind_are_read(end: bytes) -> None:
    def sent(event: bytes) -> bytes:
        return event.replace(b"\n\n", end)

    splice = chat()
    fed(splice, sent(b": reading\n\n"), sent(chunk("One")), sent(b":\n\n"), sent(chunk(" two")))
    assert splice.want_cut()
    assert splice.feed(sent(b":\n\n") + sent(chunk(" three"))) == sent(b":\n\n")
    assert (splice.is_cut, splice.said) == (True, "One two")


def test_what_turns_out_to_be_more_than_text_passes_whole_again() -> None:
    splice = chat()
    fed(splice, chunk("One"), chunk("wo"))
    assert splice.want_cut()
    thought = sse({"choices": [{"index": 0, "delta": {"reasoning_content": "hm"}}]})
    assert splice.feed(thought + b"data: {") == thought + b"data: {"
    assert splice.feed(b"x") == b"x"
    assert not splice.can_go_on


def generated(text: str, **done: Any) -> bytes:
    event = {"model": "m", "created_at": "2026-11-22T05:04:01.92Z", "response": text, "done": bool(done)}
    return json.dumps(event | done).encode() + b"\n"


DONE = {
    "done_reason": "length",
    "total_duration": 10**9,
    "prompt_eval_count": 12,
    "eval_count": 3,
    "eval_duration": 10**9,
}


def test_a_generation_goes_on_as_a_chat_of_openais() -> None:
    splice = cut_once(Shape.OLLAMA_GENERATE)
    rest = fed(splice, generated(" three"), generated("", **DONE)) + splice.end()
    events = [line.removeprefix(b"data: ") for line in rest.split(b"\n\n") if line]
    assert events[-1] == b"[DONE]"
    said, ended, counted = map(json.loads, events[:-1])
    assert said["choices"][0]["delta"] == {"content": " three"}
    assert ended["choices"][0] == {"index": 0, "delta": {}, "finish_reason": "length"}
    assert counted["usage"] == {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


def test_unstreamed_answer_reports_a_failure_in_mid_answer() -> None:
    splice = chat(streamed=False)
    splice.feed(chunk("One"))
    with pytest.raises(PartError, match="out of memory"):
        splice.feed(sse({"error": {"message": "out of memory"}}))
    with pytest.raises(PartError):
        splice.end()


@pytest.mark.parametrize("names", [("index", "delta", "finish_reason"), ("finish_reason", "index", "delta")])
def test_an_unstreamed_choice_has_its_names_in_the_order_of_the_server(names: tuple[str, ...]) -> None:
    values: dict[str, Any] = {"index": 0, "delta": {}, "finish_reason": "stop"}
    ended = {
        "id": "x",
        "object": "chat.completion.chunk",
        "choices": [{name: values[name] for name in names}],
    }
    [choice] = unstreamed(Shape.CHAT, ended, ended, "One")["choices"]
    assert list(choice) == [name if name != "delta" else "message" for name in names]
