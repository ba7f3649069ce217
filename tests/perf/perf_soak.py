"""What the default tests try a few times, tried many times, with other seeds each time.

    python -m tests.perf.perf_soak all|cuts|kills|messages|schedules [--times N] [--minutes M] [--seed S]

cuts: seeded cases of preempted answers in each dialect, as in `tests/proxy/test_cut_equals_uncut.py`.
kills: kill -9 of a daemon under load. Its database must open clean, with every request whose whole answer a
client had held for more than a second.
messages: the framing module against h11, generated messages first, then fragments for M minutes.
schedules: what `status --json` prints beside servers' journals and clients' times, in virtual time, as in
`tests/tui/test_tui_truth.py`. Exits with 1 if anything is wrong.
"""

import asyncio
import logging
import random
import signal
import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from itertools import cycle, islice
from pathlib import Path

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clairvoyant_cli.http.heads import read_request_head
from tests.fakes.calibrating import replay
from tests.fakes.cut_cases import faults
from tests.fakes.daemon_process import daemon_process
from tests.fakes.dialects import DIALECTS
from tests.http import oracle
from tests.perf.harness import options
from tests.tui.test_tui_truth import WITH_TROUBLE, WITHOUT_TROUBLE, check_calm, check_trouble

CLIENTS = 8
PROMPTS = ("Name a colour.", "Write a long story.", "What is yeast?", "Spell cat.")
FRAGMENTS = [
    b"GET / HTTP/1.1\r\n", b"POST /a HTTP/1.1\r\n", b"HEAD * HTTP/1.0\r\n", b"HTTP/1.1 200 OK\r\n",
    b"HTTP/1.1 103 \r\n", b"HTTP/1.0 204 x\r\n", b"Host: t\r\n", b"Content-Length: 5\r\n",
    b"Content-Length: 0\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n",
    b"Connection: content-length\r\n", b"Connection: Upgrade\r\n", b"Upgrade: websocket\r\n",
    b"Expect: 100-continue\r\n", b"TE: trailers\r\n", b"Trailer: X\r\n", b"X: y\r\n", b" folded\r\n",
    b"\r\n", b"\n", b"\r", b"river", b"5\r\n", b"0\r\n", b"5;e=1\r\n", b"0\r\n\r\n", b"f" * 18,
    b"5\r\nriver\r\n", b"0\r\nX: y\r\n\r\n", b"\x00", b"\xff", b" ", b"\t", b":", b",", b"chunked",
    b"Content-Length", b"Transfer-Encoding: ",
]  # fmt: skip


def cuts(times: int, seed: int, minutes: float = 0.0) -> int:
    """Run `times` cases of each dialect; return how many failed."""
    wrong = 0
    for dialect in DIALECTS:
        found = asyncio.run(faults(dialect, range(seed, seed + times)))
        wrong += len(found)
        print(f"{dialect.name}: {times} cases, {len(found)} wrong", *found[:3], sep="\n", flush=True)
    return wrong


def schedules(times: int, seed: int, minutes: float = 0.0) -> int:
    """Run `times` random schedules; return how many differ."""
    logging.getLogger("clairvoyant").setLevel(logging.CRITICAL)
    calm = [(check_calm, kind) for kind in WITHOUT_TROUBLE]
    kinds = [*calm, *((check_trouble, kind) for kind in WITH_TROUBLE)]
    wrong = 0
    for number, (check, kind) in enumerate(islice(cycle(kinds), times), seed):
        try:
            check(*kind, number)  # type: ignore[operator]
        except AssertionError as error:
            wrong += 1
            print(f"FAIL {kind} seed {number}: {str(error)[:500]}", flush=True)
    print(f"{times} schedules, {wrong} wrong")
    return wrong


def messages(times: int, seed: int, minutes: float = 0.0) -> int:
    """Compare generated messages each way, then fragments; a difference raises with the bytes."""
    rng = random.Random(seed)
    generated = oracle.Messages(rng)
    for _ in range(times):
        oracle.requests_agree(rng, generated)
        oracle.responses_agree(rng, generated)
    print(f"{times} requests and {times} answers, no difference", flush=True)
    pieces = st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.binary(max_size=6)), max_size=25)
    examples = 0

    @settings(max_examples=20_000, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(pieces, st.sampled_from([b"GET", b"HEAD"]), st.randoms(use_true_random=False))
    def compare(parts: list[bytes], method: bytes, random: random.Random) -> None:
        nonlocal examples
        examples += 1
        raw = b"".join(parts)
        packets = oracle.packets(random, raw)
        ours, theirs = oracle.our_requests(packets), oracle.h11_requests(raw)
        assert ours.same_as(oracle.our_requests([raw])), raw
        assert oracle.complaint(ours, theirs) is None, (raw, oracle.complaint(ours, theirs))
        request = read_request_head(method + b" / HTTP/1.1\r\nHost: t\r\n")
        answer, theirs = oracle.our_responses(packets, request), oracle.h11_responses(raw, method, close=True)
        assert answer.same_as(oracle.our_responses([raw], request)), raw
        assert oracle.complaint(answer, theirs) is None, (raw, oracle.complaint(answer, theirs))

    end_s = time.perf_counter() + minutes * 60
    while time.perf_counter() < end_s:
        compare()
    print(f"{examples} put together of fragments, no difference, no exception")
    return 0


def kills(times: int, seed: int, minutes: float = 0.0) -> int:
    """Kill it `times` times; return how many left something missing or damaged."""
    return asyncio.run(killed(times, seed))


async def killed(times: int, seed: int) -> int:
    """Kill it `times` times, each after the first answer; return how many failed."""
    rng, wrong, checked = random.Random(seed), 0, 0
    with tempfile.TemporaryDirectory() as home:
        async with replay(slots=4, decode=3000.0) as (_, backend):
            for number in range(times):
                due, missing, state = await kill(backend, Path(home), rng.uniform(0.0, 3.0))
                checked += due
                if missing or state != "ok":
                    wrong += 1
                    print(f"kill {number}: {missing} of {due} missing, integrity {state}", flush=True)
    print(f"{times} kills, {checked} acknowledged requests checked, {wrong} kills with a loss or damage")
    return wrong


async def kill(backend: str, home: Path, load_s: float) -> tuple[int, int, str]:
    """Return how many answers must be in the database, how many are missing, and the database's state."""
    held: dict[str, float] = {}
    answered, database = asyncio.Event(), home / "c.db"
    flags = ("--db", str(database), "--slots", "4", "--log-level", "warning")
    manager = daemon_process(backend, *flags, home=home)
    daemon = await asyncio.to_thread(manager.__enter__)

    async def client(name: int) -> None:
        async with httpx.AsyncClient(base_url=daemon.base_url, timeout=30, trust_env=False) as http:
            for turn, prompt in enumerate(cycle(PROMPTS)):
                turns = [{"role": "user", "content": f"{prompt} {name}-{turn}"}]
                body = {"model": "replay", "messages": turns, "options": {"num_predict": 60}}
                try:
                    answer = await http.post("/api/chat", json=body)
                except httpx.HTTPError:
                    return
                if answer.status_code == 200:
                    held[answer.headers["x-clairvoyant-request-id"]] = time.monotonic()
                    answered.set()

    try:
        clients = [asyncio.create_task(client(name)) for name in range(CLIENTS)]
        await answered.wait()
        await asyncio.sleep(load_s)
        killed_s = time.monotonic()
        daemon.signal(signal.SIGKILL)
        await asyncio.gather(*clients)
    finally:
        await asyncio.to_thread(manager.__exit__, None, None, None)
    due = {name for name, at_s in held.items() if at_s < killed_s - 1.0}
    with closing(sqlite3.connect(database)) as connection:
        state = connection.execute("PRAGMA integrity_check").fetchone()[0]
        there = {name for (name,) in connection.execute("SELECT request FROM history")}
    return len(due), len(due - there), state


SOAKS = {
    "cuts": (cuts, 500),
    "schedules": (schedules, 200),
    "messages": (messages, 20_000),
    "kills": (kills, 200),
}
"""What is tried, and how many times."""


def main() -> None:
    asked = options(__doc__, "what", times=int, minutes=10.0, seed=int(time.time()))
    print(f"seed {asked.seed}")
    wrong = 0
    for soak, times in SOAKS.values() if asked.what == "all" else [SOAKS[asked.what]]:
        wrong += soak(asked.times or times, asked.seed, asked.minutes)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
