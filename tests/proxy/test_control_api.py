"""The control API: state, actions and access."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator

import httpx
import msgspec
import prometheus_client
import pytest
from clairvoyant_lab.virtual_time import VirtualLoop, run_virtually
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

import predictor
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.proxy.composition import Daemon
from clairvoyant_cli.proxy.control_api import REST, Shared
from clairvoyant_cli.proxy.observing.metrics import Histogram, observe
from clairvoyant_cli.proxy.observing.snapshots import SnapshotBuilder
from clairvoyant_cli.state.client import ControlClient
from clairvoyant_cli.state.encoding import decode
from clairvoyant_cli.state.snapshot import Snapshot
from tests.fakes.raw_http import chat, get, post, raw_client
from tests.fakes.replay_backend import DEFAULT_MODEL, Engine, Replay, tabled
from tests.fakes.serving import asked, replaying, until

LENGTHS = tabled({"0.9 endless": 100_000, "0.1 short": 3})


@pytest.fixture
async def daemon() -> AsyncIterator[Daemon]:
    backend = Replay(Engine(answer_tokens=LENGTHS))
    backend.engine.freeze()
    async with (
        replaying(backend) as daemon,
        asked(daemon, chat("0.9 endless"), chat("0.1 short"), chat("0.9 endless")),
    ):
        yield daemon


async def test_the_state_is_a_snapshot(daemon: Daemon) -> None:
    async with httpx.AsyncClient(base_url=daemon.base_url) as client:
        answer = await client.get("/_clairvoyant/state")
        health = (await client.get("/_clairvoyant/health")).json()
    state = decode(answer.content)
    assert (len(state.running), len(state.queue), state.mode) == (1, 2, "serving")
    assert [each.rank for each in state.queue] == [1, 2]
    assert [each.predicted.p_long for each in state.queue] == [0.1, 0.9]
    assert all(each.prompt is None for each in state.queue), "prompts are not shown unless asked for"
    assert b"endless" not in answer.content
    assert health == {"status": "serving", "version": state.daemon_version, "backends": {"ollama": "up"}}


async def test_a_reader_gets_no_more_states_than_it_has_use_for(daemon: Daemon) -> None:
    async with ControlClient(daemon.base_url) as control:
        seldom = control.events(every_s=5.0)
        await anext(seldom)
        next_of_seldom = asyncio.ensure_future(anext(seldom))
        often = control.events()
        for _ in range(2):
            await anext(often)
            daemon.control.changed()
        assert not next_of_seldom.done()
        daemon.control.stop()  # which no reader's pace delays
        with pytest.raises(StopAsyncIteration):
            await next_of_seldom


async def test_of_a_long_queue_the_first_rows_are_sent_and_all_are_counted(daemon: Daemon) -> None:
    for rows in (0, 1, 2):
        state = daemon.snapshots.snapshot(rows)
        assert [each.rank for each in state.queue] == [1, 2][:rows]
        assert (state.waiting.total, state.waiting.short, state.waiting.long) == (2, 1, 1)
        assert state.waits == 2


async def test_a_row_tells_why_it_waits_and_how_it_would_stand_in_order_of_arrival(daemon: Daemon) -> None:
    short, long = daemon.snapshot().queue
    assert (short.why, short.rank_fcfs) == ("First in the queue: takes the next free slot.", 1)
    assert (long.cause, long.rank_fcfs) == ("size", 2)
    await daemon.control._actions.run("hold", {"id": short.id})
    await daemon.control._actions.run("pause", {})
    long, short = daemon.snapshot().queue
    assert short.why == "Held until an operator releases it."
    assert long.why.startswith("Dispatching is paused. First in the queue")


async def test_each_action(daemon: Daemon) -> None:
    async with ControlClient(daemon.base_url) as control:
        short, long = (each.id for each in daemon.snapshot().queue)
        assert await control.act("promote", {"id": long}) == {"id": long, "done": "promote"}
        assert [each.id for each in daemon.snapshot().queue] == [long, short]
        await control.act("hold", {"id": long})
        assert [(each.id, each.held) for each in daemon.snapshot().queue] == [(short, False), (long, True)]
        await control.act("release", {"id": long})
        await control.act("priority", {"id": short, "priority": -5})
        assert {each.id: each.priority for each in daemon.snapshot().queue}[short] == -5
        assert await control.act("urgency", {"id": long, "level": 0}) == {"id": long, "done": "urgency"}
        assert {(each.id, each.urgency, each.urgency_by) for each in daemon.snapshot().queue} == {
            (short, None, ""),
            (long, 0, "operator"),
        }
        await control.act("policy", {"policy": "urgency"})
        await control.act("priority", {"id": short, "priority": 0})
        assert [each.id for each in daemon.snapshot().queue] == [long, short]
        await control.act("policy", {"policy": "fcfs"})
        own_tau = daemon.snapshot().tau
        await control.act("tau", {"tau_s": 7.5})
        state = daemon.snapshot()
        assert (state.policy, state.tau.tau_s, state.tau.source) == ("fcfs", 7.5, "operator")
        await control.act("tau", {"tau_s": 0})
        assert daemon.snapshot().tau.tau_s is None
        await control.act("tau", {"tau_s": "auto"})
        assert daemon.snapshot().tau == own_tau
        await control.act("pause")
        assert daemon.snapshot().mode == "paused"
        await control.act("resume")
        await control.act("drain")
        async with raw_client(daemon.base_url) as client:
            assert (await client.ask(chat("0.1 short"))).status == 503
        await control.act("resume")
        assert daemon.snapshot().mode == "serving"
        await control.act("cancel", {"id": short})
        await until(daemon, lambda s: len(s.queue) == 1)


async def test_a_model_is_loaded_and_unloaded() -> None:
    async with replaying(Engine(answer_tokens=LENGTHS)) as daemon, ControlClient(daemon.base_url) as control:
        for deed, loaded in (("load", [DEFAULT_MODEL]), ("unload", [])):
            done = await control.act("model", {"do": deed, "name": DEFAULT_MODEL})
            assert done["backends"] == ["ollama"]
            await until(daemon, lambda s, of=loaded: [has.name for has in s.backends[0].models] == of)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("action", "arguments", "status"),
    [
        ("cancel", {}, 422),
        ("cancel", {"id": 5}, 422),
        ("cancel", {"id": "nobody"}, 409),
        ("promote", {"id": "nobody"}, 409),
        ("priority", {"id": "nobody", "priority": "high"}, 422),
        ("priority", {"id": "nobody", "priority": 1000}, 422),
        ("urgency", {"id": "nobody", "level": 0}, 409),
        ("urgency", {"id": "nobody", "level": 5}, 422),
        ("policy", {"policy": "best"}, 422),
        ("policy", {}, 422),
        ("tau", {}, 422),
        ("tau", {"tau_s": -1}, 422),
        ("tau", {"tau_s": True}, 422),
        ("tau", {"tau_s": 10**400}, 422),
        ("reload", {}, 409),  # there is no file
        ("interactive", {"name": "nobody"}, 409),
        ("model", {"do": "load", "name": "nobody's"}, 409),
        ("model", {"do": "melt", "name": "replay"}, 422),
        ("explode", {}, 404),
    ],
)
async def test_what_cannot_be_done_is_refused(
    daemon: Daemon, action: str, arguments: dict[str, object], status: int
) -> None:
    before = daemon.snapshot()
    async with ControlClient(daemon.base_url) as control:
        with pytest.raises(ClairvoyantError) as refused:
            await control.act(action, arguments)
    assert "HTTP 500" not in str(refused.value)
    if arguments.get("id") == "nobody" and status == 409:
        assert f"{action} failed: request nobody has started or ended" in str(refused.value)
    async with httpx.AsyncClient(base_url=daemon.base_url, trust_env=False) as http:
        sent = msgspec.json.encode(arguments)
        path = f"/_clairvoyant/actions/{action}"
        answer = await http.post(path, content=sent, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["error"]) == (status, str(refused.value).partition(": ")[2])
    after = daemon.snapshot()
    assert (after.policy, after.tau, len(after.queue)) == (before.policy, before.tau, len(before.queue))


PAGE = "http://page.example"
IMAGE = ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: image")


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (get("/_clairvoyant/state", host="evil.example"), 403),
        (get("/_clairvoyant/state", host="127.0.0.1.evil.example:80"), 403),
        (get("/_clairvoyant/state", host="single"), 403),
        (get("/_clairvoyant/state", host="box.local"), 403),
        (get("/_clairvoyant/state", host="[127.0.0.1"), 403),
        (get("/_clairvoyant/state", "Origin: http://localhost:3000", host="localhost"), 403),
        (get("/_clairvoyant/state", f"Origin: {PAGE}", host="localhost"), 403),
        (get("/_clairvoyant/state", "Origin: null", host="localhost"), 403),
        (get("/_clairvoyant/state", "Origin: localhost", host="localhost"), 403),
        (get("/_clairvoyant/state", "Origin: http://localhost", f"Origin: {PAGE}", host="localhost"), 403),
        (get("/_clairvoyant/state", *IMAGE, host="localhost"), 403),
        (get("/_clairvoyant/metrics", *IMAGE, host="localhost"), 403),
        (get("/_clairvoyant/events", *IMAGE, host="localhost"), 403),
        (get("/_clairvoyant/health", *IMAGE, host="localhost"), 403),
        (get("/_clairvoyant/state", "Sec-Fetch-Site: same-site", host="localhost"), 403),
        (get("/_clairvoyant/state", "Sec-Fetch-Site: same-origin", host="localhost"), 200),
        (get("/_clairvoyant/state", "Sec-Fetch-Site: none", host="localhost"), 200),
        (get("/_clairvoyant/state", host="[::1]:8080"), 200),
        (get("/_clairvoyant/state", "Origin: http://localhost", host="localhost"), 200),
        (post("/_clairvoyant/actions/pause", b"{}", f"Origin: {PAGE}", host="localhost"), 403),
        (post("/_clairvoyant/actions/pause", b"{}", host="evil.example"), 403),
        (post("/_clairvoyant/actions/pause", b"[]", host="localhost"), 400),
        (post("/_clairvoyant/actions/pause", b"{", host="localhost"), 400),
        (post("/_clairvoyant/actions/pause", b'{"a": "\xff"}', host="localhost"), 400),
        (post("/_clairvoyant/actions/pause", b'{"\xff": 1}', host="localhost"), 400),
        (post("/_clairvoyant/actions/pause", b'{"a": ' + b"[" * 60_000, host="localhost"), 400),
        (post("/_clairvoyant/actions/pause", b'{"a": ' * 9_000, host="localhost"), 400),
        (post("/_clairvoyant/actions/pause", b" " * 70_000, host="localhost"), 413),
        (get("/_clairvoyant/actions/pause", host="localhost"), 405),
        (get("/_clairvoyant/nothing", host="localhost"), 404),
    ],
)
async def test_pages_of_other_sites_are_kept_out(daemon: Daemon, raw: bytes, status: int) -> None:
    async with raw_client(daemon.base_url) as client:
        assert (await client.ask(raw)).status == status
    assert daemon.snapshot().mode == "serving"


@pytest.mark.parametrize(
    "kind", ["text/plain", "text/plain; x=json", "application/x-www-form-urlencoded", "multipart/form-data"]
)
async def test_actions_take_json_alone(daemon: Daemon, kind: str) -> None:
    """The types that a page can send across sites unasked (Fetch, CORS-safelisted) do nothing."""
    raw = post("/_clairvoyant/actions/pause", b"{}", host="localhost")
    async with raw_client(daemon.base_url) as client:
        got = await client.ask(raw.replace(b"application/json", kind.encode()))
    assert got.status == 400
    assert daemon.snapshot().mode == "serving"


async def test_what_an_operator_says_is_one_line_of_the_log(daemon: Daemon) -> None:
    async with ControlClient(daemon.base_url) as control:
        await control.act("pause", {"x": "a\n2026 I forged\x1b[31m", "y": "z" * 500})
    told = daemon.snapshot().log[-1].text
    assert told.startswith("operator: pause x=a?2026 I forged?[31m y=zzz")
    assert len(told) < 160


@pytest.mark.parametrize("shown", [False, True])
async def test_what_drove_a_prediction_is_told_once_a_request_stays(shown: bool) -> None:
    """The words of a prompt that told most are its text: they are shown only where prompts are."""
    backend = Replay(Engine(answer_tokens=LENGTHS))
    backend.engine.freeze()
    async with (
        replaying(backend, predictor.load(), show_prompts=shown) as daemon,
        raw_client(daemon.base_url) as one,
    ):
        one.send(chat("Tell me a joke about cats"))
        await until(daemon, lambda s: len(s.running) == 1)
        state = await until(daemon, lambda s: s.running[0].predicted.features != ())
    named = [name for name, _ in state.running[0].predicted.features]
    assert "characters" in named
    assert ("joke" in " ".join(named)) == shown


# -- shared answers ------------------------------------------------------------------------------------------


async def test_a_thousand_readers_cost_one_state(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []
    steps = SnapshotBuilder.steps

    def counted(self: SnapshotBuilder, *rows: int, explains: bool = True) -> Iterator[Snapshot | None]:
        built.append(1)
        return steps(self, *rows, explains=explains)

    monkeypatch.setattr(SnapshotBuilder, "steps", counted)
    for name in ("state", "metrics"):
        built.clear()
        answers = await asyncio.gather(*(daemon.control.shared[name].next() for _ in range(1000)))
        assert len(built) == 1
        assert len(set(answers)) == 1


async def test_who_has_acted_sees_what_came_of_it(daemon: Daemon) -> None:
    """A drawing that was asked for a moment before would show the state before the action."""
    async with ControlClient(daemon.base_url) as control:
        for action, mode in (("pause", "paused"), ("resume", "serving")) * 5:
            await control.snapshot()
            await control.act(action)
            assert (await control.snapshot()).mode == mode


async def test_a_reader_who_leaves_or_a_build_that_fails_costs_the_others_nothing() -> None:
    results: list[bytes | Exception] = [b"first", ValueError("torn"), b"third"]

    def build() -> Iterator[bytes]:
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        yield result

    shared = Shared(build)
    leaves, stays = (asyncio.ensure_future(shared.next()) for _ in range(2))
    await asyncio.sleep(0)  # both have asked
    leaves.cancel()
    assert await stays == b"first"
    with pytest.raises(ValueError, match="torn"):
        await shared.next()
    assert await shared.next() == b"third"


def test_building_states_takes_no_more_than_its_share_of_the_time() -> None:
    begun_s: list[float] = []

    async def ask() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)

        def build() -> Iterator[bytes]:
            begun_s.append(loop.time())
            for _ in range(4):
                loop._now_s += 0.01  # together as long as a long queue takes
                yield b""

        shared = Shared(build, worked=loop.time)
        for _ in range(4):
            await asyncio.gather(shared.next(), shared.next())

    run_virtually(ask())
    assert begun_s == [pytest.approx(0.04 * (1 + REST) * each) for each in range(4)]


async def test_a_stream_of_events_has_a_head_that_ends(daemon: Daemon) -> None:
    async with raw_client(daemon.base_url) as client:
        for _ in range(2):
            got = await client.ask(get("/_clairvoyant/events", host="localhost").replace(b"GET", b"HEAD", 1))
            assert (got.status, got.value("content-type")) == (200, b"text/event-stream; charset=utf-8")


def test_a_histogram_reads_as_prometheus_clients_own_does() -> None:
    bounds = (0.5, 1, 2.5)
    mine, empty = Histogram("Some text", bounds, "model"), Histogram("None yet", bounds)

    class Ours(Collector):
        def collect(self) -> Iterator[Metric]:
            yield mine.family("a_seconds")
            yield empty.family("b")

    ours, theirs = CollectorRegistry(auto_describe=False), CollectorRegistry()
    ours.register(Ours())
    other = prometheus_client.Histogram("a_seconds", "Some text", ["model"], buckets=bounds, registry=theirs)
    prometheus_client.Histogram("b", "None yet", buckets=bounds, registry=theirs)
    for value in (0.1, 0.5, 0.6, 1.0, 2.5, 2.6, 1e9):
        observe({"a": mine}, {"a": (value, ("m",))})
        other.labels("m").observe(value)
    created = re.compile(rb"^.*_created.*\n", re.MULTILINE)
    assert generate_latest(ours) == created.sub(b"", generate_latest(theirs))


async def test_a_request_is_predicted_without_being_admitted(daemon: Daemon) -> None:
    async with httpx.AsyncClient(base_url=daemon.base_url) as client:

        async def predicted(prompt: str, path: str = "/api/chat") -> httpx.Response:
            body = {"model": "replay", "messages": [{"role": "user", "content": prompt}]}
            return await client.post("/_clairvoyant/predict", params={"path": path}, json=body)

        long, short = (await predicted("0.9 endless")).json(), (await predicted("0.1 short")).json()
        nothing = await predicted("0.1 short", "/api/tags")
        assert (await predicted("0.1 long prompt " + 100_000 * "x")).json()["p_long"] == 0.1
    queued = {job.id: job for job in daemon.dispatcher.scheduler.waiting()}
    assert (long["p_long"], short["p_long"]) == (0.9, 0.1)
    assert long["due_in_s"] >= short["due_in_s"]
    assert long["expected_s"] > 0.0
    assert {long["expected_tokens"]} <= {job.tokens for job in queued.values()}
    assert nothing.status_code == 400
    assert len(queued) == 2
