"""Types what a stranger types, from nothing to the first answer that overtook another, before a real Ollama.

    python tests/perf/perf_first_answer.py --ollama /usr/bin/ollama --model smollm2:135m --state EMPTY_FOLDER

installs the checkout in a new virtual environment, takes the place of the Ollama that already answers two
clients, and asks two long questions and a short one. Prints the seconds and keystrokes of each command, and
when the three answers ended. The other options are those of `perf_takeover`.
"""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.perf.perf_takeover import Client, ollama, options, own_environment

CHECKOUT = Path(__file__).parents[2]
LONG_TOKENS, SHORT_TOKENS = 400, 8


def main() -> None:
    """Run it; exit code 1 if a command fails or the short answer is the last."""
    args = options()
    url, stopped = f"http://127.0.0.1:{args.port}", threading.Event()
    environment = own_environment(args) | {
        "PATH": f"{args.state / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    }
    users = [Client(url, args.model, tokens, stopped) for tokens in (8, 60)]
    threads = [threading.Thread(target=user.run) for user in users]
    typed = [
        f"python3 -m venv {args.state / 'venv'}",
        f"pip install -q {CHECKOUT}",
        f"clairvoyant takeover ollama --backend {url} --yes -- --listen=127.0.0.1:{args.port + 2}",
    ]
    with ollama(args, environment):
        for thread in threads:
            thread.start()
        begun_s = time.monotonic()
        try:
            for line in typed:
                type_line(line, environment)
            ended = answers(url, args.model)
            keys = sum(len(line) + 1 for line in typed)
            print(f"{time.monotonic() - begun_s:6.1f} s {keys:4} keys in all")
            print("ended in this order:", ", ".join(f"{tokens} tokens" for tokens in ended))
        finally:
            stopped.set()
            for thread in threads:
                thread.join()
            type_line("clairvoyant takeover --undo --yes --now", environment)
    sys.exit(ended[-1] == SHORT_TOKENS)


def type_line(line: str, environment: dict[str, str]) -> None:
    """Run a command line in a shell."""
    begun_s = time.monotonic()
    subprocess.run(line, shell=True, check=True, env=environment, stdout=subprocess.DEVNULL)  # noqa: S602
    print(f"{time.monotonic() - begun_s:6.1f} s {len(line) + 1:4} keys  $ {line}", flush=True)


def answers(url: str, model: str) -> list[int]:
    """Ask two long questions and then a short one; return their limits in tokens, in order of their ends."""
    ended: list[int] = []

    def ask(tokens: int) -> None:
        Client(url, model, tokens, threading.Event()).ask()
        ended.append(tokens)

    threads = []
    for tokens in (LONG_TOKENS, LONG_TOKENS, SHORT_TOKENS):
        threads.append(threading.Thread(target=ask, args=(tokens,)))
        threads[-1].start()
        time.sleep(0.3)  # in this order
    for thread in threads:
        thread.join()
    return ended


if __name__ == "__main__":
    main()
