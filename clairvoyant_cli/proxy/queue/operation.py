"""How the daemon is being run: its policy, its tau and where that is from, and whether it takes work.

Rule: what an operator chose holds; what was measured, learned or judged moves only what nobody chose.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from clairvoyant_cli.proxy.access.clients import Clients
from clairvoyant_cli.proxy.queue.dispatcher import Dispatcher
from clairvoyant_cli.proxy.queue.predictor_trust import Fallback
from clairvoyant_cli.scheduler.job import Job
from clairvoyant_cli.scheduler.policy import POLICIES, QUANTUM_TOKENS, in_turns_of
from clairvoyant_cli.scheduler.policy_forecast import starts
from clairvoyant_cli.state.snapshot import PolicyOutlook

CHOSEN = ("flag", "operator")
"""Sources of a tau that somebody set."""


@dataclass(slots=True)
class Operation:
    """What an operator sees and changes. `tau_source` says in words where tau is from; `mu_short_s` is what
    it was computed from, None if nothing was learned or measured. A turn brings `quantum_tokens` under
    policies that give turns. `policy_chosen` once an operator has chosen one. While `draining` nothing new is
    taken; when `stopping`, the daemon ends with what it has, and once it has `stopped` we end whatever runs.
    Nothing new is taken of `draining_groups`: pairs
    as in ("client", its name), ("model", ...).
    """

    dispatcher: Dispatcher
    fallback: Fallback
    clock: Callable[[], float]
    say: Callable[[int, str], None]
    tau_source: str = "default"
    mu_short_s: float | None = None
    quantum_tokens: float = QUANTUM_TOKENS
    draining: bool = False
    draining_groups: set[tuple[str, str]] = field(default_factory=set)
    stopping: bool = False
    stopped: bool = False
    policy_chosen: bool = False
    _own_tau: tuple[float | None, str] = field(init=False)

    def __post_init__(self) -> None:
        self._own_tau = self.tau_s, self.tau_source

    @property
    def mode(self) -> str:
        """What the daemon does with requests: "serving", "paused" or "draining"."""
        if self.draining:
            return "draining"
        return "paused" if self.dispatcher.scheduler.paused else "serving"

    @property
    def policy(self) -> str:
        """The policy that orders what waits."""
        return self.dispatcher.scheduler.policy.name

    @property
    def tau_s(self) -> float | None:
        """The starvation timeout in seconds, None where there is none."""
        return self.dispatcher.scheduler.tau_s

    def choose_policy(self, name: str) -> None:
        """Order by another policy on the operator's word, whatever the predictor is worth."""
        self.fallback.chosen_by_operator()
        self.policy_chosen = True
        self._order_by(name)

    def prefer_policy(self, name: str) -> None:
        """Order by another policy, as nobody has chosen one."""
        self._order_by(name)

    def outlook(self, name: str) -> PolicyOutlook:
        """Return when what waits now would start if a policy ordered it."""
        live, kinds = self.dispatcher.live, defaultdict[str, list[float]](list)
        policy = in_turns_of(POLICIES[name], self.quantum_tokens)
        for job_id, start_s in starts(self.dispatcher.scheduler, policy, self.clock()):
            kinds[live[job_id].asked.prediction.length_class.value].append(start_s)
        short_s, long_s = (median(of) if of else None for of in (kinds["short"], kinds["long"]))
        return PolicyOutlook(name, short_s, long_s, policy.interrupts)

    def review_predictor(self) -> None:
        """Fall back to arrival order, or return from there, as the predictor's record demands."""
        self.fallback.review(self.policy, self._order_by, self.say)

    def choose_tau(self, tau_s: float | None) -> None:
        """Set tau on the operator's word; None is no guard."""
        self.dispatcher.scheduler.tau_s = tau_s
        self.tau_source = "operator"

    def release_tau(self) -> None:
        """Take back the operator's word on tau: what a flag said holds, or what was measured and learned."""
        self.dispatcher.scheduler.tau_s, self.tau_source = self._own_tau

    def learn_tau(self, tau_s: float, mu_short_s: float, source: str) -> bool:
        """Set tau as it was measured or learned; False, and it stays, if somebody has chosen one."""
        if self._own_tau[1] not in CHOSEN:
            self._own_tau = tau_s, source
        if self.tau_source in CHOSEN:
            return False
        self.dispatcher.scheduler.tau_s = tau_s
        self.tau_source = source
        self.mu_short_s = mu_short_s
        return True

    def resume(self) -> None:
        """Take work, and start it."""
        self.dispatcher.scheduler.resume()
        self.draining = False

    def go_down(self) -> None:
        """Take nothing new, and end with what runs."""
        self.draining = self.stopping = True

    def set_clients(self, clients: Clients) -> None:
        """Schedule by other rules for clients from now on; what waits follows them."""

        def priority_of(job: Job) -> int:
            return clients.rules_of(job.client).clamped(job.priority)

        everybody = clients.defaults.tenant
        self.dispatcher.scheduler.set_tenants(clients.tenants, self.clock(), everybody, priority_of)
        self.dispatcher.moved()

    def _order_by(self, name: str) -> None:
        policy = in_turns_of(POLICIES[name], self.quantum_tokens)
        self.dispatcher.scheduler.set_policy(policy, self.clock())
