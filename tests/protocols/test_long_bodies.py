"""Bodies that are too long to be read at once: understood all the same, or known by their ends."""

import asyncio
import itertools
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import predictor
from clairvoyant_cli.backends.adapters import adapter_of
from clairvoyant_cli.http import limits
from clairvoyant_cli.protocols import lenient_json as loose
from clairvoyant_cli.protocols.conversation import NO_CONVERSATION
from clairvoyant_cli.protocols.lenient_json import fitting
from clairvoyant_cli.protocols.long_bodies import MAX_BODY_BYTES, LongBody
from clairvoyant_cli.protocols.outer_members import MAX_PIECES, SLICE_BYTES, OuterMembers
from clairvoyant_cli.protocols.printable import MAX_NAME_CHARS
from clairvoyant_cli.protocols.prompt_views import FIRST_MESSAGES, LAST_MESSAGES
from clairvoyant_cli.protocols.request_parsing import ParsedRequest, parse_body, parse_request
from clairvoyant_cli.protocols.routes import ROUTES
from predictor.record import PromptView
from tests.fakes.raw_http import post
from tests.fakes.scripted_upstream import Conversation, answer
from tests.fakes.serving import ByFirstWord, between

KIND = adapter_of("llamacpp")
USER = {"role": "user", "content": "river"}
MIB = 1024 * 1024
LEXICAL = predictor.load()


async def read(path: str, body: Any, *cuts: float) -> ParsedRequest:
    """Read a body that comes in pieces, cut at these shares of its length."""
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    places = [0, *(int(share * len(text)) for share in sorted(cuts)), len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(places)]
    return await parse_request(pieces, ROUTES[path], KIND, "ann")


def view_of(parsed: ParsedRequest) -> PromptView:
    assert parsed.view is not None
    return parsed.view


def chat(content: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": content}], **more}


async def test_a_long_prompt_is_read_at_both_ends_and_its_length_is_known() -> None:
    text = "first " + "word " * 400_000 + "last"
    parsed = await read("/v1/chat/completions", chat(text, stream=True, max_tokens=7), 0.3, 0.9)
    view = view_of(parsed)
    assert (view.prompt[:6], view.prompt[-4:]) == ("first ", "last")
    assert len(view.prompt) < 10_000
    assert view.characters == pytest.approx(len(text), rel=0.01)
    assert (parsed.model, parsed.stream, view.max_tokens, view.client) == ("m", True, 7, "ann")
    assert parsed.prompt_tokens == pytest.approx(len(text) / 4, rel=0.01)


@pytest.mark.parametrize("messages", [600, 2200, 5000])
async def test_a_long_conversation_is_read_at_both_ends_and_measured_in_between(messages: int) -> None:
    asked, answered = "What is it? " * 10, "It is what it is, and more than that. " * 20
    turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}] * (messages // 2)
    body = {"model": "m", "messages": [{"role": "system", "content": "be brief"}, *turns, USER]}
    parsed = await read("/v1/chat/completions", body, 0.5)
    view = view_of(parsed)
    assert (view.system, view.prompt, view.history[-1].text) == ("be brief", "river", answered)
    assert len(view.history) <= FIRST_MESSAGES + 1 + LAST_MESSAGES
    characters = (len(asked) + len(answered)) * messages / 2
    assert parsed.prompt_tokens == pytest.approx(characters / 4, rel=0.02)


async def test_long_answers_of_a_conversation_keep_their_length() -> None:
    turns = [USER, {"role": "assistant", "content": "word " * 100_000}] * 2
    history = view_of(await read("/api/chat", {"messages": [*turns, USER]})).history
    assert [turn.characters for turn in history] == pytest.approx([5, 500_000, 5, 500_000], rel=0.01)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "QUJD" * (10 * MIB)}},
        {"type": "image", "source": {"type": "base64", "data": "QUJD" * (10 * MIB)}},
    ],
)
async def test_a_picture_of_40_mb_is_a_picture(part: dict[str, Any]) -> None:
    content = [part, {"type": "text", "text": "what is it?"}]
    parsed = await read("/v1/chat/completions", chat(content), 0.5)
    assert (view_of(parsed).prompt, view_of(parsed).images, parsed.prompt_tokens) == (
        "what is it?",
        1,
        11 / 4,
    )


async def test_ollamas_pictures_are_counted() -> None:
    body = {"messages": [{**USER, "images": ["QUJD" * MIB, "QUJD"]}]}
    view = view_of(await read("/api/chat", body, 0.2))
    assert (view.prompt, view.images) == ("river", 2)


async def test_a_thousand_tools_are_counted() -> None:
    tool = {"type": "function", "function": {"name": "do", "parameters": {"a": {"type": "string"}}}}
    parsed = await read("/v1/chat/completions", chat("river", tools=[tool | {"note": "x" * 500}] * 1000))
    assert (view_of(parsed).tools, view_of(parsed).prompt) == (1000, "river")


async def test_many_parts_are_read_at_both_ends() -> None:
    parts = [{"type": "text", "text": f"part {n:4}"} for n in range(4000)]
    parsed = await read("/v1/messages", chat(parts))
    assert view_of(parsed).prompt.startswith("part    0\npart    1\n")
    assert view_of(parsed).prompt.endswith("\npart 3998\npart 3999")
    assert parsed.prompt_tokens == pytest.approx(4000 * 10 / 4, rel=0.02)


async def test_a_tools_result_holds_parts_of_its_own() -> None:
    result = {"type": "tool_result", "content": [{"type": "text", "text": "river"}, {"type": "image"}]}
    view = view_of(await read("/v1/messages", chat([result, {"type": "text", "text": "and now?"}])))
    assert (view.prompt, view.images) == ("river\nand now?", 1)
    deeper = {"content": [{"content": [{"content": ["no further"]}]}]}
    assert view_of(await read("/v1/messages", chat([deeper, "river"]))).prompt == "\nriver"


@settings(max_examples=8)
@given(
    st.lists(st.sampled_from(["word ", "é", "🙂\n", '"', "\\"]), min_size=1, max_size=3).map("".join),
    st.lists(st.floats(0, 1), max_size=20),
)
def test_how_a_body_comes_does_not_matter(unit: str, cuts: list[float]) -> None:
    body = json.dumps(chat(unit * 100_000), ensure_ascii=False).encode()
    whole = asyncio.run(read("/api/chat", body))
    assert view_of(whole).cut > 0
    assert asyncio.run(read("/api/chat", body, *cuts)) == whole


# -- too long, and pictures --------------------------------------------------------------------------

LONG = "word " * MIB
TAIL = {"stream": True, "user": 'a"]},', "stop": ["{"], "stream_options": {"include_usage": True}}


@pytest.mark.parametrize(
    "body",
    [
        {"model": "m", **TAIL, "messages": [{"role": "user", "content": LONG}], "model2": "x"},
        {"messages": [{"role": "user", "content": LONG}], "model": "m", **TAIL},
        {"options": {"model": "no"}, "model": "m", **TAIL, "prompt": LONG},
        {"prompt": LONG, "stream": True, "tools": [{"model": "no", "stream": False}], "model": "m", "n": 1},
    ],
)
@pytest.mark.parametrize("indent", [None, 2])
async def test_of_longer_texts_the_model_and_the_size_are_known(
    body: dict[str, Any], indent: int | None
) -> None:
    text = json.dumps(body, indent=indent).encode()
    parsed = await read("/v1/chat/completions", text, 0.001, 0.5, 0.9999)
    assert (parsed.model, parsed.stream, parsed.view, parsed.choices) == ("m", True, None, 1)
    assert parsed.prompt_tokens == len(text) / 4
    assert parsed.conversation is NO_CONVERSATION


@pytest.mark.parametrize(
    "ending",
    [
        rb'}],\"model\":\"no\",\"stream\":true}"}]}',  # a text
        b'"}],"model":["no"]}',
        b'"}],"n":{"model":"no","stream":true}}',
    ],
)
async def test_what_looks_like_members_is_not_believed(ending: bytes) -> None:
    parsed = await read(
        "/v1/chat/completions", b'{"messages":[{"role":"user","content":"' + LONG.encode() + ending
    )
    assert (parsed.model, parsed.stream) == ("", False)


def long_body(text: bytes, *cuts: float) -> bytes | None:
    """Return what is left of a body that comes in pieces, cut at these shares of its length."""
    long = LongBody()
    places = [0, *sorted(int(share * len(text)) for share in cuts), len(text)]
    for start, end in itertools.pairwise(places):
        long.feed(text[start:end])
    return long.text()


PIECES = [
    "word ",
    "é",
    "🙂",
    '"',
    "\\",
    "\n",
    "/",
    "QUJD",
    "QUJD" * 2000,
    "data:image/png;base64,",
    "=",
    "QU/+" * 3000,
]
strings = st.lists(st.sampled_from(PIECES), max_size=5).map("".join)
values = st.recursive(
    strings | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(strings, inner, max_size=4),
    max_leaves=12,
)


@given(values, st.booleans(), st.booleans(), st.lists(st.floats(0, 1), max_size=9))
def test_only_base64_is_left_out(value: Any, ascii_only: bool, slashes: bool, cuts: list[float]) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    text = text.replace("/", "\\/") if slashes else text
    left = long_body(text.encode(), *cuts)
    assert left is not None
    assert without_base64(json.loads(left)) == without_base64(value)


def without_base64(value: Any) -> Any:
    """Return a value without what may be base64 in its strings."""
    if isinstance(value, dict):
        return [(without_base64(key), without_base64(each)) for key, each in value.items()]
    if isinstance(value, list):
        return [without_base64(each) for each in value]
    return re.sub(r"[A-Za-z0-9+/\\\né🙂]{16,}", "-", value) if isinstance(value, str) else value


async def test_a_text_with_pictures_is_read() -> None:
    pictures = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{'QUJD' * n}"}}
        for n in (MIB, 9000)
    ]
    content = [
        {"type": "text", "text": "word " * 100_000},
        *pictures,
        {"type": "text", "text": "what is it?"},
    ]
    parsed = await read("/v1/chat/completions", chat(content), 0.01, 0.3)
    assert (view_of(parsed).images, view_of(parsed).prompt[-12:]) == (2, "\nwhat is it?")
    assert view_of(parsed).characters == 500_000 + 12


HOSTILE_PARTS = {
    "strings": b'"",',
    "keys": b'"a":1,',
    "objects": b"{},",
    "depth": b"[",
    "numbers": b"1,",
    "blanks": b" ",
    "escapes": b'"\\n",',
    "quotes": b'"',
    "long numbers": b"9" * 1000 + b",",
    "messages": b'{"role":"user","content":"a"},',
    "texts": b'"' + b"a b " * 1000 + b'",',
}


@pytest.mark.parametrize("name", HOSTILE_PARTS)
def test_what_would_take_long_to_decode_is_given_up(name: str) -> None:
    unit = HOSTILE_PARTS[name]
    long = LongBody()
    fed = 0
    while long.is_readable:
        long.feed(unit * (SLICE_BYTES // len(unit)))
        fed += SLICE_BYTES
        assert fed <= MAX_BODY_BYTES + 2 * SLICE_BYTES
    assert long.text() is None
    assert long._kept == []


# -- the others --------------------------------------------------------------------------------------


async def turns_meanwhile(*bodies: Sequence[bytes]) -> int:
    """Return how often the event loop turned while the bodies, each in pieces, were read, all at once."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count())
    await asyncio.gather(*(parse_request(body, ROUTES["/api/chat"], KIND) for body in bodies))
    counting.cancel()
    return turns


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every reading, of a slice or of a body, seem to take half of what a turn has."""
    ticks = itertools.count(0.0, limits.TURN_S / 2)
    monkeypatch.setattr(limits, "perf_counter", lambda: next(ticks))


@pytest.mark.usefixtures("slow")
async def test_others_have_their_turn_between_the_slices_of_a_long_body() -> None:
    body = json.dumps(chat("word " * (MIB // 2))).encode()
    assert await turns_meanwhile([body]) >= len(body) // SLICE_BYTES // 2
    assert await turns_meanwhile([body[:1]] * 50_000) >= 50_000 // MAX_PIECES // 2
    assert await turns_meanwhile([b'{"messages":[]}']) <= 3


@pytest.mark.parametrize(
    "repeated", [b'"a",', b'"\\u0061",', b'{"name":"x"},', b'{"a":["name"]},', b'"\\n":"",']
)
def test_many_short_strings_cost_no_step_each(repeated: bytes) -> None:
    members, calls = OuterMembers(), 0

    def count(_frame: object, _event: str, _arg: object) -> None:
        nonlocal calls
        calls += 1

    members.feed(b'{"model":"m","messages":[' + repeated * 2)
    sys.setprofile(count)
    try:
        members.feed(repeated * (SLICE_BYTES // len(repeated)))
    finally:
        sys.setprofile(None)
    assert calls < 1000
    members.feed(b'],"priority":1}')
    assert members.found == {"model": "m", "priority": ""}


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("characters", [2, 20_000, 300_000])
async def test_bodies_that_come_at_once_are_not_decoded_at_once(characters: int) -> None:
    body = json.dumps(chat("x" * characters)).encode()
    assert await turns_meanwhile(*[[body]] * 9) >= 4


@pytest.mark.usefixtures("slow")
async def test_what_is_hopeless_is_given_up_at_once() -> None:
    body = b'{"messages":[' + b"{}," * MIB + b"{}]}"
    slices = len(body) / SLICE_BYTES  # in each of which outer members are looked for
    assert await turns_meanwhile([body]) <= slices / 2 + 5


# -- whatever is sent --------------------------------------------------------------------------------

BIG = 200_000

HOSTILE: dict[str, Callable[[], tuple[str, bytes]]] = {
    "model": lambda: ("/api/chat", b'{"model":"' + b"m\\u202e" * BIG + b'","messages":[]}'),
    "affinity": lambda: (
        "/api/chat",
        b'{"model":"m","messages":["x"],"options":{"num_gpu":"%b","num_ctx":[%b1],"num_batch":%b}}'
        % (b"9" * BIG, b"1," * BIG, b"9" * 300),
    ),
    "messages": lambda: ("/api/chat", b'{"messages":[' + b"{}," * 80_000 + b"{}]}"),
    "roles": lambda: ("/api/chat", b'{"messages":[{"role":"' + b"x" * BIG + b'"},"river",[[]],5,{}]}'),
    "systems": lambda: (
        "/v1/messages",
        b'{"messages":[' + b'{"role":"system","content":"abcdefgh"},' * 6000 + b"{}]}",
    ),
    "parts": lambda: (
        "/v1/chat/completions",
        b'{"messages":[{"content":[' + b'{"text":"a"},' * 20_000 + b'"b"]}]}',
    ),
    "parts within parts": lambda: (
        "/v1/messages",
        b'{"messages":[{"content":' + b'[{"content":' * 300 + b'"a"' + b"}]" * 300 + b"}]}",
    ),
    "lists within lists": lambda: (
        "/v1/completions",
        b'{"prompt":' + b'["",' * 300 + b'"a"' + b"]" * 300 + b"}",
    ),
    "strings": lambda: ("/v1/completions", b'{"prompt":[' + b'"a",' * 60_000 + b'"a"]}'),
    "lists of lists": lambda: (
        "/v1/completions",
        b'{"prompt":[' + (b"[" + b'["a",1],' * 32 + b"1],") * 250 + b'"a"]}',
    ),
    "parts of parts": lambda: (
        "/v1/chat/completions",
        b'{"messages":[' + (b'{"content":[' + b'{"content":["",""]},' * 16 + b'"a"]},') * 600 + b"{}]}",
    ),
    "tools": lambda: ("/v1/chat/completions", b'{"tools":[' + b"{}," * 60_000 + b'{}],"messages":[]}'),
    "texts": lambda: ("/v1/embeddings", b'{"input":[' + b'"a",' * 60_000 + b'"a"]}'),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_what_is_kept_of_a_request_is_bounded(name: str) -> None:
    path, body = HOSTILE[name]()
    parsed = await read(path, body, 0.5)
    view = view_of(parsed)
    assert len(parsed.model) <= MAX_NAME_CHARS
    assert len(parsed.affinity) <= len(parsed.model) + 200
    assert len(view.history) <= FIRST_MESSAGES + 1 + LAST_MESSAGES
    assert len(view.prompt) + len(view.system) <= 20_000
    assert LEXICAL.predict(view).expected_tokens >= 0
    assert parsed.prompt_tokens <= len(body)


@pytest.mark.parametrize("name", HOSTILE)
def test_few_entries_of_lists_are_looked_at(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path, body = HOSTILE[name]()
    decoded: list[object] = []

    def count(decoder: Any, raw: Any) -> Any:
        decoded.append(raw)
        return fitting(decoder, raw)

    monkeypatch.setattr(loose, "fitting", count)
    parse_body(body, ROUTES[path], KIND)
    assert len(decoded) < 5000


async def test_what_was_too_long_to_hold_is_unknown() -> None:
    assert await parse_request([], ROUTES["/api/chat"], KIND, whole=False) == ParsedRequest(stream=True)
    opening = [b'{"model": "m", "stream": false, "messages": [{"content": "first ']
    parsed = await parse_request(opening, ROUTES["/api/chat"], KIND, whole=False)
    assert (parsed.model, parsed.stream, parsed.view, parsed.opening) == ("m", False, None, 1)
    sound = ROUTES["/v1/audio/transcriptions"]
    recording = await parse_request([b"x" * 20], sound, KIND, whole=False, ends=False)
    assert recording == ParsedRequest()


ODD = [5, 1.5, True, "text", [], [1, "x", None, {}, [[]]], {}, {"type": 5, "content": [1]}, None, 10**30]
FIELDS: dict[str, Sequence[str]] = {
    "/api/chat": "model options format think tools stream keep_alive service_tier".split(),
    "/v1/chat/completions": "model max_tokens max_completion_tokens n best_of response_format tools "
    "functions reasoning_effort service_tier stream grammar".split(),
    "/v1/messages": "model system thinking max_tokens tools stream".split(),
}


@pytest.mark.parametrize("path", FIELDS)
def test_a_field_of_an_odd_type_costs_no_more_than_itself(path: str) -> None:
    for field in FIELDS[path]:
        for value in ODD:
            body = json.dumps({"model": "m", "messages": [USER], field: value}).encode()
            parsed = parse_body(body, ROUTES[path], KIND)
            assert view_of(parsed).prompt == "river", (field, value)
            assert parsed.model == "m" or field == "model"
            assert parsed.choices >= 1


# -- through the proxy -------------------------------------------------------------------------------


async def test_a_long_body_is_understood_and_forwarded_as_it_came() -> None:
    body = json.dumps(
        chat("0.9 first " + "wörd " * 100_000 + "last", stream=False), ensure_ascii=False
    ).encode()
    seen: list[bytes] = []

    async def script(it: Conversation) -> None:
        seen.append((await it.request()).body)
        it.send(answer(b'{"usage":{"completion_tokens":5}}', "Content-Type: application/json"))

    predicting = ByFirstWord()
    async with between(script, predicting) as (_, client):
        got = await client.ask(post("/v1/chat/completions", body))
        assert (got.status, seen) == (200, [body])
    (view,) = predicting.seen
    assert view.characters == pytest.approx(500_014, rel=0.01)
    assert view.prompt.endswith("last")
    assert replace(view, prompt="", cut=0) == PromptView("", model="m", client=view.client)


@pytest.mark.parametrize("picture", [True, False])
async def test_a_body_of_20_mb_is_forwarded_as_it_came(picture: bool) -> None:
    body = json.dumps({"messages": [{**USER, "images": ["QUJD" * (5 * MIB)]}], "model": "m"}).encode()
    body = body if picture else body.replace(b"QUJD", b"a b ")
    seen: list[bytes] = []

    async def script(it: Conversation) -> None:
        seen.append((await it.request()).body)
        it.send(answer(b'{"done":true,"eval_count":5}', "Content-Type: application/json"))

    predicting = ByFirstWord()
    async with between(script, predicting) as (_, client):
        assert (await client.ask(post("/api/chat", body))).status == 200
    assert seen == [body]
    assert [view.images for view in predicting.seen] == [1] * picture
