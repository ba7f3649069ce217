"""Each key that `?` lists, pressed by a stranger in tmux at three sizes, before a real daemon with a queue.

The server is simulated, and so slow that nothing starts by itself. Before each key the cursor is put on the
second request; afterwards the daemon's state and its log tell what the key did, and to which request. A key
fails if a request changed that was not under the cursor, or if anything did while a panel without rows had
the focus.

Run: python -m tests.perf.perf_keys [--keys x,t,P]
"""

import argparse
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from msgspec import json

from clairvoyant_cli.state.snapshot import Snapshot
from tests.e2e.test_top_in_tmux import ROOT, Tmux, top
from tests.fakes.child import child
from tests.fakes.daemon_process import DaemonProcess, daemon_process
from tests.fakes.replay_backend import DEFAULT_MODEL
from tui.keys import KEYS, Key

SIZES = ((80, 24), (120, 40), (200, 60))
WAITING = 14
SETTLE_S = 0.4
PATIENCE_S = 20.0
LEAVES = ("q", "ctrl+q", "ctrl+c")
NAMES = {
    "enter": "Enter",
    "escape": "Escape",
    "space": "Space",
    "tab": "Tab",
    "f1": "F1",
    "up": "Up",
    "down": "Down",
    "left": "Left",
    "right": "Right",
    "home": "Home",
    "end": "End",
    "pageup": "PPage",
    "pagedown": "NPage",
    "plus": "+",
    "equals_sign": "=",
    "minus": "-",
    "slash": "/",
    "colon": ":",
    "question_mark": "?",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "left_curly_bracket": "{",
    "right_curly_bracket": "}",
}
"""Textual's names of keys, and tmux's."""

ACTED = re.compile(r"operator: (\S+) ?(.*)")


@dataclass(eq=False)
class Stranger:
    """A person before the dashboard who looks at the daemon's books after each key."""

    tmux: Tmux
    daemon: DaemonProcess
    faults: list[str] = field(default_factory=list)

    def state(self) -> Snapshot:
        """Ask the daemon."""
        answer = httpx.get(f"{self.daemon.base_url}/_clairvoyant/state", trust_env=False)
        return json.decode(answer.content, type=Snapshot)

    def press(self, *keys: str) -> None:
        """Press keys in Textual's notation, and wait until what they do is done."""
        for key in keys:
            self.tmux.press(NAMES.get(key, key.replace("ctrl+", "C-")))
            if key == "escape":  # with the next key it would be an Alt
                time.sleep(SETTLE_S / 2)
        time.sleep(SETTLE_S)

    def answer(self) -> str:
        """Say yes if a question is asked; return what is said at the bottom."""
        screen = self.tmux.screen()
        if "y yes" in screen:
            self.press("y")
            return f"asks; y: {self.footer()}"
        return "opens a dialog or a page" if "╭" in screen else self.footer()

    def footer(self) -> str:
        """Return the line at the bottom."""
        return self.tmux.screen().rstrip("\n").split("\n")[-1].strip()

    def home(self) -> None:
        """Close what is open, and put the cursor on the second request."""
        self.press("escape", "escape")
        if "frozen" in self.tmux.screen():
            self.press("p")
        self.press("2", "escape", "escape", "g", "j")

    def try_key(self, name: str, key: Key) -> None:
        """Press a key on a chosen request, then where there is none; write down what happened."""
        self.home()
        before, said = self.state(), len(self.daemon.lines)
        chosen = before.queue[1].id
        self.press(name)
        footer = self.answer()
        changed, deeds = differences(before, self.state()), self.deeds(said)
        touched = {each for each in changed if each in {row.id for row in before.queue + before.running}}
        if touched - {chosen} or any(ident not in (chosen, "") for _, ident in deeds):
            self.faults.append(f"{name}: {touched or deeds}, not {chosen}")
        what = (
            ", ".join(f"{ident or 'daemon'} {what}" for ident, what in changed.items()) or "nothing changed"
        )
        print(f"  {key.label if key.help else '':6} {name:22} {what:44.44} | {footer:.70}", flush=True)
        if changed and "cancel" not in key.action:
            self.press("escape", "u")
            if left := differences(before, self.state()):
                self.faults.append(f"{name}: not undone: {left}")
        if key.changes and key.on:
            self.elsewhere(name)

    def elsewhere(self, name: str) -> None:
        """Press a key of requests on a panel without rows, alone on the screen."""
        self.press("escape", "9", "z")
        before, said = self.state(), len(self.daemon.lines)
        self.press(name)
        self.answer()
        if changed := differences(before, self.state()):
            self.faults.append(f"{name} on the log: {changed}")
        if deeds := self.deeds(said):
            self.faults.append(f"{name} on the log: {deeds}")
        self.press("escape", "z")

    def too_late(self, name: str) -> None:
        """Press a key after the chosen request has left."""
        self.home()
        gone = self.state().queue[1].id
        url = f"{self.daemon.base_url}/_clairvoyant/actions/cancel"
        httpx.post(url, json={"id": gone}, trust_env=False).raise_for_status()
        time.sleep(SETTLE_S)
        before, said = self.state(), len(self.daemon.lines)
        self.press(name)
        footer = self.answer()
        if differences(before, self.state()) or self.deeds(said):
            self.faults.append(f"{name} after {gone} left: {self.deeds(said)}")
        print(f"  {name:29} after its request left: {footer:.70}", flush=True)

    def deeds(self, since: int) -> list[tuple[str, str]]:
        """Return what the daemon's log says that operators did: verbs, and ids of requests."""
        found = [match for line in self.daemon.lines[since:] if (match := ACTED.search(line))]
        return [(each[1], dict(re.findall(r"(\w+)=(\S+)", each[2])).get("id", "")) for each in found]


def differences(before: Snapshot, after: Snapshot) -> dict[str, str]:
    """Return what differs, by request, or "" for the daemon."""
    found: dict[str, str] = {}
    old, new = ({row.id: row for row in state.queue + state.running} for state in (before, after))
    for ident, row in old.items():
        now = new.get(ident)
        fields = ("held", "promoted", "priority", "urgency")
        changed = [f"{name} {getattr(row, name, None)} -> {getattr(now, name, None)}" for name in fields]
        if now is None:
            found[ident] = "is gone"
        elif any(getattr(row, name, None) != getattr(now, name, None) for name in fields):
            found[ident] = ", ".join(each for each in changed if len(set(each.split(" ")[1::2])) > 1)
    daemon = [(state.mode, state.policy, state.backends[0].standing) for state in (before, after)]
    if daemon[0] != daemon[1]:
        found[""] = f"{daemon[0]} -> {daemon[1]}"
    return found


@contextmanager
def queue(url: str) -> Iterator[None]:
    """Keep a number of requests waiting."""
    stopped = threading.Event()

    def ask(number: int) -> None:
        turn = 0
        while not stopped.is_set():
            turn += 1
            said = [{"role": "user", "content": f"Tell me about the number {number}, part {turn}."}]
            body = {"model": DEFAULT_MODEL, "messages": said, "max_tokens": 400, "stream": True}
            try:
                with httpx.stream(
                    "POST", f"{url}/v1/chat/completions", json=body, timeout=3600, trust_env=False
                ) as it:
                    for _ in it.iter_raw():
                        pass
            except httpx.HTTPError:
                pass
            stopped.wait(0.2)

    for number in range(WAITING + 1):
        threading.Thread(target=ask, args=(number,), daemon=True).start()
        time.sleep(0.02)
    yield
    stopped.set()


def main() -> None:
    """Press them all at each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", default="", help="Textual's names of the keys to press; else all.")
    only = {each for each in parser.parse_args().keys.split(",") if each}
    faults: list[str] = []
    for width, height in SIZES:
        print(f"{width}x{height}", flush=True)
        with (
            tempfile.TemporaryDirectory() as folder,
            child("-m", "tests.fakes.replay_process", "--decode", "0.05", "--slots", "1") as backend,
            daemon_process(backend, "--slots", "1", "--policy", "fcfs", home=Path(folder)) as daemon,
            queue(daemon.base_url),
        ):
            faults += [
                f"{width}x{height}: {each}" for each in walk(Path(folder), daemon, (width, height), only)
            ]
    print("\n".join(faults) or "no request changed but the chosen one")
    raise SystemExit(bool(faults))


def walk(folder: Path, daemon: DaemonProcess, size: tuple[int, int], only: set[str]) -> list[str]:
    """Press the keys at one size; return what was wrong."""
    pressed = [(name, key) for key in KEYS for name in key.keys.split(",") if not only or name in only]
    with top(folder, daemon.base_url, *size) as tmux:
        me = Stranger(tmux, daemon)
        deadline = time.monotonic() + PATIENCE_S
        while len(me.state().queue) < WAITING:
            assert time.monotonic() < deadline, "the queue does not fill"
            time.sleep(0.1)
        tmux.shows("quit", f"waiting {WAITING}")
        for name, key in pressed:
            if name not in (*LEAVES, "ctrl+z"):
                me.try_key(name, key)
        for name in ("x", "ctrl+k", "t", "H", "plus", "minus", "U"):
            me.too_late(name)
    for name in LEAVES:
        if not only or name in only:
            apart = folder / name
            apart.mkdir()
            with top(apart, daemon.base_url, *size) as tmux:
                tmux.shows("quit", "waiting")
                Stranger(tmux, daemon).press(name)
                print(f"  {name:29} {'quits' if tmux.ended() else 'does not quit'}", flush=True)
    if not only or "ctrl+z" in only:
        apart = folder / "suspended"
        apart.mkdir()
        me.faults += filter(None, [suspend(apart, daemon.base_url, size)])
    return me.faults


def suspend(folder: Path, url: str, size: tuple[int, int]) -> str:
    """Suspend the dashboard in a shell, look at the terminal, and go on; return what is wrong."""
    command = f"{sys.executable} -m clairvoyant_cli top --url {url}"
    with top(folder, url, *size, command="bash --norc --noprofile -i") as tmux:
        tmux.press(f" cd {ROOT}; {command}", "Enter")
        tmux.shows("quit", "waiting")
        was = modes(tmux)
        tmux.press("C-z")
        tmux.shows("Stopped")
        given_back = modes(tmux)
        tmux.press("fg", "Enter")
        tmux.shows("quit", "waiting")
        print(
            f"  ^Z     ctrl+z                 {was}; suspended {given_back}; after fg {modes(tmux)}",
            flush=True,
        )
        right = given_back == "alternate 0 mouse 0 cursor 1" and modes(tmux) == was
        tmux.press("q")
        tmux.until(lambda screen: "quit" not in screen)
        return "" if right else f"ctrl+z: {given_back}"


def modes(tmux: Tmux) -> str:
    """Return what is on in the terminal."""
    flags = "alternate #{alternate_on} mouse #{mouse_any_flag} cursor #{cursor_flag}"
    return tmux.run("display-message", "-p", "-t", "top", flags).strip()


if __name__ == "__main__":
    main()
