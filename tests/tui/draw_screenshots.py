"""Redraw the pictures of docs/screenshots, and record `top.svg`: python -m tests.tui.draw_screenshots"""

import asyncio
import os
import re
import time
from html import unescape
from pathlib import Path

from rich.cells import cell_len

from tests.tui.board import Script, played, remember, settled, stage, still
from tests.tui.moving_picture import MovingPicture

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "screenshots"
PICTURES = (  # name, scenario, size, GPUs, seconds played, keys
    ("busy-80x24", "busy", (80, 24), 1, 105, ()),
    ("busy-120x40", "busy", (120, 40), 1, 105, ()),
    ("busy-200x60", "busy", (200, 60), 2, 105, ()),
    ("overloaded-80x24", "overloaded", (80, 24), 1, 105, ("6",)),
    ("overloaded-120x40", "overloaded", (120, 40), 1, 105, ()),
    ("overloaded-200x60", "overloaded", (200, 60), 2, 105, ()),
    ("empty-80x24", "empty", (80, 24), 1, 105, ()),
    ("empty-120x40", "empty", (120, 40), 1, 105, ()),
    ("empty-200x60", "empty", (200, 60), 2, 105, ()),
    ("why-120x40", "busy", (120, 40), 1, 105, ("j", "j", "j", "enter")),
    ("day-120x40", "busy", (120, 40), 1, 105, ("T",)),
    ("ghost-120x40", "overloaded", (120, 40), 1, 105, ("f",)),
    ("policy-120x40", "overloaded", (120, 40), 1, 105, ("m",)),
)


async def draw(
    name: str, scenario: str, size: tuple[int, int], gpus: int, seconds: int, keys: tuple[str, ...]
) -> None:
    """Draw one picture."""
    snapshot, history, hardware = played(scenario, gpus, seconds)
    watched = stage(scenario, seconds)
    app = still(Script(coming=watched.scene.outlook(watched.at_s)))
    async with app.run_test(size=size) as pilot:
        remember(app, history, hardware)
        app.take(snapshot)
        await pilot.press(*keys)
        app.clear_notifications()
        await settled(app, pilot)
        picture = app.export_screenshot(simplify=True)
    # Textual numbers its classes at random; a fixed number keeps the difference of two pictures small.
    picture = re.sub(r"terminal-\d+", f"terminal-{name}", picture)
    (FOLDER / f"{name}.svg").write_text(_BLANK_EDGES.sub(_trimmed, picture), encoding="utf-8")


FRAME_S = 1.0
RECORDED = (  # frames, and the keys pressed before them
    (6, ()),
    (2, ("j",)),
    (3, ("j", "enter")),
    (3, ("escape", "f")),
    (3, ("f", "g")),
    (3, ("escape", "m")),
    (4, ("escape",)),
)


async def record() -> None:
    """Watch the busy scene after a burst, with some keys, and write it down as a picture that moves."""
    snapshot, history, hardware = played("busy", 1, 94)
    watched = stage("busy", 94)
    source = Script()
    app = still(source)
    async with app.run_test(size=(120, 40)) as pilot:
        picture = MovingPicture(120, 40, str(app.theme_variables["background"]).lower(), FRAME_S)
        remember(app, history, hardware)
        app.take(snapshot)
        for frames, keys in RECORDED:
            source.coming = watched.scene.outlook(watched.at_s)
            await pilot.press(*keys)
            for _ in range(frames):
                watched.advance(FRAME_S)
                app.take(watched.snapshot())
                app.clear_notifications()
                await settled(app, pilot)
                picture.take(app.screen._compositor.render_strips()[:40])
    (FOLDER / "top.svg").write_text(picture.svg(), encoding="utf-8")


_CELL = 12.2
_BLANK_EDGES = re.compile(
    r'x="([\d.]+)"( y="[\d.]+") textLength="[\d.]+"([^>]*)>((?:&#160;)*)(.*?)((?:&#160;)*)</text>'
)


def _trimmed(found: re.Match[str]) -> str:
    """Place a word where it begins: not all that draws pictures keeps the blanks before it."""
    x, y, rest, before, word, _ = found.groups()
    cells = cell_len(unescape(word))
    left = float(x) + _CELL * before.count("&")
    return f'x="{left:.1f}"{y} textLength="{cells * _CELL:.1f}"{rest}>{word}</text>'


def main() -> None:
    """Draw all of them."""
    os.environ["TZ"] = "UTC"
    time.tzset()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for picture in PICTURES:
        asyncio.run(draw(*picture))
        print(picture[0])  # noqa: T201
    asyncio.run(record())


if __name__ == "__main__":
    main()
