"""Extracts text from prompts and messages: both ends, and an estimate of its length.

Rule: work is bounded for any body: entries of a list, levels of nesting, and entries in all (`Allowance`).
What is skipped is assumed to be as long as what was read.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import msgspec
from msgspec import Raw

from clairvoyant_cli.protocols.lenient_json import (
    ABSENT,
    entries,
    fitting,
    is_given,
    is_list,
    is_object,
    is_text,
    text,
)
from clairvoyant_cli.protocols.printable import printable
from clairvoyant_cli.protocols.request_bodies import PlainPart, nested

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

MAX_NAME_CHARS = 200  # the longest name, of a model say, that is known whole
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
    """Text, how many characters longer it was (what is missing was between its ends), and its pictures."""

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
    return joined([each for each in texts if each is not None], "\n", _passed_over(parts, shown))


def prompt_text(prompt: Raw, allowance: Allowance, most: int = MAX_ENTRIES) -> Text:
    """Return the text of a prompt, of a completion or to be embedded: text, token ids, or a list of both."""
    if is_text(prompt):
        return text_of(prompt)
    if is_object(prompt):
        return text_of(nested(prompt).prompt_string)
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
    text = separator.join(each.text for each in texts if each.text or not each.images)
    cut = sum(each.cut for each in texts)
    cut += round((len(text) + cut) * passed_over)
    return Text(text, cut, sum(each.images for each in texts))


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
        said, kind, given, held = entry.text, entry.type, entry.input, entry.content
    elif is_text(entry):
        return text_of(entry)
    else:
        part = nested(entry)
        said = text(part.text) if is_text(part.text) else None
        kind, given, held = text(part.type), part.input, part.content
    if said is not None:
        return shortened(said)
    if "image" in kind:
        return Text(images=1)
    if given is not ABSENT:
        return Text("", len(given))  # Anthropic's tool_use
    # Anthropic's tool_result, Responses' tool output
    return None if held is None or held is ABSENT else content_text(held, allowance, most)
