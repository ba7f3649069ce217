"""Chores: requests that a chat front end sends by itself, such as for a conversation's title.

Each file in `frontends/` describes those of one front end; a client may also name one in a header.
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
    """Return the chore that a request is, by its header or its opening; None if none. An unknown name counts
    as waited for.
    """
    if named is not None:
        name = printable(decoded(named).strip())
        return BY_NAME.get(name) or (Chore(name, waited_for=True) if name else None)
    if view.task is not Task.CHAT:
        return None
    for text in (view.prompt, view.system):
        if text.startswith(FIRST_WORDS):
            return next(chore for opening, chore in OPENINGS if text.startswith(opening))
    return None
