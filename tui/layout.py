"""Computes where each panel goes, for any size of terminal.

Small (80x24 over ssh): running, queue, and a deck that shows one other panel at a time. Middle (120x40) and
large (200x60): a picture above a column of requests and one or two of facts. Panels take the rows that they
need.
"""

from collections.abc import Set
from dataclasses import dataclass

from textual.geometry import Region

PANELS = (
    "running",
    "queue",
    "timeline",
    "gpu",
    "models",
    "stats",
    "recent",
    "plots",
    "log",
    "graph",
    "sessions",
)
"""In the order of their keys: 1 is that of the first, 0 of the tenth. Sessions are shown if there are any."""

DECK = PANELS[2:]  # the panels that share the deck of a small terminal
PRESETS = {  # what F2 to F6 show: the panels from top to bottom; the last one takes what is left
    "board": (),
    "queue": ("running", "queue"),
    "programs": ("clients", "running", "queue"),
    "sessions": ("sessions", "running", "queue"),
    "hardware": ("running", "models", "gpu", "graph"),
}
LEAST_WIDTH = 20  # below, no panel is drawn
GUTTER = 2
PICTURES = ("timeline", "plots", "graph")  # one of them is at the top, unless the terminal is small
_LEAST_QUEUE, _STATS, _HALF = 6, 7, 45
_SIDE = {"gpu", "models", "stats", "log"}
_MOST_DECK = 8  # rows that the deck takes from a short queue


@dataclass(frozen=True, slots=True)
class SizeHint:
    """What sizes the panels: those shown in the deck and maximised, and the rows that panels have to show."""

    deck: str = "timeline"
    preset: str = "board"
    maximised: str = ""
    picture: str = "timeline"
    hidden: frozenset[str] = frozenset()
    slots: int = 2
    queue: int = 99
    gpu: int = 5
    models: int = 4
    sessions: int = 0
    clients: int = 1

    @property
    def in_deck(self) -> tuple[str, ...]:
        return DECK if self.sessions else DECK[:-1]


def plan(width: int, height: int, wish: SizeHint) -> dict[str, Region]:
    if width < LEAST_WIDTH:
        return {"narrow": Region(0, 0, width, height)}
    head = 3 if height >= 24 else 2 if height >= 16 else 1
    boxes = {"header": Region(0, 0, width, head), "footer": Region(0, height - 1, width, 1)}
    body = Region(0, head, width, max(1, height - head - 1))
    if wish.maximised:
        return boxes | {wish.maximised: body}
    if preset := PRESETS[wish.preset]:
        rows = {name: min(2 + getattr(wish, name, wish.slots), body.height // 3) for name in preset[:-1]}
        return boxes | _stack(body, rows | {preset[-1]: body.height - sum(rows.values())})
    if width >= 168 and height >= 46:
        return boxes | _large(body, wish)
    if width >= 108 and height >= 34:
        return boxes | _middle(body, wish)
    return boxes | _small(body, wish)


def has_deck(width: int, height: int) -> bool:
    return width < 108 or height < 34


def _small(body: Region, wish: SizeHint) -> dict[str, Region]:
    shown = wish.deck if wish.deck in wish.in_deck else "timeline"
    deck = 0 if body.height < 12 or shown in wish.hidden else 6 if body.height < 24 else 8
    running = (
        0
        if body.height < 9 or "running" in wish.hidden
        else min(2 + max(1, wish.slots), max(3, body.height * 3 // 10))
    )
    queue = body.height - running - deck
    if deck:
        queue = min(queue, max(2 + wish.queue, queue - _MOST_DECK))
    return _stack(
        body, {"running": running, "queue": queue, shown: body.height - running - queue if deck else 0}
    )


def _middle(body: Region, wish: SizeHint) -> dict[str, Region]:
    top, body = _under_picture(body, wish, body.height // 3)
    left, side = _columns(body, 0 if wish.hidden >= _SIDE else 42)
    running = 2 + min(6, max(2, wish.slots))
    room = body.height - _STATS
    models = min(1 + wish.models, max(3, room - 1 - wish.gpu))
    heights = {"gpu": min(1 + wish.gpu, room - models), "models": models, "stats": _STATS}
    heights["log"] = body.height - sum(heights.values())
    return (
        top
        | _stack(left, _left(left.height, wish, running, recent=6), wish.hidden)
        | _stack(side, heights, wish.hidden)
    )


def _large(body: Region, wish: SizeHint) -> dict[str, Region]:
    top, body = _under_picture(body, wish, body.height // 2)
    left, right = _columns(body, 0 if wish.hidden >= _SIDE else 2 * _HALF + GUTTER)
    running = 2 + min(8, max(2, wish.slots))
    boxes = top | _stack(
        left, _left(left.height, wish, running, recent=max(8, body.height // 4)), wish.hidden
    )
    models = min(1 + wish.models, 8)
    high = body.height if "log" in wish.hidden else min(max(_STATS, 1 + wish.gpu + models), body.height - 4)
    first = second = Region(right.x, right.y, right.width, high)
    if "stats" not in wish.hidden and not wish.hidden >= {"gpu", "models"}:
        first, second = _columns(first, _HALF)
    boxes |= _stack(first, {"stats": high}, wish.hidden)
    boxes |= _stack(second, {"gpu": high - models, "models": models}, wish.hidden)
    low = Region(right.x, body.y + high, right.width, body.height - high)
    return boxes | _stack(low, {"log": low.height}, wish.hidden)


def _under_picture(body: Region, wish: SizeHint, most: int) -> tuple[dict[str, Region], Region]:
    """Return the picture at the top, of at most so many rows, and what is left of the body."""
    rows = most
    if wish.picture in wish.hidden:
        return {}, body
    if wish.picture == "timeline":  # two lines for each slot, or four with the waits
        rows = 2 + 4 * wish.slots if 2 + 4 * wish.slots <= most else min(most, 2 + 2 * wish.slots)
    return (
        {wish.picture: Region(body.x, body.y, body.width, rows)},
        Region(body.x, body.y + rows, body.width, body.height - rows),
    )


def _left(height: int, wish: SizeHint, running: int, recent: int) -> dict[str, int]:
    """Return the heights of the column of requests; what the queue leaves is for those that have ended."""
    room = height - running - recent
    sessions = min(2 + wish.sessions, room // 2) if wish.sessions else 0  # of the queue's, at most half
    queue = min(room - sessions, max(_LEAST_QUEUE, 2 + wish.queue))
    heights = {"running": running, "queue": queue, "sessions": sessions}
    return heights | {"recent": height - sum(heights.values())}


def _columns(box: Region, right: int) -> tuple[Region, Region]:
    """Divide a box into what is left of a column, and the column of this width; all is left of none."""
    left = box.width - right - GUTTER * (right > 0)
    return Region(box.x, box.y, left, box.height), Region(box.x + left + GUTTER, box.y, right, box.height)


def _stack(column: Region, heights: dict[str, int], hidden: Set[str] = frozenset()) -> dict[str, Region]:
    """Stack panels of these heights; those without height are not shown. The last has what is left."""
    boxes, y = {}, column.y
    shown = {name: height for name, height in heights.items() if height > 0 and name not in hidden}
    for name, height in shown.items():
        rows = column.bottom - y if name == [*shown][-1] else height
        boxes[name] = Region(column.x, y, column.width, rows)
        y += height
    return boxes
