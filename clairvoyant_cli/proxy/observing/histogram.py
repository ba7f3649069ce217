"""A Prometheus histogram that costs a microsecond to add to; it is cumulated when somebody asks.

prometheus_client's own takes a lock and walks its buckets for each value, eight times a request.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Histogram(Collector):
    """Counts values by bucket (upper bounds, ascending), and by the values of one label if it has one."""

    def __init__(
        self, name: str, text: str, buckets: Sequence[float], registry: CollectorRegistry, label: str = ""
    ) -> None:
        self._name = name
        self._text = text
        self._label = label
        self._buckets = buckets
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}
        if not label:
            self._begin("")
        registry.register(self)

    def observe(self, value: float, label: str = "") -> None:
        """Count a value."""
        if label not in self._counts:
            self._begin(label)
        self._counts[label][bisect_left(self._buckets, value)] += 1
        self._sums[label] += value

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yield the counts, as Prometheus wants them: each bucket with all below it."""
        family = HistogramMetricFamily(self._name, self._text, labels=[self._label] if self._label else None)
        bounds = [*map(floatToGoString, self._buckets), "+Inf"]
        for label, counts in self._counts.items():
            below = 0
            cumulated = []
            for bound, count in zip(bounds, counts, strict=True):
                below += count
                cumulated.append((bound, below))
            family.add_metric([label] if self._label else [], cumulated, self._sums[label])
        yield family

    def _begin(self, label: str) -> None:
        self._counts[label] = [0] * (len(self._buckets) + 1)
        self._sums[label] = 0.0
