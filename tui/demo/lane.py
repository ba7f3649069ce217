"""A toy queue with slots, stepped through virtual time. It has just enough of the real one to be watched.

The daemon of the demo runs two of them on the same traffic: one in the order under show, and one in the
order of arrival, so that what first-come-first-served would have cost is measured, not made up.
"""

from collections import deque
from dataclasses import dataclass, field
from itertools import count

from tui.snapshot import MoveRecord, PredictionState


@dataclass(frozen=True, slots=True)
class Ask:
    """A request before it is queued. `prefill_s` passes before the first token."""

    id: str
    arrived_at: float
    tokens: int
    prefill_s: float
    tokens_per_s: float
    predicted: PredictionState
    endpoint: str
    model: str
    client: str
    prompt_tokens: float
    streaming: bool
    text: str

    @property
    def service_s(self) -> float:
        """How long it holds its slot."""
        return self.prefill_s + self.tokens / self.tokens_per_s


@dataclass(slots=True)
class Ticket:
    """A request in the lane."""

    ask: Ask
    held: bool = False
    promoted: int = 0
    priority: int = 0
    started_at: float = 0.0
    slot: int = 0
    reason: str = "policy"
    moves: list[MoveRecord] = field(default_factory=list)

    def note(self, at: float, kind: str, text: str = "") -> None:
        """Write down a move."""
        self.moves.append(MoveRecord(at, kind, text))


class Lane:
    """Waiting and running requests under one policy; `finished` is for the owner to empty."""

    def __init__(self, policy: str, slots: int, tau_s: float | None) -> None:
        self.policy = policy
        self.tau_s = tau_s
        self.paused = False
        self.waiting: dict[str, Ticket] = {}
        self.running: dict[int, Ticket] = {}
        self.finished: list[tuple[Ticket, float]] = []
        self.fired = 0
        self.firings: deque[tuple[float, str]] = deque(maxlen=64)
        self._slots = slots
        self._promotions = count(-1_000_000)

    def submit(self, ask: Ask) -> None:
        """Queue a request."""
        ticket = Ticket(ask)
        ticket.note(ask.arrived_at, "submitted")
        self.waiting[ask.id] = ticket

    def advance(self, now: float) -> None:
        """Let the slots work until `now`."""
        for slot, ticket in list(self.running.items()):
            ends_at = ticket.started_at + ticket.ask.service_s
            if ends_at <= now:
                del self.running[slot]
                self.finished.append((ticket, ends_at))
        while len(self.running) < self._slots and not self.paused:
            chosen = self._next(now)
            if chosen is None:
                return
            self._start(chosen, now)

    def order(self, now: float) -> list[Ticket]:
        """Return the waiting requests, the next one first: those past tau by age, then by key."""
        late = [ticket for ticket in self._by_age() if self._overdue(ticket, now)]
        rest = [ticket for ticket in self.waiting.values() if ticket.held or not self._overdue(ticket, now)]
        return late + sorted(rest, key=self._key)

    def promote(self, ticket: Ticket, now: float) -> None:
        """Put a request before the others."""
        ticket.promoted = next(self._promotions)
        ticket.held = False
        ticket.note(now, "promoted", "by the operator")

    def _key(self, ticket: Ticket) -> tuple[float, ...]:
        chance = ticket.ask.predicted.p_long if self.policy == "sjf" else 0.0
        return (ticket.held, ticket.promoted, ticket.priority, chance, ticket.ask.arrived_at)

    def _next(self, now: float) -> Ticket | None:
        free = self._by_age()
        if not free:
            return None
        if self._overdue(free[0], now):
            self.fired += 1
            self.firings.append((now, free[0].ask.id))
            free[0].reason = "tau"
            return free[0]
        best = min(free, key=self._key)
        best.reason = "promoted" if best.promoted else "policy"
        return best

    def _by_age(self) -> list[Ticket]:
        free = [ticket for ticket in self.waiting.values() if not ticket.held]
        return sorted(free, key=lambda ticket: ticket.ask.arrived_at)

    def _overdue(self, ticket: Ticket, now: float) -> bool:
        if self.tau_s is None or self.policy == "fcfs":
            return False
        return now - ticket.ask.arrived_at > self.tau_s

    def _start(self, ticket: Ticket, now: float) -> None:
        del self.waiting[ticket.ask.id]
        ticket.slot = min(slot for slot in range(self._slots) if slot not in self.running)
        ticket.started_at = now
        ticket.note(now, "dispatched", ticket.reason)
        self.running[ticket.slot] = ticket
