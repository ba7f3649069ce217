"""Computes where each panel goes, for any size of terminal.

Small (80x24 over ssh): running, queue, and a deck that shows one other panel at a time. Middle (120x40): a
column of requests and one of facts. Large (200x60): everything, with plots. Panels take the rows that they
need; what the queue leaves is the graph's.
"""

from dataclasses import dataclass

from textual.geometry import Region

PANELS = ("running", "queue", "tau", "gpu", "models", "stats", "recent", "plots", "log", "graph", "sessions")
"""In the order of their keys: 1 is that of the first, 0 of the tenth. Sessions are shown if there are any."""

DECK = PANELS[2:]  # the panels that share the deck of a small terminal
GUTTER = 2
_LEAST_GRAPH, _HERO, _MOST_GRAPH = 7, 11, 18
_LEAST_PLOT, _TAU, _STATS, _HALF = 5, 5, 9, 45
_MOST_DECK = 8  # rows that the deck takes from a short queue


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


def plan(width: int, height: int, wish: SizeHint) -> dict[str, Region]:
    head = 3 if height >= 24 else 2 if height >= 16 else 1
    boxes = {"header": Region(0, 0, width, head), "footer": Region(0, height - 1, width, 1)}
    body = Region(0, head, width, max(1, height - head - 1))
    if wish.maximised:
        return boxes | {wish.maximised: body}
    if width >= 168 and height >= 46:
        return boxes | _large(body, wish)
    if width >= 108 and height >= 34:
        return boxes | _middle(body, wish)
    return boxes | _small(body, wish)


def has_deck(width: int, height: int) -> bool:
    return width < 108 or height < 34


def _small(body: Region, wish: SizeHint) -> dict[str, Region]:
    deck = 0 if body.height < 12 else 6 if body.height < 24 else 8
    running = 0 if body.height < 9 else min(2 + max(1, wish.slots), max(3, body.height * 3 // 10))
    queue = body.height - running - deck
    if deck:
        queue = min(queue, max(2 + wish.queue, queue - _MOST_DECK))
    shown = wish.deck if wish.deck in wish.in_deck else "tau"
    return _stack(
        body, {"running": running, "queue": queue, shown: body.height - running - queue if deck else 0}
    )


def _middle(body: Region, wish: SizeHint) -> dict[str, Region]:
    left, side = _columns(body, 42)
    running = 2 + min(8 if body.height >= 36 else 6, max(2, wish.slots))
    room = body.height - _TAU - _STATS - _LEAST_PLOT
    models = min(1 + wish.models, max(3, room - 1 - wish.gpu))
    gpu = min(1 + wish.gpu, room - models)
    heights = {"tau": _TAU, "gpu": gpu, "models": models, "stats": _STATS}
    heights["plots"] = body.height - sum(heights.values())
    return _stack(left, _left(left.height, wish, running, recent=8, log=5)) | _stack(side, heights)


def _large(body: Region, wish: SizeHint) -> dict[str, Region]:
    left, right = _columns(body, 2 * _HALF + GUTTER)
    running = 2 + min(8, max(2, wish.slots))
    boxes = _stack(left, _left(left.height, wish, running, recent=max(10, body.height // 4), graph=_HERO))
    models = min(1 + wish.models, 8)
    gpu = min(1 + wish.gpu, body.height // 2 - models)
    top = max(15 + 6, gpu + models)
    first, second = _columns(Region(right.x, right.y, right.width, top), _HALF)
    boxes |= _stack(first, {"stats": 15, "tau": top - 15})
    boxes |= _stack(second, {"gpu": top - models, "models": models})
    low = Region(right.x, body.y + top, right.width, body.height - top)
    return boxes | _stack(low, {"plots": low.height - 8, "log": 8})


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


def _columns(box: Region, right: int) -> tuple[Region, Region]:
    """Divide a box into what is left of a column, and the column of this width."""
    left = box.width - right - GUTTER
    return Region(box.x, box.y, left, box.height), Region(box.x + left + GUTTER, box.y, right, box.height)


def _stack(column: Region, heights: dict[str, int]) -> dict[str, Region]:
    """Stack panels of these heights; one without height is not shown."""
    boxes, y = {}, column.y
    for name, height in heights.items():
        if height > 0:
            boxes[name] = Region(column.x, y, column.width, height)
            y += height
    return boxes
