"""Reports answers that repeat themselves and sessions that ask the same again and again.

Only the operator's bounds end them: `runaway_tokens` and `repeats`.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from clairvoyant_cli.http.heads import ResponseHead
from clairvoyant_cli.protocols.answer_events import ending
from clairvoyant_cli.protocols.answer_text import AnswerText
from clairvoyant_cli.protocols.errors import Refusal
from clairvoyant_cli.protocols.repetition import Repetition
from clairvoyant_cli.protocols.request_parsing import ParsedRequest
from clairvoyant_cli.protocols.usage import UsageReader
from clairvoyant_cli.proxy.journal import Journal
from clairvoyant_cli.proxy.queue.exchange import Exchange, Outcome, RequestEnd
from clairvoyant_cli.proxy.servers.server import Server

NOTED = 5  # answers to one prompt in a row that are reported
WITHIN_S = 60.0
"""A prompt is asked again in a row only so soon after its last answer: people regenerate answers, too."""

MAX_SESSIONS = 2000
BLANK_LINES = (b"\n\n", b"\r\n\r\n")

Prompt = tuple[str, int]  # a client, and the end of the chain of a prompt


class WatchedReader(UsageReader):
    """Also calls `repeats` with each piece of an answer that repeats itself. `shown` collects its text."""

    def __init__(
        self, head: ResponseHead, repeats: "Callable[[WatchedReader], None]", shown: AnswerText | None = None
    ) -> None:
        super().__init__(head)
        self._repetition = Repetition()
        self._shown = shown
        self._repeats = repeats

    def feed(self, data: bytes) -> None:
        super().feed(data)
        if self.readable and self.is_answer and self.streaming:
            self._repetition.feed(data)
            if self._shown is not None:
                self._shown.feed(data)
            if self._repetition.found:
                self._repeats(self)

    @property
    def last_line(self) -> bytes:
        """The last line, if the stream is between two events; b"" if not."""
        whole = self._tail.endswith(BLANK_LINES) if self._sse else self._tail.endswith(b"\n")
        return bytes(self._tail.rstrip().rpartition(b"\n")[2]) if whole else b""


@dataclass(slots=True)
class Runaways:
    """Watches answers and requests. An answer that repeats itself is ended after `runaway_tokens`, a prompt
    that was answered `repeats` times in a row is refused; None: neither.
    """

    journal: Journal
    runaway_tokens: int | None = None
    repeats: int | None = None
    _asked: OrderedDict[str, Prompt] = field(default_factory=OrderedDict)  # by each session, last
    _times: dict[Prompt, tuple[int, float]] = field(default_factory=dict)  # and when that ended

    def reader(self, exchange: Exchange, head: ResponseHead) -> UsageReader:
        def repeats(reader: WatchedReader) -> None:
            if not exchange.remark:
                exchange.remark = "its answer repeats itself"
                news = (
                    f"{exchange.id} ({exchange.client}): {exchange.remark}, {reader.events:,} tokens so far"
                )
                self.journal.event(logging.WARNING, news)
            parsed, most = exchange.asked.parsed, self.runaway_tokens
            # Later parts of an answer that was cut come in the events of another route.
            if (
                most is None
                or reader.events <= most
                or exchange.parts
                or parsed.choices > 1
                or not parsed.stream
            ):
                return
            last = ending(exchange.asked.route.shape, reader.last_line, reader.events)
            if last is not None:
                exchange.remark = f"its answer repeats itself, ended after {reader.events:,} tokens"
                self.journal.event(logging.WARNING, f"{exchange.id} ({exchange.client}): {exchange.remark}")
                reader.ending = last

        return WatchedReader(head, repeats, exchange.answer)

    def refusal(self, client: str, parsed: ParsedRequest, able: Sequence[Server]) -> Refusal | None:
        """Return a refusal for a prompt that was answered `repeats` times in a row."""
        chain = parsed.conversation.chain
        times, at_s = self._times.get((client, chain.hashes[-1]), (0, 0.0)) if chain else (0, 0.0)
        if self.repeats is None or times < self.repeats or self.journal.clock() > at_s + WITHIN_S:
            return None
        message = (
            f"clairvoyant: the same prompt was answered {times} times in a row (--repeats {self.repeats})"
        )
        return Refusal(400, message)

    def ended(self, exchange: Exchange, end: RequestEnd) -> None:
        """Count the answers to one prompt in a row. Retries of what failed do not count."""
        job = exchange.job
        if not job.session or end.outcome is not Outcome.COMPLETED or not 200 <= end.status < 300:
            return
        prompt = job.client, job.prefix.hashes[-1]
        before = self._asked.pop(job.session, prompt)
        times, at_s = self._times.pop(before, (0, 0.0))
        times = times + 1 if before == prompt and job.arrival_s <= at_s + WITHIN_S else 1
        self._asked[job.session], self._times[prompt] = prompt, (times, end.at_s)
        if len(self._asked) > MAX_SESSIONS:
            self._times.pop(self._asked.popitem(last=False)[1], None)
        if times >= NOTED and not exchange.remark:
            exchange.remark = f"the same prompt for the {times}th time in a row"
            if times == NOTED:
                news = f"session {job.session} ({exchange.client}): {exchange.remark}, answered each time"
                self.journal.event(logging.WARNING, news)
