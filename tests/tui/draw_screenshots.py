"""Redraw the pictures of docs/screenshots, and record `top.svg`: python -m tests.tui.draw_screenshots"""

import asyncio
import os
import re
import time
from html import unescape
from pathlib import Path

from rich.cells import cell_len

from tests.tui.board import bench, played, settled, stage
from tests.tui.moving_picture import MovingPicture

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "screenshots"
FRAME_S = 1.0
RECORDED = (  # frames, and the keys pressed before them
    (6, ()),
    (2, ("j",)),
    (3, ("j", "enter")),
    (3, ("escape", "w")),
    (3, ("escape", "m")),
    (4, ("escape",)),
)


async def draw(size: tuple[int, int], gpus: int) -> None:
    name = f"busy-{size[0]}x{size[1]}"
    async with bench(*played("busy", gpus), size=size) as it:
        picture = it.app.export_screenshot(simplify=True)
    # Textual numbers its classes at random; a fixed number keeps the difference of two pictures small.
    picture = re.sub(r"terminal-\d+", f"terminal-{name}", picture)
    (FOLDER / f"{name}.svg").write_text(_BLANK_EDGES.sub(_trimmed, picture), encoding="utf-8")


async def record() -> None:
    """Watch the busy scene after a burst, with some keys, and write it down as a picture that moves."""
    watched = stage("busy", 94)
    async with bench(*played("busy", 1, 94)) as it:
        picture = MovingPicture(120, 40, str(it.app.theme_variables["background"]).lower(), FRAME_S)
        for frames, keys in RECORDED:
            await it.press(*keys)
            for _ in range(frames):
                watched.advance(FRAME_S)
                it.app.take(watched.snapshot())
                it.quiet()
                await settled(it.app, it.pilot)
                picture.take(it.app.screen._compositor.render_strips()[:40])
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


if __name__ == "__main__":
    os.environ |= {"TZ": "UTC", "COLORTERM": "truecolor"}
    time.tzset()
    asyncio.run(draw((80, 24), 1))
    asyncio.run(draw((120, 40), 1))
    asyncio.run(draw((200, 60), 2))
    asyncio.run(record())
