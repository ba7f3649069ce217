"""Record `clairvoyant demo --speed 500` as docs/screenshots/demo.svg, which plays wherever a picture is shown.

    pip install pyte && python docs/record_demo.py

Runs the command in a pseudo-terminal and takes the screen four times a second. The picture runs as long as the command.
"""

import argparse
import os
import pty
import select
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyte
from rich.color import Color
from rich.segment import Segment
from rich.style import Style

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.tui.moving_picture import MovingPicture  # noqa: E402

WIDTH, HEIGHT = 96, 28
FRAME_S = 0.25
QUIET_S = 0.02
TYPED_S, EMPTY_S, READ_S = 1.0, 1.0, 6.0
"""How long the command stands alone, the table has no result yet at most, and the result stands at the end."""


def record(arguments: list[str]) -> MovingPicture:
    """Run the command to its end; return what it showed, a screen per frame."""
    screen = pyte.Screen(WIDTH, HEIGHT)
    stream = pyte.ByteStream(screen)
    picture = MovingPicture(WIDTH, HEIGHT, "#121212", FRAME_S)
    stream.feed(f"$ {' '.join(arguments)}\r\n".encode())
    for _ in range(round(TYPED_S / FRAME_S)):
        picture.take(lines_of(screen))
    child, terminal = pty.fork()
    if not child:
        size = {"COLUMNS": str(WIDTH), "LINES": str(HEIGHT), "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        os.execvpe(arguments[0], arguments, os.environ | size)  # noqa: S606 - the arguments are ours
    due, empty = time.monotonic(), round(EMPTY_S / FRAME_S)
    for read in output_of(terminal):
        stream.feed(read)
        while not read and time.monotonic() >= due:  # in the middle of a redraw, the screen is torn
            started = any("▶" in line or "✓" in line for line in screen.display)
            empty -= not started
            if started or empty >= 0:
                picture.take(lines_of(screen))
            due += FRAME_S
    os.waitpid(child, 0)
    for _ in range(round(READ_S / FRAME_S)):
        picture.take(lines_of(screen))
    return picture


def output_of(terminal: int) -> Iterator[bytes]:
    """Yield what a terminal's program writes until it ends, and b"" after each pause of QUIET_S."""
    while True:
        ready, _, _ = select.select([terminal], [], [], QUIET_S)
        try:
            read = os.read(terminal, 65536) if ready else b""
        except OSError:  # Linux: the program has ended
            return
        if ready and not read:
            return
        yield read


def lines_of(screen: pyte.Screen) -> list[list[Segment]]:
    """Return a screen as lines of segments, each of one style."""
    lines = []
    for y in range(HEIGHT):
        segments: list[Segment] = []
        for x in range(WIDTH):
            cell = screen.buffer[y][x]
            style = Style(color=colour_of(cell.fg), bgcolor=colour_of(cell.bg), bold=cell.bold, reverse=cell.reverse)
            if segments and segments[-1].style == style:
                segments[-1] = Segment(segments[-1].text + cell.data, style)
            else:
                segments.append(Segment(cell.data, style))
        lines.append(segments)
    return lines


def colour_of(name: str) -> Color | None:
    """Return a colour of pyte: a name, or six hexadecimal digits."""
    if name == "default":
        return None
    if len(name) == 6 and all(each in "0123456789abcdef" for each in name.lower()):
        return Color.parse(f"#{name}")
    return Color.parse({"brown": "yellow"}.get(name, name.replace("bright", "bright_")))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "screenshots" / "demo.svg")
    options = parser.parse_args()
    options.out.write_text(record(["clairvoyant", "demo", "--speed", "500"]).svg(), encoding="utf-8")
