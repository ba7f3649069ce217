"""`clairvoyant run`: the command is as without it, but for the way of its requests."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from clairvoyant_lab.asgi_server import serve_app

from clairvoyant_cli.commands.env import past_proxies
from clairvoyant_cli.commands.run import _told
from clairvoyant_cli.proxy.composition import Daemon
from tests.fakes.replay_backend import Engine, Replay
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
SHOWS_DAEMON = """
import glob, os
(file,) = glob.glob(os.environ["XDG_STATE_HOME"] + "/clairvoyant/daemon-*.json")
print(open(file).read())
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


async def test_a_proxy_is_started_and_ends_after_the_command(tmp_path: Path) -> None:
    async with serve_app(Replay(Engine(1)).app) as url:
        words = ("--", sys.executable, "-c", SHOWS_DAEMON)
        code, out, err = await ran(tmp_path, *words, CLAIRVOYANT_SERVE_BACKEND=url)
        assert (code, err) == (0, "clairvoyant: no request reached the queue\n")
        pid = json.loads(out)["pid"]
        if psutil.pid_exists(pid):
            await asyncio.to_thread(psutil.Process(pid).wait, 60)
    assert "stopped" in (tmp_path / "clairvoyant/run.log").read_text()


async def test_commands_that_start_together_share_one_proxy(tmp_path: Path) -> None:
    async with serve_app(Replay(Engine(1)).app) as url:
        shows = "import os; print(os.environ['OLLAMA_HOST'], flush=True); input()"
        words = ("-q", "--", sys.executable, "-c", shows)
        both = [await started(tmp_path, *words, CLAIRVOYANT_SERVE_BACKEND=url) for _ in "ab"]
        found = [await process.stdout.readline() for process in both if process.stdout is not None]
        assert found[0].startswith(b"http://127.0.0.1:")
        assert found == [found[0]] * 2
        for process in both:
            await process.communicate(b"x\n")
        assert [process.returncode for process in both] == [0, 0]


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
async def test_a_command_keeps_its_proxy_if_run_is_killed(tmp_path: Path) -> None:
    async with serve_app(Replay(Engine(1)).app) as url:
        process = await started(
            tmp_path, "-q", "--", sys.executable, "-c", ASKS_AGAIN, CLAIRVOYANT_SERVE_BACKEND=url
        )
        assert process.stdin is not None
        assert process.stdout is not None
        command, proxy = json.loads(await process.stdout.readline())
        process.kill()
        # The proxy looks at its leases twice a second: it has seen that `run` is gone by the third look.
        await asyncio.to_thread(sees_looks, tmp_path, 3)
        assert psutil.pid_exists(proxy)
        psutil.Process(command).kill()
        await asyncio.to_thread(psutil.Process(proxy).wait, 60)


ASKS_AGAIN = """
import glob, json, os, time
(file,) = glob.glob(os.environ["XDG_STATE_HOME"] + "/clairvoyant/daemon-*.json")
print(json.dumps([os.getpid(), json.load(open(file))["pid"]]), flush=True)
time.sleep(600)
"""


def sees_looks(home: Path, count: int) -> None:
    """Return once dead leases were removed `count` times, which each look does."""
    for number in range(count):
        lease = home / "clairvoyant" / "run" / f"{number}999999"
        lease.write_text("[]")
        while lease.exists():
            os.sched_yield()


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (("--", "no-such-command"), 127, "there is no command 'no-such-command'"),
        (("--url", NOWHERE, "true"), 3, "no daemon answers at"),
        (("--", "true"), 1, "the proxy did not start: "),
    ],
)
async def test_errors_are_one_line(tmp_path: Path, words: tuple[str, ...], code: int, line: str) -> None:
    found, out, err = await ran(tmp_path, *words, CLAIRVOYANT_SERVE_SLOTS="-1")
    assert (found, out) == (code, "")
    assert err.count("\n") == 1
    assert line in err


async def test_a_lock_that_cannot_be_taken_is_an_error_in_one_line(tmp_path: Path) -> None:
    lock = tmp_path / "clairvoyant/run.lock"
    lock.parent.mkdir()
    lock.write_bytes(b"no database" * 100)
    code, out, err = await ran(tmp_path, "--", "true")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert f"cannot lock {lock}: " in err


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
