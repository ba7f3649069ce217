"""Profiles and finished requests as tests want them."""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path

from predictor.record import LengthClass
from profiles.database import reading, writing
from profiles.history import Span, newest
from profiles.records import (
    Begun,
    Comparison,
    Estimate,
    Finished,
    Host,
    Incident,
    Profile,
    Served,
    ServedRequest,
)
from profiles.store import save
from profiles.writer import Writer

START = 4_000_000_000.0
"""When the tests' traffic begins: too late for any bound of age."""

HOST = Host("A CPU", 8, 16, ("A GPU",), "550.1", "Linux 6.1", "x86_64")
PROFILE = Profile(
    name="gemma@ollama",
    measured_at=1_700_000_000.0,
    host=HOST,
    served=Served("ollama", "gemma3:4b", "http://127.0.0.1:11434", version="0.40.0"),
    plan="standard",
    method="measured",
    concurrency=5,
    mu_short_s=Estimate(40.0, 35.0, 45.0, 100),
    tau_s=120.0,
    decode_tokens_per_s=30.0,
    prefill_tokens_per_s=500.0,
    ttft_s=0.4,
    slots=1,
)
MEASURED = replace(
    PROFILE, served=replace(PROFILE.served, model="small"), mu_short_s=Estimate(3.0, 2.5, 3.5, 100), slots=1
)

FINISHED = Finished(
    finished_at=START,
    request="abc-1",
    outcome="completed",
    status=200,
    endpoint="/api/chat",
    backend="ollama",
    model="gemma3:4b",
    client="alice",
    predicted_class="short",
    p_long=0.1,
    expected_tokens=50.0,
    q90_tokens=150.0,
    source="default",
    tokens=60,
    prompt_tokens=20,
    length_class="short",
    policy="sjf",
    dispatched_by="policy",
    waited_s=1.0,
    sojourn_s=3.0,
    ttft_s=1.2,
    decode_s=1.8,
    prefill_s=0.1,
)


@dataclass
class Kept:
    """What is kept of a daemon, in memory: a profile, and what was recorded."""

    finished_ones: list[Finished] = field(default_factory=list)
    pairs: list[Comparison] = field(default_factory=list)
    begun: list[Begun] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    incidents: dict[tuple[str, float], Incident] = field(default_factory=dict)

    def profiles(self, backend: str, url: str) -> list[Profile]:
        return [MEASURED]

    def stale(self, profile: Profile, version: str) -> str:
        return ""

    def begin(self, begun: Begun) -> None:
        self.begun.append(begun)

    def put(self, finished: Finished) -> None:
        self.finished_ones.append(finished)

    def compare(self, comparison: Comparison) -> None:
        self.pairs.append(comparison)

    def served_since(self, at: float) -> list[ServedRequest]:
        return []

    def newest(self, since: float, limit: int, names: Iterable[str]) -> list[Finished]:
        return []

    def note(self, incident: Incident) -> None:
        self.incidents[incident.server, incident.began_at] = incident

    def incidents_since(self, at: float) -> list[Incident]:
        return [each for each in self.incidents.values() if each.ended_at >= at]

    def load(self, name: str) -> bytes | None:
        return None

    def save(self, name: str, state: bytes) -> None:
        pass

    def flush(self) -> None:
        pass

    def withdraw(self, request: str) -> None:
        pass

    def forgotten(self) -> bool:
        return False

    def profiles_changed(self) -> bool:
        return False


def traffic(count: int, *, start: float = START, every_s: float = 7.7, seed: int = 0) -> Iterator[Finished]:
    rng = random.Random(seed)
    for number in range(count):
        tokens = int(rng.lognormvariate(5.3, 1.2)) + 1
        completed = rng.random() < 0.9
        yield replace(
            FINISHED,
            finished_at=start + number * every_s,
            request=f"abc-{number}",
            outcome="completed" if completed else "client_cancelled",
            client=rng.choice(("alice", "bob", "carol")),
            p_long=rng.random(),
            tokens=tokens if completed else None,
            length_class=LengthClass.of(tokens).value if completed else "",
            waited_s=rng.expovariate(0.1),
            sojourn_s=rng.expovariate(0.05),
        )


def keep(path: Path, rows: Iterable[Finished] = (), *profiles: Profile) -> Path:
    with writing(path) as connection:
        for profile in profiles:
            save(connection, profile)
    if rows:
        record(Writer(path), rows)
    return path


def four_at_once(run: Callable[[], object]) -> None:
    """Have four processes do something in the same moment; all must succeed."""
    context = get_context("fork")
    gate = context.Barrier(4)

    def one() -> None:
        gate.wait()
        run()

    started = [context.Process(target=one) for _ in range(4)]
    for process in started:
        process.start()
    for process in started:
        process.join(60)
    assert [process.exitcode for process in started] == [0, 0, 0, 0]


def record(writer: Writer, rows: Iterable[Finished]) -> None:
    for row in rows:
        writer.put(row)
    writer.close()


def recorded(path: Path) -> list[Finished]:
    with reading(path) as connection:
        return newest(connection, Span(), 10_000)
