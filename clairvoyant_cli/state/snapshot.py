"""The state of a daemon at one moment, as frozen records: all that a front end is given.

Standard library only, so that scripts can import it. Times are epoch seconds where the name ends in `_at`,
durations seconds where it ends in `_s`. Fields are only ever added, with a default, so that an older `top`
reads a newer daemon. There is no prompt text unless the operator started the daemon with `--show-prompts`.
"""

from dataclasses import dataclass

SCHEMA_VERSION = 1

MAX_RECENT, MAX_LOG = 100, 200
"""How many of the newest ended requests and log lines a state holds."""


@dataclass(frozen=True, slots=True)
class PredictionState:
    """What was predicted of a request. `features` are what the predictor looked at, the strongest first."""

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
class AnswerPart:
    """A part of an answer that was cut. `ended_at` is None while it lasts."""

    began_at: float
    ended_at: float | None
    tokens: int
    backend: str
    slot: int | None = None


@dataclass(frozen=True, slots=True)
class QueuedRequest:
    """A queued request. `rank` counts from 1 in scheduling order, `eta_s` is the predicted wait, None if no
    server can take it or it is held; four of five start between `eta_low_s` and `eta_high_s`. `ahead` are
    those that are expected to start before it, with requests that have yet to come. `refused_in_s`: it is
    refused then unless it can start before, None while it can or if it may wait on. `tau_s`: the guard may
    start it after this age, None if it never does. `rank_fcfs` and `eta_fcfs_s` are rank and wait under
    first-come-first-served. One that was cut `cuts` times has `tokens` of
    its answer in as many `parts`. `urgency` is its level, 0 (immediate) to 4, None if nobody set one;
    `urgency_by` is who did: operator, rule, client, predictor, or share if its client has used up its share
    of urgency. `backends` are those that can serve it, none if all can. `cause` is one word for what decides
    its place (`scheduler.explain.Cause`), `why` explains it.
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
    parts: tuple[AnswerPart, ...] = ()
    urgency: int | None = None
    urgency_by: str = ""
    backends: tuple[str, ...] = ()
    cause: str = ""
    why: str = ""
    rank_fcfs: int | None = None
    eta_fcfs_s: float | None = None
    eta_low_s: float | None = None
    eta_high_s: float | None = None
    ahead: float | None = None
    refused_in_s: float | None = None
    tau_s: float | None = None
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class RunningRequest:
    """A request that holds a slot. `state`: connecting, prefill, decoding, or releasing (its client has left
    or its answer was cut, and the slot is not free yet). `tokens` are those of all `parts`; `uncut` says why
    its answer will not be cut. `stamp` is the priority it was sent with, by which the engine orders it.
    `estimated`: state and tokens follow from the server's speeds, as an answer that is not streamed shows
    nothing before its end. `eta_s` is the predicted time left; four of five end between `eta_low_s` and
    `eta_high_s`. `answer` is the end of what was streamed so far, None unless the daemon shows prompts.
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
    parts: tuple[AnswerPart, ...] = ()
    uncut: str = ""
    stamp: int | None = None
    urgency: int | None = None
    urgency_by: str = ""
    estimated: bool = False
    eta_low_s: float | None = None
    eta_high_s: float | None = None
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """A request that has ended. `outcome`: completed, client_cancelled, operator_cancelled, upstream_error
    (its server failed, or refused it with a status from 400), rejected, timeout. `backend` is the one it was
    last sent to, "" if none. `real_class` is the class of the answer, "" if its length is unknown; `slot` is
    the last it had, in which it was predicted to take `expected_s`. `remark`: what was wrong with it, such as
    a prompt that the server truncated.
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
    backend: str = ""
    real_class: str = ""
    slot: int | None = None
    expected_s: float | None = None
    remark: str = ""


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
    ttft: Percentiles


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
    """Urgency. `predictor` names what reads prompts for it, "" if nothing does; `target_s` is how long level
    0 should wait at most, `late` how many waited longer. `heeded`: the policy orders by level.
    """

    levels: tuple[LevelState, ...] = ()
    predictor: str = ""
    target_s: float | None = None
    late: int = 0
    heeded: bool = False


@dataclass(frozen=True, slots=True)
class LevelMet:
    """How many requests of a predicted class were judged by the service level, and how many missed it."""

    length_class: str
    judged: int = 0
    missed: int = 0


@dataclass(frozen=True, slots=True)
class ServiceLevelState:
    """The service level, as in `ttft-p95=2s`. `alert`: too many of the recent requests were late,
    `recent_missed` is their share; `refused` were rejected because they could not be in time.
    """

    objective: str
    alert: bool = False
    recent_missed: float = 0.0
    refused: int = 0
    classes: tuple[LevelMet, ...] = ()


@dataclass(frozen=True, slots=True)
class TauState:
    """The starvation guard. `recent` holds the times of the last promotions, the oldest first; `guards` says
    whether the policy uses tau. `mu_short_s` is what tau was computed from, the mean sojourn time of short
    requests in order of arrival, None if tau was not computed; `short_s` is what recent ones really took.
    """

    tau_s: float | None = None
    mu_short_s: float | None = None
    source: str = "none"
    firings_total: int = 0
    firings_last_minute: int = 0
    recent: tuple[float, ...] = ()
    guards: bool = True
    short_s: float | None = None


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that is loaded on the server."""

    name: str
    size_bytes: int | None = None
    vram_bytes: int | None = None
    context: int | None = None
    expires_at: float | None = None
    digest: str = ""


@dataclass(frozen=True, slots=True)
class EngineState:
    """What an engine with a queue of its own reports: requests running and waiting inside, answers preempted,
    and the share of its KV cache in use, 0 to 1. None: not reported.
    """

    running: int | None = None
    waiting: int | None = None
    preemptions: int | None = None
    kv_used: float | None = None


@dataclass(frozen=True, slots=True)
class BackendState:
    """A server. `state`: up, loading, down. `standing` says why it gets less than its slots would take, "" if
    it does not: draining, leaving (removed once it is idle), resting (it failed several times in a row),
    warming (it has just come back). `waiting` counts requests that only it can serve, `offered` the models it
    lists; None if it was not asked. `stamped`: its requests do not wait here, but carry a priority by which
    it orders its own queue, `engine`; `heeded` is the share of recent starts there that followed the
    priority. `prompt_stop_s` is how long it goes on reading a prompt after a cut, None before any. It cut
    `truncated` prompts to its context; `cut_to` are the tokens of the last one and that context. While it is
    away, requests are kept for it for `kept_for_s` more; None if it is there or never was, 0.0: not any more.
    `self_test` says how far the daemon's own test of it is, "" if there is none; that counts nowhere else.
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
    prompt_stop_s: float | None = None
    truncated: int = 0
    cut_to: tuple[int, int] = (0, 0)
    kept_for_s: float | None = None
    self_test: str = ""

    @property
    def is_there(self) -> bool:
        """Whether it takes requests: it is neither down nor loading its model."""
        return self.state not in ("down", "loading")


@dataclass(frozen=True, slots=True)
class PredictorState:
    """How well the predictor does on this traffic. `ranking_accuracy` is over (Short, Long) pairs, ties count
    half.
    """

    name: str
    judged: int = 0
    ranking_accuracy: float | None = None
    q90_coverage: float | None = None


@dataclass(frozen=True, slots=True)
class Counters:
    """Requests by outcome since the start; `submitted` includes those still here. `cuts` counts requests that
    were cut, `resumes` those that went on, `recomputed_tokens` the tokens read again for it where the server
    tells, `repeats` answers that broke off and were asked for again. `upstream_error` counts those that a
    server refused, too.
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
    operator_cancelled: int = 0


@dataclass(frozen=True, slots=True)
class ClientState:
    """A client: its queued and running requests, its limits, and its answer tokens since the daemon started.
    `ruled`: an operator set rules for it. `tau_s` None means the default. `priority` is the range it may ask
    for, `urgency` that of levels; `late` counts first tokens later than promised.
    """

    name: str
    waiting: int = 0
    running: int = 0
    tokens: int = 0
    weight: float = 1.0
    max_waiting: int | None = None
    max_running: int | None = None
    tau_s: float | None = None
    priority: tuple[int, int] = (0, 100)
    ruled: bool = False
    urgency: tuple[int, int] = (2, 4)
    late: int = 0


@dataclass(frozen=True, slots=True)
class LogEvent:
    """A line of the daemon's log; never prompt text."""

    at: float
    level: str
    text: str


@dataclass(frozen=True, slots=True)
class WaitingState:
    """Totals of the whole queue: requests, held and suspended ones, those of each predicted class, and the
    predicted seconds until it and all running requests are done. No server that is up can take the `stranded`
    ones, the first of which is refused in `refused_in_s`. The queue has had waiting requests for `backlog_s`
    and does not get shorter, None if it does.
    """

    total: int = 0
    held: int = 0
    suspended: int = 0
    short: int = 0
    medium: int = 0
    long: int = 0
    clear_s: float = 0.0
    stranded: int = 0
    refused_in_s: float | None = None
    backlog_s: float | None = None


@dataclass(frozen=True, slots=True)
class GainState:
    """What the order of service gained over order of arrival. All figures are of pairs: the same requests,
    with both waits known. Background requests are not compared, and pauses and outages do not count.

    `short_s` is the median wait of Short answers in the last hour, None without any. `minutes` holds their
    mean waits, with scheduling and without, the newest minute last. Since midnight: the seconds that all
    waited, and waited less, of how many answers, for how many of these a length before them was estimated,
    and the prompt tokens that were not read again. `behind` answers are not compared yet: one before them has
    not ended.
    """

    short_s: float | None = None
    saved_today_s: float = 0.0
    minutes: tuple[tuple[float, float] | None, ...] = ()
    answers_today: int = 0
    estimated_today: int = 0
    spared_tokens_today: float = 0.0
    behind: int = 0
    waited_today_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PolicyOutlook:
    """When queued requests would start under a policy, the same ones for all policies: medians of Short and
    Long, seconds from now, None if there are none. If the policy `cuts` answers, before any cut.
    """

    policy: str
    short_s: float | None = None
    long_s: float | None = None
    cuts: bool = False


@dataclass(frozen=True, slots=True)
class StatusLine:
    """The state in one sentence. `level`: good, note (an operator's choice), warn, alert."""

    level: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class SessionState:
    """A session of an agent: its client, its turns, its context and what servers read of its prompts and took
    from their caches, in tokens.

    `state` is running, waiting, parked (waits for its turn), held (has its turn while it is away) or resting,
    for `since_s`; it is held for `hold_left_s` more, None if it is not. `reread_tokens` were read again
    because the beginning of its prompt changed; `broken` says what changed last, "" if nothing did.
    `program` is the agent's name, "" if unknown; its task is `age_s` old. `calls_tool`: its last answer
    called a tool. `parent` is the id of the session whose subagent it is, "" if it is none. `saved_s` is how
    long it would take to read what came from the caches, None while the speed is not measured.
    """

    id: str
    client: str
    state: str
    turns: int
    context_tokens: float
    read_tokens: float
    cached_tokens: float
    since_s: float = 0.0
    hold_left_s: float | None = None
    reread_tokens: float = 0.0
    broken: str = ""
    program: str = ""
    age_s: float = 0.0
    calls_tool: bool = False
    parent: str = ""
    saved_s: float | None = None


@dataclass(frozen=True, slots=True)
class SessionsState:
    """The sessions of agents, those with a turn first, then those parked; long resting ones are left out.
    Subagents follow their parent.
    `turns` and `parked` count them; `read_tokens` and `cached_tokens` sum the prompts of all requests since
    the start, `saved_s` is how long it would take to read those from the cache. `room_tokens` is the learned
    size of the KV caches that are too small for what they were sent, None if none was.
    """

    turns: int = 0
    parked: int = 0
    read_tokens: float = 0.0
    cached_tokens: float = 0.0
    room_tokens: float | None = None
    listed: tuple[SessionState, ...] = ()
    saved_s: float | None = None

    @property
    def summary(self) -> str:
        """How the sessions take turns, in a sentence; "" if none is parked."""
        every = self.turns + self.parked
        return f"{every} sessions, the cache holds {self.turns}: the others take turns" if self.parked else ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole state. `mode`: serving, paused, draining. `stats_paired` and `stats_fcfs` are waits of the
    same requests of the last hour: what they waited, and what they would have in order of arrival.
    `utilisation` is the share of the slots' time in use over the last `utilisation_s`. `clients` are the
    busiest. `queue` holds the first rows in scheduling order, `waiting` the totals of the whole queue.
    `summaries` describe each of `policies`; `displaced_policy` is the one that is suspended while its upper
    bounds do not hold, "" if none is.
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
    stats_paired: tuple[ClassStats, ...] = ()
    clients: tuple[ClientState, ...] = ()
    schema: int = SCHEMA_VERSION
    urgency: UrgencyState = UrgencyState()
    service_level: ServiceLevelState | None = None
    waiting: WaitingState = WaitingState()
    summaries: tuple[str, ...] = ()
    displaced_policy: str = ""
    verdict: StatusLine = StatusLine()
    gain: GainState = GainState()
    sessions: SessionsState = SessionsState()
    utilisation_s: float = 300.0

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
