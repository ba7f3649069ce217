"""Computes where each panel goes, for any size of terminal.

Small (80x24 over ssh): running, queue, and a deck that shows one other panel at a time. Middle (120x40) and
large (200x60): the timeline above a column of requests and one or two of facts. Panels take the rows that
they need.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace

from textual.geometry import Region

from tui.board_panels import BY_NAME, PANELS, RECORDS, PanelRecord

DECK = PANELS[2:]  # the panels that share the deck of a small terminal
LEAST_WIDTH = 20  # below, no panel is drawn
GUTTER = 2
_LEAST_QUEUE, _HALF = 6, 45
_SIDES = ("machine", "facts", "below")
_ASIDE = {each.name for each in RECORDS if each.side in _SIDES}
_MOST_DECK = 8  # rows that the deck takes from a short queue


@dataclass(frozen=True, slots=True)
class SizeHint:
    """What sizes the panels: those shown in the deck and maximised, and the rows that panels have to show."""

    deck: str = "timeline"
    maximised: str = ""
    hidden: frozenset[str] = frozenset()
    rows: Mapping[str, int] = field(default_factory=lambda: {each.name: each.usual for each in RECORDS})

    def has(self, name: str) -> bool:
        """Whether there is something to show in a panel."""
        return bool(self.rows[name] or not BY_NAME[name].none)

    @property
    def in_deck(self) -> tuple[str, ...]:
        return tuple(filter(self.has, DECK))

    def beside(self, *sides: str) -> list[PanelRecord]:
        """Return the panels of the right column that are shown on these sides of it."""
        shown = set(filter(self.has, BY_NAME)) - self.hidden
        return [each for each in RECORDS if each.side in sides and each.name in shown]


def plan(width: int, height: int, wish: SizeHint) -> dict[str, Region]:
    if width < LEAST_WIDTH:
        return {"narrow": Region(0, 0, width, height)}
    head = 3 if height >= 24 else 2 if height >= 16 else 1
    boxes = {"header": Region(0, 0, width, head), "footer": Region(0, height - 1, width, 1)}
    body = Region(0, head, width, max(1, height - head - 1))
    if wish.maximised:
        return boxes | {wish.maximised: body}
    if width >= 168 and height >= 46:
        return boxes | _large(body, wish)
    return boxes | (_small if has_deck(width, height) else _middle)(body, wish)


def has_deck(width: int, height: int) -> bool:
    return width < 108 or height < 34


def _small(body: Region, wish: SizeHint) -> dict[str, Region]:
    shown = wish.deck if wish.deck in wish.in_deck else DECK[0]
    deck = 0 if body.height < 12 or shown in wish.hidden else 6 if body.height < 24 else 8
    running = min(2 + max(1, wish.rows["running"]), max(3, body.height * 3 // 10))
    running *= body.height >= 9 and "running" not in wish.hidden
    queue = body.height - running - deck
    if deck:
        queue = min(queue, max(2 + wish.rows["queue"], queue - _MOST_DECK))
    return _stack(
        body, {"running": running, "queue": queue, shown: body.height - running - queue if deck else 0}
    )


def _middle(body: Region, wish: SizeHint) -> dict[str, Region]:
    top, body = _under_timeline(body, wish, body.height // 3)
    left, side = _columns(body, 0 if wish.hidden >= _ASIDE else 42)
    heights = _heights(wish.beside(*_SIDES), wish, side.height)
    return top | _left(left, wish, running=6, recent=6) | _stack(side, heights)


def _large(body: Region, wish: SizeHint) -> dict[str, Region]:
    top, body = _under_timeline(body, wish, body.height // 2)
    left, right = _columns(body, 0 if wish.hidden >= _ASIDE else 2 * _HALF + GUTTER)
    boxes = top | _left(left, wish, running=8, recent=max(8, body.height // 4))
    below, columns = wish.beside("below"), [wish.beside("facts"), wish.beside("machine")]
    wanted = max(sum(_wanted(each, wish) for each in column) for column in columns)
    high = min(wanted, body.height - sum(each.least for each in below)) if below else body.height
    first = second = Region(right.x, right.y, right.width, high)
    if all(columns):
        first, second = _columns(first, _HALF)
    for box, column in zip((first, second), columns, strict=True):
        boxes |= _stack(box, _heights(column, wish, high))
    low = Region(right.x, body.y + high, right.width, body.height - high)
    more = {each.name: wish.rows[each.name] + each.more for each in below}
    return boxes | _stack(low, _heights(below, replace(wish, rows=more), low.height))


def _wanted(record: PanelRecord, wish: SizeHint) -> int:
    return max(record.least, 1 + wish.rows[record.name])


def _heights(records: Iterable[PanelRecord], wish: SizeHint, height: int) -> dict[str, int]:
    """Share out a height: each panel gets its least lines, then one after the other what it wants."""
    wanted = {each.name: _wanted(each, wish) for each in records}
    heights = {name: min(BY_NAME[name].least, most) for name, most in wanted.items()}
    for name, most in wanted.items():
        heights[name] += max(0, min(most - heights[name], height - sum(heights.values())))
    return heights


def _under_timeline(body: Region, wish: SizeHint, most: int) -> tuple[dict[str, Region], Region]:
    """Return the region of the timeline, at most `most` rows high, and the rest of the body below it."""
    if "timeline" in wish.hidden:
        return {}, body
    least = 2 + 2 * wish.rows["running"]  # two lines for each slot, or four with the waits
    rows = 2 * least - 2 if 2 * least - 2 <= most else min(most, least)
    return (
        {"timeline": Region(body.x, body.y, body.width, rows)},
        Region(body.x, body.y + rows, body.width, body.height - rows),
    )


def _left(box: Region, wish: SizeHint, running: int, recent: int) -> dict[str, Region]:
    """Return the left column, for `running` slots; ended requests get the rows that the queue leaves."""
    slots, sessions = 2 + min(running, max(2, wish.rows["running"])), wish.rows["sessions"]
    room = box.height - slots - recent
    sessions = min(2 + sessions, room // 2) if sessions else 0  # of the queue's, at most half
    queue = min(room - sessions, max(_LEAST_QUEUE, 2 + wish.rows["queue"]))
    heights = {"running": slots, "queue": queue, "sessions": sessions}
    return _stack(box, heights | {"recent": box.height - sum(heights.values())}, wish.hidden)


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
