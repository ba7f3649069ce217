"""Finds what broke the prefix of a conversation: it goes on, but the beginning of its prompt has changed.

A KV cache helps only as far as a prompt begins as the one before. Everything after a change is read again.
"""

from bisect import bisect_right
from dataclasses import dataclass
from itertools import compress, pairwise

from clairvoyant_cli.scheduler.chain import Chain, Parts

SAME_SHARE = 0.5
SAME_MESSAGES = 3
"""A conversation goes on if at least this share of its messages, by length, and this number of them are in
the new prompt. After a summary there are fewer, and a request for a title shares the first question only."""

BROKEN_SHARE = 0.25
"""A prefix is broken if at least this share of the prompt before comes again after the change."""

KINDS = ("tools", "system text", "messages")


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
    again = [each in there for each in old.hashes]
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
    lost = sum(compress(sizes, (each and end > kept for each, end in zip(again, old.ends, strict=True))))
    return Change(kind, f"its {kind} changed{where}", lost >= BROKEN_SHARE * before.length)


def _kind_after(kept: int, parts: Parts) -> int:
    """Return the kind of the part in which character `kept` is, counted from 0."""
    at = bisect_right(parts.ends, kept)
    return (at >= parts.tools) + (at >= parts.before)
