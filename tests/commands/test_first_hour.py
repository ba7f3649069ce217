"""What gets in a newcomer's way is said in one line that says what to do."""

import asyncio
from pathlib import Path

import pytest
from clairvoyant_lab.asgi_server import serve_app
from click.testing import CliRunner

from clairvoyant_cli import main as program
from clairvoyant_cli.backends.discovery import locate_server
from clairvoyant_cli.backends.prober import Prober
from clairvoyant_cli.commands import console as printing
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.main import cli
from tests.fakes.replay_backend import Replay
from tests.fakes.serving import serving


def test_a_place_that_cannot_be_read_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unreadable(**_: object) -> None:
        raise PermissionError(13, "Permission denied", "/home/other/.local/share/clairvoyant")

    monkeypatch.setattr(program, "cli", unreadable)
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("clairvoyant: /home/other/.local/share/clairvoyant: Permission denied; give --db")


@pytest.mark.parametrize(
    "words", [["serve", "--polcy", "x"], ["act"], ["demo", "--requests", "0"], ["simulate", "x"]]
)
def test_wrong_usage_is_one_line_that_says_where_to_look(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["clairvoyant", *words])
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("clairvoyant: ")
    command = " ".join(word for word in words if word in ("serve", "act", "demo", "simulate"))
    assert line.endswith(f"; see: clairvoyant {command} --help")


async def test_https_before_a_plain_server_is_refused_with_the_right_address() -> None:
    async with serve_app(Replay().app) as url, Prober() as prober:
        secure = url.replace("http://", "https://")
        with pytest.raises(ClairvoyantError, match=f"speaks plain HTTP; give {url}"):
            await locate_server(secure, prober)


async def test_doctor_takes_a_second_daemon_for_what_it_is(tmp_path: Path) -> None:
    async with (
        serve_app(Replay().app) as url,
        serving(url, announced=True) as first,
        serving(url, announced=True) as second,
    ):
        port = first.base_url.rpartition(":")[2]
        file = tmp_path / "config.toml"
        file.write_text(f'[serve]\nbackend = "{url}"\nlisten = "127.0.0.1:{port}"\n')
        words = ["doctor", "--config", str(file), "--url", second.base_url]
        done = await asyncio.to_thread(CliRunner().invoke, cli, words)
    assert "is used by another daemon of this account" in done.output
    assert "0 broken" in done.output


def test_what_goes_into_a_pipe_is_neither_cut_nor_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    console = printing.PlainConsole()
    with console.capture() as captured:
        console.print("a-long-name " * 50)
    assert len(captured.get().splitlines()) == 1
