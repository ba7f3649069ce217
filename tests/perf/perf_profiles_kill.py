"""kill -9 of the daemon at random moments under load: what is in the database afterwards?

    python tests/perf/perf_profiles_kill.py [--kills 200]

Each time the database must open clean, and every request whose whole answer a client had held for more
than a second when the daemon was killed must be in it. The backend is a simulated one in this process.
"""

import argparse
import asyncio
import random
import signal
import sqlite3
import sys
import tempfile
import time
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.fakes.calibrating import replay  # noqa: E402
from tests.fakes.daemon_process import daemon_process  # noqa: E402

CLIENTS = 8
PROMPTS = ("Name a colour.", "Write a long story.", "What is yeast?", "Spell cat.")


async def client(url: str, number: int, acknowledged: dict[str, float], answered: asyncio.Event) -> None:
    """Ask until the daemon is gone; note when each answer was whole."""
    async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as http:
        for turn in range(100_000):
            prompt = f"{PROMPTS[turn % len(PROMPTS)]} {number}-{turn}"
            body = {"model": "replay", "messages": [{"role": "user", "content": prompt}]}
            try:
                answer = await http.post("/api/chat", json=body | {"options": {"num_predict": 60}})
            except httpx.HTTPError:
                return
            if answer.status_code == 200:
                acknowledged[answer.headers["x-clairvoyant-request-id"]] = time.monotonic()
                answered.set()


async def round_of(backend: str, home: Path, load_s: float) -> tuple[int, int, str]:
    """Kill a daemon some time after its first answer.

    Return how many answers must be in the database, how many are missing, and the database's state.
    """
    acknowledged: dict[str, float] = {}
    database = home / "c.db"
    manager = daemon_process(
        backend, "--db", str(database), "--slots", "4", "--log-level", "warning", home=home
    )
    daemon = await asyncio.to_thread(manager.__enter__)
    try:
        answered = asyncio.Event()
        clients = [
            asyncio.ensure_future(client(daemon.base_url, number, acknowledged, answered))
            for number in range(CLIENTS)
        ]
        await answered.wait()
        await asyncio.sleep(load_s)
        killed_at = time.monotonic()
        daemon.signal(signal.SIGKILL)
        await asyncio.gather(*clients)
    finally:
        await asyncio.to_thread(manager.__exit__, None, None, None)
    due = {name for name, at in acknowledged.items() if at < killed_at - 1.0}
    connection = sqlite3.connect(database)
    try:
        state = connection.execute("PRAGMA integrity_check").fetchone()[0]
        there = {name for (name,) in connection.execute("SELECT request FROM history")}
    finally:
        connection.close()
    return len(due), len(due - there), state


async def main(kills: int, seed: int) -> int:
    """Kill so many times; return how many rounds went wrong."""
    rng = random.Random(seed)
    wrong = checked = 0
    with tempfile.TemporaryDirectory() as directory:
        async with replay(slots=4, decode=3000.0) as (_, backend):
            for number in range(kills):
                load_s = rng.uniform(0.0, 3.0)
                due, missing, state = await round_of(backend, Path(directory), load_s)
                checked += due
                if missing or state != "ok":
                    wrong += 1
                    print(f"kill {number}: {missing} of {due} missing, integrity {state}", flush=True)
                elif number % 20 == 19:
                    print(f"{number + 1} kills, {checked} requests checked, {wrong} wrong", flush=True)
    print(f"{kills} kills, {checked} acknowledged requests checked, {wrong} kills with a loss or damage")
    return wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    sys.exit(min(1, asyncio.run(main(arguments.kills, arguments.seed))))
