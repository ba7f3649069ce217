"""The self-test of `serve` before a real server: time to the first cut, cost to a client, and calibrate.

usage: perf_self_test.py URL MODEL [--every 15] [--pairs 20] [--only first-cut|latency|calibrate]

first-cut: starts a daemon with an empty database and sends a short question every `--every` seconds, until
the daemon cuts an answer. latency: short questions sent through the daemon while a piece of the test runs,
each followed by one to the server itself; the test waits for two seconds after a request, so that one finds
the server idle.
calibrate: the time that `calibrate --quick` and `calibrate` take.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.fakes.daemon_process import DaemonProcess, daemon_process  # noqa: E402

IDLE_S = 2.0
LONGEST_S = 900.0


class Server:
    """Asks one address for answers of one model."""

    def __init__(self, url: str, model: str) -> None:
        self.url, self.model = url, model
        self._http = httpx.Client(base_url=url, timeout=600, trust_env=False)

    def ask(self, tokens: int, what: str = "Say something about the number") -> tuple[float, float]:
        """Ask a question of its own; return the seconds to the first token and to the end."""
        prompt = f"{what} {random.randrange(10**6)}."
        body = {"model": self.model, "messages": [{"role": "user", "content": prompt}]}
        begun_s, first_s = time.perf_counter(), 0.0
        with self._http.stream("POST", "/api/chat", json=body | {"options": {"num_predict": tokens}}) as it:
            for _ in it.iter_lines():
                first_s = first_s or time.perf_counter() - begun_s
        assert it.status_code == 200, it.status_code
        return first_s, time.perf_counter() - begun_s

    def state(self) -> dict[str, Any]:
        """Return the daemon's state."""
        state: dict[str, Any] = self._http.get("/_clairvoyant/state").json()
        return state


def first_cut(url: str, model: str, every_s: float) -> None:
    """Print how long a daemon with an empty database takes to cut its first answer."""
    with (
        tempfile.TemporaryDirectory() as home,
        daemon_process(url, home=Path(home), self_test=True) as daemon,
    ):
        proxy, begun_s = Server(daemon.base_url, model), time.perf_counter()
        asked = 0
        while not any("goes on after a cut" in line for line in daemon.lines):
            assert time.perf_counter() - begun_s < LONGEST_S, daemon.lines
            proxy.ask(30)
            asked += 1
            time.sleep(every_s * random.uniform(0.5, 1.5))
        proven_s = time.perf_counter() - begun_s
        while not proxy.state()["counters"]["cuts"]:
            long = threading.Thread(target=proxy.ask, args=(400, "Tell a long story about the number"))
            long.start()
            time.sleep(1.5)
            proxy.ask(8)
            long.join()
        cut_s = time.perf_counter() - begun_s
        print(
            f"{asked} questions, one every {every_s:g} s: {proxy.state()['policy']} after {proven_s:.0f} s,"
        )
        print(f"first cut after {cut_s:.0f} s")
        print("\n".join(line for line in daemon.lines if "can be cut" in line or "after a cut" in line))


def latency(url: str, model: str, pairs: int) -> None:
    """Print what a client waits while a piece of the test runs, and on the idle server."""
    direct, rows = Server(url, model), list[tuple[float, float, float, float]]()
    with (
        tempfile.TemporaryDirectory() as home,
        daemon_process(url, home=Path(home), self_test=True) as daemon,
    ):
        proxy = Server(daemon.base_url, model)
        proxy.ask(8)
        while len(rows) < pairs:
            _await_piece(daemon, proxy)
            time.sleep(random.uniform(0.0, 3.0))
            during = proxy.ask(16)
            alone = direct.ask(16)
            rows.append((*during, *alone))
    first, whole, first_alone, whole_alone = (median(column) for column in zip(*rows, strict=True))
    more = [(each[0] - each[2]) * 1000 for each in rows]
    print(
        f"{pairs} pairs: TTFT {first * 1000:.0f} ms while the test runs, {first_alone * 1000:.0f} ms direct,"
    )
    print(
        f"whole answers {whole:.2f} s and {whole_alone:.2f} s, ratio {whole / whole_alone:.2f}; median extra"
    )
    print(
        f"TTFT {median(more):.0f} ms, quartiles {sorted(more)[pairs // 4]:.0f} to"
        f" {sorted(more)[-pairs // 4]:.0f}"
    )


def _await_piece(daemon: DaemonProcess, proxy: Server) -> None:
    """Return once the test has gone on for a moment after a request."""
    time.sleep(IDLE_S + 1.0)
    while not proxy.state()["backends"][0].get("self_test"):
        assert daemon.process.poll() is None
        time.sleep(0.2)


def calibrate(url: str, model: str) -> None:
    """Print how long the command takes."""
    for flags in (["--quick"], []):
        with tempfile.TemporaryDirectory() as home:
            command = [sys.executable, "-m", "clairvoyant_cli", "calibrate", *flags, "--backend", url]
            command += ["--model", model, "--db", f"{home}/c.db"]
            begun_s = time.perf_counter()
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            took_s = time.perf_counter() - begun_s
        print(f"calibrate {' '.join(flags)}: {took_s:.0f} s, exit {done.returncode}")
        wanted = ("mu_short", "continue by", "serve ", "note")
        print("\n".join(line for line in done.stdout.splitlines() if line.startswith(wanted)))
        print("first line:", *done.stderr.splitlines()[:1])


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument("--every", type=float, default=15.0)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--only", choices=("first-cut", "latency", "calibrate"))
    args = parser.parse_args()
    if args.only in (None, "first-cut"):
        first_cut(args.url, args.model, args.every)
    if args.only in (None, "latency"):
        latency(args.url, args.model, args.pairs)
    if args.only in (None, "calibrate"):
        calibrate(args.url, args.model)


if __name__ == "__main__":
    main()
