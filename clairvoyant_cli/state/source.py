"""Where snapshots come from and where actions go: the only seam between the screen and a daemon."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from clairvoyant_cli.state.selection import NATURAL, Order
from clairvoyant_cli.state.snapshot import PolicyOutlook, QueuedRequest, Snapshot


class Verb(StrEnum):
    """What an operator may ask of the daemon; the value is the name of the action on the wire."""

    CANCEL = "cancel"
    PROMOTE = "promote"
    HOLD = "hold"
    RELEASE = "release"
    PRIORITY = "priority"
    URGENCY = "urgency"
    PAUSE = "pause"
    RESUME = "resume"
    DRAIN = "drain"
    POLICY = "policy"
    TAU = "tau"
    RELOAD = "reload"
    BACKEND = "backend"
    MODEL = "model"


ON_REQUEST = frozenset({Verb.CANCEL, Verb.PROMOTE, Verb.HOLD, Verb.RELEASE, Verb.PRIORITY, Verb.URGENCY})
"""What is done to one request; the others are done to the daemon."""


@dataclass(frozen=True, slots=True)
class Action:
    """One request of the operator. `id` names a request, a backend, a model, or with a `kind` (client, model,
    backend) a group of requests; `value` is a priority, a level of urgency, a policy, tau in seconds (0: no
    guard), or what is done to the backend (drain, up, remove) or the model (load, unload).
    """

    verb: Verb
    id: str | None = None
    value: str | int | float | None = None
    kind: str = ""

    def body(self) -> dict[str, str | int | float | None]:
        """Return the JSON body the daemon expects."""
        body: dict[str, str | int | float | None] = {}
        if self.id is not None:
            named = self.kind or self.verb in (Verb.BACKEND, Verb.MODEL)
            body["name" if named else "id"] = self.id
        if self.kind:
            body["kind"] = self.kind
        if self.verb in _VALUE_FIELD:
            body[_VALUE_FIELD[self.verb]] = self.value
        return body


_VALUE_FIELD = {
    Verb.PRIORITY: "priority",
    Verb.URGENCY: "level",
    Verb.POLICY: "policy",
    Verb.TAU: "tau_s",
    Verb.BACKEND: "do",
    Verb.MODEL: "do",
}


@dataclass(frozen=True, slots=True)
class ActionResult:
    """Whether the daemon did it, and what it said."""

    done: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The daemon cannot be reached; the source goes on trying by itself."""

    reason: str
    retry_in_s: float | None = None


EVERY_S = 0.25
"""How often a screen draws a new state unless its operator wants another pace: four times a second look
alive, and cost less than half of what all states do that a daemon sends."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a screen has use for: a state every `every_s` seconds at most, and of a queue that is too long to
    be sent whole, the rows from the `first` on (from 1) when it stands in an `order`.
    """

    first: int = 1
    every_s: float = EVERY_S
    order: Order = NATURAL


class Source(Protocol):
    """A daemon, a simulated one, or a recording.

    `where` is what the header says; `local` tells whether this machine's GPU is the daemon's.
    """

    where: str
    local: bool

    def stream(self) -> AsyncIterator[Snapshot | Disconnected]:
        """Yield the newest state whenever it is asked for and there is a new one. States in between are
        skipped: who asks ten times a second decodes ten a second, whatever the daemon sends.
        """
        ...

    def look(self, wish: Wish) -> None:
        """Have sent what is wished from now on."""
        ...

    async def outlook(self) -> tuple[PolicyOutlook, ...]:
        """Return when what waits now would start under each policy; nothing where nobody can say."""
        ...

    async def waiting(self, order: Order) -> tuple[QueuedRequest, ...]:
        """Return all that waits and stands in an order; nothing where nobody can say."""
        ...

    async def past(self, before: float) -> bytes:
        """Return the newest page (see `state_history`) the daemon keeps that begins before a time, in epoch
        seconds; nothing where there is none.
        """
        ...

    async def act(self, action: Action) -> ActionResult:
        """Ask the daemon to do something. Never raises for a refusal or a lost daemon."""
        ...
