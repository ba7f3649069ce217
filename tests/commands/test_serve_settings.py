"""What `serve` and its kin cannot use: one line that says what to do, before anything starts."""

import asyncio
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner

import clairvoyant_cli.main
from clairvoyant_cli.addresses import check_url
from clairvoyant_cli.commands import serve
from clairvoyant_cli.commands.setup import load_working_predictor, told_plainly, urgency_predictor
from clairvoyant_cli.config import ServeConfig, load_serve_config
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.main import cli
from clairvoyant_cli.system import run
from predictor.loading import MODELS
from predictor.record import UNKNOWN, PromptView
from tests.fakes.calibrating import replay
from tests.fakes.daemon_process import daemon_process

NO_URLS = (
    "http://",
    "http://[::1",
    "http://[zz]:1",
    "http://a..b:80",
    f"http://{'a' * 300}.x:80",
    "http://xn--a.invalid:1",
    "http://xn--ls8h.la",
    "http://💩.la",
    "http://999.1.1.1",
    "http://127.0.0.1:9/\x7f",
    "http://127.0.0.1:9/\n",
    "http://127.0.0.1:9/a b",
    "http://x y:80",
    "http://a\0b:1",
    "http://a\udcff:1",
    "http://127.0.0.1:99999",
    "http://127.0.0.1:x",
    "http://127.0.0.1:²",
    f"http://127.0.0.1:{'9' * 5000}",
    f"http://a.b/{'p' * 70_000}",
    "http://127.0.0.1:80:80",
    "http://:80",
    "ftp://x.y",
    "://x",
    "//x:1",
    ".",
)
URLS = (
    "http://127.0.0.1:11434",
    "https://localhost",
    "HTTP://127.0.0.1:9",
    "127.0.0.1:8080",
    "gpu.example",
    "http://[::1]:9/v1",
    "[::1]:9",
    "http://a_b.invalid:1/prefix/v1",
    "http://münchen.example",
    "http://xn--mnchen-3ya.example.",
    "http://u:p@127.0.0.1:9",
)
NO_LISTEN = (
    "",
    "127.0.0.1",
    "127.0.0.1:",
    "127.0.0.1:²",
    "127.0.0.1:٣٤",
    f"127.0.0.1:{'9' * 5000}",
    "127.0.0.1:70000",
    "127.0.0.1:-1",
    "a..b:1",
    f"{'x' * 300}:1",
    "a\0b:1",
    "a\nb:1",
    " 127.0.0.1:1",
)
NO_TOML = {
    "a number": ("serve = 3\n", "serve must be a table"),
    "a list": ("serve = []\n", "serve must be a table"),
    "a list of tables": ("[[serve]]\nslots = 1\n", "serve must be a table"),
    "nested deep": (f"x = {'[' * 5000}{']' * 5000}\n", "nested too deep"),
    "a number too large": (f"[serve]\ntau = 1{'0' * 400}\n", "a number beyond 64 bits"),
    "too many digits": (f"[serve]\nslots = {'9' * 5000}\n", "a number beyond 64 bits"),
    "a long value": (f"[serve]\nslots = '{'9' * 5000}'\n", "slots must be a whole number"),
    "a long key": (f"[serve]\n{'k' * 5000} = 1\n", "unknown key"),
    "no TOML": ("[serve\n", "cannot read the configuration"),
    "a near miss": ("[serve]\nslot = 2\n", "did you mean slots?"),
    "two files": ('[serve]\nclients = "a"\napi_key_file = "b"\n', "exclude each other"),
    "NUL in db": ('[serve]\ndb = "/tmp/a\\u0000b"\n', "db must not hold a NUL"),
    "NUL in clients": ('[serve]\nclients = "a\\u0000b"\n', "clients must not hold a NUL"),
    "NUL in listen": ('[serve]\nlisten = "a\\u0000b:80"\n', "listen must not hold a NUL"),
    "NUL in backend": ('[serve]\nbackend = "http://a\\u0000b:1"\n', "backend must not hold a NUL"),
}


def refusal(*arguments: str) -> str:
    """Run a command that must be refused with one line of a bearable length; return it."""
    result = CliRunner().invoke(cli, arguments)
    assert isinstance(result.exception, ClairvoyantError), result.exception
    assert result.exception.exit_code == ExitCode.USAGE
    message = str(result.exception)
    assert "\n" not in message
    assert len(message) < 400
    return message


@pytest.mark.parametrize("url", NO_URLS)
def test_what_is_no_url_is_refused_by_all_who_take_one(url: str) -> None:
    for words in (("serve",), ("calibrate",), ("bench", "burst")):
        why = refusal(*words, f"--backend={url}")
        assert "NUL" in why or ("is not a backend URL" in why and "give one like" in why)
    for command in ("status", "env", "top", "doctor"):
        assert "is not a URL" in refusal(command, f"--url={url}")


@pytest.mark.parametrize("url", URLS)
def test_what_is_a_url_is_taken(url: str) -> None:
    check_url(url, "")
    assert ServeConfig(backend=url).backend == url


def test_a_policy_that_is_none_is_refused_before_anything_is_asked(caplog: pytest.LogCaptureFixture) -> None:
    nowhere = ("serve", "--backend", "http://127.0.0.1:1", "--listen", "127.0.0.1:0")
    assert refusal(*nowhere, "--policy", "sfj").endswith("did you mean sjf?")
    assert "there are boost, " in refusal(*nowhere, "--policy", "magic")
    assert "nothing answers" not in caplog.text


@pytest.mark.parametrize("listen", NO_LISTEN)
def test_what_cannot_be_listened_on_is_refused(listen: str) -> None:
    assert refusal("serve", "--listen", listen).startswith("listen must")


@pytest.mark.parametrize("listen", ["127.0.0.1:0", ":8080", "[::1]:1", "[fe80::1%eth0]:1", "localhost:65535"])
def test_what_can_be_listened_on_is_taken(listen: str) -> None:
    [(host, port)] = ServeConfig(listen=listen).addresses()
    assert host.strip("[]") in (listen.rpartition(":")[0].strip("[]"), "0.0.0.0")  # noqa: S104
    assert port == int(listen.rpartition(":")[2])


@pytest.mark.parametrize("name", NO_TOML)
def test_a_configuration_that_is_none_is_refused(name: str, tmp_path: Path) -> None:
    text, why = NO_TOML[name]
    file = tmp_path / "config.toml"
    file.write_text(text)
    assert why in refusal("serve", "--config", str(file))


@pytest.mark.parametrize(
    ("flag", "value", "why"),
    [
        ("--slots", "0", "at least 1"),
        ("--slots", "1025", "at most 1024"),
        ("--slots", "100000000", "at most 1024"),
        ("--slots", str(2**63), "at most 1024"),
        ("--queue-capacity", "0", "at least 1"),
        ("--queue-capacity", "-1", "at least 1"),
        ("--history-days", "0", "1 to 36500"),
        ("--history-days", f"1{'0' * 400}", "1 to 36500"),
        ("--otlp-endpoint", "nope", "be a URL such as http://127.0.0.1:4318"),
        ("--otlp-endpoint", "http://", "be a URL such as http://127.0.0.1:4318"),
    ],
)
def test_an_invalid_value_is_refused(flag: str, value: str, why: str) -> None:
    assert why in refusal("serve", flag, value)


# -- interrupted before it serves -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", ["ImportError('executable stack')", "OSError(193, 'a DLL')", "KeyError('x')"]
)
def test_a_runtime_that_cannot_be_loaded_leaves_arrival_order(
    error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "onnxruntime.py").write_text(f"raise {error}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    config = ServeConfig(urgency="shipped")
    assert load_working_predictor(config).predict(PromptView("Hello")) == UNKNOWN
    assert urgency_predictor(config) is None
    assert [line.partition(":")[0] for line in caplog.messages] == [
        "no predictions, so arrival order",
        "no predicted urgency",
    ]
    with pytest.raises(ClairvoyantError, match="ONNX Runtime cannot be loaded"):
        load_working_predictor(ServeConfig(predictor=str(MODELS / "default")))


def test_an_error_that_is_not_of_a_model_is_left_as_it_is() -> None:
    with pytest.raises(ClairvoyantError, match="another"), told_plainly():
        raise ClairvoyantError("another")


async def test_serve_starts_without_a_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "onnxruntime.py").write_text("raise ImportError('executable stack')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    async with replay() as (_, url):
        manager = daemon_process(url, home=tmp_path)
        daemon = await asyncio.to_thread(manager.__enter__)
        await asyncio.to_thread(manager.__exit__, None, None, None)
    assert any("policy fcfs, predictor none" in line for line in daemon.lines)


def interrupted(*_: object, **__: object) -> NoReturn:
    raise KeyboardInterrupt


@pytest.mark.parametrize("where", ["import", "configuration", "loop", "predictor"])
def test_serve_ends_quietly_when_it_is_interrupted_before_it_serves(
    where: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As it does later on, when an interrupt is a drain."""
    monkeypatch.setattr("logging.basicConfig", lambda **_: None)
    if where == "import":
        monkeypatch.setattr(clairvoyant_cli.main, "import_module", interrupted)
    elif where == "configuration":
        monkeypatch.setattr(serve, "load_serve_config", interrupted)
    elif where == "loop":
        monkeypatch.setattr("uvloop.run", interrupted)
    else:
        monkeypatch.setattr(serve, "load_working_predictor", interrupted)
    result = CliRunner().invoke(cli, ["serve", "--db", str(tmp_path / "c.db")])
    assert (result.exit_code, result.output) == (0, "")


def test_a_batch_that_is_interrupted_during_its_start_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clairvoyant_cli.main, "import_module", interrupted)
    result = CliRunner().invoke(cli, ["batch", "night.jsonl"])
    assert str(result.exception) == "stopped; run the same command again to go on"


def test_another_command_that_is_interrupted_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clairvoyant_cli.commands.history.opened_database", interrupted)
    result = CliRunner().invoke(cli, ["history"])
    assert result.exit_code == 1
    assert "Aborted" in result.output


def test_what_is_run_is_closed_whatever_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never() -> None:
        raise AssertionError

    monkeypatch.setattr("uvloop.run", interrupted)
    main: Coroutine[Any, Any, None] = never()
    with pytest.raises(KeyboardInterrupt):
        run(main)
    with pytest.raises(RuntimeError, match="cannot reuse"):
        main.send(None)


ROOT = Path(__file__).resolve().parents[2]


def test_the_sample_configuration_is_valid_and_sets_nothing() -> None:
    assert load_serve_config({}, file=ROOT / "docs" / "config.sample.toml", env={}) == ServeConfig()


def test_an_unknown_environment_variable_is_an_error() -> None:
    with pytest.raises(ClairvoyantError, match="unknown environment variable"):
        load_serve_config({}, env={"CLAIRVOYANT_SERVE_MODELS": "x"})
