"""The operating state of the daemon: policy, tau and its source, and whether it accepts work.

Rule: the operator's choices hold; measured or learned values change only what was not chosen.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from clairvoyant_cli.proxy.access.clients import Clients
from clairvoyant_cli.proxy.queue.dispatcher import Dispatcher
from clairvoyant_cli.proxy.queue.exchange import Exchange
from clairvoyant_cli.scheduler.job import Job
from clairvoyant_cli.scheduler.policy import POLICIES, TAU_PER_MU_SHORT

CHOSEN = ("flag", "operator")
"""Sources of a tau that was set, not learned."""

MAX_MODELS = 50


@dataclass(slots=True)
class Operation:
    """What an operator sees and changes.

    `tau_source` describes where tau is from; `mu_short_s` is the value behind it, None if unknown.
    `max_wait_s` is how long a request may wait for a slot, None if without limit. While `draining`, new
    requests are rejected; when `stopping`, the daemon ends after its last request, and once `stopped`, it
    ends running ones.
    """

    dispatcher: Dispatcher
    clock: Callable[[], float]
    tau_source: str = "default"
    mu_short_s: float | None = None
    max_wait_s: float | None = None
    draining: bool = False
    stopping: bool = False
    stopped: bool = False
    _own_tau: tuple[float | None, str] = field(init=False)
    _learned: dict[str, tuple[float, str]] = field(default_factory=dict)  # of each model: tau, and its source

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
        return self.dispatcher.scheduler.clients.tau_s

    def patience_s(self, exchange: Exchange) -> float | None:
        """Return how long a waiting request may go on waiting; None: as long as it takes."""
        if self.max_wait_s is None or exchange.is_put_off:
            return None
        return self.max_wait_s - (self.clock() - exchange.job.arrival_s - exchange.kept_age_s)

    def choose_policy(self, name: str) -> None:
        """Set the policy for the operator; KeyError if there is none of this name."""
        self.dispatcher.scheduler.set_policy(POLICIES[name], self.clock())

    def choose_tau(self, tau_s: float | None) -> None:
        """Set tau for the operator; None means no guard."""
        self._set_tau(tau_s, "operator")

    def release_tau(self) -> None:
        """Return to the tau of the flag, or else to the learned one."""
        self._set_tau(*self._own_tau)

    def learn_tau(self, model: str, tau_s: float, source: str) -> bool:
        """Set the measured or learned tau of a model; False if tau was chosen and stays.

        A model of which none is known gets the longest of the others.
        """
        for former in (model, ""):  # "" stands for all until a model is known
            self._learned.pop(former, None)
        self._learned[model] = tau_s, source
        if len(self._learned) > MAX_MODELS:  # clients choose the names
            del self._learned[next(iter(self._learned))]
        if self._own_tau[1] not in CHOSEN:
            self._own_tau = max(self._learned.values())
        if self.tau_source in CHOSEN:
            return False
        self._set_tau(*self._own_tau)
        self.mu_short_s = (self.tau_s or 0.0) / TAU_PER_MU_SHORT
        return True

    def forget_tau(self) -> None:
        """Forget the tau of each model: another one is about to be learned."""
        self._learned.clear()

    def _set_tau(self, tau_s: float | None, source: str) -> None:
        clients, self.tau_source = self.dispatcher.scheduler.clients, source
        clients.tau_s, clients.tau_by_model = tau_s, {}
        if source not in CHOSEN:
            clients.tau_by_model = {model: learned_s for model, (learned_s, _) in self._learned.items()}

    def resume(self) -> None:
        self.dispatcher.scheduler.resume()
        self.draining = False

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
