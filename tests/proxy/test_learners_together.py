"""Upper bounds, tau and speeds learn from the same answers; after another model is loaded they settle."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import pytest

from clairvoyant_cli.backends.adapters import adapter_of
from clairvoyant_cli.protocols.probes import LoadedModel
from clairvoyant_cli.protocols.usage import Totals
from clairvoyant_cli.proxy.queue.ended import Outcome
from profiles.records import Profile
from tests.fakes.daemon_parts import DaemonParts, daemon_parts, named, simulated_server
from tests.fakes.remembered import MEASURED, Kept

SMALL, BIG = "small", "big"
TOKENS_PER_S = {SMALL: 30.0, BIG: 10.0}
ANSWERS = {SMALL: (30, 70), BIG: (150, 190)}  # predicted are 50, and 100 at most


async def test_where_a_response_is_stored_is_known_after_a_restart() -> None:
    states: dict[str, bytes] = {}

    class Stored(Kept):
        def load(self, name: str) -> bytes | None:
            return states.get(name)

        def save(self, name: str, state: bytes) -> None:
            states[name] = state

    for _ in range(2):
        parts = daemon_parts("a", "b")
        parts.remember(Stored())
        server = named(parts.pool, "b")
        assert parts.pool.holder_of("resp_1") is (server if states else None)
        parts.pool.holds("resp_1", server)
        assert parts.state_saver is not None
        parts.state_saver.save()
        for task in parts.tasks:
            task.cancel()
    assert b"resp_1" not in b"".join(states.values())
    assert parts.state_saver is not None
    parts.state_saver.forget()
    assert not parts.pool.stored


async def test_what_is_stored_of_a_server_that_joins_is_read_on_a_thread() -> None:
    parts, threads = daemon_parts("a", "b"), set[threading.Thread]()

    class Stored(Kept):
        def profiles(self, backend: str, url: str) -> list[Profile]:
            threads.add(threading.current_thread())
            return [MEASURED]

    parts.remember(Stored())
    threads.clear()
    server = simulated_server(3, "c", adapter_of("ollama"), 1)
    parts.lifecycle.adopt(server)
    parts.joined(server)
    exchange = parts.queued("0.1")
    parts.dispatcher.end(exchange, Outcome.COMPLETED, 200)  # while it is being read
    await parts.tasks[-1]
    assert server.profiles == [MEASURED]
    assert threads.isdisjoint({threading.current_thread()})
    for task in parts.tasks:
        task.cancel()


def serve(parts: DaemonParts, model: str, pairs: int, random: Random) -> Iterator[None]:
    """Answer pairs of requests, of which one waits for the other; all is learned after each pair."""
    saver = parts.state_saver
    assert saver is not None
    named(parts.pool, "mac").status.models = (LoadedModel(model),)
    for _ in range(pairs):
        for exchange in [parts.queued("0.0", model=model) for _ in range(2)]:
            tokens = random.randint(*ANSWERS[model])
            decode_s = tokens / TOKENS_PER_S[model]
            assert exchange.attempt is not None
            exchange.attempt.totals = Totals(tokens=tokens, decode_s=decode_s, complete=True)
            parts.now[0] += decode_s
            parts.dispatcher.end(exchange, Outcome.COMPLETED, 200)
        saver.follow()
        parts.learn_queue.flush()
        yield


@dataclass
class Course:
    """What was in force after each pair."""

    taus_s: list[float] = field(default_factory=list)
    speeds: list[float] = field(default_factory=list)


async def test_all_that_learns_settles_after_another_model_and_nothing_stays_off() -> None:
    parts, random = daemon_parts(), Random(5)
    parts.remember(Kept())
    courses = []
    for model in (SMALL, BIG, SMALL):
        course = Course()
        for _ in serve(parts, model, 400, random):
            course.taus_s.append(parts.dispatcher.scheduler.clients.tau_of("", model) or 0.0)
            course.speeds.append(named(parts.pool, "mac").speeds.decode_tokens_per_s or 0.0)
        courses.append(course)
        assert course.speeds[-50:] == pytest.approx([TOKENS_PER_S[model]] * 50)
        assert course.taus_s[-50:] == pytest.approx([course.taus_s[-1]] * 50, rel=0.1)
    first, other, again = courses
    assert other.taus_s[-1] > 3.0 * first.taus_s[-1], "three times as slow, and longer answers"
    assert again.taus_s[-1] == pytest.approx(first.taus_s[-1], rel=0.1)
    for task in parts.tasks:
        task.cancel()
