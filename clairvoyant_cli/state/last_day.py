"""What happened in the last 24 hours, in steps of five minutes: for the page `N` of `top`, and for
`clairvoyant history --last-night`.
"""

import time
from dataclasses import dataclass

STEP_S = 300.0
STEPS = 288


@dataclass(frozen=True, slots=True)
class DayStep:
    """Five minutes, or what has passed of them."""

    at: float  # when they begin, epoch seconds
    requests: int = 0  # that ended in them
    failed: int = 0  # of these: failed, refused, or lost by a daemon that was killed
    busy: float = 0.0  # slots at work, on average
    waiting: float = 0.0  # requests that waited, on average
    saved_s: float = 0.0  # how much longer those that ended would have waited in order of arrival


@dataclass(frozen=True, slots=True)
class Outage:
    """A time in which a server failed or was away, or the queue refused requests."""

    server: str  # its name, "" for the queue
    began_at: float
    ended_at: float  # when that was last seen
    down: bool = False
    failed: int = 0  # requests that failed or were refused for it
    cause: str = ""

    def sentence(self, now: float) -> str:
        """Return one line, such as `02:14-02:31 ollama down, 25 failed: CUDA error`."""
        began, ended = (time.strftime("%H:%M", time.localtime(at)) for at in (self.began_at, self.ended_at))
        if now - self.ended_at < LASTS_S:
            ended = "now"
        text = f"{began}-{ended}" if ended != began else began
        if self.server:
            text += f" {self.server}{' down' if self.down else ''}"
        counted = "failed" if self.server else "refused"
        text += f"{', ' if self.server else ' '}{self.failed:,} {counted}" if self.failed else ""
        return f"{text}: {self.cause}" if self.cause else text


LASTS_S = 10.0
"""An outage that was seen this short a time ago has not ended."""


@dataclass(frozen=True, slots=True)
class LastDay:
    """The steps, the oldest first, and the outages in order of their beginning."""

    taken_at: float
    steps: tuple[DayStep, ...] = ()
    outages: tuple[Outage, ...] = ()
