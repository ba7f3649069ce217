"""What `top` leaves of a terminal: however it ends or is suspended, all that it turned on is turned off."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from textual.drivers.headless_driver import HeadlessDriver

from clairvoyant_cli.state.source import DaemonSource
from tui.app import Top
from tui.slow_terminal import lasting_driver

pytestmark = pytest.mark.timeout(120)
PATIENCE_S = 60.0
NOBODY = "http://127.0.0.1:9"
TOP = ("-m", "clairvoyant_cli", "top", "--url", NOBODY)
CRASHES = """
import asyncio
from clairvoyant_cli.state.source import DaemonSource
from tui.app import Top

def crash(self):
    raise ValueError("a fault in the program")

Top._tick = crash
asyncio.run(Top(DaemonSource("http://127.0.0.1:9")).run_async())
"""
USUALLY_ON = {7, 25}  # the lines wrap, the cursor is seen
ALTERNATE, PASTE, MOUSE, CURSOR = 1049, 2004, 1000, 25


class Terminal:
    """A pseudo-terminal with a program in it."""

    def __init__(self, pid: int, fd: int) -> None:
        self.pid, self.fd = pid, fd
        self.settings = termios.tcgetattr(fd)
        self.output = b""

    def read(self) -> bool:
        """Take what is written; False at its end."""
        assert select.select([self.fd], [], [], PATIENCE_S)[0], self.output[-500:]
        data = b""
        with suppress(OSError):  # Linux says so of a terminal that no process has open
            data = os.read(self.fd, 1 << 16)
        self.output += data
        return bool(data)

    def until(self, *words: bytes) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not all(word in self.output for word in words):
            assert time.monotonic() < deadline
            assert self.read()

    def drained(self) -> None:
        while select.select([self.fd], [], [], 0.0)[0] and self.read():
            pass

    @property
    def modes(self) -> set[int]:
        on = set(USUALLY_ON)
        for numbers, switch in re.findall(rb"\x1b\[\?([\d;]+)([hl])", self.output):
            each = {int(number) for number in numbers.split(b";")} - {2026}
            on = on | each if switch == b"h" else on - each
        keyboard = self.output.count(b"\x1b[>") - self.output.count(b"\x1b[<u")
        return on | ({-1} if keyboard else set())

    def ended(self) -> int:
        while self.read():
            pass
        return os.waitpid(self.pid, 0)[1]


@contextmanager
def terminal(home: Path, *command: str) -> Iterator[Terminal]:
    pid, fd = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", HOME=str(home), XDG_STATE_HOME=str(home))
        os.execv(sys.executable, [sys.executable, *command])  # noqa: S606
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    held = Terminal(pid, fd)
    try:
        yield held
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
        with suppress(OSError):
            os.close(fd)


@contextmanager
def drawn(home: Path) -> Iterator[Terminal]:
    """Run `top` until it has drawn its footer."""
    with terminal(home, *TOP) as held:
        held.until(b"quit", b"\x1b[?2004h")
        assert {ALTERNATE, PASTE, MOUSE} <= held.modes
        assert CURSOR not in held.modes
        yield held


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_leaves_the_terminal_as_it_was(number: int, tmp_path: Path) -> None:
    with drawn(tmp_path) as held:
        assert termios.tcgetattr(held.fd) != held.settings
        os.kill(held.pid, number)
        held.until(b"\x1b[?1049l", b"\x1b[?1004l")
        assert termios.tcgetattr(held.fd) == held.settings
        assert os.waitstatus_to_exitcode(held.ended()) == 128 + signal.SIGTERM
        assert held.modes == USUALLY_ON


def test_a_crash_leaves_the_terminal_as_it_was_and_says_what_went_wrong(tmp_path: Path) -> None:
    with terminal(tmp_path, "-c", CRASHES) as held:
        held.ended()
        assert held.modes == USUALLY_ON
        assert b"a fault in the program" in held.output[held.output.index(b"\x1b[?1049l") :]


def test_a_terminal_that_is_closed_ends_it(tmp_path: Path) -> None:
    with drawn(tmp_path) as held:
        os.close(held.fd)
        assert os.waitpid(held.pid, 0)[0] == held.pid


def test_a_terminal_that_is_closed_without_sighup_ends_it(tmp_path: Path) -> None:
    fd, inner = pty.openpty()  # which controls no process
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    env = os.environ | {"TERM": "xterm-256color", "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    command = [sys.executable, *TOP]
    with subprocess.Popen(command, 0, None, inner, inner, inner, start_new_session=True, env=env) as held:
        os.close(inner)
        Terminal(held.pid, fd).until(b"quit")
        os.close(fd)
        assert held.wait(PATIENCE_S) == 128 + signal.SIGTERM


def test_control_z_suspends_and_comes_back(tmp_path: Path) -> None:
    with drawn(tmp_path) as held:
        os.write(held.fd, b"\x1a")
        assert os.WIFSTOPPED(os.waitpid(held.pid, os.WUNTRACED)[1])
        held.drained()
        assert held.modes == USUALLY_ON
        assert termios.tcgetattr(held.fd) == held.settings
        held.output = b""
        os.kill(held.pid, signal.SIGCONT)
        held.until(b"\x1b[?1049h", b"queue", b"quit", b"\x1b[?2004h")
        os.write(held.fd, b"q")
        assert os.waitstatus_to_exitcode(held.ended()) == 0
        assert held.modes == USUALLY_ON


def test_a_paste_is_no_row_of_keys(tmp_path: Path) -> None:
    with drawn(tmp_path) as held:
        os.write(held.fd, b"\x1b[200~" + b"q\rxy:q\r" * 300 + b"\x1b[201~")
        os.write(held.fd, b"?")
        held.until(b"Chosen request")  # the key after the paste
        os.write(held.fd, b"\x1b[200~qq\x1b[201~qq")
        assert os.waitstatus_to_exitcode(held.ended()) == 0


async def test_keys_are_read_again_after_half_an_emoji_on_windows() -> None:
    read = ["\ud83d", "q"]

    class Monitor(threading.Thread):
        def __init__(self, *given: object) -> None:
            super().__init__()
            self.loop, self.app, self.exit_event, self.process_event = given

        def run(self) -> None:
            with suppress(UnicodeEncodeError):
                while read:
                    read.pop(0).encode()

    driver: Any = lasting_driver(HeadlessDriver)(Top(DaemonSource(NOBODY)))
    left = threading.Event()
    driver._event_thread = Monitor(None, None, left, None)
    driver._event_thread.start()
    driver._event_thread.join()
    driver.write("")
    driver._event_thread.join()
    assert not read
    left.set()
    ended = driver._event_thread
    driver.write("")
    assert driver._event_thread is ended


async def test_input_that_is_not_utf_8_is_passed_over() -> None:
    read = [b"\x1b[M \xa10", b"\xff", b"q"]

    class Reads(HeadlessDriver):
        exit_event = threading.Event()

        def run_input_thread(self) -> None:
            while read:
                read.pop(0).decode()

    driver: Any = lasting_driver(Reads)(Top(DaemonSource(NOBODY)))
    driver.run_input_thread()
    assert not read
