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

TOOLS, SYSTEM, MESSAGES = range(3)


@dataclass(frozen=True, slots=True)
class Change:
    """What changed first: `kind` is `TOOLS`, `SYSTEM` or `MESSAGES`. `breaks`: much comes again after it."""

    kind: int
    text: str
    breaks: bool


def change(before: Chain, after: Chain) -> Change | None:
    """Return what changed between two prompts of a conversation; None if nothing did, or if the second prompt
    does not go on with most of the messages of the first.
    """
    old, new = before.parts, after.parts
    if not goes_on(before, after):
        return None
    pieces = enumerate(zip(before.hashes, after.hashes, strict=False))
    at = next((n for n, (one, other) in pieces if one != other), None)
    if at is None:
        return None
    there = set(new.hashes)
    sizes = [end - start for start, end in pairwise((0, *old.ends))]
    again = [each in there for each in old.hashes]
    messages, same = sizes[old.before :], again[old.before :]
    if sum(same) < SAME_MESSAGES or sum(compress(messages, same)) < SAME_SHARE * sum(messages):
        return None
    kept = after.characters[at - 1] if at else 0
    kind = min(_kind(old, bisect_right(old.ends, kept)), _kind(new, bisect_right(new.ends, kept)))
    grew = len(new.hashes) - new.before > len(old.hashes) - old.before
    if kind == MESSAGES and not grew:  # shortened by its client
        return None
    lost = sum(compress(sizes, (a and end > kept for a, end in zip(again, old.ends, strict=True))))
    return Change(kind, _text(kind, new, kept, after.characters[at]), lost >= BROKEN_SHARE * before.length)


def goes_on(before: Chain, after: Chain) -> bool:
    """Return whether the last part of a prompt is in the next one, with others after it."""
    last = before.parts.hashes[-1:]
    return bool(last) and last != after.parts.hashes[-1:] and last[0] in after.parts.hashes


def _kind(parts: Parts, at: int) -> int:
    return TOOLS if at < parts.tools else SYSTEM if at < parts.before else MESSAGES


def _text(kind: int, parts: Parts, kept: int, until: int) -> str:
    if kind == TOOLS:
        return "its tools changed"
    if kind == MESSAGES:
        return f"message {bisect_right(parts.ends, kept) - parts.before + 1} changed"
    start = parts.ends[parts.tools - 1] if parts.tools else 0
    return f"its system text changed between characters {kept - start + 1:,} and {until - start:,}"
