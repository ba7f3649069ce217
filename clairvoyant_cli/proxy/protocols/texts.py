"""Text out of prompts and messages: both its ends, and about how much there is of it.

Rule: what is looked at has an end, whatever a body holds: so many entries of a list from either end of it, so
many levels of lists within lists. What is passed over counts as much as what was looked at does.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import msgspec

from clairvoyant_cli.proxy.plain import printable
from clairvoyant_cli.proxy.protocols.bodies import Loose, Other, Part, PromptObject
from clairvoyant_cli.proxy.protocols.condense import uncut

MOST_PARTS = 64
"""Parts of a message that are looked at."""

MOST_ENTRIES = 256
"""Entries of a prompt that are looked at: token ids, or texts."""

NARROWER = 8
"""Of lists within these lists so many times fewer entries are looked at, which ends after two levels."""

TOKEN_ID = "    "  # noqa: S105 - of a text, and no secret
"""Stands for a token id: about four characters."""

MAX_NAME_CHARS = 200
"""The longest name, of a model say, that is known whole."""

Entry = TypeVar("Entry")

PART = msgspec.json.Decoder(Other | Part)


class Text(NamedTuple):
    """Text, how many characters longer it was (what is missing was between its ends), and its pictures."""

    text: str = ""
    cut: int = 0
    images: int = 0

    @property
    def characters(self) -> int:
        """How long it is with what is missing."""
        return len(self.text) + self.cut


NOTHING = Text()


def plain(value: object) -> str:
    """Return a value that should be a name or a short text; "" if it is anything else."""
    return value if isinstance(value, str) else ""


def short_name(value: object) -> str:
    """Return a name as one short line; "" for what is no text.

    It goes into logs, labels and dashboards, and whoever sent it may have written anything into it.
    """
    return printable(plain(value), MAX_NAME_CHARS)


def text_of(value: object) -> Text:
    """Return a value that should be a text; nothing if it is anything else."""
    return Text(*uncut(value)) if isinstance(value, str) else NOTHING


def content_text(content: Loose, most: int = MOST_PARTS) -> Text:
    """Return the text of a message: text itself, or a list of parts."""
    if not isinstance(content, list):
        return text_of(content)
    if most < 2:
        return NOTHING
    shown = ends(content, most)
    parts = [_part_text(PART.decode(entry), most // NARROWER) for entry in shown]
    return joined([part for part in parts if part is not None], "\n", _passed_over(content, shown))


def prompt_text(prompt: object, most: int = MOST_ENTRIES) -> Text:
    """Return the text of a `Prompt`: of a completion, or of what is to be embedded."""
    if isinstance(prompt, str):
        return Text(*uncut(prompt))
    if isinstance(prompt, int):
        return Text(TOKEN_ID)
    if isinstance(prompt, PromptObject):
        return text_of(prompt.prompt_string)
    if not isinstance(prompt, list):
        return NOTHING
    shown = ends(prompt, most)
    are_ids = all(type(entry) is int for entry in shown)
    texts = [prompt_text(entry, most // NARROWER) for entry in shown]
    return joined(texts, "" if are_ids else "\n", _passed_over(prompt, shown))


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
    return [*entries[: most // 2], *entries[-(most // 2) :]]


def _passed_over(entries: Sequence[object], shown: Sequence[object]) -> float:
    return (len(entries) - len(shown)) / (len(shown) or 1)


def _part_text(part: Other | Part, most: int) -> Text | None:
    if not isinstance(part, Part):
        return text_of(part) if isinstance(part, str) else None
    if isinstance(part.text, str):
        return text_of(part.text)
    if "image" in plain(part.type):
        return Text(images=1)
    # Anthropic's tool_result, Responses' tool output
    return None if part.content is None else content_text(part.content, most)
