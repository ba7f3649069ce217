"""What the dashboard costs, by size and by how many wait: processor, first paint, keys, memory.

`clairvoyant top` runs in a real pseudo-terminal, attached to a server that speaks the daemon's event stream
with so many new states a second, and sends as many of them as it is asked for, as the daemon does.

Run: python -m tests.perf.perf_tui [--seconds 10] [--soak MINUTES]
"""

import argparse
import asyncio
import fcntl
import itertools
import os
import pty
import re
import select
import statistics
import struct
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import msgspec
import psutil

from clairvoyant_cli.proxy.observing.queue_rows import MAX_ROWS
from tests.tui.board import stage

FRAME = b"\x1b[?2026h"  # Textual begins each frame with it, once the terminal says that it knows it
FIRST_BYTES = 2_000  # before it Textual only asks what the terminal can do
KEYS = 30
TABLE = (  # columns, rows, how many wait, states a second
    (80, 24, 20, 10.0),
    (120, 40, 20, 10.0),
    (200, 60, 20, 10.0),
    (120, 40, 1_000, 4.0),
    (120, 40, 5_000, 2.0),
)
"""The daemon draws a long queue less often (`control_api.REST`), and sends MAX_ROWS rows of it."""

KNOWS_FRAMES = b"\x1b[?2026;2$y"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def events(queued: int, number: int) -> list[bytes]:
    """Make states ahead, so that making them costs nothing while it is measured."""
    watched = stage("overloaded")
    made = []
    for _ in range(number):
        watched.advance(0.1)
        snapshot = watched.snapshot()
        once = [replace(row, prompt=None) for row in snapshot.queue]
        rows = itertools.islice(itertools.cycle(once), min(queued, MAX_ROWS))
        queue = tuple(replace(row, id=f"{row.id}-{n}", rank=n) for n, row in enumerate(rows, 1))
        waiting = replace(snapshot.waiting, total=queued)
        made.append(msgspec.json.encode(replace(snapshot, queue=queue, waiting=waiting)))
    return made


@contextmanager
def serving(states: list[bytes], per_s: float) -> Iterator[str]:
    """Send the states over and over from a thread of its own; yield the address."""
    started = threading.Event()
    address: list[str] = []
    loop = asyncio.new_event_loop()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.readuntil(b"\r\n\r\n")
        if b"/events" not in asked.split(b"\r\n")[0]:  # such as the daemon's history
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            writer.close()
            return
        every_ms = re.search(rb"every_ms=(\d+)", asked)
        every_s = max(1.0 / per_s, int(every_ms[1]) / 1e3 if every_ms else 0.0)
        writer.write(HEAD)
        try:
            due = loop.time()
            for turn in range(10**9):
                state = states[int(turn * every_s * per_s) % len(states)]
                writer.write(b"event: snapshot\ndata: " + state + b"\n\n")
                await writer.drain()
                due = max(due + every_s, loop.time() - 1.0)
                await asyncio.sleep(max(0.0, due - loop.time()))
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def serve() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        address.append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        started.set()

    def run() -> None:
        loop.run_until_complete(serve())
        loop.run_forever()
        answers = asyncio.all_tasks(loop)
        for each in answers:
            each.cancel()
        if answers:
            loop.run_until_complete(asyncio.gather(*answers, return_exceptions=True))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    started.wait()
    yield address[0]
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


@dataclass(slots=True)
class Terminal:
    """A pseudo-terminal with `clairvoyant top` in it."""

    fd: int
    process: psutil.Process
    frames: int = 0
    sent_bytes: int = 0
    first_s: float = 0.0

    def read(self, seconds: float, *, until_output: bool = False) -> float | None:
        """Take what is drawn for some time; return after how long the first byte of it came."""
        start = time.perf_counter()
        first: float | None = None
        while (left := start + seconds - time.perf_counter()) > 0:
            if not select.select([self.fd], [], [], left)[0]:
                break
            data = os.read(self.fd, 1 << 16)
            first = first if first is not None else time.perf_counter() - start
            self.frames += data.count(FRAME)
            self.sent_bytes += len(data)
            if b"\x1b[?2026$p" in data:
                os.write(self.fd, KNOWS_FRAMES)
            if until_output:
                break
        return first

    def press(self, key: str) -> None:
        os.write(self.fd, key.encode())


def _first_paint(terminal: Terminal) -> float:
    """Return after how long the first word of the board stood there."""
    begun = time.perf_counter()
    while not terminal.sent_bytes or terminal.sent_bytes < FIRST_BYTES:
        terminal.read(10.0, until_output=True)
    return time.perf_counter() - begun


@contextmanager
def top(arguments: list[str], columns: int, rows: int) -> Iterator[Terminal]:
    """Start the dashboard."""
    pid, fd = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", COLORTERM="truecolor")
        command = ["-m", "clairvoyant_cli", "top", *arguments]
        os.execv(sys.executable, [sys.executable, *command])  # noqa: S606
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    terminal = Terminal(fd, psutil.Process(pid))
    terminal.first_s = _first_paint(terminal)
    terminal.read(4.0)
    yield terminal
    terminal.press("q")
    with suppress(OSError):  # the terminal goes with the process
        terminal.read(2.0)
    os.close(fd)
    os.waitpid(pid, 0)


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def measure(url: str, size: tuple[int, int], seconds: float) -> str:
    """Watch for a while, then freeze the picture and time keys: what is drawn then is the key's doing."""
    with top(["--url", url], *size) as terminal:
        terminal.frames = terminal.sent_bytes = 0
        cpu, wall = cpu_s(terminal.process), time.perf_counter()
        terminal.read(seconds)
        cpu, wall = cpu_s(terminal.process) - cpu, time.perf_counter() - wall
        frames, sent = terminal.frames, terminal.sent_bytes
        terminal.press("p")
        terminal.read(1.0)
        answers, cost_s = [], cpu_s(terminal.process)
        for turn in range(KEYS):
            terminal.press("jjk"[turn % 3])
            took = terminal.read(2.0, until_output=True)
            answers.append(took if took is not None else 2.0)
            terminal.read(0.13)
        cost_s = cpu_s(terminal.process) - cost_s
        memory = terminal.process.memory_info().rss / 2**20
    return (
        f"{cpu / wall:>9.1%} {frames / wall:>8.1f} {sent / wall / 1024:>6.0f} "
        f"{terminal.first_s:>9.2f} s {statistics.median(answers) * 1e3:>6.0f} ms "
        f"{max(answers) * 1e3:>6.0f} ms {cost_s / KEYS * 1e3:>6.1f} ms {memory:>5.0f} MiB"
    )


def soak(minutes: float) -> None:
    """Watch its memory for a long time, on the simulated daemon: requests come and go as they would."""
    with top(["--demo"], 200, 60) as terminal:
        terminal.read(60.0)
        first = terminal.process.memory_info().rss / 2**20
        print(f"after 1 min {first:.1f} MiB")
        for minute in range(1, int(minutes)):
            terminal.read(60.0)
            memory = terminal.process.memory_info().rss / 2**20
            print(f"after {minute + 1} min {memory:.1f} MiB ({memory - first:+.1f})", flush=True)


def main() -> None:
    """Measure at the three sizes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--soak", type=float, default=0.0)
    arguments = parser.parse_args()
    if arguments.soak:
        soak(arguments.soak)
        return
    titles = (
        "states/s",
        "processor",
        "frames/s",
        "KiB/s",
        "first paint",
        "key",
        "worst",
        "its CPU",
        "memory",
    )
    print("size", "waiting", *titles, sep="  ")
    for width, height, queued, per_s in TABLE:
        with serving(events(queued, 60), per_s) as url:
            figures = measure(url, (width, height), arguments.seconds)
        print(f"{width}x{height:<5} {queued:>6,} {per_s:>9g} {figures}", flush=True)


if __name__ == "__main__":
    main()
