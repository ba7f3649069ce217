"""The event loop: K slots on several workers, one job a slot, in virtual time.

Rule 1: completions lie in a heap as `(time, sequence, event)`, arrivals are a column. Completions come before
arrivals of the same instant, and every event of an instant before the decision: a burst is seen whole.
Rule 2: all decisions are the scheduler's, the object that serves. The engine only makes time pass.
Rule 3: the same workload, prediction and scheduler give the same run.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from clairvoyant_cli.research.simulator.predictions import Predictions
from clairvoyant_cli.research.simulator.workload import Floats, Ints, Workload
from clairvoyant_cli.scheduler.job import Job
from clairvoyant_cli.scheduler.kept_contexts import KeptContexts, price_of_cut
from clairvoyant_cli.scheduler.queue import Scheduler

Completion = tuple[float, int, int, int]
"""(time, sequence, number of the request, which of its runs): outdated once that run was preempted."""

Route = Callable[[int, float, Scheduler], str]
"""Chooses the worker a request is pinned to when it arrives: (number, now, scheduler) -> worker."""

Tick = Callable[[int], None]
"""Told of progress: so many more requests have finished."""

LOOK_S = 0.5
"""While requests wait, running ones are looked at this often: what they have left changes as they run."""

TICK = 4096
"""Requests between two reports of progress."""


@dataclass(frozen=True, slots=True)
class Preemption:
    """What stopping a job and resuming it later costs its worker, in seconds.

    `fixed_s` is a save or a restore of the KV cache; `recompute` is the share of the time already served
    that must be spent again where the cache was not kept (1: everything is computed anew). A worker keeps
    what jobs leave behind that were served `room_s` seconds together; the oldest goes first.
    """

    fixed_s: float = 0.0
    recompute: float = 0.0
    room_s: float = 0.0

    def reread_s(self, served_s: float) -> float:
        """Return the seconds it costs to compute anew the cache of a job that has been served so long."""
        return self.recompute * served_s


@dataclass(frozen=True, slots=True)
class Run:
    """What happened: for each request when it first started and when it finished, in seconds. `lost_s` is
    what preempted jobs cost in all when they went on.
    """

    workload: Workload
    start_s: Floats
    finish_s: Floats
    worker: Ints
    tau_firings: int
    preemptions: int
    loads: int
    lost_s: float = 0.0

    @property
    def wait_s(self) -> Floats:
        """From arrival to first start."""
        return self.start_s - self.workload.arrival_s

    @property
    def sojourn_s(self) -> Floats:
        """From arrival to the end of the answer."""
        return self.finish_s - self.workload.arrival_s

    @property
    def ttft_s(self) -> Floats:
        """From arrival to the first token, for workloads that say how long prefill takes."""
        return self.start_s + self.workload.prefill_s - self.workload.arrival_s


class SlotSimulation:
    """One run in progress."""

    def __init__(
        self,
        scheduler: Scheduler,
        workload: Workload,
        predictions: Predictions,
        *,
        preemption: Preemption | None = None,
        route: Route | None = None,
        load_s: Mapping[int, float] | None = None,
        slowness: Mapping[str, float] | None = None,
        tick: Tick | None = None,
    ) -> None:
        """Prepare a run; `preemption` None means the backend cannot preempt, `load_s` prices model loads,
        `slowness` says how many times as long as others some workers take.
        """
        n = len(workload)
        self.scheduler = scheduler
        self.workload = workload
        self._preemption = preemption
        self._route = route
        self._load_s = dict(load_s or {})
        self._slowness = dict(slowness or {})
        self._tick = tick
        self._job = job_maker(workload, predictions)
        self._service_s = workload.service_s.tolist()
        self._start_s = [-1.0] * n
        self._finish_s = [0.0] * n
        self._resumed_s = [0.0] * n
        self._done_s = [0.0] * n
        self._overhead_s = [0.0] * n
        self._worker = [""] * n
        self._runs = [0] * n
        self._completions: list[Completion] = []
        self._interrupts = scheduler.policy.interrupts
        self._look_s = float("inf")
        self._seq = 0
        self._loaded: dict[str, int] = {}
        self._loads = 0
        self._preemptions = 0
        self._lost_s = 0.0
        room_s = 0.0 if preemption is None else preemption.room_s
        self._kept = {worker: KeptContexts(room_s) for worker in scheduler.slots}

    def run(self) -> Run:
        """Run to the end and return what happened."""
        arrival_s = [*self.workload.arrival_s.tolist(), float("inf")]
        n, number, completions = len(arrival_s) - 1, 0, self._completions
        while completions or number < n:
            now = min(arrival_s[number], self._look_s)
            if completions and completions[0][0] <= now:
                now = completions[0][0]
                self._complete(now)
            while arrival_s[number] <= now:
                self._arrive(number, now)
                number += 1
            self._decide(now)
        return self._outcome()

    def _complete(self, now: float) -> None:
        completions = self._completions
        while completions and completions[0][0] <= now:
            _, _, number, run = heappop(completions)
            if run == self._runs[number]:
                self._finish_s[number] = now
                self.scheduler.finish(str(number), now)
                if self._preemption is not None:
                    self._leave(number, self._service_s[number], now, self._preemption, waits=False)

    def _arrive(self, number: int, now: float) -> None:
        worker = "" if self._route is None else self._route(number, now, self.scheduler)
        self.scheduler.submit(self._job(number, worker), now)
        if self._tick is not None and (number + 1) % TICK == 0:
            self._tick(TICK)

    def _decide(self, now: float) -> None:
        self._fill(now)
        if self._preemption is None or not self._interrupts:
            self._look_s = now + LOOK_S if self.scheduler.deferring else float("inf")
            return
        self._report_progress(now, self._preemption)
        while preempts := self.scheduler.preemptions(now):
            for preempt in preempts:
                number = int(preempt.job_id)
                self._stop(number, now, self._preemption)
                self.scheduler.requeue(preempt.job_id, now, worker=preempt.worker)
                self._leave(number, self._done_s[number], now, self._preemption, waits=True)
            self._fill(now)
        self._look_s = now + LOOK_S if len(self.scheduler) else float("inf")

    def _fill(self, now: float) -> None:
        while (dispatch := self.scheduler.next(now)) is not None:
            self._start(int(dispatch.job.id), dispatch.worker, now)

    def _start(self, number: int, worker: str, now: float) -> None:
        if self._start_s[number] < 0.0:
            self._start_s[number] = now
        duration_s = self._service_s[number] - self._done_s[number] + self._overhead_s[number]
        duration_s *= self._slowness.get(worker, 1.0)
        if self._load_s:
            duration_s += self._load(worker, number)
        self._lost_s += self._overhead_s[number]
        self._kept[worker].taken(str(number))
        self._worker[number] = worker
        self._resumed_s[number] = now
        self._seq += 1
        heappush(self._completions, (now + duration_s, self._seq, number, self._runs[number]))

    def _load(self, worker: str, number: int) -> float:
        affinity = int(self.workload.affinity[number])
        if self._loaded.get(worker) == affinity:
            return 0.0
        self._loaded[worker] = affinity
        self._loads += 1
        return self._load_s.get(affinity, 0.0)

    def _done_by(self, number: int, now: float) -> float:
        held_s: float = now - self._resumed_s[number]
        useful_s = held_s / self._slowness.get(self._worker[number], 1.0) - self._overhead_s[number]
        return self._done_s[number] + max(useful_s, 0.0)

    def _report_progress(self, now: float, preemption: Preemption) -> None:
        for job_id, entry in self.scheduler.running.items():
            number = int(job_id)
            done_s = self._done_by(number, now)
            tokens_per_s = entry.job.tokens / max(entry.job.cost_s, 1e-12)
            price = price_of_cut(self._kept[entry.worker], done_s, preemption.fixed_s, preemption.reread_s)
            self.scheduler.progress(job_id, done_s * tokens_per_s, *price)

    def _stop(self, number: int, now: float, preemption: Preemption) -> None:
        self._done_s[number] = self._done_by(number, now)
        self._overhead_s[number] = preemption.fixed_s
        self._runs[number] += 1
        self._preemptions += 1

    def _leave(
        self, number: int, served_s: float, now: float, preemption: Preemption, *, waits: bool
    ) -> None:
        """Have a worker keep what a job leaves behind; who loses his by that pays for it."""
        for lost in self._kept[self._worker[number]].left(str(number), served_s, waits=waits):
            other = int(lost.job_id)
            self._overhead_s[other] = preemption.fixed_s + preemption.reread_s(self._done_s[other])
            self.scheduler.owe(lost.job_id, self._overhead_s[other], now)

    def _outcome(self) -> Run:
        if self._tick is not None:
            self._tick(len(self.workload) % TICK)
        places = {worker: place for place, worker in enumerate(self.scheduler.slots)}
        return Run(
            self.workload,
            np.array(self._start_s),
            np.array(self._finish_s),
            np.array([places[worker] for worker in self._worker], dtype=np.int64),
            self.scheduler.tau_firings,
            self._preemptions,
            self._loads,
            self._lost_s,
        )


def simulate(scheduler: Scheduler, workload: Workload, predictions: Predictions) -> Run:
    """Run a workload through a scheduler whose backends cannot preempt, and return what happened."""
    return SlotSimulation(scheduler, workload, predictions).run()


def job_maker(workload: Workload, predictions: Predictions) -> Callable[[int, str], Job]:
    """Return what makes the job of a request, given its number and the worker it is pinned to, "" for any."""
    n = len(workload)

    def names(column: Ints) -> list[str]:
        return [str(value) for value in column.tolist()] if len(column) else [""] * n

    arrival_s, p_long = workload.arrival_s.tolist(), predictions.p_long.tolist()
    cost_s, cost_q90_s, tokens = (
        predictions.cost_s.tolist(),
        predictions.cost_q90_s.tolist(),
        predictions.tokens.tolist(),
    )
    tokens_q90 = predictions.tokens_q90.tolist() if len(predictions.tokens_q90) else [0.0] * n
    prompt_tokens = workload.prompt_tokens.tolist() if len(workload.prompt_tokens) else [0.0] * n
    client, affinity = names(workload.client), names(workload.affinity)
    urgency = workload.urgency.tolist() if len(workload.urgency) else [None] * n

    def job(i: int, worker: str) -> Job:
        return Job(
            str(i),
            arrival_s[i],
            p_long[i],
            cost_s[i],
            cost_q90_s[i],
            tokens[i],
            prompt_tokens[i],
            client[i],
            "",
            affinity[i],
            worker,
            0,
            urgency[i],
            tokens_q90[i],
        )

    return job
