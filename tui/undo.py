"""What an operator's action did, in words, and what undoes it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clairvoyant_cli.state.actions import AUTO, COMMANDS, Action, Verb
from clairvoyant_cli.state.snapshot import BackendState, QueuedRequest, RunningRequest, Snapshot

SETTLED_S = 1.5  # after an action has been confirmed, states from before it may come in for this long
_UNSAID_LEVEL = 2
_MAX_PRIORITY = 100
_MODES = {Verb.PAUSE: "paused", Verb.RESUME: "serving", Verb.DRAIN: "draining"}  # the mode after each


@dataclass(frozen=True, slots=True)
class UndoableAction:
    """A sent action. `field`, which it changes, is `becomes` after it; `undo` changes it back."""

    action: Action
    said: str
    field: str = ""
    becomes: Any = None
    undo: tuple[Action, ...] = ()


def standing(field: str, ident: str | None, snapshot: Snapshot) -> Any:
    """Return a field that an action changes as it stands; None if it is not shown."""
    if field == "tau_s":
        return snapshot.tau.tau_s or 0.0
    return getattr(_row(ident, snapshot) if ident else snapshot, field, None) if field else None


def _row(ident: str | None, snapshot: Snapshot) -> QueuedRequest | RunningRequest | BackendState | None:
    found = next((row for row in snapshot.alive if row.id == ident), None)
    return found or next((each for each in snapshot.backends if each.name == ident), None)


def undoable(action: Action, snapshot: Snapshot) -> UndoableAction:
    row = _row(action.id, snapshot)
    on_request = "id" in COMMANDS[action.verb].fields
    return _on_request(action, row) if on_request else _on_daemon(action, row, snapshot)


def _on_request(action: Action, row: object) -> UndoableAction:
    verb, ident, value = action.verb, action.id, action.value
    waits = row if isinstance(row, QueuedRequest) else None
    back = () if waits is None else (Action(Verb.PRIORITY, ident, min(waits.priority, _MAX_PRIORITY)),)
    match verb:
        case Verb.PROMOTE:
            if waits is not None:
                back = () if waits.promoted else (*back, *[Action(Verb.HOLD, ident)] * waits.held)
            return UndoableAction(action, f"promoted {ident}", "promoted", True, back)
        case Verb.HOLD:
            return UndoableAction(action, f"held {ident}", "held", True, (Action(Verb.RELEASE, ident),))
        case Verb.RELEASE:
            return UndoableAction(action, f"released {ident}", "held", False, (Action(Verb.HOLD, ident),))
        case Verb.PRIORITY:
            if waits is not None and waits.promoted:
                back = (Action(Verb.PROMOTE, ident),)
            was = f"{waits.priority} " if waits is not None else ""
            return UndoableAction(action, f"priority of {ident} {was}→ {value}", "priority", value, back)
        case Verb.URGENCY:
            level = getattr(row, "urgency", None)
            back = () if row is None else (Action(verb, ident, _UNSAID_LEVEL if level is None else level),)
            was = "none" if level is None else level
            return UndoableAction(action, f"urgency of {ident} {was} → {value}", "urgency", value, back)
    return UndoableAction(action, f"cancelled {ident}")


def _on_daemon(action: Action, row: object, snapshot: Snapshot) -> UndoableAction:
    verb, ident, value = action.verb, action.id, action.value
    back: tuple[Action, ...] = ()
    match verb:
        case Verb.PAUSE | Verb.RESUME | Verb.DRAIN:
            before, after = snapshot.mode, _MODES[verb]
            if before != after and "serving" in (before, after):
                back = tuple(Action(each) for each, mode in _MODES.items() if mode == before)
            return UndoableAction(action, "resumed" if verb is Verb.RESUME else after, "mode", after, back)
        case Verb.POLICY:
            back = (Action(verb, value=snapshot.policy),)
            return UndoableAction(action, f"policy {snapshot.policy} → {value}", "policy", value, back)
        case Verb.TAU:
            tau = snapshot.tau
            back = (Action(verb, value=tau.tau_s or 0.0 if tau.source == "operator" else AUTO),)
            becomes_s = None if value == AUTO else value
            return UndoableAction(action, f"tau {_tau(tau.tau_s)} → {_tau(value)}", "tau_s", becomes_s, back)
        case Verb.BACKEND if value in ("drain", "up"):
            now = getattr(row, "standing", None)
            if (value, now) in (("drain", ""), ("up", "draining")):
                back = (Action(verb, ident, "up" if value == "drain" else "drain"),)
            said = f"draining {ident}" if value == "drain" else f"{ident} is up"
            return UndoableAction(action, said, "standing", "draining" if value == "drain" else None, back)
    return UndoableAction(action, " ".join(str(each) for each in (verb, value, ident) if each) + ": done")


def _tau(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:g} s" if value else "off"


def said_of(actions: Sequence[UndoableAction]) -> str:
    """Return what actions did together: `promoted abc-7`, or `promoted 3 requests`."""
    if len(actions) == 1:
        return actions[0].said
    kinds = Counter(each.said.partition(" ")[0] for each in actions)
    return ", ".join(f"{word} {number}" for word, number in kinds.items()) + " requests"


def cannot_undo(actions: Sequence[UndoableAction], state: Snapshot, *, settled: bool) -> str:
    """Say why actions cannot be undone, or nothing. Once `settled`, all must stand as they left it."""
    if not any(each.undo for each in actions):
        return "cannot be undone"
    for each in actions if settled else ():
        now = standing(each.field, each.action.id, state)
        if each.action.id and each.action.verb is not Verb.BACKEND and now is None:
            return "it has started or ended since: nothing was undone"
        if each.becomes is not None and now != each.becomes:
            return "it was changed since: nothing was undone"
    return ""
