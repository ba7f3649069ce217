"""`simulate --advise` on what this machine has recorded: its profile and its history, put as a question."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from clairvoyant_cli.commands.setup import database_path, told_plainly
from clairvoyant_cli.config import load_serve_config
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.scheduler.policy import POLICIES, SERVABLE

if TYPE_CHECKING:
    import sqlite3

    from clairvoyant_cli.research.simulator.advice import Advice, Question
    from clairvoyant_cli.research.simulator.report import Report
    from clairvoyant_cli.research.simulator.trial import Forecaster, Options, Variant
    from profiles.records import Profile
    from profiles.traffic import Answer, Load

    MakeForecaster = Callable[[float, float], Forecaster]

MIN_ANSWERS = 100
MIN_OF_A_CLASS = 10
"""Fewer say nothing of how long requests take."""

FULLEST = 0.95
"""An hour that was busier is simulated as one that was so busy: beyond it, waits grow without end."""

EMPTIEST = 0.01


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the options say; None leaves it to what was recorded. `forecaster` makes other predictions than
    those recorded, given the mean service times of short requests and of the others, in seconds.
    """

    long_limit: float
    db_file: Path | None = None
    since: float | None = None
    client: str | None = None
    model: str | None = None
    profile: str | None = None
    load: float | None = None
    slots: int | None = None
    forecaster: "MakeForecaster | None" = None


@dataclass(frozen=True, slots=True)
class Known:
    """What the database says; `policy` and `tau_s` are those in force, tau None for none."""

    profile: "Profile"
    load: "Load"
    answers: "Sequence[Answer]"
    slots: int
    policy: str
    tau_s: float | None

    @property
    def is_short(self) -> list[bool]:
        """Whether each answer was Short."""
        return [answer.length_class == "short" for answer in self.answers]


def run_recorded_advice(wanted: Wanted, options: "Options") -> "Report":
    """Answer for this machine; ClairvoyantError where too little is recorded to say anything."""
    from clairvoyant_cli.research.simulator.advice import advise

    known = look_up(wanted)
    question = question_of(known, wanted)
    advice, report = advise(question, options)
    return _in_full(known, question, advice, report)


def look_up(wanted: Wanted) -> Known:
    """Read the profile in force and the history; all of it by indices and sums."""
    from profiles.database import reading
    from profiles.history import ALWAYS, Span
    from profiles.traffic import load, newest_answers

    config = load_serve_config({})
    span = Span(ALWAYS if wanted.since is None else wanted.since, client=wanted.client, model=wanted.model)
    with told_plainly(), reading(database_path(wanted.db_file)) as connection:
        answers = newest_answers(connection, span)
        _check(answers)
        profile, tau_s = _in_force(connection, wanted.profile or config.profile, answers)
        busy = load(connection, span)
    assert busy is not None  # noqa: S101 - there are answers
    if config.tau is not None:
        from clairvoyant_cli.scheduler.starvation import tau_from_setting

        tau_s = tau_from_setting(config.tau)
    slots = wanted.slots or config.slots or profile.slots
    return Known(profile, busy, answers, slots, config.policy or answers[0].policy, tau_s)


def question_of(known: Known, wanted: Wanted) -> "Question":
    """Put what is known as a question about the busiest hour: at quiet ones no order matters."""
    from functools import partial

    import numpy as np

    from clairvoyant_cli.research.simulator.advice import BRIEF, Question
    from clairvoyant_cli.research.simulator.workload import LONG, SHORT, drawn_again

    service_s = np.maximum([answer.service_s for answer in known.answers], 1e-3)
    short = np.array(known.is_short)
    short_s, long_s = float(service_s[short].mean()), float(service_s[~short].mean())
    load = wanted.load
    if load is None:
        load = min(max(known.load.busiest_utilisation(known.slots), EMPTIEST), FULLEST)
    forecaster = recorded_forecaster(known)
    if wanted.forecaster is not None:
        forecaster = wanted.forecaster(short_s, long_s)
    return Question(
        partial(drawn_again, service_s=service_s, kind=np.where(short, SHORT, LONG)),
        forecaster,
        short_s,
        float(service_s.mean()),
        load,
        known.slots,
        wanted.long_limit,
        _present(known, forecaster),
        BRIEF,
    )


def recorded_forecaster(known: Known) -> "Forecaster":
    """Return what the predictor predicted of the recorded requests, wherever one of them is drawn again.

    So the predictor is as good, and as sure of itself, as it was; costs are in seconds as `serve` makes them.
    """
    import numpy as np

    from clairvoyant_cli.backends.speeds import Speeds
    from clairvoyant_cli.research.simulator.predictions import Predictions
    from clairvoyant_cli.research.simulator.workload import Workload

    answers, profile = known.answers, known.profile
    speeds = Speeds(profile.decode_tokens_per_s, profile.prefill_tokens_per_s)
    prefill_s, token_s = speeds.seconds(1.0, 0.0), speeds.seconds(0.0, 1.0)
    read_s = np.array([answer.prompt_tokens for answer in answers]) * prefill_s
    p_long = np.array([answer.p_long for answer in answers])
    tokens = np.array([answer.expected_tokens for answer in answers])
    q90 = np.array([answer.q90_tokens for answer in answers])

    def predicted(_: np.random.Generator, workload: Workload) -> Predictions:
        row = workload.row
        return Predictions(
            p_long[row],
            (read_s + tokens * token_s)[row],
            (read_s + q90 * token_s)[row],
            tokens[row],
            q90[row],
        )

    return predicted


def _check(answers: "Sequence[Answer]") -> None:
    short = sum(answer.length_class == "short" for answer in answers)
    remedy = "let serve record more, widen --since, or give a mix by hand: --workload poisson"
    if not answers:
        raise ClairvoyantError(f"no answered requests are recorded there; {remedy}")
    if len(answers) < MIN_ANSWERS:
        raise ClairvoyantError(f"{len(answers)} answers are too few, {MIN_ANSWERS} would do; {remedy}")
    if min(short, len(answers) - short) < MIN_OF_A_CLASS:
        raise ClairvoyantError(
            f"{short} of {len(answers)} answers were short: without at least {MIN_OF_A_CLASS} of each kind "
            f"there is nothing to reorder; {remedy}"
        )


def _in_force(
    connection: "sqlite3.Connection", name: str | None, answers: "Sequence[Answer]"
) -> "tuple[Profile, float | None]":
    """Return the profile that `serve` would use for what was answered last, and the tau it has by now."""
    from clairvoyant_cli.proxy.learning.tau_learning import Learner, learned_of, state_name
    from profiles.host import this_host
    from profiles.states import load_state
    from profiles.store import fitting, named

    backend = answers[0].backend
    model = Counter(answer.model for answer in answers).most_common(1)[0][0]
    if name is not None:
        found = [named(connection, name)]
    else:
        found = fitting(connection, host=this_host().key, backend=backend)
    profile = Learner(found, learned_of(None)).profile_of(model)
    if profile is None:
        raise ClairvoyantError(
            f"no profile of {backend} on this machine; run: clairvoyant calibrate, or name one with --profile"
        )
    state = load_state(connection, state_name(profile.served.backend, profile.served.url))
    return profile, Learner([profile], learned_of(state)).tau_of(model)[0]


def _present(known: Known, forecaster: "Forecaster") -> "Variant | None":
    from clairvoyant_cli.research.simulator.advice import described
    from clairvoyant_cli.research.simulator.trial import Variant

    if known.policy == "fcfs" or known.policy not in SERVABLE:
        return None
    policy = POLICIES[known.policy]
    tau_s = known.tau_s if policy.guarded else None
    return Variant(f"{described(policy.name, tau_s)} (now)", policy, tau_s, forecaster)


def _in_full(known: Known, question: "Question", advice: "Advice", report: "Report") -> "Report":
    """Say in the report what it rests on, and what it means for the hours that were."""
    from profiles.ranking import pairs_in_order

    profile, busy, slots = known.profile, known.load, known.slots
    busiest, mean = busy.busiest_utilisation(slots), busy.utilisation(slots)
    scores = {name: [a.p_long for a in known.answers if a.length_class == name] for name in ("short", "long")}
    accuracy = pairs_in_order(scores["short"], scores["long"])
    short_share = sum(known.is_short) / len(known.answers)
    mu_short_s = profile.mu_short_s.mean if profile.mu_short_s is not None else None
    cs2 = next((mix.cs2 for mix in profile.mixes if mix.name == "mixed"), None)
    notes = [*report.notes, _of_the_hours(known, advice)]
    if busiest > FULLEST and question.load == FULLEST:
        notes.append(
            f"The busiest hour had no room left; it is simulated at {FULLEST:g}. An order adds no capacity."
        )
    if advice.worth_it and advice.best is not advice.present:
        best = advice.best.variant
        flags = f"--policy {best.policy.name}" + ("" if best.tau_s is None else f" --tau {best.tau_s:.3g}")
        notes.append(f"To have it so: clairvoyant serve {flags}")
    setting = (
        f"profile {profile.name} ({_number(mu_short_s, ' s')} mu_short, {_number(cs2)} C_s^2);"
        f" {busy.requests:,} requests, the newest {len(known.answers):,} answers: {short_share:.0%} short,"
        f" ranking accuracy {_number(accuracy)}; 'long' are all that are not short; {report.setting}"
    )
    use = advice.best.variant if advice.worth_it else None
    return replace(
        report,
        setting=setting,
        notes=tuple(notes),
        facts={
            "profile": profile.name,
            "mu_short_s": mu_short_s,
            "cs2": cs2,
            "slots": slots,
            "requests": busy.requests,
            "busiest_hour_requests_per_s": busy.busiest_per_s,
            "busiest_hour_utilisation": busiest,
            "mean_utilisation": mean,
            "short_share": short_share,
            "short_service_s": question.short_mean_s,
            "mean_service_s": question.mean_s,
            "ranking_accuracy": accuracy,
            "policy_now": known.policy,
            "tau_now_s": known.tau_s,
            "use_policy": use.policy.name if use else "fcfs",
            "use_tau_s": use.tau_s if use else None,
            "worth_from_utilisation": advice.worth_from,
        },
    )


def _of_the_hours(known: Known, advice: "Advice") -> str:
    busy, slots = known.load, known.slots
    line = (
        f"Your busiest hour: {3600 * busy.busiest_per_s:,.0f} requests, utilisation"
        f" {busy.busiest_utilisation(slots):.2f}; on average {busy.utilisation(slots):.2f}"
    )
    if advice.worth_from is None:
        return f"{line}."
    share = busy.share_above(advice.worth_from, slots)
    return f"{line}. {share:.0%} of the requests came in hours from {advice.worth_from:.2g} on."


def _number(value: float | None, unit: str = "") -> str:
    return "unknown" if value is None else f"{value:.3g}{unit}"
