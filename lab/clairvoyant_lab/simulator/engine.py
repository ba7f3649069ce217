"""Simulates slots on several servers, one job a slot, in virtual time.

1. Completions are in a heap, arrivals are a column. At one instant completions come first, then arrivals,
   then the scheduler's decision: it sees a burst as a whole.
2. The scheduler that serves makes all decisions. The engine only makes time pass.
3. Equal workloads, predictions and schedulers give equal runs.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from heapq import heappop, heappush

import numpy as np

from clairvoyant_cli.scheduler.job import Run as SlotRun
from clairvoyant_cli.scheduler.queue import Scheduler
from clairvoyant_cli.scheduler.server_cache import ServerCache
from clairvoyant_lab.baselines import SimulatedJob
from clairvoyant_lab.simulator.policies import RoutedPolicy, TurnPolicy
from clairvoyant_lab.simulator.workload import Floats, Predictions, Workload

Completion = tuple[float, int, int, int]
"""(time, sequence, request, run of the request); outdated once that run was preempted."""

Route = Callable[[int, float, Scheduler], str]
"""Chooses the server a request is pinned to on arrival, "" for any: (number, now, scheduler) -> server."""

LOOK_S = 0.5
"""Seconds between two decisions while requests wait: the remaining times of running ones change."""


@dataclass(frozen=True, slots=True)
class Preemption:
    """The cost of preempting a job and resuming it, in seconds.

    `fixed_s` saves or restores the KV cache. `recompute` is the share of the time already served that must be
    spent again if the cache was evicted. A server keeps the caches of the last `room_s` seconds of service.
    """

    fixed_s: float = 0.0
    recompute: float = 0.0
    room_s: float = 0.0

    def reread_s(self, served_s: float) -> float:
        return self.recompute * served_s


@dataclass(frozen=True, slots=True)
class Run:
    """The first start and the end of each request in seconds. `lost_s` is the total cost of resuming."""

    workload: Workload
    start_s: Floats
    finish_s: Floats
    tau_firings: int
    preemptions: int
    lost_s: float = 0.0

    @property
    def wait_s(self) -> Floats:
        """From arrival to first start."""
        return self.start_s - self.workload.arrival_s

    @property
    def sojourn_s(self) -> Floats:
        """From arrival to the end of the answer."""
        return self.finish_s - self.workload.arrival_s


class SlotSimulation:
    def __init__(
        self,
        scheduler: Scheduler,
        workload: Workload,
        predictions: Predictions,
        *,
        preemption: Preemption | None = None,
        route: Route | None = None,
    ) -> None:
        """Prepare a run; without `preemption` the backend cannot preempt."""
        n = len(workload)
        self.scheduler = scheduler
        self.workload = workload
        self._preemption = preemption
        self._route = route
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
        self._policy = scheduler.policy
        self._look_s = float("inf")
        self._seq = 0
        self._preemptions = 0
        self._lost_s = 0.0
        room_s = 0.0 if preemption is None else preemption.room_s
        self._kept = {server_id: ServerCache(0, room_s) for server_id in scheduler.slots}

    def run(self) -> Run:
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
        return Run(
            self.workload,
            np.array(self._start_s),
            np.array(self._finish_s),
            self.scheduler.guard.firings,
            self._preemptions,
            self._lost_s,
        )

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
        job = self._job(number)
        if self._route is not None:
            job = replace(job, pinned=self._route(number, now, self.scheduler))
        elif isinstance(self._policy, RoutedPolicy):
            job = self._policy.routed(job, now, self.scheduler)
        self.scheduler.submit(job, now)

    def _decide(self, now: float) -> None:
        self._fill(now)
        if self._preemption is None or not self._policy.preemptive:
            self._look_s = now + LOOK_S if self.scheduler.deferring else float("inf")
            return
        self._report_progress(now, self._preemption)
        while preempts := self._preemptions_at(now):
            for preempted in preempts:
                number = int(preempted.job.id)
                self._stop(number, now, self._preemption)
                self.scheduler.requeue(preempted.job.id, now, preempted=True)
                self._leave(number, self._done_s[number], now, self._preemption, waits=True)
            self._fill(now)
        self._look_s = now + LOOK_S if len(self.scheduler) else float("inf")

    def _preemptions_at(self, now: float) -> list[SlotRun]:
        if isinstance(self._policy, TurnPolicy):
            return self._policy.preemptions(self.scheduler)
        return self.scheduler.preemptions(now)

    def _fill(self, now: float) -> None:
        while (run := self.scheduler.next(now)) is not None:
            self._start(int(run.job.id), run.server_id, now)

    def _start(self, number: int, server_id: str, now: float) -> None:
        if self._start_s[number] < 0.0:
            self._start_s[number] = now
        duration_s = self._service_s[number] - self._done_s[number] + self._overhead_s[number]
        self._lost_s += self._overhead_s[number]
        self._kept[server_id].dropped(str(number))
        self._worker[number] = server_id
        self._resumed_s[number] = now
        self._seq += 1
        heappush(self._completions, (now + duration_s, self._seq, number, self._runs[number]))

    def _done_by(self, number: int, now: float) -> float:
        useful_s: float = now - self._resumed_s[number] - self._overhead_s[number]
        return self._done_s[number] + max(useful_s, 0.0)

    def _report_progress(self, now: float, preemption: Preemption) -> None:
        for job_id, run in self.scheduler.running.items():
            number = int(job_id)
            done_s = self._done_by(number, now)
            tokens_per_s = run.job.tokens / max(run.job.cost_s, 1e-12)
            cache = self._kept[run.server_id]
            price = cache.price_of_preemption(job_id, done_s, preemption.fixed_s, preemption.reread_s)
            self.scheduler.progress(job_id, done_s * tokens_per_s, *price)

    def _stop(self, number: int, now: float, preemption: Preemption) -> None:
        self._done_s[number] = self._done_by(number, now)
        self._overhead_s[number] = preemption.fixed_s
        self._runs[number] += 1
        self._preemptions += 1

    def _leave(
        self, number: int, served_s: float, now: float, preemption: Preemption, *, waits: bool
    ) -> None:
        """Keep the job's cache on its server; jobs whose caches are evicted must recompute them."""
        for lost in self._kept[self._worker[number]].left(str(number), served_s, waits=waits):
            other = int(lost)
            self._overhead_s[other] = preemption.fixed_s + preemption.reread_s(self._done_s[other])
            self.scheduler.set_resume_cost(lost, self._overhead_s[other], now)


def job_maker(workload: Workload, predictions: Predictions) -> Callable[[int], SimulatedJob]:
    """Return a function from a request's number to its job."""
    urgency = predictions.urgency if len(predictions.urgency) else workload.urgency
    columns = {
        "arrival_s": workload.arrival_s,
        "p_long": predictions.p_long,
        "cost_s": predictions.cost_s,
        "cost_high_s": predictions.cost_q90_s,
        "tokens": predictions.tokens,
        "tokens_q90": predictions.tokens_q90,
        "prompt_tokens": workload.prompt_tokens,
        "urgency": urgency,
    }
    given = {name: column.tolist() for name, column in columns.items() if len(column)}
    if len(workload.client):
        given["client"] = [str(client) for client in workload.client.tolist()]
    rows = [dict(zip(given, row, strict=True)) for row in zip(*given.values(), strict=True)]
    return lambda i: SimulatedJob(str(i), **rows[i])
