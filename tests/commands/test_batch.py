"""`clairvoyant batch`: a batch file to its results, across stops and errors."""

import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from clairvoyant_cli.main import cli
from clairvoyant_cli.proxy.composition import Daemon
from tests.fakes.raw_http import Message
from tests.fakes.scripted_upstream import Conversation, answer
from tests.fakes.serving import between, until

CHAT, EMBED = "/v1/chat/completions", "/v1/embeddings"


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
                answer(b'{"error": {"message": "no"}}', status="400 No") if is_bad else answer(b'{"n": 1}')
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
        assert first["response"]["body"] == {"n": 1}
        assert first["id"] == "batch_req_" + first["response"]["request_id"] != "batch_req_"
        assert [each["response"]["status_code"] for each in run.kept("errors")] == [400]

        bad = False
        with run.path.with_suffix(".results.jsonl").open("a") as file:
            file.write('{"custom_id": "torn')
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
            it.send(answer(b"{}"))

    async with between(script, slots=1) as (daemon, _):
        run = Run(tmp_path / "night.jsonl", daemon)
        run.path.write_text(line("a") + line("b") + line("c"))
        process = await run.begin()
        state = await until(daemon, lambda s: len(s.queue) == 1 and len(s.running) == 1)
        [waits] = daemon.dispatcher.scheduler.waiting()
        assert (waits.background_levels, state.running[0].endpoint) == (10, CHAT)
        process.send_signal(signal.SIGINT)
        _, said = await process.communicate()
        assert (process.returncode, b"stopped, 3 requests left; run it again" in said) == (1, True)
        release.set()
        assert (await run.end())[0] == 0
        assert len(run.kept("results")) == 3


async def test_a_rejected_request_is_repeated(tmp_path: Path) -> None:
    answers = iter(["503 Busy", "429 Later", "200 OK"])

    async def script(it: Conversation) -> None:
        while True:
            await it.request()
            it.send(answer(b"{}", "Retry-After: 0", status=next(answers)))

    async with between(script) as (daemon, _):
        run = Run(tmp_path / "night.jsonl", daemon)
        run.path.write_text(line("a"))
        assert (await run.end())[0] == 0
    assert next(answers, None) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "line 1 is no request of a batch: Input data was truncated"),
        ('\n{"custom_id": "a"}', "line 2 is no request of a batch: Object missing required field `method`"),
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
