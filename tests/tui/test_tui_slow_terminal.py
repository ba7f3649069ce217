"""A terminal behind a slow link: it is not sent more than it shows, and never blocks the keys."""

import os
import pty
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
from textual.driver import Driver
from textual.events import CursorPosition

import tui.slow_terminal
from clairvoyant_cli.state.source import DaemonSource
from tests.tui.board import bench, settled
from tui.app import Top
from tui.slow_terminal import PacedWriter, lasting_driver

ASKS = "\x1b[6n"


@contextmanager
def writing() -> Iterator[tuple[PacedWriter, int]]:
    """Start a writer on a terminal, and return it with the end that is read."""
    fd, inner = pty.openpty()
    tty.setraw(inner)
    with os.fdopen(inner, "w") as file:
        writer = PacedWriter(file)
        writer.start()
        yield writer, fd
        writer.stop()
    os.close(fd)


def read(fd: int, until: bytes) -> bytes:
    data = b""
    while until not in data:
        data += os.read(fd, 1 << 16)
    return data


def test_what_is_read_is_what_was_written() -> None:
    with writing() as (writer, fd):
        writer.write("½ " * 50_000)
        writer.write("end")
        assert read(fd, b"end").decode() == "½ " * 50_000 + "end"


def test_leaving_waits_for_nothing_that_a_terminal_has_not_taken() -> None:
    with writing() as (writer, fd):
        for _ in range(100):  # more than Textual's own writer takes
            writer.write("x" * 10_000)
        assert writer.is_writing
        writer.drop()
        writer.write("\x1b[?1049l")
        writer.stop()
        left = read(fd, b"\x1b[?1049l")
        assert b"\x18\x1b[?1049l" in left, "an escape sequence that was cut is cancelled"
        assert len(left) < 10_000


class Still(PacedWriter):
    """A writer that keeps what it gets."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.dropped = False

    is_writing = False

    def write(self, text: str) -> None:
        self.sent.append(text)


class Bare(Driver):
    """A driver on such a writer."""

    def __init__(self, app: Top) -> None:
        self._app, self._writer_thread = app, Still()

    def write(self, data: str) -> None:
        self._writer_thread.write(data)

    def start_application_mode(self) -> None: ...
    def stop_application_mode(self) -> None: ...
    def disable_input(self) -> None: ...


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A driver whose clock the test sets."""
    made: Any = lasting_driver(Bare)(Top(DaemonSource("http://127.0.0.1:9")))
    made.now = 100.0
    monkeypatch.setattr(tui.slow_terminal, "monotonic", lambda: made.now)
    return made


async def test_a_terminal_is_behind_until_it_answers(driver: Any) -> None:
    assert not driver.is_behind()
    driver.write("one")
    driver.process_message(CursorPosition(0, 0))
    driver.write("two")
    driver.now += 12.0
    assert driver.is_behind()
    driver.write("three")
    driver.process_message(CursorPosition(0, 0))
    assert driver.lag_s == 12.0
    assert driver.is_behind(), "the third is not shown yet"
    driver.process_message(CursorPosition(0, 0))
    assert not driver.is_behind()
    assert driver._writer_thread.sent == ["one", ASKS, "two", ASKS, "three", ASKS]
    driver.write("four")
    driver.now += 31.0
    assert not driver.is_behind(), "an answer was lost"


async def test_a_terminal_that_never_answers_is_behind_while_it_takes_nothing(driver: Any) -> None:
    driver._writer_thread.is_writing = True
    driver.write("one")
    assert driver.is_behind()
    driver._writer_thread.is_writing, driver.now = False, 104.0
    assert not driver.is_behind()
    assert driver.lag_s == 4.0


async def test_frames_are_dropped_while_the_terminal_is_behind_and_then_the_newest_is_drawn() -> None:
    async with bench() as it:
        driver: Any = it.app._driver
        driver.is_behind = lambda: True
        state = replace(it.snapshot, policy="fcfs")
        it.app.take(state)
        assert "order boost" in await settled(it.app, it.pilot)
        driver.is_behind, driver.lag_s = (lambda: False), 12.3
        it.app.draw()
        text = await settled(it.app, it.pilot)
        assert "order fcfs" in text
        assert "terminal is 12 s behind" in text
        driver.lag_s = 0.3
        it.app.draw()
        assert "behind" not in await settled(it.app, it.pilot)
        with suppress(AttributeError):
            del driver.is_behind
