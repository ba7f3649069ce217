"""Answers that are cut and continued: with the splice that `serve` cuts with, by the adapter's ways."""

from contextlib import aclosing
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Any

import msgspec

from clairvoyant_cli.backends.continuation import Onward, Way
from clairvoyant_cli.backends.prober import PROBE_TIMEOUT_S
from clairvoyant_cli.calibrate.client import Client
from clairvoyant_cli.calibrate.first_failure import together
from clairvoyant_cli.calibrate.questions import Question
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.protocols.answer_events import EVENTS
from clairvoyant_cli.protocols.can_continue import Continuable, continuable
from clairvoyant_cli.protocols.probes import Answer
from clairvoyant_cli.protocols.splice import Splice
from clairvoyant_cli.protocols.stream_lines import read_line
from clairvoyant_cli.protocols.summed_totals import Earlier

OTHERS = (
    Question("other", "Name three colours.", 8),
    Question("other", "What is twelve times twelve?", 8),
    Question("other", "Which month comes after May?", 8),
)
MAX_OTHERS = 16
LOOKUP_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Whole:
    """An answer as its client reads it: its text, how many tokens it is told of, 0 if of none, and in how
    many events it comes.
    """

    text: str
    tokens: int
    events: int


@dataclass(frozen=True, slots=True)
class Cut:
    """An answer that was cut after so many tokens, as far as the server tells, or they can be counted."""

    splice: Splice
    tokens: int
    earlier: Earlier


@dataclass(frozen=True, slots=True)
class Resumed:
    """The answer that continuing brought. Seconds from asking to the first new token, None if none came."""

    text: str
    tokens: int = 0
    first_s: float | None = None


@dataclass(slots=True)
class Part:
    """What came of one request: what its client reads, and when it was sent, began and ended, in seconds."""

    sent_s: float
    first_s: float | None = None
    last_s: float = 0.0
    read: bytes = b""


class Cutter:
    """Asks one server for answers to cut. `why_not` says why the last one could not be cut."""

    def __init__(self, client: Client, slots: int) -> None:
        self._client = client
        self._adapter = client.found.adapter
        self._route = client.found.adapter.routes[client.found.adapter.chat_path]
        self._others = cycle(OTHERS)
        self._at_once = min(slots, MAX_OTHERS)
        self.why_not = ""

    def asked(self, question: Question) -> Continuable:
        """Return the request for a question's answer."""
        body = self._adapter.chat_body(self._client.model, question.prompt, question.cap, greedy=True)
        raw = msgspec.json.encode(body | dict(self._adapter.READ_ANEW))
        asked = continuable(raw, self._route.shape, streams=self._route.streams)
        if isinstance(asked, str):
            raise ClairvoyantError(f"a question of our own cannot be cut: {asked}; please report this")
        return asked

    async def whole(self, asked: Continuable) -> Whole | None:
        """Return the answer that nobody cuts; None if it is none that could be."""
        splice = Splice(asked)
        await self._warm_up(asked)
        part = await self._part(splice, self._adapter.chat_path, asked.body)
        splice.want_cut()
        self.why_not = splice.why_not or ("" if splice.said else "its answers are empty")
        return None if self.why_not else Whole(splice.said, _told_tokens(part.read), splice.tokens)

    async def cut(self, asked: Continuable, after: int) -> Cut | None:
        """Cut the answer at a good place after so many events; None if it ended before, or is none that would
        be cut, for the server would read it in other tokens than it wrote.
        """
        splice = Splice(asked)
        await self._warm_up(asked)
        part = await self._part(splice, self._adapter.chat_path, asked.body, cut_after=after)
        if not splice.is_cut:
            return None
        if await self._adapter.reads_as_written(self.ask, asked, splice.pieces) is False:
            return None
        told = await self._adapter.said_tokens(self.ask, asked, splice.said)
        tokens = max(splice.tokens, told or 0)
        first_s = part.first_s or part.last_s
        earlier = Earlier().then(tokens, first_s - part.sent_s, part.last_s - first_s, told)
        return Cut(splice, tokens, earlier)

    async def others(self) -> None:
        """Have other chats pass through all slots."""
        await together(self._client.ask(each) for each in islice(self._others, self._at_once))

    async def seconds_to_resume(self, way: Way, cut: Cut) -> float | None:
        """Continue an answer up to its first new token, which `cut` does not get; None if that never came."""
        begun_s = self._client.clock()
        onward = await self._onward(way, cut)
        if onward is None:
            return None
        part = await self._continue(
            onward, Cut(deepcopy(cut.splice), cut.tokens, cut.earlier), first_only=True
        )
        return None if part is None or part.first_s is None else part.first_s - begun_s

    async def resume(self, way: Way, cut: Cut, *, read_anew: bool = False) -> Resumed | None:
        """Continue an answer to its end, after the server has looked for it in its cache; `read_anew` has it
        read all again. None if the way is not to be had.
        """
        begun_s = self._client.clock()
        lookup = self._adapter.cache_lookup(cut.splice.asked)
        if lookup is not None:
            path, body = lookup
            await self.ask(path, LOOKUP_TIMEOUT_S, body)
        onward = await self._onward(way, cut)
        if onward is None:
            return None
        if read_anew:
            onward = replace(onward, body=onward.body | dict(self._adapter.READ_ANEW))
        part = await self._continue(onward, cut)
        if part is None or part.first_s is None:
            return Resumed("")
        return Resumed(cut.splice.said, _told_tokens(part.read), part.first_s - begun_s)

    async def ask(
        self, path: str, timeout_s: float = PROBE_TIMEOUT_S, body: dict[str, Any] | None = None
    ) -> Answer:
        """Ask the server about itself; an error is an answer, too."""
        try:
            return await self._client.get(path, timeout_s, body)
        except ClairvoyantError as error:
            refused = error.exit_code is not ExitCode.UNREACHABLE
            return Answer(404 if refused else 0, why=str(error))

    # -- the parts -------------------------------------------------------------------------------------

    async def _warm_up(self, asked: Continuable) -> None:
        """Have the prompt in the cache whenever an answer begins, where it cannot be read in one go."""
        if not self._adapter.READ_ANEW:
            await self._client.ask(Question("warm-up", asked.body["messages"][-1]["content"], 1))

    async def _onward(self, way: Way, cut: Cut) -> Onward | None:
        return await way.onward(self.ask, cut.splice.asked, cut.splice.said, cut.tokens)

    async def _continue(self, onward: Onward, cut: Cut, *, first_only: bool = False) -> Part | None:
        """Read the rest of an answer, or its first token; None if the server refuses."""
        cut.splice.continue_in(onward.shape, cut.earlier)
        path = onward.path or self._adapter.chat_path
        try:
            return await self._part(cut.splice, path, onward.body, first_only=first_only)
        except ClairvoyantError as error:
            if error.exit_code is ExitCode.UNREACHABLE:
                raise
            return None

    async def _part(
        self,
        splice: Splice,
        path: str,
        body: dict[str, Any],
        *,
        cut_after: int | None = None,
        first_only: bool = False,
    ) -> Part:
        untouched, said = splice.passes_untouched, len(splice.said)
        lines_to_cut = None if cut_after is None else cut_after * (2 if EVENTS[splice.asked.shape].sse else 1)
        lines = 0
        part = Part(self._client.clock())
        async with aclosing(self._client.chunks(path, body)) as chunks:
            async for at_s, data in chunks:
                part.read += splice.feed(data)
                part.last_s = at_s
                if part.first_s is None and (untouched or len(splice.said) > said):
                    part.first_s = at_s
                lines += data.count(b"\n")
                if lines_to_cut is not None and lines >= lines_to_cut:
                    splice.want_cut()
                if splice.is_cut or (first_only and part.first_s is not None):
                    break
        return part


def _told_tokens(read: bytes) -> int:
    """Return the tokens that an answer says it has, 0 if it says nothing."""
    pieces = (read_line(line) for line in read.split(b"\n"))
    return max((piece.totals.tokens or 0 for piece in pieces if piece is not None), default=0)
