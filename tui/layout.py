"""Computes where each panel goes, for any size of terminal.

Small (80x24 over ssh): running, queue, and a deck that shows one other panel at a time. Middle (120x40): a
column of requests and one of facts. Large (200x60): everything, with plots.
"""

from dataclasses import dataclass

HEADER = "header"
RUNNING = "running"
QUEUE = "queue"
TAU = "tau"
GPU = "gpu"
MODELS = "models"
STATS = "stats"
RECENT = "recent"
PLOTS = "plots"
LOG = "log"
SESSIONS = "sessions"
FOOTER = "footer"

PANELS = (RUNNING, QUEUE, TAU, GPU, MODELS, STATS, RECENT, PLOTS, LOG, SESSIONS)
"""In the order of their keys: 1 is that of the first. The sessions are shown while there are any."""

DECK = PANELS[2:]
"""The panels that share the deck of a small terminal."""

GUTTER = 2


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle of cells."""

    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class SizeHint:
    """What sizes the panels: those shown in the deck and maximised, and the number of slots, GPUs and
    sessions.
    """

    deck: str = TAU
    maximised: str = ""
    slots: int = 2
    gpus: int = 1
    sessions: int = 0

    @property
    def in_deck(self) -> tuple[str, ...]:
        """The panels that are in the deck now."""
        return DECK if self.sessions else DECK[:-1]

    def sessions_of(self, height: int) -> int:
        """The part of the queue's height that the sessions take, at most half."""
        return min(2 + self.sessions, height // 2) if self.sessions else 0


def plan(width: int, height: int, wish: SizeHint) -> dict[str, Box]:
    """Return a box for each panel that is shown."""
    head = 3 if height >= 24 else 2 if height >= 16 else 1
    boxes = {HEADER: Box(0, 0, width, head), FOOTER: Box(0, height - 1, width, 1)}
    body = Box(0, head, width, max(1, height - head - 1))
    if wish.maximised:
        return boxes | {wish.maximised: body}
    if width >= 168 and height >= 46:
        return boxes | _large(body, wish)
    if width >= 108 and height >= 34:
        return boxes | _middle(body, wish)
    return boxes | _small(body, wish)


def has_deck(width: int, height: int) -> bool:
    """Whether a terminal of this size shows the small shape."""
    return width < 108 or height < 34


def _small(body: Box, wish: SizeHint) -> dict[str, Box]:
    deck = 0 if body.height < 12 else 6 if body.height < 24 else 8
    running = 0 if body.height < 9 else min(2 + max(1, wish.slots), max(3, body.height * 3 // 10))
    shown = wish.deck if wish.deck in wish.in_deck else TAU
    heights = {RUNNING: running, QUEUE: body.height - running - deck, shown: deck}
    return _stack(body, heights)


def _middle(body: Box, wish: SizeHint) -> dict[str, Box]:
    right = 42
    left = Box(body.x, body.y, body.width - right - GUTTER, body.height)
    side = Box(left.width + GUTTER, body.y, right, body.height)
    running = 2 + min(8 if body.height >= 36 else 6, max(2, wish.slots))
    recent, log = 8, 5
    gpu = 2 + 4 * max(1, min(2, wish.gpus))
    fixed = {TAU: 5, GPU: gpu, MODELS: 5, STATS: 9}
    queue = left.height - running - recent - log
    sessions = wish.sessions_of(queue)
    heights = {RUNNING: running, QUEUE: queue - sessions, SESSIONS: sessions, RECENT: recent, LOG: log}
    return _stack(left, heights) | _stack(side, fixed | {PLOTS: side.height - sum(fixed.values())})


def _large(body: Box, wish: SizeHint) -> dict[str, Box]:
    half = 45
    right = 2 * half + GUTTER
    left = Box(body.x, body.y, body.width - right - GUTTER, body.height)
    x = left.width + GUTTER
    running = 2 + min(8, max(2, wish.slots))
    recent = max(10, body.height // 4)
    queue = left.height - running - recent
    sessions = wish.sessions_of(queue)
    heights = {RUNNING: running, QUEUE: queue - sessions, SESSIONS: sessions, RECENT: recent}
    boxes = _stack(left, heights)
    stats = 14
    gpu = 3 + 5 * max(1, min(2, wish.gpus))
    log = 8
    first = Box(x, body.y, half, body.height)
    second = Box(x + half + GUTTER, body.y, half, body.height)
    boxes |= _stack(first, {STATS: stats, TAU: 7})
    boxes |= _stack(second, {GPU: gpu, MODELS: stats + 7 - gpu})
    low = Box(x, body.y + stats + 7, right, body.height - stats - 7)
    return boxes | _stack(low, {PLOTS: low.height - log, LOG: log})


def _stack(column: Box, heights: dict[str, int]) -> dict[str, Box]:
    """Stack panels of these heights; one without height is not shown."""
    boxes = {}
    y = column.y
    for name, height in heights.items():
        if height > 0:
            boxes[name] = Box(column.x, y, column.width, height)
            y += height
    return boxes
