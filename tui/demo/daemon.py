"""The simulated daemon: traffic through two lanes, shown as snapshots, obeying actions."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, replace

from tui.demo.lane import Ask, Lane, Ticket
from tui.demo.traffic import TOKENS_PER_S, Traffic
from tui.snapshot import (
    BackendState,
    ClassStats,
    ClientState,
    Counters,
    FinishedRequest,
    LoadedModel,
    LogEvent,
    Percentiles,
    PredictorState,
    QueuedRequest,
    RunningRequest,
    Snapshot,
    TauState,
)
from tui.source import Action, ActionResult, Disconnected, Verb

TICK_S = 0.1
_CLASSES = ("short", "medium", "long")
_GIB = 2**30
_UTILISATION_OVER_S = 300.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """What the demo plays. `backlog` requests wait from the start; `load` is offered per slot."""

    load: float = 0.7
    backlog: int = 0
    slots: int = 4
    tau_s: float = 60.0
    warm_s: float = 900.0


SCENARIOS = {
    "busy": Scenario(),
    "overloaded": Scenario(load=1.25, backlog=90, tau_s=90.0),
    "empty": Scenario(load=0.0, warm_s=5.0),
}


_RULES = {
    each.name: each
    for each in (
        ClientState("batch-report", weight=0.5, max_running=1, tau_s=3600.0, priority=(50, 100), ruled=True),
        ClientState("cursor", weight=2.0, max_waiting=60, tokens_per_day=60_000, ruled=True),
        ClientState("home-assist", priority=(-10, 100), tokens_per_day=5_000, ruled=True),
    )
}


class DemoDaemon:
    """A Source without a daemon. The same seed and scenario give the same snapshots."""

    local = True

    def __init__(self, scenario: Scenario, *, seed: int = 7, start_at: float = 1_790_000_000.0) -> None:
        """Start, and play `scenario.warm_s` seconds so that there is something to see."""
        self.where = "demo"
        self.mode = "serving"
        self._scenario = scenario
        self._traffic = Traffic(seed, scenario.load, scenario.slots)
        self._lane = Lane("sjf", scenario.slots, scenario.tau_s)
        self._shadow = Lane("fcfs", scenario.slots, None)
        self._recent: deque[FinishedRequest] = deque(maxlen=240)
        self._shadow_waits: dict[str, deque[float]] = {name: deque(maxlen=200) for name in _CLASSES}
        self._log: deque[LogEvent] = deque(maxlen=60)
        self._submitted = self._completed = self._cancelled = self._rejected = 0
        self._fired = 0
        self._had: Counter[str] = Counter()
        self._utilisation = min(1.0, scenario.load)
        self._now = self._started_at = start_at - scenario.warm_s
        self._ticks = 0
        self._say("info", f"serving with {scenario.slots} slots, policy sjf, tau {scenario.tau_s:.0f} s")
        self.advance(scenario.warm_s - TICK_S)
        for index in range(scenario.backlog):
            self._submit([self._traffic.ask(self._now - 50.0 * (1.0 - index / scenario.backlog))])
        self.advance(TICK_S)

    # -- time -------------------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Play on, in steps of `TICK_S`."""
        for _ in range(round(seconds / TICK_S)):
            self._ticks += 1
            self._now = self._started_at + self._ticks * TICK_S
            self._submit(self._traffic.until(self._now))
            self._lane.advance(self._now)
            self._shadow.advance(self._now)
            busy = len(self._lane.running) / self._scenario.slots
            self._utilisation += (busy - self._utilisation) * TICK_S / _UTILISATION_OVER_S
            self._collect()

    async def stream(self) -> AsyncIterator[Snapshot | Disconnected]:
        """Yield a snapshot whenever it is asked for one, in real time."""
        clock = asyncio.get_running_loop().time
        played = clock()
        while True:
            yield self.snapshot()
            await asyncio.sleep(TICK_S)
            ticks = int((clock() - played) / TICK_S)
            self.advance(ticks * TICK_S)
            played += ticks * TICK_S

    def _submit(self, asks: Iterable[Ask]) -> None:
        for ask in asks:
            if self.mode == "draining":
                self._rejected += 1
                continue
            self._submitted += 1
            self._lane.submit(ask)
            self._shadow.submit(ask)

    def _collect(self) -> None:
        for ticket, ended_at in self._lane.finished:
            self._completed += 1
            self._had[ticket.ask.client] += ticket.ask.tokens
            self._recent.append(_finished(ticket, ended_at))
        for ticket, _ in self._shadow.finished:
            waits = self._shadow_waits[_class_of(ticket.ask.tokens)]
            waits.append(ticket.started_at - ticket.ask.arrived_at)
        self._lane.finished.clear()
        self._shadow.finished.clear()
        for at, ident in list(self._lane.firings)[len(self._lane.firings) - self._lane.fired + self._fired :]:
            self._say("tau", f"{ident} has waited longer than tau and goes next", at)
        self._fired = self._lane.fired

    def _say(self, level: str, text: str, at: float | None = None) -> None:
        self._log.append(LogEvent(at if at is not None else self._now, level, text))

    # -- actions ----------------------------------------------------------------------------------------

    async def act(self, action: Action) -> ActionResult:
        """Do what the operator asks."""
        if action.id is not None:
            return self._act_on(action, action.id)
        lane = self._lane
        if action.verb is Verb.POLICY:
            lane.policy = str(action.value)
        elif action.verb is Verb.TAU:
            lane.tau_s = float(action.value or 0.0) or None
        else:
            self.mode = {Verb.PAUSE: "paused", Verb.DRAIN: "draining"}.get(action.verb, "serving")
            lane.paused = self.mode == "paused"
        self._say(
            "info", f"operator: {action.verb} {action.value if action.value is not None else ''}".rstrip()
        )
        return ActionResult(True)

    def _act_on(self, action: Action, ident: str) -> ActionResult:
        if action.verb is Verb.CANCEL:
            return self._cancel(ident)
        ticket = self._lane.waiting.get(ident)
        if ticket is None:
            return ActionResult(False, f"{ident} does not wait any more")
        if action.verb is Verb.PROMOTE:
            self._lane.promote(ticket, self._now)
        elif action.verb is Verb.PRIORITY:
            ticket.priority = int(action.value or 0)
            ticket.note(self._now, "reprioritised", f"{ticket.priority:+d}")
        else:
            ticket.held = action.verb is Verb.HOLD
            ticket.note(self._now, "held" if ticket.held else "released", "by the operator")
        self._say("info", f"operator: {action.verb} {ident}")
        return ActionResult(True)

    def _cancel(self, ident: str) -> ActionResult:
        lane = self._lane
        ticket = lane.waiting.pop(ident, None)
        if ticket is None:
            slot = next((slot for slot, each in lane.running.items() if each.ask.id == ident), None)
            if slot is None:
                return ActionResult(False, f"{ident} is gone already")
            ticket = lane.running.pop(slot)
        self._cancelled += 1
        self._recent.append(_finished(ticket, self._now, "client_cancelled"))
        self._say("info", f"operator: cancel {ident}")
        return ActionResult(True)

    # -- the picture ------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the state now."""
        lane, scenario = self._lane, self._scenario
        busy = len(lane.running)
        return Snapshot(
            taken_at=self._now,
            daemon_version="0.1.0",
            pid=4242,
            listen="127.0.0.1:11434",
            mode=self.mode,
            uptime_s=self._now - self._started_at,
            policy=lane.policy,
            policies=("sjf", "fcfs"),
            tau=self._tau(),
            predictor=self._predictor(),
            backends=(_backend(self._now, scenario.slots, busy),),
            running=tuple(_running(lane.running[slot], self._now) for slot in sorted(lane.running)),
            queue=tuple(self._queue()),
            recent=tuple(self._recent),
            stats=tuple(self._stats(name) for name in _CLASSES),
            counters=Counters(
                self._submitted, self._completed, client_cancelled=self._cancelled, rejected=self._rejected
            ),
            queue_capacity=1024,
            utilisation=max(self._utilisation, scenario.load if scenario.load > 1.0 else 0.0),
            log=tuple(self._log),
            clients=self._clients(),
            stats_fcfs=tuple(
                ClassStats(name, _percentiles(self._shadow_waits[name]), Percentiles(), Percentiles())
                for name in _CLASSES
            ),
        )

    def _clients(self) -> tuple[ClientState, ...]:
        waiting = Counter(ticket.ask.client for ticket in self._lane.waiting.values())
        running = Counter(ticket.ask.client for ticket in self._lane.running.values())
        states = (
            replace(
                _RULES.get(name, ClientState(name)),
                waiting=waiting[name],
                running=running[name],
                tokens_today=had,
            )
            for name, had in self._had.items()
        )
        return tuple(sorted(states, key=lambda each: (-each.waiting - each.running, each.name)))

    def _queue(self) -> Iterable[QueuedRequest]:
        ahead_s = 0.0
        slots = self._scenario.slots
        for rank, ticket in enumerate(self._lane.order(self._now), start=1):
            ask = ticket.ask
            yield QueuedRequest(
                id=ask.id,
                rank=rank,
                age_s=self._now - ask.arrived_at,
                endpoint=ask.endpoint,
                model=ask.model,
                client=ask.client,
                predicted=ask.predicted,
                key=ask.predicted.p_long if self._lane.policy == "sjf" else ask.arrived_at,
                eta_s=None if ticket.held else ahead_s,
                held=ticket.held,
                promoted=bool(ticket.promoted),
                priority=ticket.priority,
                streaming=ask.streaming,
                prompt_tokens=ask.prompt_tokens,
                moves=tuple(ticket.moves),
                prompt=ask.text,
            )
            ahead_s += ask.predicted.expected_tokens / TOKENS_PER_S / slots

    def _tau(self) -> TauState:
        firings = [at for at, _ in self._lane.firings]
        return TauState(
            tau_s=self._lane.tau_s,
            mu_short_s=self._lane.tau_s / 30.0 if self._lane.tau_s else None,
            source="calibrated",
            firings_total=self._lane.fired,
            firings_last_minute=sum(1 for at in firings if self._now - at <= 60.0),
            recent=tuple(firings),
        )

    def _predictor(self) -> PredictorState:
        judged = [each for each in self._recent if each.tokens is not None]
        held = sum(1 for each in judged if (each.tokens or 0) <= each.predicted.q90_tokens)
        return PredictorState(
            name="demo",
            judged=self._completed,
            ranking_accuracy=_ranking(judged),
            q90_coverage=held / len(judged) if judged else None,
        )

    def _stats(self, name: str) -> ClassStats:
        mine = [each for each in self._recent if each.tokens is not None and _class_of(each.tokens) == name]
        return ClassStats(
            name,
            _percentiles([each.waited_s for each in mine]),
            _percentiles([each.sojourn_s for each in mine]),
            _percentiles([each.ttft_s or 0.0 for each in mine]),
        )


def _class_of(tokens: int) -> str:
    return "short" if tokens < 200 else "medium" if tokens < 800 else "long"


def _ranking(judged: Sequence[FinishedRequest]) -> float | None:
    short = [each.predicted.p_long for each in judged if (each.tokens or 0) < 200]
    long = [each.predicted.p_long for each in judged if (each.tokens or 0) >= 800]
    pairs = [(a < b) + 0.5 * (a == b) for a in short for b in long]
    return sum(pairs) / len(pairs) if pairs else None


def _percentiles(values: Iterable[float]) -> Percentiles:
    ranked = sorted(values)
    if not ranked:
        return Percentiles()
    p50, p95, p99 = (ranked[min(len(ranked) - 1, int(len(ranked) * share))] for share in (0.50, 0.95, 0.99))
    return Percentiles(len(ranked), p50, p95, p99)


def _finished(ticket: Ticket, ended_at: float, outcome: str = "completed") -> FinishedRequest:
    ask = ticket.ask
    done = outcome == "completed"
    started_at = ticket.started_at or ended_at
    return FinishedRequest(
        id=ask.id,
        finished_at=ended_at,
        outcome=outcome,
        status=200 if done else 499,
        endpoint=ask.endpoint,
        model=ask.model,
        client=ask.client,
        predicted=ask.predicted,
        waited_s=started_at - ask.arrived_at,
        sojourn_s=ended_at - ask.arrived_at,
        ttft_s=ask.prefill_s + started_at - ask.arrived_at if done else None,
        tokens=ask.tokens if done else None,
        dispatched_by=ticket.reason,
    )


def _running(ticket: Ticket, now: float) -> RunningRequest:
    ask = ticket.ask
    elapsed_s = now - ticket.started_at
    decoding_s = elapsed_s - ask.prefill_s
    decoding = decoding_s > 0.0
    tokens = int(max(0.0, decoding_s) * ask.tokens_per_s)
    left = max(ask.predicted.expected_tokens - tokens, 0.15 * tokens)
    return RunningRequest(
        id=ask.id,
        backend="local",
        state="decoding" if decoding else "prefill",
        endpoint=ask.endpoint,
        model=ask.model,
        client=ask.client,
        predicted=ask.predicted,
        waited_s=ticket.started_at - ask.arrived_at,
        elapsed_s=elapsed_s,
        ttft_s=ask.prefill_s if decoding else None,
        tokens=tokens,
        tokens_per_s=ask.tokens_per_s if decoding else None,
        eta_s=left / ask.tokens_per_s,
        dispatched_by=ticket.reason,
        streaming=ask.streaming,
        moves=tuple(ticket.moves),
        prompt=ask.text,
        slot=ticket.slot,
    )


def _backend(now: float, slots: int, busy: int) -> BackendState:
    return BackendState(
        name="local",
        kind="ollama",
        url="http://127.0.0.1:11435",
        state="up",
        slots=slots,
        busy=busy,
        version="0.12.6",
        models=(
            LoadedModel("llama3.1:8b", int(5.9 * _GIB), int(5.9 * _GIB), 8192, now + 254.0),
            LoadedModel("qwen2.5-coder:7b", int(5.2 * _GIB), int(4.4 * _GIB), 16384, now + 288.0),
        ),
        decode_tokens_per_s=TOKENS_PER_S,
        prefill_tokens_per_s=2400.0,
        swaps_total=3,
    )
