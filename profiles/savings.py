"""Sums up how much longer requests would have waited in order of arrival.

The daemon compares each request once it has ended (`Finished.saved_s`); nothing is computed again here.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from profiles.percentiles import percentile
from profiles.records import Finished


@dataclass(frozen=True, slots=True)
class Group:
    """Sojourn times of the requests of one class, client or model, in seconds, as they were and in order of
    arrival, and the prompt tokens that were not read again. Negative savings are losses.
    """

    name: str
    requests: int
    mean_s: float
    in_order_mean_s: float
    p95_s: float
    in_order_p95_s: float
    saved_s: float
    spared_tokens: float = 0.0

    @property
    def change(self) -> float:
        """Relative change of the mean sojourn time against order of arrival; -0.5 is half."""
        return self.mean_s / self.in_order_mean_s - 1 if self.in_order_mean_s else 0.0


def compared(rows: Iterable[Finished]) -> list[Finished]:
    """Return the requests that were compared with order of arrival."""
    return [row for row in rows if row.saved_s is not None]


def group(rows: Sequence[Finished], of: Callable[[Finished], str]) -> list[Group]:
    """Return the groups of compared requests, largest saving first."""
    groups: dict[str, list[Finished]] = defaultdict(list)
    for each in rows:
        groups[of(each)].append(each)
    made = []
    for name, found in groups.items():
        taken = sorted(each.sojourn_s for each in found)
        in_order = sorted(each.sojourn_s + (each.saved_s or 0.0) for each in found)
        p95_s = percentile(taken, 0.95), percentile(in_order, 0.95)
        saved_s = sum(each.saved_s or 0.0 for each in found)
        spared_tokens = sum(each.spared_tokens or 0.0 for each in found)
        made.append(Group(name, len(found), fmean(taken), fmean(in_order), *p95_s, saved_s, spared_tokens))
    return sorted(made, key=lambda each: -each.saved_s)
