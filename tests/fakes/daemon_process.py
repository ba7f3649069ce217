"""Servers in processes of their own: `clairvoyant serve` as its users run it, and others."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-m", "clairvoyant_cli", "serve")
STARTED = re.compile(r"clairvoyant \S+: (http://\S+) -> ")


@dataclass(eq=False)
class DaemonProcess:
    """A daemon that has said where it listens. `lines` is what it logged."""

    process: "subprocess.Popen[str]"
    base_url: str = ""
    lines: list[str] = field(default_factory=list)
    _read: threading.Thread | None = None
    _said: threading.Condition = field(default_factory=threading.Condition)

    @property
    def pid(self) -> int:
        return self.process.pid

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, timeout_s: float = 30) -> int:
        code = self.process.wait(timeout_s)
        if self._read is not None:
            self._read.join()
        return code

    def await_line(self, words: str, timeout_s: float = 30) -> None:
        """Return once it has logged a line with these words; TimeoutError if it never does."""
        with self._said:
            if not self._said.wait_for(lambda: any(words in line for line in self.lines), timeout_s):
                raise TimeoutError(f"the daemon never said {words!r}:\n" + "\n".join(self.lines))

    def _await_start(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip())
            found = STARTED.search(line)
            if found:
                self.base_url = found[1]
                break
        else:
            self.process.wait()
            raise RuntimeError("the daemon did not start:\n" + "\n".join(self.lines))
        self._read = threading.Thread(target=self._drain, daemon=True)
        self._read.start()

    def _drain(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._said:
                self.lines.append(line.rstrip())
                self._said.notify_all()


@contextmanager
def daemon_process(
    backend: str,
    *flags: str,
    home: Path,
    checkout: Path | None = None,
    stdin: int = subprocess.DEVNULL,
    self_test: bool = False,
) -> Iterator[DaemonProcess]:
    """Run `clairvoyant serve` before `backend` on a free port until the block ends.

    `checkout` names another checkout to run it from, with a virtual environment in its `.venv`.
    """
    command = COMMAND if checkout is None else (str(checkout / ".venv/bin/python"), *COMMAND[1:])
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CLAIRVOYANT_")}
    # Idle time is quiet. Other checkouts may not know the flag.
    quiet = [] if self_test or checkout is not None else ["--no-self-test"]
    process = subprocess.Popen(
        [*command, *quiet, "--backend", backend, "--listen", "127.0.0.1:0", *flags],
        stdin=stdin,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=kept
        | {
            "HOME": str(home),
            "XDG_STATE_HOME": str(home),
            "XDG_DATA_HOME": str(home),
            "XDG_CONFIG_HOME": str(home),
        },
        start_new_session=True,
        cwd=checkout,
    )
    daemon = DaemonProcess(process)
    try:
        daemon._await_start()
        yield daemon
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        daemon.wait()
        assert process.stderr is not None
        process.stderr.close()


@contextmanager
def child(*arguments: object) -> Iterator[str]:
    """Run Python with these arguments until the block ends; yield the address, its first line."""
    with subprocess.Popen(
        [sys.executable, *map(str, arguments)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()
