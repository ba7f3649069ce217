"""Tests whether a cut and continued answer equals the uncut one up to rounding, and what resuming costs.

Rule 1: the uncut answer and the first part of a cut one begin with the prompt in the same state, read in one
go or cached; a server rounds differently in the two.
Rule 2: where a server's uncut answers differ from each other, a continued one proves nothing.
Rule 3: where texts part, both next tokens are looked up in the server's own probabilities. If they were
nearly tied, the texts differ by rounding; if not, the continuation is faulty. How far apart ties may be is
measured there, too: by how much probabilities change when the same tokens are read again in one go.
Rule 4: half of the cuts come before the uncut answer, half after it: llama.cpp may read an answer that it has
written before again as a whole when it is cut, which rounds differently and takes longer.
"""

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, cycle, islice
from math import inf
from random import randrange
from statistics import median
from typing import Any

import msgspec

from clairvoyant_cli.backends.client import Client, Question, together
from clairvoyant_cli.backends.continuation import Way, request_to_continue
from clairvoyant_cli.backends.prober import PROBE_TIMEOUT_S
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.protocols.can_continue import Continuable, continuable
from clairvoyant_cli.protocols.model_settings import changed_parts
from clairvoyant_cli.protocols.probes import ProbeAnswer
from clairvoyant_cli.protocols.routes import OLLAMA_SHAPES
from clairvoyant_cli.protocols.splice import Splice
from profiles.records import Continuation

TRIALS = 24  # answers that are cut and continued in one way
PLACES = (0.2, 0.55)
"""Shares of an answer after which it is cut, if it is as long as the one before it; the cut itself waits for
the end of a word. The last of them is that of answers given before: the more is read again, the worse."""

ANSWER_S = 1.0  # how long an answer takes that is cut
LEAST_TOKENS, FULL_TOKENS, MOST_TOKENS = 10, 30, 120
TRIAL_ANSWERS = 1.8  # answers' worth of tokens in a trial: its two parts, and half of the uncut answer
HOPELESS = 4
"""A way is not tried further if this many first texts all differ, or this many questions bring none."""

MOST_QUESTIONS = 60
FORMS = (
    "Explain {} to a curious adult.",
    "List ten facts about {}, each in one sentence.",
    "Write a small Python program about {}, with comments.",
    "Make a Markdown table about {} with four columns and six rows.",
    "Plan a day that is all about {}: one line for each hour, each with an emoji.",
)
SUBJECTS = ("rivers", "a bicycle", "the moon", "tea", "a lost dog", "prime numbers")
OTHER_TOKENS = 8
OTHERS = ("Name three colours.", "What is twelve times twelve?", "Which month comes after May?")
MAX_OTHERS = 16
LOOKUP_TIMEOUT_S = 60.0

TIE_FACTOR = 2.0  # from the largest change of a probability that was seen to the limit for ties
LEAST_TIE_NATS, MOST_TIE_NATS = 0.01, 1.0
FAR_NATS = 99.0  # the distance of a token that is not among the likely ones, which is no tie
LIKELY_NATS = 3.0  # tokens that are less likely than the first by more than this say nothing of ties


@dataclass(frozen=True, slots=True)
class Trial:
    """An answer that was cut and continued, compared with the uncut one."""

    exact: bool  # equal in text
    repeated: bool = False  # its prompt had been answered before
    resume_s: float | None = None  # to the first new token after others had the slot; None if none came
    # How far the less likely of the tokens where the texts part is from the best.
    gap_nats: float | None = None
    change_nats: float = 0.0  # by how much probabilities changed there when the tokens were read again


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as its client reads it."""

    pieces: Sequence[str] = ()  # its text, event by event
    said: str = ""  # before it was cut
    repeated: bool = False  # its prompt had been answered before
    resume_s: float | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass(slots=True)
class Progress:
    """What is known of a model on a server. Kept over a restart: the self-test goes on where `calibrate`
    stopped.
    """

    fingerprint: str = ""  # of the model and its settings
    trials: dict[str, list[Trial]] = field(default_factory=dict)  # so far, by the name of the way
    questions: dict[str, int] = field(default_factory=dict)  # how many they took
    why_not: str = ""  # why nothing can be tried, "" if it can
    decode_tokens_per_s: float = 0.0
    prefill_tokens_per_s: float | None = None
    ttft_s: float = 0.0


def progress_name(client: Client) -> str:
    """Return the name under which the database has the progress with a client's server and model."""
    adapter = client.found.adapter
    model = "" if adapter.ANSWERS_ANY_MODEL else adapter.known_as(client.model)
    return f"self-test {adapter.name} {client.found.base_url} {model}"


def progress_of(state: bytes | None) -> Progress:
    """Return the progress that was kept; none if there is none, or it cannot be read."""
    try:
        return msgspec.json.decode(state or b"{}", type=Progress)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return Progress()


@dataclass(slots=True)
class Prover:
    """Tries a server's ways to continue, question by question, until one fits or none is left.

    `progress` changes only after a question is complete, so `step` can be cancelled.
    """

    client: Client
    slots: int
    rate: float  # the server's speed in tokens per second
    progress: Progress = field(default_factory=Progress)
    least: int = TRIALS
    shortest: int = LEAST_TOKENS  # tokens of an answer where a second gives fewer
    cutter: "Cutter" = field(init=False)
    _events: int = field(init=False)

    def __post_init__(self) -> None:
        self.cutter = Cutter(self.client, self.slots)
        self._events = self.tokens

    @property
    def tokens(self) -> int:
        """The most tokens of an answer that is cut."""
        return min(MOST_TOKENS, max(self.shortest, round(ANSWER_S * self.rate)))

    @property
    def wanted(self) -> int:
        """The trials of a way. Short answers have less room for a difference, so they need more."""
        return max(self.least, round(self.least * FULL_TOKENS / self.tokens))

    @property
    def trial_s(self) -> float:
        return (TRIAL_ANSWERS * self.tokens + 2 * OTHER_TOKENS) / self.rate

    @property
    def done(self) -> int:
        """The trials so far of the way that is being tried."""
        return len(self.progress.trials.get(self._way.name, ())) if self._way else self.wanted

    @property
    def is_complete(self) -> bool:
        """Whether a way is proven to be exact up to rounding, or none is left to try."""
        return bool(self.progress.why_not) or self._way is None

    @property
    def _way(self) -> Way | None:
        for way in self.cutter.adapter.CONTINUES:
            trials = self.progress.trials.get(way.name, [])
            asked = self.progress.questions.get(way.name, 0)
            found = _summed_up(way.name, trials, "")
            hopeless = not (found.exact or found.rounded) and max(len(trials), asked) >= HOPELESS
            if not hopeless and len(trials) < self.wanted and asked < MOST_QUESTIONS:
                return way
            if found.fits:
                return None
        return None

    async def look(self) -> None:
        """Read the server's settings; trials of other settings are dropped."""
        client, known = self.client, self.progress
        settings = await self.cutter.adapter.settings(self.cutter.ask, client.model, client.found.version)
        found = "" if settings is None else settings.fingerprint
        known.why_not = "" if found else "the server does not say which model and settings it has"
        if not found or not known.fingerprint or changed_parts(known.fingerprint, found):
            known.fingerprint, known.trials, known.questions = found, {}, {}

    async def step(self) -> None:
        """Ask the next question, which makes two trials at most; nothing if all is known. ClairvoyantError
        if the server stops answering.
        """
        if self.is_complete or (way := self._way) is None:
            return
        known, cutter, number = self.progress, self.cutter, self.progress.questions.get(way.name, 0)
        asked = cutter.asked(number, self.tokens)
        first = await cutter.continued(way, asked, max(2, round(PLACES[number % 2] * self._events)))
        uncut, trials = await cutter.whole(asked), list[Trial]()
        if uncut is not None:
            self._events = len(uncut.pieces)
            after = max(2, round(PLACES[1] * self._events))
            again = await cutter.continued(way, asked, after, repeated=True)
            for each in filter(None, (first, again)):
                exact = each.text == uncut.text
                comparable = exact or uncut.text.startswith(each.said)
                if comparable and (exact or await cutter.whole(asked) == uncut):
                    gap = () if exact else await cutter.gap(way, asked, uncut, each)
                    trials.append(Trial(exact, each.repeated, each.resume_s, *gap))
        known.questions[way.name] = number + 1
        known.trials[way.name] = [*known.trials.get(way.name, ()), *trials][: self.wanted]

    @property
    def continuations(self) -> tuple[Continuation, ...]:
        known = self.progress
        return tuple(_summed_up(way, each, known.fingerprint) for way, each in known.trials.items() if each)

    @property
    def notes(self) -> tuple[str, ...]:
        why_not = self.progress.why_not or ("" if self.continuations else self.cutter.why_not)
        return (f"no answer can be preempted: {why_not}",) if why_not else ()


def _summed_up(way: str, trials: Sequence[Trial], fingerprint: str) -> Continuation:
    repeats = [trial for trial in trials if trial.repeated]
    resumed = [trial.resume_s for trial in trials if trial.resume_s is not None and not trial.repeated]
    gaps = [trial.gap_nats for trial in trials if trial.gap_nats is not None]
    change_nats = max((trial.change_nats for trial in trials), default=0.0)
    tie_nats = min(max(TIE_FACTOR * change_nats, LEAST_TIE_NATS), MOST_TIE_NATS) if gaps else None
    return Continuation(
        way=way,
        trials=len(trials),
        exact=sum(trial.exact for trial in trials),
        resume_s=median(resumed) if resumed else 0.0,
        repeats=len(repeats),
        exact_repeats=sum(trial.exact for trial in repeats),
        fingerprint=fingerprint,
        rounded=sum(gap <= tie_nats for gap in gaps) if tie_nats is not None else 0,
        tie_nats=tie_nats,
    )


def _parting(uncut: Sequence[str], other: Sequence[str]) -> tuple[str, tuple[str, str]]:
    """Return what two answers begin with, to the end of a piece of both, and how each goes on."""
    texts = "".join(uncut), "".join(other)
    ends = {0, *accumulate(map(len, uncut))} & {0, *accumulate(map(len, other))}
    end = max(end for end in ends if texts[0][:end] == texts[1][:end])
    return texts[0][:end], (texts[0][end:], texts[1][end:])


def _gap(likely: Mapping[str, float], rests: Sequence[str]) -> float | None:
    """Return how far the less likely of the tokens that two texts go on with is from the likeliest of all, in
    nats. A text that has ended goes on with the likeliest token that the other does not. None without
    probabilities; `FAR_NATS` if one of the tokens is not among the likely.
    """
    if not likely:
        return None
    begins = [{token for token in likely if token and rest.startswith(token)} for rest in rests]
    held = [
        max((likely[token] for token in (mine if rest else likely.keys() - other)), default=-inf)
        for rest, mine, other in zip(rests, begins, reversed(begins), strict=True)
    ]
    return min(max(likely.values()) - min(held), FAR_NATS)


def _change(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Return by how much the log-probabilities of likely tokens differ at most, relative to the likeliest."""
    if not one or not other:
        return 0.0
    best = max(one, key=one.__getitem__)
    both = [token for token in one if token in other and one[token] >= one[best] - LIKELY_NATS]
    moved = [one[token] - other[token] for token in both]
    return max(moved) - min(moved) if best in other else 0.0


@dataclass(slots=True)
class Part:
    """When a request was sent, and its answer began and ended, in seconds."""

    sent_s: float
    first_s: float | None = None
    last_s: float = 0.0

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_s is None else self.first_s - self.sent_s


# The tokens of an answer so far, None if its server does not tell, and the seconds of reading and writing.
Spent = tuple[int | None, float, float]


class Cutter:
    """Asks one server for answers to cut. `why_not` says why the last one could not be cut."""

    def __init__(self, client: Client, slots: int) -> None:
        self._client = client
        self.adapter = client.found.adapter
        self._others = cycle(Question("other", prompt, OTHER_TOKENS) for prompt in OTHERS)
        self._at_once = min(slots, MAX_OTHERS)
        self.why_not = ""

    def asked(self, number: int, tokens: int) -> Continuable:
        """Return a request with a question to cut, of a random number: no earlier answer is in a cache."""
        prompt = FORMS[number % len(FORMS)].format(SUBJECTS[number // len(FORMS) % len(SUBJECTS)])
        prompt += f" (No. {randrange(1000, 10_000)})"  # noqa: S311 - no secret
        body = self._client.body(Question("cut", prompt, tokens), tokens, greedy=True)
        route = self.adapter.routes[self.adapter.chat_path]
        raw = msgspec.json.encode(body | dict(self.adapter.READ_AGAIN))
        asked = continuable(raw, route.shape, streams=route.streams)
        if isinstance(asked, str):
            raise ClairvoyantError(f"a calibration question cannot be preempted: {asked}; please report this")
        return asked

    async def whole(self, asked: Continuable) -> Answer | None:
        """Return the uncut answer; None if it could not be cut."""
        splice = Splice(asked)
        await self._warm_up(asked)
        await self._part(splice, self.adapter.chat_path, asked.body)
        splice.want_cut()
        self.why_not = splice.why_not or ("" if splice.said else "its answers are empty")
        return None if self.why_not else Answer(splice.pieces)

    async def continued(
        self, way: Way, asked: Continuable, after: int, *, repeated: bool = False
    ) -> Answer | None:
        """Cut an answer after this many events and continue it; None if it ended or the way is missing."""
        if (cut := await self._cut(asked, after)) is None:
            return None
        splice, spent = cut
        said = splice.said
        await self._ask_others()
        if (part := await self._resume(way, splice, spent, read_again=repeated)) is None:
            return None
        pieces = () if part.first_s is None else splice.pieces
        return Answer(pieces, said, repeated, part.ttft_s)

    async def gap(
        self, way: Way, asked: Continuable, uncut: Answer, other: Answer
    ) -> tuple[float | None, float]:
        """Look up how likely both next tokens were where two texts part, the uncut one having come last;
        return `gap_nats` and `change_nats` of a `Trial`.
        """
        same, rests = _parting(uncut.pieces, other.pieces)
        likely = partial(self.adapter.likely_next, self.ask, way, asked, same)
        written = await likely()  # the server still has what it wrote
        if not self.adapter.READ_AGAIN:
            await self._ask_others()
        read = await likely(read_again=True)
        gaps = [gap for each in (written, read) if (gap := _gap(each, rests)) is not None]
        return min(gaps, default=None), _change(written, read)

    async def ask(
        self, path: str, timeout_s: float = PROBE_TIMEOUT_S, body: dict[str, Any] | None = None
    ) -> ProbeAnswer:
        """Ask the server about itself; an error is an answer, too."""
        try:
            return await self._client.get(path, timeout_s, body)
        except ClairvoyantError as error:
            refused = error.exit_code is not ExitCode.UNREACHABLE
            return ProbeAnswer(404 if refused else 0, why=str(error))

    async def _cut(self, asked: Continuable, after: int) -> tuple[Splice, Spent] | None:
        """Cut the answer after this many events; None if it ended, or would be read in other tokens."""
        splice = Splice(asked)
        await self._warm_up(asked)
        part = await self._part(splice, self.adapter.chat_path, asked.body, cut_after=after)
        reads_as_written = self.adapter.reads_as_written
        if not splice.is_cut or await reads_as_written(self.ask, asked, splice.pieces) is False:
            return None
        first_s = part.first_s or part.last_s
        told = await self.adapter.said_tokens(self.ask, asked, splice.said)
        return splice, (told, first_s - part.sent_s, part.last_s - first_s)

    async def _resume(
        self, way: Way, splice: Splice, spent: Spent, *, read_again: bool = False
    ) -> Part | None:
        """Continue an answer; None if the way is not available. The server first looks for the answer in its
        cache; with `read_again`, it reads all again.
        """
        begun_s = self._client.clock()
        if (lookup := self.adapter.cache_lookup(splice.asked)) is not None:
            await self.ask(lookup[0], LOOKUP_TIMEOUT_S, lookup[1])
        if (onward := await request_to_continue(way, self.ask, splice, *spent)) is None:
            return None
        body = onward.body | (dict(self.adapter.READ_AGAIN) if read_again else {})
        path = onward.path or self.adapter.chat_path
        try:
            part = await self._part(splice, path, body)
        except ClairvoyantError as error:
            if error.exit_code is ExitCode.UNREACHABLE:
                raise
            return Part(begun_s)
        part.sent_s = begun_s
        return part

    async def _ask_others(self) -> None:
        """Have other chats pass through all slots."""
        await together(self._client.ask(each) for each in islice(self._others, self._at_once))

    async def _warm_up(self, asked: Continuable) -> None:
        """Have the prompt in the cache whenever an answer begins, where it cannot be read in one go."""
        if not self.adapter.READ_AGAIN:
            await self._client.ask(Question("warm-up", asked.body["messages"][-1]["content"], 1))

    async def _part(
        self,
        splice: Splice,
        path: str,
        body: dict[str, Any],
        *,
        cut_after: int | None = None,
    ) -> Part:
        untouched, said = splice.passes_untouched, len(splice.said)
        lines_to_cut = (
            None if cut_after is None else cut_after * (1 if splice.asked.shape in OLLAMA_SHAPES else 2)
        )
        lines = 0
        part = Part(self._client.clock())
        async with aclosing(self._client.chunks(path, body)) as chunks:
            async for at_s, data in chunks:
                splice.feed(data)
                part.last_s = at_s
                if part.first_s is None and (untouched or len(splice.said) > said):
                    part.first_s = at_s
                lines += data.count(b"\n")
                if lines_to_cut is not None and lines >= lines_to_cut:
                    splice.want_cut()
                if splice.is_cut:
                    break
        return part
