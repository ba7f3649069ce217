"""Takes the place of a real Ollama that two clients use, and gives it back, twice; then once after kill -9.

    python tests/perf/perf_takeover.py --ollama /usr/bin/ollama --model smollm2:135m --folder /usr/lib/ollama

types what a stranger types, and prints how many requests of the two clients failed in each part and for how
long no request was answered. `--home` is a home with the model in it; `--port` and the next two are used. One
client asks for short answers and one for long ones, each on a new connection, seconds after the last answer.
"""

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

PAUSE_S = 2.0  # a client reads its answer
CLAIRVOYANT = (sys.executable, "-m", "clairvoyant_cli")


@dataclass
class Client:
    """A client that never stops asking. `results` counts what came of its requests since the last `told`."""

    url: str
    model: str
    tokens: int
    stopped: threading.Event
    results: Counter[str] = field(default_factory=Counter)
    begun_s: float = 0.0
    answered_s: float = 0.0
    longest_s: float = 0.0

    def run(self) -> None:
        """Ask until stopped."""
        dice = random.Random(self.tokens)
        self.answered_s = time.monotonic()
        while not self.stopped.is_set():
            self.ask()
            self.stopped.wait(dice.uniform(0.5, 2 * PAUSE_S))

    def ask(self) -> None:
        """Ask once."""
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": "Tell me about rivers."}],
            "options": {"num_predict": self.tokens},
        }
        data = json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/api/chat", data)  # noqa: S310 - http
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:  # noqa: S310
                whole = b'"done":true' in answer.read()
        except urllib.error.HTTPError as error:
            self.results[f"status {error.code}"] += 1
        except OSError as error:
            reason = getattr(error, "reason", error)
            self.results[type(reason).__name__] += 1
        else:
            self.results["answered" if whole else "broken off"] += 1
            now_s = time.monotonic()
            self.longest_s = max(self.longest_s, now_s - self.answered_s)
            self.answered_s = now_s


@dataclass
class Stranger:
    """Types commands while the clients ask, and prints what they noticed."""

    environment: dict[str, str]
    clients: list[Client]
    failed: int = 0

    def type(self, *words: str) -> None:
        """Run a `clairvoyant` command; exit if it fails."""
        begun_s = time.monotonic()
        done = subprocess.run([*CLAIRVOYANT, *words], env=self.environment, capture_output=True, text=True)
        print(f"$ clairvoyant {' '.join(words)}\n{done.stdout}{done.stderr}".rstrip())
        if done.returncode:
            sys.exit(f"exit code {done.returncode}")
        self.await_answers()
        self.tell(time.monotonic() - begun_s)

    def await_answers(self) -> None:
        """Return when each client has had two more answers."""
        wanted = {id(client): client.results["answered"] + 2 for client in self.clients}
        while any(client.results["answered"] < wanted[id(client)] for client in self.clients):
            time.sleep(0.05)

    def tell(self, took_s: float) -> None:
        """Print what came of the requests since the last time."""
        for client in self.clients:
            results, client.results = client.results, Counter()
            self.failed += sum(count for what, count in results.items() if what != "answered")
            told = ", ".join(f"{count} {what}" for what, count in sorted(results.items()))
            longest_s, client.longest_s = client.longest_s, 0.0
            print(f"  answers of {client.tokens}: {told}; longest time without an answer {longest_s:.2f} s")
        print(f"  {took_s:.1f} s", flush=True)


@contextmanager
def ollama(args: argparse.Namespace, environment: dict[str, str]) -> Iterator[None]:
    """Run Ollama as its user does, in the background."""
    started = subprocess.Popen(
        [str(args.ollama), "serve"],
        env=environment | {"OLLAMA_HOST": f"127.0.0.1:{args.port}"},
        cwd=args.folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while started.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", args.port)):
                break
            time.sleep(0.05)
        yield
    finally:
        started.kill()
        started.wait()
        for each in psutil.net_connections("tcp"):  # what the last undo started
            if each.status == psutil.CONN_LISTEN and each.laddr.port == args.port and each.pid:
                psutil.Process(each.pid).kill()


def options() -> argparse.Namespace:
    """Return what the command line says of the server."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ollama", type=Path, required=True)
    parser.add_argument("--folder", type=Path, default=Path.home(), help="the folder to start Ollama in")
    parser.add_argument("--home", type=Path, default=Path.home())
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, default=22320)
    parser.add_argument("--state", type=Path, required=True, help="an empty folder for our own state")
    return parser.parse_args()


def own_environment(args: argparse.Namespace) -> dict[str, str]:
    """Return an environment with the home of `--home` and without settings of Clairvoyant."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CLAIRVOYANT_")}
    environment |= {"HOME": str(args.home), "OLLAMA_MODELS": str(args.home / "models")}
    return environment | {f"XDG_{name}_HOME": str(args.state) for name in ("STATE", "DATA", "CONFIG")}


def main() -> None:
    """Take the server's place and give it back, while two clients use it."""
    args = options()
    url, stopped = f"http://127.0.0.1:{args.port}", threading.Event()
    environment = own_environment(args)
    clients = [Client(url, args.model, tokens, stopped) for tokens in (8, 60)]
    stranger = Stranger(environment, clients)
    take = ["takeover", "ollama", "--backend", url, "--yes", "--", f"--listen=127.0.0.1:{args.port + 2}"]
    undo = ["takeover", "--undo", "--yes"]
    threads = [threading.Thread(target=client.run) for client in clients]
    with ollama(args, environment):
        for thread in threads:
            thread.start()
        try:
            print("before")
            stranger.await_answers()
            stranger.tell(0.0)
            for _ in range(2):
                stranger.type(*take)
                stranger.type(*undo)
            half_way(stranger, take, args.state)
            stranger.type(*undo)
        finally:
            stopped.set()
            for thread in threads:
                thread.join()
            subprocess.run([*CLAIRVOYANT, *undo, "--now"], env=environment, capture_output=True)
    print(f"{stranger.failed} requests failed")


def half_way(stranger: Stranger, take: list[str], state: Path) -> None:
    """Kill a takeover when the server is about to move."""
    print(f"$ clairvoyant {' '.join(take)}    # kill -9 half way")
    journal = state / "clairvoyant" / "takeover.json"
    with subprocess.Popen(
        [*CLAIRVOYANT, *take], env=stranger.environment, stdout=subprocess.DEVNULL
    ) as command:
        while not (journal.exists() and b'"step":"server"' in journal.read_bytes()):
            if command.poll() is not None:
                sys.exit("it ended before it could be killed")
            time.sleep(0.001)
        command.send_signal(signal.SIGKILL)


if __name__ == "__main__":
    main()
