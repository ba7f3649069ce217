"""Chores: requests that a chat front end or an agent sends by itself, such as for a title.

Each file in `frontends/` describes those of one front end, or of agents; a client may also name one in a
header.
"""

import tomllib
from collections.abc import Iterator
from importlib.resources import files

from clairvoyant_cli.protocols.printable import decoded, printable
from predictor.record import Chore, PromptView, Task

CHORE_HEADER = b"x-clairvoyant-chore"


def _known() -> Iterator[tuple[Chore, tuple[str, ...], str]]:
    for file in files("clairvoyant_cli.protocols").joinpath("frontends").iterdir():
        for entry in tomllib.loads(file.read_text("utf-8"))["chore"]:
            chore = Chore(
                entry["name"],
                float(entry["tokens"]),
                entry.get("interactive", False),
                entry.get("along", False),
            )
            yield chore, tuple(entry["opens"]), entry.get("session", "")


KNOWN = tuple(_known())
OPENINGS = tuple((opening, chore) for chore, opens, _ in KNOWN for opening in opens)
BY_SESSION = tuple((opening.encode(), chore) for chore, _, opening in KNOWN if opening)
FIRST_WORDS = tuple(opening for opening, _ in OPENINGS)
BY_NAME = {chore.name: chore for chore, _, _ in KNOWN}


def chore_of(named: bytes | None, view: PromptView, session: bytes | None = None) -> Chore | None:
    """Return the chore that a request is, by its header, the session id in its header or its opening; None if
    none. An unknown name counts as waited for. With tools, the opening of the system text does not count.
    """
    if named is not None:
        name = printable(decoded(named).strip())
        return BY_NAME.get(name) or (Chore(name, interactive=True) if name else None)
    if view.task is not Task.CHAT:
        return None
    for opening, chore in BY_SESSION:
        if session is not None and session.startswith(opening):
            return chore
    for text in (view.prompt, "" if view.tools else view.system):
        if text.startswith(FIRST_WORDS):
            return next(chore for opening, chore in OPENINGS if text.startswith(opening))
    return None
