"""Files that cannot be what was meant, whatever is wrong with them: one line, and never a traceback."""

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from clairvoyant_lab.simulator.traces import read_history
from clairvoyant_lab.training.text_lines import LONGEST_LINE
from click.testing import CliRunner

from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.files import LARGE_BYTES
from clairvoyant_cli.main import cli
from clairvoyant_cli.state.client import ControlClient
from clairvoyant_cli.state.encoding import decode
from tests.fakes.scripted_upstream import answer, answering

CONTENTS = {
    "not UTF-8": b'{"prompt":"\xff\xfe","tokens":5}\n',
    "cut in a nest": b'{"prompt":' + b"[" * 100_000 + b"\n",
    "nested deep": b'{"x":' + b"[" * 50_000 + b"]" * 50_000 + b"}\n",
    "infinite": b'{"prompt":"x","at":1e999,"tokens":1e999}\n' * 3,
    "many digits": b'{"prompt":"x","at":1,"tokens":' + b"9" * 5000 + b"}\n",
    "no objects": b'[1,2]\n3\n"x"\nnull\n',
    "zeros": bytes(100),
}
REPLAYED = ("bench", "burst", "--quick", "--backend", "replay", "--virtual-time", "--requests", "2")
READERS = {
    "simulate": ("simulate", "--requests", "50", "--seeds", "1", "--workload"),
    "prompts": (*REPLAYED, "--prompts"),
    "evaluate": ("evaluate",),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", CONTENTS)
def test_a_file_that_is_none_is_refused(name: str, reader: str, tmp_path: Path) -> None:
    file = tmp_path / "file.jsonl"
    file.write_bytes(CONTENTS[name])
    result = CliRunner().invoke(cli, [*READERS[reader], str(file)])
    assert isinstance(result.exception, ClairvoyantError), result.exception
    assert "\n" not in str(result.exception)


def damaged_gzip(path: Path) -> None:
    path.write_bytes(gzip.compress(b'{"prompt":"x","output_tokens":5}\n' * 5000)[:60])


def gzip_bomb(path: Path) -> None:
    path.write_bytes(gzip.compress(bytes(LONGEST_LINE + 1), compresslevel=1))


def too_large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(LARGE_BYTES + 1)
    path.chmod(0o600)


ODD: dict[str, Callable[[Path], object]] = {
    "a pipe": lambda path: os.mkfifo(path, 0o600),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a directory": Path.mkdir,
    "a damaged gzip": damaged_gzip,
    "a gzip bomb": gzip_bomb,
    "too large": too_large,
}
TAKERS = {
    **READERS,
    "lengths": ("study", "answers", __file__, "--lengths"),
    "train": ("train", "--out", "model"),
    "config": ("serve", "--config"),
    "token": ("status", "--token-file"),
    "backend key": ("calibrate", "--backend", "http://127.0.0.1:9", "--backend-key-file"),
    "admin token": ("serve", "--backend", "http://127.0.0.1:9", "--admin-token-file"),
}


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize("kind", [*ODD, "too long a name"])
def test_an_odd_file_is_refused_in_one_line(
    kind: str, taker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLAIRVOYANT_DB", str(tmp_path / "x.db"))
    file = tmp_path / (f"{kind.replace(' ', '-')}.jsonl.gz" if kind in ODD else "n" * 300)
    if kind in ODD:
        ODD[kind](file)
    result = CliRunner().invoke(cli, [*TAKERS[taker], str(file)])
    assert isinstance(result.exception, ClairvoyantError | SystemExit), result.exception
    assert result.exit_code != 0
    assert len(result.output.splitlines()) <= 5  # click's usage


OUTPUTS = {
    "report": (*REPLAYED, "--report"),
    "model": ("train", __file__, "--out"),
}


@pytest.mark.parametrize("output", OUTPUTS)
def test_a_place_that_cannot_be_written_is_refused_before_the_work(output: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.md")
    for place, words in ((tmp_path / "pipe.md", "pipe"), (tmp_path / f"{'n' * 300}.md", "too long")):
        result = CliRunner().invoke(cli, [*OUTPUTS[output], str(place)])
        refused = result.exception
        code = refused.exit_code if isinstance(refused, ClairvoyantError) else result.exit_code
        assert code == ExitCode.USAGE
        assert words in (result.output or str(refused))


def test_a_trace_with_too_many_requests_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clairvoyant_lab.training.text_lines.MOST_LINES", 4)
    file = tmp_path / "trace.csv"
    file.write_text("tokens\n" + "5\n" * 4)
    assert len(read_history(file, limit=3).workload) == 3
    with pytest.raises(ClairvoyantError, match="take a part of it"):
        read_history(file)


@pytest.mark.parametrize("name", CONTENTS)
def test_an_answer_that_is_no_daemons_is_told(name: str) -> None:
    with pytest.raises(ClairvoyantError):
        decode(CONTENTS[name])


@pytest.mark.parametrize("name", ["not UTF-8", "cut in a nest", "zeros"])
async def test_an_action_that_no_daemon_answers_is_told(name: str) -> None:
    async with answering(lambda path: [answer(CONTENTS[name])]) as url, ControlClient(url) as client:
        with pytest.raises(ClairvoyantError, match="does not answer as"):
            await client.act("pause")
