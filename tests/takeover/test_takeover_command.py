"""`clairvoyant takeover` of a simulated Ollama, with a real proxy in the background."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import psutil
import pytest
from click.testing import CliRunner, Result

from clairvoyant_cli.commands import service, takeover
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.state.client import running_daemons, state_dir
from clairvoyant_cli.takeover import journal, moves, servers
from tests.fakes.commands import FakeCommands
from tests.fakes.llamacpp_server import free_port

ROOT = Path(__file__).resolve().parents[2]
BODY = {"model": "replay:latest", "messages": [{"role": "user", "content": "river"}], "stream": False}


class Ollama:
    """A simulated Ollama at a port; `own` is the address of the proxy that takes its place."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.own = f"127.0.0.1:{free_port()}"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.fakes.replay_process", "--decode", "20"],
            cwd=ROOT,
            env=os.environ | {"OLLAMA_HOST": f"127.0.0.1:{self.port}", "OLLAMA_NUM_PARALLEL": "3"},
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def take_over(self, *options: str, answer: str = "") -> Result:
        words = ["ollama", "--backend", self.url, *options, "--", "--listen", self.own]
        return CliRunner().invoke(takeover.command, words, input=answer)

    def ask(self, tokens: int = 3) -> int:
        """Ask for an answer of at most `tokens` tokens; return its HTTP status."""
        body = BODY | {"options": {"num_predict": tokens}}
        return httpx.post(f"{self.url}/api/chat", json=body, timeout=30).status_code

    def is_taken_over(self) -> bool:
        return httpx.get(f"{self.url}/_clairvoyant/health").is_success


def undo(*options: str) -> Result:
    return CliRunner().invoke(takeover.command, ["--undo", "--yes", *options])


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def ollama(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ollama]:
    monkeypatch.setattr(takeover, "service_manager_runs", lambda: False)
    started: list[subprocess.Popen[bytes]] = []

    def kept(*words: Any, **settings: Any) -> None:
        started.append(subprocess.Popen(*words, **settings))

    monkeypatch.setattr(moves, "subprocess", SimpleNamespace(Popen=kept, DEVNULL=subprocess.DEVNULL))
    server = Ollama()
    with server.process:
        yield server
        server.process.kill()
    for process in started:  # what runs in the background; the proxy's own server ends with it
        process.kill()
        process.wait()


def test_dry_run_and_a_declined_prompt_change_nothing(ollama: Ollama) -> None:
    for done in (ollama.take_over("--dry-run"), ollama.take_over(answer="n\n")):
        assert f"Ollama moves from 127.0.0.1:{ollama.port}" in done.output
        assert f"--listen=127.0.0.1:{ollama.port}" in done.output
        assert "OLLAMA_HOST=127.0.0.1:" in done.output
    assert not journal.journal_path().exists()
    assert not ollama.is_taken_over()


def test_takeover_and_undo(ollama: Ollama) -> None:
    done = ollama.take_over("--yes")
    assert done.exit_code == 0, done.output
    assert ollama.process.wait(30) is not None
    assert ollama.is_taken_over()
    assert ollama.ask() == 200
    with httpx.stream("GET", f"http://{ollama.own}/_clairvoyant/state") as state:
        [backend] = json.loads(state.read())["backends"]
    assert (backend["name"], backend["kind"]) == ("ollama", "ollama")
    again = ollama.take_over("--yes")
    assert isinstance(again.exception, ClairvoyantError)
    assert "clairvoyant takeover --undo" in str(again.exception)
    assert undo().exit_code == 0
    assert sys.platform == "win32" or not (state_dir() / "Logs/takeover.out").stat().st_mode & 0o077
    assert ollama.ask() == 200
    assert not ollama.is_taken_over()
    assert "No takeover is in place." in undo().output


@pytest.mark.parametrize("step", ["settings", "proxy", "server"])
def test_undo_after_a_crash_at_any_step(ollama: Ollama, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    write = journal.write

    def crash(record: journal.Takeover, begun: str) -> None:
        write(record, begun)
        if begun == step:
            raise KeyboardInterrupt

    with monkeypatch.context() as crashing:
        crashing.setattr(journal, "write", crash)
        crashing.setattr(takeover, "_put_back", lambda *_, **__: None)  # a killed process does nothing more
        assert ollama.take_over("--yes").exit_code == 1
    assert undo().exit_code == 0
    assert ollama.ask() == 200
    assert not ollama.is_taken_over()
    assert not journal.journal_path().exists()


def test_a_takeover_that_fails_is_undone(ollama: Ollama, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*words: Any, proxied: bool) -> str:
        if proxied:
            raise ClairvoyantError("clients would miss something")
        return await servers.fault(*words, proxied=proxied)

    monkeypatch.setattr(takeover, "fault", fails)
    error = ollama.take_over("--yes").exception
    assert isinstance(error, ClairvoyantError)
    assert str(error) == "clients would miss something; everything is as it was"
    assert ollama.ask() == 200
    assert not ollama.is_taken_over()


def test_running_answers_are_waited_for(ollama: Ollama, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "BUSY_S", -1.0)  # this server sleeps between tokens where others compute
    with ThreadPoolExecutor() as pool:
        running = pool.submit(ollama.ask, 60)  # three seconds
        while not any(
            each.status == psutil.CONN_ESTABLISHED and each.laddr.port == ollama.port
            for each in psutil.net_connections("tcp")
        ):
            assert not running.done()
        done = ollama.take_over("--yes")
        assert running.result() == 200
    assert done.exit_code == 0, done.output


@pytest.mark.skipif(sys.platform == "win32", reason="systemd")
def test_a_systemd_unit_gets_a_drop_in(
    ollama: Ollama, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    units, pid_file = tmp_path / "units", tmp_path / "pid"
    drop_in = units / "ollama.service.d" / "zz-clairvoyant.conf"
    monkeypatch.setattr(moves, "SYSTEM_UNITS", units)
    monkeypatch.setattr(moves, "account", lambda: "1000")
    monkeypatch.setattr(servers, "_unit", lambda *_: "ollama.service")
    commands = FakeCommands(tmp_path / "bin", monkeypatch)
    commands.add("systemctl")
    pid_file.write_text(str(ollama.process.pid))
    restart = f"""case "$*" in *restart*)
        kill $(cat {pid_file}); OLLAMA_HOST=127.0.0.1:{ollama.port}
        [ ! -f {drop_in} ] || OLLAMA_HOST=$(sed -n s/Environment=OLLAMA_HOST=//p {drop_in})
        export OLLAMA_HOST; cd {ROOT}
        {sys.executable} -m tests.fakes.replay_process >/dev/null 2>&1 & echo $! > {pid_file};;
    esac
    """
    with (commands.directory / "systemctl").open("a") as script:
        script.write(restart)
    (commands.directory / "sudo").write_text('#!/bin/sh\nexec "$@"\n')
    (commands.directory / "sudo").chmod(0o755)
    try:
        done = ollama.take_over("--yes")
        assert done.exit_code == 0, done.output
        assert "sudo systemctl restart ollama.service" in done.output
        assert drop_in.read_text().startswith("[Service]\nEnvironment=OLLAMA_HOST=127.0.0.1:")
        assert ollama.is_taken_over()
        assert ollama.ask() == 200
        assert undo().exit_code == 0
        assert not drop_in.exists()
        assert not ollama.is_taken_over()
        assert ollama.ask() == 200
    finally:
        os.kill(int(pid_file.read_text()), signal.SIGKILL)
    asked = [call for call in commands.calls if "show" not in call]
    assert asked == ["systemctl daemon-reload", "systemctl restart ollama.service"] * 2


@pytest.mark.skipif(sys.platform != "linux", reason="systemd")
def test_a_service_keeps_its_flags_and_is_restored(
    ollama: Ollama, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takeover, "service_manager_runs", lambda: True)
    unit, pid_file = tmp_path / "systemd/user/clairvoyant.service", tmp_path / "pid"
    commands = FakeCommands(tmp_path / "bin", monkeypatch)
    commands.add("systemctl")
    end = f"[ ! -f {pid_file} ] || {{ kill $(cat {pid_file}); while kill -0 $(cat {pid_file}); do :; done; }}"
    start = f'sh -c "exec $(sed -n s/ExecStart=//p {unit})" & echo $! > {pid_file}'
    with (commands.directory / "systemctl").open("a") as script:
        script.write(f'exec >/dev/null 2>&1\ncase "$*" in *restart*) {end}; {start};; esac\n')
    flags = ["--listen", ollama.own, "--backend", ollama.url, "--policy", "fcfs"]
    assert CliRunner().invoke(service.command, ["install", "--yes", "--", *flags]).exit_code == 0
    before = unit.read_text()
    try:
        while not running_daemons():
            assert psutil.pid_exists(int(pid_file.read_text()))
        done = CliRunner().invoke(takeover.command, ["ollama", "--backend", ollama.url, "--yes"])
        assert done.exit_code == 0, (done.output, done.exception)
        assert "--policy=fcfs" in unit.read_text()
        assert ollama.is_taken_over()
        assert ollama.ask() == 200
        with monkeypatch.context() as crashing:
            crashing.setattr(service, "run_actions", interrupt)
            assert undo().exit_code == 1
        assert unit.read_text() == before  # but the service runs with the flags of the takeover
        assert undo().exit_code == 0
        assert unit.read_text() == before
        assert not ollama.is_taken_over()
        assert ollama.ask() == 200
    finally:
        os.kill(int(pid_file.read_text()), signal.SIGKILL)


def test_the_flags_of_a_daemon_that_is_not_the_service_are_not_taken(
    ollama: Ollama, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takeover, "service_manager_runs", lambda: True)
    monkeypatch.setattr(takeover, "written_text", lambda _: "[Unit]")
    daemon = SimpleNamespace(pid=os.getpid())
    again = "then run: clairvoyant takeover ollama"
    for found in ([daemon], [daemon] * 2):
        monkeypatch.setattr(takeover, "running_daemons", lambda found=found: found)
        assert str(ollama.take_over("--yes").exception).endswith(again)
    monkeypatch.setattr(takeover, "written_text", lambda _: None)
    words = ["python", "clairvoyant", "serve", "--backend", "ollama", "--policy", "fcfs"]
    monkeypatch.setattr(psutil.Process, "cmdline", lambda _: words)
    error = str(ollama.take_over("--yes").exception)
    assert error.endswith(f"end it (kill {os.getpid()} {os.getpid()}), {again} -- --policy=fcfs")


def test_server_of_another_service_is_not_moved(ollama: Ollama, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_unit", lambda *_: "docker.service")
    error = ollama.take_over("--yes").exception
    assert isinstance(error, ClairvoyantError)
    assert "docker.service runs Ollama; set another port there" in str(error)
    assert not journal.journal_path().exists()


def test_other_machines_need_keys(ollama: Ollama, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers.RunningServer, "address", f"[::]:{ollama.port}")
    error = ollama.take_over("--yes").exception
    assert isinstance(error, ClairvoyantError)
    assert "takeover ollama -- --clients FILE --admin-token-file FILE" in str(error)


def test_a_server_that_does_not_answer_is_an_error() -> None:
    words = ["ollama", "--backend", f"http://127.0.0.1:{free_port()}", "--yes"]
    error = CliRunner().invoke(takeover.command, words).exception
    assert isinstance(error, ClairvoyantError)
    assert "start it: ollama serve" in str(error)


def test_server_kind_or_undo_is_required() -> None:
    error = CliRunner().invoke(takeover.command, []).exception
    assert "ollama, llamacpp, lmstudio; or give --undo" in str(error)
