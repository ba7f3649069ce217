"""Running means of what requests turned out to take, each client's by its own answers: what a client chooses,
such as a model's name, or how long a recording claims to be, changes little for others.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from statistics import median_low

WEIGHT = 0.3  # of the latest value
MOST_AT_ONCE = 4.0  # factor by which one value may differ from the mean, to count in full
MOST_CLIENTS = 256
MOST_KEYS = 64  # for each client


@dataclass(slots=True)
class Mean:
    value: float
    learned: int = 1


@dataclass(slots=True)
class ClientMeans:
    """Means by client and key. Beyond the limits, the clients without recent answers are forgotten, and of
    one client the keys with the fewest.
    """

    _known: OrderedDict[str, dict[Hashable, Mean]] = field(default_factory=OrderedDict)

    def get(self, key: Hashable, client: str = "") -> float | None:
        """Return a client's mean; one without any has the median of the others'. None if nobody has one."""
        own = self._known.get(client, {}).get(key)
        if own is not None:
            return own.value
        values = [means[key].value for means in self._known.values() if key in means]
        return median_low(values) if values else None

    def learn(self, key: Hashable, client: str, value: float) -> None:
        """Learn a value, which is not negative."""
        means = self._known.setdefault(client, {})
        self._known.move_to_end(client)
        if len(self._known) > MOST_CLIENTS:
            self._known.popitem(last=False)
        mean = means.get(key)
        if mean is not None:
            near = min(max(value, mean.value / MOST_AT_ONCE), mean.value * MOST_AT_ONCE)
            mean.value += WEIGHT * (near - mean.value)
            mean.learned += 1
            return
        if len(means) >= MOST_KEYS:
            del means[min(means, key=lambda each: means[each].learned)]
        means[key] = Mean(value)
