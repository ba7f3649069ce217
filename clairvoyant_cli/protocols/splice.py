"""Joins an answer of several parts: what the client reads of them, and where it may be cut.

Rule 1: until a cut is wanted, the first part of a stream passes untouched and undecoded.
Rule 2: a cut comes between two events, after a word and before the space that follows: there both sides
tokenise as the whole does (GPT-2's splitting rule). Without such a place, as in scripts without spaces, any
event will do.
Rule 3: what arrived together with a cut, behind it, is dropped; the next part brings it again.
Rule 4: a later part, or the stream behind an unstreamed answer, must be text, its end and its totals, or it
fails (`PartError`). Nothing else of it reaches the client.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec

from clairvoyant_cli.protocols.answer_events import (
    CLOSES,
    EVENT_END,
    LINE_END,
    NOTHING,
    STRANGE,
    AnswerEvent,
    Earlier,
    Said,
    events_in,
    ndjson,
    read_event,
    sse,
    summed,
    summed_usage,
    unstreamed,
    with_text,
    without_role,
)
from clairvoyant_cli.protocols.can_continue import Continuable
from clairvoyant_cli.protocols.lenient_json import PLAIN_OBJECT, fitting
from clairvoyant_cli.protocols.routes import OLLAMA_SHAPES, Shape

MAX_KEPT_BYTES = 8 * 1024 * 1024  # an answer of which more has come is not cut any more: some 40,000 tokens
MAX_EVENT_BYTES = 1024 * 1024  # the longest event
EVENTS_TO_A_SPACE = 24  # events to wait for the end of a word
MORE_THAN_TEXT = "the answer contains more than text"
AN_ERROR = "the answer contains an error"
TOO_LONG = "the answer is too long"

DONE = b"[DONE]"
SAME = ("id", "model", "system_fingerprint")
"""Fields that are equal in all events of an OpenAI stream; llama.cpp and Ollama date each event."""


class PartError(Exception):
    """Not a part of the answer: an error, another kind of answer, or a truncated stream.

    `before` is what the client gets of what arrived before it.
    """

    before: bytes = b""


class Splice:
    """What a client reads of an answer in parts.

    `pieces` is the text so far, one per event; `why_not` says why it will not be cut, "" if it may be; after
    `is_cut` nothing more is taken. `holds_more` means that more than text came.
    """

    def __init__(self, asked: Continuable) -> None:
        self.asked = asked
        self.pieces: list[str] = []
        self.why_not = ""
        self.is_cut = False
        self.holds_more = False
        self.earlier = Earlier()
        self._sse = asked.shape not in OLLAMA_SHAPES
        self._part = asked.shape
        self._first = True
        self._wanted = False
        self._waited = 0
        self._bytes = 0
        self._kept = bytearray()
        self._rest = bytearray()
        self._sent_of_rest = 0
        self._like: AnswerEvent | None = None
        self._ended: AnswerEvent | None = None
        self._totals: AnswerEvent | None = None
        self._closed = False

    def continue_in(self, shape: Shape, earlier: Earlier) -> None:
        """Expect the next part, in the events of another route maybe."""
        self._part = shape
        self.earlier = earlier
        self._first = self._wanted = self.is_cut = False
        self._waited = 0
        self._rest.clear()
        self._sent_of_rest = 0

    @property
    def said(self) -> str:
        return "".join(self.pieces)

    @property
    def tokens(self) -> int:
        return len(self.pieces)

    @property
    def passes_untouched(self) -> bool:
        """Whether what comes goes on as it is."""
        return self._first and self.asked.streamed and not self._wanted

    @property
    def can_go_on(self) -> bool:
        """Whether another part can follow what the client has, which has ended too early."""
        self.read()
        return bool(self._like and not self.why_not and not self._sent_of_rest and not self._ended)

    @property
    def blank(self) -> bytes:
        """An event like those of a streamed answer, without text: for its client while it waits to go on."""
        if self._like is None or not self.asked.streamed:
            return b""
        event = with_text(self.asked.shape, self._like, "")
        return sse(event) if self._sse else ndjson(event)

    def read(self) -> None:
        """Read what has passed so far. The event that has passed in part will pass whole."""
        if self.passes_untouched and not self.why_not:
            kept, self._kept = bytes(self._kept), bytearray()
            for block in self._blocks(kept):
                self._add(*self._read(block))
            self._sent_of_rest = len(self._rest)

    def want_cut(self) -> bool:
        """Cut at the next good place; False if this answer cannot be cut (`why_not`)."""
        self.read()
        if self.why_not:
            return False
        self._wanted = True
        return True

    def feed(self, data: bytes) -> bytes:
        """Take what the server sent; return what its client gets of it now. PartError by rule 4."""
        if self.is_cut:
            return b""
        if self.passes_untouched:
            if len(self._kept) + len(data) > MAX_KEPT_BYTES:
                self.why_not = TOO_LONG
            if self.why_not:
                self._kept.clear()
            else:
                self._kept += data
            return data
        out = bytearray()
        try:
            self._take(data, out)
        except PartError as error:
            error.before = bytes(out)
            raise
        return bytes(out)

    def _take(self, data: bytes, out: bytearray) -> None:
        for block in self._blocks(data):
            sent, self._sent_of_rest = self._sent_of_rest, 0
            event, said = self._read(block)
            if self._wanted and not sent and self._may_cut_before(said):
                self.is_cut = True
                self._rest.clear()
                break
            self._add(event, said)
            if self.asked.streamed:
                out += block[sent:] if self._first else self._rewritten(block, event, said)
        if self.why_not and self._first:  # it passes untouched again
            out += self._unsent()
            self._wanted = False

    def _unsent(self) -> bytes:
        unsent = bytes(self._rest[self._sent_of_rest :])
        self._rest.clear()
        self._sent_of_rest = 0
        return unsent

    def end(self) -> bytes:
        """The part has ended; return what its client gets last. PartError if the answer has not."""
        if self._first and self.asked.streamed:
            return self._unsent()
        if self._ended is None:
            raise PartError("the stream ended before the answer did")
        if not self.asked.streamed:
            answer = unstreamed(self.asked.shape, self._ended, self._totals or {}, self.said)
            return msgspec.json.encode(answer)
        if self._closed or not self._sse:
            return b""
        return b"data: " + DONE + b"\n\n"

    def _blocks(self, data: bytes) -> Iterator[bytes]:
        yield from events_in(self._rest, data, LINE_END if self._part in OLLAMA_SHAPES else EVENT_END)
        if len(self._rest) > MAX_EVENT_BYTES:
            self._give_up("an event has no end")

    def _read(self, block: bytes) -> tuple[AnswerEvent, Said]:
        held = block.strip()
        if self._part not in OLLAMA_SHAPES:
            lines = [line for line in held.splitlines() if not line.startswith(b":")]
            if any(not line.startswith(b"data:") for line in lines):
                return {}, STRANGE
            held = b"\n".join(line[5:].strip() for line in lines)
            if held == DONE:
                return {}, CLOSES
        if not held:
            return {}, NOTHING
        event = fitting(PLAIN_OBJECT, held)
        return ({}, STRANGE) if event is None else (event, read_event(self._part, event))

    def _add(self, event: AnswerEvent, said: Said) -> None:
        """Remember what an event brings: its text, or the end."""
        if not said.plain:
            self.holds_more = "error" not in event
            self._give_up(MORE_THAN_TEXT if self.holds_more else AN_ERROR, _error_in(event))
            return
        if said.closes and self._ended is None:
            self._give_up("the stream ended before the answer did")
        if said.text:
            # The first event of a chat has the role, and with some servers every other: the second tells.
            if self._first and (self.pieces or not self._sse):
                self._like = event
            self.pieces.append(said.text)
            self._bytes += len(said.text)
            if self._bytes > MAX_KEPT_BYTES:
                self._give_up(TOO_LONG)
        if said.totals or said.reason is not None:
            for ours in [event] if self._first else self._as_ours(event, said):
                if read_event(self.asked.shape, ours).reason is not None:
                    self._ended = ours
                if any(name in ours for name in ("usage", "timings")) or ours.get("done") is True:
                    self._totals = ours

    def _give_up(self, why: str, error: str = "") -> None:
        """What came cannot be cut and continued: the client gets it as it is, or nothing of it (rule 4)."""
        if not self.asked.streamed or not self._first:
            raise PartError(error or why)
        self.why_not = self.why_not or why

    def _may_cut_before(self, said: Said) -> bool:
        if not said.plain or said.reason is not None or said.totals or said.closes:
            return False
        if self._ended is not None or self._like is None:
            return False
        self._waited += 1
        if self._waited > EVENTS_TO_A_SPACE:
            return True
        return bool(said.text) and said.text[0].isspace() and not self.pieces[-1][-1].isspace()

    def _rewritten(self, block: bytes, event: AnswerEvent, said: Said) -> bytes:
        """Return an event of a later part as one of the first."""
        if said.closes:
            self._closed, was_closed = True, self._closed
            return b"" if was_closed else block
        if not event:  # a comment; in NDJSON an empty line, which some clients cannot read
            return block if self._sse else b""
        return b"".join(map(sse if self._sse else ndjson, self._as_ours(event, said)))

    def _as_ours(self, event: AnswerEvent, said: Said) -> list[AnswerEvent]:
        like = self._like
        assert like is not None  # noqa: S101 - there is no cut before the first piece of text
        if self._part is self.asked.shape:
            if said.text or said.reason is not None or said.totals:
                # What is the same in all of the answer, and the role only where that is.
                event = summed(event, self.earlier)
                event = event | {name: like[name] for name in SAME if name in like and name in event}
                return [without_role(event) if without_role(like) is like else event]
            return []
        if "created" in like and isinstance(event.get("created_at"), str):
            like = like | {"created": _epoch_s(event["created_at"]) or like["created"]}
        written = [with_text(self.asked.shape, like, said.text)] if said.text else []
        if self.asked.shape is Shape.OLLAMA_CHAT:
            if "created_at" in event:
                written = [ours | {"created_at": event["created_at"]} for ours in written]
            return written if said.reason is None else [self._chat_end(event, like)]
        if said.reason is None:
            return written
        return [*written, *self._openai_end(event, like, said.reason)]

    def _chat_end(self, event: AnswerEvent, like: AnswerEvent) -> AnswerEvent:
        """Return Ollama's last object of a chat, made of its last object of a generation."""
        held = dict(summed(event, self.earlier))
        for name in ("response", "context"):
            held.pop(name, None)
        message = like["message"] | {"content": event.get("response") or ""}
        ordered = {name: held.pop(name) for name in ("model", "created_at") if name in held}
        return ordered | {"message": message} | held

    def _openai_end(self, event: AnswerEvent, like: AnswerEvent, reason: str) -> list[AnswerEvent]:
        """Return what ends an OpenAI stream of Ollama's, made of its last object of a generation."""
        choice: dict[str, Any] = with_text(self.asked.shape, like, "")["choices"][0] | {
            "finish_reason": reason
        }
        if self.asked.shape is Shape.CHAT and without_role(like) is like:
            choice["delta"] = {}  # as newer servers end; older ones have a whole message in every event
        ended = [like | {"choices": [choice]}]
        if self.asked.wants_usage or not self.asked.streamed:
            counts = {
                "prompt_tokens": event.get("prompt_eval_count"),
                "completion_tokens": event.get("eval_count"),
            }
            ended.append(
                like | {"choices": [], "usage": summed_usage(counts | {"total_tokens": 0}, self.earlier)}
            )
        return ended


def _epoch_s(date: str) -> int | None:
    try:
        return int(datetime.fromisoformat(date[:19] + "+00:00").timestamp()) if date.endswith("Z") else None
    except ValueError:
        return None


def _error_in(event: AnswerEvent) -> str:
    error = event.get("error")
    if isinstance(error, dict):
        error = error.get("message")
    return str(error)[:200] if error else ""
