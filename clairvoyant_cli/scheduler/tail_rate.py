"""The decay rate of the tail of waiting times, which sets how far a short job may go ahead (policy `boost`).

With one slot and exponential service times of mean m, the chance of a sojourn beyond t decays as
exp(-g t), g = (1 - rho) / m. Answers vary more, so that g is lower by half: with log-normal answers
(sigma 1.1) 0.46 to 0.56 of that at loads of 0.4 to 0.9, as the root of lambda (E[exp(g S)] - 1) = g.
"""

from collections import deque

LATEST = 200  # arrivals and answers from which load and mean service time are taken
LEAST = 10  # before so many answers the usual rate is used

SHARE = 0.5
SPARE = 0.08, 0.36
"""Bounds on 1 - rho: in an overload short jobs still do not pass all others, and at low load the order of
arrival costs short jobs more than it saves long ones."""

USUAL_RATE = 0.02  # per second: the rate at a load of 0.7 with answers of 8 s
CHANGE = 0.2  # a smaller change of the rate does not move any job


class TailRate:
    """Learns the rate from arrivals and service times; `slots` of all servers work as one faster slot."""

    def __init__(self, weight: float = 1.0) -> None:
        """Start with the usual rate and one slot. `weight` is the operator's factor on each rate."""
        self.weight, self.slots = weight, 1
        self.rate = weight * USUAL_RATE
        self._arrived_s: deque[float] = deque(maxlen=LATEST)
        self._served_s: deque[float] = deque(maxlen=LATEST)

    def arrived(self, now: float) -> None:
        self._arrived_s.append(now)

    def served(self, service_s: float, slots: int, now: float) -> bool:
        """Note a service time in seconds; return whether `rate` or `slots` have changed."""
        self._served_s.append(service_s)
        if len(self._served_s) < LEAST:
            return False
        mean_s = max(sum(self._served_s) / len(self._served_s) / slots, 1e-3)
        over_s = max(now - self._arrived_s[0], 1e-3) if self._arrived_s else 1e-3
        spare = 1.0 - len(self._arrived_s) * mean_s / over_s
        rate = self.weight * SHARE * min(max(spare, SPARE[0]), SPARE[1]) / mean_s
        if slots == self.slots and abs(rate - self.rate) <= CHANGE * self.rate:
            return False
        self.rate, self.slots = rate, slots
        return True


class FixedRate(TailRate):
    """The rate as another has learned it, for a simulation, whose pace is not that of arrivals."""

    def __init__(self, learned: TailRate) -> None:
        super().__init__(learned.weight)
        self.rate, self.slots = learned.rate, learned.slots

    def served(self, service_s: float, slots: int, now: float) -> bool:
        return False
