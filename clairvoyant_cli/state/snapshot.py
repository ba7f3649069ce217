"""The state of a daemon at one moment, as plain frozen records: the only thing a front end is given.

Rule 1: no Textual, no msgspec, no proxy: standard library only, so that scripts can import it too.
Rule 2: times are epoch seconds where the name ends in `_at`, durations are seconds where it ends in `_s`.
Rule 3: fields are only ever added, each with a default, so that an older `top` reads a newer daemon.
Rule 4: no prompt text, unless the operator started the daemon with prompts shown.
"""

from dataclasses import dataclass

SCHEMA_VERSION = 1

MAX_RECENT, MAX_LOG = 100, 200
"""Ended requests, and lines of the log, that a state holds: the newest."""


@dataclass(frozen=True, slots=True)
class PredictionState:
    """What was predicted of one request. `features` is what the predictor looked at, the telling first."""

    length_class: str
    p_short: float
    p_medium: float
    p_long: float
    expected_tokens: float
    q90_tokens: float
    source: str = ""
    features: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """One step of a request through the queue."""

    at: float
    kind: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an answer that was cut: when its request had a slot, epoch seconds, and what it brought.
    `ended_at` is None while it lasts.
    """

    began_at: float
    ended_at: float | None
    tokens: int
    backend: str
    slot: int | None = None


@dataclass(frozen=True, slots=True)
class QueuedRequest:
    """A waiting request. `rank` counts from 1 in dispatch order; `eta_s` is the predicted wait; `rank_fcfs`
    and `eta_fcfs_s` are those it would have under first-come-first-served. One that was cut `cuts` times has
    `tokens` of its answer, in as many `parts`, and waits to go on. `urgency` is its level, 0 (immediate) to
    4, None where nobody said; `urgency_by` is who did: operator, rule, client, predictor, or share where its
    client's word does not count any more. `backends` are those that can serve it, none if all can.

    `cause` is what the scheduler's decision rests on (held, cannot, promoted, guard, overdue, priority or
    policy), `why` says it in words. The one whose cause is `guard` is started next by the guard.
    """

    id: str
    rank: int
    age_s: float
    endpoint: str
    model: str
    client: str
    predicted: PredictionState
    key: float
    eta_s: float | None = None
    held: bool = False
    promoted: bool = False
    priority: int = 0
    streaming: bool = False
    prompt_tokens: float = 0.0
    moves: tuple[MoveRecord, ...] = ()
    prompt: str | None = None
    tokens: int = 0
    cuts: int = 0
    parts: tuple[Part, ...] = ()
    urgency: int | None = None
    urgency_by: str = ""
    backends: tuple[str, ...] = ()
    cause: str = ""
    why: str = ""
    rank_fcfs: int | None = None
    eta_fcfs_s: float | None = None


@dataclass(frozen=True, slots=True)
class RunningRequest:
    """A request that holds a slot. `state`: connecting, prefill, decoding, or releasing (the client has
    left, or its answer was cut, and the slot is not free yet). `tokens` are those of all `parts`; `uncut`
    says why its answer will not be cut, "" if it may be. `stamp` is the priority that it was sent with, by
    which the engine orders it. `estimated` says that its state and tokens are worked out from the server's
    speeds: an answer that is not streamed shows nothing before its end.
    """

    id: str
    backend: str
    state: str
    endpoint: str
    model: str
    client: str
    predicted: PredictionState
    waited_s: float
    elapsed_s: float
    ttft_s: float | None = None
    tokens: int = 0
    tokens_per_s: float | None = None
    eta_s: float | None = None
    dispatched_by: str = "policy"
    streaming: bool = False
    moves: tuple[MoveRecord, ...] = ()
    prompt: str | None = None
    slot: int | None = None
    cuts: int = 0
    parts: tuple[Part, ...] = ()
    uncut: str = ""
    stamp: int | None = None
    urgency: int | None = None
    urgency_by: str = ""
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """A request that has ended. `outcome`: completed, client_cancelled, upstream_error, rejected, timeout.
    `backend` is the one that it was sent to last, "" if it never was.
    `real_class` is the class of the answer itself, "" where its length is not known; `slot` is the one that
    it had in the end, in which it was predicted to take `expected_s`.
    """

    id: str
    finished_at: float
    outcome: str
    status: int
    endpoint: str
    model: str
    client: str
    predicted: PredictionState
    waited_s: float
    sojourn_s: float
    ttft_s: float | None = None
    tokens: int | None = None
    dispatched_by: str = ""
    cuts: int = 0
    parts: tuple[Part, ...] = ()
    urgency: int | None = None
    urgency_by: str = ""
    backend: str = ""
    real_class: str = ""
    slot: int | None = None
    expected_s: float | None = None


@dataclass(frozen=True, slots=True)
class Percentiles:
    """P50, P95 and P99 over the last `n` values, in seconds."""

    n: int = 0
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class ClassStats:
    """Waits and sojourn times of the recent requests whose real answer fell into one class."""

    length_class: str
    wait: Percentiles
    sojourn: Percentiles
    ttft: Percentiles


@dataclass(frozen=True, slots=True)
class LevelState:
    """The requests of one level of urgency: how many wait and run, the longest wait of those that wait, and
    the waits of the recent ones. Where nobody said, a request counts as one of level 2.
    """

    level: int
    waiting: int
    running: int
    longest_s: float
    wait: Percentiles


@dataclass(frozen=True, slots=True)
class ShouterState:
    """The client that calls most requests urgent beyond its share: so many claims of the last minute were not
    believed, and its claims may have this share of the slots' time while others wait.
    """

    client: str
    unbelieved: int
    share: float


@dataclass(frozen=True, slots=True)
class UrgencyState:
    """How urgent what is here is. `predictor` names what reads prompts for it, "" if nothing does; `target_s`
    is how long one of level 0 should wait at most, `late` how many waited longer since the start.
    `overruled` counts by why requests got less urgency than was asked: range, cap, share; `shouter` is
    whose claims are not believed just now, if anybody's. `heeded` says that levels matter: the policy orders
    by them.
    """

    levels: tuple[LevelState, ...] = ()
    predictor: str = ""
    target_s: float | None = None
    late: int = 0
    overruled: tuple[tuple[str, int], ...] = ()
    heeded: bool = False
    shouter: ShouterState | None = None


@dataclass(frozen=True, slots=True)
class LevelMet:
    """Of how many requests of a predicted class the first token was waited for, and of how many too long."""

    length_class: str
    judged: int = 0
    missed: int = 0


@dataclass(frozen=True, slots=True)
class ServiceLevelState:
    """The service level that was promised, as in `ttft-p95=2s`. `alert` says that more of the recent requests
    were too late than may be, `recent_missed` which share; `refused` were told at the door to come later.
    """

    objective: str
    alert: bool = False
    recent_missed: float = 0.0
    refused: int = 0
    classes: tuple[LevelMet, ...] = ()


@dataclass(frozen=True, slots=True)
class TauState:
    """The starvation guard. `recent` holds the times of the last firings, oldest first; `guards` says whether
    the policy in force heeds it.
    """

    tau_s: float | None = None
    mu_short_s: float | None = None
    source: str = "none"
    firings_total: int = 0
    firings_last_minute: int = 0
    recent: tuple[float, ...] = ()
    guards: bool = True


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that is resident in the backend."""

    name: str
    size_bytes: int | None = None
    vram_bytes: int | None = None
    context: int | None = None
    expires_at: float | None = None
    digest: str = ""


@dataclass(frozen=True, slots=True)
class EngineState:
    """What an engine that orders its own queue says of itself: requests that run and that wait inside,
    answers that were preempted so far, and the share of its KV cache in use, 0 to 1. None: it does not say.
    """

    running: int | None = None
    waiting: int | None = None
    preemptions: int | None = None
    kv_used: float | None = None


@dataclass(frozen=True, slots=True)
class BackendState:
    """One LLM server behind the proxy. `state`: up, loading, down. `standing` says why it gets less than its
    slots would take, "" if it does not: draining, leaving (it goes when it has nothing left), resting (it
    failed several times in a row), warming (it has just come back). `waiting` counts what waits for it alone,
    `offered` the models it lists; None where it was not asked. `stamped` says that its requests wait for
    nothing here, but carry a priority by which it orders its own queue; `engine` is that queue, `heeded` the
    share of the last starts there that followed the priority against the order of arrival.
    """

    name: str
    kind: str
    url: str
    state: str
    slots: int
    busy: int
    version: str = ""
    detail: str = ""
    models: tuple[LoadedModel, ...] = ()
    decode_tokens_per_s: float | None = None
    prefill_tokens_per_s: float | None = None
    swaps_total: int = 0
    standing: str = ""
    waiting: int = 0
    offered: int | None = None
    weight: float = 1.0
    stamped: bool = False
    engine: EngineState | None = None
    heeded: float | None = None


@dataclass(frozen=True, slots=True)
class PredictorState:
    """How the predictor does on this traffic. `ranking_accuracy` counts (Short, Long) pairs, ties half. The
    clients whose answers it cannot rank are `distrusted`, the latest first; where there is nobody else it is
    not `trusted`.
    """

    name: str
    judged: int = 0
    ranking_accuracy: float | None = None
    q90_coverage: float | None = None
    trusted: bool = True
    distrusted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Counters:
    """How many requests ended how since the start; the parts sum to `submitted` minus those still here.

    `cuts` counts answers that were cut, `resumes` those that went on, and `recomputed_tokens` what of their
    prompts and of what had been said was read again then, where the server tells. `repeats` counts answers
    that broke off and were asked for again, without their clients noticing.
    """

    submitted: int = 0
    completed: int = 0
    client_cancelled: int = 0
    upstream_error: int = 0
    rejected: int = 0
    timeout: int = 0
    passed_through: int = 0
    cuts: int = 0
    resumes: int = 0
    recomputed_tokens: int = 0
    repeats: int = 0


@dataclass(frozen=True, slots=True)
class ClientState:
    """One client: what it has in the queue and in slots, what it may, and its answer tokens since midnight.

    `ruled` says that an operator set rules for it; `tau_s` None means everybody's. `priority` is the soonest
    and the latest it may ask for, `urgency` the most and the least urgent level; `overruled` counts how often
    it got less urgency than was asked for it, `late` how often its first token came later than promised.
    """

    name: str
    waiting: int = 0
    running: int = 0
    tokens_today: int = 0
    weight: float = 1.0
    max_waiting: int | None = None
    max_running: int | None = None
    tau_s: float | None = None
    priority: tuple[int, int] = (0, 100)
    tokens_per_day: int | None = None
    ruled: bool = False
    urgency: tuple[int, int] = (2, 4)
    overruled: int = 0
    late: int = 0


@dataclass(frozen=True, slots=True)
class LogEvent:
    """One line of the daemon's event strip; never prompt text."""

    at: float
    level: str
    text: str


@dataclass(frozen=True, slots=True)
class WaitingState:
    """All that waits, whatever part of it is listed: how many, how many of them held or suspended, how many
    of each predicted class, and the predicted seconds until all of it, and what runs, is done.
    """

    total: int = 0
    held: int = 0
    suspended: int = 0
    short: int = 0
    medium: int = 0
    long: int = 0
    clear_s: float = 0.0


@dataclass(frozen=True, slots=True)
class GainState:
    """What the order is worth, by the requests of the last hour: the median wait of the Short ones, in
    seconds, and what it would have been in order of arrival; what the Long ones waited longer, at the median;
    and what all requests together have been spared since midnight. None while there are none.

    `minutes` holds the mean waits of the Short ones, ours and by arrival, the newest minute last; None for a
    minute without any.
    """

    short_s: float | None = None
    short_fcfs_s: float | None = None
    long_paid_s: float | None = None
    saved_today_s: float = 0.0
    minutes: tuple[tuple[float, float] | None, ...] = ()


@dataclass(frozen=True, slots=True)
class PolicyOutlook:
    """When what waits now would start under a policy: the medians of the Short and of the Long, in seconds
    from now, by the same predictions; None where none waits. Where the policy `cuts` answers, before any cut.
    """

    policy: str
    short_s: float | None = None
    long_s: float | None = None
    cuts: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """How things are, in one sentence. `level`: good, note (somebody wants it so), warn, alert."""

    level: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything a front end draws. `mode`: serving, paused, draining. `stats_fcfs` is what the requests of
    `stats` would have waited under first-come-first-served, by the same scheduler run in shadow. `clients`
    are the busiest, and no more than a screen of them. `queue` holds the first rows in scheduling order,
    `waiting` the totals of the whole queue. `summaries` say in a sentence what each
    of `policies` does; `displaced_policy` is the policy that is set aside while the upper bounds that it
    goes by do not hold, "" if none is.
    """

    taken_at: float
    daemon_version: str
    pid: int
    listen: str
    mode: str
    uptime_s: float
    policy: str
    policies: tuple[str, ...]
    tau: TauState
    predictor: PredictorState
    backends: tuple[BackendState, ...]
    running: tuple[RunningRequest, ...]
    queue: tuple[QueuedRequest, ...]
    recent: tuple[FinishedRequest, ...]
    stats: tuple[ClassStats, ...]
    counters: Counters
    queue_capacity: int
    utilisation: float | None = None
    log: tuple[LogEvent, ...] = ()
    stats_fcfs: tuple[ClassStats, ...] = ()
    clients: tuple[ClientState, ...] = ()
    schema: int = SCHEMA_VERSION
    urgency: UrgencyState = UrgencyState()
    service_level: ServiceLevelState | None = None
    waiting: WaitingState = WaitingState()
    summaries: tuple[str, ...] = ()
    displaced_policy: str = ""
    verdict: Verdict = Verdict()
    gain: GainState = GainState()

    @property
    def waits(self) -> int:
        """How many wait, listed or not."""
        return max(self.waiting.total, len(self.queue))
