"""Policies for the simulator alone: round robin by a quantum of tokens (RR, RR-SJF), and the key and the
routing at arrival of QUARTZ.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import log

from clairvoyant_cli.scheduler.fairness import HALF_LIFE_S
from clairvoyant_cli.scheduler.job import Job, Run
from clairvoyant_cli.scheduler.placement import ServerSlots
from clairvoyant_cli.scheduler.policy import GENTLE_AGING_RATE, Policy
from clairvoyant_cli.scheduler.queue import Scheduler
from clairvoyant_lab.baselines import ALL_POLICIES, SimulatedJob

FAIRNESS = 0.10
"""Seconds of disadvantage per second of the client's service rate (beta: QUARTZ, Table 3)."""

SERVICE_MEMORY_S = HALF_LIFE_S / log(2.0)
"""Divide decayed seconds of service by this to get a rate (QUARTZ's moving average)."""

CANDIDATES = 2  # servers among which a job is routed: the power of two choices (K of QUARTZ, Table 3)

TIE_S_PER_TOKEN = 1e-6
"""Waiting times closer than a microsecond a token are a tie, broken by predicted length."""

QUANTUM_TOKENS = 100.0
"""Tokens of a turn. RR-SJF (section 3.4) has 5, inside the engine. From outside, a preemption costs 10 to
150 ms: at 50 ms and 40 tokens/s, a hundred tokens keep it to 2 % of the time."""


def joined(job: Job) -> float:
    """Order by when the job last joined the queue: round robin."""
    return job.queued_s


def joined_then_short(job: Job) -> float:
    """Order by waiting time, predicted length breaking ties (RR-SJF, Algorithm 1)."""
    return job.queued_s + TIE_S_PER_TOKEN * job.tokens


def started_first(run: Run) -> float:
    return -run.started_s


def longest(run: Run) -> float:
    return run.job.tokens


@dataclass(frozen=True, slots=True)
class TurnPolicy(Policy):
    """A running job yields to a waiting one after `quantum_tokens`, the highest `yields` first."""

    quantum_tokens: float = QUANTUM_TOKENS
    yields: Callable[[Run], float] = started_first

    def preemptions(self, scheduler: Scheduler) -> list[Run]:
        found = list[Run]()
        for server in scheduler.fleet.servers.values():
            if server.running and len(server.running) == server.slots:
                waiting = sum(scheduler.fleet.may_take(server.id, job) for job in scheduler)
                room = min(waiting, len(scheduler) - len(found))
                found += self._spent(server.running.values())[:room]
        return found

    def _spent(self, running: Iterable[Run]) -> list[Run]:
        done = [run for run in running if run.job.done_tokens - run.slice_start_tokens >= self.quantum_tokens]
        return sorted(done, key=lambda run: (run.job.rank, self.yields(run), run.job.seq), reverse=True)


def quartz_key(job: SimulatedJob) -> float:
    """Order by the upper quantile of the service time, arrival-adjusted, plus a share of the rate at which
    the client was served (QUARTZ, Eq. 6 to 8, with the coefficients of its Table 3).

    The service is that of the whole answer: a slot is not free after the first token.
    """
    return job.cost_high_s + GENTLE_AGING_RATE * job.arrival_s + FAIRNESS * job.served_share


@dataclass(frozen=True, slots=True)
class RoutedPolicy(Policy):
    """A job waits from its arrival for one server, the best of `candidates` drawn (QUARTZ, Algorithm 1)."""

    candidates: int = CANDIDATES

    def routed(self, job: SimulatedJob, now: float, scheduler: Scheduler) -> SimulatedJob:
        """Return a job as it arrives: pinned to the server with the soonest cautious completion."""
        client, servers = job.client, list(scheduler.fleet.servers.values())
        used_s = scheduler.clients.used_s(client, now)
        cautious = job.cost_high_s / job.cost_s if job.cost_s else 1.0

        def ends_s(server: ServerSlots) -> float:
            # Means add, so only the job's own time is a quantile (QUARTZ, Eq. 4).
            waiting_s = sum(each.cost_s for each in scheduler if each.pinned == server.id)
            running_s = sum(running.left_s(now) for running in server.running.values())
            backlog_s = (waiting_s + running_s) / server.at_once
            return backlog_s + scheduler.fleet.own_s(job, server) * cautious

        best = min(drawn(servers, self.candidates, int(job.id)), key=ends_s)
        return replace(job, pinned=best.id, served_share=used_s / SERVICE_MEMORY_S)


def drawn(servers: list[ServerSlots], count: int, number: int) -> list[ServerSlots]:
    """Return `count` of the servers, drawn by a hash of `number`; all of them if there are no more."""
    if count >= len(servers):
        return servers
    left, found = list(servers), list[ServerSlots]()
    for _ in range(count):
        number = (number + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF  # splitmix64's steps
        number ^= number >> 31
        found.append(left.pop(number % len(left)))
    return found


SIMULATED_POLICIES = ALL_POLICIES | {
    policy.name: policy
    for policy in (
        RoutedPolicy(
            "quartz",
            quartz_key,
            "Lowest upper quantile of the predicted service time first, with some aging and fairness. Each "
            "request waits for the better of two servers, drawn at its arrival.",
            in_seconds=True,
        ),
        TurnPolicy(
            "rr",
            joined,
            "Round robin: turns of 100 tokens, in the order of joining the queue.",
            in_seconds=True,
            preemptive=True,
        ),
        TurnPolicy(
            "rr-sjf",
            joined_then_short,
            "Turns of 100 tokens, the shorter first among requests that joined together; the longest "
            "predicted answer yields first.",
            in_seconds=True,
            preemptive=True,
            yields=longest,
        ),
    )
}
"""All policies that can be simulated, by name."""
