"""The chain of a conversation: hashes that tell how much of a prompt a server has read before.

A KV cache helps only as far as a prompt begins as the one before: after a change, all is read again. `change`
finds what broke the prefix of a conversation that goes on.
"""

from bisect import bisect_right
from dataclasses import dataclass
from itertools import compress, pairwise

SAME_SHARE = 0.5
SAME_MESSAGES = 3
"""A conversation goes on if at least this share of its messages, by length, and this number of them are in
the new prompt. After a summary there are fewer, and a request for a title shares the first question only."""

BROKEN_SHARE = 0.25
"""A prefix is broken if at least this share of the prompt before comes again after the change."""

MEDIUM_CHARACTERS = 4000
"""What a picture or another medium counts as, beside text: about a thousand tokens."""

KINDS = ("tools", "system text", "messages")


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a prompt: first `tools` tools, then `systems` parts of the system text, then messages.

    `hashes[k]` identifies the model and part k, wherever it is in a prompt. `ends[k]` is the length of the
    prompt up to the end of part k, in characters.
    """

    hashes: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    tools: int = 0
    systems: int = 0

    @property
    def before(self) -> int:
        """The number of parts before the messages."""
        return self.tools + self.systems


NO_PARTS = Parts()


@dataclass(frozen=True, slots=True)
class Chain:
    """A prompt in pieces, in the order in which a server reads them: tools, system prompt, messages.

    `hashes[i]` identifies the model and the prompt up to the end of piece i, so two prompts share exactly the
    pieces for which their hashes are equal. `characters[i]` is the length of the prompt up to there, with
    `MEDIUM_CHARACTERS` for each of its `media`. A piece never spans two parts: the next turn of a
    conversation begins with all pieces of the turn before.
    """

    hashes: tuple[int, ...] = ()  # empty: nothing is known of the prompt
    characters: tuple[int, ...] = ()
    parts: Parts = NO_PARTS
    media: int = 0

    @property
    def length(self) -> int:
        """The characters of the whole prompt."""
        return self.characters[-1] if self.characters else 0

    @property
    def text_length(self) -> int:
        """The characters of its text alone."""
        return self.length - MEDIUM_CHARACTERS * self.media


NO_CHAIN = Chain()


@dataclass(frozen=True, slots=True)
class Change:
    """What changed first in a prompt: one of `KINDS`. `breaks`: the change breaks the prefix."""

    kind: str
    text: str
    breaks: bool


def goes_on(before: Chain, after: Chain) -> bool:
    """Return whether the last part of a prompt is in the next one, with others after it."""
    last = before.parts.hashes[-1:]
    return bool(last) and last != after.parts.hashes[-1:] and last[0] in after.parts.hashes


def change(before: Chain, after: Chain) -> Change | None:
    """Return what changed between two prompts of a conversation; None if nothing did, or if the second prompt
    does not go on with most of the messages of the first.
    """
    pieces = enumerate(zip(before.hashes, after.hashes, strict=False))
    at = next((n for n, (one, other) in pieces if one != other), None)
    if at is None or not goes_on(before, after):
        return None
    old, new = before.parts, after.parts
    there = set(new.hashes)
    sizes = [end - start for start, end in pairwise((0, *old.ends))]
    again = [part in there for part in old.hashes]
    messages, same = sizes[old.before :], again[old.before :]
    if sum(same) < SAME_MESSAGES or sum(compress(messages, same)) < SAME_SHARE * sum(messages):
        return None
    kept = after.characters[at - 1] if at else 0
    kind = KINDS[min(_kind_after(kept, old), _kind_after(kept, new))]
    where = ""
    if kind == "system text":
        start = new.ends[new.tools - 1] if new.tools else 0
        where = f" between characters {kept - start + 1:,} and {after.characters[at] - start:,}"
    elif kind == "messages":
        if len(new.hashes) - new.before <= len(messages):  # shortened by its client
            return None
        where = f" at message {bisect_right(new.ends, kept) - new.before + 1}"
    lost = sum(
        compress(sizes, (is_there and end > kept for is_there, end in zip(again, old.ends, strict=True)))
    )
    return Change(kind, f"its {kind} changed{where}", lost >= BROKEN_SHARE * before.length)


def _kind_after(kept: int, parts: Parts) -> int:
    """Return the kind of the part in which character `kept` is, counted from 0."""
    at = bisect_right(parts.ends, kept)
    return (at >= parts.tools) + (at >= parts.before)
