"""Simulates a batching backend: B sequences at once, one token each per iteration, in virtual time.

1. The scheduler decides between iterations, as in vLLM.
2. Iterations in which nothing can change are taken in one step: a run costs events, not tokens.
3. A preempted sequence keeps its tokens; a `PreemptedCaches` says what resuming costs.

KV caches follow semantic scheduling (section 3.3), with two corrections:
* Eq. 3 chooses caching where loading takes longer than computing; it must be the other way round.
* Eq. 6 does not minimise Eq. 5. With d = m' - m* tokens recomputed, Eq. 5 is convex in d with its minimum at
  d = (beta - gamma_2) / gamma_1 - n - 1/2, so m* = m' - d, clipped to [0, m'] (`Rates.tokens_to_keep`).
"""

from dataclasses import dataclass
from heapq import heappop, heappush
from math import ceil

import numpy as np
from clairvoyant_lab.simulator.engine import Run, job_maker
from clairvoyant_lab.simulator.workload import Floats, Predictions, Workload

from clairvoyant_cli.scheduler.queue import Scheduler

WORKER = "gpu"
"""The one worker of a batch simulation."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Seconds per token: prefill `alpha_1` n^2 + `alpha_2` n, decode `gamma_1` i + `gamma_2` for token i,
    load or save `beta` n (semantic scheduling, section 3.3).
    """

    alpha_1: float
    alpha_2: float
    beta: float
    gamma_1: float
    gamma_2: float

    def prefill_s(self, tokens: float) -> float:
        """Return the time to compute the cache of a prompt (left side of Eq. 3)."""
        return self.alpha_1 * tokens * tokens + self.alpha_2 * tokens

    def decode_s(self, prompt_tokens: float, tokens: float) -> float:
        """Return the time to decode `tokens` after a prompt (Eq. 4)."""
        m = tokens
        return self.gamma_1 * (m * m / 2.0 + prompt_tokens * m + m / 2.0) + self.gamma_2 * m

    def tokens_to_keep(self, prompt_tokens: float, done: float) -> float:
        """Return how many decoded tokens' cache to keep for the cheapest resumption (minimum of Eq. 5)."""
        if self.gamma_1 == 0.0:
            return done if self.beta <= self.gamma_2 else 0.0
        recomputed = (self.beta - self.gamma_2) / self.gamma_1 - prompt_tokens - 0.5
        return done - min(max(recomputed, 0.0), done)

    def resume_with_s(self, prompt_tokens: float, done: float, kept: float) -> float:
        """Return the cost of resuming with `kept` decoded tokens (Eq. 5, and Eq. 3 for the prompt)."""
        prompt_s = min(self.beta * prompt_tokens, self.prefill_s(prompt_tokens))
        return prompt_s + self.beta * kept + self.decode_s(prompt_tokens, done - kept)

    def resume_s(self, prompt_tokens: float, done: float) -> float:
        """Return the lowest cost of resuming an evicted request."""
        return self.resume_with_s(prompt_tokens, done, self.tokens_to_keep(prompt_tokens, done))


class PreemptedCaches:
    """The caches of preempted requests.

    They stay on the device while they fit into `capacity_tokens`; the least urgent is evicted first.
    """

    def __init__(self, rates: Rates, capacity_tokens: float) -> None:
        self._rates = rates
        self._capacity_tokens = capacity_tokens
        self._kept: dict[int, tuple[float, float]] = {}  # key and tokens

    def paused(self, number: int, tokens: float, key: float) -> None:
        """Keep the cache of a preempted request; `key` is its place in the queue."""
        if tokens > self._capacity_tokens:
            return
        self._kept[number] = key, tokens
        while sum(kept for _, kept in self._kept.values()) > self._capacity_tokens:
            del self._kept[max(self._kept, key=self._kept.__getitem__)]

    def resume_s(self, number: int, prompt_tokens: float, done: float) -> float:
        """Return the seconds it takes to restore a request's cache."""
        return 0.0 if number in self._kept else self._rates.resume_s(prompt_tokens, done)

    def resumed(self, number: int) -> None:
        """Note that a request runs again: its cache cannot be evicted."""
        self._kept.pop(number, None)


@dataclass(frozen=True, slots=True)
class Machine:
    """The speed of a batching backend: an iteration takes gamma_2 seconds, however many sequences it has.

    Iterations ignore how attention grows with the context (gamma_1): with the coefficients of semantic
    scheduling's Appendix B it adds less than 1 % to a token.
    """

    slots: int
    rates: Rates

    def alone_s(self, prompt_tokens: Floats, tokens: Floats) -> Floats:
        """Return the service times of requests that have the machine to themselves."""
        prefill_s = self.rates.alpha_1 * prompt_tokens**2 + self.rates.alpha_2 * prompt_tokens
        result: Floats = prefill_s + tokens * self.rates.gamma_2
        return result


class BatchSimulation:
    """One run in progress."""

    def __init__(
        self,
        scheduler: Scheduler,
        workload: Workload,
        predictions: Predictions,
        machine: Machine,
        *,
        cache: PreemptedCaches | None = None,
    ) -> None:
        """Prepare a run; without `cache` the backend cannot preempt."""
        n = len(workload)
        self.scheduler = scheduler
        self.workload = workload
        self.machine = machine
        self._cache = cache
        self._job = job_maker(workload, predictions)
        self._tokens = np.maximum(np.ceil(workload.tokens), 1.0).astype(np.int64).tolist()
        self._prompt = workload.prompt_tokens.tolist() if len(workload.prompt_tokens) else [0.0] * n
        self._done = [0] * n
        self._start_s = [-1.0] * n
        self._finish_s = [0.0] * n
        self._started_at = [0] * n  # the iteration in which the present slice began
        self._slices = [0] * n
        self._ends: list[tuple[int, int, int]] = []  # (iteration, number, slice)
        self._owed_s = 0.0
        self._iteration = 0
        self._preemptions = 0

    def run(self) -> Run:
        """Run to the end and return what happened."""
        arrival_s = [*self.workload.arrival_s.tolist(), float("inf")]
        n, number, now = len(arrival_s) - 1, 0, 0.0
        scheduler = self.scheduler
        while number < n or len(scheduler) or scheduler.running:
            if not scheduler.running and not len(scheduler):
                now = max(now, arrival_s[number])
            while arrival_s[number] <= now:
                scheduler.submit(self._job(number), now)
                number += 1
            self._preempt(now)
            self._start_all(now)
            now = self._stride(now, arrival_s[number])
            self._retire(now)
        return Run(
            self.workload,
            np.array(self._start_s),
            np.array(self._finish_s),
            scheduler.tau_firings,
            self._preemptions,
        )

    def _preempt(self, now: float) -> None:
        scheduler, cache = self.scheduler, self._cache
        if cache is None or not scheduler.policy.preemptive or not len(scheduler):
            return
        for job_id in scheduler.running:
            number = int(job_id)
            done = self._done[number] + self._iteration - self._started_at[number]
            scheduler.progress(job_id, float(done))
        while preempts := scheduler.preemptions(now):
            for preempt in preempts:
                self._stop(int(preempt.job_id), now, cache)
            self._start_all(now)

    def _stop(self, number: int, now: float, cache: PreemptedCaches) -> None:
        self._done[number] += self._iteration - self._started_at[number]
        self._slices[number] += 1
        self._preemptions += 1
        entry = self.scheduler.running[str(number)]
        self.scheduler.requeue(str(number), now, worker=WORKER)
        cache.paused(number, self._prompt[number] + self._done[number], entry.key)

    def _start_all(self, now: float) -> None:
        """Start what can start; its prefill delays the next iterations."""
        while (dispatch := self.scheduler.next(now)) is not None:
            number = int(dispatch.job.id)
            done = self._done[number]
            if self._start_s[number] < 0.0:
                self._start_s[number] = now
            if done and self._cache is not None:
                self._owed_s += self._cache.resume_s(number, self._prompt[number], float(done))
                self._cache.resumed(number)
            else:
                self._owed_s += self.machine.rates.prefill_s(self._prompt[number])
            self._started_at[number] = self._iteration
            heappush(
                self._ends, (self._iteration + self._tokens[number] - done, number, self._slices[number])
            )

    def _stride(self, now: float, next_arrival_s: float) -> float:
        """Run iterations until something can change, and return the time then."""
        running = self.scheduler.running
        if not running:
            return now
        step_s = self.machine.rates.gamma_2
        now, self._owed_s = now + self._owed_s, 0.0
        ends = self._ends
        while ends[0][2] != self._slices[ends[0][1]]:
            heappop(ends)
        strides = ends[0][0] - self._iteration
        if next_arrival_s < float("inf") and self._heeds_arrivals():
            strides = min(strides, max(ceil((next_arrival_s - now) / step_s), 1))
        self._iteration += strides
        return now + strides * step_s

    def _heeds_arrivals(self) -> bool:
        preempting = self._cache is not None and self.scheduler.policy.preemptive
        return preempting or len(self.scheduler.running) < self.machine.slots

    def _retire(self, now: float) -> None:
        ends = self._ends
        while ends and ends[0][0] <= self._iteration:
            _, number, which = heappop(ends)
            if which == self._slices[number]:
                self._finish_s[number] = now
                self.scheduler.finish(str(number), now)
                self._slices[number] += 1
