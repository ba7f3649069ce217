"""Chores: what a chat front end asks a model for on its own, such as a title for the conversation.

A file under `frontends/` tells how those of one front end are known; any client may name one itself, in a
header. Of most of them nobody waits for the answer, and each has short answers of its own kind.
"""

import tomllib
from collections.abc import Iterator
from importlib.resources import files

from clairvoyant_cli.protocols.printable import decoded, printable
from predictor.record import Chore, PromptView, Task

CHORE_HEADER = b"x-clairvoyant-chore"


def _known() -> Iterator[tuple[Chore, tuple[str, ...]]]:
    for file in files("clairvoyant_cli.protocols").joinpath("frontends").iterdir():
        for each in tomllib.loads(file.read_text("utf-8"))["chore"]:
            chore = Chore(
                each["name"], float(each["tokens"]), each.get("waited_for", False), each.get("along", False)
            )
            yield chore, tuple(each["opens"])


OPENINGS = tuple((opening, chore) for chore, opens in _known() for opening in opens)
FIRST_WORDS = tuple(opening for opening, _ in OPENINGS)
BY_NAME = {chore.name: chore for _, chore in OPENINGS}


def chore_of(named: bytes | None, view: PromptView) -> Chore | None:
    """Return what chore a request is, as it is `named` in its header or else by how it begins; None if it is
    none.
    """
    if named is not None:
        return _named(printable(decoded(named).strip()))
    if view.task is not Task.CHAT:
        return None
    for text in (view.prompt, view.system):
        if text.startswith(FIRST_WORDS):
            return next(chore for opening, chore in OPENINGS if text.startswith(opening))
    return None


def _named(name: str) -> Chore | None:
    """Return the chore of a name, which front ends send empty with what is none; one that no file tells of
    counts as waited for.
    """
    return BY_NAME.get(name) or (Chore(name, waited_for=True) if name else None)
