"""A race of two backends, what the lanes tell of it, and how it is drawn."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from clairvoyant_lab.asgi_server import serve_app
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from clairvoyant_cli.backends.chat_probe import client_for
from clairvoyant_cli.commands import demo
from clairvoyant_cli.demo.questions import TITLED, Call, Question, ask, load_questions
from clairvoyant_cli.demo.race import (
    MOST_QUESTIONS,
    Lane,
    Narrator,
    Place,
    Row,
    Sojourn,
    by_class,
    draw,
    frame,
    race,
    window,
)
from clairvoyant_cli.demo.simulated_server import SimulatedServer
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.proxy.listening_socket import listen, serving
from clairvoyant_cli.state.snapshot import (
    Counters,
    PredictionState,
    PredictorState,
    QueuedRequest,
    RunningRequest,
    Snapshot,
    TauState,
)
from predictor.record import LengthClass
from tests.fakes.replay_backend import Engine, Replay, Speed, tabled

FORETOLD = PredictionState("short", 0.8, 0.1, 0.1, 42.0, 90.0)


@dataclass
class NoProxy:
    """Stands where a proxy would: its clients talk to the backend itself. `running`, `queue`: prompts."""

    base_url: str
    running: Sequence[str] = ()
    queue: Sequence[str] = ()

    def snapshot(self) -> Snapshot:
        return Snapshot(
            taken_at=0.0,
            daemon_version="",
            pid=0,
            listen="",
            mode="serving",
            uptime_s=0.0,
            policy="fcfs",
            policies=(),
            tau=TauState(),
            predictor=PredictorState("none"),
            backends=(),
            running=tuple(
                RunningRequest(p, "", "decoding", "", "", "", FORETOLD, 0.0, 0.0, prompt=p)
                for p in self.running
            ),
            # Listed backwards, so that only a reader of the ranks gets them right.
            queue=tuple(
                QueuedRequest(p, rank, 0.0, "", "", "", FORETOLD, 0.0, prompt=p)
                for rank, p in reversed(list(enumerate(self.queue, 1)))
            ),
            recent=(),
            stats=(),
            counters=Counters(),
            queue_capacity=0,
        )


def lane_of(*names: str, proxy: NoProxy | None = None) -> Lane:
    calls = [Call(Question(name, 10, name), sent_s=0.0) for name in names]
    return Lane("fcfs", "First come", proxy or NoProxy("http://127.0.0.1:9"), calls)


def test_rows_are_in_the_order_of_service() -> None:
    lane = lane_of("a", "b", "c", "d", "e", "f", proxy=NoProxy("", running=["c"], queue=["e", "b"]))
    lane.calls[0].ended_s = 2.0
    lane.calls[3].ended_s = 1.0
    lane.calls[3].error = "HTTP 500"
    rows = lane.rows()
    assert [(row.call.question.title, row.place) for row in rows] == [
        ("d", Place.FAILED),
        ("a", Place.DONE),
        ("c", Place.RUNNING),
        ("e", Place.WAITING),
        ("b", Place.WAITING),
        ("f", Place.WAITING),
    ]
    assert [row.predicted for row in rows] == [None, None, 42.0, 42.0, 42.0, None]


async def test_both_lanes_get_the_same_burst_and_answer_it() -> None:
    questions = draw(6, seed=3)
    lengths = tabled({q.prompt: q.tokens for q in questions})
    backends = [Replay(Engine(answer_tokens=lengths)) for _ in range(2)]
    looks: list[float] = []
    async with serve_app(backends[0].app) as one, serve_app(backends[1].app) as two:
        lanes = [Lane("x", "X", NoProxy(url), [Call(q) for q in questions]) for url in (one, two)]
        await race(lanes, lambda lanes, elapsed_s: looks.append(elapsed_s))
    assert [s.digest for s in backends[0].engine.journal] == [s.digest for s in backends[1].engine.journal]
    for lane in lanes:
        assert [call.tokens for call in lane.calls] == [q.tokens for q in questions]
        assert all(call.error is None and 0 < (call.sojourn_s or 0) <= looks[-1] for call in lane.calls)
    assert looks == sorted(looks)


async def test_failures_are_recorded_in_their_calls() -> None:
    engine = Engine(answer_tokens=lambda prompt, rng: 5)
    backend = Replay(engine)
    calls = [Call(Question("q", 5)) for _ in range(4)]
    async with serve_app(backend.app) as url, client_for(url) as client:
        engine.fail_next(503)
        engine.die_next(after_tokens=2)
        for call in calls[:3]:
            await ask(client, call)
    async with client_for(url) as client:
        await ask(client, calls[3])
    assert [call.error for call in calls] == ["HTTP 503", "RemoteProtocolError", None, "ConnectError"]
    assert calls[3].sojourn_s is None


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (60, 16)])
@pytest.mark.parametrize("count", [2, 12, 32])
def test_a_frame_fits_its_terminal(width: int, height: int, count: int) -> None:
    questions = draw(count, seed=1)
    prompts = [q.prompt for q in questions]
    lanes = [
        Lane(
            "x",
            "First come, first served",
            NoProxy("", prompts[:1], prompts[1:]),
            [Call(q, sent_s=0.0) for q in questions],
        )
        for _ in range(2)
    ]
    console = Console(width=width, height=height)
    with console.capture() as capture:
        console.print(frame(lanes, 12.3, "Simulated backend", height))
    lines = capture.get().splitlines()
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert "12.3 s" in lines[0]


@pytest.mark.parametrize("running", [0, 10, 19])
def test_the_running_row_stays_in_view(running: int) -> None:
    call = Call(Question("q", 1))
    rows = [Row(call, Place.RUNNING if i == running else Place.WAITING, None) for i in range(20)]
    shown, above, below = window(rows, 8)
    assert Place.RUNNING in [row.place for row in shown]
    assert above + len(shown) + below == 20
    assert len(shown) + 2 == 8


def test_the_narrator_prints_each_answer_once() -> None:
    lane = lane_of("a", "b")
    console = Console(width=80)
    narrator = Narrator(console)
    with console.capture() as capture:
        narrator([lane], 0.5)
        lane.calls[1].ended_s = 1.0
        narrator([lane], 1.0)
        lane.calls[0].ended_s, lane.calls[0].error = 2.0, "HTTP 500"
        narrator([lane], 2.0)
        narrator([lane], 2.1)
    assert [line.split() for line in capture.get().splitlines()] == [
        ["1.0", "s", "fcfs", "b", "after", "1.0", "s"],
        ["2.0", "s", "fcfs", "a", "failed:", "HTTP", "500"],
    ]


async def test_a_cancelled_race_cancels_its_requests() -> None:
    backend = Replay(Engine(speed=Speed(decode_tokens_per_s=100)))
    begun = asyncio.Event()
    async with serve_app(backend.app) as url:
        lane = Lane("x", "X", NoProxy(url), [Call(Question("q", 5))])
        running = asyncio.create_task(race([lane], lambda lanes, elapsed_s: begun.set()))
        await begun.wait()
        await backend.engine.wait_until(lambda c: c.started == 1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await backend.engine.wait_until(lambda c: c.ended == 1)


async def test_the_simulated_server_answers_in_order_and_forgets_a_client_that_leaves() -> None:
    calls = [Call(Question(name, tokens)) for name, tokens in (("endless", 10**6), ("two", 2), ("three", 3))]
    lengths = {call.question.prompt: call.question.tokens for call in calls}
    server = SimulatedServer(lengths, tokens_per_s=1000.0, slots=1, stride=1)
    listener = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with serving(listener, server.routes, 8), client_for(url) as client, asyncio.TaskGroup() as group:
        endless, *others = [group.create_task(ask(client, calls[0]))]
        while not calls[0].tokens:
            await asyncio.wait([endless], timeout=0.01)
        for call in calls[1:]:  # each is sent once the one before it waits
            others.append(group.create_task(ask(client, call)))
            while len(server._free._waiters or ()) < len(others):
                await asyncio.wait([endless], timeout=0.01)
        assert not any(each.done() for each in others)
        endless.cancel()
    assert [(call.tokens, call.error) for call in calls[1:]] == [(2, None), (3, None)]
    assert (calls[1].ended_s or 0.0) <= (calls[2].ended_s or 0.0)


def test_demo_questions_are_distinct_and_titles_fit_their_column() -> None:
    pools = load_questions(TITLED)
    questions = [question for pool in pools.values() for question in pool]
    assert [len(pool) for pool in pools.values()] == [
        MOST_QUESTIONS // 2,
        MOST_QUESTIONS // 4,
        MOST_QUESTIONS // 4,
    ]
    assert len({q.prompt for q in questions}) == len({q.title for q in questions}) == len(questions)
    assert max(len(q.title) for q in questions) <= 22


@given(count=st.integers(2, MOST_QUESTIONS), seed=st.integers())
def test_a_burst_is_mixed_and_repeatable(count: int, seed: int) -> None:
    burst = draw(count, seed)
    assert burst == draw(count, seed)
    assert len(set(burst)) == count
    classes = Counter(q.length_class for q in burst)
    medium, long = classes[LengthClass.MEDIUM], classes[LengthClass.LONG]
    assert classes[LengthClass.SHORT] - medium - long in (0, 1)
    assert long - medium in (0, 1)


def test_failed_calls_are_not_counted() -> None:
    short, long = Question("a", 10), Question("b", 1000)
    calls = [
        Call(short, sent_s=0.0, ended_s=1.0),
        Call(short, sent_s=0.0, ended_s=3.0),
        Call(short, sent_s=0.0, ended_s=0.1, error="HTTP 503"),
        Call(long, sent_s=0.0),
    ]
    summed = by_class(calls)
    assert list(summed) == ["short", "all"]
    assert summed["short"] == summed["all"] == Sojourn(2, 2.0, 2.0, 2.9)


QUICK = ["--speed", "20000", "--requests", "6"]


def test_without_a_terminal_it_prints_lines_and_the_table() -> None:
    result = CliRunner().invoke(demo.command, QUICK, catch_exceptions=False)
    assert result.exit_code == 0
    assert "6 questions to a simulated backend" in result.stdout
    assert "short answers, P95" in result.stdout
    assert "\x1b" not in result.output
    told = [line.split()[2] for line in result.stderr.splitlines()[1:]]
    assert sorted(told) == ["fcfs"] * 6 + ["sjf"] * 6


def test_a_failed_request_is_a_failed_demo() -> None:
    calls = [Call(Question(name, 1), sent_s=0.0, ended_s=1.0) for name in ("q", "r")]
    lane = Lane("fcfs", "", None, calls)  # type: ignore[arg-type]
    demo._refuse_failures([lane])
    calls[1].error = "HTTP 503"
    with pytest.raises(ClairvoyantError, match="1 of 2 requests failed, the first with: HTTP 503"):
        demo._refuse_failures([lane])


@pytest.mark.parametrize("arguments", [["--requests", "1"], ["--speed", "0"], ["--requests", "1000"]])
def test_invalid_demo_options_are_refused(arguments: list[str]) -> None:
    assert CliRunner().invoke(demo.command, arguments).exit_code == 2
