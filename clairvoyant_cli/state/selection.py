"""Which rows of all that waits are shown, and in what order: a screen and a daemon choose by the same rules.

A daemon chooses among all that waits, and sends a window of what it chose; a screen chooses among what it was
sent, until the daemon has followed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

SortKey = float | str | tuple[float | str, ...]
UNSAID_LEVEL = 2
"""Where nobody said how urgent a request is, it counts as one of the middle."""

_CLASS_ORDER = {"short": 0.0, "medium": 1.0, "long": 2.0}
_NEVER_S = 1e12
_RowT = TypeVar("_RowT")


@dataclass(frozen=True, slots=True)
class Order:
    """How a table is sorted and filtered; an empty `by` keeps the daemon's order. `group` is the kind and the
    name of the group whose rows alone are shown, ("", "") for all.
    """

    by: str = ""
    reverse: bool = False
    filter: str = ""
    group: tuple[str, str] = ("", "")

    @property
    def narrows(self) -> bool:
        """Whether rows are left out."""
        return bool(self.filter.strip() or self.group[0])

    @property
    def is_natural(self) -> bool:
        """Whether the rows stand as they came."""
        return not (self.by or self.reverse or self.narrows)


NATURAL = Order()


@dataclass(frozen=True, slots=True)
class Selection:
    """That rows were chosen in an order, `total` of all there are, and sent from the `first` on (from 1)."""

    order: Order
    first: int
    total: int


class Predicted(Protocol):
    """What is looked at of a prediction."""

    @property
    def length_class(self) -> str: ...
    @property
    def p_long(self) -> float: ...
    @property
    def expected_tokens(self) -> float: ...
    @property
    def q90_tokens(self) -> float: ...


class Waiting(Protocol):
    """What is looked at of a request that waits; see `QueuedRequest`."""

    @property
    def id(self) -> str: ...
    @property
    def rank(self) -> int: ...
    @property
    def age_s(self) -> float: ...
    @property
    def endpoint(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def client(self) -> str: ...
    @property
    def predicted(self) -> Predicted: ...
    @property
    def eta_s(self) -> float | None: ...
    @property
    def held(self) -> bool: ...
    @property
    def promoted(self) -> bool: ...
    @property
    def priority(self) -> int: ...
    @property
    def cuts(self) -> int: ...
    @property
    def urgency(self) -> int | None: ...
    @property
    def backends(self) -> tuple[str, ...]: ...
    @property
    def rank_fcfs(self) -> int | None: ...


def class_order(length_class: str) -> float:
    """Return where a length class stands among the others."""
    return _CLASS_ORDER.get(length_class, 3.0)


SORTS: Mapping[str, Callable[[Waiting], SortKey]] = {
    "rank": lambda row: row.rank,
    "id": lambda row: row.id,
    "class": lambda row: class_order(row.predicted.length_class),
    "level": lambda row: UNSAID_LEVEL if row.urgency is None else row.urgency,
    "p_long": lambda row: row.predicted.p_long,
    "tokens": lambda row: row.predicted.expected_tokens,
    "q90": lambda row: row.predicted.q90_tokens,
    "eta": lambda row: _NEVER_S if row.eta_s is None else row.eta_s,
    "age": lambda row: row.age_s,
    "ghost": lambda row: (row.rank_fcfs or row.rank) - row.rank,
    "only": lambda row: ", ".join(row.backends),
    "priority": lambda row: row.priority,
    "model": lambda row: row.model,
    "client": lambda row: row.client,
    "endpoint": lambda row: row.endpoint,
}
"""What the queue can be sorted by: the names of its columns."""


def words_of(row: Waiting) -> str:
    """Return what a filter looks at."""
    flags = f"{'held ' * row.held}{'promoted ' * row.promoted}{'suspended ' * bool(row.cuts)}"
    level = "" if row.urgency is None else f"level{row.urgency} "
    return f"{row.id} {row.model} {row.client} {row.endpoint} {row.predicted.length_class} {level}{flags}"


def group_of(row: Waiting, kind: str) -> str:
    """Return the name of the group of a kind that a row is of: a backend's if no other can serve it."""
    if kind == "backend":
        return row.backends[0] if len(row.backends) == 1 else ""
    return row.client if kind == "client" else row.model


def select(
    rows: Sequence[_RowT],
    order: Order,
    *,
    words: Callable[[_RowT], str],
    group: Callable[[_RowT, str], str],
    sort: Callable[[_RowT], SortKey] | None,
) -> Sequence[_RowT]:
    """Return the rows that pass the filter, sorted."""
    rows = narrowed(rows, order, words=words, group=group)
    if sort is None:
        return rows[::-1] if order.reverse else rows
    return sorted(rows, key=sort, reverse=order.reverse)


def narrowed(
    rows: Sequence[_RowT],
    order: Order,
    *,
    words: Callable[[_RowT], str],
    group: Callable[[_RowT, str], str],
) -> Sequence[_RowT]:
    """Return the rows that pass the filter. Every word must match; a word after `!` must not."""
    kind, name = order.group
    if kind:
        rows = [row for row in rows if group(row, kind) == name]
    wanted = order.filter.lower().split()
    if wanted:
        rows = [row for row in rows if _matches(words(row).lower(), wanted)]
    return rows


def _matches(text: str, words: list[str]) -> bool:
    return all(
        (word[1:] not in text) if word.startswith("!") else (word in text) for word in words if word != "!"
    )
