"""What an operator can ask of the daemon: one table for the control API, `act`, `top` and the reference."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

AUTO = "auto"
"""As `tau_s`: undo an operator's choice, and use the flag's tau or the learned one again."""


class Verb(StrEnum):
    """The name of an action on the wire."""

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


@dataclass(frozen=True, slots=True)
class Command:
    """How a verb is sent, and what it does. `target` and `value` are the keys of what it acts on and of its
    value in the JSON body, "" if it has none; `body` describes the whole. `key` is the key of `top` in
    Textual's notation, `hint` the word for it in the footer.
    """

    target: str
    value: str
    body: str
    help: str
    key: str = ""
    hint: str = ""


_ID = '{"id": REQUEST}'
COMMANDS: Mapping[Verb, Command] = {
    Verb.CANCEL: Command("id", "", _ID, "Cancel a queued or running request.", "x", "cancel"),
    Verb.PROMOTE: Command("id", "", _ID, "Move a queued request to the front.", "t", "to top"),
    Verb.HOLD: Command("id", "", _ID, "Hold a queued request.", "h", "hold"),
    Verb.RELEASE: Command("id", "", _ID, "Release a held request.", "h"),
    Verb.PRIORITY: Command(
        "id",
        "priority",
        '{"id": REQUEST, "priority": -100 to 100}',
        "Set a queued request's priority; lower runs sooner.",
        "plus,minus",
    ),
    Verb.URGENCY: Command(
        "id", "level", '{"id": REQUEST, "level": 0 to 4}', "Set a request's urgency level.", "U"
    ),
    Verb.PAUSE: Command("", "", "{}", "Stop dispatching; new requests wait.", "P", "pause"),
    Verb.RESUME: Command("", "", "{}", "Resume after a pause or a drain.", "P"),
    Verb.DRAIN: Command("", "", "{}", "Reject new requests; finish queued and running ones.", "d"),
    Verb.POLICY: Command("", "policy", '{"policy": NAME}', "Change the scheduling policy.", "m", "policy"),
    Verb.TAU: Command(
        "",
        "tau_s",
        '{"tau_s": 0 to 86400, or "auto"}',
        "Set the starvation timeout; 0 disables it, `auto` restores the flag's or the learned one.",
        "u",
        "tau",
    ),
    Verb.RELOAD: Command("", "", "{}", "Reload the clients file."),
    Verb.BACKEND: Command(
        "name",
        "do",
        '{"do": "drain", "up" or "remove", "name": SERVER}, or {"do": "add", "url": URL, ...}',
        "Drain, bring up, remove or add a server. One to add takes the keys of `[[backends]]`, with `key` "
        "instead of `key_file`.",
        "b",
    ),
    Verb.MODEL: Command(
        "name", "do", '{"do": "load" or "unload", "name": MODEL}', "Load or unload a model on its servers."
    ),
}


@dataclass(frozen=True, slots=True)
class Action:
    """One request of the operator. `id` names a request, a server or a model; `value` is a priority, a level,
    a policy, tau in seconds (0: none), or what to do with the server or model.
    """

    verb: Verb
    id: str | None = None
    value: str | int | float | None = None

    def body(self) -> dict[str, str | int | float | None]:
        """Return the JSON body."""
        command = COMMANDS[self.verb]
        body: dict[str, str | int | float | None] = {command.target: self.id} if command.target else {}
        return body | ({command.value: self.value} if command.value else {})
