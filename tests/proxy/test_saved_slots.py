"""Conversations saved to files and restored: budget, erasure, privacy, failures, and what never happens."""

import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from clairvoyant_cli.backends.adapters import adapter_of
from clairvoyant_cli.backends.prober import Prober
from clairvoyant_cli.backends.speeds import Speeds
from clairvoyant_cli.config import BackendConfig
from clairvoyant_cli.http.upstream import Upstream
from clairvoyant_cli.protocols.probes import ProbeAnswer
from clairvoyant_cli.protocols.routes import Work
from clairvoyant_cli.protocols.usage import Totals
from clairvoyant_cli.proxy.queue.exchange import Exchange
from clairvoyant_cli.proxy.requests.slot_keeping import SlotKeeper
from clairvoyant_cli.proxy.servers.saved_slots import MAX_FAILURES, REST_S, UNUSED_S, SavedSlots
from clairvoyant_cli.proxy.servers.server import Server
from clairvoyant_cli.scheduler.conversation_cache import Expected
from tests.fakes.raw_http import RawClient, post, raw_client
from tests.fakes.scripted_upstream import Conversation, answer, scripted
from tests.fakes.serving import serving

BYTES_A_TOKEN = 1000


class SlotServer:
    """Saves and restores slots as llama.cpp does. `slots` holds what is in each, and how many tokens;
    `fault` replaces the answer to an action; while `silent` it does not list its slots. Unless it
    `restores`, it only says so.
    """

    def __init__(self, folder: Path, slots: int = 1, url: str = "http://127.0.0.1:9000") -> None:
        self.folder = folder
        self.slots = [("", 0)] * slots
        self.busy: set[int] = set()
        self.written: dict[str, tuple[str, int]] = {}
        self.actions: list[str] = []
        self.fault: ProbeAnswer | None = None
        self.silent = False
        self.restores = True
        self.now = 100.0
        self.lines: list[str] = []
        prober = Prober()
        prober.asking = lambda url, prefix="": self.ask  # type: ignore[method-assign]
        self.server = Server("mac", adapter_of("llamacpp"), Upstream(url), slots=slots, prober=prober)
        self.server.saved_slots = self.saved = self.over(folder)

    def over(self, folder: Path, budget_tokens: float = 1000) -> SavedSlots:
        """Return the saved slots of this server in a folder."""

        def say(level: int, text: str) -> None:
            self.lines.append(text)

        budget = budget_tokens * BYTES_A_TOKEN
        saved = SavedSlots(self.server, self.server.ask, folder, budget, say, lambda: self.now)
        saved.bytes_a_token = BYTES_A_TOKEN
        return saved

    async def ask(self, path: str, timeout_s: float = 2.0, body: dict[str, Any] | None = None) -> ProbeAnswer:
        """Answer a question."""
        if body is None:
            if self.silent:
                return ProbeAnswer(503)
            listed = [
                {"id": at, "is_processing": at in self.busy, "n_prompt_tokens": tokens}
                for at, (_, tokens) in enumerate(self.slots)
            ]
            return ProbeAnswer(200, json.dumps(listed).encode())
        slot, action = int(path.split("/")[2].split("?")[0]), path.rpartition("=")[2]
        self.actions.append(f"{action} {slot}")
        assert slot not in self.busy
        if self.fault is not None:
            return self.fault
        file = self.folder / body["filename"]
        if action == "erase":
            self.slots[slot] = ("", 0)
            told = {}
        elif action == "save":
            self.written[body["filename"]] = self.slots[slot]
            with file.open("wb") as opened:
                opened.write(bytes(self.slots[slot][1] * BYTES_A_TOKEN))
            told = {"n_saved": self.slots[slot][1], "n_written": file.stat().st_size}
        else:
            content = self.written[body["filename"]]
            self.slots[slot] = content if self.restores else ("", 0)
            told = {"n_restored": content[1], "n_read": file.stat().st_size}
        return ProbeAnswer(200, json.dumps(told).encode())

    async def keeps(self, key: str, tokens: int) -> bool:
        """Save a conversation from the first slot."""
        self.slots[0] = (key, tokens)
        return await self.saved.keep(key, 0, tokens)

    def files(self) -> list[Path]:
        """Return the files in the folder."""
        return files_in(self.folder)


def files_in(folder: Path) -> list[Path]:
    """Return the files in a folder."""
    return list(folder.iterdir())


@pytest.fixture
async def llama(tmp_path: Path) -> SlotServer:
    made = SlotServer(tmp_path)
    assert await made.saved.probe()
    return made


async def test_a_conversation_is_saved_for_the_owner_alone_and_restored(llama: SlotServer) -> None:
    assert await llama.keeps("a", 100)
    (file,) = llama.files()
    assert file.stat().st_mode & 0o777 == 0o600
    llama.slots[0] = ("b", 50)
    assert await llama.saved.bring_back("a", 0)
    assert llama.slots[0] == ("a", 100)
    llama.saved.forget("a")
    assert llama.files() == []
    assert not await llama.saved.bring_back("a", 0)


async def test_a_probe_leaves_the_slots_alone(llama: SlotServer) -> None:
    assert (llama.actions, llama.files(), llama.lines) == ([], [], [])


async def test_the_least_recently_used_goes_when_the_budget_is_spent(llama: SlotServer) -> None:
    for key in "abc":
        assert await llama.keeps(key, 300)
    assert await llama.saved.bring_back("a", 0)
    assert await llama.keeps("d", 300)
    assert [llama.saved.tokens_of(key) for key in "abcd"] == [300, 0, 300, 300]
    assert len(llama.files()) == 3
    assert not await llama.keeps("e", 1001)
    assert len(llama.files()) == 3


async def test_a_session_that_has_ended_leaves_no_file(llama: SlotServer) -> None:
    for key in "ab":
        assert await llama.keeps(key, 100)
    llama.now += UNUSED_S
    assert await llama.saved.bring_back("a", 0)
    llama.now += 1.0
    llama.saved.forget_unused()
    assert list(llama.saved.files) == ["a"]
    assert len(llama.files()) == 1


async def test_a_file_that_turns_out_larger_than_the_budget_is_erased(llama: SlotServer) -> None:
    llama.saved.bytes_a_token = 1.0
    assert not await llama.keeps("a", 1001)
    assert llama.files() == []


async def test_a_longer_turn_replaces_the_file_before(llama: SlotServer) -> None:
    assert await llama.keeps("a", 100)
    assert await llama.keeps("a", 200)
    assert (llama.saved.tokens_of("a"), len(llama.files())) == (200, 1)
    assert await llama.keeps("a", 200)
    assert llama.actions == ["save 0", "save 0"]


async def test_a_slot_that_holds_something_else_is_not_kept(llama: SlotServer) -> None:
    llama.slots[0] = ("other", 20)
    assert not await llama.saved.keep("a", 0, 100)
    assert (llama.files(), llama.saved.usable) == ([], True)


async def test_all_files_are_erased_when_the_server_is_closed(llama: SlotServer) -> None:
    assert await llama.keeps("a", 100)
    await llama.server.close()
    assert llama.files() == []


def test_stale_files_are_erased_and_no_others(llama: SlotServer, tmp_path: Path) -> None:
    ours, alive = f"clairvoyant-{os.getpid()}-0123abcd-7.bin", f"clairvoyant-{os.getppid()}-0123abcd-7.bin"
    victim = tmp_path / "victim"
    for name in (ours, alive, "victim", "clairvoyant-notes.bin", "mine.bin"):
        (tmp_path / name).write_bytes(b"x")
    link = tmp_path / f"clairvoyant-{os.getpid()}-0123abcd-8.bin"
    link.symlink_to(victim)
    llama.over(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {alive, "victim", "clairvoyant-notes.bin", "mine.bin", link.name}
    assert victim.read_bytes() == b"x"


async def test_another_server_of_the_same_run_keeps_its_files(llama: SlotServer, tmp_path: Path) -> None:
    assert await llama.keeps("a", 100)
    llama.over(tmp_path)
    assert len(llama.files()) == 1


async def test_a_file_that_became_a_link_is_not_read(llama: SlotServer, tmp_path: Path) -> None:
    assert await llama.keeps("a", 100)
    (file,) = llama.files()
    target = tmp_path / "target"
    file.rename(target)
    file.symlink_to(target)
    assert not await llama.saved.bring_back("a", 0)
    assert (llama.actions, llama.files()) == (["save 0"], [target])


async def test_a_server_on_another_machine_saves_nothing(tmp_path: Path) -> None:
    far = SlotServer(tmp_path, url="http://192.168.1.20:9000")
    assert not await far.saved.probe()
    assert not await far.saved.probe()
    assert far.lines == ["mac: conversations are not saved: it runs on another machine"]


async def test_a_folder_that_is_missing_is_said_once(tmp_path: Path) -> None:
    made = SlotServer(tmp_path / "missing")
    assert not await made.saved.probe()
    assert len(made.lines) == 1


async def test_a_server_that_loads_its_model_is_asked_again_later(tmp_path: Path) -> None:
    made = SlotServer(tmp_path)
    made.silent = True
    assert not await made.saved.probe()
    made.silent = False
    assert not await made.saved.probe()
    made.now += REST_S
    assert await made.saved.probe()
    assert made.lines == []


async def test_a_server_that_saves_in_another_folder_is_not_used(tmp_path: Path) -> None:
    made = SlotServer(tmp_path / "theirs")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "given").mkdir()
    made.saved = made.over(tmp_path / "given")
    assert await made.saved.probe()
    assert not await made.keeps("a", 100)
    assert not made.saved.usable
    assert files_in(tmp_path / "given") == []
    assert [file.stat().st_size for file in made.files()] == [0]


async def test_a_server_started_without_a_folder_is_not_asked_again(llama: SlotServer) -> None:
    llama.fault = ProbeAnswer(501)
    assert not await llama.keeps("a", 100)
    llama.now += REST_S
    assert not await llama.saved.probe()
    assert llama.files() == []
    assert llama.lines == ["mac: conversations are not saved: it was not started with --slot-save-path"]


@pytest.mark.parametrize("fault", [ProbeAnswer(500), ProbeAnswer(0, why="no answer in time")])
async def test_a_server_that_fails_is_left_alone_for_a_while_and_then_for_good(
    llama: SlotServer, fault: ProbeAnswer
) -> None:
    llama.fault = fault
    for _ in range(MAX_FAILURES):
        llama.now += REST_S
        assert llama.saved.usable
        assert not await llama.keeps("a", 100)
        assert not llama.saved.usable
    llama.now += REST_S
    assert not llama.saved.usable
    assert (len(llama.actions), len(llama.lines), llama.files()) == (MAX_FAILURES, 1, [])


async def test_a_restore_without_effect_turns_it_off_unless_others_worked(llama: SlotServer) -> None:
    assert await llama.keeps("a", 100)
    for cached in (5, 5, 90, 5, 5):
        llama.saved.told("a", cached)
        llama.now += REST_S
        assert llama.saved.usable
    llama.saved.told("a", 5)
    assert not llama.saved.usable
    assert llama.files() == []


async def test_files_are_of_no_use_after_a_restore_that_fails(llama: SlotServer) -> None:
    assert await llama.keeps("a", 100)
    assert await llama.keeps("b", 100)
    llama.fault = ProbeAnswer(400)
    assert not await llama.saved.bring_back("a", 0)
    assert llama.files() == []


def test_it_pays_only_if_reading_takes_longer(llama: SlotServer) -> None:
    llama.saved.bytes_per_s = {"save": 1e6, "restore": 1e6}  # 1,000 tokens a second
    fast, slow = Speeds(prefill_tokens_per_s=1000.0), Speeds(prefill_tokens_per_s=100.0)
    assert llama.saved.worth(1000, 1000, slow)
    assert not llama.saved.worth(1000, 1000, fast)
    assert not llama.saved.worth(100, 1000, slow)
    assert not llama.saved.worth(1e6, 1e4, slow)  # it would not end in time


# -- what a request pushes out -------------------------------------------------------------------------


class Turns:
    """Serves turns of conversations on the slots of a server, which reads what it does not hold."""

    def __init__(self, llama: SlotServer, cached: Callable[[str], float] = lambda key: 0.0) -> None:
        self.llama = llama
        llama.server.speeds.prefill_tokens_per_s = 10.0
        self.keeper = SlotKeeper(
            conversation_key=lambda job: str(job), expected=lambda job: Expected(cached(str(job)))
        )

    async def turn(self, key: str, tokens: int) -> int:
        """Serve a turn after which the conversation has that many tokens; return how many were cached."""
        attempt = SimpleNamespace(connection=object(), totals=Totals())
        exchange = cast(
            Exchange,
            SimpleNamespace(
                id=key,
                job=key,
                attempt=attempt,
                asked=SimpleNamespace(route=SimpleNamespace(work=Work.GENERATE)),
            ),
        )
        await self.keeper.before_attempt(exchange, self.llama.server)
        slots = self.llama.slots
        empty = next((at for at, (_, has) in enumerate(slots) if not has), 0)
        slot = next((at for at, (whose, _) in enumerate(slots) if whose == key), empty)
        cached = slots[slot][1] if slots[slot][0] == key else 0
        slots[slot] = (key, tokens)
        attempt.totals = Totals(tokens=1, prompt_tokens=tokens, prefilled_tokens=tokens - cached)
        self.keeper.after_attempt(exchange, self.llama.server)
        return cached


async def test_two_conversations_in_turns_on_one_slot_are_read_once(llama: SlotServer) -> None:
    serve = Turns(llama)
    assert [await serve.turn(key, tokens) for key, tokens in [("a", 100), ("b", 120)]] == [0, 0]
    assert [await serve.turn(key, tokens) for key, tokens in [("a", 150), ("b", 170)]] == [100, 120]
    assert [await serve.turn(key, tokens) for key, tokens in [("a", 200), ("b", 220)]] == [150, 170]


async def test_a_server_that_only_says_it_restores_is_found_out(llama: SlotServer) -> None:
    llama.restores = False
    serve = Turns(llama)
    for tokens in range(100, 200, 10):
        for key in "ab":
            await serve.turn(key, tokens)
        llama.now += REST_S
    assert llama.actions.count("restore 0") == MAX_FAILURES
    assert (llama.saved.usable, llama.files()) == (False, [])


async def test_one_conversation_writes_nothing(llama: SlotServer) -> None:
    serve = Turns(llama)
    assert [await serve.turn("a", tokens) for tokens in (100, 150, 200)] == [0, 100, 150]
    assert llama.actions == []


async def test_what_the_server_still_has_is_not_restored(llama: SlotServer) -> None:
    serve = Turns(llama, cached=lambda key: 1000.0)
    for key in "abab":
        await serve.turn(key, 100)
    assert not any("restore" in action for action in llama.actions)


async def test_with_several_slots_the_oldest_conversation_is_saved(tmp_path: Path) -> None:
    llama = SlotServer(tmp_path, slots=2)
    serve = Turns(llama)
    for key, tokens in [("a", 100), ("b", 120), ("c", 140)]:
        await serve.turn(key, tokens)
    assert llama.actions == ["save 0"]
    assert await serve.turn("a", 150) == 100


async def test_a_slot_that_cannot_be_recognised_is_not_saved(tmp_path: Path) -> None:
    llama = SlotServer(tmp_path, slots=2)
    serve = Turns(llama)
    for key in "abc":
        await serve.turn(key, 100)
    assert llama.actions == []


async def test_a_busy_slot_is_left_alone(llama: SlotServer) -> None:
    serve = Turns(llama)
    await serve.turn("a", 100)
    llama.busy.add(0)
    await serve.turn("b", 100)
    assert llama.actions == []


# -- in the daemon -------------------------------------------------------------------------------------


@asynccontextmanager
async def keeping(
    folder: Path, save: Callable[[str], bytes], **settings: Any
) -> AsyncIterator[tuple[RawClient, list[str]]]:
    """Run the proxy before a server with one slot of 100 tokens, and a client. `save` saves to a file of that
    name and returns the answer. The list has the questions about slots.
    """
    asked: list[str] = []

    async def script(conversation: Conversation) -> None:
        while True:
            request = await conversation.request()
            target = request.target.decode()
            if target.startswith("/slots"):
                asked.append(target)
            if target == "/slots":
                conversation.send(answer(b'[{"id": 0, "is_processing": false, "n_prompt_tokens": 100}]'))
            elif target.startswith("/slots"):
                conversation.send(save(json.loads(request.body)["filename"]))
            elif request.line.startswith(b"POST"):
                conversation.send(answer(b'{"usage": {"prompt_tokens": 90, "completion_tokens": 10}}'))
            else:
                conversation.send(answer(status="404 Not Found"))

    async with scripted(script) as upstream:
        backends = (BackendConfig(url=upstream.base_url, kind="llamacpp", slots=1),)
        async with (
            serving(None, backends=backends, slot_save_path=str(folder), **settings) as daemon,
            raw_client(daemon.base_url) as client,
        ):
            keeper = daemon.gateway.serving.slot_keeper
            keeper.conversation_key = lambda job: job.model
            daemon.pool.first.speeds.prefill_tokens_per_s = 1.0
            yield client, asked


def chat(model: str) -> bytes:
    body = {"model": model, "messages": [{"role": "user", "content": "short"}]}
    return post("/v1/chat/completions", json.dumps(body).encode())


async def test_saved_conversations_end_with_the_daemon(tmp_path: Path) -> None:
    def save(name: str) -> bytes:
        with (tmp_path / name).open("r+b") as file:
            file.write(bytes(500))
        return answer(b'{"n_saved": 100, "n_written": 500}')

    async with keeping(tmp_path, save) as (client, asked):
        for model in ("a", "b"):
            assert (await client.ask(chat(model))).status == 200
        assert "/slots/0?action=save" in asked
        assert len(files_in(tmp_path)) == 1
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("status", ["500 Internal Server Error", "501 Not Implemented"])
async def test_a_request_is_answered_though_saving_fails(tmp_path: Path, status: str) -> None:
    async with keeping(tmp_path, lambda name: answer(status=status)) as (client, asked):
        for model in "abab":
            assert (await client.ask(chat(model))).status == 200
        assert asked.count("/slots/0?action=save") == 1
    assert files_in(tmp_path) == []


async def test_a_clients_own_use_of_slots_is_passed_on(tmp_path: Path) -> None:
    async with keeping(tmp_path, lambda name: answer(name.encode())) as (client, _):
        own = await client.ask(post("/slots/0?action=save", b'{"filename": "own.bin"}'))
        assert (own.status, own.body) == (200, b"own.bin")
