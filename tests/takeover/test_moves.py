"""The commands that move a server, the files that they write, and how a server is found."""

import os
import shutil
import socket
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from click.testing import CliRunner

from clairvoyant_cli.commands.takeover import command as takeover
from clairvoyant_cli.config import command_of
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.takeover import moves, servers
from clairvoyant_cli.takeover.journal import Takeover, held, journal_path, read, write
from clairvoyant_cli.takeover.servers import RunningServer, free_port_after

SYSTEMD = Takeover("ollama", "127.0.0.1:11434", 11435, (), service=True, unit="ollama.service")
UNIT = "[Service]\nExecStart=/bin/true serve\nEnvironment=OLLAMA_KEEP_ALIVE=1h\n"


class Process:
    """A process as psutil has it."""

    pid = os.getpid()

    def __init__(self, words: list[str], environment: dict[str, str]) -> None:
        self.words, self.variables = words, environment

    def cmdline(self) -> list[str]:
        return list(self.words)

    def exe(self) -> str:
        return f"/opt/{self.words[0]}"

    def cwd(self) -> str:
        return "/srv/my models"

    def environ(self) -> dict[str, str]:
        return self.variables

    def parent(self) -> None:
        """It has none."""


def running(kind: str, process: object) -> RunningServer:
    return RunningServer(kind, kind, "127.0.0.1", 8080, frozenset(), process, "")


def test_the_drop_in_sets_the_address_of_the_server_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moves, "SYSTEM_UNITS", tmp_path)
    monkeypatch.setattr(moves, "account", lambda: "0")
    (tmp_path / "ollama.service").write_text(UNIT)
    folder = tmp_path / "ollama.service.d"
    folder.mkdir()
    (folder / "override.conf").write_text("[Service]\nEnvironment=OLLAMA_HOST=0.0.0.0\n")
    write_it, reload = moves.preparing(SYSTEMD)
    assert str(reload) == "systemctl daemon-reload"
    for _ in range(2):  # repeatable
        subprocess.run(write_it.words, check=True)
    files = sorted(folder.iterdir())
    assert files[-1].read_text() == "[Service]\nEnvironment=OLLAMA_HOST=127.0.0.1:11435\n"
    verify = shutil.which("systemd-analyze")
    if verify is not None:
        found = os.environ | {"SYSTEMD_UNIT_PATH": f"{tmp_path}:"}
        done = subprocess.run(
            [verify, "verify", "ollama.service"], env=found, capture_output=True, check=False
        )
        assert b"clairvoyant" not in done.stderr
        assert done.returncode == 0, done.stderr
    remove, _ = moves.restoring(SYSTEMD)
    subprocess.run(remove.words, check=True)
    assert list(folder.iterdir()) == [folder / "override.conf"]
    assert moves.restoring(SYSTEMD) == []


def test_lm_studio_moves_by_its_own_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/opt/{name}")
    record = Takeover("lmstudio", "127.0.0.1:1234", 1235, (), service=False)
    assert list(map(str, moves.moving(record))) == [
        "/opt/lms server stop",
        "/opt/lms server start --port 1235",
    ]
    assert str(moves.returning(record)[1]) == "/opt/lms server start --port 1234"
    assert moves.preparing(record) == moves.restoring(record) == []


def test_a_server_is_started_with_its_own_variables_and_only_it_gets_the_address() -> None:
    variables = {"OLLAMA_HOST": "0.0.0.0", "OLLAMA_MODELS": "/a b", "EDITOR": "vi", "HOME": "/root"}  # noqa: S104
    server = running("ollama", Process(["ollama", "serve"], variables))
    kept, words = command_of(server.command(11435))
    assert words == ["/opt/ollama", "serve"]
    assert kept == {
        "OLLAMA_HOST": "127.0.0.1:11435",
        "OLLAMA_MODELS": "/a b",
        "HOME": "/root",
        "PWD": "/srv/my models",
    }
    assert command_of(server.command())[0]["OLLAMA_HOST"] == "127.0.0.1:8080"  # whatever this shell has


def test_llamacpp_moves_by_flags_and_is_not_reachable_from_other_machines() -> None:
    given = ["/bin/llama-server", "-m", "m.gguf", "--host", "0.0.0.0", "--port", "8080"]  # noqa: S104
    server = running("llamacpp", Process(given, {}))
    assert command_of(server.command(8081))[1] == [*given, "--host", "127.0.0.1", "--port", "8081"]
    assert command_of(server.command())[1] == given


def test_a_secret_is_not_put_on_a_command_line() -> None:
    server = running("llamacpp", Process(["/bin/llama-server"], {"LLAMA_API_KEY": "river"}))
    with pytest.raises(ClairvoyantError, match="LLAMA_API_KEY in its environment"):
        server.command(8081)


def test_the_desktop_app_that_started_a_server_is_found() -> None:
    app = ["/Applications/Ollama.app/Contents/MacOS/Ollama"]
    for parent, found in ((app, tuple(app)), (["-zsh"], ()), ([], ())):
        server = Process(["ollama", "serve"], {})
        server.parent = lambda words=parent: Process(words, {})  # type: ignore[method-assign, assignment, misc]
        assert running("ollama", server).app == found


def test_allowed_web_pages_are_taken_over() -> None:
    process = Process(["ollama", "serve"], {"OLLAMA_ORIGINS": "https://chat.example,wrong origin"})
    assert running("ollama", process).origins == ["https://chat.example"]


@pytest.mark.parametrize(
    ("groups", "unit"),
    [
        ("0::/system.slice/ollama.service\n", "ollama.service"),
        ("1:cpu:/\n0::/user.slice/user-1000.slice/session-2.scope\n", ""),
        ("0::/user.slice/user-1.slice/user@1.service/app.slice/ollama.service\n", "user unit ollama.service"),
        ("0::/system.slice/docker.service\n", "docker.service"),  # docker-proxy, at a published port
        ("", ""),
    ],
)
def test_systemd_unit_is_read_from_the_control_group(
    monkeypatch: pytest.MonkeyPatch, groups: str, unit: str
) -> None:
    monkeypatch.setattr(servers, "_control_groups", lambda _: groups)  # ours, too
    assert servers._unit("ollama", psutil.Process()) == unit


def test_a_server_in_a_container_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = {1: "0::/system.slice/docker-1.scope"}
    monkeypatch.setattr(servers, "_control_groups", lambda pid: groups.get(pid, ""))
    with pytest.raises(ClairvoyantError, match="runs in a container"):
        servers._unit("ollama", psutil.Process(1))


def test_the_journal_is_replaced_at_once_and_is_private() -> None:
    assert read() is None
    for step in ("proxy", "server"):
        write(SYSTEMD, step)
        assert read() == replace(SYSTEMD, step=step)
    assert [each.name for each in journal_path().parent.iterdir()] == ["takeover.json"]
    assert journal_path().stat().st_mode & 0o077 == 0
    journal_path().write_text("{")
    with pytest.raises(ClairvoyantError, match="cannot read"):
        read()


def test_the_next_free_port() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert free_port_after(port - 1) > port


def test_what_the_desktop_app_computes_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    computed_s = {"app": 0.0, "server": 1.0}

    def cpu_times(name: str) -> SimpleNamespace:
        computed_s["app"] += 9.0
        return SimpleNamespace(user=computed_s[name], system=0.0)

    app = SimpleNamespace(cmdline=lambda: ["/opt/ollama app.exe"], cpu_times=lambda: cpu_times("app"))
    process = SimpleNamespace(
        parent=lambda: app, children=lambda recursive: [], cpu_times=lambda: cpu_times("server")
    )
    connected = SimpleNamespace(
        status=psutil.CONN_ESTABLISHED, laddr=SimpleNamespace(ip="127.0.0.1", port=8080)
    )
    monkeypatch.setattr(servers, "_connections", lambda: [connected])
    monkeypatch.setattr(servers, "SAMPLE_S", 0.0)
    server = running("ollama", process)
    assert server.processes() == [app, process]
    assert not server.is_answering()
    process.cpu_times = lambda: cpu_times("app")
    assert server.is_answering()


@pytest.mark.parametrize(
    ("listening", "reached"),
    [
        (["127.0.0.2", "127.0.0.1"], "127.0.0.1"),
        (["::1", "127.0.0.1"], "127.0.0.1"),
        (["0.0.0.0", "127.0.0.1"], "127.0.0.1"),  # noqa: S104 - compared
        (["127.0.0.2", "::", "0.0.0.0"], "0.0.0.0"),  # noqa: S104 - compared
        (["::1", "::"], "::"),
        (["127.0.0.2"], None),
    ],
)
def test_the_socket_that_the_address_reaches_is_the_servers(
    monkeypatch: pytest.MonkeyPatch, listening: list[str], reached: str | None
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        sockets = [
            SimpleNamespace(status=psutil.CONN_LISTEN, pid=number, laddr=SimpleNamespace(ip=ip, port=port))
            for number, ip in enumerate(listening, 1)
        ]
        monkeypatch.setattr(servers, "_connections", lambda: sockets)
        found = servers._reached("127.0.0.1", port)
    assert (found and found.laddr.ip) == reached


def test_one_takeover_at_a_time() -> None:
    with held():
        done = CliRunner().invoke(takeover, ["--undo", "--yes"])
        assert "another takeover or undo is running" in str(done.exception)
    assert CliRunner().invoke(takeover, ["--undo", "--yes"]).exit_code == 0
