"""The terminal's title, and a bell for what an operator who looks elsewhere must know."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from clairvoyant_cli.errors import printable
from clairvoyant_cli.state.snapshot import Snapshot
from clairvoyant_cli.state.source import Disconnected

REST_S = 60.0  # least time between two bells
OVER_S = 300.0  # an incident that comes back within this time is the same one
LOST_S = 5.0  # a daemon that is replaced is back sooner
LOST = "lost"
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
        self._known: dict[str, float] | None = None  # what has rung, or was wrong at first; when it last was
        self._since: dict[str, float] = {}  # what is wrong now
        self._rang_at = -REST_S

    def take(self, news: Snapshot | Disconnected, now: float) -> str:
        """Return what to send for a state or a lost daemon, "" for nothing new."""
        wrong = _wrong(news)
        if self._known is None:
            self._known = dict.fromkeys(wrong, now)
        self._since = {key: self._since.get(key, now) for key in wrong}
        known = {key: at for key, at in self._known.items() if now < at + OVER_S}
        fresh = [
            key for key in wrong if key not in known and (key != LOST or now >= self._since[key] + LOST_S)
        ]
        rings = bool(fresh) and now >= self._rang_at + REST_S  # else it rings later, if it lasts
        self._known = known | {key: now for key in wrong if key in known or (rings and key in fresh)}
        sent = ""
        title = printable(_title(news))[:_MAX_CHARS] + " - clairvoyant top"
        if title != self._title:
            self._title = title
            sent = f"\x1b]2;{title}\x07"
        self.told = ""
        if rings:
            self._rang_at, self.told = now, printable(wrong[fresh[0]])[:_MAX_CHARS]
            sent += f"\x1b]9;{self.told}\x07\x07" * self._bell
        return sent


def _wrong(news: Snapshot | Disconnected) -> dict[str, str]:
    """Return what should ring, by what it is: a verdict that changes its figures does not ring again."""
    if isinstance(news, Disconnected):
        return {LOST: "clairvoyant cannot be reached"}
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
