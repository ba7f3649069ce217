"""The fields that are read of request bodies and of the objects in them, undecoded (`lenient_json`), the
text in them, and bodies that are too long to decode at once.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import msgspec
from msgspec import Raw

from clairvoyant_cli.protocols.lenient_json import (
    ABSENT,
    Object,
    count,
    entries,
    fields,
    fitting,
    is_given,
    is_list,
    is_object,
    is_text,
    object_in,
    text,
)
from clairvoyant_cli.protocols.media import kind_of
from clairvoyant_cli.protocols.printable import MAX_NAME_CHARS, printable


class RequestBody(msgspec.Struct, gc=False):
    """A request of any dialect; each dialect's reader looks at its own fields."""

    model: Raw = ABSENT
    stream: Raw = ABSENT
    service_tier: Raw = ABSENT
    n: Raw = ABSENT
    best_of: Raw = ABSENT
    n_cmpl: Raw = ABSENT
    priority: Raw = ABSENT
    store: Raw = ABSENT
    prompt_cache_key: Raw = ABSENT
    metadata: Raw = ABSENT
    # What is asked: messages, prompts, inputs.
    messages: Raw = ABSENT
    system: Raw = ABSENT
    prompt: Raw = ABSENT
    suffix: Raw = ABSENT
    images: Raw = ABSENT
    image_data: Raw = ABSENT  # llama.cpp's, as it was
    raw: Raw = ABSENT
    input: Raw = ABSENT
    instructions: Raw = ABSENT
    system_prompt: Raw = ABSENT
    content: Raw = ABSENT
    input_prefix: Raw = ABSENT
    input_suffix: Raw = ABSENT
    input_extra: Raw = ABSENT
    tools: Raw = ABSENT
    functions: Raw = ABSENT
    # What servers do besides answering.
    integrations: Raw = ABSENT
    background: Raw = ABSENT
    previous_response_id: Raw = ABSENT
    mcp_servers: Raw = ABSENT
    web_search: Raw = msgspec.field(default=ABSENT, name="web_search_options")
    # How the answer is to be.
    max_completion_tokens: Raw = ABSENT
    max_tokens: Raw = ABSENT
    max_output_tokens: Raw = ABSENT
    n_predict: Raw = ABSENT
    format: Raw = ABSENT
    response_format: Raw = ABSENT
    json_schema: Raw = ABSENT
    grammar: Raw = ABSENT
    text: Raw = ABSENT
    think: Raw = ABSENT
    thinking: Raw = ABSENT
    reasoning: Raw = ABSENT
    reasoning_effort: Raw = ABSENT
    chat_template_kwargs: Raw = ABSENT
    # Ollama's own.
    options: Raw = ABSENT
    keep_alive: Raw = ABSENT
    name: Raw = ABSENT  # the model, in old requests for `/api/show`
    debug_render_only: Raw = msgspec.field(default=ABSENT, name="_debug_render_only")


class Nested(msgspec.Struct, gc=False):
    """An object in a request: a message, a part of one, a tool's call, a format, or options."""

    role: Raw = ABSENT
    type: Raw = ABSENT
    content: Raw = ABSENT
    text: Raw = ABSENT
    images: Raw = ABSENT
    tool_calls: Raw = ABSENT
    function: Raw = ABSENT
    name: Raw = ABSENT
    arguments: Raw = ABSENT  # of a call, also of a Responses function_call
    input: Raw = ABSENT  # of an Anthropic tool_use
    action: Raw = ABSENT  # of a Responses local_shell_call
    output: Raw = ABSENT  # of a Responses function_call_output
    source: Raw = ABSENT  # of an Anthropic image or document
    data: Raw = ABSENT  # of a source
    format: Raw = ABSENT
    effort: Raw = ABSENT
    enable_thinking: Raw = ABSENT
    thinking: Raw = ABSENT  # the name that DeepSeek's and Granite's templates use
    prompt_string: Raw = ABSENT  # of llama.cpp's prompt with media
    multimodal_data: Raw = ABSENT
    user_id: Raw = ABSENT
    session_id: Raw = ABSENT
    num_predict: Raw = ABSENT
    num_ctx: Raw = ABSENT
    num_batch: Raw = ABSENT
    num_gpu: Raw = ABSENT
    main_gpu: Raw = ABSENT
    use_mmap: Raw = ABSENT
    num_thread: Raw = ABSENT


class PlainPart(msgspec.Struct, gc=False):
    """A part like nearly all: decoding it this way takes a tenth of the time."""

    text: str | None = None
    type: str = ""
    content: "str | list[PlainPart] | None" = None
    input: Raw = ABSENT
    source: Raw = ABSENT


class PlainMessage(msgspec.Struct, gc=False):
    """A message like nearly all: decoding it this way takes a third of the time."""

    role: str
    content: str | list[PlainPart]
    images: Raw = ABSENT
    tool_calls: Raw = ABSENT


BODY = msgspec.json.Decoder(RequestBody)
_NESTED = msgspec.json.Decoder(Nested)
_NO_FIELDS = Nested()


def nested(raw: Raw) -> Nested:
    """Return the fields of an object; all are absent if it is something else."""
    return _NO_FIELDS if raw is ABSENT else fields(_NESTED, raw) or _NO_FIELDS


MEDIA = ("image", "image_url", "audio_url", "video_url", "input_audio")
"""Fields that a part has instead of a type, for vLLM."""


def medium_of(part: Object) -> str:
    """Return the kind of medium that a part is; "" for text, and for a document of text."""
    kind = kind_of(text(part["type"]) or next((name for name in MEDIA if name in part), ""))
    return "" if kind == "file" and is_given(text_in(part["source"])) else kind


def text_in(source: Raw) -> Raw:
    """Return the text, or the parts, of the source of a document of Anthropic's; nothing if it is a file."""
    held = nested(source)
    return {"text": held.data, "content": held.content}.get(text(held.type), ABSENT)


KEPT_RUNNING = b"x-conversation-id"
"""With it llama.cpp goes on with a stream whose client has left, and keeps it to be read again."""


# Extracts text from prompts and messages: both ends, and an estimate of its length.
#
# Rule: work is bounded for any body: entries of a list, levels of nesting, and entries in all (`Allowance`).
# What is skipped is assumed to be as long as what was read.

MAX_PARTS = 64  # parts of a message that are looked at
MAX_ENTRIES = 256  # entries of a prompt that are looked at: token ids, or texts
MAX_IN_ALL = 512  # entries of lists that are looked at in a body, at some 5 us each
NARROWER = 8  # nested lists are read this many times less, which ends after two levels
TOKEN_ID = "    "  # noqa: S105 - of a text, and no secret
"""Stands for a token id: about four characters."""

MAX_TEXT_CHARS = 16 * 1024  # the longest text that is kept whole
END_CHARS = 2048
"""Kept at either end of a longer one. A predictor reads 280 and 168 (predictor/lexical/words.py), the model
of urgency 1,200 and 600 (predictor/urgency/model.py)."""

_JOINT = " … "

Entry = TypeVar("Entry")

PLAIN_PARTS = msgspec.json.Decoder(list[PlainPart])
Content = str | list[PlainPart]

_NO_PLAIN_LIST = re.compile(rb"[\"\[{]")


class Allowance:
    """How many entries of lists may still be looked at in a body."""

    __slots__ = ("left",)

    def __init__(self, entries: int = MAX_IN_ALL) -> None:
        self.left = entries

    def ends(self, entries: Sequence[Entry], most: int) -> Sequence[Entry]:
        """Return the first and the last entries, in order: `most` together, or as many as are left."""
        shown = ends(entries, min(most, self.left))
        self.left -= len(shown)
        return shown


class Text(NamedTuple):
    """Text, how many characters longer it was (what is missing was between its ends), and its media."""

    text: str = ""
    cut: int = 0
    images: int = 0

    @property
    def characters(self) -> int:
        return len(self.text) + self.cut


NOTHING = Text()


def short_name(raw: Raw) -> str:
    """Return a name as one short printable line; "" if it is not a string."""
    return printable(text(raw), MAX_NAME_CHARS)


def text_of(raw: Raw) -> Text:
    return shortened(text(raw))


def shortened(text: str) -> Text:
    if len(text) <= MAX_TEXT_CHARS:
        return Text(text)
    kept = f"{text[:END_CHARS]}{_JOINT}{text[-END_CHARS:]}"
    return Text(kept, len(text) - len(kept))


def content_text(content: Raw | Content, allowance: Allowance, most: int = MAX_PARTS) -> Text:
    """Return the text of a message: text itself, or a list of parts."""
    if isinstance(content, str):
        return shortened(content)
    parts: Sequence[PlainPart | Raw] | None
    if isinstance(content, list):
        parts = content
    elif is_text(content):
        return text_of(content)
    else:
        parts = (fitting(PLAIN_PARTS, content) or entries(content)) if most > 1 else None
    if not parts or most <= 1:
        return NOTHING
    shown: Sequence[PlainPart | Raw] = allowance.ends(parts, most)
    if len(shown) == len(parts) == 1:
        return _part_text(shown[0], allowance, most // NARROWER) or NOTHING
    texts = [_part_text(part, allowance, most // NARROWER) for part in shown]
    return joined([part for part in texts if part is not None], "\n", _passed_over(parts, shown))


def prompt_text(prompt: Raw, allowance: Allowance, most: int = MAX_ENTRIES) -> Text:
    """Return the text of a prompt, of a completion or to be embedded: text, token ids, or a list of both."""
    if is_text(prompt):
        return text_of(prompt)
    if is_object(prompt):
        held = nested(prompt)
        return text_of(held.prompt_string)._replace(images=count(held.multimodal_data))
    if not is_list(prompt):
        return Text(TOKEN_ID) if is_given(prompt) else NOTHING
    if _NO_PLAIN_LIST.search(prompt, 1) is None:
        token_ids = bytes(prompt).count(b",") + 1 if len(prompt) > len("[]") else 0
        shown_ids = min(token_ids, most)
        return Text(TOKEN_ID * shown_ids, len(TOKEN_ID) * (token_ids - shown_ids))
    listed = entries(prompt) if most > 1 else None
    if not listed:
        return NOTHING
    shown = allowance.ends(listed, most)
    texts = [prompt_text(entry, allowance, most // NARROWER) for entry in shown]
    return joined(texts, "\n", _passed_over(listed, shown))


def joined(texts: Sequence[Text], separator: str, passed_over: float = 0.0) -> Text:
    """Return texts as one; between them `passed_over` times as much was not looked at."""
    text = separator.join(one.text for one in texts if one.text or not one.images)
    cut = sum(one.cut for one in texts)
    cut += round((len(text) + cut) * passed_over)
    return Text(text, cut, sum(one.images for one in texts))


def ends(entries: Sequence[Entry], most: int) -> Sequence[Entry]:
    """Return the first and the last entries, `most` of them together, in order."""
    if len(entries) <= most:
        return entries
    half = most // 2
    return [*entries[: most - half], *entries[len(entries) - half :]]


def _passed_over(entries: Sequence[object], shown: Sequence[object]) -> float:
    return (len(entries) - len(shown)) / (len(shown) or 1)


def _part_text(entry: PlainPart | Raw, allowance: Allowance, most: int) -> Text | None:
    held: Raw | Content | None
    if isinstance(entry, PlainPart):
        said, given, held, source = entry.text, entry.input, entry.content, entry.source
        kind = kind_of(entry.type)
    elif is_text(entry):
        return text_of(entry)
    else:
        part = nested(entry)
        said = text(part.text) if is_text(part.text) else None
        given, held, source = part.input, part.content, part.source
        kind = medium_of(object_in(entry))
    if said is not None:
        return shortened(said)
    if source is not ABSENT and is_given(text_in(source)):
        return content_text(text_in(source), allowance, most)
    if kind:
        return Text(images=1)
    if given is not ABSENT:
        return Text("", len(given))  # Anthropic's tool_use
    # Anthropic's tool_result, Responses' tool output
    return None if held is None or held is ABSENT else content_text(held, allowance, most)
