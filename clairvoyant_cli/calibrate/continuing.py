"""Whether an answer that was cut and continued is the one that it would have been, and what resuming costs.

Rule 1: the uncut answer and the first part of a cut one begin with the prompt in the same state, read in one
go or cached. A server rounds differently in the two, and its greedy answers may differ without any cut.
Rule 2: where a server's uncut answers differ from each other, a continued one proves nothing: that is no
trial.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from clairvoyant_cli.backends.continuation import Way
from clairvoyant_cli.calibrate.cutting import Cutter, Whole
from clairvoyant_cli.calibrate.questions import cut_questions
from clairvoyant_cli.calibrate.session import Session, Step
from clairvoyant_cli.protocols.continuable import Continuable
from profiles.records import MIN_TRIALS, Continuation

PLACES = (0.2, 0.55)
"""Shares of an answer after which it is cut; the cut itself waits for the end of a word."""

HOPELESS = 4
"""A way of which the first so many texts all differ is not tried further."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One answer that was cut and continued: whether it had the very text, and the same count of tokens.

    Seconds to the first new token: right after the cut, and after others had the slot; None if none came.
    """

    exact: bool
    counted: bool = False
    warm_s: float | None = None
    resume_s: float | None = None


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
            found.append(_summed_up(way, trials))
            notes += _notes(way, trials)
    session.tell(Step("cut and continued", 1, 1, 0.0))
    return Proof(tuple(found), "" if found else cutter.why_not, tuple(notes))


async def _trials(session: Session, cutter: Cutter, way: Way, wanted: int, begun_s: float) -> list[Trial]:
    """Return so many trials of a way; fewer where time is up or there is no hope, none if it is not there."""
    trials: list[Trial] = []
    clock = session.client.clock
    way_begun_s = clock()
    for question in cut_questions(session.plan.cut_tokens):
        asked = cutter.asked(question)
        uncut = None
        for place in PLACES:
            if len(trials) == wanted or _is_hopeless(trials):
                return trials
            left_s = (clock() - way_begun_s) / len(trials) * (wanted - len(trials)) if trials else None
            if session.plan.cut_s is not None:
                up_s = session.plan.cut_s - (clock() - begun_s)
                if up_s <= 0:
                    return trials
                left_s = up_s if left_s is None else min(left_s, up_s)
            session.tell(Step("cut and continued", len(trials), wanted, left_s))
            uncut = uncut or await cutter.whole(asked)
            trial = None if uncut is None else await _trial(cutter, way, asked, uncut, place)
            if trial is not None:
                trials.append(trial)
    return trials


async def _trial(cutter: Cutter, way: Way, asked: Continuable, uncut: Whole, place: float) -> Trial | None:
    """Cut an answer and continue it; None if that says nothing of the way."""
    cut = await cutter.cut(asked, max(2, round(place * uncut.events)))
    if cut is None or not uncut.text.startswith(cut.splice.said):
        return None
    warm_s = await cutter.seconds_to_resume(way, cut)
    await cutter.others()
    resumed = await cutter.resume(way, cut)
    if resumed is None:
        return None
    exact = resumed.text == uncut.text
    if not exact and await cutter.whole(asked) != uncut:
        return None
    return Trial(exact, resumed.tokens == uncut.tokens, warm_s, resumed.first_s)


def _is_hopeless(trials: Sequence[Trial]) -> bool:
    return len(trials) == HOPELESS and not any(trial.exact for trial in trials)


def _summed_up(way: Way, trials: Sequence[Trial]) -> Continuation:
    warm = [trial.warm_s for trial in trials if trial.warm_s is not None]
    resumed = [trial.resume_s for trial in trials if trial.resume_s is not None]
    return Continuation(
        way=way.name,
        trials=len(trials),
        exact=sum(trial.exact for trial in trials),
        resume_s=median(resumed) if resumed else 0.0,
        warm_s=median(warm) if warm else 0.0,
    )


def _notes(way: Way, trials: Sequence[Trial]) -> list[str]:
    off = sum(trial.exact and not trial.counted for trial in trials)
    if not off:
        return []
    return [f"{off} of {len(trials)} answers continued by {way.name} told another count of tokens"]
