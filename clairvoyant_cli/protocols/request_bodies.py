"""The text in request bodies, its length and its media, at a bounded cost."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Raw

from clairvoyant_cli.protocols.lenient_json import (
    is_list,
    plain_value,
    text,
)
from clairvoyant_cli.protocols.media import kind_of
from clairvoyant_cli.protocols.printable import MAX_NAME_CHARS, printable

MEDIA = ("image", "image_url", "audio_url", "video_url", "input_audio")
"""Fields that a part has instead of a type, for vLLM."""


def medium_of(part: Mapping[str, Any]) -> str:
    """Return the kind of medium that a part is; "" for text, and for a document of text. Of its members
    `type` and `source` are looked at.
    """
    part_type = part.get("type") or next((name for name in MEDIA if name in part), "")
    kind = kind_of(part_type) if isinstance(part_type, str) else ""
    return "" if kind == "file" and text_in(part.get("source")) else kind


def text_in(source: Any) -> Any:
    """Return the text, or the parts, of the source of a document of Anthropic's; None if it is a file."""
    if not isinstance(source, dict):
        return None
    return {"text": source.get("data"), "content": source.get("content")}.get(str(source.get("type")))


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


def content_text(content: Any, allowance: Allowance, most: int = MAX_PARTS) -> Text:
    """Return the text of a message: text itself, or a list of parts."""
    if isinstance(content, str):
        return shortened(content)
    if not content or not isinstance(content, list) or most <= 1:
        return NOTHING
    shown = allowance.ends(content, most)
    if len(shown) == len(content) == 1:
        return _part_text(shown[0], allowance, most // NARROWER) or NOTHING
    texts = [_part_text(part, allowance, most // NARROWER) for part in shown]
    return joined([part for part in texts if part is not None], "\n", _passed_over(content, shown))


def prompt_text(prompt: Raw) -> Text:
    """Return the text of a prompt, of a completion or to be embedded: text, token ids, or a list of both."""
    if is_list(prompt) and _NO_PLAIN_LIST.search(prompt, 1) is None:
        return _token_ids(bytes(prompt).count(b",") + 1 if len(prompt) > len("[]") else 0, MAX_ENTRIES)
    return _prompt_text(plain_value(prompt), Allowance(), MAX_ENTRIES)


def _prompt_text(prompt: Any, allowance: Allowance, most: int) -> Text:
    if isinstance(prompt, str):
        return shortened(prompt)
    if isinstance(prompt, dict):  # llama.cpp's prompt with media
        said, media = prompt.get("prompt_string"), prompt.get("multimodal_data")
        return content_text(said, allowance)._replace(images=len(media) if isinstance(media, list) else 0)
    if not isinstance(prompt, list):
        return _token_ids(int(bool(prompt)), 1)
    if most <= 1 or not any(isinstance(each, str | list | dict) for each in ends(prompt, most)):
        return _token_ids(len(prompt), most)
    shown = allowance.ends(prompt, most)
    texts = [_prompt_text(entry, allowance, most // NARROWER) for entry in shown]
    return joined(texts, "\n", _passed_over(prompt, shown))


def _token_ids(count: int, most: int) -> Text:
    shown = min(count, most)
    return Text(TOKEN_ID * shown, len(TOKEN_ID) * (count - shown))


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


def _part_text(part: Any, allowance: Allowance, most: int) -> Text | None:
    if isinstance(part, str):
        return shortened(part)
    if not isinstance(part, dict):
        return None
    if isinstance(said := part.get("text"), str):
        return shortened(said)
    if "source" in part and (said := text_in(part["source"])):
        return content_text(said, allowance, most)
    if medium_of(part):
        return Text(images=1)
    if "input" in part:
        return Text("", written_length(part["input"]))  # Anthropic's tool_use
    # Anthropic's tool_result, Responses' tool output
    return content_text(part["content"], allowance, most) if part.get("content") is not None else None


def written_length(decoded: Any) -> int:
    """Return how long a value is as JSON."""
    return len(msgspec.json.encode(decoded))
