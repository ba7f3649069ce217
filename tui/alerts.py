"""The terminal's title, and a bell for what an operator who looks elsewhere must know."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from clairvoyant_cli.errors import printable
from clairvoyant_cli.state.snapshot import Snapshot
from clairvoyant_cli.state.source import Disconnected

REST_S = 60.0  # least time between two bells
OVER_S = 300.0  # an incident that comes back within this time is the same one
_MAX_CHARS = 100


class Alerts:
    """Turns each state into what the terminal is to be sent: its title, and a bell for a new incident. What
    is wrong when the first state comes does not ring: somebody has just looked.
    """

    def __init__(self, *, bell: bool, run: Callable[[str], Awaitable[str]] | None = None) -> None:
        """`run` does something more with the sentence of a new incident; it returns why that failed."""
        self._bell, self.run = bell, run
        self.told = ""  # of the last state, if it rings
        self._title = ""
        self._known: dict[str, float] | None = None  # what was wrong, and when it last was
        self._rang_at = -REST_S

    def take(self, news: Snapshot | Disconnected, now: float) -> str:
        """Return what to send for a state or a lost daemon, "" for nothing new."""
        wrong, is_first = _wrong(news), self._known is None
        known = {key: at for key, at in (self._known or {}).items() if now < at + OVER_S}
        fresh = [text for key, text in wrong.items() if key not in known and not is_first]
        self._known = known | dict.fromkeys(wrong, now)
        sent = ""
        title = printable(_title(news))[:_MAX_CHARS] + " - clairvoyant top"
        if title != self._title:
            self._title = title
            sent = f"\x1b]2;{title}\x07"
        self.told = ""
        if fresh and now >= self._rang_at + REST_S:
            self._rang_at, self.told = now, printable(fresh[0])[:_MAX_CHARS]
            sent += f"\x1b]9;{self.told}\x07\x07" * self._bell
        return sent


def _wrong(news: Snapshot | Disconnected) -> dict[str, str]:
    """Return what should ring, by what it is: a verdict that changes its figures does not ring again."""
    if isinstance(news, Disconnected):
        return {"lost": "clairvoyant cannot be reached"}
    wrong = {f"down {each.name}": f"{each.name} is down" for each in news.backends if each.state == "down"}
    if news.verdict.incident:
        wrong[news.verdict.incident] = news.verdict.text
    return wrong


def _title(news: Snapshot | Disconnected) -> str:
    if isinstance(news, Disconnected):
        return f"▲ {news.reason.partition(';')[0]}"
    if news.verdict.level in ("warn", "alert"):
        return f"▲ {news.verdict.text}"
    busy, slots = news.slots
    return f"{news.waits:,} waiting, {busy}/{slots}"


@contextmanager
def title_kept(terminal: TextIO) -> Iterator[None]:
    terminal.write("\x1b[22;0t")
    terminal.flush()
    try:
        yield
    finally:
        terminal.write("\x1b[23;0t")
        terminal.flush()
