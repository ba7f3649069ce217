"""Files that are no JSON of ours, whatever is wrong with them: one line, and never a traceback."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from clairvoyant_cli.control import ControlClient, decode
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.main import cli
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
    "trace": ("bench", "trace", "--quick", "--backend", "replay", "--virtual-time"),
    "prompts": (*REPLAYED, "--prompts"),
    "top": ("top", "--once", "--replay"),
    "evaluate": ("evaluate",),
    "profiles": ("profiles", "import"),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", CONTENTS)
def test_a_file_that_is_none_is_refused(name: str, reader: str, tmp_path: Path) -> None:
    file = tmp_path / "file.jsonl"
    file.write_bytes(CONTENTS[name])
    result = CliRunner().invoke(cli, [*READERS[reader], str(file)])
    assert isinstance(result.exception, ClairvoyantError), result.exception
    assert "\n" not in str(result.exception)


@pytest.mark.parametrize("name", CONTENTS)
def test_an_answer_that_is_no_daemons_is_told(name: str) -> None:
    with pytest.raises(ClairvoyantError):
        decode(CONTENTS[name])


@pytest.mark.parametrize("name", ["not UTF-8", "cut in a nest", "zeros"])
async def test_an_action_that_no_daemon_answers_is_told(name: str) -> None:
    async with answering(lambda path: [answer(CONTENTS[name])]) as url, ControlClient(url) as client:
        with pytest.raises(ClairvoyantError, match="does not answer as"):
            await client.act("pause")
