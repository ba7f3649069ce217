"""What is sent of a frame makes of the screen before what a full drawing makes of it."""

import re
from dataclasses import replace
from typing import cast

import pytest
from rich.console import Console
from textual._compositor import Compositor, CompositorUpdate
from textual.driver import Driver

from tests.tui.board import SIZES, Script, played, remember, settled, still
from tests.tui.test_tui_changes import CHANGES
from tui.styled_text import Line, part
from tui.whole_frames import BEGINS, ENDS, MAX_CHARACTERS, whole_frames
from tui.widgets.compositor import BoardCompositor, Patches

_PIECES = re.compile(r"\x1b\[(\d+);(\d+)H|\x1b\[([\d;]*)m|(\n)|([^\x1b\n])")

Cells = dict[tuple[int, int], tuple[str, str]]


def drawn(cells: Cells, sent: str) -> Cells:
    """Return what a terminal makes of its cells: at each place a character and its style."""
    made, x, y, style = dict(cells), 0, 0, ""
    for row, column, codes, newline, character in _PIECES.findall(sent):
        if row:
            x, y = int(column) - 1, int(row) - 1
        elif newline:
            x, y = 0, y + 1
        elif character:
            width = Line(character).width
            made |= {(x + at, y): (character, style) for at in range(width)}
            x += width
        else:
            style = "" if codes in ("", "0") else codes
    return made


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_patches_make_what_a_full_drawing_makes(
    size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    console = Console(color_system="truecolor", force_terminal=True)
    screen: list[Cells] = [{}]
    kinds: list[type[CompositorUpdate]] = []
    ours = BoardCompositor.render_partial_update

    def whole(of: Compositor) -> str:
        return Compositor.render_full_update(of).render_segments(console)

    def patched(self: BoardCompositor) -> CompositorUpdate | None:
        update = ours(self)
        if update is not None:
            kinds.append(type(update))
            screen[0] = drawn(screen[0], update.render_segments(console))
        return update

    def anew(self: BoardCompositor, simplify: bool = False) -> CompositorUpdate:
        screen[0] = drawn({}, whole(self))
        return Compositor.render_full_update(self, simplify)

    snapshot, history, hardware = played("busy", 1)
    wide = replace(snapshot.queue[0], model="日本語の模型", client="é" * 12)
    states = [replace(snapshot, queue=(wide, *snapshot.queue[1:]))]
    states += [change(snapshot) for name, change in CHANGES.items() if name != "more_slots"]
    app = still(Script())
    async with app.run_test(size=size) as pilot:
        remember(app, history, hardware)
        app.take(snapshot)
        await settled(app, pilot)
        monkeypatch.setattr(BoardCompositor, "render_partial_update", patched)
        monkeypatch.setattr(BoardCompositor, "render_full_update", anew)
        screen[0] = drawn({}, whole(app.board._compositor))
        for state in states:
            app.take(state)
            await settled(app, pilot)
            assert screen[0] == drawn({}, whole(app.board._compositor))
    assert kinds.count(Patches) >= len(states) - 2  # of a few the board is laid out anew


def test_a_part_of_a_text_has_as_many_cells_as_it_spans() -> None:
    assert part("abcdef", -2, 3) == "abc"
    assert part("日本語", 2, 5) == "本 "
    assert part("日本語", 0, 9) == "日本語"


def test_a_small_frame_is_sent_whole_and_a_long_one_as_it_came() -> None:
    sent: list[str] = []

    class Sends:
        def write(self, data: str) -> None:
            sent.append(data)

    driver = object.__new__(whole_frames(cast(type[Driver], Sends)))  # of a screen it needs nothing
    for data in ("bell", BEGINS, "frame", ENDS, "after", BEGINS, "x" * MAX_CHARACTERS, ENDS):
        driver.write(data)
    assert sent == ["bell", f"{BEGINS}frame{ENDS}", "after", BEGINS, "x" * MAX_CHARACTERS, ENDS]
