"""Whether an answer that was cut and continued is the one that it would have been, and what resuming costs.

Rule 1: the uncut answer and the first part of a cut one begin with the prompt in the same state, read in one
go or cached. A server rounds differently in the two, and its greedy answers may differ without any cut.
Rule 2: where a server's uncut answers differ from each other, a continued one proves nothing: that is no
trial.
Rule 3: half of the cuts come before the uncut answer, half after it. llama.cpp keeps no prompt that is the
beginning of one it keeps already, and does not go back far in one: an answer that it has written before may
be read again as a whole when it is cut, which rounds differently, and takes longer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from clairvoyant_cli.backends.continuation import Way
from clairvoyant_cli.calibrate.cut_trials import Cutter, Resumed, Whole
from clairvoyant_cli.calibrate.questions import cut_questions
from clairvoyant_cli.calibrate.session import Session, Step
from clairvoyant_cli.protocols.can_continue import Continuable
from profiles.records import MIN_TRIALS, Continuation

PLACES = (0.2, 0.55)
"""Shares of an answer after which it is cut, if it is as long as the one before it; the cut itself waits for
the end of a word. The last of them is that of answers given before: the more is read again, the worse."""

HOPELESS = 4
"""A way is not tried further if its first so many texts all differ, or so many questions bring none."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One answer that was cut and continued: whether it had the very text, and the same count of tokens;
    `repeated` says that it had been given before.

    Seconds to the first new token: right after the cut, and after others had the slot; None if none came.
    """

    exact: bool
    repeated: bool = False
    counted: bool = False
    warm_s: float | None = None
    resume_s: float | None = None


@dataclass(frozen=True, slots=True)
class Continued:
    """An answer that was cut after what was `said`, and continued; the others as in `Trial`."""

    said: str
    repeated: bool
    warm_s: float | None
    resumed: Resumed


@dataclass(frozen=True, slots=True)
class Proof:
    """What is proven. `why_not` says why no answer can be cut, if so; `notes` is what to know of it."""

    continuations: tuple[Continuation, ...] = ()
    why_not: str = ""
    notes: tuple[str, ...] = ()


async def prove_continuing(session: Session, slots: int) -> Proof:
    """Try the server's ways to continue; ClairvoyantError if it stops answering.

    Once one is exact, the others get as few trials as say something, or none if time is short.
    """
    cutter = Cutter(session.client, slots)
    client = session.client
    settings = await client.found.adapter.settings(cutter.ask, client.model, client.found.version)
    if settings is None:
        return Proof(why_not="the server does not say which model and settings it has")
    begun_s = session.client.clock()
    found: list[Continuation] = []
    notes: list[str] = []
    for way in session.client.found.adapter.CONTINUES:
        wanted = session.plan.trials
        if any(each.is_exact for each in found):
            if session.plan.cut_s is not None:
                break
            wanted = min(MIN_TRIALS, wanted)
        trials = await _trials(session, cutter, way, wanted, begun_s)
        if trials:
            found.append(_summed_up(way, trials, settings.fingerprint))
            notes += _notes(way, trials)
    session.tell(Step("cut and continued", 1, 1, 0.0))
    return Proof(tuple(found), "" if found else cutter.why_not, tuple(notes))


async def _trials(session: Session, cutter: Cutter, way: Way, wanted: int, begun_s: float) -> list[Trial]:
    """Return so many trials of a way; fewer where time is up or there is no hope, none if it is not there."""
    trials: list[Trial] = []
    way_begun_s = session.client.clock()
    events = session.plan.cut_tokens
    for number, question in enumerate(cut_questions(session.plan.cut_tokens)):
        left_s = _left_s(session, len(trials), wanted, way_begun_s, begun_s)
        if _is_hopeless(number, trials) or len(trials) >= wanted or left_s == 0.0:
            break
        session.tell(Step("cut and continued", len(trials), wanted, left_s))
        asked = cutter.asked(question)
        first = await _continued(cutter, way, asked, max(2, round(PLACES[number % 2] * events)))
        uncut = await cutter.whole(asked)
        if uncut is None:
            continue
        events = uncut.events
        again = await _continued(cutter, way, asked, max(2, round(PLACES[1] * events)), repeated=True)
        for each in (first, again):
            if each is not None and (trial := await _judged(cutter, asked, uncut, each)):
                trials.append(trial)
    return trials[:wanted]


def _left_s(session: Session, done: int, wanted: int, way_begun_s: float, begun_s: float) -> float | None:
    """Return the seconds that the other trials of a way may take, 0 if time is up; None if nobody knows."""
    now_s = session.client.clock()
    left_s = (now_s - way_begun_s) / done * (wanted - done) if done else None
    if session.plan.cut_s is None:
        return left_s
    bound_s = max(0.0, session.plan.cut_s - (now_s - begun_s))
    return bound_s if left_s is None else min(left_s, bound_s)


async def _continued(
    cutter: Cutter, way: Way, asked: Continuable, after: int, *, repeated: bool = False
) -> Continued | None:
    """Cut an answer after so many events and continue it; None if it ended before, or the way is not to be
    had. What comes of one that is `repeated` is read again, as it may be then.
    """
    cut = await cutter.cut(asked, after)
    if cut is None:
        return None
    said = cut.splice.said
    warm_s = None if repeated else await cutter.seconds_to_resume(way, cut)
    await cutter.others()
    resumed = await cutter.resume(way, cut, read_anew=repeated)
    return None if resumed is None else Continued(said, repeated, warm_s, resumed)


async def _judged(cutter: Cutter, asked: Continuable, uncut: Whole, each: Continued) -> Trial | None:
    """Compare an answer with the uncut one; None if that says nothing of the way."""
    resumed = each.resumed
    exact = resumed.text == uncut.text
    if not exact and (not uncut.text.startswith(each.said) or await cutter.whole(asked) != uncut):
        return None
    return Trial(exact, each.repeated, resumed.tokens == uncut.tokens, each.warm_s, resumed.first_s)


def _is_hopeless(questions: int, trials: Sequence[Trial]) -> bool:
    """Whether the first trials all differed, or the first questions brought none."""
    if not trials:
        return questions >= HOPELESS
    return len(trials) >= HOPELESS and not any(trial.exact for trial in trials)


def _summed_up(way: Way, trials: Sequence[Trial], fingerprint: str) -> Continuation:
    repeats = [trial for trial in trials if trial.repeated]
    warm = [trial.warm_s for trial in trials if trial.warm_s is not None]
    resumed = [trial.resume_s for trial in trials if trial.resume_s is not None and not trial.repeated]
    return Continuation(
        way=way.name,
        trials=len(trials),
        exact=sum(trial.exact for trial in trials),
        resume_s=median(resumed) if resumed else 0.0,
        warm_s=median(warm) if warm else 0.0,
        repeats=len(repeats),
        exact_repeats=sum(trial.exact for trial in repeats),
        fingerprint=fingerprint,
    )


def _notes(way: Way, trials: Sequence[Trial]) -> list[str]:
    off = sum(trial.exact and not trial.counted for trial in trials)
    if not off:
        return []
    return [f"{off} of {len(trials)} answers continued by {way.name} told another count of tokens"]
