"""`clairvoyant top` in a real terminal, before a real daemon, before a real llama.cpp server."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.fakes.daemon_process import daemon_process
from tests.fakes.llamacpp_server import LlamaServer

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed"),
    pytest.mark.timeout(180),
]
ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Tmux:
    """A tmux server of its own, with one window."""

    socket: Path

    def run(self, *arguments: str) -> str:
        """Give tmux a command."""
        command = ["tmux", "-S", str(self.socket), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def screen(self) -> str:
        """Return what is on the screen."""
        return self.run("capture-pane", "-p", "-t", "top")

    def press(self, *keys: str) -> None:
        """Press keys."""
        self.run("send-keys", "-t", "top", *keys)

    def until(self, what: Callable[[str], bool]) -> str:
        """Return the screen once it shows something."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            screen = self.screen()
            if what(screen):
                return screen
            assert time.monotonic() < deadline, screen
            threading.Event().wait(0.05)

    def shows(self, *words: str) -> str:
        """Return the screen once it shows all the words."""
        return self.until(lambda screen: all(word in screen for word in words))

    def ended(self) -> bool:
        """Wait for the dashboard to end; tmux ends with it."""
        command = ["tmux", "-S", str(self.socket), "has-session", "-t", "top"]
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if subprocess.run(command, capture_output=True, check=False).returncode:
                return True
            threading.Event().wait(0.05)
        return False


@contextmanager
def top(folder: Path, url: str, width: int = 120, height: int = 40, command: str = "") -> Iterator[Tmux]:
    """Run the dashboard, or another command."""
    tmux = Tmux(folder / "tmux")
    command = command or f"exec {sys.executable} -m clairvoyant_cli top --url {url}"
    environment = os.environ | {"TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}
    for size in ("LINES", "COLUMNS"):  # of the terminal the tests run in; they would overrule this one's
        environment.pop(size, None)
    start = ["tmux", "-S", str(tmux.socket), "-f", "/dev/null", "new-session", "-d", "-s", "top"]
    subprocess.run(
        [*start, "-x", str(width), "-y", str(height), command], cwd=folder, env=environment, check=True
    )
    try:
        yield tmux
    finally:
        subprocess.run(["tmux", "-S", str(tmux.socket), "kill-server"], capture_output=True, check=False)


@contextmanager
def asking(url: str, clients: int, tokens: int) -> Iterator[list[int]]:
    """Let clients ask at once; yield the statuses of those that have been answered."""
    statuses: list[int] = []

    def ask(number: int) -> None:
        body = {"prompt": f"request {number} counts", "n_predict": tokens, "ignore_eos": True}
        try:
            answer = httpx.post(f"{url}/completion", json=body, timeout=PATIENCE_S / 2, trust_env=False)
            statuses.append(answer.status_code)
        except httpx.HTTPError:
            statuses.append(0)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    yield statuses
    for thread in threads:
        thread.join()


def test_it_shows_steers_survives_a_restart_and_leaves_the_daemon_alone(
    llama: LlamaServer, tmp_path: Path
) -> None:
    with daemon_process(llama.base_url, home=tmp_path) as daemon, top(tmp_path, daemon.base_url) as tmux:
        tmux.shows("All well: none waiting", "slots □")
        tmux.press("P")
        tmux.shows("Paused by an operator")
        with asking(daemon.base_url, clients=4, tokens=40) as statuses:
            tmux.shows("waiting 4", "127.0.0")
            tmux.press("Enter")
            tmux.shows("why here", "policy key")
            tmux.press("Escape")
            tmux.until(lambda screen: "why here" not in screen)
            tmux.press("j", "H")
            tmux.shows("‖", "held")
            tmux.press("g", "x")
            tmux.shows("Cancel ")
            tmux.press("y")
            tmux.shows("waiting 3")
            tmux.press("P")
            tmux.shows("All well", "waiting 1")
            tmux.press("g", "H")
            tmux.shows("waiting 0")
        assert sorted(statuses)[:3] == [200, 200, 200]
        tmux.shows("✓ done")

        daemon.signal(signal.SIGKILL)
        tmux.shows(" no daemon ", "retrying")
        port = daemon.base_url.rsplit(":", 1)[1]
        with daemon_process(llama.base_url, "--listen", f"127.0.0.1:{port}", home=tmp_path) as again:
            tmux.shows("All well: none waiting")
            tmux.press("q")
            assert tmux.ended()
            health = httpx.get(f"{again.base_url}/_clairvoyant/health", trust_env=False)
            assert health.json()["status"] == "serving"
