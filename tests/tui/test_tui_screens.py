"""The whole screen, line by line, at three sizes, against what it looked like when somebody looked.

After a change of the looks: run with CLAIRVOYANT_REDRAW=1, look at the difference, and commit it.
"""

import os
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.segment import Segment
from rich.style import Style

from clairvoyant_cli.state.source import Disconnected
from tests.tui.board import SIZES, Script, played, remember, settled, stage, still
from tests.tui.moving_picture import MovingPicture

GOLDEN = Path(__file__).parent / "golden"
CASES = {
    "empty": ("empty", 1, False),
    "busy": ("busy", 1, False),
    "overloaded": ("overloaded", 1, False),
    "disconnected": ("busy", 1, True),
    "no_gpu": ("busy", 0, False),
    "two_gpus": ("busy", 2, False),
}


def same(name: str, text: str) -> None:
    """Compare with the golden file; under CLAIRVOYANT_REDRAW write it."""
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("CLAIRVOYANT_REDRAW"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("case", CASES)
async def test_screen_looks_as_it_did(case: str, size: tuple[int, int]) -> None:
    scenario, gpus, lost = CASES[case]
    snapshot, history, hardware = played(scenario, gpus)
    app = still(Script())
    async with app.run_test(size=size) as pilot:
        remember(app, history, hardware)
        app.take(snapshot)
        if case in ("no_gpu", "two_gpus"):
            await pilot.press("4")
        if lost:
            app.take(Disconnected("no daemon answers"))
        text = await settled(app, pilot)
        same(f"{case}_{size[0]}x{size[1]}", text)


def test_a_recording_draws_once_what_stays_and_moves_what_changes() -> None:
    picture = MovingPicture(20, 2, "#000000", 1.0)
    for text in ("one", "one", "two"):
        picture.take([[Segment("it stays")], [Segment(f"  {text} <", Style(color="red", bold=True))]])
    svg = ElementTree.fromstring(picture.svg())  # noqa: S314 - our own
    words = [each.text for each in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert words == ["it stays", "one <", "two <"]
    style = svg.findtext("{http://www.w3.org/2000/svg}style")
    assert style is not None
    assert "0.00%{visibility:visible}66.67%{visibility:hidden}" in style
    assert "0.00%{visibility:hidden}66.67%{visibility:visible}" in style


@pytest.mark.parametrize("deck", "345678")
async def test_deck_shows_each_panel_at_80x24(deck: str) -> None:
    snapshot, history, hardware = played("busy", 1)
    app = still(Script())
    async with app.run_test(size=(80, 24)) as pilot:
        remember(app, history, hardware)
        app.take(snapshot)
        await pilot.press(deck)
        text = await settled(app, pilot)
        same(f"deck_{deck}_80x24", text)


@pytest.mark.parametrize(
    ("name", "key", "size"),
    [
        ("help", "question_mark", (120, 40)),
        ("detail", "enter", (120, 40)),
        ("clients", "c", (120, 40)),
        ("clients", "c", (80, 24)),
        *(("policy", "m", size) for size in SIZES),
        *(("past", "left_square_bracket", size) for size in SIZES),
        ("sort_by", "s", (120, 40)),
        ("columns", "C", (80, 24)),
    ],
)
async def test_pages(name: str, key: str, size: tuple[int, int]) -> None:
    snapshot, history, hardware = played("busy" if name in ("help", "detail") else "overloaded", 1)
    watched = stage("overloaded")
    app = still(Script(coming=watched.scene.outlook(watched.at_s)))
    async with app.run_test(size=size) as pilot:
        remember(app, history, hardware)
        app.take(snapshot)
        if name == "past":
            watched.advance(60.0)
            app.take(watched.snapshot())
        await pilot.press("j", key)
        text = await settled(app, pilot)
        same(f"page_{name}_{size[0]}x{size[1]}", text)


@pytest.mark.parametrize("size", [(20, 5), (40, 8), (60, 12), (108, 34), (168, 46), (300, 100), (110, 20)])
async def test_any_size_draws(size: tuple[int, int]) -> None:
    snapshot, history, hardware = played("overloaded", 2, seconds=20)
    app = still(Script())
    async with app.run_test(size=size) as pilot:
        remember(app, history, hardware)
        app.take(snapshot)
        assert snapshot.verdict.text[:5] in await settled(app, pilot)
