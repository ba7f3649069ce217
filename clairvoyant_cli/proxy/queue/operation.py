"""The operating state of the daemon: policy, tau and its source, and whether it accepts work.

Rule 1: the operator's choices hold; measured or learned values change only what was not chosen.
Rule 2: arrival order replaces a policy that uses upper bounds while those do not hold. Predictions continue
and are judged, so that the policy can return.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import exp

from clairvoyant_cli.proxy.access.clients import Clients
from clairvoyant_cli.proxy.queue.dispatcher import Dispatcher
from clairvoyant_cli.proxy.queue.exchange import Exchange
from clairvoyant_cli.scheduler.job import Job
from clairvoyant_cli.scheduler.policy import QUANTUM_TOKENS, TAU_PER_MU_SHORT, in_turns_of, policy_named

CHOSEN = ("flag", "operator")
"""Sources of a tau that was set, not learned."""

FALLBACK_POLICY = "fcfs"

ALPHA = 0.95  # the share of requests that should not exceed their quantile (QUARTZ, Table 3)
DELTA = 0.05  # predictions are distrusted above a miss rate of 1 - alpha + delta (QUARTZ, Table 3)
RATE = 0.08  # step of the log correction per outcome

WINDOW = 128  # outcomes used for trust
MIN_JUDGED = 64  # the least number needed
MAX_FACTOR = 16.0  # limit of a correction, up or down


@dataclass(slots=True)
class Coverage:
    """Corrections of upper quantiles of service times by regime, and the recent rate of misses (QUARTZ,
    sections 3.5 and 4.2). While too many requests exceed theirs, predictions are not trusted.

    Stochastic quantile tracking: a correction rises after a miss and falls otherwise, so that `alpha` is met
    in the long run for any distribution.
    """

    alpha: float = ALPHA
    delta: float = DELTA
    _factors: dict[str, float] = field(default_factory=dict)
    _missed: deque[bool] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def corrected(self, regime: str, quantile: float) -> float:
        """Return a quantile, in any unit, with the correction of its regime."""
        return quantile * self._factors.get(regime, 1.0)

    def learn(self, regime: str, corrected: float, actual: float) -> None:
        missed = actual > corrected
        factor = self._factors.get(regime, 1.0) * exp(RATE * (missed - (1.0 - self.alpha)))
        self._factors[regime] = min(max(factor, 1.0 / MAX_FACTOR), MAX_FACTOR)
        self._missed.append(missed)

    @property
    def missed(self) -> float:
        """The share of recent requests that exceeded their quantile."""
        return sum(self._missed) / len(self._missed) if self._missed else 0.0

    @property
    def trusted(self) -> bool:
        """Whether the miss rate is within its limit."""
        return len(self._missed) < MIN_JUDGED or self.missed <= 1.0 - self.alpha + self.delta


@dataclass(slots=True)
class Operation:
    """What an operator sees and changes.

    `tau_source` describes where tau is from; `mu_short_s` is the value behind it, None if unknown.
    `quantum_tokens` is the turn of round-robin policies, `max_wait_s` how long a request may wait for a slot,
    None if without limit. `policy_chosen`: the operator chose the policy. `displaced_policy` returns once the
    upper bounds hold that `coverage` judges. While `draining`, new requests are rejected; when `stopping`,
    the daemon ends after its last request, and once `stopped`, it ends running ones.
    """

    dispatcher: Dispatcher
    coverage: Coverage | None
    clock: Callable[[], float]
    say: Callable[[int, str], None]
    tau_source: str = "default"
    mu_short_s: float | None = None
    quantum_tokens: float = QUANTUM_TOKENS
    max_wait_s: float | None = None
    draining: bool = False
    stopping: bool = False
    stopped: bool = False
    displaced_policy: str = ""
    _own_tau: tuple[float | None, str] = field(init=False)

    def __post_init__(self) -> None:
        self._own_tau = self.tau_s, self.tau_source

    @property
    def mode(self) -> str:
        """ "serving", "paused" or "draining"."""
        if self.draining:
            return "draining"
        return "paused" if self.dispatcher.scheduler.paused else "serving"

    @property
    def policy(self) -> str:
        return self.dispatcher.scheduler.policy.name

    @property
    def tau_s(self) -> float | None:
        return self.dispatcher.scheduler.tau_s

    def patience_s(self, exchange: Exchange) -> float | None:
        """Return how long a waiting request may go on waiting; None: as long as it takes."""
        if self.max_wait_s is None or exchange.is_put_off:
            return None
        return self.max_wait_s - (self.clock() - exchange.job.arrival_s - exchange.kept_age_s)

    def choose_policy(self, name: str) -> None:
        """Set the policy for the operator; KeyError if there is none of this name."""
        self._set_policy(name)
        self.displaced_policy = ""

    def _set_policy(self, name: str) -> None:
        policy = in_turns_of(policy_named(name), self.quantum_tokens)
        self.dispatcher.scheduler.set_policy(policy, self.clock())

    def review_predictor(self) -> None:
        """Change to arrival order, or back, if the record of upper bounds requires it."""
        coverage, displaced = self.coverage, self.displaced_policy
        if coverage is None or coverage.trusted != bool(displaced):
            return
        if displaced:
            self.choose_policy(displaced)
            self.say(logging.INFO, f"predictions are reliable again: back to policy {displaced}")
        elif self.dispatcher.scheduler.policy.candidates is not None:
            self.displaced_policy = self.policy
            self._set_policy(FALLBACK_POLICY)
            news = (
                f"predictions are unreliable on this traffic ({coverage.missed:.0%} of the answers "
                f"exceeded their quantile, {1.0 - coverage.alpha:.0%} should)"
            )
            self.say(logging.WARNING, f"{news}: first come, first served until they recover")

    def choose_tau(self, tau_s: float | None) -> None:
        """Set tau for the operator; None means no guard."""
        self.dispatcher.scheduler.tau_s = tau_s
        self.tau_source = "operator"

    def release_tau(self) -> None:
        """Return to the tau of the flag, or else to the learned one."""
        self.dispatcher.scheduler.tau_s, self.tau_source = self._own_tau

    def learn_tau(self, tau_s: float, source: str) -> bool:
        """Set a measured or learned tau; False if it was chosen and stays."""
        if self._own_tau[1] not in CHOSEN:
            self._own_tau = tau_s, source
        if self.tau_source in CHOSEN:
            return False
        self.dispatcher.scheduler.tau_s = tau_s
        self.tau_source = source
        self.mu_short_s = tau_s / TAU_PER_MU_SHORT
        return True

    def resume(self) -> None:
        self.dispatcher.scheduler.resume()
        self.draining = False

    def go_down(self) -> None:
        self.draining = self.stopping = True

    def set_clients(self, clients: Clients, before: Clients) -> None:
        """Apply other rules for clients than those of `before`, also to queued requests."""

        def priority_of(job: Job) -> int:
            rules = clients.rules_of(job.client)
            same = rules.priority == before.rules_of(job.client).priority
            return job.priority if same else rules.clamped(job.priority)

        def levels_of(job: Job) -> int:
            return clients.rules_of(job.client).levels_of(chore=job.chore)

        everybody = clients.defaults.tenant
        self.dispatcher.scheduler.set_tenants(
            clients.tenants, self.clock(), everybody, priority_of, levels_of
        )
        self.dispatcher.moved()
