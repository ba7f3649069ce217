"""The starvation timeout tau, and the guard that lets the longest-waiting job overrule the policy.

Where tau comes from, in this order: a setting (0 turns the guard off), the profile (3 x mu_short, the mean
sojourn time of short requests under load), the mean short service time, a default. A `tau_s` of None means
that there is no guard.

What each form of the guard guarantees, for a job that has waited longer than tau:
* The paper's guard (`stretch` 0, `every` 0): the longest-waiting job is next. Once the backlog exceeds tau,
  every job is past it, so the queue runs in arrival order (Clairvoyant, section 3.4).
* Rationed (`every` n): at most one promotion per n dispatches by policy, so the order survives overload.
* Stretched (`stretch` r): the longest-waiting job goes first only once it has waited r times as long as the
  job it would displace. A job past tau is then overtaken only by jobs that arrived within the first
  (1 - 1/r) of its wait. With V seconds of work ahead on arrival and work arriving at no more than
  sigma + rho * t, one slot and no priorities, its wait is at most
  max(V + sigma + rho * tau, (V + sigma) / (1 - rho * (1 - 1/r))), plus or minus one job.
"""

from collections.abc import Iterable
from dataclasses import dataclass

TAU_PER_MU_SHORT = 3.0  # tau = 3 x mu_short (Clairvoyant, section 3.4)

TAU_PER_SHORT_SERVICE = 10.0
"""Tau in mean service times of a short request, where no sojourn times are known. At a utilisation of 0.74
that is three to four mean short sojourns; the paper's factor of 3 would cost a third of the gain at P50."""

DEFAULT_TAU_S = 120.0  # without any measurement: the paper's value for an Apple M1 (Clairvoyant, section 3.4)


def tau_from_setting(seconds: float | None, default_s: float | None = DEFAULT_TAU_S) -> float | None:
    """Return the tau that a setting stands for: 0 means no guard, None the default."""
    return default_s if seconds is None else seconds or None


def mean_over_slots(by_slots: Iterable[tuple[int, float]]) -> float:
    """Return the mean of pairs (slots, mu_short or tau), weighted by slots: any slot may be free first."""
    pairs = list(by_slots)
    return sum(slots * value for slots, value in pairs) / sum(slots for slots, _ in pairs)


@dataclass(frozen=True, slots=True)
class Guard:
    """When a job past tau is promoted. The defaults are the paper's guard."""

    every: int = 0
    stretch: float = 0.0

    def allows(self, longest_s: float, displaced_s: float, since: int) -> bool:
        """Whether a job past tau goes first now.

        `longest_s` is its wait and `displaced_s` that of the job that the policy would start, in seconds;
        `since` counts the dispatches by policy since the last promotion.
        """
        return since >= self.every and longest_s > self.stretch * displaced_s
