"""The event loop of a batching backend: B sequences at once, a token each per iteration, in virtual time.

Rule 1: decisions fall between iterations, as in vLLM; they are the scheduler's, the object that serves.
Rule 2: iterations in which nothing can change are taken at one stride, so a run costs events, not tokens.
Under a quantum at most one sequence is preempted an iteration, as in RR-SJF's Algorithm 1.
Rule 3: a preempted sequence keeps its tokens. What resuming it costs is the affair of a `KvCache`.
"""

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from math import ceil

import numpy as np

from clairvoyant_cli.research.simulator.engine import Tick, job_maker
from clairvoyant_cli.research.simulator.kvcache import KvCache, Rates
from clairvoyant_cli.research.simulator.predictions import Predictions
from clairvoyant_cli.research.simulator.workload import Floats, Workload
from clairvoyant_cli.scheduler.queue import Scheduler

WORKER = "gpu"
"""The one worker of a batch simulation."""


@dataclass(frozen=True, slots=True)
class Machine:
    """How fast a batching backend is: an iteration over B sequences takes gamma_2 + `sequence_s` B seconds.

    The growth of attention with the context (gamma_1) is left out of iterations: with the coefficients of
    semantic scheduling's Appendix B it adds less than 1 % to a token.
    """

    slots: int
    rates: Rates
    sequence_s: float = 0.0

    def iteration_s(self, sequences: int) -> float:
        """Return the seconds of one iteration."""
        return self.rates.gamma_2 + self.sequence_s * sequences

    def alone_s(self, prompt_tokens: Floats, tokens: Floats) -> Floats:
        """Return the service times of requests with the machine to themselves."""
        prefill_s = self.rates.alpha_1 * prompt_tokens**2 + self.rates.alpha_2 * prompt_tokens
        result: Floats = prefill_s + tokens * self.iteration_s(1)
        return result


@dataclass(frozen=True, slots=True)
class BatchRun:
    """What happened to each request: first token and end, in seconds, and how often any was preempted."""

    workload: Workload
    first_token_s: Floats
    finish_s: Floats
    preemptions: int

    @property
    def ttft_s(self) -> Floats:
        """From arrival to the first token."""
        return self.first_token_s - self.workload.arrival_s

    @property
    def sojourn_s(self) -> Floats:
        """From arrival to the last token."""
        return self.finish_s - self.workload.arrival_s

    @property
    def per_token_s(self) -> Floats:
        """Sojourn over answer length: PARS's latency and semantic scheduling's normalised waiting time."""
        return self.sojourn_s / np.maximum(self.workload.tokens, 1.0)


class BatchSimulation:
    """One run in progress."""

    def __init__(
        self,
        scheduler: Scheduler,
        workload: Workload,
        predictions: Predictions,
        machine: Machine,
        *,
        cache: KvCache | None = None,
        tick: Tick | None = None,
    ) -> None:
        """Prepare a run. `cache` None means the backend cannot preempt."""
        n = len(workload)
        self.scheduler = scheduler
        self.workload = workload
        self.machine = machine
        self._cache = cache
        self._tick = tick
        self._job = job_maker(workload, predictions)
        self._tokens = np.maximum(np.ceil(workload.tokens), 1.0).astype(np.int64).tolist()
        self._prompt = workload.prompt_tokens.tolist() if len(workload.prompt_tokens) else [0.0] * n
        self._done = [0] * n
        self._first_token_s = [-1.0] * n
        self._finish_s = [0.0] * n
        self._started_at = [0] * n  # the iteration in which the present slice began
        self._slices = [0] * n
        self._ends: list[tuple[int, int, int]] = []  # (iteration, number, slice)
        self._quanta: deque[tuple[int, int, int]] = deque()
        self._spent: set[int] = set()
        self._fresh: list[int] = []
        self._owed_s = 0.0
        self._iteration = 0
        self._preemptions = 0

    def run(self) -> BatchRun:
        """Run to the end and return what happened."""
        arrival_s = [*self.workload.arrival_s.tolist(), float("inf")]
        n, number, now = len(arrival_s) - 1, 0, 0.0
        scheduler = self.scheduler
        while number < n or len(scheduler) or scheduler.running:
            if not scheduler.running and not len(scheduler):
                now = max(now, arrival_s[number])
            while arrival_s[number] <= now:
                scheduler.submit(self._job(number, ""), now)
                number += 1
            self._preempt(now)
            self._start_all(now)
            now = self._stride(now, arrival_s[number])
            self._retire(now)
        return BatchRun(
            self.workload, np.array(self._first_token_s), np.array(self._finish_s), self._preemptions
        )

    def _preempt(self, now: float) -> None:
        scheduler, policy, cache = self.scheduler, self.scheduler.policy, self._cache
        if cache is None or not len(scheduler):
            return
        if policy.quantum_tokens:
            self._report_spent()
            for preempt in scheduler.preemptions(now)[:1]:
                self._stop(int(preempt.job_id), now, cache)
        elif policy.preemptive:
            for job_id in scheduler.running:
                self._report(int(job_id))
            while preempts := scheduler.preemptions(now):
                for preempt in preempts:
                    self._stop(int(preempt.job_id), now, cache)
                self._start_all(now)

    def _report_spent(self) -> None:
        quanta = self._quanta
        while quanta and quanta[0][0] <= self._iteration:
            _, number, which = quanta.popleft()
            if which == self._slices[number]:
                self._report(number)
                self._spent.add(number)

    def _report(self, number: int) -> None:
        done = self._done[number] + self._iteration - self._started_at[number]
        self.scheduler.progress(str(number), float(done))

    def _stop(self, number: int, now: float, cache: KvCache) -> None:
        self._done[number] += self._iteration - self._started_at[number]
        self._slices[number] += 1
        self._spent.discard(number)
        self._preemptions += 1
        entry = self.scheduler.running[str(number)]
        self.scheduler.requeue(str(number), now, worker=WORKER)
        cache.paused(number, self._prompt[number] + self._done[number], entry.key)

    def _start_all(self, now: float) -> None:
        """Start what can start; the seconds its prefill takes are owed by the next stride."""
        while (dispatch := self.scheduler.next(now)) is not None:
            number = int(dispatch.job.id)
            done = self._done[number]
            if done and self._cache is not None:
                self._owed_s += self._cache.resume_s(number, self._prompt[number], float(done))
                self._cache.resumed(number)
            else:
                self._owed_s += self.machine.rates.prefill_s(self._prompt[number])
            self._fresh.append(number)
            self._started_at[number] = self._iteration
            heappush(
                self._ends, (self._iteration + self._tokens[number] - done, number, self._slices[number])
            )
            quantum = self.scheduler.policy.quantum_tokens
            if quantum:
                self._quanta.append((self._iteration + ceil(quantum), number, self._slices[number]))

    def _stride(self, now: float, next_arrival_s: float) -> float:
        """Take iterations up to the next one after which something can change; return the time then."""
        running = self.scheduler.running
        if not running:
            return now
        step_s = self.machine.iteration_s(len(running))
        now, self._owed_s = now + self._owed_s, 0.0
        for number in self._fresh:
            if self._first_token_s[number] < 0.0:
                self._first_token_s[number] = now + step_s
        self._fresh = []
        ends = self._ends
        while ends[0][2] != self._slices[ends[0][1]]:
            heappop(ends)
        strides = ends[0][0] - self._iteration
        if self.scheduler.policy.quantum_tokens and self._cache is not None and len(self.scheduler):
            until = self._quanta[0][0] - self._iteration if self._quanta and not self._spent else 1
            strides = min(strides, max(until, 1))
        if next_arrival_s < float("inf") and self._heeds_arrivals():
            strides = min(strides, max(ceil((next_arrival_s - now) / step_s), 1))
        self._iteration += strides
        return now + strides * step_s

    def _heeds_arrivals(self) -> bool:
        policy = self.scheduler.policy
        preempting = self._cache is not None and (policy.preemptive or policy.quantum_tokens is not None)
        return preempting or len(self.scheduler.running) < self.machine.slots

    def _retire(self, now: float) -> None:
        ends = self._ends
        retired = 0
        while ends and ends[0][0] <= self._iteration:
            _, number, which = heappop(ends)
            if which == self._slices[number]:
                self._finish_s[number] = now
                self.scheduler.finish(str(number), now)
                self._slices[number] += 1
                self._spent.discard(number)
                retired += 1
        if retired and self._tick is not None:
            self._tick(retired)
