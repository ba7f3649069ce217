"""A daemon uses its profile, and stores history and learned state."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from math import inf
from pathlib import Path

import httpx
import pytest
from clairvoyant_lab.asgi_server import serve_app
from clairvoyant_lab.replay.kv_cache import KvCache

import predictor
from clairvoyant_cli.backends.adapters import adapter_of
from clairvoyant_cli.config import ServeConfig
from clairvoyant_cli.protocols.probes import LoadedModel
from clairvoyant_cli.proxy.composition import Daemon
from clairvoyant_cli.proxy.daemon import running_daemon
from predictor import load
from predictor.record import Prediction, Predictor, PromptView
from profiles.database import reading, writing
from profiles.history import Span, each
from profiles.host import this_host
from profiles.ledger import Ledger
from profiles.records import Continuation, Estimate
from profiles.savings import compared
from profiles.savings import group as group_by
from profiles.states import load_state
from profiles.store import remove
from tests.fakes.calibrating import replay
from tests.fakes.llamacpp_server import free_port
from tests.fakes.raw_http import post, raw_client
from tests.fakes.remembered import PROFILE, keep, recorded
from tests.fakes.replay_backend import Engine, Replay, Speed
from tests.fakes.serving import until

TAU_S = 0.6
HERE = replace(
    PROFILE,
    name="here",
    host=this_host(),
    served=replace(PROFILE.served, model="replay:latest"),
    mu_short_s=Estimate(TAU_S / 3, 0.1, 0.3, 100),
    tau_s=TAU_S,
    decode_tokens_per_s=1000.0,
    prefill_tokens_per_s=20_000.0,
)


class Learning(Predictor):
    """A predictor that counts what it has learned."""

    name = "counting"

    def __init__(self) -> None:
        self.learned = 0

    def predict(self, view: PromptView, opinion: object = None) -> Prediction:
        p_long = 0.9 if "long" in view.prompt else 0.1
        tokens = 900.0 if "long" in view.prompt else 50.0
        return Prediction(1 - p_long, 0.0, p_long, p_long, tokens, tokens, self.name, memo=1)

    def learn(self, prediction: Prediction, tokens: int) -> None:
        self.learned += 1

    def export_state(self) -> bytes:
        return str(self.learned).encode()

    def import_state(self, state: bytes) -> None:
        self.learned = int(state)


@asynccontextmanager
async def daemon_on(
    path: Path, url: str, *, predicts: object = None, **settings: object
) -> AsyncIterator[Daemon]:
    settings = {"policy": "sjf"} | settings
    config = ServeConfig(backend=url, listen="127.0.0.1:0", **settings)  # type: ignore[arg-type]
    ledger = Ledger(path)
    try:
        async with running_daemon(config, predicts or Learning(), persistence=ledger) as daemon:  # type: ignore[arg-type]
            yield daemon
    finally:
        ledger.close()


def contents(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in path.parent.glob(f"{path.name}*"))


async def ask(http: httpx.AsyncClient, prompt: str, tokens: int = 30) -> None:
    body = {"model": "replay", "messages": [{"role": "user", "content": prompt}]}
    answer = await http.post("/api/chat", json=body | {"options": {"num_predict": tokens}})
    assert answer.status_code == 200


async def ask_all(daemon: Daemon, *prompts: str, tokens: int = 30) -> None:
    http = httpx.AsyncClient(base_url=daemon.base_url, timeout=60, trust_env=False)
    async with http, asyncio.TaskGroup() as group:
        for prompt in prompts:
            group.create_task(ask(http, prompt, tokens))
            await asyncio.sleep(0.002)


async def test_it_takes_the_profile_and_fires_at_its_tau(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    keep(path, (), replace(HERE, name="older", tau_s=9.0), replace(HERE, measured_at=HERE.measured_at + 1))
    async with replay(decode=1000.0) as (_, url), daemon_on(path, url) as daemon:
        snapshot = daemon.snapshot()
        assert snapshot.tau.source == "profile here"
        assert snapshot.tau.tau_s == pytest.approx(TAU_S)
        assert snapshot.tau.mu_short_s == pytest.approx(TAU_S / 3)
        assert snapshot.backends[0].decode_tokens_per_s == 1000.0
        assert any("using profile here, measured on 2" in event.text for event in snapshot.log)
        assert not any("unknown" in event.text for event in snapshot.log)
        shorts = (f"Name colour {number}." for number in range(60))
        await ask_all(daemon, "Name a colour.", "Write a long story.", *shorts)
    rows = recorded(path)
    fired = [row for row in rows if row.dispatched_by == "tau"]
    assert fired
    # The long one was overtaken until its time had come; it then went first at the next free slot.
    story = next(row for row in fired if row.predicted_class == "long")
    due_s = story.finished_at - story.sojourn_s + TAU_S
    dispatched_s = {row.request: row.finished_at - row.sojourn_s + row.waited_s for row in rows}
    overtaken_by = [request for request, at_s in dispatched_s.items() if at_s < due_s]
    assert len(overtaken_by) > 1
    assert story.request == min(dispatched_s.keys() - overtaken_by, key=dispatched_s.__getitem__)
    assert all(row.waited_s >= TAU_S for row in fired)


@pytest.mark.parametrize("usual", [None, 3])
async def test_a_server_that_works_on_many_at_once_gets_no_more_for_being_measured(
    usual: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(adapter_of("ollama")), "USUAL_SLOTS", usual)
    path = tmp_path / "c.db"
    keep(path, (), replace(HERE, slots=7))
    async with replay() as (_, url), daemon_on(path, url) as daemon:
        state = await until(daemon, lambda s: s.tau.source == "profile here")
    assert state.backends[0].slots == (usual or 7)


async def test_what_was_chosen_by_flag_or_operator_is_not_overruled(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    keep(path, (), HERE)
    async with replay() as (_, url), daemon_on(path, url, tau=7.0, slots=3) as daemon:
        await ask_all(daemon, "Name a colour.")
        snapshot = daemon.snapshot()
    assert (snapshot.tau.source, snapshot.tau.tau_s) == ("flag", 7.0)
    assert snapshot.backends[0].slots == 3


async def test_a_stale_profile_is_used_and_said_to_be_stale(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    keep(path, (), replace(HERE, served=replace(HERE.served, version="0.1.0")))
    async with replay() as (_, url), daemon_on(path, url) as daemon:
        assert any("stale" in event.text and "0.1.0 then" in event.text for event in daemon.snapshot().log)


async def test_no_prompt_is_recorded_unless_asked_for(tmp_path: Path) -> None:
    marker = "unmistakable words"
    for record in (False, True):
        path = tmp_path / f"{record}.db"
        async with replay() as (_, url), daemon_on(path, url, record_prompts=record) as daemon:
            await ask_all(daemon, marker)
        (row,) = recorded(path)
        assert (row.body is not None and marker in row.body) is record
        assert (row.outcome, row.status, row.tokens, row.length_class) == ("completed", 200, 30, "short")
        assert row.decode_s == pytest.approx(30 / 4000.0)
        assert (marker.encode() in contents(path)) is record


async def test_a_body_that_is_too_long_is_not_recorded(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    async with replay(prefill=1e7) as (_, url), daemon_on(path, url, record_prompts=True) as daemon:
        await ask_all(daemon, "unmistakable words " * 20_000)
    (row,) = recorded(path)
    assert (row.outcome, row.body) == ("completed", None)


async def test_the_tokens_of_an_answer_that_was_given_up_are_recorded(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    async with (
        replay(decode=100.0) as (_, url),
        daemon_on(path, url) as daemon,
        raw_client(daemon.base_url) as client,
    ):
        body = {"model": "replay", "messages": [{"role": "user", "content": "A long story."}]}
        client.send(post("/api/chat", json.dumps(body | {"options": {"num_predict": 5000}}).encode()))
        await until(daemon, lambda s: bool(s.running) and s.running[0].tokens >= 20)
        client.leave()
        await until(daemon, lambda s: s.counters.client_cancelled == 1)
        had = daemon.stats.tokens["127.0.0.1"]
        assert had >= 20
    (left,) = recorded(path)
    assert (left.tokens, left.length_class) == (had, "")


async def test_an_answer_that_never_began_has_no_tokens(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    async with replay(decode=100.0) as (engine, url), daemon_on(path, url) as daemon:
        engine.freeze()
        async with raw_client(daemon.base_url) as client:
            body = {"model": "replay", "stream": True, "messages": [{"role": "user", "content": "A story."}]}
            client.send(post("/api/chat", json.dumps(body).encode()))
            await engine.wait_until(lambda counts: counts.started == 1)
            client.leave()
            engine.thaw()
            await until(daemon, lambda state: state.counters.client_cancelled == 1)
        assert not daemon.stats.tokens["127.0.0.1"]
    (left,) = recorded(path)
    assert not left.tokens


async def test_what_the_predictor_learned_outlives_the_daemon(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    for expected in (2, 4):
        counting = Learning()
        async with replay() as (_, url), daemon_on(path, url, predicts=counting) as daemon:
            await ask_all(daemon, "Name a colour.", "Name a bird.")
        assert counting.learned == expected


async def test_the_learned_size_of_a_cache_outlives_the_daemon(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    async with replay() as (_, url):
        for before, after in (((0.0, inf), (500.0, 900.0)), ((500.0, 900.0), (500.0, inf))):
            async with daemon_on(path, url) as daemon:
                cache = daemon.pool.queue.fleet.servers[daemon.pool.first.id].cache
                assert cache.size == before
                cache.size = after
        async with daemon_on(path, url) as daemon:
            cache = daemon.pool.queue.fleet.servers[daemon.pool.first.id].cache
            assert (cache.size, cache.room_tokens) == ((500.0, inf), inf)


async def test_a_frozen_daemon_records_and_learns_nothing(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    keep(path, (), HERE)
    frozen = load()
    frozen.frozen = True
    state = frozen.export_state()
    async with replay(decode=500.0) as (_, url), daemon_on(path, url, predicts=frozen, freeze=True) as daemon:
        await ask_all(daemon, *(f"Name colour {number}." for number in range(30)))
        snapshot = daemon.snapshot()
    assert frozen.export_state() == state
    assert frozen.quality().judged > 0  # those that no limit ended
    assert snapshot.tau.tau_s == pytest.approx(TAU_S)
    assert snapshot.backends[0].decode_tokens_per_s == 1000.0
    assert len(recorded(path)) == 30
    with reading(path) as connection:
        assert load_state(connection, f"learned ollama {url}") is None


async def test_another_model_than_the_profiles_is_noticed_once_loaded(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    of_another = replace(HERE.served, model="another:latest")
    keep(path, (), replace(HERE, served=of_another))
    async with replay() as (_, url), daemon_on(path, url) as daemon:
        await ask_all(daemon, "Name a colour.")
        backend = daemon.pool.first
        backend.status.models = (LoadedModel("replay:latest"),)
        assert daemon.state_saver is not None
        daemon.state_saver.follow()
        told = [event.text for event in daemon.snapshot().log if "replay:latest is loaded" in event.text]
    assert len(told) == 1


async def test_a_model_pulled_again_makes_its_profile_stale(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    newer = replace(HERE, name="of another", served=replace(HERE.served, model="another:latest"))
    mine = replace(HERE, served=replace(HERE.served, digest="old"), tau_s=1.5)
    mine = replace(mine, mu_short_s=Estimate(0.5, 0.4, 0.6, 100))
    keep(path, (), mine, replace(newer, measured_at=HERE.measured_at + 1))
    async with replay() as (_, url), daemon_on(path, url) as daemon:
        assert daemon.snapshot().tau.source == "profile of another"
        daemon.pool.first.status.models = (LoadedModel("replay:latest", digest="new"),)
        assert daemon.state_saver is not None
        daemon.state_saver.follow()
        snapshot = daemon.snapshot()
    assert (snapshot.tau.source, snapshot.tau.mu_short_s) == ("profile here", 0.5)
    assert any("has changed since" in event.text for event in snapshot.log)


async def test_a_profile_that_comes_while_it_runs_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clairvoyant_cli.proxy.learning.persistence.FOLLOW_EVERY_S", 0.02)
    path = tmp_path / "c.db"
    keep(path, (), HERE)
    proof = Continuation("raw", 24, 24, 0.05, fingerprint="build:1")
    newer = replace(HERE, name="newer", measured_at=HERE.measured_at + 1, decode_tokens_per_s=500.0)
    newer = replace(newer, mu_short_s=Estimate(2.0, 1.9, 2.1, 100), continuations=(proof,))
    async with replay() as (_, url), daemon_on(path, url, policy=None) as daemon:
        # Twice the speed of the first profile: nothing of that is to change what the second says.
        await ask_all(daemon, "Name a colour.", tokens=64)
        await until(daemon, lambda s: s.tau.source == "profile here, decoding faster since")
        await asyncio.to_thread(keep, path, (), newer)
        state = await until(daemon, lambda s: s.tau.source == "profile newer")
        assert state.tau.tau_s == pytest.approx(6.0)
        assert state.backends[0].decode_tokens_per_s == 500.0
        assert any("using profile newer" in event.text for event in state.log)
        assert any("preemption enabled" in event.text for event in state.log)
        daemon.operation.choose_tau(9.0)
        with writing(path) as connection:
            remove(connection, "newer")
        state = await until(daemon, lambda s: any("using profile here" in e.text for e in s.log[-3:]))
        assert (state.tau.tau_s, state.tau.source, state.tau.mu_short_s) == (9.0, "operator", None)
        daemon.operation.release_tau()
        assert daemon.snapshot().tau.source == "profile here, decoding faster since"
        assert not daemon.pool.first.proofs


async def test_each_of_several_servers_takes_the_profile_of_its_own_address(tmp_path: Path) -> None:
    async with replay() as (_, fast), replay() as (_, slow):
        of_fast = replace(HERE, name="fast", served=replace(HERE.served, url=fast))
        of_slow = replace(HERE, name="slow", served=replace(HERE.served, url=slow), decode_tokens_per_s=50.0)
        of_slow = replace(of_slow, mu_short_s=Estimate(2.0, 1.9, 2.1, 100), measured_at=HERE.measured_at + 1)
        path = keep(tmp_path / "c.db", (), of_fast, of_slow)
        async with daemon_on(path, f"fast={fast},slow={slow}") as daemon:
            speeds = [server.speeds.decode_tokens_per_s for server in daemon.pool]
            tau_s = daemon.snapshot().tau.tau_s
    assert speeds == [1000.0, 50.0]
    assert tau_s == pytest.approx((TAU_S + 6.0) / 2)


async def test_each_model_keeps_its_tau_whichever_answered_last(tmp_path: Path) -> None:
    other = replace(HERE, name="other", served=replace(HERE.served, model="large:latest"))
    other = replace(other, mu_short_s=Estimate(2.0, 1.9, 2.1, 100), measured_at=HERE.measured_at - 1)
    path = keep(tmp_path / "c.db", (), HERE, other)
    async with replay(decode=1000.0) as (_, url), daemon_on(path, url) as daemon:
        saver = daemon.state_saver
        assert saver is not None
        memory, taus = next(iter(saver._memories.values())), []
        for model in ("large", "replay", "large"):
            saver._answered = memory, model
            saver.follow()
            taus.append(daemon.snapshot().tau)
        daemon.operation.choose_tau(9.0)
        assert daemon.snapshot().tau.by_model == {}
        daemon.operation.release_tau()
        assert daemon.snapshot().tau == taus[-1]
    assert taus[0].by_model == {"large": pytest.approx(6.0)}
    assert taus[1] == taus[2]
    assert taus[2].by_model == {"large": pytest.approx(6.0), "replay": pytest.approx(TAU_S)}
    assert taus[2].tau_s == pytest.approx(6.0)
    assert taus[2].source == "profile other"


async def test_it_learns_mu_short_from_a_queue_and_shows_it(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    keep(path, (), HERE)
    async with replay(decode=1000.0) as (_, url):
        async with daemon_on(path, url) as daemon:
            await ask_all(daemon, *(f"Name colour {number}." for number in range(40)))
            assert daemon.state_saver is not None
            daemon.state_saver.follow()
            learned = daemon.snapshot().tau
        assert learned.source == "profile here, learned since"
        assert learned.tau_s is not None
        assert TAU_S < learned.tau_s <= 2 * TAU_S
        async with daemon_on(path, url) as daemon:
            assert daemon.snapshot().tau.tau_s == pytest.approx(learned.tau_s)


async def test_the_shipped_predictor_ranks_and_is_judged(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    async with replay() as (_, url), daemon_on(path, url, predicts=predictor.load()) as daemon:
        await ask_all(daemon, "Write a long, detailed essay about the sea.", "Name a colour.", tokens=900)
        state = await until(daemon, lambda s: s.predictor.judged == 2)
        with reading(path) as connection:
            assert list(each(connection, Span(since=9e9))) == []
    assert state.predictor.ranking_accuracy in (0.0, 0.5, 1.0)


async def test_it_records_the_session_of_a_request_and_what_was_read_of_its_prompt(tmp_path: Path) -> None:
    path, engine = tmp_path / "c.db", Engine(cache=KvCache())
    claimed, said = "claimed-by-the-client", [{"role": "user", "content": "What is in the file? " * 60}]
    headers = {"X-Session-Id": claimed}
    async with serve_app(Replay(engine).app) as url, daemon_on(path, url) as daemon:
        http = httpx.AsyncClient(base_url=daemon.base_url, timeout=60, trust_env=False)
        async with http:
            for asked in (said, [*said, {"role": "assistant", "content": "A word."}, *said], said[:0]):
                body = {"model": "replay", "messages": asked, "max_tokens": 5}
                answer = await http.post("/v1/chat/completions", json=body, headers=headers)
                assert answer.status_code == 200
    other, second, first = recorded(path)
    run = first.request.partition("-")[0]
    assert (first.session, second.session, other.session) == (f"{run}-s1", f"{run}-s1", "")
    assert first.cached_tokens == 0
    assert first.read_tokens == first.prompt_tokens
    assert second.prompt_tokens is not None
    assert second.cached_tokens is not None
    assert second.cached_tokens >= (first.prompt_tokens or 0) - 10 > 200
    assert second.read_tokens == second.prompt_tokens - second.cached_tokens
    assert claimed.encode() not in contents(path)


async def test_dashboard_report_and_the_next_daemon_have_the_same_books(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    async with replay(decode=1000.0) as (_, url):
        async with daemon_on(path, url, freeze=True) as daemon:
            daemon.operation.dispatcher.scheduler.pause()
            http = httpx.AsyncClient(base_url=daemon.base_url, timeout=60, trust_env=False)
            async with http, asyncio.TaskGroup() as group:
                group.create_task(ask(http, "Write a long story.", 900))
                await until(daemon, lambda state: len(state.queue) == 1)
                for number in range(6):
                    group.create_task(ask(http, f"Name colour {number}.", 20))
                await until(daemon, lambda state: len(state.queue) == 7)
                daemon.operation.resume()
                daemon.operation.dispatcher.moved()
            state = await until(daemon, lambda state: state.gain.answers_today == 7)
            gain = state.gain
            assert gain.estimated_today == 0
            assert gain.short_s == state.stats_paired[0].wait.p50
            assert [each.wait.n for each in state.stats_paired] == [each.wait.n for each in state.stats_fcfs]
            # Each short one would have waited for the story, and the story waited for all of them.
            (story,) = (each for each in state.recent if each.predicted.length_class == "long")
            served_s = story.sojourn_s - story.waited_s
            assert gain.saved_today_s == pytest.approx(6 * served_s - story.waited_s, abs=6 * served_s)
            assert gain.saved_today_s > 3.0
        rows = recorded(path)
        assert sum(row.saved_s or 0.0 for row in rows) == pytest.approx(gain.saved_today_s)
        found = group_by(compared(rows), lambda row: row.length_class)
        assert sum(each.saved_s for each in found) == pytest.approx(gain.saved_today_s)
        async with daemon_on(path, url) as daemon:
            restarted = daemon.snapshot()
            again = restarted.gain
    assert [each.wait for each in restarted.stats_paired] == [each.wait for each in state.stats_paired]
    assert again.answers_today == 7
    assert again.saved_today_s == pytest.approx(gain.saved_today_s)
    assert again.short_s == pytest.approx(gain.short_s)


async def test_what_another_daemon_wrote_is_summed_up_once_it_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    async with replay(decode=1000.0) as (_, url), daemon_on(path, url, freeze=True) as daemon:
        await ask_all(daemon, "Name a colour.", "Name a fish.")
        await until(daemon, lambda state: state.gain.answers_today == 2)
        async with daemon_on(path, url, freeze=True) as other:
            await ask_all(other, *(f"Name colour {number}." for number in range(5)))
            await until(other, lambda state: state.gain.answers_today >= 5)
        assert daemon.snapshot().gain.answers_today == 2
        assert daemon.state_saver is not None
        await daemon.state_saver.sum_up_again()
        state = daemon.snapshot()
        assert (state.gain.answers_today, sum(each.wait.n for each in state.stats_paired)) == (7, 7)
        assert sum(each.hour.compared for each in state.programs.listed) == 7
        assert state.gain.saved_today_s == pytest.approx(sum(row.saved_s or 0.0 for row in recorded(path)))


async def test_a_server_that_starts_later_gets_the_name_and_the_profile_of_its_kind(tmp_path: Path) -> None:
    path = keep(tmp_path / "c.db", (), replace(PROFILE, host=this_host()))
    port = free_port()
    async with daemon_on(path, f"http://127.0.0.1:{port}") as daemon:
        assert [shown.name for shown in daemon.snapshot().backends] == ["other"]
        async with serve_app(Replay(Engine(speed=Speed(1e5, 2000.0))).app, port) as url:
            await until(daemon, lambda state: [shown.name for shown in state.backends] == ["ollama"])
            async with httpx.AsyncClient(base_url=daemon.base_url, trust_env=False) as http:
                await ask(http, "Hello")
            await until(daemon, lambda state: state.counters.completed == 1)
            assert daemon.pool.first.id == url
            assert [known.name for known in daemon.pool.first.profiles] == [PROFILE.name]
    with reading(path) as connection:
        assert [found.backend for found in each(connection, Span())] == ["ollama"]


async def test_a_name_that_the_operator_gave_is_kept(tmp_path: Path) -> None:
    port = free_port()
    backend = Replay(Engine(speed=Speed(1e5, 2000.0))).app
    async with (
        daemon_on(tmp_path / "c.db", f"llamacpp=http://127.0.0.1:{port}") as daemon,
        serve_app(backend, port),
    ):
        server = daemon.pool.first
        await until(daemon, lambda state: server.adapter.name == "ollama" and server.status.state == "up")
        await daemon.lifecycle.see_settings(server)
        assert [shown.name for shown in daemon.snapshot().backends] == ["llamacpp"]
