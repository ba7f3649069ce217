"""On a console with a poor font, everything that is sent to the screen is in characters that it has."""

from pathlib import Path

import pytest
from rich.cells import cell_len
from textual.drivers.headless_driver import HeadlessDriver

from clairvoyant_cli.system import draws_few_glyphs
from tests.tui.board import Script
from tui.app import Top
from tui.braille import AXIS, area
from tui.plain_glyphs import PLAIN, plain_driver

ROOT = Path(__file__).resolve().parents[2]
CP437 = bytes(range(0x80, 0x100)).decode("cp437") + "☺☻♥♦♣♠•◘○◙♂♀♪♫☼►◄↕‼¶§▬↨↑↓→←∟↔▲▼⌂"
WGL4 = frozenset(CP437) | frozenset("–…×−ρø●□")
"""Of the 652 characters of Windows Glyph List 4, those that matter here."""


def test_whatever_the_dashboard_draws_has_a_plain_form_as_wide() -> None:
    drawn = {each for path in (ROOT / "tui").rglob("*.py") for each in path.read_text() if ord(each) > 127}
    drawn |= set("╭╮╰╯▔▁▎▊")  # Textual's borders
    drawn |= {chr(0x2800 + bits) for bits in range(256)}
    for glyph in drawn:
        plain = glyph.translate(PLAIN)
        assert plain == " " or plain.isascii() or plain in WGL4, f"{glyph} is drawn as {plain}"
        assert cell_len(plain) == cell_len(glyph) == 1, glyph


def test_a_plot_keeps_its_shape() -> None:
    _, *lines = area("", (0.0, 2.0, 2.0, 4.5, 4.5, 7.0, 10.0, 10.0), "ink", AXIS + 4, 3)
    assert [line.plain[AXIS:].translate(PLAIN) for line in lines] == ["  ▄█", "▄███"]


class Sent(HeadlessDriver):
    """Keeps what would go to the screen."""

    sent = ""

    def write(self, data: str) -> None:
        self.sent += data


async def test_the_driver_sends_plain_glyphs_and_leaves_the_rest() -> None:
    driver = plain_driver(Sent)(Top(Script()))
    driver.write("\x1b[1m✓ ⣿⣀\x1b[0m größer")
    assert isinstance(driver, Sent)
    assert driver.sent == "\x1b[1m√ █▄\x1b[0m größer"


def test_the_dashboard_draws_so_where_it_is_told_to() -> None:
    rich, plain = Top(Script()), Top(Script(), glyphs=PLAIN)
    assert [each.__name__ for each in plain.driver_class.mro()[:2]] == ["Plain", rich.driver_class.__name__]


@pytest.mark.parametrize(
    ("platform", "environment", "few"),
    [
        ("linux", {"TERM": "linux"}, True),
        ("linux", {"TERM": "xterm-256color"}, False),
        ("win32", {}, True),
        ("win32", {"WT_SESSION": "7f"}, False),
        ("win32", {"TERM_PROGRAM": "vscode"}, False),
    ],
)
def test_poor_consoles_are_known_by_what_they_do_not_say(
    platform: str, environment: dict[str, str], few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", platform)
    assert draws_few_glyphs(environment) is few
