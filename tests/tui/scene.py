"""What a dashboard is shown in tests: a developer's machine, as the scheduler that serves it has it.

The simulator lets the real scheduler work through seeded requests once; a state at any moment is read off it.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import exp, log
from random import Random

import numpy as np
from clairvoyant_lab.simulator.engine import Run, SlotSimulation
from clairvoyant_lab.simulator.workload import LONG, MEDIUM, SHORT, Predictions, Workload

from clairvoyant_cli.proxy.observing.gain import Gain, Waits
from clairvoyant_cli.proxy.observing.queue_rows import why
from clairvoyant_cli.proxy.observing.status_sentence import verdict
from clairvoyant_cli.scheduler.explain import Standing, Standings
from clairvoyant_cli.scheduler.job import Job
from clairvoyant_cli.scheduler.policy import POLICIES
from clairvoyant_cli.scheduler.queue import Scheduler
from clairvoyant_cli.scheduler.start_forecast import starts
from clairvoyant_cli.state.snapshot import (
    BackendState,
    ClassStats,
    ClientState,
    Counters,
    FinishedRequest,
    LoadedModel,
    LogEvent,
    MoveRecord,
    Percentiles,
    PolicyOutlook,
    PredictionState,
    PredictorState,
    QueuedRequest,
    RunningRequest,
    Snapshot,
    TauState,
    WaitingState,
)
from predictor.record import LengthClass
from profiles.percentiles import percentile

_WORDS = {"policy": "short", "overdue": "guard"}
SCENARIOS = {"busy": 0.8, "overloaded": 1.25, "empty": 0.0}
"""What is asked, as a share of what the slots can do."""

POLICY = "bounded"
SLOTS, TOKENS_PER_S, TAU_S = 4, 58.0, 90.0
WARM_S, SPAN_S = 900.0, 1400.0
STARTED_AT = 1_790_000_000.0 - WARM_S
BURST_EVERY_S, BURST_SPAN_S = 90.0, 4.0
GIB = 2**30
CLASSES = {LengthClass.SHORT: SHORT, LengthClass.MEDIUM: MEDIUM, LengthClass.LONG: LONG}
KINDS = (  # share, client, endpoint, model, median tokens, spread, what it might have asked
    (0.30, "zed", "/v1/completions", "qwen2.5-coder:7b", 60, 0.7, "def parse_header(line: bytes) ->"),
    (0.24, "open-webui", "/api/chat", "llama3.1:8b", 190, 0.9, "What does a 429 mean?"),
    (0.16, "home-assist", "/api/generate", "llama3.1:8b", 45, 0.5, "Turn the light in the kitchen off."),
    (0.14, "cursor", "/v1/chat/completions", "qwen2.5-coder:7b", 520, 0.7, "Write tests for the queue."),
    (0.10, "notes-cli", "/v1/messages", "llama3.1:8b", 950, 0.5, "Summarise these minutes in detail."),
    (0.06, "batch-report", "/v1/responses", "llama3.1:8b", 1700, 0.4, "Write the quarterly report."),
)
MEAN_TOKENS = 390.0
RULES = {
    each.name: each
    for each in (
        ClientState("batch-report", weight=0.5, max_running=1, tau_s=3600.0, priority=(50, 100), ruled=True),
        ClientState("cursor", weight=2.0, max_waiting=60, ruled=True),
        ClientState("home-assist", priority=(-10, 100), ruled=True),
    )
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, before anybody served it; `at_s` is the daemon's uptime."""

    id: str
    at_s: float
    client: str
    endpoint: str
    model: str
    prompt: str
    tokens: int
    prompt_tokens: float
    streaming: bool
    predicted: PredictionState

    @property
    def prefill_s(self) -> float:
        """How long its prompt takes."""
        return 0.08 + self.prompt_tokens / 2400.0


class Scene:
    """What comes of a scenario; `snapshot` says how it stands after so many seconds."""

    def __init__(self, load: float) -> None:
        self.load = load
        self.asked = list(_asked(load, Random(7)))
        self.served, self.by_arrival = (self._run(policy) for policy in (POLICY, "fcfs"))
        self.slots = self._slots()

    def _run(self, policy: str) -> Run:
        asked = self.asked
        prefill_s = np.array([each.prefill_s for each in asked])
        tokens = np.array([each.tokens for each in asked], dtype=np.float64)
        expected = np.array([each.predicted.expected_tokens for each in asked])
        workload = Workload(
            np.array([each.at_s for each in asked]),
            prefill_s + tokens / TOKENS_PER_S,
            np.array([CLASSES[LengthClass.of(each.tokens)] for each in asked], dtype=np.int64),
            tokens,
        )
        p_long = np.array([each.predicted.p_long for each in asked])
        cost_s = expected / TOKENS_PER_S
        scheduler = Scheduler(
            POLICIES[policy], workers={"local": SLOTS}, tau_s=TAU_S, capacity=len(asked) + 1
        )
        predictions = Predictions(p_long, cost_s, 2.1 * cost_s, expected)
        return SlotSimulation(scheduler, workload, predictions).run()

    def _slots(self) -> list[int]:
        free_from, slots = [0.0] * SLOTS, [0] * len(self.asked)
        for number in np.argsort(self.served.start_s, kind="stable"):
            slot = next(i for i in range(SLOTS) if free_from[i] <= self.served.start_s[number] + 1e-9)
            slots[number], free_from[slot] = slot, float(self.served.finish_s[number])
        return slots

    @cached_property
    def finished(self) -> list[FinishedRequest]:
        """Every request as it ended."""
        return [
            FinishedRequest(
                id=asked.id,
                finished_at=STARTED_AT + end_s,
                outcome="completed",
                status=200,
                endpoint=asked.endpoint,
                model=asked.model,
                client=asked.client,
                predicted=asked.predicted,
                waited_s=start_s - asked.at_s,
                sojourn_s=end_s - asked.at_s,
                ttft_s=start_s + asked.prefill_s - asked.at_s,
                tokens=asked.tokens,
                dispatched_by="tau" if start_s - asked.at_s > TAU_S else "policy",
                real_class=LengthClass.of(asked.tokens),
                backend="local",
                slot=slot,
                expected_s=asked.prefill_s + asked.predicted.expected_tokens / TOKENS_PER_S,
            )
            for asked, slot, start_s, end_s in zip(
                self.asked,
                self.slots,
                self.served.start_s.tolist(),
                self.served.finish_s.tolist(),
                strict=True,
            )
        ]

    def snapshot(self, t: float) -> Snapshot:
        """Return the state `t` seconds after the start."""
        served = self.served
        arrived, started, ended = (
            column <= t for column in (served.workload.arrival_s, served.start_s, served.finish_s)
        )
        late = np.sort(served.start_s[started & (served.wait_s > TAU_S)]).tolist()
        done = np.flatnonzero(ended)
        newest = done[np.argsort(served.finish_s[done], kind="stable")][-240:]
        recent = tuple(self.finished[number] for number in newest)
        running = sorted(np.flatnonzero(started & ~ended).tolist(), key=self.slots.__getitem__)
        queue = self._queue(running, np.flatnonzero(arrived & ~started).tolist(), t)
        kinds = Counter(row.predicted.length_class for row in queue)
        left_s = sum(self.asked[n].predicted.expected_tokens / TOKENS_PER_S for n in (*running,))
        left_s += sum(row.predicted.expected_tokens for row in queue) / TOKENS_PER_S
        log = [(0.0, "info", f"serving with {SLOTS} slots, policy {POLICY}, tau {TAU_S:.0f} s")]
        log += [(at, "tau", "one has waited longer than tau: it goes next") for at in late]
        gain = self._gain(t)
        since = t - 300.0
        busy_s = np.minimum(served.finish_s, t) - np.maximum(served.start_s, since)
        state = Snapshot(
            taken_at=STARTED_AT + t,
            daemon_version="0.1.0",
            pid=4242,
            listen="127.0.0.1:7117",
            mode="serving",
            uptime_s=t,
            policy=POLICY,
            policies=(POLICY, "fcfs", "sjf"),
            summaries=tuple(POLICIES[name].summary for name in (POLICY, "fcfs", "sjf")),
            gain=gain.state(),
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
            backends=(_backend(STARTED_AT + t, len(running)),),
            running=tuple(self._running(number, t) for number in running),
            queue=queue,
            waiting=WaitingState(
                len(queue),
                short=kinds["short"],
                medium=kinds["medium"],
                long=kinds["long"],
                clear_s=left_s / SLOTS,
            ),
            recent=recent,
            stats=tuple(_stats(name, recent) for name in CLASSES),
            counters=Counters(int(arrived.sum()), len(done)),
            queue_capacity=1024,
            utilisation=min(1.0, float(np.clip(busy_s, 0.0, None).sum()) / 300.0 / SLOTS),
            log=tuple(LogEvent(STARTED_AT + at, level, text) for at, level, text in log[-60:]),
            clients=self._clients(arrived & ~started, started & ~ended, done),
            stats_paired=gain.by_class[0],
            stats_fcfs=gain.by_class[1],
        )
        return judged(state)

    def _running(self, number: int, t: float) -> RunningRequest:
        asked, start_s = self.asked[number], float(self.served.start_s[number])
        decoding_s = t - start_s - asked.prefill_s
        tokens = int(max(0.0, decoding_s) * TOKENS_PER_S)
        ended = self.finished[number]
        return RunningRequest(
            id=asked.id,
            backend="local",
            state="decoding" if decoding_s > 0.0 else "prefill",
            endpoint=asked.endpoint,
            model=asked.model,
            client=asked.client,
            predicted=asked.predicted,
            waited_s=ended.waited_s,
            elapsed_s=t - start_s,
            ttft_s=asked.prefill_s if decoding_s > 0.0 else None,
            tokens=tokens,
            tokens_per_s=TOKENS_PER_S if decoding_s > 0.0 else None,
            eta_s=(left_s := max(asked.predicted.expected_tokens - tokens, 0.15 * tokens) / TOKENS_PER_S),
            eta_low_s=0.6 * left_s,
            eta_high_s=2.2 * left_s,
            dispatched_by=ended.dispatched_by,
            streaming=asked.streaming,
            moves=(
                MoveRecord(STARTED_AT + asked.at_s, "submitted"),
                MoveRecord(STARTED_AT + start_s, "dispatched", ended.dispatched_by),
            ),
            prompt=asked.prompt,
            slot=self.slots[number],
        )

    def _scheduler(self, running: list[int], waiting: list[int], t: float) -> Scheduler:
        """Return the scheduler with what runs and waits."""
        scheduler = Scheduler(
            POLICIES[POLICY], workers={"local": SLOTS}, tau_s=TAU_S, capacity=len(waiting) + SLOTS
        )
        for number in (*running, *waiting):
            asked = self.asked[number]
            guess = asked.predicted.expected_tokens
            cost_s = asked.prefill_s + guess / TOKENS_PER_S
            scheduler.submit(
                Job(asked.id, asked.at_s, asked.predicted.p_long, cost_s, tokens=guess), asked.at_s
            )
            if number in running:
                scheduler.next(float(self.served.start_s[number]))
        return scheduler

    def outlook(self, t: float) -> tuple[PolicyOutlook, ...]:
        """Return when queued requests would start under each policy."""
        served = self.served
        arrived, started, ended = (
            column <= t for column in (served.workload.arrival_s, served.start_s, served.finish_s)
        )
        waiting = np.flatnonzero(arrived & ~started).tolist()
        scheduler = self._scheduler(np.flatnonzero(started & ~ended).tolist(), waiting, t)
        kind_of = {self.asked[number].id: self.asked[number].predicted.length_class for number in waiting}
        outlook = []
        for name in (POLICY, "fcfs", "sjf"):
            at = list(starts(scheduler, POLICIES[name], t))
            short, long = ([s for job_id, s in at if kind_of[job_id] == kind] for kind in ("short", "long"))
            short_s, long_s = _percentiles(short).p50, _percentiles(long).p50
            outlook.append(PolicyOutlook(name, short_s, long_s))
        return tuple(outlook)

    def _queue(self, running: list[int], waiting: list[int], t: float) -> tuple[QueuedRequest, ...]:
        """Return the queued requests, as the scheduler has them."""
        scheduler = self._scheduler(running, waiting, t)
        number_of = {self.asked[number].id: number for number in waiting}
        left_s = sum(max(0.3, e.job.cost_s - t + e.started_s) for e in scheduler.running.values())
        return tuple(
            self._queued(number_of[each.entry.job.id], each, scheduler, t)
            for each in Standings(scheduler, t, left_s, SLOTS)
        )

    def _queued(self, number: int, standing: Standing, scheduler: Scheduler, t: float) -> QueuedRequest:
        asked = self.asked[number]
        return QueuedRequest(
            id=asked.id,
            rank=standing.rank,
            age_s=t - asked.at_s,
            endpoint=asked.endpoint,
            model=asked.model,
            client=asked.client,
            predicted=asked.predicted,
            key=standing.entry.key,
            eta_s=standing.start.mid_s if standing.start else None,
            eta_low_s=standing.start.low_s if standing.start else None,
            eta_high_s=standing.start.high_s if standing.start else None,
            ahead=standing.ahead,
            tau_s=standing.tau_s,
            streaming=asked.streaming,
            prompt_tokens=asked.prompt_tokens,
            moves=(MoveRecord(STARTED_AT + asked.at_s, "submitted"),),
            prompt=asked.prompt,
            cause=_WORDS.get(standing.cause.value, standing.cause.value),
            why=why(standing, scheduler),
            rank_fcfs=standing.rank_fcfs,
            eta_fcfs_s=standing.start_fcfs_s,
        )

    def _clients(self, waits: np.ndarray, runs: np.ndarray, done: np.ndarray) -> tuple[ClientState, ...]:
        waiting, running = (Counter(self.asked[n].client for n in np.flatnonzero(of)) for of in (waits, runs))
        had: Counter[str] = Counter()
        for number in done:
            had[self.asked[number].client] += self.asked[number].tokens
        states = (
            replace(
                RULES.get(name, ClientState(name)),
                waiting=waiting[name],
                running=running[name],
                tokens=had[name],
            )
            for name in had
        )
        return tuple(sorted(states, key=lambda each: (-each.waiting - each.running, each.name)))

    def _gain(self, t: float) -> Gain:
        """Return what the order was worth to those that ended within the hour."""
        clock = [STARTED_AT]
        gain = Gain(lambda: clock[0])
        for number in np.argsort(self.served.finish_s, kind="stable").tolist():
            if self.served.finish_s[number] > t:
                break
            clock[0] = STARTED_AT + float(self.served.finish_s[number])
            kind = LengthClass.of(self.asked[number].tokens)
            waited_s, in_order_s = float(self.served.wait_s[number]), float(self.by_arrival.wait_s[number])
            gain.enter(kind, Waits(clock[0], waited_s, in_order_s - waited_s))
        gain.state()
        return gain


@cache
def scene(scenario: str) -> Scene:
    """Return a scenario played to its end."""
    return Scene(SCENARIOS[scenario])


@dataclass(slots=True)
class Stage:
    """A scene, and how far it has been watched: seconds since the daemon's start."""

    scene: Scene
    at_s: float

    def advance(self, seconds: float) -> None:
        """Watch on."""
        self.at_s += seconds

    def snapshot(self) -> Snapshot:
        """Return the state now."""
        return self.scene.snapshot(self.at_s)


def judged(state: Snapshot) -> Snapshot:
    """Return a state with the daemon's verdict on it."""
    return replace(state, verdict=verdict(state))


# -- what an operator does to a state ---------------------------------------------------------------------


def promoted(snapshot: Snapshot, ident: str) -> Snapshot:
    """Return the state once a waiting request was sent to the top."""
    return _moved(snapshot, ident, MoveRecord(snapshot.taken_at, "promoted", "by the operator"), first=True)


def held(snapshot: Snapshot, ident: str) -> Snapshot:
    """Return the state once a waiting request was held."""
    return _moved(snapshot, ident, MoveRecord(snapshot.taken_at, "held", "by the operator"), first=False)


def _moved(snapshot: Snapshot, ident: str, move: MoveRecord, *, first: bool) -> Snapshot:
    (chosen,) = (row for row in snapshot.queue if row.id == ident)
    others = [row for row in snapshot.queue if row.id != ident]
    chosen = replace(chosen, promoted=first, held=not first, moves=(*chosen.moves, move))
    rows = [chosen, *others] if first else [*others, chosen]
    return replace(snapshot, queue=tuple(replace(row, rank=rank) for rank, row in enumerate(rows, start=1)))


def cancelled(snapshot: Snapshot, ident: str) -> Snapshot:
    """Return the state once a running request was cancelled."""
    (gone,) = (row for row in snapshot.running if row.id == ident)
    ended = replace(
        snapshot.recent[-1], id=ident, outcome="client_cancelled", status=499, tokens=None, ttft_s=None
    )
    running = tuple(row for row in snapshot.running if row is not gone)
    return replace(snapshot, running=running, recent=(*snapshot.recent, ended))


# -- what is asked, and what it comes to ------------------------------------------------------------------


def _asked(load: float, rng: Random) -> Iterator[Asked]:
    """Yield seeded requests: half of them alone, half in bursts."""
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
    kind = LengthClass.of(round(guess))
    predicted = PredictionState(kind, *chances, guess, guess * 2.1, "scene", features)
    return Asked(
        f"{rng.getrandbits(32):08x}",
        at_s,
        client,
        endpoint,
        model,
        prompt,
        tokens,
        prompt_tokens,
        rng.random() < 0.7,
        predicted,
    )


def _percentiles(values: list[float]) -> Percentiles:
    ordered = sorted(values)
    if not ordered:
        return Percentiles()
    return Percentiles(len(ordered), *(percentile(ordered, share) for share in (0.50, 0.95, 0.99)))


def _stats(name: LengthClass, recent: tuple[FinishedRequest, ...]) -> ClassStats:
    mine = [each for each in recent if LengthClass.of(each.tokens or 0) is name]
    return ClassStats(
        name,
        _percentiles([each.waited_s for each in mine]),
        _percentiles([each.sojourn_s for each in mine]),
        _percentiles([each.ttft_s or 0.0 for each in mine]),
    )


def _predictor(recent: tuple[FinishedRequest, ...], judged: int) -> PredictorState:
    covered = [(each.tokens or 0) <= each.predicted.q90_tokens for each in recent]
    if not covered:
        return PredictorState("scene")
    return PredictorState("scene", judged, 0.93, sum(covered) / len(covered))


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
            LoadedModel("llama3.1:8b", int(5.9 * GIB), int(5.9 * GIB), 8192, now + 254.0),
            LoadedModel("qwen2.5-coder:7b", int(5.2 * GIB), int(4.4 * GIB), 16384, now + 288.0),
        ),
        decode_tokens_per_s=TOKENS_PER_S,
        prefill_tokens_per_s=2400.0,
        swaps_total=3,
    )
