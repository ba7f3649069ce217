"""The text of a streamed answer, for operators who may read it."""

import pytest

from clairvoyant_cli.protocols.usage import SHOWN_CHARS, UNREAD_BYTES, AnswerText

STREAMS = {
    "ollama generate": (b'{"response":"Hello","done":false}\n{"response":" you","done":true}\n', "Hello you"),
    "ollama chat": (
        (
            b'{"message":{"role":"assistant","content":"","thinking":"Hm"},"done":false}\n'
            b'{"message":{"role":"assistant","content":"Hi"},"done":false}\n'
        ),
        "\n[thinking]\nHm\n[answer]\nHi",
    ),
    "chat": (
        (
            b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
            b'data: {"choices":[{"index":0,"delta":{"reasoning":"Hm","reasoning_content":"Hm"}}]}\n\n'
            b'data: {"choices":[{"index":0,"delta":{"content":"a \\"b\\"\\n"}}]}\n\ndata: [DONE]\n\n'
        ),
        '\n[thinking]\nHm\n[answer]\na "b"\n',
    ),
    "tool call": (
        b'data: {"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"{\\"a\\":1"}}]}}]}\n\n',
        '\n[tool call]\n{"a":1',
    ),
    "completion": (b'data: {"choices":[{"text":"x = "}]}\n\ndata: {"choices":[{"text":"1"}]}\n\n', "x = 1"),
    "responses": (
        (
            b'data: {"type":"response.output_text.delta","item_id":"i","delta":"Yes"}\n\n'
            b'data: {"type":"response.output_text.done","text":"Yes"}\n\n'
            b'data: {"type":"response.completed","response":{"output":[{"content":[{"text":"Yes"}]}]}}\n\n'
        ),
        "Yes",
    ),
    "reasoning of responses": (
        b'data: {"type":"response.reasoning_summary_text.delta","delta":"Hm"}\n\n',
        "\n[thinking]\nHm",
    ),
    "messages": (
        (
            b'data: {"type":"content_block_start","content_block":{"type":"text","text":""}}\n\n'
            b'data: {"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":"Hm"}}\n\n'
            b'data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"Hi"}}\n\n'
        ),
        "\n[thinking]\nHm\n[answer]\nHi",
    ),
}


@pytest.mark.parametrize("name", STREAMS)
def test_the_text_is_read_from_the_stream_of_any_protocol(name: str) -> None:
    stream, said = STREAMS[name]
    whole, bitwise = AnswerText(), AnswerText()
    whole.feed(stream)
    for at in range(0, len(stream), 7):
        bitwise.feed(stream[at : at + 7])
        bitwise.read()
    assert whole.read() == bitwise.read() == said


def test_a_character_that_comes_in_two_events_is_whole_and_an_invalid_one_is_replaced() -> None:
    text = AnswerText()
    text.feed(b'{"response":"\\ud83d"}\n{"response":"\\ude00"}\n{"response":"\xff \\ud83d."}\n')
    assert text.read() == "\U0001f600\ufffd \ufffd."
    text.feed(b'{"response":"\\ud83d"}\n')
    assert text.read().endswith("\ufffd"), "its other half is on its way"
    text.feed(b'{"response":"\\ude00"}\n')
    assert text.read().endswith("\U0001f600")


def test_only_the_end_is_kept_and_an_unread_stream_does_not_grow() -> None:
    text = AnswerText()
    for number in range(20_000):
        text.feed(b'{"response":"%d "}\n' % number)
        assert len(text._unread) <= UNREAD_BYTES + 100
    assert len(text.read()) == SHOWN_CHARS
    assert text.read().endswith("19998 19999 ")
    text.feed(b"x" * (3 * UNREAD_BYTES))
    assert len(text._unread) <= 3 * UNREAD_BYTES
    text.read()
    assert len(text._unread) <= UNREAD_BYTES


def test_an_answer_that_was_cut_goes_on_where_it_was() -> None:
    text = AnswerText()
    text.feed(b'{"response":"one two three"}\n{"respo')
    text.go_back_to("one two")
    assert text.read() == "one two"
    text.feed(b'{"response":" three"}\n')
    assert text.read() == "one two three"
