"""`clairvoyant batch`: a batch file to its results, across stops and errors."""

import asyncio
import json
import os
import signal
import sys
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from clairvoyant_cli.commands.batch import Batch
from clairvoyant_cli.commands.batch_files import encoded, read_batch, results_of
from clairvoyant_cli.errors import InputError
from clairvoyant_cli.main import cli
from clairvoyant_cli.proxy.composition import Daemon
from tests.fakes.raw_http import Message
from tests.fakes.scripted_upstream import Conversation, always, answer
from tests.fakes.serving import between, until

CHAT, EMBED = "/v1/chat/completions", "/v1/embeddings"
GOOD = b'{"choices": [{"n": 1}]}'


def line(name: str, url: str = CHAT, **more: Any) -> str:
    body = {"model": "m", "messages": [{"role": "user", "content": name}]} | more
    return json.dumps({"custom_id": name, "method": "POST", "url": url, "body": body}) + "\n"


class Run:
    """A batch file, and the command that runs it before a daemon."""

    def __init__(self, path: Path, daemon: Daemon) -> None:
        self.path, self.daemon = path, daemon

    async def begin(self, *words: str) -> asyncio.subprocess.Process:
        command = (
            sys.executable,
            "-m",
            "clairvoyant_cli",
            "batch",
            str(self.path),
            "--url",
            self.daemon.base_url,
        )
        return await asyncio.create_subprocess_exec(*command, *words, stderr=asyncio.subprocess.PIPE)

    async def end(self, *words: str) -> tuple[int | None, str]:
        process = await self.begin(*words)
        _, said = await process.communicate()
        return process.returncode, said.decode()

    def kept(self, which: str) -> Sequence[dict[str, Any]]:
        path = self.path.with_suffix(f".{which}.jsonl")
        return [json.loads(text) for text in path.read_text().splitlines()]


def asked_for(message: Message) -> str:
    body = json.loads(message.body)
    return str(body["input"] if "input" in body else body["messages"][0]["content"])


async def test_a_batch_keeps_results_and_errors_and_asks_nothing_twice(tmp_path: Path) -> None:
    seen: list[str] = []
    bad = True

    async def script(it: Conversation) -> None:
        while True:
            message = await it.request()
            seen.append(asked_for(message))
            is_bad = bad and seen[-1] == "bad"
            it.send(
                answer(b'{"error": {"message": "no"}}', status="400 No")
                if is_bad
                else answer(b'{"data": [1]}' if seen[-1] == "e" else GOOD)
            )

    async with between(script) as (daemon, _):
        run = Run(tmp_path / "night.jsonl", daemon)
        run.path.write_text(line("a") + "\n" + line("bad") + line("e", EMBED, input="e"))
        code, said = await run.end("-n", "1")
        assert code == 1
        assert "3 requests: 2 results in" in said
        assert ", 1 error in" in said
        assert sorted(seen) == ["a", "bad", "e"]
        first, _ = run.kept("results")
        assert (first["custom_id"], first["error"]) == ("a", None)
        assert first["response"]["status_code"] == 200
        assert first["response"]["body"] == json.loads(GOOD)
        assert first["id"] == "batch_req_" + first["response"]["request_id"] != "batch_req_"
        assert [each["response"]["status_code"] for each in run.kept("errors")] == [400]

        bad = False
        with run.path.with_suffix(".results.jsonl").open("a") as file:
            file.write('{"id":"batch_req_torn')
        assert (await run.end())[0] == 0
        assert sorted(seen) == ["a", "bad", "bad", "e"]
        assert {each["custom_id"] for each in run.kept("results")} == {"a", "bad", "e"}
        assert run.kept("errors") == []


async def test_a_batch_waits_behind_others_and_goes_on_after_a_stop(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def script(it: Conversation) -> None:
        while True:
            await it.request()
            await release.wait()
            it.send(answer(GOOD))

    async with between(script, slots=1) as (daemon, _):
        run = Run(tmp_path / "night.jsonl", daemon)
        run.path.write_text(line("a") + line("b") + line("c"))
        process = await run.begin()
        state = await until(daemon, lambda s: len(s.queue) == 1 and len(s.running) == 1)
        [waits] = daemon.dispatcher.scheduler.waiting()
        assert (waits.background_levels, state.running[0].endpoint) == (10, CHAT)
        process.send_signal(signal.SIGINT)
        _, said = await process.communicate()
        assert (process.returncode, b"stopped, 3 requests left; run the same command again" in said) == (
            1,
            True,
        )
        release.set()
        assert (await run.end())[0] == 0
        assert len(run.kept("results")) == 3


async def _run(daemon: Daemon, path: Path, at_once: int) -> Batch:
    """Run a batch file in this process."""
    lines = read_batch(path)
    with results_of(path, lines) as (done, results, errors):
        waiting = deque(each for each in lines if each.custom_id not in done)
        batch = Batch(waiting, path.name, results, errors, show=lambda why="": None)
        await batch.run(daemon.base_url, "", at_once)
    return batch


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clairvoyant_cli.commands.batch.FIRST_PAUSE_S", 0.01)


@pytest.mark.usefixtures("short_pauses")
async def test_a_line_that_breaks_its_server_is_given_up_and_no_other(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    together = asyncio.Barrier(2)

    async def script(it: Conversation) -> None:
        while True:
            name = asked_for(await it.request())
            seen[name] += 1
            if name == "poison" or seen.total() <= 2:  # the server goes away with what it has
                if seen.total() <= 2:
                    await together.wait()
                return it.reset()
            it.send(answer(GOOD))

    async with between(script, slots=2, faults_expected=True) as (daemon, _):
        run = Run(tmp_path / "night.jsonl", daemon)
        run.path.write_text(line("poison") + line("a") + line("b"))
        batch = await _run(daemon, run.path, 2)
    assert (batch.failed, batch.left, batch.tries["poison"]) == (1, 0, 3)
    assert {each["custom_id"] for each in run.kept("results")} == {"a", "b"}
    [error] = run.kept("errors")
    assert error["error"]["message"].startswith("given up after 3 tries: HTTP 502")


@pytest.mark.usefixtures("short_pauses")
async def test_one_request_asks_for_all_after_a_refusal(tmp_path: Path) -> None:
    asked = 0

    async def script(it: Conversation) -> None:
        nonlocal asked
        while True:
            await it.request()
            asked += 1
            refused = asked <= 6
            it.send(answer(b"{}", "Retry-After: 0", status="503 Busy") if refused else answer(GOOD))

    async with between(script, slots=4) as (daemon, _):
        run = Run(tmp_path / "night.jsonl", daemon)
        run.path.write_text("".join(map(line, "abcd")))
        await _run(daemon, run.path, 4)
    assert asked == 6 + 4  # four together, twice one in place of all, and the four
    assert len(run.kept("results")) == 4


@pytest.mark.parametrize(
    "odd",
    [
        b"7",
        b"null",
        b"[1]",
        b"",
        b"{",
        b"\xff",
        b'{"choices": []}',
        b'{"error": {"message": "away"}}',
        GOOD[:-1] + b', "x": ' + b"[" * 2000 + b"]" * 2000 + b"}",
        GOOD[:-1] + b', "x": ' + b"9" * 5000 + b"}",
    ],
)
async def test_a_complete_answer_that_is_none_is_an_error_without_a_pause(odd: bytes, tmp_path: Path) -> None:
    asked: list[str] = []

    async def script(it: Conversation) -> None:
        while True:
            asked.append(asked_for(await it.request()))
            it.send(answer(odd))

    async with between(script) as (daemon, _):
        run = Run(tmp_path / "night.jsonl", daemon)
        run.path.write_text(line("a") + line("b"))
        batch = await _run(daemon, run.path, 1)
    assert batch.pause_s == 0.0
    assert (batch.failed, len(run.kept("errors")), asked) == (2, 2, ["a", "b"])


@pytest.mark.parametrize("more", [b', "error": null', b', "x": NaN', b', "x": "half \\ud83d"'])
async def test_an_unusual_answer_is_a_result(more: bytes, tmp_path: Path) -> None:
    async with between(always(answer(GOOD[:-1] + more + b"}"))) as (daemon, _):
        run = Run(tmp_path / "night.jsonl", daemon)
        run.path.write_text(line("a"))
        await _run(daemon, run.path, 1)
        assert len(run.kept("results")) == 1
        assert not (await _run(daemon, run.path, 1)).tries


async def test_a_request_that_changed_is_sent_again_and_no_other(tmp_path: Path) -> None:
    seen: list[Message] = []
    async with between(always(answer(GOOD), seen)) as (daemon, _):
        run = Run(tmp_path / "night.jsonl", daemon)
        run.path.write_text(line("a") + line("b"))
        await _run(daemon, run.path, 1)
        run.path.write_text(line("a") + line("b").replace('"content": "b"', '"content": "new"'))
        await _run(daemon, run.path, 1)
    assert [*map(asked_for, seen)] == ["a", "b", "new"]
    assert sorted(each["custom_id"] for each in run.kept("results")) == ["a", "b"]
    assert len(run.kept("results.old")) == 2


@pytest.mark.parametrize("lose", [Path.unlink, lambda path: os.truncate(path, 0)], ids=["removed", "emptied"])
@pytest.mark.parametrize(("which", "status"), [("results", "200 OK"), ("errors", "400 Bad Request")])
async def test_results_that_are_lost_meanwhile_are_an_error(
    lose: Callable[[Path], None], which: str, status: str, tmp_path: Path
) -> None:
    lost = tmp_path / f"night.{which}.jsonl"

    async def script(it: Conversation) -> None:
        while True:
            if asked_for(await it.request()) == "b":
                lose(lost)
            it.send(answer(GOOD, status=status))

    async with between(script) as (daemon, _):
        run = Run(tmp_path / "night.jsonl", daemon)
        run.path.write_text(line("a") + line("b"))
        code, said = await run.end("-n", "1")
    assert (code, f"{lost.name} was removed, replaced or changed" in said) == (1, True)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_byte_order_mark_and_half_an_emoji_are_read(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "night.jsonl"
    path.write_text(line("a").replace("\n", "\r\n") + line("\ud83d"), encoding, newline="")
    assert [each.custom_id for each in read_batch(path)] == ["a", "\ud83d"]
    assert b'"content":"\\ud83d"' in encoded(read_batch(path)[1].body)


@pytest.mark.parametrize("which", ["results", "errors"])
@pytest.mark.parametrize(
    "text", ["notes", '{"id":"batch_req_1","custom_id":"a","response":{},"error":null}\n']
)
def test_a_file_of_another_program_is_left_alone(which: str, text: str, tmp_path: Path) -> None:
    path, theirs = tmp_path / "night.jsonl", tmp_path / f"night.{which}.jsonl"
    theirs.write_text(text)
    with pytest.raises(InputError, match=f"{theirs} was not written by"), results_of(path, ()):
        pass
    assert theirs.read_text() == text


@pytest.mark.posix
@pytest.mark.parametrize("which", ["results", "errors"])
def test_a_pipe_is_not_waited_for(which: str, tmp_path: Path) -> None:
    os.mkfifo(theirs := tmp_path / f"night.{which}.jsonl")
    with pytest.raises(InputError, match=f"{theirs} is not a reg"), results_of(tmp_path / "night.jsonl", ()):
        pass


def test_files_with_nearly_the_same_name_share_no_results(tmp_path: Path) -> None:
    names = "night.jsonl", "night.json", "night"
    for name in names:
        (path := tmp_path / name).write_text(line("a"))
        wrong = pytest.raises(InputError, match=f"belongs to {tmp_path / names[0]}; rename {path}")
        with (
            nullcontext() if "." in name else wrong,
            results_of(path, read_batch(path)) as (done, results, _),
        ):
            assert not done
            record = {"custom_id": "a", "batch_file": name, "request_sha256": read_batch(path)[0].digest}
            results.write(encoded(record) + b"\n")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "line 1 is not a request of a batch: Expecting property name"),
        (
            '\n{"custom_id": "a"}',
            "line 2 is not a request of a batch: Object missing required field `method`",
        ),
        (line("a", "/v1/files"), "asks for POST /v1/files; give POST /v1/chat/completions or /v1/embeddings"),
        (line("a", stream=True), "line 1 asks for a stream, which a batch cannot keep; remove it"),
        (line("a") + line("a"), "line 2 has the same custom_id as line 1; give each its own"),
    ],
)
def test_a_wrong_line_is_named_and_nothing_is_asked(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "night.jsonl"
    path.write_text(text)
    done = CliRunner().invoke(cli, ["batch", str(path)])
    assert why in str(done.exception)
    assert not path.with_suffix(".results.jsonl").exists()
