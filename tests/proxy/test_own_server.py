"""`serve --start`: the server runs as a child of the daemon, is restarted, and ends with it."""

import json
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest

from clairvoyant_cli.config import ServeConfig, command_of
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.proxy.servers import own_server
from clairvoyant_cli.state.snapshot import Snapshot
from clairvoyant_cli.system import command_line
from tests.fakes.daemon_process import daemon_process
from tests.fakes.llamacpp_server import free_port
from tests.fakes.raw_http import post, raw_client
from tests.fakes.serving import serving, until

pytestmark = pytest.mark.posix

ROOT = Path(__file__).resolve().parents[2]
BODY = {"model": "replay:latest", "messages": [{"role": "user", "content": "river"}], "stream": False}
CHAT = post("/api/chat", json.dumps(BODY | {"options": {"num_predict": 3}}).encode())


def starting(port: int) -> str:
    """Return the command of a simulated Ollama, and where it finds its modules."""
    words = (sys.executable, "-m", "tests.fakes.replay_process", "--port", str(port))
    return f"PWD={ROOT} {command_line(words)}"


def test_variables_stand_before_the_command() -> None:
    assert command_of("A=1 B='two words' run --x=3") == ({"A": "1", "B": "two words"}, ["run", "--x=3"])
    for wrong in ("", "A=1", "run 'it", "cd models && serve"):
        with pytest.raises(ClairvoyantError, match="start must be a command"):
            ServeConfig(start=wrong)


def test_a_program_is_found_from_its_folder_and_its_path(tmp_path: Path) -> None:
    (server := tmp_path / "server").touch(0o755)
    assert own_server.program_of(f"PWD={tmp_path} ./server a") == (str(server), ["a"], {"PWD": str(tmp_path)})
    assert own_server.program_of(f"PATH={tmp_path} server")[0] == str(server)
    for wrong, why in (("PWD=none server", "in none: no such folder"), (str(tmp_path), "not found")):
        with pytest.raises(ClairvoyantError, match=why):
            own_server.program_of(wrong)


def children(word: str) -> list[psutil.Process]:
    """Return the processes below this one with a word on their command line; other tests have theirs."""
    found = psutil.Process().children(recursive=True)
    return [each for each in found if each.status() != "zombie" and word in " ".join(each.cmdline())]


def restarted(port: int, child: psutil.Process, state: Snapshot) -> bool:
    return any(each != child for each in children(str(port)))


async def test_requests_wait_for_the_child_and_for_its_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_server, "FIRST_PAUSE_S", 0.1)
    port = free_port()
    async with serving(f"http://127.0.0.1:{port}", start=starting(port)) as daemon:
        for _ in range(2):
            async with raw_client(daemon.base_url) as client:
                client.send(CHAT)
                assert (await client.response()).status == 200
            [child] = children(str(port))
            child.kill()
            await until(daemon, partial(restarted, port, child))
    assert not children(str(port))


async def test_a_program_that_is_missing_is_an_error() -> None:
    with pytest.raises(ClairvoyantError, match="cannot start no-such-server: not found"):
        async with serving(f"http://127.0.0.1:{free_port()}", start="no-such-server serve"):
            pass


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no process groups")
async def test_what_a_killed_server_started_is_ended_before_its_restart() -> None:
    command = "sh -c 'sleep 999 & sleep 999'"
    async with serving(f"http://127.0.0.1:{free_port()}", start=command) as daemon:
        await until(daemon, lambda _: len(children("sleep 999")) > 1)
        family = children("sleep 999")
        family[0].kill()
        await until(daemon, lambda _: not any(map(psutil.Process.is_running, family)))


@pytest.mark.skipif(sys.platform == "win32", reason="process groups")
@pytest.mark.parametrize("number", [signal.SIGTERM, 9])  # SIGKILL, which Windows has not
def test_the_child_ends_with_the_daemon(tmp_path: Path, number: int) -> None:
    port = free_port()
    flags = ("--start", starting(port), "--log-file", str(tmp_path / "log"))
    with daemon_process(f"http://127.0.0.1:{port}", *flags, home=tmp_path) as daemon:
        (child,) = psutil.Process(daemon.pid).children()
        await_text(tmp_path / "log.server", lambda text: str(port) in text, child)
        assert not (tmp_path / "log.server").stat().st_mode & 0o077
        daemon.signal(number)
        daemon.wait()
    assert not psutil.wait_procs([child], timeout=30)[1]


@pytest.mark.skipif(sys.platform == "win32", reason="process groups")
def test_a_server_behind_a_shell_ends_with_a_daemon_that_is_killed(tmp_path: Path) -> None:
    flags = ("--start", "sh -c 'sleep 4321 & echo started; wait'", "--log-file", str(tmp_path / "log"))
    with daemon_process(f"http://127.0.0.1:{free_port()}", *flags, home=tmp_path) as daemon:
        (shell,) = psutil.Process(daemon.pid).children()
        await_text(tmp_path / "log.server", lambda text: "started" in text, shell)
        (sleeper,) = shell.children()
        daemon.signal(signal.SIGKILL)
        daemon.wait()
    assert not psutil.wait_procs([shell, sleeper], timeout=30)[1]


def test_what_a_server_prints_is_bounded_and_its_end_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_server, "MAX_OUTPUT_BYTES", 1000)
    monkeypatch.setattr(own_server, "PIECE_BYTES", 100)
    reads, writes = os.pipe()
    os.write(writes, b"x" * 5000 + b"the end")
    os.close(writes)
    own_server.keep_output(os.fdopen(reads, "rb"), tmp_path / "log")
    kept = (tmp_path / "log.1").read_bytes() + (tmp_path / "log").read_bytes()
    assert 1000 < len(kept) < 2500
    assert kept.endswith(b"xthe end")


def await_text(path: Path, holds: Callable[[str], bool], child: psutil.Process) -> None:
    while not holds(path.read_text()):
        assert child.is_running()
        os.sched_yield()
