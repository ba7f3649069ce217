"""The starvation guard: when the longest-waiting job may overrule the policy.

What each form guarantees. Write w for the wait of a job so far and tau for the timeout.
* The paper's guard (`stretch` 0, `every` 0): whoever has waited longer than tau and longest is next. Once
  the backlog exceeds tau everybody has, so the queue runs in arrival order (Clairvoyant, section 3.4).
* Rationed (`every` n): at most one promotion for every n dispatches by policy, so order survives overload.
* Stretched (`stretch` r): the longest-waiting job goes first only once it has waited r times as long as the
  job it would displace. A job past tau is then overtaken only by jobs that arrived within the first
  (1 - 1/r) of its wait. With V seconds of work ahead on arrival and work arriving at no more than
  sigma + rho * t, one slot and no operator's or client's priorities, its wait is at most
  max(V + sigma + rho * tau, (V + sigma) / (1 - rho * (1 - 1/r))), give or take one job.
"""

from dataclasses import dataclass

SHORT_SERVICES_PER_TAU = 10.0
"""Tau in mean service times of a short request, for want of measured sojourns. At a utilisation of 0.74 that
is three to four mean short sojourns, near the paper's rule of three; three service times, the paper's figure
there, would cost a third of the gain at short P50."""


@dataclass(frozen=True, slots=True)
class Guard:
    """When a job that has waited longer than tau is promoted; the defaults are the paper's guard."""

    every: int = 0
    stretch: float = 0.0

    def allows(self, longest_s: float, displaced_s: float, since: int) -> bool:
        """Say whether a job past tau goes first now.

        `longest_s` and `displaced_s` are its wait and that of the job the policy would start, in seconds;
        `since` counts the dispatches by policy since the last promotion.
        """
        return since >= self.every and longest_s > self.stretch * displaced_s
