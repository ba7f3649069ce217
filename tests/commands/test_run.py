"""`clairvoyant run`: the command is as without it, but for the way of its requests."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from clairvoyant_cli.commands.env import past_proxies
from clairvoyant_cli.commands.run import _told
from clairvoyant_cli.proxy.composition import Daemon
from tests.fakes.replay_backend import Engine
from tests.fakes.serving import replaying
from tests.tui.board import busy

NOWHERE = "http://127.0.0.1:9"
WITHOUT_DEFAULT = f"""
import clairvoyant_cli.state.client as client
client.DEFAULT_URL = {NOWHERE!r}
from clairvoyant_cli.main import main
main()
"""
ASKS = """
import json, os, sys, urllib.request
asked = {"model": "replay", "prompt": "hello", "stream": False, "options": {"num_predict": 3}}
body = json.dumps(asked).encode()
urllib.request.urlopen(os.environ["OLLAMA_HOST"] + "/api/generate", body).read()
env = os.environ
print(env["OPENAI_BASE_URL"], env["ANTHROPIC_BASE_URL"], "ANTHROPIC_API_KEY" in env, input())
sys.exit(7)
"""
COUNTS = """
import signal
seen = []
signal.signal(signal.SIGINT, lambda *_: seen.append(1))
print("ready", flush=True)
print("then", input(), len(seen), flush=True)
"""
ENDS = """
import signal, sys, threading
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
print("ready", flush=True)
signal.pause()
"""


def environment(home: Path, **more: str) -> dict[str, str]:
    folders = dict.fromkeys(("HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"), str(home))
    return {"PATH": "/usr/bin:/bin", "ANTHROPIC_API_KEY": "sk-a-real-one"} | folders | more


async def started(home: Path, *words: str, **more: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", WITHOUT_DEFAULT, "run"),
        *words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(home, **more),
    )


async def ran(home: Path, *words: str, stdin: bytes = b"", **more: str) -> tuple[int | None, str, str]:
    process = await started(home, *words, **more)
    out, err = await process.communicate(stdin)
    return process.returncode, out.decode(), err.decode()


@asynccontextmanager
async def proxy() -> AsyncIterator[Daemon]:
    async with replaying(Engine(1)) as daemon:
        yield daemon


async def test_a_command_asks_through_the_proxy_with_its_own_input_and_exit_code(tmp_path: Path) -> None:
    async with proxy() as daemon:
        url = daemon.base_url
        words = ("--url", url, "--", sys.executable, "-c", ASKS)
        code, out, err = await ran(tmp_path, *words, stdin=b"typed\n")
        assert (code, out) == (7, f"{url}/v1 {url} False typed\n")
        assert err == "clairvoyant: 1 request waited 0.0 s in all, as in arrival order\n"
        assert await ran(tmp_path, "-q", *words, stdin=b"typed\n") == (7, out, "")


async def test_a_signal_reaches_the_command_and_its_end_by_one_is_passed_on(tmp_path: Path) -> None:
    async with proxy() as daemon:
        words = ("run", "-q", "--url", daemon.base_url, "--")
        command = (sys.executable, "-m", "clairvoyant_cli", *words)
        code, _, _ = await ran(tmp_path, *words[1:], "sh", "-c", "kill -KILL $$")
        assert code == -signal.SIGKILL
        process = await asyncio.create_subprocess_exec(
            *command, sys.executable, "-c", ENDS, stdout=subprocess.PIPE, env=environment(tmp_path)
        )
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        process.terminate()
        assert await process.wait() == 9


async def test_ctrl_c_in_the_terminal_reaches_the_command_once(tmp_path: Path) -> None:
    on_terminal = "import pty, os, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
    async with proxy() as daemon:
        words = (
            "-m",
            "clairvoyant_cli",
            "run",
            "-q",
            "--url",
            daemon.base_url,
            "--",
            sys.executable,
            "-c",
            COUNTS,
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            on_terminal,
            sys.executable,
            *words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(tmp_path),
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\r\n"
        process.stdin.write(b"\x03")
        process.stdin.write(b"x\n")
        assert b"then x 1\r\n" in await process.stdout.read()
        assert await process.wait() == 0


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (("--", "no-such-command"), 127, "there is no command 'no-such-command'"),
        (("--url", NOWHERE, "true"), 3, "no daemon answers at"),
        (("--", "true"), 3, "start one with: clairvoyant serve"),
    ],
)
async def test_errors_are_one_line(tmp_path: Path, words: tuple[str, ...], code: int, line: str) -> None:
    found, out, err = await ran(tmp_path, *words, CLAIRVOYANT_SERVE_SLOTS="-1")
    assert (found, out) == (code, "")
    assert err.count("\n") == 1
    assert line in err


def test_saved_time_is_the_difference_of_the_totals() -> None:
    then = busy()
    before = replace(
        then, gain=replace(then.gain, answers_today=100, waited_today_s=50.0, saved_today_s=70.0)
    )

    def told(answers: int, waited_s: float, saved_s: float, queued: int = 12) -> str:
        gain = replace(then.gain, answers_today=answers, waited_today_s=waited_s, saved_today_s=saved_s)
        counters = replace(then.counters, submitted=then.counters.submitted + queued)
        return _told(before, replace(then, gain=gain, counters=counters))

    assert told(112, 91.0, 150.0) == "12 requests waited 41 s in all, 1 min 20 s less than in arrival order"
    assert told(102, 52.0, 68.0) == "2 of 12 requests waited 2.0 s in all, 2.0 s more than in arrival order"
    assert told(12, 20.0, 0.0) == "12 requests waited 20 s in all, as in arrival order", "after midnight"
    assert told(100, 50.0, 70.0, 3) == "3 requests, none compared with arrival order"
    assert _told(before, None) == ""


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ({}, None),
        ({"HTTP_PROXY": "http://proxy:3128"}, "127.0.0.1"),
        (
            {"all_proxy": "http://proxy:3128", "no_proxy": "10.0.0.1, a.example"},
            "10.0.0.1,a.example,127.0.0.1",
        ),
        ({"http_proxy": "http://proxy:3128", "NO_PROXY": "*"}, "*"),
    ],
)
def test_requests_are_not_sent_to_the_proxy_of_an_environment(
    named: dict[str, str], expected: str | None
) -> None:
    kept = past_proxies("http://127.0.0.1:7117", named)
    assert kept == ({} if expected is None else {"NO_PROXY": expected, "no_proxy": expected})
