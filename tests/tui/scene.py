"""What a dashboard is shown in tests: a developer's machine with four slots, and a day of seeded requests.

They are served once, late ones first and else the shortest prediction; a state is read off at any moment.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from heapq import heapify, heapreplace
from math import exp, log
from random import Random

from clairvoyant_cli.proxy.observing.queue_rows import to_come
from clairvoyant_cli.proxy.observing.status_sentence import verdict
from clairvoyant_cli.state.snapshot import (
    ArrivalTurn,
    BackendState,
    ClassStats,
    ClientState,
    Counters,
    FinishedRequest,
    GainState,
    LoadedModel,
    LogEvent,
    MoveRecord,
    Percentiles,
    PredictionState,
    PredictorState,
    ProgramsState,
    ProgramState,
    QueuedRequest,
    RunningRequest,
    Snapshot,
    TauState,
    UseState,
    WaitingState,
)
from predictor.record import LengthClass
from profiles.percentiles import percentile

SCENARIOS = {"busy": 0.8, "overloaded": 1.25, "empty": 0.0}
"""What is asked, as a share of what the slots can do."""

POLICIES = ("boost", "fcfs", "sjf")
SUMMARIES = ("Shortest predicted service time first.", "Arrival order.", "Lowest P(Long) first.")
SLOTS, TOKENS_PER_S, TAU_S = 4, 58.0, 90.0
WARM_S, SPAN_S = 900.0, 1400.0
STARTED_AT = 1_790_000_000.0 - WARM_S
BURST_EVERY_S, BURST_SPAN_S = 90.0, 4.0
MEAN_TOKENS = 390.0
GIB = 2**30
KINDS = (  # share, client, endpoint, model, median tokens, spread, what it might have asked
    (0.30, "zed", "/v1/completions", "qwen2.5-coder:7b", 60, 0.7, "def parse_header(line: bytes) ->"),
    (0.24, "open-webui", "/api/chat", "llama3.1:8b", 190, 0.9, "What does a 429 mean?"),
    (0.16, "home-assist", "/api/generate", "llama3.1:8b", 45, 0.5, "Turn the light in the kitchen off."),
    (0.14, "cursor", "/v1/chat/completions", "qwen2.5-coder:7b", 520, 0.7, "Write tests for the queue."),
    (0.10, "notes-cli", "/v1/messages", "llama3.1:8b", 950, 0.5, "Summarise these minutes in detail."),
    (0.06, "batch-report", "/v1/responses", "llama3.1:8b", 1700, 0.4, "Write the quarterly report."),
)
RULES = {
    each.name: each
    for each in (
        ClientState("batch-report", weight=0.5, max_running=1, tau_s=3600.0, priority=(50, 100), ruled=True),
        ClientState("cursor", weight=2.0, max_waiting=60, ruled=True),
        ClientState("home-assist", priority=(-10, 100), ruled=True),
    )
}


@dataclass(slots=True, eq=False)
class Asked:
    """A request, and what came of it; the times are the daemon's uptime."""

    row: FinishedRequest
    at_s: float
    prompt: str
    cost_s: float  # what it is predicted to take
    prefill_s: float
    start_s: float = 0.0
    end_s: float = 0.0
    wait_fcfs_s: float = 0.0
    slot_fcfs: int = 0

    @property
    def wait_s(self) -> float:
        return self.start_s - self.at_s

    @property
    def end_fcfs_s(self) -> float:
        return self.at_s + self.wait_fcfs_s + self.end_s - self.start_s


def by_arrival(asked: Asked) -> float:
    return asked.at_s


def by_size(asked: Asked) -> float:
    return asked.cost_s


def serve(asked: list[Asked], key: Callable[[Asked], float]) -> Iterator[tuple[Asked, float, int]]:
    free, coming, waiting = [(0.0, slot) for slot in range(SLOTS)], asked[::-1], list[Asked]()
    heapify(free)
    while coming or waiting:
        now, slot = free[0]
        while coming and (coming[-1].at_s <= now or not waiting):
            waiting.append(coming.pop())
        late = [each for each in waiting if now - each.at_s > TAU_S]
        one = late[0] if late else min(waiting, key=key)
        waiting.remove(one)
        start_s = max(now, one.at_s)
        heapreplace(free, (start_s + one.prefill_s + (one.row.tokens or 0) / TOKENS_PER_S, slot))
        yield one, start_s, slot


class Scene:
    """A scenario that is played; `snapshot(t)` is its state `t` seconds after the start."""

    def __init__(self, load: float) -> None:
        self.asked = list(_asked(load, Random(92)))
        for each, start_s, slot in serve(self.asked, by_arrival):
            each.wait_fcfs_s, each.slot_fcfs = start_s - each.at_s, slot
        for each, start_s, slot in serve(self.asked, by_size):
            took_s = each.prefill_s + (each.row.tokens or 0) / TOKENS_PER_S
            each.start_s, each.end_s = start_s, start_s + took_s
            each.row = replace(
                each.row,
                finished_at=STARTED_AT + each.end_s,
                waited_s=each.wait_s,
                sojourn_s=each.end_s - each.at_s,
                ttft_s=each.wait_s + each.prefill_s,
                dispatched_by="tau" if each.wait_s > TAU_S else "policy",
                slot=slot,
                expected_s=each.cost_s,
            )

    def snapshot(self, t: float) -> Snapshot:
        started = [each for each in self.asked if each.start_s <= t]
        done = sorted((each for each in started if each.end_s <= t), key=lambda each: each.end_s)
        runs = sorted((each for each in started if each.end_s > t), key=lambda each: each.row.slot or 0)
        waits = [each for each in self.asked if each.at_s <= t < each.start_s]
        late = sorted(each.start_s for each in started if each.wait_s > TAU_S)
        queue = self._queue(runs, waits, t)
        kinds = Counter(row.predicted.length_class for row in queue)
        recent = tuple(each.row for each in done[-240:])
        log = [(0.0, "info", f"serving with {SLOTS} slots, policy boost, tau {TAU_S:.0f} s")]
        log += [(at, "info", "tau promoted 1 in the last minute") for at in late]
        busy_s = sum(max(0.0, min(each.end_s, t) - max(each.start_s, t - 300.0)) for each in started)
        state = Snapshot(
            taken_at=STARTED_AT + t,
            daemon_version="0.1.0",
            pid=4242,
            listen="127.0.0.1:7117",
            mode="serving",
            uptime_s=t,
            policy=POLICIES[0],
            policies=POLICIES,
            seldom=("sjf",),
            summaries=SUMMARIES,
            gain=GainState(
                saved_today_s=sum(each.wait_fcfs_s - each.wait_s for each in done), answers_today=len(done)
            ),
            tau=TauState(
                TAU_S,
                TAU_S / 30.0,
                "calibrated",
                len(late),
                sum(at > t - 60.0 for at in late),
                tuple(STARTED_AT + at for at in late[-64:]),
                short_s=2.1,
            ),
            predictor=_predictor(recent, len(done)),
            backends=(_backend(STARTED_AT + t, len(runs)),),
            running=tuple(_running(each, t) for each in runs),
            queue=queue,
            waiting=WaitingState(
                len(queue),
                short=kinds["short"],
                medium=kinds["medium"],
                long=kinds["long"],
                clear_s=sum(each.cost_s for each in (*runs, *waits)) / SLOTS,
            ),
            recent=recent,
            stats=_stats(done[-240:], lambda each: each.wait_s),
            counters=Counters(len(started) + len(waits), len(done)),
            queue_capacity=1024,
            utilisation=min(1.0, busy_s / 300.0 / SLOTS),
            log=tuple(LogEvent(STARTED_AT + at, level, text) for at, level, text in log[-60:]),
            clients=_clients(waits, runs, done),
            programs=_programs(waits, runs, done, t),
            stats_paired=_stats(done, lambda each: each.wait_s),
            stats_fcfs=_stats(done, lambda each: each.wait_fcfs_s),
            in_order=tuple(
                _in_order(each, t) for each in self.asked if each.at_s <= t < each.end_fcfs_s + 600.0
            ),
        )
        return judged(state)

    def _queue(self, runs: list[Asked], waits: list[Asked], t: float) -> tuple[QueuedRequest, ...]:
        at = {each.row.id: rank for rank, each in enumerate(waits, 1)}
        late = {each.row.id for each in waits if t - each.at_s > TAU_S}
        order = sorted(waits, key=lambda each: (each.row.id not in late, by_size(each)))
        start_s = dict(_starts(runs, order, t))
        fcfs_s = dict(_starts(runs, waits, t))
        return tuple(
            QueuedRequest(
                id=each.row.id,
                rank=rank,
                age_s=t - each.at_s,
                endpoint=each.row.endpoint,
                model=each.row.model,
                client=each.row.client,
                predicted=each.row.predicted,
                key=each.cost_s,
                eta_s=start_s[each.row.id],
                eta_low_s=0.6 * start_s[each.row.id],
                eta_high_s=1.3 * start_s[each.row.id] + 1.0,
                ahead=0.8 * (rank - 1),
                tau_s=TAU_S,
                moves=(MoveRecord(STARTED_AT + each.at_s, "submitted"),),
                prompt=each.prompt,
                cause="guard" if each.row.id in late else "size",
                tone="warn" if each.row.id in late else "soft",
                why=f"{rank - 1} requests with a shorter predicted answer go first.",
                rank_fcfs=at[each.row.id],
                eta_fcfs_s=fcfs_s[each.row.id],
                expected_s=each.cost_s,
            )
            for rank, each in enumerate(order, 1)
        )


@cache
def scene(scenario: str) -> Scene:
    return Scene(SCENARIOS[scenario])


@dataclass(slots=True)
class Stage:
    """A scene, and how far it has been watched: seconds since the daemon's start."""

    scene: Scene
    at_s: float

    def advance(self, seconds: float) -> None:
        self.at_s += seconds

    def snapshot(self) -> Snapshot:
        return self.scene.snapshot(self.at_s)


def _programs(waits: list[Asked], runs: list[Asked], done: list[Asked], t: float) -> ProgramsState:
    """Return who had the slots; what was before the scene is a working day, and a report at night."""
    uses: dict[str, ProgramState] = {}
    for name in {each.row.client for each in (*waits, *runs, *done)}:
        own = [each for each in done if each.row.client == name]
        slot_s = sum(min(each.end_s, t) - each.start_s for each in (*own, *runs) if each.row.client == name)
        use = UseState(slot_s, sum(each.wait_fcfs_s - each.wait_s for each in own), len(own))
        nightly = 14 if name.startswith("batch") else 26
        past = (max(0.0, 1.0 - abs(half - nightly) / (4 + 14 * (nightly == 26))) for half in range(47))
        halves = *(round(each * slot_s * (3 if nightly == 14 else 2)) for each in past), round(slot_s)
        waiting, running = (sum(each.row.client == name for each in some) for some in (waits, runs))
        uses[name] = ProgramState(name, running, waiting, use, UseState(float(sum(halves))), halves)
    listed = tuple(sorted(uses.values(), key=lambda use: (-use.hour.slot_s, use.name)))
    return ProgramsState(listed, SLOTS * t, SLOTS * 86_400.0, SLOTS)


def judged(state: Snapshot) -> Snapshot:
    return replace(state, verdict=verdict(state), to_come=tuple(to_come(state)))


# -- what an operator does to a state ---------------------------------------------------------------------


def moved(snapshot: Snapshot, ident: str, kind: str) -> Snapshot:
    (chosen,) = (row for row in snapshot.queue if row.id == ident)
    move, first = MoveRecord(snapshot.taken_at, kind, "by the operator"), kind == "promoted"
    chosen = replace(chosen, promoted=first, held=not first, moves=(*chosen.moves, move))
    others = [row for row in snapshot.queue if row.id != ident]
    rows = [chosen, *others] if first else [*others, chosen]
    return replace(snapshot, queue=tuple(replace(row, rank=rank) for rank, row in enumerate(rows, start=1)))


# -- what is asked, and what it comes to ------------------------------------------------------------------


def _asked(load: float, rng: Random) -> Iterator[Asked]:
    per_s = load * SLOTS * TOKENS_PER_S / MEAN_TOKENS
    peak = per_s * (0.5 + 0.5 * BURST_EVERY_S / BURST_SPAN_S)
    at_s = 0.0
    while load and (at_s := at_s + rng.expovariate(peak)) < SPAN_S:
        if at_s % BURST_EVERY_S < BURST_SPAN_S or rng.random() * peak < per_s / 2:
            yield _one(at_s, rng)


def _one(at_s: float, rng: Random) -> Asked:
    _, client, endpoint, model, median, spread, prompt = rng.choices(KINDS, [each[0] for each in KINDS])[0]
    tokens = max(4, round(median * exp(rng.gauss(0.0, spread))))
    guess = median * (tokens / median) ** 0.6 * exp(rng.gauss(0.0, 0.5))
    prompt_tokens = float(round(exp(rng.uniform(log(20), log(3000)))))
    p_long = 1.0 / (1.0 + (800 / guess) ** 2.2)
    p_short = (1.0 - p_long) / (1.0 + (guess / 200) ** 2.2)
    features = (("characters", prompt_tokens / 9000.0), ("asks for length", 0.4 if guess > 800 else -0.1))
    chances = (p_short, 1.0 - p_long - p_short, p_long)
    predicted = PredictionState(LengthClass.of(round(guess)), *chances, guess, guess * 2.1, "scene", features)
    row = FinishedRequest(
        f"{rng.getrandbits(32):08x}",
        0.0,
        "completed",
        200,
        endpoint,
        model,
        client,
        predicted,
        0.0,
        0.0,
        tokens=tokens,
        backend="local",
        real_class=LengthClass.of(tokens),
    )
    prefill_s = 0.08 + prompt_tokens / 2400.0
    return Asked(row, at_s, prompt, prefill_s + guess / TOKENS_PER_S, prefill_s)


def _starts(runs: list[Asked], order: Iterable[Asked], t: float) -> Iterator[tuple[str, float]]:
    """Yield when requests would start in an order, in seconds from now, if all took as long as predicted."""
    free = [max(0.3, each.start_s + each.cost_s - t) for each in runs] + [0.0] * (SLOTS - len(runs))
    heapify(free)
    for each in order:
        yield each.row.id, free[0]
        heapreplace(free, free[0] + each.cost_s)


def _in_order(asked: Asked, t: float) -> ArrivalTurn:
    begun_at = STARTED_AT + asked.at_s + asked.wait_fcfs_s
    ended_at, known = STARTED_AT + asked.end_fcfs_s, asked.end_fcfs_s <= t
    return ArrivalTurn(asked.row.id, "local", asked.slot_fcfs, asked.wait_fcfs_s, begun_at, ended_at, known)


def _running(asked: Asked, t: float) -> RunningRequest:
    row, decoding_s = asked.row, t - asked.start_s - asked.prefill_s
    tokens = int(max(0.0, decoding_s) * TOKENS_PER_S)
    left_s = max(row.predicted.expected_tokens - tokens, 0.15 * tokens) / TOKENS_PER_S
    return RunningRequest(
        id=row.id,
        backend="local",
        state="decoding" if decoding_s > 0.0 else "prefill",
        endpoint=row.endpoint,
        model=row.model,
        client=row.client,
        predicted=row.predicted,
        waited_s=row.waited_s,
        elapsed_s=t - asked.start_s,
        ttft_s=asked.wait_s + asked.prefill_s if decoding_s > 0.0 else None,
        tokens=tokens,
        tokens_per_s=TOKENS_PER_S if decoding_s > 0.0 else None,
        eta_s=left_s,
        eta_low_s=0.6 * left_s,
        eta_high_s=2.2 * left_s,
        dispatched_by=row.dispatched_by,
        moves=(
            MoveRecord(STARTED_AT + asked.at_s, "submitted"),
            MoveRecord(STARTED_AT + asked.start_s, "dispatched", row.dispatched_by),
        ),
        prompt=asked.prompt,
        slot=row.slot,
    )


def _clients(waits: list[Asked], runs: list[Asked], done: list[Asked]) -> tuple[ClientState, ...]:
    waiting, running = (Counter(each.row.client for each in of) for of in (waits, runs))
    had: Counter[str] = Counter()
    for each in done:
        had[each.row.client] += each.row.tokens or 0
    states = (
        replace(
            RULES.get(name, ClientState(name)),
            waiting=waiting[name],
            running=running[name],
            tokens=tokens,
        )
        for name, tokens in had.items()
    )
    return tuple(sorted(states, key=lambda each: (-each.waiting - each.running, each.name)))


def _percentiles(values: Iterable[float]) -> Percentiles:
    ordered = sorted(values)
    if not ordered:
        return Percentiles()
    return Percentiles(len(ordered), *(percentile(ordered, share) for share in (0.50, 0.95, 0.99)))


def _stats(done: list[Asked], wait_s: Callable[[Asked], float]) -> tuple[ClassStats, ...]:
    of = {name: [each for each in done if each.row.real_class == name] for name in LengthClass}
    return tuple(
        ClassStats(
            name,
            _percentiles(wait_s(each) for each in mine),
            _percentiles(each.row.sojourn_s for each in mine),
        )
        for name, mine in of.items()
    )


def _predictor(recent: tuple[FinishedRequest, ...], judged: int) -> PredictorState:
    covered = [(each.tokens or 0) <= each.predicted.q90_tokens for each in recent]
    return (
        PredictorState("scene", judged, 0.93, sum(covered) / len(covered))
        if covered
        else PredictorState("scene")
    )


def _backend(now: float, busy: int) -> BackendState:
    return BackendState(
        name="local",
        kind="ollama",
        url="http://127.0.0.1:11434",
        state="up",
        slots=SLOTS,
        busy=busy,
        version="0.12.6",
        models=(
            LoadedModel("llama3.1:8b", int(5.9 * GIB), int(5.9 * GIB), 8192),
            LoadedModel("qwen2.5-coder:7b", int(5.2 * GIB), int(4.4 * GIB), 16384),
        ),
        decode_tokens_per_s=TOKENS_PER_S,
        prefill_tokens_per_s=2400.0,
        swaps_total=3,
    )
