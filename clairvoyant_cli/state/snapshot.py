"""The state of a daemon at one moment, as records: all that a front end is given.

Standard library only, so that scripts can import it. Times are epoch seconds where the name ends in `_at`,
durations seconds where it ends in `_s`. Fields are only ever added, with a default, so that an older `top`
reads a newer daemon. There is no prompt text unless the operator started the daemon with `--show-prompts`.
"""

from dataclasses import dataclass, field

SCHEMA_VERSION = 1

MAX_RECENT, MAX_LOG = 100, 200
"""How many of the newest ended requests and log lines a state holds."""


# Not frozen are those of which a request or a state makes many: that triples the time to make one.


@dataclass(slots=True)
class PredictionState:
    """What was predicted of a request."""

    length_class: str
    p_short: float
    p_medium: float
    p_long: float
    expected_tokens: float
    q90_tokens: float
    source: str = ""
    features: tuple[tuple[str, float], ...] = ()  # what the predictor looked at, the strongest first


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """One step of a request through the queue."""

    at: float
    kind: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class AnswerPart:
    """A part of an answer that was cut."""

    began_at: float
    ended_at: float | None  # None while it lasts
    tokens: int
    backend: str
    slot: int | None = None


@dataclass(slots=True)
class QueuedRequest:
    """A queued request."""

    id: str
    rank: int  # from 1, in scheduling order
    age_s: float
    endpoint: str
    model: str
    client: str
    predicted: PredictionState
    key: float
    eta_s: float | None = None  # the predicted wait; None if no server can take it or it is held
    held: bool = False
    promoted: bool = False
    priority: int = 0
    streaming: bool = False
    prompt_tokens: float = 0.0
    moves: tuple[MoveRecord, ...] = ()
    prompt: str | None = None
    tokens: int = 0  # of its answer, if it was cut
    cuts: int = 0
    parts: tuple[AnswerPart, ...] = ()
    urgency: int | None = None  # level 0 (immediate) to 4; None if nobody set one
    urgency_by: str = ""  # operator, rule, client, predictor, or share: its client has used up its own
    backends: tuple[str, ...] = ()  # those that can serve it, none if all can
    cause: str = ""  # one word for what decides its place (`scheduler.causes.Cause`)
    tone: str = "soft"  # of the cause: alert, warn, accent or soft
    why: str = ""  # explains the cause
    rank_fcfs: int | None = None  # under first come, first served
    eta_fcfs_s: float | None = None
    eta_low_s: float | None = None  # four of five start between these two
    eta_high_s: float | None = None
    ahead: float | None = None  # requests that are expected to start before it, with those yet to come
    refused_in_s: float | None = None  # refused then unless it can start before; None if it may wait on
    tau_s: float | None = None  # the guard may start it after this age; None if it never does
    answer: str | None = None
    expected_s: float | None = None  # how long it is predicted to take once it starts


@dataclass(slots=True)
class RunningRequest:
    """A request that holds a slot."""

    id: str
    backend: str
    # connecting, prefill, decoding, silent (its server has sent nothing for far longer than expected), or
    # releasing (it was left or cut, the slot is not free yet)
    state: str
    endpoint: str
    model: str
    client: str
    predicted: PredictionState
    waited_s: float
    elapsed_s: float
    ttft_s: float | None = None
    tokens: int = 0  # of all parts
    tokens_per_s: float | None = None
    eta_s: float | None = None  # the predicted time left
    dispatched_by: str = "policy"
    streaming: bool = False
    moves: tuple[MoveRecord, ...] = ()
    prompt: str | None = None
    slot: int | None = None
    cuts: int = 0
    parts: tuple[AnswerPart, ...] = ()
    uncut: str = ""  # why its answer will not be cut
    stamp: int | None = None  # the priority it was sent with, by which the engine orders it
    urgency: int | None = None
    urgency_by: str = ""
    estimated: bool = False  # state and tokens follow from speeds: an unstreamed answer shows nothing
    eta_low_s: float | None = None  # four of five end between these two
    eta_high_s: float | None = None
    answer: str | None = None  # the end of what was streamed; None unless the daemon shows prompts


@dataclass(slots=True)
class FinishedRequest:
    """A request that has ended. `outcome`: completed, client_cancelled, operator_cancelled, upstream_error
    (its server failed, or refused it with a status from 400), rejected, timeout, or lost (an earlier
    daemon was killed).
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
    parts: tuple[AnswerPart, ...] = ()
    urgency: int | None = None
    urgency_by: str = ""
    backend: str = ""  # the last it was sent to, "" if none
    real_class: str = ""  # of the answer, "" if its length is unknown
    slot: int | None = None  # the last it had
    expected_s: float | None = None  # how long it was predicted to take there
    remark: str = ""  # what was wrong with it or done to its prompt, such as that the server truncated it


@dataclass(frozen=True, slots=True)
class Percentiles:
    """P50, P95 and P99 over the last `n` values, in seconds."""

    n: int = 0
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class ClassStats:
    """Waits and sojourn times of the recent requests whose answer fell into one class."""

    length_class: str
    wait: Percentiles
    sojourn: Percentiles


@dataclass(frozen=True, slots=True)
class LevelState:
    """The requests of an urgency level, the longest wait now, and recent waits. Unset counts as level 2."""

    level: int
    waiting: int
    running: int
    longest_s: float
    wait: Percentiles


@dataclass(frozen=True, slots=True)
class UrgencyState:
    levels: tuple[LevelState, ...] = ()
    predictor: str = ""  # what reads prompts for it, "" if nothing does
    target_s: float | None = None  # how long level 0 should wait at most
    late: int = 0  # how many waited longer
    heeded: bool = False  # the policy orders by level


@dataclass(frozen=True, slots=True)
class LevelMet:
    """How many requests of a predicted class were judged by the service level, and how many missed it."""

    length_class: str
    judged: int = 0
    missed: int = 0


@dataclass(frozen=True, slots=True)
class ServiceLevelState:
    objective: str  # as in `ttft-p95=2s`
    alert: bool = False  # too many of the recent requests were late
    recent_missed: float = 0.0  # their share
    refused: int = 0  # rejected because they could not be in time
    classes: tuple[LevelMet, ...] = ()


@dataclass(frozen=True, slots=True)
class TauState:
    """The starvation guard."""

    tau_s: float | None = None  # of all models; if each has its own, the longest, which others get
    mu_short_s: float | None = None  # short requests' mean sojourn time in order of arrival, if tau is of it
    source: str = "none"
    firings_total: int = 0
    firings_last_minute: int = 0
    recent: tuple[float, ...] = ()  # the times of the last promotions, the oldest first
    guards: bool = True  # the policy uses tau
    short_s: float | None = None  # what recent short requests really took
    by_model: dict[str, float] = field(default_factory=dict)  # learned


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that is loaded on the server."""

    name: str
    size_bytes: int | None = None
    vram_bytes: int | None = None
    context: int | None = None
    digest: str = ""


@dataclass(frozen=True, slots=True)
class EngineState:
    """What an engine with a queue of its own reports; None: not reported."""

    running: int | None = None
    waiting: int | None = None
    preemptions: int | None = None
    kv_used: float | None = None  # the share of its KV cache in use, 0 to 1


@dataclass(frozen=True, slots=True)
class BackendState:
    """A server. `standing` says why it gets less than its slots would take, "" if it does not: draining,
    leaving (removed once it is idle), resting (it failed several times in a row), silent (a request there is
    overdue, or was when it ended), warming (it has just come back), shared (the daemon before this one still
    uses slots of it).
    """

    name: str
    kind: str
    url: str
    state: str  # up, loading, down
    slots: int
    busy: int
    tells_slots: bool = False  # the server says how many it has, or orders its own queue
    version: str = ""
    detail: str = ""
    models: tuple[LoadedModel, ...] = ()
    decode_tokens_per_s: float | None = None
    prefill_tokens_per_s: float | None = None
    swaps_total: int = 0
    standing: str = ""
    waiting: int = 0  # requests that only it can serve
    offered: int | None = None  # models that it lists; None if it was not asked
    weight: float = 1.0
    stamped: bool = False  # its requests do not wait here, but carry a priority by which it orders them
    engine: EngineState | None = None
    prompt_stop_s: float | None = None  # how long it goes on reading a prompt after a cut; None before any
    truncated: int = 0  # prompts that it cut to its context
    cut_to: tuple[int, int] = (0, 0)  # the tokens of the last one, and that context
    kept_for_s: float | None = None  # how long requests are kept while it is away; None if it is not
    self_test: str = ""  # how far the daemon's own test of it is; it counts nowhere else

    @property
    def is_there(self) -> bool:
        """Whether it takes requests: it is neither down nor loading its model."""
        return self.state not in ("down", "loading")


@dataclass(frozen=True, slots=True)
class PredictorState:
    """How well the predictor does on this traffic."""

    name: str
    judged: int = 0
    ranking_accuracy: float | None = None  # over (Short, Long) pairs, ties count half
    q90_coverage: float | None = None


@dataclass(frozen=True, slots=True)
class Counters:
    """Requests by outcome since the start."""

    submitted: int = 0  # with those still here
    completed: int = 0
    client_cancelled: int = 0
    upstream_error: int = 0  # with those that a server refused
    rejected: int = 0
    timeout: int = 0
    passed_through: int = 0
    cuts: int = 0  # requests that were cut
    resumes: int = 0  # those that went on
    recomputed_tokens: int = 0  # tokens read again for it, where the server tells
    repeats: int = 0  # answers that broke off and were asked for again
    operator_cancelled: int = 0


@dataclass(frozen=True, slots=True)
class ClientState:
    """A client: its queued and running requests, its limits, and its answer tokens since the start."""

    name: str
    waiting: int = 0
    running: int = 0
    tokens: int = 0
    weight: float = 1.0
    max_waiting: int | None = None
    max_running: int | None = None
    tau_s: float | None = None  # None: the default
    priority: tuple[int, int] = (0, 100)  # the range it may ask for
    ruled: bool = False  # an operator set rules for it
    urgency: tuple[int, int] = (2, 4)
    late: int = 0  # first tokens later than promised


@dataclass(frozen=True, slots=True)
class UseState:
    """The slot time of a program, and how much longer the compared of its answers would have waited in order
    of arrival, all together.
    """

    slot_s: float = 0.0
    saved_s: float = 0.0
    compared: int = 0

    @property
    def saved_each_s(self) -> float | None:
        return self.saved_s / self.compared if self.compared else None


@dataclass(frozen=True, slots=True)
class ProgramState:
    """What a program has and had of the slots, "-" for those unknown: its requests that are here, the last
    hour, the last 24 hours, and its slot time in each half hour of these, the newest last.
    """

    name: str
    running: int = 0
    waiting: int = 0
    hour: UseState = UseState()
    day: UseState = UseState()
    halves_s: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ProgramsState:
    """The programs, most slot time in the last hour first, and the slot time that there was."""

    listed: tuple[ProgramState, ...] = ()
    hour_s: float = 0.0
    day_s: float = 0.0
    slots: int = 0


@dataclass(frozen=True, slots=True)
class LogEvent:
    """A line of the daemon's log; never prompt text."""

    at: float
    level: str
    text: str


@dataclass(frozen=True, slots=True)
class WaitingState:
    """Totals of the whole queue, and of each predicted class."""

    total: int = 0
    held: int = 0
    short: int = 0
    medium: int = 0
    long: int = 0
    clear_s: float = 0.0  # until it and all running requests are done, as predicted
    clear_low_s: float | None = None  # four of five times it is between these two
    clear_high_s: float | None = None
    stranded: int = 0  # those that no server that is up can take
    refused_in_s: float | None = None  # when the first of those is refused
    backlog_s: float | None = None  # how long it has had requests without becoming shorter; None if it does
    late: int = 0  # those past their tau
    per_minute: float | None = None  # by how many requests it grows, of those that people wait for


@dataclass(frozen=True, slots=True)
class GainState:
    """What the order of service gained over order of arrival. All figures are of pairs: the same requests,
    with both waits known. Background requests are not compared, and pauses and outages do not count.
    """

    short_s: float | None = None  # the median wait of Short answers in the last hour
    saved_today_s: float = 0.0  # since midnight, of all together
    answers_today: int = 0
    estimated_today: int = 0  # for how many of these a length before them was estimated
    spared_tokens_today: float = 0.0  # of prompts, that were not read again
    waited_today_s: float = 0.0
    saved_yesterday_s: float = 0.0  # of the whole day before, as `saved_today_s`
    answers_yesterday: int = 0


@dataclass(frozen=True, slots=True)
class ArrivalTurn:
    """When a request has a slot, and how long it waits for it."""

    id: str
    backend: str
    slot: int
    waited_s: float
    begun_at: float
    ended_at: float
    known: bool = False  # it is no forecast


@dataclass(frozen=True, slots=True)
class StatusLine:
    """The state in one sentence. `level`: good, note (an operator's choice), warn, alert. `incident` is one
    word for what gets worse until somebody does something, "" if it does not: a dashboard rings for it once.
    """

    level: str = ""
    text: str = ""
    incident: str = ""


@dataclass(frozen=True, slots=True)
class SessionState:
    """A session of an agent, with its client. `state`: running, waiting, parked (waits for its turn), held
    (has its turn while it is away) or resting. Tokens are those of its prompts.
    """

    id: str
    client: str
    state: str
    turns: int
    context_tokens: float
    read_tokens: float
    cached_tokens: float  # taken from servers' caches
    since_s: float = 0.0  # how long it has been in this state
    hold_left_s: float | None = None  # None if it is not held
    reread_tokens: float = 0.0  # read again because the beginning of its prompt changed
    broken: str = ""  # what changed last, "" if nothing did
    program: str = ""  # the agent's name, "" if unknown
    age_s: float = 0.0  # of its task
    calls_tool: bool = False  # its last answer called a tool
    parent: str = ""  # the id of the session whose subagent it is
    saved_s: float | None = None  # how long it would take to read the cached tokens; None without a speed
    expected: bool = False  # no server has told what it had in its cache: the cached tokens are expected ones


@dataclass(frozen=True, slots=True)
class SessionsState:
    """The sessions of agents: those with a turn first, then those parked, subagents behind their parent; long
    resting ones are left out. Tokens and `saved_s` are of all requests since the start.
    """

    turns: int = 0
    parked: int = 0
    read_tokens: float = 0.0
    cached_tokens: float = 0.0
    room_tokens: float | None = None  # the learned size of the KV caches that are too small for what they get
    listed: tuple[SessionState, ...] = ()
    saved_s: float | None = None
    expected: bool = False  # as of a session: of all that are known

    @property
    def summary(self) -> str:
        """How the sessions take turns, in a sentence; "" if none is parked."""
        every = max(self.turns + self.parked, len(self.listed))
        return f"{every} sessions, the cache holds {self.turns}: the others take turns" if self.parked else ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole state."""

    taken_at: float
    daemon_version: str
    pid: int
    listen: str
    mode: str  # serving, paused, draining
    uptime_s: float
    policy: str
    policies: tuple[str, ...]
    tau: TauState
    predictor: PredictorState
    backends: tuple[BackendState, ...]
    running: tuple[RunningRequest, ...]
    queue: tuple[QueuedRequest, ...]  # the first rows in scheduling order
    recent: tuple[FinishedRequest, ...]
    stats: tuple[ClassStats, ...]
    counters: Counters
    queue_capacity: int
    utilisation: float | None = None  # the share of the slots' time in use over the last `utilisation_s`
    log: tuple[LogEvent, ...] = ()
    stats_fcfs: tuple[ClassStats, ...] = ()  # of the last hour's requests: waits in order of arrival
    stats_paired: tuple[ClassStats, ...] = ()  # and what the same ones waited
    clients: tuple[ClientState, ...] = ()  # the busiest
    programs: ProgramsState = ProgramsState()
    schema: int = SCHEMA_VERSION
    urgency: UrgencyState = UrgencyState()
    service_level: ServiceLevelState | None = None
    waiting: WaitingState = WaitingState()
    summaries: tuple[str, ...] = ()  # of each of `policies`
    seldom: tuple[str, ...] = ()  # those of them that are for comparisons
    verdict: StatusLine = StatusLine()
    gain: GainState = GainState()
    sessions: SessionsState = SessionsState()
    utilisation_s: float = 300.0
    in_order: tuple[ArrivalTurn, ...] = ()  # the latest, and those to come, of each slot in order of arrival
    to_come: tuple[ArrivalTurn, ...] = ()  # as served: the rest of what runs, and what is predicted to start

    @property
    def slots(self) -> tuple[int, int]:
        """The busy slots, and all slots of the servers that are there."""
        there = sum(server.slots for server in self.backends if server.is_there)
        return sum(server.busy for server in self.backends), there

    @property
    def alive(self) -> tuple[QueuedRequest | RunningRequest, ...]:
        return self.queue + self.running

    @property
    def waits(self) -> int:
        """The length of the queue, listed or not."""
        return max(self.waiting.total, len(self.queue))


EMPTY = Snapshot(
    0.0, "", 0, "", "", 0.0, "", (), TauState(), PredictorState(""), (), (), (), (), (), Counters(), 0
)
"""What stands in for a state before the first comes."""
