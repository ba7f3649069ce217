"""What an operator's action does: in words, and to a field of the state."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clairvoyant_cli.state.actions import Action, Verb
from clairvoyant_cli.state.snapshot import QueuedRequest, RunningRequest, Snapshot

SETTLED_S = 1.5  # after an action has been confirmed, states from before it may come in for this long
_MODES = {Verb.PAUSE: "paused", Verb.RESUME: "serving", Verb.DRAIN: "draining"}  # the mode after each


@dataclass(frozen=True, slots=True)
class Effect:
    """An action, and what is said of it once it is done. `field`, if it changes one that a key looks at,
    `becomes` this value.
    """

    action: Action
    said: str
    field: str = ""
    becomes: Any = None


def standing(field: str, ident: str | None, snapshot: Snapshot) -> Any:
    """Return a field of a request, or of the daemon, as it stands; None if it is not shown."""
    return getattr(_request(ident, snapshot) if ident else snapshot, field, None)


def _request(ident: str | None, snapshot: Snapshot) -> QueuedRequest | RunningRequest | None:
    return next((row for row in snapshot.alive if row.id == ident), None)


def effect_of(action: Action, snapshot: Snapshot) -> Effect:
    verb, ident, value = action.verb, action.id, action.value
    match verb:
        case Verb.PROMOTE:
            return Effect(action, f"promoted {ident}")
        case Verb.HOLD:
            return Effect(action, f"held {ident}", "held", True)
        case Verb.RELEASE:
            return Effect(action, f"released {ident}", "held", False)
        case Verb.CANCEL:
            return Effect(action, f"cancelled {ident}")
        case Verb.PRIORITY:
            before = standing("priority", ident, snapshot)
            was = "" if before is None else f"{before} "
            return Effect(action, f"priority of {ident} {was}→ {value}", "priority", value)
        case Verb.URGENCY:
            level = standing("urgency", ident, snapshot)
            return Effect(action, f"urgency of {ident} {'none' if level is None else level} → {value}")
        case Verb.PAUSE | Verb.RESUME | Verb.DRAIN:
            mode = _MODES[verb]
            return Effect(action, "resumed" if verb is Verb.RESUME else mode, "mode", mode)
        case Verb.POLICY:
            return Effect(action, f"policy {snapshot.policy} → {value}")
        case Verb.TAU:
            return Effect(action, f"tau {_tau(snapshot.tau.tau_s)} → {_tau(value)}")
        case Verb.BACKEND if value in ("drain", "up"):
            return Effect(action, f"draining {ident}" if value == "drain" else f"{ident} is up")
    return Effect(action, " ".join(str(each) for each in (verb, value, ident) if each) + ": done")


def _tau(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:g} s" if value else "off"


def said_of(effects: Sequence[Effect]) -> str:
    """Return what actions did together: `promoted abc-7`, or `promoted 3 requests`."""
    if len(effects) == 1:
        return effects[0].said
    kinds = Counter(each.said.partition(" ")[0] for each in effects)
    return ", ".join(f"{word} {number}" for word, number in kinds.items()) + " requests"
