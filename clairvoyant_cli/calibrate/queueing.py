"""mu_short: short questions among long ones, in a queue that is kept full (Clairvoyant, section 3.4)."""

from collections.abc import Sequence

from clairvoyant_cli.calibrate.first_failure import together
from clairvoyant_cli.calibrate.partial_results import Service
from clairvoyant_cli.calibrate.plan import SHORTS_PER_LONG
from clairvoyant_cli.calibrate.questions import Question, mixed
from clairvoyant_cli.calibrate.queue_model import sojourns_on_paper
from clairvoyant_cli.calibrate.service import queue_phase, queue_phase_s
from clairvoyant_cli.calibrate.session import Session, Step
from profiles.records import Sample

MIN_SHORTS = 8
"""With fewer short answers for each slot in the queue, mu_short is computed from service times instead: they
would all have waited for the same few jobs."""


async def in_the_queue(
    session: Session,
    shorts: Sequence[Question],
    longs: Sequence[Question],
    services: Sequence[Service],
    slots: int,
) -> tuple[list[Sample], str]:
    """Return the samples of a full queue, and whether they were "measured" or "computed".

    Those that an earlier run has taken of such a queue count; it is filled anew for what is missing.
    """
    in_flight, count = queue_phase(session.plan, slots)
    measured = session.measured
    if session.plan.in_flight == 0 or measured.in_flight != in_flight:
        measured.in_flight, measured.queued = in_flight, []
    before = measured.counted
    count = max(0, count - len(before))
    if session.remaining_s is not None:
        fits = int(session.remaining_s / max(1e-3, queue_phase_s(services, 1, slots)))
        count = min(count, fits)
    settling = 0 if session.plan.in_flight == 0 else in_flight
    more = max(0, count - settling)
    if (len(before) + more) * SHORTS_PER_LONG // (SHORTS_PER_LONG + 1) < min(
        MIN_SHORTS * slots, session.plan.shorts
    ):
        return computed(services, in_flight, slots), "computed"
    if not more:
        return before, "measured"
    # Those that were asked before may be in a cache.
    asked = len(measured.queued)
    questions = mixed(shorts, longs, count=asked + count, shorts_per_long=SHORTS_PER_LONG, seed=session.seed)
    return before + await _keep_full(session, questions[asked:], in_flight, settling), "measured"


async def _keep_full(
    session: Session, questions: Sequence[Question], in_flight: int, settling: int
) -> list[Sample]:
    """Send the questions, each as soon as another is answered; the first `settling` do not count."""
    ahead = iter(enumerate(questions))
    taken: list[Sample] = []
    begun_s = session.client.clock()

    async def client() -> None:
        for number, question in ahead:
            if not session.has_time_for(0.0):
                return  # the answers were longer than the first ones let expect
            answer = await session.client.ask(question)
            taken.append(session.sample("load", question, answer, counted=number >= settling))
            session.measured.queued.append(taken[-1])
            left_s = (session.client.clock() - begun_s) / len(taken) * (len(questions) - len(taken))
            session.tell(Step("short ones among long ones, queueing", len(taken), len(questions), left_s))

    await together(client() for _ in range(in_flight))
    return sorted(taken, key=lambda sample: sample.sent_s)


def computed(services: Sequence[Service], in_flight: int, slots: int) -> list[Sample]:
    """Put measured service times through a queue on paper; return the short ones' samples."""
    return [
        Sample("load", "computed", 0, 1, 0.0, 0.0, sojourn_s)
        for sojourn_s in sojourns_on_paper(services, in_flight, slots)
    ]
