"""Computes where each panel goes, for any size of terminal.

Small (80x24 over ssh): running, queue, and a deck that shows one other panel at a time. Middle (120x40): a
column of requests and one of facts. Large (200x60): everything, with plots. Panels take the rows that they
need; what the queue leaves is the graph's.
"""

from dataclasses import dataclass

PANELS = ("running", "queue", "tau", "gpu", "models", "stats", "recent", "plots", "log", "graph", "sessions")
"""In the order of their keys: 1 is that of the first, 0 of the tenth. Sessions are shown if there are any."""

DECK = PANELS[2:]
"""The panels that share the deck of a small terminal."""

GUTTER = 2
_LEAST_GRAPH, _HERO, _MOST_GRAPH = 7, 11, 18
_LEAST_PLOT = 5
_MOST_DECK = 8
"""Rows that the deck takes from a short queue."""


@dataclass(frozen=True, slots=True)
class Box:
    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class SizeHint:
    """What sizes the panels: those shown in the deck and maximised, and the rows that panels have to show."""

    deck: str = "tau"
    maximised: str = ""
    slots: int = 2
    queue: int = 99
    gpu: int = 5
    models: int = 4
    sessions: int = 0

    @property
    def in_deck(self) -> tuple[str, ...]:
        return DECK if self.sessions else DECK[:-1]


def plan(width: int, height: int, wish: SizeHint) -> dict[str, Box]:
    head = 3 if height >= 24 else 2 if height >= 16 else 1
    boxes = {"header": Box(0, 0, width, head), "footer": Box(0, height - 1, width, 1)}
    body = Box(0, head, width, max(1, height - head - 1))
    if wish.maximised:
        return boxes | {wish.maximised: body}
    if width >= 168 and height >= 46:
        return boxes | _large(body, wish)
    if width >= 108 and height >= 34:
        return boxes | _middle(body, wish)
    return boxes | _small(body, wish)


def has_deck(width: int, height: int) -> bool:
    return width < 108 or height < 34


def _small(body: Box, wish: SizeHint) -> dict[str, Box]:
    deck = 0 if body.height < 12 else 6 if body.height < 24 else 8
    running = 0 if body.height < 9 else min(2 + max(1, wish.slots), max(3, body.height * 3 // 10))
    queue = body.height - running - deck
    if deck:
        queue = min(queue, max(2 + wish.queue, queue - _MOST_DECK))
    shown = wish.deck if wish.deck in wish.in_deck else "tau"
    return _stack(
        body, {"running": running, "queue": queue, shown: body.height - running - queue if deck else 0}
    )


def _middle(body: Box, wish: SizeHint) -> dict[str, Box]:
    right = 42
    left = Box(body.x, body.y, body.width - right - GUTTER, body.height)
    side = Box(left.width + GUTTER, body.y, right, body.height)
    running = 2 + min(8 if body.height >= 36 else 6, max(2, wish.slots))
    fixed = {"tau": 5, "gpu": 0, "models": 0, "stats": 9}
    room = side.height - sum(fixed.values()) - _LEAST_PLOT
    fixed["models"] = min(1 + wish.models, max(3, room - 1 - wish.gpu))
    fixed["gpu"] = min(1 + wish.gpu, room - fixed["models"])
    heights = _left(left.height, wish, running, recent=8, log=5)
    return _stack(left, heights) | _stack(side, fixed | {"plots": side.height - sum(fixed.values())})


def _large(body: Box, wish: SizeHint) -> dict[str, Box]:
    half = 45
    right = 2 * half + GUTTER
    left = Box(body.x, body.y, body.width - right - GUTTER, body.height)
    x = left.width + GUTTER
    running = 2 + min(8, max(2, wish.slots))
    boxes = _stack(left, _left(left.height, wish, running, recent=max(10, body.height // 4), graph=_HERO))
    stats, tau, log = 15, 6, 8
    models = min(1 + wish.models, 8)
    gpu = min(1 + wish.gpu, body.height // 2 - models)
    top = max(stats + tau, gpu + models)
    first = Box(x, body.y, half, body.height)
    second = Box(x + half + GUTTER, body.y, half, body.height)
    boxes |= _stack(first, {"stats": stats, "tau": top - stats})
    boxes |= _stack(second, {"gpu": top - models, "models": models})
    low = Box(x, body.y + top, right, body.height - top)
    return boxes | _stack(low, {"plots": low.height - log, "log": log})


def _left(
    height: int, wish: SizeHint, running: int, recent: int, log: int = 0, graph: int = 0
) -> dict[str, int]:
    """Return the heights of the column of requests; `graph` is the least that the graph gets."""
    room = height - running - recent - log
    sessions = min(2 + wish.sessions, room // 2) if wish.sessions else 0  # of the queue's, at most half
    queue = min(room - sessions - graph, 2 + wish.queue)
    graph = room - sessions - queue
    if graph < _LEAST_GRAPH:
        queue, graph = queue + graph, 0
    more = max(0, graph - _MOST_GRAPH)  # for those that have ended
    heights = {"running": running, "queue": queue, "graph": graph - more, "sessions": sessions}
    return heights | {"recent": recent + more, "log": log}


def _stack(column: Box, heights: dict[str, int]) -> dict[str, Box]:
    """Stack panels of these heights; one without height is not shown."""
    boxes = {}
    y = column.y
    for name, height in heights.items():
        if height > 0:
            boxes[name] = Box(column.x, y, column.width, height)
            y += height
    return boxes
