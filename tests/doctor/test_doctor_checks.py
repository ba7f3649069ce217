"""Each check of the doctor."""

import asyncio
import json
import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
from clairvoyant_lab.asgi_server import serve_app
from click.testing import CliRunner

from clairvoyant_cli import __version__
from clairvoyant_cli.backends.adapter import Found
from clairvoyant_cli.backends.adapters import adapter_of
from clairvoyant_cli.backends.priority import UNKNOWN, Heeding
from clairvoyant_cli.commands.doctor import command
from clairvoyant_cli.config import BackendConfig, ServeConfig
from clairvoyant_cli.doctor import installation
from clairvoyant_cli.doctor.backend import (
    CheckedServer,
    check_direct_clients,
    check_priority,
    check_server,
    direct_clients,
)
from clairvoyant_cli.doctor.finding import Finding, Level, exit_code_of
from clairvoyant_cli.doctor.proxy import check_clients, check_daemon, check_openness, check_port
from clairvoyant_cli.errors import ExitCode
from clairvoyant_cli.protocols.probes import EngineLoad
from clairvoyant_cli.proxy.daemon import running_daemon
from clairvoyant_cli.state.snapshot import (
    BackendState,
    Counters,
    PredictorState,
    SessionsState,
    SessionState,
    Snapshot,
    TauState,
)
from clairvoyant_cli.takeover.journal import Takeover, write
from predictor import load
from tests.fakes.llamacpp_server import free_port
from tests.fakes.replay_backend import Replay
from tests.fakes.serving import secret, serving

OLLAMA = CheckedServer(Found(adapter_of("ollama"), "http://127.0.0.1:11434", "", "0.40.0"), ("gemma3:4b",))

SNAPSHOT = Snapshot(
    taken_at=0.0,
    daemon_version=__version__,
    pid=1,
    listen="127.0.0.1:8080",
    mode="serving",
    uptime_s=1.0,
    policy="bounded",
    policies=("bounded",),
    tau=TauState(120.0),
    predictor=PredictorState("default"),
    backends=(BackendState("ollama", "ollama", "http://127.0.0.1:11434", "up", 1, 0),),
    running=(),
    queue=(),
    recent=(),
    stats=(),
    counters=Counters(),
    queue_capacity=1,
)


def worst(findings: list[Finding]) -> Level:
    return max(finding.level for finding in findings)


def test_the_worst_finding_decides_the_exit_code() -> None:
    levels = {Level.OK: ExitCode.OK, Level.NOTE: ExitCode.OK, Level.WARNING: ExitCode.WARNINGS}
    for level, code in (levels | {Level.BROKEN: ExitCode.FAILURE}).items():
        assert exit_code_of([Finding(Level.OK, "a", ""), Finding(level, "b", "")]) is code
    assert exit_code_of([]) is ExitCode.OK


def test_an_untested_python_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    assert installation.check_version().level is Level.OK
    monkeypatch.setattr(installation, "PYTHONS", ((3, 1), (3, 2)))
    assert installation.check_version().level is Level.WARNING


def test_a_server_without_models_is_a_warning() -> None:
    assert worst(list(check_server(OLLAMA))) is Level.OK
    empty = list(check_server(replace(OLLAMA, models=())))
    assert worst(empty) is Level.WARNING
    assert "ollama pull" in empty[-1].fix


def test_what_a_server_cannot_do_is_a_note_and_its_models_are_not_asked_for_where_that_disturbs() -> None:
    found = Found(adapter_of("llama-cpp-python"), "http://127.0.0.1:8000", "", "0.3.36")
    _, limits = check_server(CheckedServer(found, None))
    assert (limits.level, limits.topic) == (Level.NOTE, "limits")
    assert "--interrupt_requests False" in limits.text


def test_unknown_slots_of_an_unknown_server_can_be_measured() -> None:
    other = CheckedServer(Found(adapter_of("other"), "http://127.0.0.1:9000"), ("m",))
    (found,) = (each for each in check_server(other) if each.topic == "slots")
    assert "calibrate" in found.fix
    given = check_server(replace(other, settings=BackendConfig(slots=4)))
    assert "slots" not in {each.topic for each in given}


@pytest.mark.parametrize(
    ("told", "slots", "said"),
    [(4, None, ""), (2, 4, "queue inside"), (4, 2, "stay empty"), (4, 4, ""), (None, 3, "")],
)
def test_slots_that_differ_are_a_warning(told: int | None, slots: int | None, said: str) -> None:
    server = replace(OLLAMA, found=replace(OLLAMA.found, slots=told))
    warnings = [
        f
        for f in check_server(replace(server, settings=BackendConfig(slots=slots)))
        if f.level is Level.WARNING
    ]
    assert [f.fix.split("    ")[0] for f in warnings] == [f"clairvoyant serve --slots {told}"] * bool(said)
    assert all(said in finding.text for finding in warnings)


def test_missing_priority_scheduling_is_a_note_with_the_flag() -> None:
    vllm = adapter_of("vllm")
    server = CheckedServer(
        Found(vllm, "http://127.0.0.1:8000", "", "0.32.0", 8), ("m",), BackendConfig(slots=500)
    )
    heeds = replace(server, heeding=Heeding(known=True, priority=vllm.PRIORITY, why="it was started so"))
    heeds = replace(heeds, load=EngineLoad(running=2, waiting=3))
    assert worst([*check_server(heeds), *check_priority(heeds)]) is Level.OK
    assert "inside vLLM: 2 running, 3 waiting" in [each.text for each in check_priority(heeds)]
    *_, silent = check_priority(replace(heeds, load=None))
    assert (silent.level, silent.topic) == (Level.NOTE, "queue")
    assert "metrics_url" in silent.fix
    (without,) = check_priority(replace(server, heeding=Heeding(known=True, why="it was started without")))
    (unseen,) = check_priority(replace(server, heeding=UNKNOWN))
    assert worst([*check_priority(replace(heeds, heeding=replace(heeds.heeding, known=False)))]) is Level.NOTE
    assert without.level is unseen.level is Level.NOTE
    assert without.fix == "vllm serve MODEL --scheduling-policy priority"
    assert "--annotate on" in unseen.fix
    assert not list(check_priority(OLLAMA))


def test_variables_that_point_to_the_backend_are_a_warning() -> None:
    environment = {"OLLAMA_HOST": "127.0.0.1:11434", "OPENAI_BASE_URL": "http://127.0.0.1:8080/v1"}
    levels = {f.text.split()[0]: f.level for f in check_clients(environment, 8080, [11434])}
    assert levels == {"OLLAMA_HOST": Level.WARNING, "OPENAI_BASE_URL": Level.OK}
    assert worst(list(check_clients({}, 8080, [11434]))) is Level.NOTE
    assert not list(check_clients({"OLLAMA_HOST": "somewhere:nowhere"}, 8080, [11434]))


def test_the_proxy_may_take_the_place_of_a_server_with_direct_clients() -> None:
    (finding,) = check_direct_clients(11434, ["chat (pid 7)"], "ollama")
    assert finding.fix == "clairvoyant takeover ollama"


def test_direct_clients_are_found_by_their_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = {
        7: ["chat.exe", "--title", "clairvoyant queue"],
        9: ["ollama app.exe"],
        4: ["/usr/bin/python3", "-P", "-m", "clairvoyant_cli", "serve"],
        3: ["python3", "/opt/bin/clairvoyant", "calibrate"],
    }

    def connection(pid: int | None, port: int, status: str = psutil.CONN_ESTABLISHED) -> SimpleNamespace:
        return SimpleNamespace(pid=pid, raddr=SimpleNamespace(port=port), status=status)

    def process(pid: int) -> SimpleNamespace:
        if pid == 5:
            raise psutil.AccessDenied(pid)
        if pid == 6:
            return SimpleNamespace(name=lambda: "service.exe", cmdline=Mock(side_effect=psutil.AccessDenied))
        return SimpleNamespace(name=lambda: words[pid][0], cmdline=lambda: words[pid])

    open_ones = [
        *(connection(7, 11434), connection(7, 11434), connection(9, 11434), connection(5, 11434)),
        *(
            connection(8, 443),
            connection(6, 11434),
            connection(4, 11434),
            connection(3, 11434),
            connection(0, 11434, psutil.CONN_TIME_WAIT),
        ),
        SimpleNamespace(pid=6, raddr=(), status=psutil.CONN_LISTEN),
    ]
    monkeypatch.setattr(psutil, "Process", process)
    monkeypatch.setattr(psutil, "net_connections", lambda kind: open_ones)
    found = ["service.exe (pid 6)", "chat.exe (pid 7)", "ollama app.exe (pid 9)"]
    assert direct_clients(11434) == found

    def forbidden(kind: str) -> None:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil, "net_connections", forbidden)
    assert direct_clients(11434) == []


def test_a_serving_daemon_is_ok() -> None:
    assert worst(list(check_daemon(SNAPSHOT))) is Level.OK


@pytest.mark.parametrize(("stop_s", "advised"), [(7.0, True), (3.0, False), (None, False)])
def test_a_server_that_stops_reading_late_needs_smaller_batches(stop_s: float | None, advised: bool) -> None:
    server = BackendState(
        "a", "llamacpp", "http://a", "up", 1, 0, prefill_tokens_per_s=150.0, prompt_stop_s=stop_s
    )
    findings = list(check_daemon(replace(SNAPSHOT, backends=(server,))))
    assert any("--batch-size 512" in finding.fix for finding in findings) is advised


def session(state: str, tokens: float, broken: str = "", reread: float = 0.0) -> SessionState:
    told = SessionState("s1", "desk", state, 3, tokens, 0.0, 0.0)
    return replace(told, reread_tokens=reread, broken=broken)


@pytest.mark.parametrize(
    ("kind", "fix"),
    [
        ("llamacpp", "llama-server --cache-ram MIB"),
        ("ollama", "LLAMA_ARG_CACHE_RAM=MIB ollama serve"),
        ("vllm", "run fewer sessions at once"),
    ],
)
def test_a_cache_that_is_too_small_for_the_sessions(kind: str, fix: str) -> None:
    busy = (session("running", 20e3), session("held", 15e3), session("parked", 6e3), session("resting", 90e3))
    snapshot = replace(
        SNAPSHOT,
        backends=(BackendState("a", kind, "http://a", "up", 1, 1),),
        sessions=SessionsState(2, 1, room_tokens=18e3, listed=busy),
    )
    (found,) = [each for each in check_daemon(snapshot) if each.topic == "cache"]
    assert found.level is Level.NOTE
    assert found.text == "3 sessions have 41,000 tokens, the server's cache holds 18,000: they take turns"
    assert found.fix.startswith(fix)


@pytest.mark.parametrize(
    ("slots", "parked", "room", "contexts", "said"),
    [
        (1, 0, 18e3, 2, "they evict each other"),
        (2, 0, 18e3, 2, ""),
        (1, 0, 18e3, 1, ""),
        (1, 0, 50e3, 2, ""),
        (1, 0, None, 9, ""),
        (2, 1, 50e3, 2, "they take turns"),
    ],
    ids=["evicted", "a slot each", "alone", "room enough", "room unknown", "parked"],
)
def test_when_the_cache_is_too_small(
    slots: int, parked: int, room: float | None, contexts: int, said: str
) -> None:
    listed = tuple(session("held", 20e3) for _ in range(contexts))
    backends = (replace(SNAPSHOT.backends[0], slots=slots),)
    sessions = SessionsState(0, parked, room_tokens=room, listed=listed)
    findings = list(check_daemon(replace(SNAPSHOT, backends=backends, sessions=sessions)))
    assert [each.text.rpartition(": ")[2] for each in findings if each.topic == "cache"] == [said] * bool(
        said
    )


def test_the_sessions_that_read_most_again_are_named() -> None:
    broken = [session("resting", 1.0, f"its tools changed {n}", 1000.0 * n) for n in range(1, 6)]
    broken.append(session("resting", 1.0, "its system text changed between characters 1 and 90", 28140.0))
    findings = list(check_daemon(replace(SNAPSHOT, sessions=SessionsState(listed=tuple(broken)))))
    first, *rest = [each for each in findings if each.topic == "prefix"]
    assert first.level is Level.WARNING
    assert first.text == (
        "session s1 (desk) read 28,140 tokens again: its system text changed between characters 1 and 90"
    )
    assert first.fix.startswith("clairvoyant serve --stable-prefix known ")
    assert [(each.text[-1], each.fix) for each in rest] == [("5", ""), ("4", "")]


def test_daemon_problems_are_found() -> None:
    gone = replace(SNAPSHOT.backends[0], state="down")
    for snapshot, level in (
        (replace(SNAPSHOT, daemon_version="0.0.1"), Level.WARNING),
        (replace(SNAPSHOT, mode="paused"), Level.WARNING),
        (replace(SNAPSHOT, backends=(gone,)), Level.BROKEN),
    ):
        findings = list(check_daemon(snapshot))
        assert worst(findings) is level
        assert findings[-1].fix


def test_a_port_in_use_is_found() -> None:
    with socket.create_server(("127.0.0.1", free_port())) as listener:
        config = ServeConfig(listen=f"127.0.0.1:{listener.getsockname()[1]}")
        (finding,) = check_port(config, ours=False)
        assert finding.level is Level.BROKEN
        assert not list(check_port(config, ours=True))
    (finding,) = check_port(config, ours=False)
    assert finding.level is Level.OK


def test_keys_are_required_beyond_loopback() -> None:
    assert not list(check_openness(ServeConfig()))
    (finding,) = check_openness(ServeConfig(listen="0.0.0.0:8080"))
    assert finding.level is Level.BROKEN
    for keyed in (
        ServeConfig(listen="0.0.0.0:8080", api_key_file="a", admin_token_file="b"),  # noqa: S106
        ServeConfig(listen="0.0.0.0:8080", clients="a", admin_token_file="b"),  # noqa: S106
    ):
        (finding,) = check_openness(keyed)
        assert finding.level is Level.NOTE


def test_readable_secrets_are_a_warning(tmp_path: Path) -> None:
    key = tmp_path / "keys"
    key.write_text("me:secret")
    key.chmod(0o644)
    config = ServeConfig(api_key_file=str(key), admin_token_file=str(tmp_path / "missing"))
    told = {f.text.split()[0]: f.level for f in installation.check_files(config) if f.level > Level.OK}
    assert told == {"api_key_file": Level.WARNING, "admin_token_file": Level.BROKEN}
    key.chmod(0o600)
    assert worst(list(installation.check_files(ServeConfig(api_key_file=str(key))))) is Level.OK


@pytest.mark.parametrize(
    ("setting", "text", "words"),
    [
        ("api_key_file", "me:", "line 1 has an empty key"),
        ("clients", "[clients.me]\nwieght = 2", "did you mean weight?"),
    ],
)
def test_invalid_key_files_are_found(setting: str, text: str, words: str, tmp_path: Path) -> None:
    path = secret(tmp_path / "file", text)
    config = ServeConfig(**{setting: str(path)})  # type: ignore[arg-type]
    [finding] = [each for each in installation.check_files(config) if each.level is Level.BROKEN]
    assert words in finding.text


@pytest.fixture(autouse=True)
def no_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OLLAMA_HOST", "OPENAI_BASE_URL", "OPENAI_API_BASE", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


def examine(*words: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Run it; return the exit code and the worst finding by topic."""
    done = CliRunner().invoke(command, ["--json", *words])
    said = json.loads(done.output)
    assert said["exit_code"] == done.exit_code
    order = ("ok", "note", "warning", "broken")
    findings = sorted(said["findings"], key=lambda finding: order.index(finding["level"]))
    return done.exit_code, {finding["topic"]: finding for finding in findings}


async def test_a_complete_setup_is_ok(tmp_path: Path) -> None:
    async with serve_app(Replay().app) as backend_url:
        config = ServeConfig(backend=backend_url, listen="127.0.0.1:0")
        async with running_daemon(config, load()) as daemon:
            port = daemon.base_url.rpartition(":")[2]
            file = tmp_path / "config.toml"
            file.write_text(f'[serve]\nbackend = "{backend_url}"\nlisten = "127.0.0.1:{port}"\n')
            code, found = await asyncio.to_thread(examine, "--config", str(file), "--url", daemon.base_url)
    assert {topic: f["level"] for topic, f in found.items() if f["level"] in ("warning", "broken")} == {}
    assert code == ExitCode.OK
    assert {"version", "backend", "models", "daemon", "predictor", "files"} <= found.keys()


async def test_servers_default_to_those_of_the_running_daemon() -> None:
    async with serve_app(Replay().app) as backend_url:
        config = ServeConfig(backend=backend_url, listen="127.0.0.1:0")
        async with serving(backend_url, announced=True):
            _, ours = await asyncio.to_thread(examine)
        async with running_daemon(config, load()) as daemon:  # which left no word: it may be anybody's
            _, others = await asyncio.to_thread(examine, "--url", daemon.base_url)
    assert ours["backend"]["level"] == "ok"
    assert backend_url in ours["backend"]["text"]
    assert backend_url not in others["backend"]["text"]


async def test_a_proxy_behind_a_proxy_is_found() -> None:
    async with serve_app(Replay().app) as backend_url:
        config = ServeConfig(backend=backend_url, listen="127.0.0.1:0")
        async with running_daemon(config, load()) as daemon:
            code, found = await asyncio.to_thread(
                examine, "--backend", daemon.base_url, "--url", daemon.base_url
            )
    assert code == ExitCode.FAILURE
    assert "clairvoyant already" in found["backend"]["text"]
    assert found["backend"]["fix"]


def test_missing_backend_and_daemon_have_fixes() -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    code, found = examine("--backend", nowhere, "--url", nowhere)
    assert code == ExitCode.FAILURE
    assert (found["backend"]["level"], found["daemon"]["level"]) == ("broken", "warning")
    assert "clairvoyant serv" in found["daemon"]["fix"]


def test_an_unreadable_configuration_is_a_finding(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[serve]\npolcy = 'fcfs'\n")
    _, found = examine("--config", str(file), "--backend", f"http://127.0.0.1:{free_port()}")
    assert "polcy" in found["configuration"]["text"]
    human = CliRunner().invoke(command, ["--config", str(file)])
    assert "→" in human.output


def test_a_wrong_key_of_the_dashboard_is_a_finding(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[top]\nthem = 'day'\n")
    code, found = examine("--config", str(file), "--backend", f"http://127.0.0.1:{free_port()}")
    assert code == ExitCode.FAILURE
    assert "unknown key 'them' in [top]; did you mean theme?" in found["configuration"]["text"]


@pytest.mark.parametrize(("step", "level"), [("done", "ok"), ("server", "broken")])
def test_a_takeover_is_shown_and_an_interrupted_one_can_be_undone(step: str, level: str) -> None:
    write(Takeover("ollama", "127.0.0.1:11434", 11435, (), service=False), step)
    nowhere = f"http://127.0.0.1:{free_port()}"
    _, found = examine("--backend", nowhere, "--url", nowhere)
    assert found["clients"]["level"] == level
    assert "ollama at 127.0.0.1:11434" in found["clients"]["text"]
    assert (found["clients"]["fix"] == "clairvoyant takeover --undo") == (level == "broken")
