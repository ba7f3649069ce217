"""Where snapshots come from and where actions go: the only seam between the screen and a daemon."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from tui.snapshot import Snapshot


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


ON_REQUEST = frozenset({Verb.CANCEL, Verb.PROMOTE, Verb.HOLD, Verb.RELEASE, Verb.PRIORITY, Verb.URGENCY})
"""What is done to one request; the others are done to the daemon."""


@dataclass(frozen=True, slots=True)
class Action:
    """One request of the operator. `id` names a request, or a backend; `value` is a priority, a level of
    urgency, a policy, tau in seconds (0: no guard), or what is done to the backend: drain, up, remove.
    """

    verb: Verb
    id: str | None = None
    value: str | int | float | None = None

    def body(self) -> dict[str, str | int | float | None]:
        """Return the JSON body the daemon expects."""
        body: dict[str, str | int | float | None] = {}
        if self.id is not None:
            body["name" if self.verb is Verb.BACKEND else "id"] = self.id
        if self.verb in _VALUE_FIELD:
            body[_VALUE_FIELD[self.verb]] = self.value
        return body


_VALUE_FIELD = {
    Verb.PRIORITY: "priority",
    Verb.URGENCY: "level",
    Verb.POLICY: "policy",
    Verb.TAU: "tau_s",
    Verb.BACKEND: "do",
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

    def look(self, first: int) -> None:
        """Have the rows of the queue sent from this rank on, where it is too long to be sent whole."""
        ...

    async def act(self, action: Action) -> ActionResult:
        """Ask the daemon to do something. Never raises for a refusal or a lost daemon."""
        ...
