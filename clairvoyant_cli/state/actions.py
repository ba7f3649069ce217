"""What an operator can ask of the daemon: one table for the control API, `act`, `top` and the reference."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.system import for_shell

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
    BACKGROUND = "background"
    INTERACTIVE = "interactive"


@dataclass(frozen=True, slots=True)
class Command:
    """How a verb is written and sent, and what it does."""

    fields: tuple[str, ...]  # the keys of its JSON body, in the order in which their values are written
    body: str  # describes the whole
    help: str
    key: str = ""  # of `top`, in Textual's notation
    hint: str = ""  # the word for it in the footer


_ID = '{"id": REQUEST}'
COMMANDS: Mapping[Verb, Command] = {
    Verb.CANCEL: Command(("id",), _ID, "Cancel a queued or running request.", "x", "cancel"),
    Verb.PROMOTE: Command(("id",), _ID, "Move a queued request to the front.", "t", "to top"),
    Verb.HOLD: Command(("id",), _ID, "Hold a queued request.", "H", "hold"),
    Verb.RELEASE: Command(("id",), _ID, "Release a held request.", "H"),
    Verb.PRIORITY: Command(
        ("id", "priority"),
        '{"id": REQUEST, "priority": -100 to 100}',
        "Set a queued request's priority; lower runs sooner.",
        "plus,minus",
    ),
    Verb.URGENCY: Command(
        ("id", "level"), '{"id": REQUEST, "level": 0 to 4}', "Set a request's urgency level.", "U"
    ),
    Verb.PAUSE: Command((), "{}", "Stop dispatching; new requests wait.", "P", "pause"),
    Verb.RESUME: Command((), "{}", "Resume after a pause or a drain.", "P"),
    Verb.DRAIN: Command((), "{}", "Reject new requests; finish queued and running ones.", "D"),
    Verb.POLICY: Command(("policy",), '{"policy": NAME}', "Change the scheduling policy.", "m", "policy"),
    Verb.TAU: Command(
        ("tau_s",),
        '{"tau_s": 0 to 86400, or "auto"}',
        "Set the starvation timeout; 0 disables it, `auto` restores the flag's or the learned one.",
        "T",
    ),
    Verb.RELOAD: Command((), "{}", "Reload the clients file."),
    Verb.BACKEND: Command(
        ("do", "name"),
        '{"do": "drain", "up" or "remove", "name": SERVER}, or {"do": "add", "url": URL, "key": KEY, ...}',
        "Drain, bring up, remove or add a server. One to add takes the keys of `[[backends]]`.",
        "B",
    ),
    Verb.MODEL: Command(
        ("do", "name"), '{"do": "load" or "unload", "name": MODEL}', "Load or unload a model on its servers."
    ),
    Verb.BACKGROUND: Command(
        ("name",), '{"name": CLIENT}', "Let all requests of a client, such as a program, wait behind others."
    ),
    Verb.INTERACTIVE: Command(
        ("name",), '{"name": CLIENT}', "Let no request of a client wait behind others as background request."
    ),
}
TARGETS = ("id", "name")
"""The fields that name what a verb acts on."""


@dataclass(frozen=True, slots=True)
class Action:
    """One request of the operator. `id` names a request, a server or a model; `value` is a priority, a level,
    a policy, tau in seconds (0: none), or what to do with the server or model.
    """

    verb: Verb
    id: str | None = None
    value: str | int | float | None = None

    def body(self) -> dict[str, str | int | float | None]:
        return {field: self.id if field in TARGETS else self.value for field in COMMANDS[self.verb].fields}


def printed(verb: Verb, name: str) -> str:
    """Return the command for what a verb does to a name, quoted for a shell."""
    is_plain = "=" not in name and not name.startswith("-")
    return for_shell("clairvoyant", "act", verb, name if is_plain else f"name={name}")


def arguments_of(verb: Verb, words: Sequence[str]) -> dict[str, Any]:
    """Read what is written after a verb: KEY=VALUE, or values in the order of its fields."""
    command, given = COMMANDS[verb], dict[str, Any]()
    for word in words:
        key, is_one, value = word.partition("=")
        if not is_one or (verb is not Verb.BACKEND and key not in command.fields):  # names may have a "="
            free = [field for field in command.fields if field not in given]
            if not free:
                usage = " ".join((verb, *map(str.upper, command.fields)))
                raise ClairvoyantError(f"{word!r} is too much: {usage}, or KEY=VALUE", ExitCode.USAGE)
            key, value = free[0], word
        given[key] = _value(key, value)
    return given


def _value(key: str, value: str) -> Any:
    if key == "tau_s":
        value = "0" if value == "off" else value.removesuffix("s")
    try:
        read = None if key in TARGETS else json.loads(value)
    except ValueError:
        read = None
    return read if isinstance(read, int | float) else value
