"""What stands between the screen and its terminal, which may be slow, or gone."""

import os
import sys
from contextlib import suppress
from queue import Queue
from select import select
from time import monotonic
from typing import IO, Any

from textual.driver import Driver
from textual.drivers._writer_thread import WriterThread
from textual.events import CursorPosition
from textual.message import Message

TERMINATED = 128 + 15
_PIECE = 512  # bytes of a write: what is left is dropped when the screen is left
_ASK = "\x1b[6n"  # a terminal says where its cursor is, once it has drawn all before the question
_LOST_S = 30.0  # an answer that has not come by then does not come
_LEAVING_S = 0.2  # how long the answer to the last question is awaited, which a shell would take for input
_CANCEL = "\x18"  # ends an escape sequence of which the rest was dropped


class PacedWriter(WriterThread):
    """Writes in pieces, of which the rest can be dropped. Its queue has no end: Textual's own one blocks the
    event loop, and with it the keys, when a slow terminal has left thirty writes in it.
    """

    def __init__(self, file: IO[str]) -> None:
        super().__init__(file)
        self._queue: Queue[str | None] = Queue()
        self._dropping = False
        self.dropped = False

    @property
    def is_writing(self) -> bool:
        return self._queue.unfinished_tasks > 0

    def run(self) -> None:
        while (text := self._queue.get()) is not None:
            self._dropping = self._dropping and text != _CANCEL
            data = text.encode("utf-8", "replace")
            while data and not self._dropping:
                with suppress(BlockingIOError):
                    select((), (self.fileno(),), ())
                    data = data[os.write(self.fileno(), data[:_PIECE]) :]
            self._queue.task_done()

    def drop(self) -> None:
        """Forget what is not yet written, and what the system has not passed on."""
        self._dropping = self.dropped = True
        if sys.platform != "win32":
            import termios

            with suppress(termios.error):
                termios.tcflush(self.fileno(), termios.TCOFLUSH)
        self.write(_CANCEL)


def lasting_driver(driver: type[Driver]) -> type[Driver]:  # noqa: C901 - a class, of small methods
    """Return a driver that ends with its terminal, knows how far that is behind, and passes over input that
    is not UTF-8: a rebuilt terminal (tmux, ssh) may report the mouse in such bytes.
    """

    class Lasting(driver):  # type: ignore[misc, valid-type]  # which it is depends on the system
        _writer_thread: Any
        lag_s = 0.0  # how long the last frame took to be shown
        _asked_at: float | None = None  # when the oldest bytes were sent that may not be shown yet
        _since_at: float | None = None  # the same of those after the question that is open
        _answers = False  # the terminal has ever said how far it is

        @property
        def _paced(self) -> PacedWriter | None:
            writer = getattr(self, "_writer_thread", None)
            return writer if isinstance(writer, PacedWriter) and not writer.dropped else None

        def start_application_mode(self) -> None:
            super().start_application_mode()
            if getattr(self, "input_tty", False):
                self._writer_thread.stop()
                self._writer_thread = PacedWriter(self._file)
                self._writer_thread.start()
                self._asked_at = self._since_at = None

        def stop_application_mode(self) -> None:
            if (writer := self._paced) is not None:
                until = monotonic() + _LEAVING_S
                while self._answers and self._asked_at is not None and monotonic() < until:
                    self.exit_event.wait(0.01)
                writer.drop()
            super().stop_application_mode()

        def run_input_thread(self) -> None:  # of Textual's drivers for POSIX
            while not self.exit_event.is_set():
                with suppress(UnicodeDecodeError):
                    super().run_input_thread()
                    break

        def process_message(self, message: Message) -> None:
            if isinstance(message, CursorPosition):
                self._answers = True
                self._shown()
            else:
                super().process_message(message)

        def is_behind(self) -> bool:
            """Whether the terminal has not shown yet what was sent to it."""
            if (asked_at := self._asked_at) is None or (writer := self._paced) is None:
                return False
            if writer.is_writing or (self._answers and monotonic() < asked_at + _LOST_S):
                return True
            self._shown()
            return False

        def _shown(self) -> None:
            if self._asked_at is not None:
                self.lag_s = monotonic() - self._asked_at
            self._asked_at, self._since_at = self._since_at, None
            if self._asked_at is not None:
                super().write(_ASK)

        def write(self, data: str) -> None:
            if getattr(self, "input_tty", False) and not os.isatty(self.fileno):  # also without SIGHUP
                os._exit(TERMINATED)
            keys: Any = getattr(self, "_event_thread", None)  # for Windows; half an emoji ends it
            if keys is not None and keys.ident and not keys.is_alive() and not keys.exit_event.is_set():
                self._event_thread = type(keys)(keys.loop, keys.app, keys.exit_event, keys.process_event)
                self._event_thread.start()
            super().write(data)
            if self._paced is None:
                return
            if self._asked_at is None:
                self._asked_at = monotonic()
                super().write(_ASK)
            elif self._since_at is None:
                self._since_at = monotonic()

    return Lasting
